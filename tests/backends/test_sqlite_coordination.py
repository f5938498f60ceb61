"""What a coordination in a file promises besides: restarts, wrecks, locks, who waits, and its size."""

from __future__ import annotations

import gc
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing, closing, contextmanager
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from routewright import SqliteCoordination, SqliteStorage
from routewright.backends.coordination.sqlite import schema
from routewright.backends.storage.sqlite.connection import connect
from routewright.errors import InternalError, StorageCorrupt, StorageUnavailable, StorageVersion, ValidationFailed
from routewright.testing import FakeClock
from routewright.testing.coordination import Walk
from routewright.testing.coordination.walk import NAMES, RESOURCES
from routewright.testing.storage import make_trace
from routewright.wire import Denied, Notice, PutTrace, Take, Taken
from tests.limits import SetClock, at_once, one

pytestmark = pytest.mark.anyio

LEASE_S = 30.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # the contract suite runs on trio, too


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "limits.db"


def ask(path: Path, sql: str) -> Any:
    with closing(connect(str(path))) as connection:
        return connection.execute(sql).fetchone()[0]


def execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for sql in statements:
            connection.execute(sql)


def assert_sound(path: Path) -> None:
    """Every sum is what it sums."""
    assert ask(path, "PRAGMA integrity_check") == "ok"
    sums = {
        "requests": "SELECT coalesce(sum(requests), 0) FROM entry WHERE party = id AND n >= first",
        "tokens": "SELECT coalesce(sum(tokens), 0) FROM entry WHERE party = id AND n >= first",
        "slots": "SELECT coalesce(sum(amount), 0) FROM slot WHERE party = id",
    }
    for column, of in sums.items():
        assert ask(path, f"SELECT count(*) FROM party WHERE {column} <> ({of})") == 0


# Beside the model


class RestartingWalk(Walk):
    """Processes come and go, and now and then the machine starts again, and its clock with it."""

    def __init__(self, path: Path, clock: Any, rng: Random) -> None:
        self._path, self.clock = path, clock
        super().__init__(self._make(), clock, rng, LEASE_S)
        self.steps = (*self.steps, *self.steps, self.join, self.restart)

    def _make(self) -> SqliteCoordination:
        return SqliteCoordination(self._path, clock=self.clock, lease_s=LEASE_S)

    async def join(self) -> None:
        """Another process goes on with the file."""
        if self.rng.random() < 0.5:
            await self.coordination.aclose()
        self.coordination = self._make()

    async def restart(self) -> None:
        """All owners are gone. What has left its window before is forgotten where somebody looked at it since."""
        await self.coordination.take([Take(name, resource, 1, 0) for name in NAMES for resource in RESOURCES], "nobody")
        before = Fraction(self.clock.monotonic()) - 60
        self.model.entries = [each for each in self.model.entries if each.resource == "slots" or each.at > before]
        await self.coordination.aclose()
        self.taken.clear()
        self.owners += 3
        clock: Any = self.clock
        clock.now = now = self.rng.choice((0.0, 0.0, 5.0, 100.0))
        for entry in self.model.entries:
            entry.at = min(entry.at, Fraction(now))
        self.model.until = {owner: min(until, now + LEASE_S) for owner, until in self.model.until.items()}
        self.coordination = self._make()
        await self.coordination.renew("nobody")  # opens it


def test_walks_go_as_the_model_says(tmp_path: Path, full: bool) -> None:
    files = iter(range(10**9))

    @settings(max_examples=5_000 if full else 15, suppress_health_check=list(HealthCheck))
    @given(st.randoms(use_true_random=False))
    def check(rng: Random) -> None:
        path = tmp_path / f"{next(files)}.db"
        walk = RestartingWalk(path, SetClock(), rng)
        at_once(walk.go(50))
        at_once(walk.coordination.aclose())
        assert_sound(path)
        path.unlink()

    check()


def test_after_a_restart_what_was_taken_counts_for_another_minute_and_slots_for_a_lease(path: Path) -> None:
    clock = SetClock(5_000.0)
    takes = [Take("a", "requests", 1), Take("a", "slots", 1)]
    before = SqliteCoordination(path, clock=clock)
    assert isinstance(at_once(before.take(takes, "me")), Taken)
    at_once(before.aclose())
    clock.now = 20.0
    after = SqliteCoordination(path, clock=clock)
    refused = at_once(after.take(takes, "another"))
    assert isinstance(refused, Denied)
    assert refused.retry_after_s == 60.0
    clock.now = 20.0 + LEASE_S
    assert isinstance(at_once(after.take(takes[1:], "another")), Taken)
    clock.now = 80.0
    assert isinstance(at_once(after.take(takes[:1], "another")), Taken)


def test_a_lease_that_lies_ahead_is_cut_to_one_of_its_own_length(path: Path) -> None:
    clock = SetClock(5_000.0)
    patient = SqliteCoordination(path, clock=clock, lease_s=300.0)
    at_once(patient.take([Take("a", "slots", 1)], "patient"))
    at_once(patient.aclose())
    clock.now = 0.0
    hasty = SqliteCoordination(path, clock=clock, lease_s=1.0)
    for now, free in ((0.0, False), (299.0, False), (300.0, True)):
        clock.now = now
        at_once(hasty.renew("hasty"))
        assert isinstance(at_once(hasty.take([Take("a", "slots", 1)], "hasty")), Taken) == free


# The file


@pytest.mark.parametrize("name", ["", ":memory:", "sqlite:///limits.db", 7])
def test_what_names_no_file_is_refused(name: Any) -> None:
    with pytest.raises(ValidationFailed, match=r"path: is .*; name a file, as limits\.db"):
        SqliteCoordination(name)


@pytest.mark.parametrize("name", ["\ud800", "a\0b", "x" * 248, "x/" * 3_000 + "x"], ids=["half", "nul", "long", "deep"])
@pytest.mark.parametrize("kind", [SqliteCoordination, SqliteStorage])
def test_what_no_file_can_be_called_is_refused(kind: Any, name: str) -> None:
    with pytest.raises(ValidationFailed, match=r"^path: (holds what no|is too long for a) name of a file"):
        kind(name)


def test_a_lease_and_a_wait_have_a_length(path: Path) -> None:
    with pytest.raises(ValidationFailed, match=r"SqliteCoordination\.lease_s: is 0; take"):
        SqliteCoordination(path, lease_s=0)
    with pytest.raises(ValidationFailed, match=r"SqliteCoordination\.busy_s: is -1; take"):
        SqliteCoordination(path, busy_s=-1)


def test_it_is_made_at_first_use_for_its_owner_alone(path: Path) -> None:
    coordination = SqliteCoordination(path, clock=SetClock())
    assert not path.exists()
    at_once(coordination.renew("me"))
    assert [file.stat().st_mode & 0o077 for file in path.parent.iterdir()] == [0, 0, 0]
    assert repr(coordination) == f"SqliteCoordination({str(path)!r})"
    at_once(coordination.aclose())


async def test_it_is_opened_again_when_it_is_used_again(path: Path) -> None:
    coordination = SqliteCoordination(path)
    for closed in range(3):
        assert isinstance(await coordination.take(one("a", 3), "me"), Taken), closed
        await coordination.aclose()
        await coordination.aclose()
    assert isinstance(await coordination.take(one("a", 3), "me"), Denied)
    await coordination.aclose()


async def test_a_file_of_somebody_elses_is_refused_and_left_as_it_is(path: Path) -> None:
    other, store, text = path.with_name("other.db"), path.with_name("traces.db"), path.with_name("notes.txt")
    execute(other, "CREATE TABLE mine (x)", "INSERT INTO mine VALUES (1)")
    async with aclosing(SqliteStorage(store)) as storage:
        await storage.apply("default", [PutTrace(make_trace(1))])
    text.write_text("dear diary " * 500)
    for file in (other, store, text):
        before = file.read_bytes()
        coordination = SqliteCoordination(file)
        with pytest.raises(StorageCorrupt):
            await coordination.take(one("a", 1), "me")
        await coordination.aclose()
        assert file.read_bytes() == before


def wreck_middle(path: Path) -> None:
    """All but the head is noise."""
    data = path.read_bytes()
    path.write_bytes(data[:100] + Random(1).randbytes(len(data) - 100))


def wreck_pages(path: Path) -> None:
    """All pages but the first."""
    data = path.read_bytes()
    path.write_bytes(data[:1024] + Random(1).randbytes(len(data) - 1024))


def wreck_length(path: Path) -> None:
    """Its end is missing."""
    path.write_bytes(path.read_bytes()[:1500])


def wreck_all(path: Path) -> None:
    """As a power cut may leave it: as long as it was, and empty."""
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("wreck", [wreck_middle, wreck_pages, wreck_length, wreck_all])
async def test_a_wreck_of_ours_is_made_anew(path: Path, wreck: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with aclosing(SqliteCoordination(path)) as coordination:
        assert isinstance(await coordination.take(one("a", 1), "me"), Taken)
    wreck(path)
    async with aclosing(SqliteCoordination(path)) as coordination:
        assert isinstance(await coordination.take(one("a", 1), "me"), Taken)
        assert isinstance(await coordination.take(one("a", 1), "me"), Denied)
    assert [record.message for record in caplog.records] == [
        f"{path} is damaged: it is made anew, and what was taken of limits is forgotten"
    ]
    assert_sound(path)


@pytest.mark.parametrize(
    "damage",
    [
        ["DROP TABLE party"],
        ["DROP TABLE slot", "DROP TABLE owner"],
        ["DROP TABLE notice"],
        ["ALTER TABLE entry RENAME COLUMN tokens TO t"],
    ],
    ids=lambda each: each[0],
)
@pytest.mark.parametrize("in_use", [True, False])
async def test_one_whose_tables_are_gone_is_made_anew(
    damage: list[str], in_use: bool, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with aclosing(SqliteCoordination(path)) as coordination:
        await coordination.take(one("a", 1), "me")
        if not in_use:
            await coordination.aclose()
        execute(path, *damage)
        takes = [*one("a", 2), Take("a", "slots", 2)]
        await coordination.announce(Notice("revoked", "key_1"))
        assert [type(await coordination.take(takes, "me")) for _ in range(3)] == [Taken, Taken, Denied]
    assert {record.message for record in caplog.records} == {
        f"{path} is damaged: it is made anew, and what was taken of limits is forgotten"
    }
    assert_sound(path)


async def test_a_statement_that_is_refused_of_a_whole_file_makes_none_anew(path: Path) -> None:
    failing = Failing(sqlite3.SQLITE_ERROR)
    async with aclosing(SqliteCoordination(path, connect=failing)) as coordination:
        await coordination.take(one("a", 2), "me")
        failing.at = "INSERT INTO entry"
        with pytest.raises(InternalError):
            await coordination.take(one("a", 2), "me")
        assert isinstance(await coordination.take(one("a", 2), "me"), Taken)
        assert isinstance(await coordination.take(one("a", 2), "me"), Denied)


class Failing:
    """``connect`` whose connections fail at a statement, once."""

    def __init__(self, code: int) -> None:
        self.error = sqlite3.DatabaseError("as the test will have it")
        self.error.sqlite_errorcode = code
        self.at: str | None = None

    def __call__(self, path: str) -> Any:
        return _Connection(connect(path), self)


class _Connection:
    def __init__(self, connection: sqlite3.Connection, failing: Failing) -> None:
        self._connection, self._failing = connection, failing

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> sqlite3.Cursor:
        if self._failing.at is not None and sql.startswith(self._failing.at):
            self._failing.at = None
            raise self._failing.error
        return self._connection.execute(sql, parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


async def test_damage_met_in_use_is_mended_and_others_go_on_with_the_new_file(path: Path) -> None:
    failing = Failing(sqlite3.SQLITE_CORRUPT)
    async with (
        aclosing(SqliteCoordination(path, connect=failing)) as first,
        aclosing(SqliteCoordination(path)) as second,
    ):
        held = await second.take([*one("a", 9), Take("a", "slots", 9)], "me")
        start = await second.hear(None)
        failing.at = "INSERT INTO entry"
        results = [await each.take(one("a", 2), "me") for each in (first, second, first, second)]
        assert [isinstance(result, Taken) for result in results] == [True, True, False, False]
        assert isinstance(held, Taken)
        await second.end(held)
        await first.announce(Notice("revoked", "key_1"))
        assert (await second.hear(start.last)).notices == (Notice("revoked", "key_1"),)
    assert_sound(path)


@pytest.mark.parametrize("statement", ["BEGIN", "SELECT id, req", "INSERT INTO entry", "UPDATE party", "COMMIT"])
@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY])
async def test_a_file_that_fails_raises_takes_nothing_and_goes_on(path: Path, statement: str, code: int) -> None:
    failing = Failing(code)
    async with aclosing(SqliteCoordination(path, connect=failing)) as coordination:
        await coordination.take(one("a", 3), "me")
        failing.at = statement
        with pytest.raises(StorageUnavailable):
            await coordination.take(one("a", 3), "me")
        result = await coordination.take(one("a", 3), "me")
        assert isinstance(result, Taken)
        assert result.states[0].remaining == 1


async def test_a_file_that_cannot_be_made_is_unavailable_until_it_can(tmp_path: Path) -> None:
    async with aclosing(SqliteCoordination(tmp_path / "missing" / "limits.db")) as coordination:
        with pytest.raises(StorageUnavailable, match="it cannot be opened: see to its folder"):
            await coordination.take(one("a", 1), "me")
        (tmp_path / "missing").mkdir()
        assert isinstance(await coordination.take(one("a", 1), "me"), Taken)


def test_a_file_that_is_removed_in_use_is_made_anew(path: Path) -> None:
    coordination = SqliteCoordination(path, clock=SetClock())
    for _ in range(2):
        assert isinstance(at_once(coordination.take(one("a", 1), "me")), Taken)
        for file in (Path(f"{path}-wal"), Path(f"{path}-shm"), path):
            file.unlink()
    at_once(coordination.aclose())


def test_a_file_that_is_removed_while_one_opens_it_is_made_anew(path: Path) -> None:
    removes = False

    def opening(name: str) -> Any:
        nonlocal removes
        if removes:
            removes = False
            Path(name).unlink()
        return connect(name)

    coordination = SqliteCoordination(path, clock=SetClock(), connect=opening)
    for _ in range(2):
        assert isinstance(at_once(coordination.take(one("a", 1), "me")), Taken)
        coordination._file._connections.quiet()  # all is closed, as for a fork
        coordination._file._connections.resume()
        removes = True
    assert isinstance(at_once(coordination.take(one("a", 1), "me")), Taken)
    at_once(coordination.aclose())
    assert_sound(path)


@pytest.fixture
def other_version(path: Path) -> Path:
    """A file that another version has made, and closed."""
    coordination = SqliteCoordination(path, clock=SetClock())
    at_once(coordination.take(one("a", 1), "me"))
    at_once(coordination.aclose())
    execute(path, "DROP TABLE entry", f"PRAGMA user_version = {schema.VERSION + 1}")
    return path


async def test_a_file_of_another_version_is_made_anew_once_nobody_uses_it(
    other_version: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(connect(str(other_version))) as theirs:
        theirs.execute("CREATE TABLE more (x)")
        async with aclosing(SqliteCoordination(other_version)) as coordination:
            for _ in range(2):
                with pytest.raises(StorageVersion, match="in use by another version of routewright"):
                    await coordination.take(one("a", 1), "me")
            old = time.time() - 61
            os.utime(f"{other_version}-wal", (old, old))
            assert isinstance(await coordination.take(one("a", 1), "me"), Taken)
    assert "is of another version: it is made anew" in caplog.text
    assert_sound(other_version)


async def test_a_file_that_another_version_has_closed_is_made_anew_at_once(other_version: Path) -> None:
    async with aclosing(SqliteCoordination(other_version)) as coordination:
        assert isinstance(await coordination.take(one("a", 1), "me"), Taken)


# Who stands in the way


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another one writes, and does not end."""
    with closing(connect(str(path))) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


async def test_who_waits_for_another_process_does_not_hold_up_the_loop(path: Path) -> None:
    async with aclosing(SqliteCoordination(path, busy_s=30.0)) as coordination:
        await coordination.renew("me")
        turns, results = list[int](), list[object]()

        async def take() -> None:
            results.append(await coordination.take(one("a", 1), "me"))

        async with anyio.create_task_group() as group:
            with locked(path):
                group.start_soon(take)
                for turn in range(50):
                    await anyio.sleep(0.001)
                    turns.append(turn)
                assert results == []
        assert isinstance(results[0], Taken)
        assert len(turns) == 50


async def test_one_that_writes_for_too_long_makes_it_unavailable_and_nothing_is_taken(path: Path) -> None:
    async with aclosing(SqliteCoordination(path, busy_s=0.05)) as coordination:
        held = await coordination.take([*one("a", 2), Take("a", "slots", 1)], "me")
        assert isinstance(held, Taken)
        with locked(path):
            for call in (coordination.take(one("a", 2), "me"), coordination.end(held), coordination.renew("me")):
                with pytest.raises(StorageUnavailable, match="another process has been writing for too long"):
                    await call
            assert (await coordination.hear(None)).notices == (), "who reads waits for nobody"
        await coordination.end(held)
        assert isinstance(await coordination.take([*one("a", 2), Take("a", "slots", 1)], "me"), Taken)


async def test_on_virtual_time_it_is_sqlite_that_waits(path: Path) -> None:
    clock = FakeClock()
    async with aclosing(SqliteCoordination(path, clock=clock, busy_s=0.05)) as coordination:
        await coordination.renew("me")
        with locked(path), pytest.raises(StorageUnavailable, match="writing for too long"):
            await coordination.take(one("a", 1), "me")
        assert clock.monotonic() == 0.0
        assert isinstance(await coordination.take(one("a", 1), "me"), Taken)


async def test_who_is_cancelled_while_he_waits_has_taken_nothing(path: Path) -> None:
    async with aclosing(SqliteCoordination(path, busy_s=30.0)) as coordination:
        await coordination.renew("me")
        with locked(path), anyio.move_on_after(0.02) as scope:
            await coordination.take([Take("a", "slots", 1)], "me")
        assert scope.cancelled_caught
        assert isinstance(await coordination.take([Take("a", "slots", 1)], "me"), Taken)


class EndsInTheMidst:
    """Garbage that ends a step when it is collected."""

    def __init__(self, coordination: SqliteCoordination, step: Taken, tokens: int) -> None:
        self.coordination, self.step, self.tokens, self.myself = coordination, step, tokens, self

    def __del__(self) -> None:
        at_once(self.coordination.end(self.step, self.tokens))


def test_a_finaliser_that_ends_a_step_in_the_midst_of_another_is_part_of_it(path: Path) -> None:
    rng, clock = Random(7), SetClock()
    coordination = SqliteCoordination(path, clock=clock)
    threshold = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        for _ in range(400):
            clock.now += 0.25
            name = f"key:{rng.randrange(5)}"
            takes = [
                Take(name, "tokens", 300, rng.randrange(20)),
                Take(name, "slots", 12),
                Take("all", "tokens", 900, 7),
            ]
            result = at_once(coordination.take(takes, "me"))
            if isinstance(result, Taken):
                EndsInTheMidst(coordination, result, rng.randrange(20))
            del result
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    at_once(coordination.aclose())
    assert_sound(path)
    assert ask(path, "SELECT count(*) FROM slot") == 0
    assert ask(path, "SELECT count(*) FROM entry WHERE step IS NOT NULL") == 0


# Its size


def test_neither_file_nor_log_grows_with_names_that_were_used_once(path: Path, full: bool) -> None:
    clock = SetClock()
    coordination = SqliteCoordination(path, clock=clock)
    rows = list[int]()
    for number in range(100_000 if full else 4_000):
        clock.now += 0.6
        takes = [Take(f"key:{number}", resource, 10) for resource in ("requests", "tokens", "slots")]
        result = at_once(coordination.take(takes, "me"))
        assert isinstance(result, Taken)
        if number % 2:
            at_once(coordination.end(result, 1))
        if number % 500 == 0:
            at_once(coordination.renew("me"))
            rows.append(sum(ask(path, f"SELECT count(*) FROM {table}") for table in ("party", "entry", "slot")))
            clock.now += LEASE_S
    assert max(rows) < 2_000
    assert path.stat().st_size + Path(f"{path}-wal").stat().st_size < 2_500_000
    at_once(coordination.aclose())


def test_what_has_left_a_window_is_deleted(path: Path) -> None:
    clock = SetClock()
    coordination = SqliteCoordination(path, clock=clock)
    for _ in range(2_000):
        clock.now += 1.0
        assert isinstance(at_once(coordination.take(one("a", 60), "me")), Taken)
    assert ask(path, "SELECT count(*) FROM entry") <= 60 + 64
    assert ask(path, "SELECT requests FROM party") == 60
    at_once(coordination.aclose())


def test_old_news_are_deleted(path: Path) -> None:
    clock = SetClock()
    coordination = SqliteCoordination(path, clock=clock)
    for _ in range(500):
        clock.now += 1.0
        at_once(coordination.announce(Notice("revoked", "key_1")))
    assert ask(path, "SELECT count(*) FROM notice") == 60
    at_once(coordination.aclose())
