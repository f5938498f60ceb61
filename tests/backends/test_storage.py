from __future__ import annotations

import pytest

from routewright.backends.storage.memory import MemoryStorage
from routewright.testing.storage import StorageContract, make_trace
from routewright.wire import (
    SYSTEM_ACCOUNT,
    FeedbackByTrace,
    HealthSnapshot,
    PutFeedback,
    PutSnapshot,
    PutTrace,
    SnapshotById,
    TraceById,
    Traces,
)


class TestMemoryStorage(StorageContract):
    def make(self) -> MemoryStorage:
        return MemoryStorage()


@pytest.mark.anyio
async def test_memory_keeps_the_newest_and_their_feedback() -> None:
    storage = MemoryStorage(newest=3)
    for number in range(5):
        trace = make_trace(number)
        await storage.apply("default", [PutTrace(trace), PutFeedback(trace.id, 1.0, None, 0.0)])
    kept = await storage.scan("default", Traces(), after=None, limit=10)
    assert [trace.id for trace in kept] == [make_trace(number).id for number in (4, 3, 2)]
    assert await storage.read("default", FeedbackByTrace(make_trace(1).id)) is None
    assert await storage.read("default", FeedbackByTrace(make_trace(4).id)) is not None


@pytest.mark.anyio
async def test_memory_drops_a_snapshot_with_the_last_trace_that_names_it() -> None:
    storage = MemoryStorage(newest=2)
    await storage.apply(SYSTEM_ACCOUNT, [PutSnapshot(HealthSnapshot("hea_1", {}))])
    await storage.apply("default", [PutTrace(make_trace(1))])
    assert await storage.read(SYSTEM_ACCOUNT, SnapshotById("hea_1")) is not None
    await storage.apply("default", [PutTrace(make_trace(number, decision_input=None)) for number in (2, 3)])
    assert await storage.read("default", TraceById(make_trace(1).id)) is None
    assert await storage.read(SYSTEM_ACCOUNT, SnapshotById("hea_1")) is None
