"""What is learned about cached answers: whether the nearest entry would have been right for a question.

Each account, environment and namespace has a calibration. Processes that share a cache share their observations."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from routewright._core.attempts.faults import place_of
from routewright._core.cache.calibration import LEARNED, Bound, Calibration
from routewright._core.cache.guards import Offer, offer
from routewright._core.outage import Outage
from routewright._runtime.fork import Guard
from routewright._runtime.worker import Worker
from routewright.protocols import AnswerComparator, Clock, Rng
from routewright.wire import CacheMatch, Caller, Observation

JUDGED_SHARE = 0.1
"""Share of refused candidates that are compared if comparing may cost money, as with a judge."""
MOST_SPACES = 1_000
"""Calibrations in memory."""
NEWS_EVERY_S = 60.0
"""Interval for exchanging observations with other processes."""

Judgement: TypeAlias = bool | Awaitable[bool | None] | None
Texts: TypeAlias = tuple[str, str, str]
"""The question, the cached and the live answer."""
Compare: TypeAlias = Callable[[str, str, str], Judgement]
Judge: TypeAlias = Callable[[Caller, str, str, str], Awaitable[bool | None]]
Share: TypeAlias = Callable[[str, Sequence[Observation], int], Awaitable[tuple[Sequence[Observation], int]]]
"""Adds a space's observations to the cache; returns others' since a position, and the next position."""

_log = logging.getLogger(__name__)


class Space(Struct, eq=False):
    """What was learned about cached answers of one account, environment and namespace."""

    name: str
    calibration: Calibration
    new: list[Observation] = []
    """Observations not yet shared with other processes."""
    is_sharing: bool = False
    position: int = 0
    """Position up to which other processes' observations were read."""
    due: float = 0.0
    """When to read them next."""


class Calibrations:
    """The calibrations of one Router. Safe to use from several loops and threads."""

    def __init__(
        self,
        share: Share | None,
        comparators: Sequence[AnswerComparator],
        judge: Judge | None,
        clock: Clock,
        rng: Rng,
        worker: Worker,
    ) -> None:
        """``share``: None if the cache shares no observations."""
        self._share = share
        self._comparators = comparators
        self._judge = judge
        self._clock = clock
        self._rng = rng
        self._worker = worker
        self.outages: dict[str, Outage] = {}
        """By part: when its next failure is logged."""
        self._guard = Guard()
        self.renew()

    def renew(self) -> None:
        """Start empty: after a fork unshared observations are the parent's."""
        self._spaces: OrderedDict[str, Space] = OrderedDict()

    def space(self, caller: Caller, namespace: str | None, embedder: str) -> Space:
        name = f"{caller.account}\n{caller.environment}\n{namespace or ''}\n{embedder}"
        with self._guard.lock:
            if (space := self._spaces.get(name)) is None:
                space = self._spaces[name] = Space(name, Calibration())
                if len(self._spaces) > MOST_SPACES:
                    self._spaces.popitem(last=False)
            else:
                self._spaces.move_to_end(name)
        return space

    def judge(self, space: Space, question: str, matches: Sequence[CacheMatch], bound: Bound) -> Offer:
        """The nearest entry that may be served, with the probability to serve it."""
        with self._guard.lock:
            space.calibration.count()
            nearest = offer(question, matches, space.calibration, bound)
        now = self._clock.monotonic()
        if self._share is not None and now >= space.due:
            space.due = now + NEWS_EVERY_S
            self._worker.start_if_open(partial(self._exchange, space))
        return nearest

    def compare(self, space: Space, caller: Caller, nearest: Offer, texts: Texts) -> None:
        """Learn whether the nearest entry would have been right for a question that was answered live. An undecided
        comparison counts as wrong."""
        asks: list[Compare] = [comparator.compare for comparator in self._comparators]
        if self._judge is not None and caller.environment != "sandbox":
            asks.append(partial(self._judge, caller))
        rest = iter(asks)
        verdict = self._first_verdict(rest, texts)
        observation = Observation(nearest.features, verdict is True, 1 / max(1 - nearest.serve, 1e-9))
        if not isinstance(verdict, Awaitable):
            self.learn(space, observation)
        elif nearest.serve > 0 or self._rng.random() < JUDGED_SHARE:
            if nearest.serve == 0:
                observation = replace(observation, weight=observation.weight / JUDGED_SHARE)
            self._worker.start_if_open(partial(self._compare_aside, verdict, rest, texts, space, observation))
        elif isinstance(verdict, Coroutine):
            verdict.close()

    async def _compare_aside(
        self, verdict: Judgement, rest: Iterator[Compare], texts: Texts, space: Space, observation: Observation
    ) -> None:
        """Await a verdict, and those of further comparators until one is given; then learn from it."""
        while isinstance(verdict, Awaitable):
            pending, verdict = verdict, None
            with self._logging_faults("a comparator of answers"):
                answer = await pending
                verdict = None if answer is None else bool(answer)
            if verdict is None:
                verdict = self._first_verdict(rest, texts)
        self.learn(space, replace(observation, right=verdict is True))

    def _first_verdict(self, rest: Iterator[Compare], texts: Texts) -> Judgement:
        """The verdict of the first comparator that has one. It may have to be awaited."""
        for compare in rest:
            with self._logging_faults("a comparator of answers"):
                verdict = compare(*texts)
                if verdict is not None:
                    return verdict if isinstance(verdict, Awaitable) else bool(verdict)
        return None

    @contextmanager
    def _logging_faults(self, part: str) -> Iterator[None]:
        outage = self.outages.setdefault(part, Outage(_log.warning, f"{part} works again"))
        try:
            yield
            outage.end(self._clock.monotonic())
        except Exception as error:  # a custom comparator or cache may raise anything; calls go on without it
            outage.begin(self._clock.monotonic(), f"{part} failed: {place_of(error)}")

    def learn(self, space: Space, observation: Observation) -> None:
        with self._guard.lock:
            space.calibration.learn(observation)
            if self._share is not None:
                space.new.append(observation)

    async def of(self, space: Space) -> Calibration:
        """A copy, since using a calibration changes it."""
        if self._share is not None and not space.position:
            await self._exchange(space)
        with self._guard.lock:
            return deepcopy(space.calibration)

    async def share(self) -> None:
        """Share all new observations with other processes."""
        with self._guard.lock:
            spaces = [space for space in self._spaces.values() if space.new and self._share is not None]
        for space in spaces:
            await self._exchange(space)

    async def _exchange(self, space: Space) -> None:
        """Share a space's observations with other processes, and learn from theirs."""
        assert self._share is not None, "the callers have checked"
        with self._guard.lock:
            if space.is_sharing:
                return
            space.is_sharing = True
            new, space.new = space.new, []
        others: Sequence[Observation] = ()
        try:
            with self._logging_faults("the response cache"):
                others, space.position = await self._share(space.name, new, space.position)
                new = []
        finally:
            with self._guard.lock:
                space.new[:0] = new[-LEARNED:]  # not shared: try again next time
                space.is_sharing = False
                for observation in others:
                    space.calibration.learn(observation)
