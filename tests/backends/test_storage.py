from __future__ import annotations

import threading
from typing import Any

import anyio
import pytest

from routewright.backends.storage.memory import MemoryStorage
from routewright.errors import PreconditionFailed, ValidationFailed
from routewright.testing.storage import StorageContract, make_trace
from routewright.wire import (
    SYSTEM_ACCOUNT,
    DecisionInput,
    FeedbackByTrace,
    HealthSnapshot,
    PutFeedback,
    PutSnapshot,
    PutTrace,
    SnapshotById,
    Trace,
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


@pytest.mark.anyio
async def test_memory_keeps_so_many_accounts_and_drops_the_one_left_alone_longest() -> None:
    storage = MemoryStorage(accounts=2)
    await storage.apply(SYSTEM_ACCOUNT, [PutSnapshot(HealthSnapshot("hea_1", {}))])
    other = make_trace(2, decision_input=None)
    for account, trace in [("a", make_trace(1)), ("b", other), ("a", other), ("c", other)]:
        await storage.apply(account, [PutTrace(trace)])
    assert [len(await storage.scan(account, Traces(), after=None, limit=5)) for account in "abc"] == [2, 0, 1]
    assert await storage.read(SYSTEM_ACCOUNT, SnapshotById("hea_1")) is not None
    await storage.apply("d", [PutTrace(other)])
    assert await storage.read("a", TraceById(make_trace(1).id)) is None
    assert await storage.read(SYSTEM_ACCOUNT, SnapshotById("hea_1")) is None  # went with the last trace that named it


@pytest.mark.anyio
async def test_memory_drops_nothing_for_an_account_whose_batch_is_refused() -> None:
    storage = MemoryStorage(accounts=1)
    await storage.apply("a", [PutTrace(make_trace(1))])
    with pytest.raises(PreconditionFailed):
        await storage.apply("b", [PutTrace(make_trace(2), expect="present")])
    assert await storage.read("a", TraceById(make_trace(1).id)) is not None
    assert list(storage._accounts) == ["a"]


@pytest.mark.anyio
async def test_memory_bounds_snapshots_too_and_keeps_those_in_use() -> None:
    storage = MemoryStorage(newest=3)
    for number in range(5):
        used = HealthSnapshot("hea_used", {}), HealthSnapshot(f"hea_{number}", {})
        await storage.apply(SYSTEM_ACCOUNT, [PutSnapshot(snapshot) for snapshot in used])
    kept = [await storage.read(SYSTEM_ACCOUNT, SnapshotById(f"hea_{name}")) for name in ["used", *range(5)]]
    assert [snapshot is not None for snapshot in kept] == [True, False, False, False, True, True]


@pytest.mark.parametrize("setting", ["newest", "accounts"])
@pytest.mark.parametrize("number", [0, -1])
def test_memory_that_would_keep_nothing_is_refused(setting: str, number: int) -> None:
    with pytest.raises(ValidationFailed, match=rf"MemoryStorage.{setting}: is {number}; keep at least 1"):
        MemoryStorage(**{setting: number})


@pytest.mark.anyio
async def test_a_reader_in_another_thread_sees_a_batch_whole_or_not_at_all() -> None:
    storage, seen, done = MemoryStorage(), list[object](), threading.Event()

    async def read() -> None:
        for query in (TraceById("tr_1"), FeedbackByTrace("tr_1")):
            seen.append(await storage.read("default", query))
        done.set()

    class Halfway(Draft):
        """Read when the trace is there and the feedback is not."""

        @property
        def decision_input(self) -> None:
            reader.start()
            done.wait(0.05)

    reader = threading.Thread(target=anyio.run, args=[read])
    trace = make_trace(1, id="tr_1")
    halfway: Any = Halfway(trace)
    await storage.apply("default", [PutTrace(halfway), PutFeedback("tr_1", 1.0, None, 0.0)])
    reader.join()
    assert [thing is not None for thing in seen] == [True, True]


@pytest.mark.anyio
async def test_a_draft_is_read_like_a_trace() -> None:
    storage = MemoryStorage(newest=2)
    whole = [make_trace(number) for number in range(3)]
    for trace in whole:
        storage.keep("default", Draft(trace), [HealthSnapshot("hea_1", {})])
    assert await storage.scan("default", Traces(), after=None, limit=5) == [whole[2], whole[1]]
    assert await storage.read("default", TraceById(whole[2].id, "production")) == whole[2]
    assert await storage.read("default", TraceById(whole[2].id, "sandbox")) is None
    assert await storage.read(SYSTEM_ACCOUNT, SnapshotById("hea_1")) is not None


class Draft:
    def __init__(self, trace: Trace) -> None:
        self.id, self.environment, self.trace = trace.id, trace.environment, trace

    @property
    def decision_input(self) -> DecisionInput | None:
        return self.trace.decision_input

    def copy(self) -> Draft:
        return self
