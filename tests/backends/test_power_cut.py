"""Power cuts: the file is intact, committed data is there, and only the end of the rest may be missing."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from shutil import rmtree
from typing import NamedTuple, cast
from unittest.mock import patch

import anyio
import msgspec
import pytest

from routewright import SqliteStorage
from routewright.backends.storage.sqlite import background as keeper
from routewright.backends.storage.sqlite import sync
from routewright.backends.storage.sqlite.file import connect as own_connect
from routewright.errors import PreconditionFailed
from routewright.wire import (
    SYSTEM_ACCOUNT,
    DeleteTraces,
    Durability,
    HealthSnapshot,
    ModelHealth,
    PutFeedback,
    PutSnapshot,
    PutTrace,
    Snapshot,
    SnapshotById,
    Trace,
    TraceById,
    Traces,
    Write,
)
from tests.contracts.storage.samples import ROLLUP_KEYS, decision_input, make_trace, random_trace

from .disk import Disk, Files, Name, Sync, SyncNames, fill
from .disk import Write as Written
from .store_audit import assert_sound

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the names of files are synced as Linux does")

NAME = "traces.db"
ACCOUNTS = ("default", "other")
LOG_BYTES = (100_000, 1_000_000)
"""How long the log may grow before it is moved into the file: a few batches, or many."""
COMMITTED = (0.02, 0.3)
"""The share of batches that are committed."""
BATCHES = 80
"""In the life of a store: until its power is cut, the next life begins with what is left."""


class State(NamedTuple):
    """What a store is to hold."""

    traces: dict[tuple[str, str], Trace]
    feedback: dict[tuple[str, str], PutFeedback]
    snapshots: dict[str, Snapshot]

    def after(self, account: str, writes: Sequence[Write]) -> State:
        """What it is to hold after a batch that it accepts."""
        traces, feedback, snapshots = dict(self.traces), dict(self.feedback), dict(self.snapshots)
        for write in writes:
            match write:
                case PutTrace(trace):
                    traces[account, trace.id] = trace
                case PutFeedback():
                    feedback[account, write.trace_id] = write
                case PutSnapshot(snapshot):
                    snapshots[snapshot.id] = snapshot
                case DeleteTraces():
                    for trace_id in self.chosen(account, write):
                        del traces[account, trace_id]
                        feedback.pop((account, trace_id), None)
        return State(traces, feedback, snapshots)

    def chosen(self, account: str, which: DeleteTraces) -> list[str]:
        """Ids of the traces that go, oldest first."""
        until = which.until or "3000"
        own = (trace for (of, _), trace in self.traces.items() if of == account)
        fits = [trace for trace in own if which.id in (None, trace.id) and trace.created_at < until]
        return [trace.id for trace in sorted(fits, key=lambda trace: trace.key)[: which.limit]]


class Batch:
    """Writes that are applied whole or not at all, and when that was."""

    def __init__(self, account: str, writes: list[Write], before: State, *, fails: bool = False) -> None:
        self.account = account
        self.writes = writes
        self.fails = fails
        self.state = before if fails else before.after(account, writes)
        """What the store is to hold after it."""
        self.committed = not fails and any(write.durability == "committed" for write in writes)
        self.begun = sys.maxsize
        """How much had happened to the disk when it was handed over, and when its success was told."""
        self.told = sys.maxsize

    async def apply(self, storage: SqliteStorage, disk: Disk) -> None:
        self.begun = len(disk.events)
        if self.fails:
            with pytest.raises(PreconditionFailed):
                await storage.apply(self.account, self.writes)
        else:
            await storage.apply(self.account, self.writes)
        self.told = len(disk.events)


class Life:
    """A store between two cuts."""

    def __init__(self, disk: Disk, before: State, chance: Random, number: int) -> None:
        self.disk = disk
        self.before = before
        self.batches: list[Batch] = []
        state, committed = before, chance.choice(COMMITTED)
        for place in range(BATCHES):
            self.batches.append(make_batch(state, chance, number * BATCHES + place, committed))
            state = self.batches[-1].state

    async def live(self, chance: Random) -> None:
        """Apply all batches in order, some at once, and read between them."""
        # each write of SQLite's comes by Python here, so whoever has the lock may have it long
        storage = SqliteStorage(self.disk.folder / NAME, connect=self.disk.connect, busy_s=60)
        left = iter(self.batches)
        while some := list(islice(left, chance.choice((1, 1, 2, 5)))):
            async with anyio.create_task_group() as group:
                for batch in some:
                    group.start_soon(batch.apply, storage, self.disk)
                if chance.random() < 0.2:
                    group.start_soon(partial(storage.scan, "default", Traces(), after=None, limit=50))
        await storage.aclose()

    def places(self, chance: Random, count: int) -> list[int]:
        """Where to cut: wherever it may be; near the beginning; just when something was told; and where the log is
        moved into the file, something is synced or names change."""
        events = self.disk.events
        file, told = self.disk.files[NAME], [batch.told for batch in self.batches]
        rare = [place for place, event in enumerate(events) if isinstance(event, Name | SyncNames | Sync)]
        rare += [place for place, event in enumerate(events) if isinstance(event, Written) and event.file == file]
        kinds: tuple[Sequence[int], ...] = (range(len(events) + 1), range(40), told, rare)
        return [chance.choice(kinds[number % len(kinds)]) for number in range(count)]

    def possible(self, place: int) -> Iterator[tuple[int, State]]:
        """States that may be found where the power was cut after so many events, with how many batches are missing."""
        begun = sum(batch.begun <= place for batch in self.batches)
        safe = max((nr for nr, each in enumerate(self.batches, 1) if each.committed and each.told <= place), default=0)
        states = [self.before, *(batch.state for batch in self.batches)]
        told = sum(batch.told <= place for batch in self.batches)
        for count in range(begun, safe - 1, -1):
            yield max(0, told - count), states[count]


def make_batch(state: State, chance: Random, number: int, committed: float) -> Batch:
    """Any batch that makes sense now."""
    account = chance.choice(ACCOUNTS)
    durability: Durability = "committed" if chance.random() < committed else "buffered"
    known = [trace for (of, _), trace in state.traces.items() if of == account]
    match chance.choices(("put", "replace", "say", "snapshot", "delete", "clear", "fail"), (12, 3, 3, 3, 1, 1, 1))[0]:
        case "replace" if known:
            old, any_other = chance.choice(known), any_trace(account, chance, 0)
            new = msgspec.structs.replace(any_other, id=old.id, environment=old.environment)
            return Batch(account, [PutTrace(new, "present", durability=durability)], state)
        case "say" if known:
            said = PutFeedback(chance.choice(known).id, chance.random(), "so " * 50, number, durability=durability)
            return Batch(account, [said], state)
        case "snapshot":
            models = {f"a/{place}": ModelHealth(stability=number if place == number % 20 else 0) for place in range(20)}
            put = PutSnapshot(HealthSnapshot(f"hea_{number}", models), at=number, durability=durability)
            return Batch(SYSTEM_ACCOUNT, [put], state)
        case "delete" if known:
            return Batch(account, [DeleteTraces(id=chance.choice(known).id, durability=durability)], state)
        case "clear" if known:
            until = chance.choice(known).created_at
            return Batch(account, [DeleteTraces(until=until, limit=20, durability=durability)], state)
        case "fail":
            unknown = PutTrace(make_trace(10**9), "present")
            return Batch(account, [*puts(account, chance, number, durability), unknown], state, fails=True)
    return Batch(account, puts(account, chance, number, durability), state)


def puts(account: str, chance: Random, number: int, durability: Durability) -> list[Write]:
    traces = [any_trace(account, chance, number * 100 + place) for place in range(chance.choice((1, 1, 2, 5, 20)))]
    writes: list[Write] = [PutTrace(each, "absent", ROLLUP_KEYS, durability=durability) for each in traces]
    if chance.random() < 0.3:
        writes.append(PutFeedback(chance.choice(traces).id, 1.0, None, number, "present"))
    return writes


def any_trace(account: str, chance: Random, number: int) -> Trace:
    trace = random_trace(chance, number, account)
    filled = trace.metadata | {"filler": "f" * chance.choice((0, 0, 2_000, 20_000))}
    return msgspec.structs.replace(trace, metadata=filled, decision_input=decision_input())


async def found(path: Path) -> State:
    """What a store holds, as it says itself, with the SQLite that everybody has; and it can be written to."""
    storage = SqliteStorage(path)
    traces: dict[tuple[str, str], Trace] = {}
    for account in ACCOUNTS:
        for trace in await storage.scan(account, Traces(), after=None, limit=100_000):
            traces[account, trace.id] = trace
            assert await storage.read(account, TraceById(trace.id)) == trace
    with closing(own_connect(str(path))) as connection:
        said = connection.execute("SELECT account, body FROM feedback").fetchall()
        put = connection.execute("SELECT id FROM snapshot WHERE body IS NOT NULL").fetchall()
    snapshots = [cast(Snapshot, await storage.read(SYSTEM_ACCOUNT, SnapshotById(name))) for (name,) in put]
    await storage.apply("after", [PutTrace(make_trace(1, account="after"), durability="committed")])
    await storage.aclose()
    feedback = [(account, msgspec.json.decode(body, type=PutFeedback)) for account, body in said]
    return State(
        traces,
        {(account, each.trace_id): each for account, each in feedback},
        {snapshot.id: snapshot for snapshot in snapshots},
    )


class Tally:
    """What the cuts did."""

    def __init__(self) -> None:
        self.cuts = 0
        self.unmade = 0
        """Cuts that left no file at all."""
        self.moved = 0
        """Pages that were moved from the log into the file."""
        self.missing: list[int] = []
        """Of each cut, how many batches were missing whose success had been told."""


def check_cut(folder: Path, files: Files, life: Life, place: int, tally: Tally) -> State:
    """Open what a cut left, and hold it to what was told before."""
    folder.mkdir()
    fill(folder, files)
    there = anyio.run(found, folder / NAME)
    assert_sound(folder / NAME)
    rmtree(folder)
    for missing, state in life.possible(place):
        if state == there:
            tally.cuts += 1
            tally.unmade += NAME not in files
            tally.missing.append(missing)
            return state
    raise AssertionError(f"cut at {place} of {len(life.disk.events)}: what is there is no state that may be")


def cut_power(folder: Path, seed: int, lives: int, cuts: int, tally: Tally, disk_of: type[Disk] = Disk) -> None:
    """Live several lives, each beginning with what one cut left, and cut the power of each at many places."""
    chance = Random(seed)
    files: Files = {}
    state = State({}, {}, {})
    for number in range(lives):
        disk = disk_of(folder / f"{seed}-{number}", files)
        life = Life(disk, state, chance, number)
        with (
            patch.object(keeper, "LOG_BYTES", chance.choice(LOG_BYTES)),
            patch.object(keeper, "EVERY_S", 0.002),
            patch.object(sync, "true_sync", disk.sync),
        ):
            anyio.run(life.live, chance)
        disk.close()
        tally.moved += sum(isinstance(event, Written) and event.file == disk.files[NAME] for event in disk.events)
        goes_on = chance.randrange(cuts)
        for nr, (place, left) in enumerate(disk.cuts(life.places(chance, cuts), chance)):
            is_left = check_cut(folder / "cut", left, life, place, tally)
            if nr == goes_on:
                files, state = left, is_left


def test_a_power_cut_loses_nothing_committed_and_only_the_last_of_the_rest(tmp_path: Path, full: bool) -> None:
    seeds, lives, cuts = (5, 5, 40) if full else (1, 2, 5)
    tally = Tally()
    for seed in range(seeds):
        cut_power(tmp_path, seed, lives, cuts, tally)
    print(tally.cuts, tally.unmade, tally.moved, sorted(tally.missing))
    assert tally.cuts == seeds * lives * cuts
    assert tally.moved > 100, "the log has to be moved, or nothing is shown of that"
    assert any(tally.missing) or not full, "some cuts have to take something, or nothing is shown"
