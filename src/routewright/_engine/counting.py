"""Exact token counts, and qualities predicted from the prompt, for decisions that need them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeVar

from msgspec.structs import replace

from routewright._core.call import Call
from routewright._core.request.read import prompt_of
from routewright._core.routing.board import Board, LruCache
from routewright._core.routing.decide import largest_window
from routewright._core.routing.inputs import predicted_column, quality_column, quality_spans
from routewright._core.routing.plan import Plan
from routewright._core.routing.pool import Pool
from routewright._core.routing.predict import Predictor
from routewright._core.tokens.estimate import LONG_BYTES, VOCABULARIES, Vocabulary, bounds_of, least_tokens
from routewright.errors import InternalError, RouterError, RouterTimeoutError
from routewright.loop import Threads
from routewright.protocols import Clock, QualityPredictor
from routewright.wire import DecisionInput, RouteRequest, TokenBounds

from .learning import Learner

COUNT_INLINE_CHARS = 2_000
"""Prompts up to this length are counted inline once the tables are loaded; longer ones in a worker thread."""
COUNT_LONG_CHARS = 100_000
"""Longer ones have a separate queue, since each takes milliseconds or more."""

COLUMNS_KEPT, SPANS_KEPT = 1_024, 16
"""Cached columns of qualities (one per cell of the predictor's grid) and spans (one per catalogue)."""

T = TypeVar("T")
CountRequest = Callable[[RouteRequest, TokenBounds, Sequence[Vocabulary]], TokenBounds]


class Counting:
    """Counts tokens and reads prompts for decisions that depend on it."""

    def __init__(
        self,
        count: CountRequest,
        predictor: QualityPredictor | None,
        built_in: Callable[[], Predictor] | None,
        clock: Clock,
        learner: Learner | None = None,
    ) -> None:
        self._count = count
        self.learner = learner
        """Learns from traffic; None: off."""
        self.predictor = predictor
        self.reads = built_in is not None
        """The built-in predictor is on."""
        self._built_in = built_in
        self._columns: LruCache[tuple[str, tuple[int, ...]], tuple[int, ...]] = LruCache(COLUMNS_KEPT)
        self._spans: LruCache[str, Sequence[tuple[int, ...]]] = LruCache(SPANS_KEPT)
        self._clock = clock
        self.loaded: set[Vocabulary] = set()
        """Vocabularies whose tables are loaded."""
        self._threads = Threads("counts of tokens", 1)  # more would not be faster
        self._threads_of_long = Threads("counts of long prompts", 1)

    @cached_property
    def built_in(self) -> Predictor:
        """The built-in predictor, loaded on first use."""
        assert self._built_in is not None, "it is on"
        return self._built_in()

    def read(self, call: Call) -> None:
        """Read the prompt of a call, once, and set the predicted qualities; None: the catalogue's are used."""
        reading, pool, quality = call.reading, call.board.pool, None
        if reading is None:
            reading = self.built_in.read(prompt_of(call.request))
        if any(reading.cell):
            key = pool.snapshot.id, reading.cell
            quality = self._columns[key]
            if quality is None:
                quality = tuple(predicted_column(self.built_in, reading.cell, pool).tolist())
                self._columns.put(key, quality)
        if self.learner is not None:
            reading, quality = self.learner.learned(call, reading, quality)
        call.reading, call.quality = reading, quality

    def reads_for(self, models: Sequence[str] | None, pool: Pool) -> bool:
        """True if the prompt of a request that names models should be read: to learn from it, or because the prediction
        may change their order."""
        if not self.reads or self.learner is not None or models is None:
            return self.reads
        spans = self._spans_of(pool)
        return len({spans[pool.row[model]] for model in models}) > 1

    def is_swayed(self, plan: Plan, board: Board) -> bool:
        """True if prompts of a plan's class should be read: to learn from them, or because it could change the plan."""
        return self.learner is not None or board.order(plan.given).is_swayed(self._spans_of(board.pool))

    def _spans_of(self, pool: Pool) -> Sequence[tuple[int, ...]]:
        spans = self._spans[pool.snapshot.id]
        if spans is None:
            spans = quality_spans(self.built_in, pool)
            self._spans.put(pool.snapshot.id, spans)
        return spans

    def predict(self, call: Call) -> None:
        """Add the host's predicted qualities, if any, to the decision's input."""
        given, models = call.given, call.board.forecast.pool.models
        if self.predictor is None or given.quality is not None:
            return
        try:
            qualities = self.predictor.predict(call.request, models)
            column = None if qualities is None else quality_column(qualities)
        except Exception as error:  # its message may hold the prompt
            raise InternalError(f"the quality predictor failed with {type(error).__name__}") from error
        if column is not None and len(column) != len(models):
            raise InternalError(f"the quality predictor gave {len(column)} qualities for {len(models)} models")
        call.given = replace(given, quality=column)

    def too_long(self, call: Call, given: DecisionInput) -> DecisionInput | None:
        """The input, to be decided without counts, if the prompt by far exceeds the window of every model that the
        request may use; else None. Counting a prompt of megabytes takes seconds of a processor, which nobody pays for
        if no model can take it."""
        window = largest_window(given, call.board)
        least = least_tokens(call.request, given.tokens, window, self._count_sample)
        return replace(given, tokens=replace(given.tokens, low=least, counted=True)) if least > window else None

    async def too_long_aside(self, call: Call, given: DecisionInput) -> DecisionInput | None:
        """``too_long``, with the sample counted in a thread. Raises ``RouterTimeoutError``."""
        if given.tokens.high <= LONG_BYTES or self._clock.virtual:
            return self.too_long(call, given)
        return await self._aside(self._threads, call, self.too_long, given)

    def count(self, call: Call, given: DecisionInput, encodings: Sequence[Vocabulary] = VOCABULARIES) -> DecisionInput:
        if given.tokens.high > LONG_BYTES and (refused := self.too_long(call, given)) is not None:
            return refused
        return self._counted(call, given, encodings)

    async def count_aside(
        self, call: Call, given: DecisionInput, encodings: Sequence[Vocabulary] = VOCABULARIES
    ) -> DecisionInput:
        """``count`` in a thread; inline for a short prompt, and on a virtual clock. Raises ``RouterTimeoutError``."""
        characters = given.tokens.high
        short = characters <= COUNT_INLINE_CHARS and self.loaded.issuperset(encodings)
        if short or self._clock.virtual:
            return self.count(call, given, encodings)
        if characters > LONG_BYTES and (refused := await self.too_long_aside(call, given)) is not None:
            return refused
        threads = self._threads_of_long if characters > COUNT_LONG_CHARS else self._threads
        return await self._aside(threads, call, self._counted, given, encodings)

    async def _aside(self, threads: Threads, call: Call, work: Callable[..., T], *given: Any) -> T:
        with self._clock.deadline(call.deadline):
            return await threads.run(work, call, *given)
        said = f"timeout_ms={call.timeout_ms} ran out while the tokens of the prompt were counted"
        raise RouterTimeoutError(f"{said}; raise timeout_ms, or send a shorter prompt")

    def _counted(self, call: Call, given: DecisionInput, encodings: Sequence[Vocabulary]) -> DecisionInput:
        tokens = self._tokens(call.request, given.tokens, encodings)
        self.loaded.update(encodings)
        return replace(given, tokens=tokens)

    def _count_sample(self, sample: RouteRequest) -> TokenBounds:
        return self._tokens(sample, bounds_of(sample), VOCABULARIES[:1])

    def _tokens(self, request: RouteRequest, bounds: TokenBounds, encodings: Sequence[Vocabulary]) -> TokenBounds:
        try:
            return self._count(request, bounds, encodings)
        except RouterError:
            raise
        except Exception as error:  # its message may hold the prompt
            raise InternalError(f"the token counter failed with {type(error).__name__}") from error
