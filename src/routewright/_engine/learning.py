"""Learns from traffic: sketches prompts, applies the heads of accounts, and has answers graded afterwards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from routewright._core.call import Call
from routewright._core.request.read import prompt_of
from routewright._core.routing.board import LruCache
from routewright._core.routing.quality_head import HEADS, heads_in, moved, sketch_of, steps_of
from routewright.errors import RouterClosed, RouterError
from routewright.loop import at_once
from routewright.protocols import Clock, ImmediateStorage, LocalStorage, Rng, Storage
from routewright.wire import AgentState, Caller, FeedbackByTrace, Head, PutFeedback, Reading
from routewright.wire.storage import JUDGE

from .storage import GuardedStorage
from .worker import Worker

HEAD_CACHE_S = 2.5
"""How long a head is cached: half of the five seconds within which all processes must apply a new one."""
HEADS_KEPT, COLUMNS_KEPT = 1_000, 1_024
OWN = "routewright"
"""Metadata key of the library's own calls, such as a judge's; they are not learned from."""

Grade = Callable[[Caller, str, str], Awaitable[float | None]]


class Learner:
    """Learning of one Router. Safe to use from several threads."""

    def __init__(
        self,
        storage: Storage,
        worker: Worker,
        clock: Clock,
        rng: Rng,
        share: float,
        grade: Grade | None,
        keep: Callable[[Caller, PutFeedback], Awaitable[None]],
    ) -> None:
        """``share`` of the answers is graded; ``keep`` stores feedback."""
        self._storage = GuardedStorage(storage)
        self._path = storage.path if isinstance(storage, LocalStorage) else None
        self._answers = isinstance(storage, LocalStorage | ImmediateStorage)
        self._worker = worker
        self._clock = clock
        self._rng = rng
        self._share = share
        self._grade = grade
        self._keep = keep
        self._heads: LruCache[Caller, tuple[float, Head | None]] = LruCache(HEADS_KEPT)
        self._columns: LruCache[tuple[str, str, tuple[int, ...], tuple[int, ...]], tuple[int, ...]] = LruCache(
            COLUMNS_KEPT
        )

    def learned(
        self, call: Call, reading: Reading, quality: tuple[int, ...] | None
    ) -> tuple[Reading, tuple[int, ...] | None]:
        """The reading with its sketch, and the qualities according to the account's head, which the reading then names.
        ``quality``: the predictor's; None: the catalogue's."""
        predictor = reading.predictor.partition("+")[0]
        if OWN in (call.request.metadata or ()):
            return replace(reading, sketch=()), quality
        sketch, head, pool = sketch_of(reading), self.head(call.caller), call.board.pool
        if head is None or head.predictor != predictor:
            return replace(reading, sketch=sketch, predictor=predictor), quality
        steps = steps_of(head, sketch)
        key = pool.snapshot.id, head.id, reading.cell, steps
        column = self._columns[key]
        if column is None:
            column = moved(pool.qualities if quality is None else quality, pool.row, head, steps)
            self._columns.put(key, column)
        return replace(reading, sketch=sketch, predictor=f"{predictor}+{head.id}"), column

    def head(self, caller: Caller) -> Head | None:
        """The head of an account and environment. While the storage is unavailable, the last known one."""
        whose, now = Caller(caller.account, caller.environment), self._clock.monotonic()
        read_at, head = self._heads[whose] or (-HEAD_CACHE_S, None)
        if now - read_at >= HEAD_CACHE_S and self._answers:
            self._heads.put(whose, (now, head))  # concurrent calls use the previous one
            with suppress(RouterError, RuntimeError):
                if self._path is None or self._path.exists():
                    query = AgentState(HEADS, environment=whose.environment, informs=True)
                    head = next(iter(heads_in(at_once(self._storage.read(whose.account, query)))), None)
                    self._heads.put(whose, (now, head))
        return head

    def ended(self, call: Call, output: str) -> None:
        """Have an answer graded, if it is one of the sampled share."""
        if self._grade is None or not call.attempts or not output or OWN in (call.request.metadata or ()):
            return
        if call.environment != "sandbox" and self._rng.random() < self._share:
            with suppress(RouterClosed):
                self._worker.start(partial(self._ask, call.caller, call.id, prompt_of(call.request), output))

    async def _ask(self, caller: Caller, trace_id: str, prompt: str, output: str) -> None:
        assert self._grade is not None, "`ended` has checked"
        score = await self._grade(caller, prompt, output)
        if score is None:
            return
        asked = FeedbackByTrace(trace_id, caller.environment)
        with suppress(RouterError):
            said: PutFeedback | None = await self._storage.read(caller.account, asked)
            if said is None or said.comment == JUDGE:
                at, where = self._clock.time(), caller.environment
                put = PutFeedback(trace_id, score, JUDGE, at, expect="present", environment=where)
                await self._keep(caller, put)
