"""Durability modes: when an answer is returned, where its trace is by then, and reads of unwritten traces."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from routewright import (
    Caller,
    Capture,
    MemoryStorage,
    Model,
    NoCandidates,
    Retention,
    Router,
    Settings,
    SqliteStorage,
    TraceStore,
    ValidationFailed,
)
from routewright._engine import trace_writer
from routewright._engine.retention import EVERY_S
from routewright.errors import NotFound, StorageUnavailable
from routewright.testing import FakeClock, Pause, ScriptedProvider
from routewright.wire import (
    Durability,
    Finish,
    PutTrace,
    Write,
    Written,
)
from tests.contracts.storage.samples import make_trace
from tests.tables import table

from .scripted_router import said, to_close, traces_in
from .test_trace_log import Waits

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("closing")]


class Takes(Waits):
    """A storage that takes its time for each batch, or is away."""

    def __init__(self, clock: FakeClock, seconds: float = 0.0) -> None:
        super().__init__()
        self.seconds = seconds
        self.batches: list[Sequence[Write]] = []
        self.clock = clock

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        await self.clock.sleep(self.seconds)
        if self.down:
            raise StorageUnavailable("away")
        self.batches.append(writes)
        return await self.kept.apply(account, writes)

    async def sweep(self, now: float) -> int:
        return await self.kept.sweep(now)

    @property
    def traces(self) -> list[PutTrace]:
        return [write for batch in self.batches for write in batch if isinstance(write, PutTrace)]


def sandbox(seconds: float = 0.5, durability: Durability = "committed") -> tuple[Router, Takes, FakeClock]:
    """On virtual time, over a storage that takes its time; closed at the end of the test."""
    clock = FakeClock()
    storage = Takes(clock, seconds)
    router = Router.sandbox(storage=storage, settings=Settings(clock=clock, durability=durability))
    to_close.append(router)
    return router, storage, clock


async def test_a_committed_trace_is_in_the_storage_when_its_answer_is_given() -> None:
    router, storage, _ = sandbox()
    answer = await router.route("hi")
    assert [put.trace.id for put in storage.traces] == [answer.trace_id]
    assert {write.durability for batch in storage.batches for write in batch} == {"committed"}


async def test_latency_counts_the_wait_for_the_storage_in_the_answer() -> None:
    router, _, clock = sandbox()
    waited = await router.route("hi")
    took_s = clock.monotonic()
    assert took_s >= 0.5
    duration_ms = waited.trace.duration_ms  # which was written before
    assert waited.routing.latency_ms == pytest.approx(duration_ms + took_s * 1000)
    async with router.stream("hi") as stream:
        async for _ in stream.text():
            pass
    waited_ms = (clock.monotonic() - took_s) * 1000
    assert stream.result.routing.latency_ms == pytest.approx(duration_ms + waited_ms)


async def test_a_buffered_trace_does_not_delay_the_answer() -> None:
    router, storage, clock = sandbox(durability="buffered")
    await router.route("hi")
    assert (clock.monotonic(), storage.traces) == (0.0, [])
    await router.flush()
    assert {put.durability for put in storage.traces} == {"buffered"}


async def test_a_stream_ends_when_its_trace_is_committed() -> None:
    router, storage, _ = sandbox()
    async with router.stream("hi") as stream:
        async for event in stream:
            assert bool(storage.traces) == (event.event == "route.completed")


async def test_the_trace_of_an_error_is_committed_before_it_is_raised() -> None:
    router, storage, _ = sandbox()
    with pytest.raises(NoCandidates) as refused:
        await router.route("hi", budget={"maxCostUsd": 0})
    assert [put.trace.id for put in storage.traces] == [refused.value.trace_id]


async def test_many_calls_share_a_commit() -> None:
    router, storage, _ = sandbox()
    async with anyio.create_task_group() as group:
        for _ in range(50):
            group.start_soon(router.route, "hi")
    assert len(storage.traces) == 50
    assert len([batch for batch in storage.batches if isinstance(batch[0], PutTrace)]) <= 3


async def test_a_paid_answer_is_returned_even_if_its_trace_cannot_be_committed() -> None:
    router, storage, clock = sandbox()
    storage.down = True
    answer = await router.route("hi")
    assert answer.output
    assert clock.monotonic() < 3.0  # after one try, not after all of timeout_ms
    assert router.trace_counts.waiting == 1
    storage.down = False
    await router.flush()
    assert [put.trace.id for put in storage.traces] == [answer.trace_id]


async def test_waiting_for_a_commit_ends_with_the_deadline() -> None:
    router, storage, clock = sandbox(3_600.0)
    answer = await router.route("hi", timeout_ms=2_000)
    assert answer.output
    assert clock.monotonic() == 2.0
    storage.seconds = 0.0


async def committed_at(router: Router, storage: Takes, until: list[tuple[bool, float]], **options: Any) -> None:
    """Ask, and put down whether the trace was in the storage when the answer came, and when that was."""
    answer = await router.route("hi", **options)
    kept = answer.trace_id in [put.trace.id for put in storage.traces]
    until.append((kept, storage.clock.monotonic()))


async def test_a_reader_that_leaves_midway_lets_no_answer_out_before_its_commit() -> None:
    router, storage, clock = sandbox()
    router._parts._log._urgent.delay = 10.0  # so that the reader's pass over the queue comes before the background's
    given: list[tuple[bool, float]] = []
    async with anyio.create_task_group() as group:
        group.start_soon(committed_at, router, storage, given)
        await clock.sleep(0.1)
        with clock.deadline(0.3) as limit:
            await router.traces.query()
        assert limit.expired
    assert given == [(True, 11.0)]


@pytest.mark.parametrize("seconds", [0.0, 0.5, 1.2])
async def test_answers_whose_traces_are_given_up_at_the_end_wait_no_longer(seconds: float) -> None:
    clock = FakeClock()
    storage = Takes(clock, seconds=3_600.0)
    answers = [said(Finish("stop")), said(Pause(seconds), Finish("stop"))]
    provider = ScriptedProvider(answers, models=[Model(id="a/one")], clock=clock)
    settings = Settings(clock=clock, durability="committed")
    router = Router(providers=[provider], storage=storage, settings=settings)
    given: list[tuple[bool, float]] = []
    async with anyio.create_task_group() as group:
        for _ in answers:
            group.start_soon(partial(committed_at, router, storage, given, timeout_ms=60_000))
        await clock.sleep(0.1)
        await router.aclose()
    assert [kept for kept, _ in given] == [False, False]
    assert max(at for _, at in given) <= 2.1
    assert router.trace_counts == (0, 0, 2, 0, 0)


async def test_the_traces_of_a_caller_are_those_of_its_account() -> None:
    router = Router.sandbox(storage=MemoryStorage(), settings=Settings(clock=FakeClock()))
    anna, ben = (router.as_caller(Caller(name)) for name in ("anna", "ben"))
    hers = await anna.route("hi")
    assert [item.id for item in (await anna.traces.query()).data] == [hers.trace_id]
    assert (await anna.traces.usage()).totals.requests == 1
    for other in (ben, router):
        assert (await other.traces.query()).data == []
        assert await other.traces.delete(trace_id=hers.trace_id) == 0
        with pytest.raises(NotFound):
            await other.traces.get(hers.trace_id)
    assert (await router.traces.get(hers.trace_id, account="anna")).account == "anna"
    assert await anna.traces.delete(everything=True) == 1


async def test_usage_is_counted_by_the_metadata_that_settings_name() -> None:
    router = Router.sandbox(settings=Settings(rollup_keys=("team",)))
    for team in ("search", "search", "ads"):
        await router.route("hi", metadata={"team": team, "other": 1})
    report = await router.traces.usage(group_by="metadata.team")
    assert {row.group: row.requests for row in report.data} == {"search": 2, "ads": 1}
    with pytest.raises(ValidationFailed, match=r"group_by: is 'metadata.other'; .*metadata.team"):
        await router.traces.usage(group_by="metadata.other")


async def test_a_router_sweeps_its_storage_and_says_how_long_traces_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock(autojump=False)
    storage = Takes(clock)
    old = make_trace(1, created_at="2025-12-01T00:00:00.000Z", environment="sandbox")
    await storage.kept.apply("default", [PutTrace(old)])
    settings = Settings(clock=clock, retention=Retention(production_days=2, sandbox_days=None))
    router = Router.sandbox(storage=storage, settings=settings)
    with caplog.at_level("INFO", logger="routewright"):
        await router.route("hi")
        await clock.advance(EVERY_S)
    assert "keeping traces for 2 days, those of the sandbox for ever" in caplog.text
    assert len(await traces_in(storage)) == 2
    await TraceStore(storage, clock=clock).retain(Retention(sandbox_days=1))
    await storage.kept.apply("default", [PutTrace(old)])
    await clock.advance(EVERY_S)
    assert [trace.id for trace in await traces_in(storage)] != []
    assert old.id not in [trace.id for trace in await traces_in(storage)]
    await router.aclose()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_decision_is_replayed_from_a_trace_as_lists_show_it(kind: str, tmp_path: Path) -> None:
    storage = MemoryStorage() if kind == "memory" else SqliteStorage(tmp_path / "traces.db")
    async with Router.sandbox(storage=storage) as router:
        answer = await router.route("hi", goal="quality")
        (item,) = (await router.traces.query()).data
        assert not hasattr(item, "spans")
        assert router.replay(item).digest == answer.decision.digest


async def test_an_unavailable_store_slows_no_call(tmp_path: Path) -> None:
    router = Router.sandbox(storage=SqliteStorage(tmp_path / "missing" / "traces.db"))
    answers = [await router.route("hi") for _ in range(20)]
    assert len({answer.trace_id for answer in answers}) == 20
    with pytest.raises(StorageUnavailable, match="20 wait"):
        await router.flush()
    os.mkdir(tmp_path / "missing")
    await router.flush()
    assert router.trace_counts.waiting == 0
    await router.aclose()


@table(
    ("settings", "said"),
    [
        ({"durability": "always"}, "Settings.durability: is 'always'; take 'buffered' or 'committed'"),
        ({"retention": 30}, "Settings.retention: is 30; pass Retention(...)"),
        ({"rollup_keys": "team"}, "Settings.rollup_keys: is 'team'; pass the names in a list: ('team', 'feature')"),
        ({"rollup_keys": ("a", "")}, "Settings.rollup_keys[1]: is ''; name a key of the metadata, of at most"),
        ({"rollup_keys": tuple("abcdefghi")}, "Settings.rollup_keys: names 9 keys; take at most 8"),
        ({"capture": True}, "Settings.capture: is True; pass Capture(...)"),
    ],
)
def test_settings_that_are_none_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        Settings(**settings)
    assert str(refused.value).startswith(said)


@table("days", [0, -1, True, "7", float("nan"), 1e9])
def test_a_retention_is_a_number_of_days(days: Any) -> None:
    with pytest.raises(ValidationFailed, match=r"Retention.production_days: is .*; take a number of days above 0"):
        Retention(production_days=days)


async def test_cancelling_a_wait_for_a_commit_keeps_the_trace() -> None:
    router, storage, clock = sandbox(5.0)
    with clock.deadline(1.0):
        await router.route("hi")
    storage.seconds = 0.0
    await router.flush()
    assert [put.trace.status for put in storage.traces] == ["completed"]


async def test_queued_text_is_bounded_and_its_loss_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_writer, "QUEUE_TEXT_BYTES", 5_000)
    clock = FakeClock()
    storage = Takes(clock)
    storage.down = True
    router = Router.sandbox({}, storage=storage, settings=Settings(clock=clock, capture=Capture()))
    for _ in range(5):
        await router.route("x" * 2_000)
    assert router.trace_counts.shortened == 3
    storage.down = False
    await router.flush()
    assert [put.trace.content is None for put in storage.traces] == [False, False, True, True, True]
    await router.route("x" * 2_000)
    assert router.trace_counts.shortened == 3  # what was written waits no more
    await router.aclose()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_loop_that_is_never_idle_does_not_starve_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_writer, "QUEUE", 1_000)
    router = Router.sandbox(storage=SqliteStorage(tmp_path / "traces.db"))
    left = iter(range(2_000))

    async def ask() -> None:
        for _ in left:
            await router.route("hi")

    async with anyio.create_task_group() as group:
        for _ in range(100):
            group.start_soon(ask)
    await router.flush()  # raises if any was lost
    assert (await router.traces.usage()).totals.requests == 2_000
    await router.aclose()
