"""What the tests of rate limits share: a clock that stands where it is set, and calls that never wait."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from routewright.protocols import Deadline
from routewright.testing import FakeClock
from routewright.wire import Resource, Take

T = TypeVar("T")


class SetClock:
    """A clock that stands where a test sets it, virtual, for what never waits."""

    virtual = True

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self.wall = 0.0
        """How far the wall clock is off."""

    def time(self) -> float:
        return 1.8e9 + self.now + self.wall

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing is to wait")

    async def advance(self, seconds: float) -> None:
        self.now += seconds

    def deadline(self, at: float, *, shield: bool = False, scoped: bool = False) -> Deadline:
        return FakeClock().deadline(at, shield=shield)


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine gives that never waits, without a loop around it."""
    try:
        work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("it waited")


def one(name: str, limit: int, amount: int = 1, resource: Resource = "requests") -> list[Take]:
    return [Take(name, resource, limit, amount)]
