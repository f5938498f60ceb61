"""Both storages meet the storage contract; also what only the in-memory one guarantees."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from math import inf, nan
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from routewright._core.accounts.ledger import key_of
from routewright._core.analytics.rollup import counted_of
from routewright.backends.storage.memory import BATCH, MemoryStorage
from routewright.backends.storage.memory.accounts import VALUES
from routewright.backends.storage.sqlite import SqliteStorage
from routewright.errors import PreconditionFailed, ValidationFailed
from routewright.protocols import Storage
from routewright.trace import TraceStore
from routewright.wire import (
    SYSTEM_ACCOUNT,
    AgentState,
    AllAccounts,
    CacheSpan,
    Content,
    Counted,
    DeleteTraces,
    Environment,
    FeedbackByTrace,
    HealthSnapshot,
    LedgerRow,
    LedgerRows,
    LedgerSums,
    PutAccount,
    PutAgentState,
    PutFeedback,
    PutSnapshot,
    PutTrace,
    RollupKeys,
    SetRetention,
    SnapshotById,
    Term,
    Trace,
    TraceById,
    TraceItems,
    Traces,
    UsageCounts,
)
from tests.contracts.storage.samples import AT, ledger_sums, make_account, make_row, make_trace
from tests.contracts.storage.suites import BooksContract, StorageContract
from tests.contracts.storage.walk import walk

from .account_storages import empty_store
from .statements import Statements

pytestmark = pytest.mark.anyio


class TestMemoryStorage(StorageContract, BooksContract):
    def make(self) -> MemoryStorage:
        return MemoryStorage()


class TestSqliteStorage(StorageContract, BooksContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> Iterator[None]:
        self.path, self.statements = tmp_path / "traces.db", Statements()
        self.path.write_bytes(empty_store())
        yield
        assert self.statements.boundless() == [], "every statement says whose rows it means"

    def make(self) -> SqliteStorage:
        return SqliteStorage(self.path, connect=self.statements)


# Two accounts, at any length


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_two_accounts_never_see_each_others_rows(kind: str, tmp_path: Path, full: bool) -> None:
    storage: Storage = MemoryStorage() if kind == "memory" else SqliteStorage(tmp_path / "traces.db")
    anyio.run(_walk, storage, Random(20261121), 100_000 if full else 120)


async def _walk(storage: Storage, rng: Random, steps: int) -> None:
    await storage.apply(SYSTEM_ACCOUNT, [SetRetention()])
    await walk(storage, rng, steps=steps, accounts=("one", "one's"))
    await storage.aclose()


# Memory


async def test_memory_keeps_the_newest_and_their_feedback() -> None:
    storage = MemoryStorage(newest=3)
    for number in range(5):
        trace = make_trace(number)
        await storage.apply("default", [PutTrace(trace), PutFeedback(trace.id, 1.0, None, 0.0)])
    kept = await storage.scan("default", Traces(), after=None, limit=10)
    assert [trace.id for trace in kept] == [make_trace(number).id for number in (4, 3, 2)]
    assert await storage.read("default", FeedbackByTrace(make_trace(1).id)) is None
    assert await storage.read("default", FeedbackByTrace(make_trace(4).id)) is not None


async def test_memory_drops_no_state_without_an_expiry() -> None:
    storage = MemoryStorage(newest=2)
    for name, until in (("heads", inf), ("tr_1", 1.0), ("tr_2", 2.0), ("tr_3", 3.0)):
        await storage.apply("acme", [PutAgentState(name, "sandbox", b"x", until)])
    found = [await storage.read("acme", AgentState(name)) for name in ("heads", "tr_1", "tr_2", "tr_3")]
    assert found == [b"x", None, None, b"x"]


@pytest.mark.parametrize("reads", [False, True])
async def test_memory_reports_are_right_while_dropped_traces_wait_for_their_batch(reads: bool) -> None:
    storage, rows = MemoryStorage(newest=5), list[LedgerRow]()
    for number in range(2 * BATCH + 9):
        draft = Draft(make_trace(number))
        draft.rows = [make_row(draft.id, charge=number)]
        rows += draft.rows
        storage.keep("default", draft, [])
        if reads and number % 3 == 0:
            assert await _requests(storage) == number + 1
            assert await storage.read("default", LedgerSums(AT[:10], AT[:10])) == ledger_sums(rows)
            found = await storage.scan("default", LedgerRows(), after=None, limit=9)
            assert found == sorted(rows[-5:], key=key_of, reverse=True)
    assert await _requests(storage) == 2 * BATCH + 9
    assert await storage.read("default", LedgerSums(AT[:10], AT[:10])) == ledger_sums(rows)
    await storage.apply("default", [DeleteTraces()])
    assert await _requests(storage) == 2 * BATCH + 4, "those that were dropped stay counted"


async def test_memory_bounds_its_roll_ups_too_and_forgets_the_oldest_hours() -> None:
    storage = MemoryStorage(newest=5)
    for number in range(20):
        await storage.apply("default", [PutTrace(make_trace(number, created_at=f"2026-11-21T{number:02}:00:00.000Z"))])
    assert 4 <= await _requests(storage) <= 5


async def test_memory_counts_a_thousand_groups_an_hour_and_merges_the_others() -> None:
    storage = MemoryStorage()
    puts = [PutTrace(make_trace(number, metadata={"tenant": f"t{number}"})) for number in range(VALUES + 5)]
    await storage.apply("default", puts)
    await storage.apply("default", [DeleteTraces(id=puts[-1].trace.id)])
    report = await TraceStore(storage).usage("2026-11-21", "2026-11-21", group_by="tenant")
    assert report.totals.requests == VALUES + 4
    assert [row.requests for row in report.data if row.group is None] == [4]


async def test_memory_drops_a_snapshot_with_the_last_trace_that_names_it() -> None:
    storage = MemoryStorage(newest=2)
    storage.keep("default", Draft(make_trace(1)), [HealthSnapshot("hea_1", {})])
    assert await storage.read(SYSTEM_ACCOUNT, SnapshotById("hea_1")) is not None
    await storage.apply("default", [PutTrace(make_trace(number, decision_input=None)) for number in (2, 3)])
    assert await storage.read("default", TraceById(make_trace(1).id)) is None
    assert await storage.read(SYSTEM_ACCOUNT, SnapshotById("hea_1")) is None


async def test_memory_drops_the_least_recently_written_account() -> None:
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


async def test_memory_drops_only_the_traces_of_an_account_that_was_created() -> None:
    storage = MemoryStorage(accounts=1)
    await storage.apply("a", [PutAccount(make_account(name="a")), PutTrace(make_trace(1))])
    await storage.apply("b", [PutTrace(make_trace(2))])
    assert await storage.scan("a", Traces(), after=None, limit=5) == []
    assert [account.name for account in await storage.read(SYSTEM_ACCOUNT, AllAccounts())] == ["a"]
    assert len(await storage.scan("b", Traces(), after=None, limit=5)) == 1


async def test_a_refused_batch_makes_memory_drop_no_account() -> None:
    storage = MemoryStorage(accounts=1)
    await storage.apply("a", [PutTrace(make_trace(1))])
    with pytest.raises(PreconditionFailed):
        await storage.apply("b", [PutTrace(make_trace(2), expect="present")])
    assert await storage.read("a", TraceById(make_trace(1).id)) is not None
    assert await storage.scan("b", TraceItems(), after=None, limit=5) == []


async def test_memory_bounds_snapshots_too_and_keeps_those_in_use() -> None:
    storage = MemoryStorage(newest=3)
    for number in range(5):
        used = HealthSnapshot("hea_used", {}), HealthSnapshot(f"hea_{number}", {})
        await storage.apply(SYSTEM_ACCOUNT, [PutSnapshot(snapshot) for snapshot in used])
        assert await storage.read(SYSTEM_ACCOUNT, SnapshotById("hea_used")) is not None
    kept = [await storage.read(SYSTEM_ACCOUNT, SnapshotById(f"hea_{name}")) for name in ["used", *range(5)]]
    assert [snapshot is not None for snapshot in kept] == [True, False, False, False, True, True]


async def test_memory_drops_the_oldest_traces_of_an_account_with_too_much_text() -> None:
    storage = MemoryStorage(text_bytes=100)

    async def kept(account: str = "default") -> list[int]:
        found = await storage.scan(account, TraceItems(), after=None, limit=10)
        return [int(item.id.removeprefix("tr_")) for item in reversed(found)]

    for number in range(3):
        storage.keep("default", Draft(make_trace(number), text_bytes=40), [])
        storage.keep("other", Draft(make_trace(number), text_bytes=30), [])
    assert await kept() == [1, 2]
    assert await kept("other") == [0, 1, 2]
    assert await _requests(storage) == 3, "it stays counted"
    storage.keep("default", Draft(make_trace(2), text_bytes=60), [])
    assert await kept() == [1, 2], "in the place of what took 40"
    await storage.apply("default", [DeleteTraces(id=make_trace(1).id)])
    storage.keep("default", Draft(make_trace(3), text_bytes=40), [])
    assert await kept() == [2, 3]
    storage.keep("default", Draft(make_trace(4), text_bytes=1_000), [])
    assert await kept() == [4], "the last one stays"
    await storage.apply("default", [PutTrace(make_trace(5))])
    assert await kept() == [5]
    for number in range(6, 9):
        said = Content(output="x" * 30)
        await storage.apply("default", [PutTrace(make_trace(number, content=said))])
    assert await kept() == [8]


async def test_memory_applies_no_batch_with_a_trace_that_cannot_be_counted() -> None:
    storage = MemoryStorage()
    await storage.apply("default", [PutTrace(make_trace(1, status="running"))])
    uncountable = CacheSpan(id=1, name="cache", start_ms=0.0, hit=True, saved_usd=nan)
    with pytest.raises(ValueError, match="NaN"):
        await storage.apply("default", [PutTrace(make_trace(1)), PutTrace(make_trace(2, spans=[uncountable]))])
    (item,) = await storage.scan("default", TraceItems(), after=None, limit=5)
    assert item.status == "running"
    assert await _requests(storage) == 1


@pytest.mark.parametrize("setting", ["newest", "accounts", "text_bytes"])
@pytest.mark.parametrize("number", [0, -1])
def test_memory_limits_must_be_positive(setting: str, number: int) -> None:
    with pytest.raises(ValidationFailed, match=rf"MemoryStorage.{setting}: is {number}; use a whole number above 0"):
        MemoryStorage(**{setting: number})  # type: ignore[arg-type]


async def test_a_reader_in_another_thread_sees_complete_batches_only() -> None:
    storage, seen, done = MemoryStorage(), list[object](), threading.Event()

    async def read() -> None:
        for query in (TraceById("tr_1"), FeedbackByTrace("tr_1")):
            seen.append(await storage.read("default", query))
        done.set()

    class Halfway(Draft):
        """Read when the trace is there and the feedback is not."""

        @property
        def decision_input(self) -> None:
            if not reader.ident:
                reader.start()
                done.wait(0.05)

        def copy(self) -> Halfway:
            return self

        def __getattr__(self, name: str) -> Any:
            return getattr(self.trace, name)

    reader = threading.Thread(target=anyio.run, args=[read])
    halfway: Any = Halfway(make_trace(1, id="tr_1"))
    await storage.apply("default", [PutTrace(halfway), PutFeedback("tr_1", 1.0, None, 0.0)])
    reader.join()
    assert [thing is not None for thing in seen] == [True, True]


# Drafts: traces that are made when somebody reads them


async def test_a_draft_is_read_like_a_trace() -> None:
    storage = MemoryStorage(newest=2)
    whole = [make_trace(number) for number in range(3)]
    for trace in whole:
        storage.keep("default", Draft(trace), [HealthSnapshot("hea_1", {})])
    assert await storage.scan("default", Traces(), after=None, limit=5) == [whole[2], whole[1]]
    assert await storage.scan("default", TraceItems(), after=None, limit=1) == [whole[2].item]
    assert await storage.read("default", TraceById(whole[2].id, "production")) == whole[2]
    assert await storage.read("default", TraceById(whole[2].id, "sandbox")) is None
    assert await storage.read(SYSTEM_ACCOUNT, SnapshotById("hea_1")) is not None


async def test_a_draft_cannot_replace_a_trace_of_the_other_environment() -> None:
    storage = MemoryStorage()
    await storage.apply("default", [PutTrace(make_trace(1))])
    with pytest.raises(PreconditionFailed):
        storage.keep("default", Draft(make_trace(1, environment="sandbox")), [])
    assert await storage.read("default", TraceById(make_trace(1).id)) == make_trace(1)


async def test_a_draft_is_counted_once_when_a_report_asks() -> None:
    storage = MemoryStorage()
    draft = Draft(make_trace(1, metadata={"team": "search"}), rollup_keys=("team",))
    storage.keep("default", draft, [])
    assert draft.times_counted == 0
    assert await storage.read("default", RollupKeys()) == ["team"]
    assert [await _requests(storage) for _ in range(2)] == [1, 1]
    assert draft.times_counted == 1


@pytest.mark.parametrize("asked_before", [True, False])
async def test_a_replaced_or_deleted_draft_is_subtracted_from_the_roll_ups(asked_before: bool) -> None:
    storage = MemoryStorage()
    storage.keep("default", Draft(make_trace(1, status="running")), [])
    storage.keep("default", Draft(make_trace(2)), [])
    if asked_before:
        assert await _requests(storage) == 2
    storage.keep("default", Draft(make_trace(1)), [])
    assert await _requests(storage) == 2
    await storage.apply("default", [PutTrace(make_trace(2))])
    await storage.apply("default", [DeleteTraces(id=make_trace(1).id)])
    assert await _requests(storage) == 1


async def test_only_drafts_read_completely_are_built() -> None:
    storage = MemoryStorage()
    drafts = [Draft(make_trace(number, content=Content(output="hi"))) for number in range(5)]
    for draft in drafts:
        storage.keep("default", draft, [])
    everything = TraceItems(terms=(Term("status", "=", "completed"),), since="2026-11-21T00:00:00.000Z")
    assert [item.id for item in await storage.scan("default", everything, after=None, limit=5)]
    assert await _requests(storage) == 5
    await storage.apply("default", [DeleteTraces(id=drafts[0].id, terms=everything.terms)])
    assert [draft.made_whole for draft in drafts] == [0] * 5
    (found,) = await storage.scan("default", Traces(terms=everything.terms), after=None, limit=1)
    assert found.content == Content(output="hi")
    assert [draft.made_whole for draft in drafts] == [0] * 4 + [1]


async def _requests(storage: Storage) -> int:
    query = UsageCounts(first="2026-11-01", last="2026-11-30", group_by="model")
    return sum(row.requests for row in (await storage.read("default", query)).all)


class Draft:
    line = None
    is_void = False

    def __init__(self, trace: Trace, *, rollup_keys: tuple[str, ...] = (), text_bytes: int = 0) -> None:
        self.id, self.key, self.rollup_keys, self.text_bytes = trace.id, trace.key, rollup_keys, text_bytes
        self.environment: Environment = trace.environment
        self.rows: list[LedgerRow] = []
        self.made = self.made_whole = self.times_counted = 0
        self._trace = trace

    def void(self, is_void: bool) -> None:
        raise AssertionError("no call was taken over")

    @property
    def trace(self) -> Trace:
        self.made_whole += 1
        return self._trace.copy()

    @property
    def wordless(self) -> Trace:
        self.made += 1
        return replace(self._trace.copy(), content=None)

    @property
    def counted(self) -> Counted:
        self.times_counted += 1
        return counted_of(self._trace)

    @property
    def snapshot_ids(self) -> tuple[str, str, str | None] | None:
        given = self._trace.decision_input
        return None if given is None else (given.catalogue, given.health, given.policy)
