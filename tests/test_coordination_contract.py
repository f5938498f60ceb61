"""The suite for coordinations finds what is wrong with one: for each promise there is one that breaks it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from random import Random
from typing import Any

import pytest
from anyio.lowlevel import checkpoint

from routewright import MemoryCoordination
from routewright.testing import FakeClock
from routewright.testing.coordination import CoordinationContract, Walk
from routewright.testing.coordination.contract import Subject
from routewright.wire import Denied, Heard, Take, Taken

pytestmark = pytest.mark.anyio
suite = CoordinationContract()


class Rounding(MemoryCoordination):
    """Its entries have times of whole seconds."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self._now = lambda: float(int(clock.monotonic()))


class InParts(MemoryCoordination):
    """It takes of one limit after the other, and leaves what it has taken."""

    async def take(self, takes: Sequence[Take], owner: str) -> Taken | Denied:
        for take in takes[:-1]:
            result = await super().take([take], owner)
            if isinstance(result, Denied):
                return result
        return await super().take(takes[-1:], owner)


class Uncorrected(MemoryCoordination):
    """Its tokens stay as they were estimated."""

    async def end(self, taken: Taken, tokens: int | None = None) -> None:
        await super().end(taken)


class Everlasting(MemoryCoordination):
    """Its slots wait for somebody to give them back."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock, lease_s=1e9)


class Abandoned(MemoryCoordination):
    """What its server has taken stays taken, whoever is still there to hear of it."""

    async def take(self, takes: Sequence[Take], owner: str) -> Taken | Denied:
        await checkpoint()
        result = await super().take(takes, owner)
        await checkpoint()
        return result


class Guessing(MemoryCoordination):
    """It sends everybody away for the rest of a minute."""

    async def take(self, takes: Sequence[Take], owner: str) -> Taken | Denied:
        result = await super().take(takes, owner)
        return result if isinstance(result, Taken) else Denied(result.by, 30.0, result.states)


class Deaf(MemoryCoordination):
    """Who comes late has missed it."""

    async def hear(self, after: int | None) -> Heard:
        last = (await super().hear(None)).last
        return await super().hear(None if after is None else last)


class Unlocked(MemoryCoordination):
    """Threads may meet in it."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        limiter: Any = self._kept.limiter
        self._kept.limiter = _Slow(limiter)  # type: ignore[assignment]
        self._kept.guard = _NoGuard()  # type: ignore[assignment]


class _NoGuard:
    lock = nullcontext()


class _Slow:
    def __init__(self, limiter: Any) -> None:
        self._limiter = limiter

    def take(self, takes: Sequence[Take], owner: str, now: float) -> Taken | Denied:
        looked = [Take(take.name, take.resource, take.limit, 0) for take in takes]
        states = self._limiter.take(looked, owner, now).states
        time.sleep(1e-4)  # between the look and the leap
        fits = all(state.remaining >= take.amount for state, take in zip(states, takes, strict=True))
        plenty = [Take(take.name, take.resource, 10**9, take.amount) for take in takes] if fits else takes
        result: Taken | Denied = self._limiter.take(plenty, owner, now)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._limiter, name)


def of(kind: type[MemoryCoordination]) -> Callable[[FakeClock], MemoryCoordination]:
    return lambda clock: kind(clock=clock)


BROKEN: dict[str, tuple[Callable[[FakeClock], MemoryCoordination], str]] = {
    "rounding": (Rounding, "test_a_window_slides_and_is_open_at_its_beginning"),
    "in parts": (of(InParts), "test_a_step_that_one_limit_refuses_takes_of_none"),
    "uncorrected": (of(Uncorrected), "test_unused_tokens_are_given_back_to_each_window"),
    "everlasting": (Everlasting, "test_a_slot_is_free_when_its_owners_lease_is_over"),
    "abandoned": (of(Abandoned), "test_a_take_that_is_cancelled_has_taken_nothing"),
    "guessing": (of(Guessing), "test_the_wait_is_for_as_many_to_leave_as_stand_in_the_way"),
    "deaf": (of(Deaf), "test_news_are_heard_in_order_and_once"),
}


async def keep(promise: str, make: Callable[[FakeClock], MemoryCoordination]) -> None:
    clock = FakeClock()
    await getattr(suite, promise)(Subject(make(clock), clock))


async def walk(make: Callable[[FakeClock], MemoryCoordination]) -> None:
    for seed in range(20):
        clock = FakeClock()
        await Walk(make(clock), clock, Random(seed), 30.0).go(300)


async def meet(coordination: Callable[[FakeClock], MemoryCoordination], backend: str) -> None:
    for _ in range(20):
        clock = FakeClock()
        subject = Subject(coordination(clock), clock)
        await suite.test_threads_with_loops_of_their_own_get_no_more_than_there_is(subject, backend)


@pytest.mark.parametrize("name", BROKEN)
async def test_a_coordination_that_breaks_a_promise_is_caught(name: str) -> None:
    make, promise = BROKEN[name]
    with pytest.raises(AssertionError):
        await keep(promise, make)
    await keep(promise, of(MemoryCoordination))


@pytest.mark.parametrize("name", [name for name in BROKEN if name not in ("abandoned", "deaf")])
async def test_a_walk_finds_it_too(name: str) -> None:
    with pytest.raises(AssertionError):
        await walk(BROKEN[name][0])


async def test_one_that_threads_cannot_share_is_caught(anyio_backend_name: str) -> None:
    with pytest.raises((AssertionError, LookupError)):
        await meet(Unlocked, anyio_backend_name)
