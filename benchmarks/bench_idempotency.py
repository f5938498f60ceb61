"""What does an idempotency key cost: the first call with it, the answer told again, and many who wait for one call?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count, repeat
from pathlib import Path

import msgspec
import pytest

from routewright import Answer, MemoryStorage, Router, SqliteStorage
from routewright._core.idempotency import fingerprint
from routewright.protocols import Storage

from . import data
from .conftest import Timed, TimedAsync
from .doubles import Instant, Messages, router_over
from .report import Question

JOINERS = 50
FINGERPRINT = Question("fingerprint of a request of 1 KB")
FIRST = {
    "memory": Question("route() with a new key, in memory"),
    "sqlite": Question("route() with a new key, its result committed to SQLite before the answer"),
}
AGAIN = {
    "memory": Question("route() with a key whose answer is kept, in memory"),
    "sqlite": Question("route() with a key whose answer is kept, in SQLite"),
}
JOINED = Question(f"{JOINERS} calls with one new key at once, in memory")


def storage_of(kind: str, folder: Path) -> Storage:
    return MemoryStorage() if kind == "memory" else SqliteStorage(folder / "keys.db")


class Caller:
    """Makes calls with keys."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._messages: Messages = data.conversations()[0]
        self._numbers = count()

    async def first(self, _: object) -> Answer:
        return await self._router.route(self._messages, idempotency_key=f"key {next(self._numbers)}")

    async def again(self, _: object) -> Answer:
        return await self._router.route(self._messages, idempotency_key="the key")

    async def joined(self, _: object) -> None:
        key = f"key {next(self._numbers)}"
        async with asyncio.TaskGroup() as group:
            for _ in range(JOINERS):
                group.create_task(self._router.route(self._messages, idempotency_key=key))


def least(body: bytes) -> int:
    """A hash of the bytes, which tells every way of writing the same apart."""
    return hash(body)


class TestFingerprint:
    def test_floor(self, timed: Timed) -> None:
        timed(FINGERPRINT, "floor", least, repeat(msgspec.json.encode(request())))

    def test_routewright(self, timed: Timed) -> None:
        timed(FINGERPRINT, "routewright", lambda body: fingerprint("POST", "/v1/route", body), repeat(request()))


def request() -> dict[str, object]:
    content = "Why is the sky blue? " * 44
    return {"messages": [{"role": "user", "content": content}], "timeout_ms": 2000.0, "metadata": {"team": "search"}}


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
class TestRoute:
    def test_first(self, timed_async: TimedAsync, loop: asyncio.Runner, tmp_path: Path, kind: str) -> None:
        router = router_over(Instant(), storage_of(kind, tmp_path))
        timed_async(FIRST[kind], "routewright", Caller(router).first, numbers())
        loop.run(router.aclose())

    def test_again(self, timed_async: TimedAsync, loop: asyncio.Runner, tmp_path: Path, kind: str) -> None:
        router = router_over(Instant(), storage_of(kind, tmp_path))
        timed_async(AGAIN[kind], "routewright", Caller(router).again, numbers())
        loop.run(router.aclose())


def test_joined(timed_async: TimedAsync, loop: asyncio.Runner) -> None:
    router = router_over(Instant(turns=1), MemoryStorage())
    timed_async(JOINED, "routewright", Caller(router).joined, numbers())
    loop.run(router.aclose())


def numbers() -> Iterator[int]:
    return count()
