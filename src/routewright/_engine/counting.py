"""Finds out what a decision depends on beyond bounds: exact token counts, and a predictor's qualities."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from routewright._core.call import Call
from routewright._core.routing.decide import countable
from routewright._core.routing.inputs import quality_column
from routewright._core.tokens.estimate import VOCABULARIES, Vocabulary
from routewright.errors import InternalError, RouterError, RouterTimeoutError
from routewright.protocols import Clock, QualityPredictor
from routewright.threads import Threads
from routewright.wire import DecisionInput, RouteRequest, TokenBounds

COUNT_INLINE_CHARS = 2_000
"""Prompts up to this long are counted on the spot once the tables are loaded; longer ones in a worker thread."""
COUNT_LONG_CHARS = 100_000
"""Longer ones queue among themselves: they take milliseconds and more each, while shorter ones pass them."""

CountRequest = Callable[[RouteRequest, TokenBounds, Sequence[Vocabulary]], TokenBounds]


class Counting:
    """Counts tokens and asks for qualities, where a decision depends on them."""

    def __init__(self, count: CountRequest, predictor: QualityPredictor | None, clock: Clock) -> None:
        self._count = count
        self.predictor = predictor
        self._clock = clock
        self._counted_in: set[Vocabulary] = set()
        self._threads = Threads("counts of tokens", 1)  # side by side they would take no less time
        self._threads_of_long = Threads("counts of long prompts", 1)

    def predict(self, call: Call) -> None:
        """Put a quality for each model into the decision's input, where a predictor gives them."""
        given, models = call.given, call.board.outlook.pool.models
        if self.predictor is None or given.quality is not None:
            return
        try:
            qualities = self.predictor.predict(call.request, models)
            column = None if qualities is None else quality_column(qualities)
        except Exception as error:  # its words may hold the prompt, so they stay there
            raise InternalError(f"the quality predictor failed with {type(error).__name__}") from error
        if column is not None and len(column) != len(models):
            raise InternalError(f"the quality predictor gave {len(column)} qualities for {len(models)} models")
        call.given = replace(given, quality=column)

    def count(self, call: Call, given: DecisionInput, encodings: Sequence[Vocabulary] = VOCABULARIES) -> DecisionInput:
        """The input with counts in these vocabularies."""
        try:
            tokens = self._count(call.request, given.tokens, encodings)
        except RouterError:
            raise
        except Exception as error:  # its words may hold the prompt, so they stay there
            raise InternalError(f"the token counter failed with {type(error).__name__}") from error
        self._counted_in.update(encodings)
        return replace(given, tokens=tokens)

    async def count_aside(
        self, call: Call, given: DecisionInput, encodings: Sequence[Vocabulary] = VOCABULARIES
    ) -> DecisionInput:
        """``count`` on the spot what is short, or where time is virtual and a thread would look like a wait; else in a
        thread. Raises ``RouterTimeoutError``."""
        characters = given.tokens.high
        short = characters <= COUNT_INLINE_CHARS and self._counted_in.issuperset(encodings)
        if short or self._clock.virtual:
            return self.count(call, given, encodings)
        threads = self._threads_of_long if characters > COUNT_LONG_CHARS else self._threads
        with self._clock.deadline(call.deadline):
            return await threads.run(self.count, call, given, encodings)
        said = f"timeout_ms={given.timeout_ms} ran out while the tokens of the prompt were counted"
        raise RouterTimeoutError(f"{said}; allow more time, or send a shorter prompt")

    def that_matter(self, call: Call, given: DecisionInput) -> Sequence[Vocabulary]:
        """The vocabularies in which a count can change the decision."""
        return countable(given, call.board)
