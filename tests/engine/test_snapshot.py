"""Snapshots named by traces: stored once, renewed in time, and retried if the storage refuses them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from routewright._engine.retention import PUT_AGAIN_S, REMEMBERED, RETRY_S, Snapshots
from routewright.errors import StorageUnavailable, UnsupportedWrite
from routewright.testing import FakeClock
from routewright.wire import HealthSnapshot, PutSnapshot

pytestmark = pytest.mark.anyio

A, B, C = (HealthSnapshot(name, {}) for name in "abc")


class Store:
    """Takes snapshots, unless a test says what it raises for them."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.fails: Callable[[list[str]], Exception | None] = lambda ids: None
        self.asked: list[list[str]] = []
        self.troubles: list[Exception] = []
        self.snapshots = Snapshots(self.put, self.troubles.append, self.clock, "buffered")

    async def put(self, writes: Sequence[PutSnapshot]) -> None:
        ids = [write.snapshot.id for write in writes]
        self.asked.append(ids)
        error = self.fails(ids)
        if error is not None:
            raise error

    async def asked_for(self, *snapshots: HealthSnapshot) -> list[list[str]]:
        """Which batches the storage is asked to take."""
        self.asked.clear()
        await self.snapshots.keep(snapshots)
        return list(self.asked)


def refusing(name: str) -> Callable[[list[str]], Exception | None]:
    return lambda ids: UnsupportedWrite(name) if name in ids else None


async def test_a_snapshot_is_put_once_and_again_before_it_expires() -> None:
    store = Store()
    assert await store.asked_for(A, B, A) == [["a", "b"]]
    assert await store.asked_for(A, B) == []
    await store.clock.advance(PUT_AGAIN_S + 1.0)
    assert await store.asked_for(A) == [["a"]]


async def test_a_refused_snapshot_is_retried_later_and_logged_once() -> None:
    store = Store()
    store.fails = refusing("a")
    assert await store.asked_for(A) == [["a"]]
    for _ in range(3):
        await store.clock.advance(RETRY_S + 1.0)
        assert await store.asked_for(A) == [["a"]]
        assert await store.asked_for(A) == []
    assert len(store.troubles) == 1
    store.fails = lambda ids: None
    await store.clock.advance(RETRY_S + 1.0)
    assert await store.asked_for(A) == [["a"]]
    await store.clock.advance(RETRY_S + 1.0)
    assert await store.asked_for(A) == []
    store.fails = refusing("a")
    await store.clock.advance(PUT_AGAIN_S + 1.0)
    await store.snapshots.keep([A])
    assert len(store.troubles) == 2, "it had been taken between"


async def test_snapshots_that_could_not_be_written_are_retried_with_the_next() -> None:
    store = Store()
    store.fails = lambda ids: StorageUnavailable("busy")
    for _ in range(2):
        with pytest.raises(StorageUnavailable):
            await store.snapshots.keep([A])
    store.fails = lambda ids: None
    assert await store.asked_for(A) == [["a"]]
    assert store.troubles == []


@pytest.mark.parametrize("refused", [False, True])
async def test_the_memory_of_written_snapshots_is_bounded(refused: bool) -> None:
    store = Store()
    store.fails = (lambda ids: UnsupportedWrite("no")) if refused else store.fails
    for number in range(REMEMBERED + 2):
        await store.snapshots.keep([HealthSnapshot(str(number), {})])
    assert await store.asked_for(HealthSnapshot("0", {})) == [["0"]], "it is forgotten, and put again"
