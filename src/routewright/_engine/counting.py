"""Exact token counts, and qualities that a host predicts, for decisions that need them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from msgspec.structs import replace

from routewright._core.call import Call
from routewright._core.routing.decide import largest_window
from routewright._core.routing.inputs import quality_column
from routewright._core.tokens.estimate import LONG_BYTES, VOCABULARIES, Vocabulary, bounds_of, least_tokens
from routewright._runtime.loop import Threads, in_plain_code
from routewright.errors import InternalError, RouterError, RouterTimeoutError
from routewright.protocols import Clock, QualityPredictor
from routewright.wire import DecisionInput, RouteRequest, TokenBounds

COUNT_INLINE_CHARS = 2_000
"""Prompts up to this length are counted inline once the tables are loaded; longer ones in a worker thread."""
COUNT_LONG_CHARS = 100_000
"""Longer ones have a separate queue, since each takes milliseconds or more."""

T = TypeVar("T")
CountRequest = Callable[[RouteRequest, TokenBounds, Sequence[Vocabulary]], TokenBounds]


class Counting:
    """Counts tokens, and asks the host's predictor, for decisions that depend on it."""

    def __init__(self, count: CountRequest, predictor: QualityPredictor | None, clock: Clock) -> None:
        self._count = count
        self.predictor = predictor
        self._clock = clock
        self.loaded: set[Vocabulary] = set()
        """Vocabularies whose tables are loaded."""
        self._threads = Threads("counts of tokens", 1)  # more would not be faster
        self._threads_of_long = Threads("counts of long prompts", 1)

    def with_qualities(self, call: Call, decision_input: DecisionInput) -> DecisionInput:
        """The input with the qualities that the host predicts, if any. Raises ``InternalError``."""
        models = call.board.forecast.pool.models
        if self.predictor is None:
            return decision_input
        with _naming("the quality predictor"):
            qualities = self.predictor.predict(call.request, models)
            column = None if qualities is None else quality_column(qualities)
        if column is not None and len(column) != len(models):
            raise InternalError(f"the quality predictor returned {len(column)} qualities for {len(models)} models")
        return replace(decision_input, quality=column)

    async def find_excess(self, call: Call, decision_input: DecisionInput) -> DecisionInput | None:
        """The input, to be decided without counts, if the prompt by far exceeds the window of every model that the
        request may use; else None. Counting a prompt of megabytes takes seconds of a processor, which nobody pays for
        if no model can take it. Raises ``RouterTimeoutError``."""
        if decision_input.tokens.high <= LONG_BYTES:
            return self._find_excess(call, decision_input)
        return await self._run_aside(self._threads, call, self._find_excess, decision_input)

    def _find_excess(self, call: Call, decision_input: DecisionInput) -> DecisionInput | None:
        window = largest_window(decision_input, call.board)
        least = least_tokens(call.request, decision_input.tokens, window, self._count_sample)
        tokens = replace(decision_input.tokens, low=least, counted=True)
        return replace(decision_input, tokens=tokens) if least > window else None

    async def count(
        self, call: Call, decision_input: DecisionInput, encodings: Sequence[Vocabulary] = VOCABULARIES
    ) -> DecisionInput:
        """Count the tokens, a longer prompt in a thread. Raises ``RouterTimeoutError``."""
        # An exact count keeps a processor busy, for seconds if a prompt has megabytes. In the event loop it would stop
        # every other call (P5: a deadline holds for each); in anyio's threads a few such prompts would take all of
        # them, and files and resolvers would wait. So counts have two threads of their own, one for long prompts, and
        # one for the others, which pass them. Short prompts are counted here, since a change of threads takes longer;
        # and a prompt that no model can take is refused by a sample, and never counted in full.
        # test_long_prompts_are_counted_one_at_a_time_and_take_no_thread_of_anything_else,
        # test_a_prompt_of_middle_length_passes_long_ones,
        # test_megabytes_that_no_model_takes_are_refused_without_a_count
        characters = decision_input.tokens.high
        if characters <= COUNT_INLINE_CHARS and self.loaded.issuperset(encodings):
            return self._count_all(call, decision_input, encodings)
        if characters > LONG_BYTES and (refused := await self.find_excess(call, decision_input)) is not None:
            return refused
        threads = self._threads_of_long if characters > COUNT_LONG_CHARS else self._threads
        return await self._run_aside(threads, call, self._count_all, decision_input, encodings)

    async def _run_aside(self, threads: Threads, call: Call, work: Callable[..., T], *arguments: Any) -> T:
        """Run it in a thread; inline in plain code, and on a virtual clock."""
        if self._clock.virtual or in_plain_code():
            return work(call, *arguments)
        with self._clock.deadline(call.deadline):
            return await threads.run(work, call, *arguments)
        problem = f"timeout_ms={call.timeout_ms} ran out while the tokens of the prompt were counted"
        raise RouterTimeoutError(f"{problem}; raise timeout_ms, or send a shorter prompt")

    def _count_all(self, call: Call, decision_input: DecisionInput, encodings: Sequence[Vocabulary]) -> DecisionInput:
        tokens = self._tokens(call.request, decision_input.tokens, encodings)
        self.loaded.update(encodings)
        return replace(decision_input, tokens=tokens)

    def _count_sample(self, sample: RouteRequest) -> TokenBounds:
        return self._tokens(sample, bounds_of(sample), VOCABULARIES[:1])

    def _tokens(self, request: RouteRequest, bounds: TokenBounds, encodings: Sequence[Vocabulary]) -> TokenBounds:
        with _naming("the token counter"):
            return self._count(request, bounds, encodings)


@contextmanager
def _naming(part: str) -> Iterator[None]:
    """Turn what a part of the host raises into an ``InternalError`` that names the part."""
    try:
        yield
    except RouterError:
        raise
    except Exception as error:  # its message may hold the prompt
        raise InternalError(f"{part} failed with {type(error).__name__}") from error
