"""Processes that route into a file are killed: the file is intact, and returned answers have their traces."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from shutil import copyfile
from typing import NamedTuple, TextIO

import anyio
import msgspec
import pytest

from routewright import Router, SqliteStorage
from routewright.backends.storage.sqlite.background import LOG_BYTES
from routewright.wire import SYSTEM_ACCOUNT, DecisionSpan, Durability, SnapshotById, Trace, TraceById, Traces
from tests.programs import Program

from .route_child import Orders, waited_ns
from .store_audit import assert_sound, names_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only there processes share the monotonic clock")

LATEST_MS = 50
"""A buffered trace is in the file so long after its answer."""
SHORT_LOG, SHORT_LOG_MS = 200_000, 150
"""A process that has to move its log every thirty traces or so may take longer, as long as a slow disk."""
KILLS = 5
"""Of processes that use one file, one after another."""
PATIENCE_S = 30.0
MOST_ANSWERS = 300
LONGEST_S = 0.4
REPLAYED = 10


class Told(NamedTuple):
    """An answer that a process was given."""

    trace_id: str
    at: int
    """Nanoseconds of the clock that all processes share."""
    waited: int
    """How long the process had waited for a processor until then."""


class Victim:
    """A process that routes."""

    def __init__(self, orders: Orders, process: Program) -> None:
        self.latest_ms = SHORT_LOG_MS if orders.log_bytes == SHORT_LOG else LATEST_MS
        self.told: list[Told] = []
        self.killed_at = self.waited = 0
        """Just before it was killed; 0: it was not."""
        self._process = process
        self._changed = threading.Condition()
        self._is_ready = False
        self._reader = threading.Thread(target=self._read, args=(process.stdout,), daemon=True)
        self._reader.start()

    def wait(self, answers: int, within_s: float) -> bool:
        """Wait for so many answers. False: they did not come in time."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self.told) >= answers, within_s)

    def wait_until_ready(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._is_ready, PATIENCE_S)

    def kill(self) -> None:
        self.waited = waited_ns(self._process.pid)
        self.killed_at = time.monotonic_ns()
        self._process.kill()
        self._join()

    def end(self) -> None:
        """Let it end in good order."""
        self._process.end()
        self._join()

    def _join(self) -> None:
        self._reader.join(PATIENCE_S)  # what it wrote until then is still in the pipe
        assert not self._reader.is_alive()

    def _read(self, out: TextIO) -> None:
        for line in out:
            words = line.split()
            with self._changed:
                if len(words) == 1:
                    self._is_ready = True
                else:
                    self.told.append(Told(words[0], int(words[1]), int(words[2])))
                self._changed.notify_all()


@contextmanager
def victim(orders: Orders) -> Iterator[Victim]:
    """Start a process that routes."""
    with Program("-m", "tests.backends.route_child", msgspec.json.encode(orders).decode()) as process:
        yield Victim(orders, process)


class Tally:
    """What was killed, and what that took."""

    def __init__(self) -> None:
        self.kills = self.told = self.held = self.pairs = 0
        self.oldest_lost_ms: list[float] = []
        """Of each kill, how long before it the first answer was given whose trace is missing."""


class Scene:
    """Processes that are killed one after another while they use one file."""

    def __init__(self, folder: Path, durability: Durability, seed: int, tally: Tally) -> None:
        folder.mkdir()
        self._path = folder / "traces.db"
        self._copy = folder / "copy.db"
        self._durability: Durability = durability
        self._chance = Random(seed)
        self._tally = tally
        self._safe: set[str] = set()
        """Traces that were found once."""

    def play(self, kills: int) -> None:
        for number in range(kills):
            self._kill_one(number, beside=number % 2 == 1)

    def _kill_one(self, number: int, *, beside: bool) -> None:
        chance = self._chance
        with ExitStack() as stack:
            killed, *others = victims = [stack.enter_context(victim(self._orders(number))) for _ in range(1 + beside)]
            for each in victims:
                each.wait_until_ready()
            if chance.random() < 0.5:
                assert killed.wait(chance.randint(1, MOST_ANSWERS), PATIENCE_S)
            else:
                killed.wait(sys.maxsize, chance.random() * LONGEST_S)
            killed.kill()
            for other in others:
                assert other.wait(len(other.told) + 50, PATIENCE_S), "the other one does not go on"
                other.end()
            self._tally.kills += 1
            self._tally.pairs += beside
            self._check(victims)

    def _orders(self, number: int) -> Orders:
        return Orders(
            str(self._path),
            self._durability,
            seed=self._chance.getrandbits(32),
            streams=0.5 if number % 2 else 0.0,
            log_bytes=self._chance.choice((SHORT_LOG, LOG_BYTES)),
        )

    def _check(self, victims: Sequence[Victim]) -> None:
        """Hold a copy to what was told, so that the next process has to mend the file itself."""
        for end in ("", "-wal"):
            Path(f"{self._copy}{end}").unlink(missing_ok=True)
            if os.path.exists(f"{self._path}{end}"):
                copyfile(f"{self._path}{end}", f"{self._copy}{end}")
        there = anyio.run(partial(self._found, [told.trace_id for each in victims for told in each.told]))
        assert_sound(self._copy)
        for each in victims:
            self._check_told(each, there)
        assert self._safe <= there, "what was there is gone"
        self._safe |= there
        self._replay()

    async def _found(self, told: Sequence[str]) -> set[str]:
        """Ids of all traces; those that were told can be read one by one, and what all of them name is there."""
        storage = SqliteStorage(self._copy)
        traces: list[Trace] = await storage.scan("default", Traces(), after=None, limit=1_000_000)
        there = {trace.id: trace for trace in traces}
        assert len(there) == len(traces)
        for trace_id in told:
            assert await storage.read("default", TraceById(trace_id)) == there.get(trace_id)
        for name in {name for trace in traces for name in names_of(trace)}:
            assert await storage.read(SYSTEM_ACCOUNT, SnapshotById(name)) is not None, f"{name} is named and not there"
        await storage.aclose()
        self._traces = traces
        return set(there)

    def _check_told(self, one: Victim, there: set[str]) -> None:
        self._tally.told += len(one.told)
        lost = [told for told in one.told if told.trace_id not in there]
        self._tally.held += len(one.told) - len(lost)
        if not one.killed_at or self._durability == "committed":
            assert not lost
            return
        ages_ms = [(one.killed_at - told.at) / 1e6 for told in lost]
        self._tally.oldest_lost_ms.append(round(max(ages_ms, default=0.0), 1))
        for told, age_ms in zip(lost, ages_ms, strict=True):
            starved_ms = (one.waited - told.waited) / 1e6  # a machine that is busy with something else proves nothing
            assert age_ms <= one.latest_ms + starved_ms

    def _replay(self) -> None:
        """Decisions come out as they were, of some traces, by what is stored alone."""
        with Router.sandbox(storage=SqliteStorage(self._copy)).blocking as blocking:
            for trace in self._chance.sample(self._traces, min(REPLAYED, len(self._traces))):
                (span,) = (span for span in trace.spans if isinstance(span, DecisionSpan))
                assert blocking.router.replay(trace).digest == span.digest


@pytest.mark.parametrize("durability", ["committed", "buffered"])
def test_a_kill_loses_no_trace_of_an_earlier_answer_and_damages_no_file(
    tmp_path: Path, full: bool, durability: Durability
) -> None:
    """Of answers that do not wait for their traces it may take those of the last 50 ms."""
    tally = Tally()
    for seed in range(20 if full else 1):
        Scene(tmp_path / str(seed), durability, seed, tally).play(KILLS if full else 2)
    print(durability, vars(tally))
    assert tally.kills == (100 if full else 2)
    assert tally.told > tally.kills
