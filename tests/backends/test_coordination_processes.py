"""Several processes share one file of limits, in real time: none too many, none lost, whoever dies, freezes or forks.

Where windows have to slide, the clock of the processes runs forty times as fast as the machine's, but not in full runs.
"""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import ExitStack, aclosing
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from routewright import MemoryCoordination, SqliteCoordination, SystemClock
from routewright._engine.standby import StandbyCoordination
from routewright.errors import StorageUnavailable
from routewright.wire import WINDOW_S, Denied, Notice, Take, Taken
from tests.limits import one

from .processes import run, running
from .test_sqlite_coordination import assert_sound

pytestmark = pytest.mark.anyio

PROCESSES = 8
PREAMBLE = """
    import json, random, time
    from routewright import SqliteCoordination, SystemClock

    class Fast(SystemClock):
        def __init__(self, times):
            super().__init__()
            self.times = times
            self.last = 0.0

        def monotonic(self):
            self.last = time.monotonic() * self.times
            return self.last
"""
TAKING = (
    PREAMBLE
    + """
    path, times, seconds, limit, seed = sys.argv[1], *map(float, sys.argv[2:])
    rng, clock = random.Random(seed), Fast(times)
    takes = [Take("account:a", "requests", int(limit)), Take(f"key:{seed}", "requests", int(limit))]

    async def main():
        coordination = SqliteCoordination(path, clock=clock, busy_s=30.0 * times)
        await coordination.renew("me")
        say("ready"); heard()
        admitted, refused, ends = [], [], time.monotonic() + seconds
        while time.monotonic() < ends:
            result = await coordination.take(takes, f"owner:{seed}")
            (admitted if isinstance(result, Taken) else refused).append(clock.last)
            await anyio.sleep(rng.random() * 0.002)
        await coordination.aclose()
        say(json.dumps([admitted, refused]))

    anyio.run(main)
"""
)
HOLDING = (
    PREAMBLE
    + """
    path, lease_s, slots = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])

    async def main():
        coordination = SqliteCoordination(path, lease_s=lease_s)
        held = [await coordination.take([Take("a", "slots", 25)], "mine") for _ in range(slots)]
        assert all(isinstance(each, Taken) for each in held)
        say("held")
        while True:
            await coordination.renew("mine")
            await anyio.sleep(lease_s / 4)

    anyio.run(main)
"""
)
FREEZING = """
    import sqlite3

    connection = sqlite3.connect(sys.argv[1], isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    say(os.getpid())
    os.kill(os.getpid(), signal.SIGSTOP)
    connection.execute("COMMIT")
    say("thawed")
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "limits.db"


@pytest.mark.parametrize("limit", [60, 600])
def test_eight_processes_let_in_as_many_as_the_limit_says_in_every_window(path: Path, limit: int, full: bool) -> None:
    if limit == 600 and not full:
        pytest.skip("one limit is enough for a commit; run with --full")
    times, seconds = (1.0, 150.0) if full else (40.0, 4.0)
    admitted, refused = _taken_by_all(path, times, seconds, limit)
    in_window = np.arange(1, len(admitted) + 1) - np.searchsorted(admitted, admitted - WINDOW_S, side="right")
    assert in_window.max() == limit, "as many as the limit says, and no more"
    there = np.searchsorted(admitted, refused, side="right") - np.searchsorted(admitted, refused - WINDOW_S, "right")
    assert there.min() == limit, "nobody is refused who fits"
    assert len(admitted) >= 2 * limit, "windows slid"
    assert_sound(path)


def _taken_by_all(path: Path, times: float, seconds: float, limit: int) -> tuple[Any, Any]:
    """When each was admitted, and when each was refused, by the clock that they share."""
    with ExitStack() as stack:
        started = [running(TAKING, path, times, seconds, limit, seed) for seed in range(PROCESSES)]
        processes = [stack.enter_context(each) for each in started]
        for process in processes:
            assert process.heard() == "ready"
        for process in processes:
            process.tell()
        told = [json.loads(process.heard()) for process in processes]
        for process in processes:
            process.end()
    return np.sort(np.concatenate([each[0] for each in told])), np.sort(np.concatenate([each[1] for each in told]))


async def test_slots_of_one_that_is_killed_are_free_after_the_lease(path: Path) -> None:
    lease_s = 0.6
    takes = [Take("a", "slots", 25)]
    async with aclosing(SqliteCoordination(path, lease_s=lease_s)) as coordination:
        with running(HOLDING, path, lease_s, 25) as holder:
            assert holder.heard() == "held"
            await anyio.sleep(2 * lease_s)
            assert isinstance(await coordination.take(takes, "me"), Denied), "he is alive, and keeps them"
            holder.kill()
            killed_at = time.monotonic()
            assert isinstance(await coordination.take(takes, "me"), Denied), "nobody knows yet"
            await anyio.sleep(max(0.0, killed_at + lease_s + 0.001 - time.monotonic()))
        assert [isinstance(await coordination.take(takes, "me"), Taken) for _ in range(26)] == [True] * 25 + [False]


def test_killed_in_the_midst_of_steps_leaves_every_sum_right(path: Path, full: bool) -> None:
    for turn in range(40 if full else 2):
        with ExitStack() as stack:
            started = [running(TAKING, path, 20.0, 60.0, 10**6, seed) for seed in range(2)]
            processes = [stack.enter_context(each) for each in started]
            for process in processes:
                assert process.heard() == "ready"
            for process in processes:
                process.tell()
            time.sleep(0.05 + turn / 200)
        assert_sound(path)


async def test_one_that_freezes_while_it_writes_keeps_others_waiting_for_as_long_as_they_said(path: Path) -> None:
    async with aclosing(SqliteCoordination(path, busy_s=0.2)) as coordination:
        await coordination.take(one("a", 9), "me")
        with running(FREEZING, path) as frozen:
            pid = int(frozen.heard())
            for _ in range(3):
                began = time.monotonic()
                with pytest.raises(StorageUnavailable, match="writing for too long"):
                    await coordination.take(one("a", 9), "me")
                assert 0.2 <= time.monotonic() - began < 2.0
            os.kill(pid, signal.SIGCONT)
            assert frozen.heard() == "thawed"
            result = await coordination.take(one("a", 9), "me")
            assert isinstance(result, Taken)
            assert result.states[0].remaining == 7
            frozen.end()


async def test_one_that_freezes_while_it_writes_leaves_others_their_part_until_it_thaws(path: Path) -> None:
    clock, waits = SystemClock(), list[float]()
    standby = StandbyCoordination(SqliteCoordination(path), MemoryCoordination(), clock, workers=2)
    async with aclosing(standby):
        assert isinstance(await standby.take(one("a", 10), "me"), Taken)
        with running(FREEZING, path) as frozen:
            pid = int(frozen.heard())
            for _ in range(6):
                began = clock.monotonic()
                result = await standby.take(one("a", 10), "me")
                waits.append(clock.monotonic() - began)
                assert result.states[0].limit == 5
            assert standby.degraded
            assert waits[0] < 2.0
            assert max(waits[1:]) < 0.2
            os.kill(pid, signal.SIGCONT)
            assert frozen.heard() == "thawed"
            thawed_at = clock.monotonic()
            while standby.degraded:
                await standby.take(one("a", 10), "me")
                await anyio.sleep(0.1)
            assert clock.monotonic() - thawed_at < 5.0
            frozen.end()


async def test_news_are_heard_in_other_processes(path: Path) -> None:
    hearing = """
        from routewright import SqliteCoordination

        async def main():
            coordination = SqliteCoordination(sys.argv[1])
            start = await coordination.hear(None)
            say("listening")
            heard = await coordination.hear(start.last)
            say(heard.notices[0].said)
            await coordination.aclose()

        anyio.run(main)
    """
    async with aclosing(SqliteCoordination(path)) as coordination:
        with running(hearing, path) as listener:
            assert listener.heard() == "listening"
            await coordination.announce(Notice("revoked", "key_7"))
            assert listener.heard() == "key_7"
            listener.end()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_amid_steps_goes_on_on_both_sides_and_counts_for_both(path: Path) -> None:
    script = """
        from routewright import SqliteCoordination

        coordination = SqliteCoordination(sys.argv[1], busy_s=20.0)
        takes = [Take("a", "requests", 10**6), Take("a", "tokens", 10**6), Take("a", "slots", 10**6)]
        stop, counted, trouble = threading.Event(), [0, 0], []

        async def use(times):
            for _ in range(times):
                taken = await coordination.take(takes, f"owner:{os.getpid()}")
                await coordination.end(taken, 3)

        def go(place):
            async def main():
                while not stop.is_set():
                    await use(1)
                    counted[place] += 1
                    await anyio.sleep(0)
            try:
                anyio.run(main)
            except BaseException as error:
                trouble.append(error)
                raise

        anyio.run(use, 1)  # what is imported late is imported now
        threads = [threading.Thread(target=go, args=[place], daemon=True) for place in (0, 1)]
        for thread in threads:
            thread.start()
        for _ in range(10):
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                try:
                    anyio.run(use, 20)
                except BaseException:
                    sys.excepthook(*sys.exc_info())
                    os._exit(1)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            assert not trouble, trouble
            before = sum(counted)
            while sum(counted) < before + 20 and not trouble:
                os.sched_yield()
        stop.set()
        for thread in threads:
            thread.join()
        taken = anyio.run(coordination.take, takes, "me")
        made = 1 + 200 + sum(counted) + 1
        assert 10**6 - taken.states[0].remaining == made, (taken, made)
        assert 10**6 - taken.states[1].remaining == 3 * (made - 1) + 1
        assert taken.states[2].remaining == 10**6 - 1
        print("ok")
    """
    assert run(script, path) == "ok"
    assert_sound(path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_begins_with_nothing_in_memory_and_ends_nothing_of_its_own_by_its_parents_number() -> None:
    script = """
        from routewright import MemoryCoordination

        coordination = MemoryCoordination()
        takes = [Take("a", "requests", 1), Take("a", "slots", 1)]
        held = [anyio.run(coordination.take, takes[1:], "me"), anyio.run(coordination.take, takes[:1], "me")]

        async def main():
            assert isinstance(await coordination.take(takes, "child"), Taken)
            for each in held:
                await coordination.end(each)
            assert isinstance(await coordination.take(takes[1:], "child"), Denied)
            start = await coordination.hear(None)
            await coordination.announce(Notice("revoked", "key_1"))
            assert len((await coordination.hear(start.last)).notices) == 1

        child = os.fork()
        if child == 0:
            signal.alarm(20)
            try:
                anyio.run(main)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert isinstance(anyio.run(coordination.take, takes, "me"), Denied)
        print("ok")
    """
    assert run(script) == "ok"
