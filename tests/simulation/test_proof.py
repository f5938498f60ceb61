"""Stored decisions replay in another process, and a simulation says what the draft then really costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from routewright import Console, MemoryStorage, SqliteStorage
from routewright._setup.replay import Replays
from routewright.protocols import Storage
from routewright.testing import FakeClock
from routewright.wire import SYSTEM_ACCOUNT, DecisionSpan, PutSnapshot, PutTrace, Snapshot, SnapshotById, Traces

from .traffic import DRAFT, LIVE, Lengths, router_of, serve

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]
PROGRAM = "import sys; from tests.simulation.test_proof import replay_in_child; replay_in_child(sys.argv[1])"


async def copy(source: Storage, target: Storage) -> int:
    """Copy all traces with their snapshots; returns how many."""
    count, after, known = 0, None, set[str]()
    while page := await source.scan("default", Traces(), after=after, limit=500):
        for trace in page:
            inputs = trace.decision_input
            assert inputs is not None
            for snapshot_id in {inputs.catalogue, inputs.health, inputs.policy} - {None} - known:
                snapshot = await source.read(SYSTEM_ACCOUNT, SnapshotById(str(snapshot_id)))
                assert snapshot is not None
                await target.apply(SYSTEM_ACCOUNT, [PutSnapshot(snapshot)])
                known.add(str(snapshot_id))
        await target.apply("default", [PutTrace(trace) for trace in page])
        count += len(page)
        after = page[-1].key
    return count


async def count_replayed(path: str) -> int:
    """Replay every stored decision from what is stored; returns how many are the same."""
    storage = SqliteStorage(path)
    snapshots: dict[str, Snapshot] = {}
    replays = Replays(lambda: (), lambda: (), snapshots.get)
    count, after = 0, None
    while page := await storage.scan("default", Traces(), after=after, limit=500):
        for trace in page:
            inputs = trace.decision_input
            assert inputs is not None
            for snapshot_id in {inputs.catalogue, inputs.health, inputs.policy or ""} - snapshots.keys():
                snapshots[snapshot_id] = await storage.read(SYSTEM_ACCOUNT, SnapshotById(snapshot_id))
            (span,) = (span for span in trace.spans if isinstance(span, DecisionSpan))
            count += replays.decide(inputs).digest == span.digest
        after = page[-1].key
    await storage.aclose()
    return count


def replay_in_child(path: str) -> None:
    print(anyio.run(count_replayed, path))


async def check_replay(tmp_path: Path, count: int) -> None:
    clock, path = FakeClock(), tmp_path / "traces.db"
    memory = MemoryStorage(newest=count)
    for seed in (1, 2):  # the second Router begins as after a restart
        router = router_of(memory, Lengths(seed), clock)
        await serve(router, clock, count // 2, seed)
        await router.aclose()
    storage = SqliteStorage(path)
    assert await copy(memory, storage) == count
    await storage.aclose()
    assert await count_replayed(str(path)) == count  # in this process, from the file alone
    command = [sys.executable, "-c", PROGRAM, str(path)]
    done = await anyio.to_thread.run_sync(
        lambda: subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    )
    assert done.stdout.strip() == str(count), done.stderr


async def test_stored_decisions_replay_after_a_restart_and_in_another_process(tmp_path: Path) -> None:
    await check_replay(tmp_path, 60)


@pytest.mark.full
async def test_100_000_stored_decisions_replay_after_a_restart_and_in_another_process(tmp_path: Path) -> None:
    await check_replay(tmp_path, 100_000)


async def check_truth(count: int) -> tuple[float, float, float, float]:
    """Simulate a draft over one day, then run it for another: the estimate, its interval, and the truth."""
    clock = FakeClock()
    storage = MemoryStorage(newest=count)
    # part of the traffic goes to every model, so that all have outcomes
    router = router_of(storage, Lengths(1), clock)
    for number, model in enumerate((None, "small/two", "tiny/three")):
        options = {} if model is None else {"models": [model]}
        await serve(router, clock, count // (2, 4, 4)[number], number, **options)
    await router.aclose()
    report = await Console(storage, clock=clock).simulate(DRAFT)
    assert report.problem is None
    estimate = report.cost_after_usd
    assert estimate is not None
    clock, day = FakeClock(), MemoryStorage(newest=1)
    router = router_of(day, Lengths(2), clock, [DRAFT])
    truth = 0.0
    allowed = count - report.refusals[0].new if report.refusals else count
    truth = await serve(router, clock, allowed, 9)
    await router.aclose()
    return estimate.value, estimate.low, estimate.high, truth


async def test_a_simulated_draft_costs_what_it_was_said_to_cost() -> None:
    value, low, high, truth = await check_truth(500)
    assert low <= truth <= high
    assert value == pytest.approx(truth, rel=0.2)


@pytest.mark.full
async def test_a_draft_simulated_over_50_000_traces_costs_the_same_within_2_percent() -> None:
    value, low, high, truth = await check_truth(50_000)
    print(value, low, high, truth, value / truth - 1)
    assert low <= truth <= high
    assert value == pytest.approx(truth, rel=0.02)


async def test_a_day_with_other_lengths_is_reported_and_nothing_claimed() -> None:
    clock = FakeClock()
    storage = MemoryStorage()
    lengths = Lengths(1)
    router = router_of(storage, lengths, clock)
    await serve(router, clock, 80, 1)
    lengths.factor = 2.5
    await clock.advance(86_400)
    router = router_of(storage, lengths, clock)
    await serve(router, clock, 50, 2)
    await router.aclose()
    report = await Console(storage, clock=clock).simulate(LIVE)
    assert [drift.model for drift in report.drifts] == ["big/one"]
    assert report.cost_after_usd is None
    assert report.problem is not None
    assert report.problem.startswith("answers are no longer as long as expected: big/one ")
