"""A request that was let in, and what is found out about it before a model is chosen: its tokens, its qualities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from routewright._core.board import Board
from routewright._core.intake import quality_column
from routewright._core.money import usd
from routewright._core.plan import countable
from routewright._core.policy import Laid
from routewright._core.tokens import Vocabulary
from routewright.errors import InternalError, RouterError, RouterTimeoutError
from routewright.protocols import Clock, QualityPredictor
from routewright.threads import Threads
from routewright.wire import Budget, DecisionInput, RouteRequest, TokenBounds

from .fleet import Fleet
from .outcome import Admitted

if TYPE_CHECKING:
    from .admission import Admission

COUNT_INLINE_CHARS = 2_000
"""Prompts up to this long are counted on the spot once the tables are loaded; longer ones in a worker thread."""
COUNT_LONG_CHARS = 100_000
"""Longer ones take their turn among themselves: milliseconds and more each, while shorter ones pass them."""


class Entry(NamedTuple):
    """A request that was let in, with the snapshots that it keeps to."""

    request: RouteRequest
    admitted: Admitted
    fleet: Fleet
    board: Board
    laid: Laid | None
    """The policy that it is under."""
    admission: Admission | None = None
    """What it holds; None: nothing limits its caller."""

    @property
    def deadline(self) -> float:
        """When its time is over, on the monotonic scale."""
        return self.admitted.started_at + self.admitted.given.timeout_ms / 1000

    def holding(self, admission: Admission) -> Entry:
        """The same entry, of a call that holds something."""
        admitted = self.admitted._replace(trace_id=admission.trace_id, windows=admission.windows)
        return self._replace(admitted=admitted, admission=admission)

    def under_account(self, given: DecisionInput) -> Entry:
        """The same entry with an input that may have less money than its request says."""
        return self._replace(admitted=self.admitted._replace(given=given))

    def under(self, given: DecisionInput) -> Entry:
        """The same entry with another input, whose budget its request is said to have."""
        cost = None if given.budget_nanos is None else usd(given.budget_nanos)
        request = replace(self.request, budget=Budget(cost, given.budget_tokens))
        return self._replace(request=request, admitted=self.admitted._replace(given=given))


CountRequest = Callable[[RouteRequest, TokenBounds, Sequence[Vocabulary]], TokenBounds]


class Counting:
    """Counts tokens and asks for qualities, where a decision depends on them."""

    def __init__(self, count: CountRequest, predictor: QualityPredictor | None, clock: Clock) -> None:
        self._count = count
        self._predictor = predictor
        self._clock = clock
        self._counted_in: set[Vocabulary] = set()
        self._threads = Threads("counts of tokens", 1)  # side by side they would take no less time
        self._threads_of_long = Threads("counts of long prompts", 1)

    def predicted(self, entry: Entry) -> DecisionInput:
        """The input with a quality for each model, where somebody predicts it."""
        given, models = entry.admitted.given, entry.board.outlook.pool.models
        if self._predictor is None or given.quality is not None:
            return given
        try:
            qualities = self._predictor.predict(entry.request, models)
            column = None if qualities is None else quality_column(qualities)
        except Exception as error:  # its words may hold the prompt, so they stay there
            raise InternalError(f"the quality predictor failed with {type(error).__name__}") from error
        if column is not None and len(column) != len(models):
            raise InternalError(f"the quality predictor gave {len(column)} qualities for {len(models)} models")
        return replace(given, quality=column)

    def recounted(self, entry: Entry, given: DecisionInput) -> DecisionInput:
        """The input with the counts that matter to it."""
        return self.counted(entry, given, countable(given, entry.board))

    def counted(self, entry: Entry, given: DecisionInput, encodings: Sequence[Vocabulary]) -> DecisionInput:
        """The input with counts in these vocabularies."""
        try:
            tokens = self._count(entry.request, given.tokens, encodings)
        except RouterError:
            raise
        except Exception as error:  # its words may hold the prompt, so they stay there
            raise InternalError(f"the token counter failed with {type(error).__name__}") from error
        self._counted_in.update(encodings)
        return replace(given, tokens=tokens)

    async def recounted_aside(self, entry: Entry, given: DecisionInput) -> DecisionInput:
        """``recounted``, as ``counted_aside`` does it."""
        return await self.counted_aside(entry, given, countable(given, entry.board))

    async def counted_aside(self, entry: Entry, given: DecisionInput, encodings: Sequence[Vocabulary]) -> DecisionInput:
        """Count on the spot what is short, or where time is virtual and a thread would look like a wait; else in a
        thread. Raises ``RouterTimeoutError``."""
        characters = given.tokens.high
        short = characters <= COUNT_INLINE_CHARS and self._counted_in.issuperset(encodings)
        if short or self._clock.virtual:
            return self.counted(entry, given, encodings)
        threads = self._threads_of_long if characters > COUNT_LONG_CHARS else self._threads
        with self._clock.deadline(entry.deadline):
            return await threads.run(self.counted, entry, given, encodings)
        said = f"timeout_ms={given.timeout_ms} ran out while the tokens of the prompt were counted"
        raise RouterTimeoutError(f"{said}; allow more time, or send a shorter prompt")
