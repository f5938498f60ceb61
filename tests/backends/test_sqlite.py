"""What the file storage guarantees beyond the contract: processes, threads, forks, the log and deletion."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, aclosing, closing, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import Mock

import anyio
import anyio.lowlevel
import pytest

from routewright.backends.storage.sqlite import SqliteStorage, connections, sync, upkeep, writer
from routewright.backends.storage.sqlite import background as keeper
from routewright.backends.storage.sqlite.file import connect
from routewright.backends.storage.tables import upkeep as swept
from routewright.errors import (
    InternalError,
    PreconditionFailed,
    StorageCorrupt,
    StorageFull,
    StorageUnavailable,
    ValidationFailed,
)
from routewright.protocols import LocalStorage, Storage
from routewright.testing import FakeClock
from routewright.wire import (
    SYSTEM_ACCOUNT,
    AddLearned,
    Content,
    CurrentRetention,
    DeleteTraces,
    Durability,
    Learned,
    LearnedSince,
    PutFeedback,
    PutTrace,
    SetRetention,
    Stands,
    Term,
    TraceById,
    TraceItems,
    Traces,
    UsageCounts,
    Write,
)
from tests.contracts.storage.samples import make_trace

from .faulty_connection import Watched
from .processes import run, running

pytestmark = pytest.mark.anyio

DAY_S = 24 * 3600.0
NOW = 1_795_478_400.0  # 2026-11-24T00:00:00Z


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # the contract suite runs on trio, too


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "traces.db"


async def numbers(storage: Storage, account: str = "default") -> list[int]:
    found = await storage.scan(account, TraceItems(), after=None, limit=100_000)
    return sorted(int(item.id.removeprefix("tr_")) for item in found)


async def requests(storage: Storage) -> int:
    query = UsageCounts(first="2026-11-01", last="2026-11-30", group_by="model")
    return sum(row.requests for row in (await storage.read("default", query)).all)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """A read by another connection goes on."""
    with closing(connect(str(path))) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM trace").fetchone()
        yield


class Closable(sqlite3.Connection):
    """A connection that says whether it is closed."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True
        super().close()


class Told:
    """Opens connections, and notes what they are told."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    def connect(self, path: str) -> sqlite3.Connection:
        connection = connect(path)
        connection.set_trace_callback(self.statements.append)
        return connection


# The object


@pytest.mark.parametrize("given", ["", ":memory:", "sqlite:///traces.db", 7, None, b"traces.db"])
def test_a_path_that_is_not_a_file_name_is_refused(given: Any) -> None:
    with pytest.raises(ValidationFailed, match="name a file"):
        SqliteStorage(given)


async def test_no_file_is_created_before_the_first_use(path: Path) -> None:
    storage = SqliteStorage(path)
    assert isinstance(storage, LocalStorage)
    assert storage.path == path
    assert repr(storage) == f"SqliteStorage({str(path)!r})"
    await storage.aclose()
    assert list(path.parent.iterdir()) == []
    await storage.read("default", TraceById("tr_1"))
    assert "traces.db" in os.listdir(path.parent)
    await storage.aclose()


async def test_a_closed_storage_leaves_one_file_and_can_be_reused(path: Path) -> None:
    storage = SqliteStorage(path)
    for number in range(3):
        await storage.apply("default", [PutTrace(make_trace(number))])
        await storage.aclose()
        assert list(path.parent.iterdir()) == [path]
    assert await numbers(storage) == [0, 1, 2]
    await storage.aclose()


async def test_traces_are_kept_for_30_days_and_sandbox_traces_for_one_by_default(path: Path) -> None:
    async with aclosing(SqliteStorage(path)) as storage:
        told = await storage.read(SYSTEM_ACCOUNT, CurrentRetention())
        assert told == SetRetention(production_s=30 * DAY_S, sandbox_s=DAY_S)


def writers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "routewright-sqlite"}


async def test_an_idle_writer_starts_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "IDLE_S", 0.001)
    before = writers()
    async with aclosing(SqliteStorage(path)) as storage:
        for number in range(100):
            await storage.apply("default", [PutTrace(make_trace(number))])
            if number % 10 == 0:
                for thread in writers() - before:
                    await anyio.to_thread.run_sync(thread.join, 10)
        assert await numbers(storage) == list(range(100))


# Threads and loops


class Threads:
    """``connect`` that notes in which threads statements run."""

    def __init__(self) -> None:
        self.of: dict[str, set[int]] = {}

    def __call__(self, path: str) -> Any:
        return Watched(connect(path), self._note)

    def _note(self, sql: str) -> None:
        self.of.setdefault(sql.strip().partition(" ")[0], set()).add(threading.get_ident())


async def everything(storage: Storage) -> None:
    await storage.apply("default", [PutTrace(make_trace(1)), PutFeedback(make_trace(1).id, 1.0, None, 0.0)])
    await storage.scan("default", TraceItems(), after=None, limit=5)
    await requests(storage)
    await storage.apply("default", [DeleteTraces()])
    await storage.sweep(NOW)
    await storage.aclose()


async def test_with_a_virtual_clock_everything_runs_in_the_callers_thread(path: Path) -> None:
    used, before = Threads(), set(threading.enumerate())
    await everything(SqliteStorage(path, clock=FakeClock(), connect=used))
    assert set().union(*used.of.values()) == {threading.get_ident()}
    assert set(threading.enumerate()) <= before


async def test_writes_scans_and_reports_do_not_block_the_loop(path: Path) -> None:
    used = Threads()
    await everything(SqliteStorage(path, connect=used))
    for verb in ("BEGIN", "INSERT", "DELETE", "WITH", "COMMIT"):
        assert threading.get_ident() not in used.of.get(verb, set()), verb


async def test_a_failed_request_fails_no_other_of_its_transaction(path: Path) -> None:
    outcomes: dict[int, str] = {}

    async def put(storage: Storage, number: int) -> None:
        trace = make_trace(number, error="\ud800" if number % 5 == 4 else None)
        before: list[Write] = []
        if trace.error:
            before = [PutTrace(make_trace(1_000 + number)), PutFeedback(trace.id, 1.0, None, 0.0)]
        try:
            put = PutTrace(trace, expect="present" if number % 5 == 3 else "absent")
            await storage.apply("default", [*before, put])
            outcomes[number] = "kept"
        except (PreconditionFailed, InternalError) as error:
            outcomes[number] = type(error).__name__

    async with aclosing(SqliteStorage(path)) as storage, anyio.create_task_group() as group:
        await put(storage, 100)
        for number in range(40):
            group.start_soon(put, storage, number)
    kinds = ["kept", "kept", "kept", "PreconditionFailed", "InternalError"]
    assert outcomes == {number: kinds[number % 5] for number in range(40)} | {100: "kept"}
    async with aclosing(SqliteStorage(path)) as storage:
        assert await numbers(storage) == [*(number for number in range(40) if number % 5 < 3), 100]
        assert await requests(storage) == 25


async def test_reads_do_not_wait_for_other_threads_of_the_process(path: Path) -> None:
    others = anyio.to_thread.current_default_thread_limiter()
    before, others.total_tokens = others.total_tokens, 1
    async with others, aclosing(SqliteStorage(path)) as storage:
        with anyio.fail_after(20):
            assert await numbers(storage) == []
    others.total_tokens = before


async def test_committed_writes_are_synced_on_every_connection(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(sync, "true_sync", lambda descriptor: said.append("sync"))

    def noting(path: str) -> sqlite3.Connection:
        connection = connect(path)
        connection.execute("PRAGMA synchronous = OFF")  # as some builds of SQLite begin
        connection.set_trace_callback(said.append)
        return connection

    storage = SqliteStorage(path, connect=noting)
    levels: tuple[tuple[Durability, int], ...] = (("committed", 1), ("buffered", 0), ("committed", 1))
    for _ in range(3):
        for durability, syncs in levels:
            said.clear()
            await storage.apply("default", [PutTrace(make_trace(1), durability=durability)])
            assert [each for each in said if each in ("COMMIT", "sync")][-1 - syncs :] == ["COMMIT", *["sync"] * syncs]
        level = storage._connections._writers["writer"].execute("PRAGMA synchronous").fetchone()
        assert level == (1,), "moving the log syncs it first"
        await storage.aclose()


# Other processes


async def test_a_second_storage_on_the_file_sees_what_was_applied(path: Path) -> None:
    async with aclosing(SqliteStorage(path)) as one, aclosing(SqliteStorage(path)) as two:
        for number in range(5):
            writes, reads = (one, two) if number % 2 else (two, one)
            await writes.apply("default", [PutTrace(make_trace(number))])
            assert await reads.read("default", TraceById(make_trace(number).id)) == make_trace(number)
            assert await numbers(reads) == list(range(number + 1))
        await one.apply("default", [DeleteTraces(id=make_trace(0).id)])
        assert await numbers(two) == [1, 2, 3, 4]


async def test_reads_sync_writes_of_others_even_if_the_clock_was_set_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs: list[int] = []
    monkeypatch.setattr(sync, "true_sync", syncs.append)
    async with aclosing(SqliteStorage(path)) as one, aclosing(SqliteStorage(path)) as two:
        await two.apply("default", [PutTrace(make_trace(1))])
        with monkeypatch.context() as patch:
            patch.setattr(sync, "time", Mock(time=lambda: time.time() + 3_600.0))
            assert await numbers(one) == [1]
        syncs.clear()
        assert await numbers(one) == [1]
        assert not syncs, "nobody has written"
        await two.apply("default", [PutTrace(make_trace(2), durability="buffered")])
        assert await numbers(one) == [1, 2]
        assert syncs


@pytest.mark.parametrize("ago_s", [0.0, -3_600.0])
def test_a_recently_written_log_is_synced_for_every_read(
    path: Path, monkeypatch: pytest.MonkeyPatch, ago_s: float
) -> None:
    monkeypatch.setattr(sync, "time", Mock(time=lambda: NOW))
    log, of_it = path.with_name(f"{path.name}-wal"), sync.Sync(path)
    log.write_bytes(b"a page")
    for mtime, is_needed in ((NOW - ago_s, True), (NOW - 60.0, False)):
        os.utime(log, (mtime, mtime))
        assert of_it.is_needed
        of_it.sync_for_readers()
        assert of_it.is_needed is is_needed
    os.utime(log, (mtime, mtime + 1e-3))
    assert of_it.is_needed, "a page may be written over another"


def test_processes_that_create_a_file_and_write_concurrently_lose_nothing(tmp_path: Path, full: bool) -> None:
    script = """
        async def main():
            while (name := heard()) != "end":
                async with aclosing(SqliteStorage(sys.argv[1] + name)) as storage, anyio.create_task_group() as group:
                    for first in range(3):
                        group.start_soon(put, storage, int(sys.argv[2]) + 5 * first, 5)
                say("done")
        say("ready")
        anyio.run(main)
    """
    rounds, processes, each = (100, 4, 15) if full else (1, 3, 15)
    with ExitStack() as stack:
        writers = [stack.enter_context(running(script, tmp_path, each * place)) for place in range(processes)]
        assert [one.heard() for one in writers] == ["ready"] * processes
        for number in range(rounds):
            for one in writers:
                one.tell(f"/{number}.db")
            assert [one.heard() for one in writers] == ["done"] * processes
        for one in writers:
            one.tell("end")
            one.end()
    for number in range(rounds):
        path = tmp_path / f"{number}.db"
        assert upkeep.check(path).problems == []
        anyio.run(_holds, path, list(range(processes * each)))


async def _holds(path: Path, expected: list[int]) -> None:
    async with aclosing(SqliteStorage(path)) as storage:
        assert await numbers(storage) == expected
        assert await requests(storage) == len(expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_during_writes_and_reads_damages_nothing_and_both_sides_continue(path: Path, full: bool) -> None:
    script = """
        import random
        from routewright.backends.storage.sqlite import upkeep

        path, forks = Path(sys.argv[1]), int(sys.argv[2])
        storage, stop, trouble = SqliteStorage(path), threading.Event(), []
        written = [0, 0]
        anyio.run(put, storage, 1, 1)  # what is imported late is imported now

        def use(place):
            async def main():
                while not stop.is_set():
                    number = 1_000_000 * (place + 1) + written[place]
                    await storage.apply("default", [PutTrace(make_trace(number))])
                    written[place] += 1
                    assert await storage.read("default", TraceById(make_trace(number).id)) is not None
                    found = await storage.scan("default", TraceItems(), after=None, limit=50)
                    assert found[0].id >= make_trace(number).id
            try:
                anyio.run(main)
            except BaseException as error:
                trouble.append(error)
                raise

        threads = [threading.Thread(target=use, args=[place], daemon=True) for place in (0, 1)]
        for thread in threads:
            thread.start()
        for fork in range(1, forks + 1):
            child = os.fork()
            if child == 0:
                signal.alarm(30)
                try:
                    anyio.run(put, storage, 1_000 * fork, 10)
                    found = anyio.run(storage.read, "default", TraceById(make_trace(1_000 * fork + 9).id))
                    os._exit(0 if found is not None else 3)
                except BaseException:
                    sys.excepthook(*sys.exc_info())
                    os._exit(1)
            assert os.waitpid(child, 0)[1] == 0
            assert not trouble, trouble
            before = sum(written)
            while sum(written) < before + 4 and not trouble:
                os.sched_yield()
        stop.set()
        for thread in threads:
            thread.join()
        anyio.run(storage.aclose)
        found = upkeep.check(path)
        assert found.problems == [], found
        assert found.traces == 1 + forks * 10 + sum(written), (found, written)
        print(min(written) > 0)
    """
    assert run(script, path, 60 if full else 3) == "True"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_closed_store_leaves_no_thread_and_a_fork_no_warning(path: Path) -> None:
    program = """
        import time, warnings
        from routewright import Router

        warnings.simplefilter("error")
        for _ in range(2):
            router = Router.sandbox({"hi": "hello"}, storage=SqliteStorage(sys.argv[1]))
            router.blocking.route("hi")
            router.blocking.close()
            ends = time.monotonic() + 30
            while threading.active_count() > 1 and time.monotonic() < ends:
                time.sleep(0.01)  # the writer's own
            print([thread.name for thread in threading.enumerate()], flush=True)
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
    """
    assert run(program, path).split() == ["['MainThread']"] * 2


def test_a_write_lock_held_elsewhere_delays_neither_closing_nor_exit(path: Path) -> None:
    program = """
        import atexit, sqlite3, time

        storage = SqliteStorage(sys.argv[1])
        anyio.run(put, storage, 1, 1)
        other = sqlite3.connect(sys.argv[1], isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        time.sleep(0.6)  # its roll-up waits for the lock now
        began = time.monotonic()
        if sys.argv[2] == "close":
            storage._close()
            say(time.monotonic() - began)
        atexit._run_exitfuncs()
        say(time.monotonic() - began)
        os._exit(0)
    """
    for how in ("close", "exit"):
        assert max(map(float, run(program, path, how).split())) < 1.5, how


# The file under it


async def test_the_log_of_a_store_behind_a_symlink_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "LOG_BYTES", 100_000)
    link = path.with_name("link.db")
    link.symlink_to(path)
    async with aclosing(SqliteStorage(link, clock=FakeClock())) as storage:
        assert storage.path == path
        for first in range(0, 500, 20):
            await storage.apply("default", [PutTrace(make_trace(number)) for number in range(first, first + 20)])
        assert os.stat(f"{path}-wal").st_size < 500_000


async def test_only_the_owner_can_read_a_new_store_and_a_backup_keeps_its_permissions(path: Path) -> None:
    async with aclosing(SqliteStorage(path)) as storage:
        await storage.apply("default", [PutTrace(make_trace(1))])
        assert {stat.S_IMODE(os.stat(file).st_mode) for file in os.scandir(path.parent)} == {0o600}
    for mode in (0o600, 0o640):
        os.chmod(path, mode)
        copy = path.with_name(f"{mode}.db")
        upkeep.backup(path, copy)
        assert stat.S_IMODE(os.stat(copy).st_mode) == mode


REMOVED = "was removed while it was in use; stop all .* restore a backup, and restart"


@pytest.mark.parametrize("forked", [False, True])
async def test_a_store_removed_while_in_use_is_reported_and_not_recreated(
    path: Path, tmp_path: Path, forked: bool
) -> None:
    async with aclosing(SqliteStorage(path)) as storage:
        await storage.apply("default", [PutTrace(make_trace(1))])
        assert await storage.read("default", TraceById(make_trace(1).id)) is not None
        if forked:  # all is closed for that moment
            storage._connections.quiet()
            storage._connections.resume()
            storage._connections.renew()
        upkeep.backup(path, tmp_path / "copy.db")
        for file in list(os.scandir(path.parent)):
            if file.name.startswith(path.name):
                os.unlink(file)
        for _ in range(2):
            for asked in (
                storage.read("acme", Stands("2026-11-01T00:00:00.000Z", None)),
                storage.apply("default", [PutTrace(make_trace(2))]),
                numbers(storage),
            ):
                with pytest.raises(StorageUnavailable, match=REMOVED):
                    await asked
        assert [file.name for file in os.scandir(path.parent)] == ["copy.db"]
        await storage.aclose()  # as who stops does
        os.replace(tmp_path / "copy.db", path)
        assert await numbers(storage) == [1]


async def test_a_store_removed_while_it_is_opened_is_not_recreated(path: Path) -> None:
    removes = False

    def opening(path: str) -> sqlite3.Connection:
        if removes:
            os.unlink(path)
        return connect(path)

    async with aclosing(SqliteStorage(path, connect=opening)) as storage:
        await storage.apply("default", [PutTrace(make_trace(1))])
        removes = True
        with pytest.raises(StorageUnavailable, match=REMOVED):
            await numbers(storage)
        assert path.name not in {file.name for file in os.scandir(path.parent)}


async def lose(storage: SqliteStorage, path: Path, content: bytes) -> None:
    """Let it be closed as for a fork, and then have another file of its name, and of its number."""
    await storage.apply("default", [PutTrace(make_trace(1))])
    storage._connections.quiet()
    storage._connections.resume()
    storage._connections.renew()
    left = {file.name for file in os.scandir(path.parent)}
    assert left <= {path.name, f"{path.name}-keep"}  # which the background work may have made
    await anyio.Path(path).write_bytes(content)


@pytest.mark.parametrize("begun", ["another store", "an empty file", "a copy"])
async def test_a_recreated_store_with_the_same_inode_is_detected(
    path: Path, tmp_path_factory: pytest.TempPathFactory, begun: str
) -> None:
    other = tmp_path_factory.mktemp("other") / "s.db"
    async with aclosing(SqliteStorage(path)) as storage:
        await storage.apply("default", [PutTrace(make_trace(1))])
        if begun == "a copy":
            upkeep.backup(path, other)
        else:
            async with aclosing(SqliteStorage(other)) as second:
                await second.apply("default", [PutTrace(make_trace(2))])
        content = b"" if begun == "an empty file" else await anyio.Path(other).read_bytes()
        await lose(storage, path, content)
        if begun == "a copy":
            assert await numbers(storage) == [1]
            return
        for _ in range(2):
            for asked in (storage.apply("default", [PutTrace(make_trace(3))]), numbers(storage)):
                with pytest.raises(StorageUnavailable, match="was replaced while it was in use"):
                    await asked
        assert await anyio.Path(path).read_bytes() == content
        await storage.aclose()
        assert await numbers(storage) == ([] if begun == "an empty file" else [2])


async def test_a_read_by_id_does_not_wait_for_another_opener_of_the_file(path: Path) -> None:
    slow, opens, asked = threading.Event(), threading.Event(), []

    def opening(path: str) -> sqlite3.Connection:
        if threading.current_thread() is not threading.main_thread():
            opens.set()
            slow.wait(30)
        asked.append(threading.current_thread())
        return connect(path)

    async with aclosing(SqliteStorage(path, connect=opening)) as storage:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(storage.apply, "default", [PutTrace(make_trace(1))])
            await anyio.to_thread.run_sync(opens.wait)
            assert await storage.read("default", TraceById(make_trace(1).id)) is None
            assert asked == [threading.main_thread()], "the writer still opens it"
            slow.set()
        assert await numbers(storage) == [1]


async def test_cancelling_a_query_interrupts_no_other(path: Path) -> None:
    begun = threading.Event()
    stopped: list[str] = []

    def slow(path: str) -> sqlite3.Connection:
        connection = connect(path)

        def first() -> int:
            begun.set()
            return 1

        connection.create_function("first", 0, first)
        return connection

    endless = "WITH RECURSIVE n(x) AS (SELECT first() UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n"

    def ask(connection: Any) -> None:
        try:
            connection.execute(endless).fetchone()
        except sqlite3.Error as error:
            stopped.append(str(error))
            raise

    async with aclosing(SqliteStorage(path, connect=slow)) as storage:
        await storage.apply("default", [PutTrace(make_trace(1))])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(storage._run, ask)
            await anyio.to_thread.run_sync(begun.wait)
            tasks.cancel_scope.cancel()
        while not stopped:  # it ends soon
            assert await numbers(storage) == [1]
        assert stopped == ["interrupted"]


def asking_for_ever(storage: SqliteStorage) -> threading.Thread:
    """A thread whose query goes on until it is interrupted, and then is asked again."""
    begun = threading.Event()
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n"

    def ask(connection: Any) -> None:
        if begun.is_set():
            return
        begun.set()
        connection.execute(endless).fetchone()

    def read() -> None:
        with suppress(StorageUnavailable):
            storage._connections.read(ask)

    thread = threading.Thread(target=read)
    thread.start()
    assert begun.wait(30)
    return thread


async def test_a_fork_interrupts_readers_which_then_retry(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "LONGEST_QUIET_S", 5.0)
    async with aclosing(SqliteStorage(path)) as storage:
        await storage.apply("default", [PutTrace(make_trace(1))])
        thread = asking_for_ever(storage)
        storage._connections.quiet()
        assert caplog.text == ""
        storage._connections.resume()
        thread.join()
        assert await numbers(storage) == [1]


async def test_a_child_forked_during_a_transaction_does_not_touch_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "LONGEST_QUIET_S", 0.0)
    storage = SqliteStorage(path)
    await storage.apply("default", [PutTrace(make_trace(1))])
    thread = asking_for_ever(storage)
    in_use = [*storage._connections._in_use]
    storage._connections.quiet()
    assert "was in use at a fork; the child process cannot use it" in caplog.text
    storage._connections.renew()  # what a child does
    with pytest.raises(StorageUnavailable, match="was forked during a transaction"):
        await numbers(storage)
    while thread.is_alive():
        in_use[0].interrupt()  # does nothing before the query has begun
        thread.join(0.05)


async def test_a_sweep_that_cannot_remove_its_rows_ends(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with aclosing(SqliteStorage(path)) as storage:
        await storage.apply("default", [PutTrace(make_trace(1))])
        monkeypatch.setattr("routewright.backends.storage.tables.upkeep.remove_old", lambda old, connection: 0)
        with pytest.raises(StorageCorrupt, match="expired traces cannot be removed; run 'routewright store check'"):
            await storage.sweep(NOW + 60 * DAY_S)


async def test_a_large_removal_pauses_for_other_processes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[float] = []
    monkeypatch.setattr("routewright.backends.storage.sqlite.writer.time.sleep", paused.append)
    async with aclosing(SqliteStorage(path)) as storage:
        await storage.apply("default", [PutTrace(make_trace(number)) for number in range(250)])
        assert paused == []
        assert await storage.sweep(NOW + 60 * DAY_S) == 250
        await storage.apply("default", [PutTrace(make_trace(1))])
    assert len(paused) == 3
    assert all(0 < each <= writer.LONGEST_PAUSE_S for each in paused)


async def test_lists_and_removals_read_no_content(path: Path) -> None:
    said = Content(output="said " * 1_000)
    told = Told()
    async with aclosing(SqliteStorage(path, connect=told.connect)) as storage:
        puts = [PutTrace(make_trace(number, content=said)) for number in range(5)]
        await storage.apply("default", puts)
        assert await storage.scan("default", Traces(), after=None, limit=1) == [puts[4].trace]
        told.statements.clear()
        assert await numbers(storage) == [0, 1, 2, 3, 4]
        await storage.apply("default", [DeleteTraces(id=make_trace(1).id)])
        assert await storage.sweep(NOW + 60 * DAY_S) == 4
        assert not [sql for sql in told.statements if "content" in sql or "SELECT *" in sql]
        await storage.apply("default", puts)
        with closing(connect(str(path))) as connection:
            (bodies,) = connection.execute("SELECT count(*) FROM body WHERE instr(trace, 'said said')").fetchone()
        assert bodies == 0


# The log, and what is deleted


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what a thread does by itself."""
    with anyio.fail_after(30):
        while not holds():  # noqa: ASYNC110  # a thread tells nobody
            await anyio.sleep(0.001)


async def test_a_fast_growing_log_is_checkpointed_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "LOG_BYTES", 300_000)
    monkeypatch.setattr(keeper, "LOOK_S", 0.0)
    monkeypatch.setattr(keeper, "EVERY_S", 90.0)
    told = Told()
    async with aclosing(SqliteStorage(path, connect=told.connect)) as storage:
        put = PutTrace(make_trace(1, metadata={"x": "x" * 8_000}))
        while not log_bytes(path) > 600_000:
            assert told.statements.count("PRAGMA wal_checkpoint(RESTART)") == 0
            await storage.apply("default", [put])
        with anyio.fail_after(30):
            while told.statements.count("PRAGMA wal_checkpoint(RESTART)") < 3:
                await storage.apply("default", [put])


async def test_a_log_blocked_by_a_reader_is_checkpointed_afterwards(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"LOG_BYTES": 100_000, "MAX_LOG_BYTES": 400_000, "EVERY_S": 0.001, "IDLE_S": 90.0}.items():
        monkeypatch.setattr(keeper, name, value)
    monkeypatch.setattr(keeper, "READERS_MS", 1)
    monkeypatch.setattr(keeper, "AGAIN_S", 0.01)
    async with aclosing(SqliteStorage(path)) as storage:
        await storage.apply("default", [PutTrace(make_trace(0))])
        with reading(path):
            for number in range(100):
                await storage.apply("default", [PutTrace(make_trace(number, metadata={"x": "x" * 8_000}))])
            assert log_bytes(path) > 1_000_000
        await until(lambda: log_bytes(path) < 400_000)  # by itself, without another write; roll-ups may follow


def log_bytes(path: Path) -> int:
    return os.stat(f"{path}-wal").st_size if os.path.exists(f"{path}-wal") else 0


def canaries(path: Path) -> dict[str, int]:
    return {file.name: file.read_bytes().count(b"CANARY") for file in path.parent.iterdir()}


def telltale(rng: Random, number: int, **given: Any) -> PutTrace:
    """A trace with something in it that must be gone when it is; traces of any length, some of several pages."""
    metadata = {"team": f"CANARY-{number}" + "x" * rng.choice((0, 10, 300, 3_000, 9_000)), "secret": "yes"}
    facts = {"decision_input": None, "metadata": metadata, "error": "CANARY", "policy_id": "CANARY"} | given
    return PutTrace(make_trace(number, **facts), rollup_keys=("team",))


async def test_deleted_rows_leave_no_bytes_in_the_files(path: Path, full: bool) -> None:
    rng = Random(20261121)
    async with aclosing(SqliteStorage(path)) as storage:
        for _ in range(400 if full else 4):
            puts = [telltale(rng, rng.randrange(300)) for _ in range(10)]
            puts += [PutTrace(make_trace(rng.randrange(300, 600), metadata={"team": "x" * 300})) for _ in range(10)]
            said = [PutFeedback(put.trace.id, 1.0, "CANARY", 0.0) for put in puts[:3]]
            await storage.apply("default", [*puts, *said])
            assert sum(canaries(path).values()) > 0
            await storage.apply("default", [DeleteTraces(terms=(Term("metadata.secret", "=", "yes"),), limit=8)])
        await storage.apply("default", [DeleteTraces(terms=(Term("metadata.secret", "=", "yes"),))])
        assert canaries(path) == dict.fromkeys(("traces.db", "traces.db-wal", "traces.db-shm", "traces.db-keep"), 0)


async def test_swept_rows_leave_no_bytes_in_the_files(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "LOG_BYTES", 10**9)
    rng = Random(20261121)
    async with aclosing(SqliteStorage(path)) as storage:
        for number in range(60):
            given = {
                "created_at": f"2026-11-{10 + number % 15}T00:00:00.000Z",
                "error": "CANARY",
                "policy_id": "CANARY",
            }
            put = telltale(rng, number, **given)
            said = PutFeedback(put.trace.id, 1.0, "CANARY", 0.0)
            await storage.apply("default", [PutTrace(put.trace), said])  # not counted by what it tells
        await storage.apply(SYSTEM_ACCOUNT, [SetRetention(production_s=DAY_S)])
        assert await storage.sweep(NOW + 2 * DAY_S) == 60
        assert canaries(path) == dict.fromkeys(("traces.db", "traces.db-wal", "traces.db-shm", "traces.db-keep"), 0)


async def test_rows_deleted_during_a_read_are_erased_soon_after(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "READERS_MS", 1)
    monkeypatch.setattr(keeper, "EVERY_S", 0.01)
    async with aclosing(SqliteStorage(path)) as storage:
        await storage.apply("default", [telltale(Random(1), 1)])
        with reading(path):
            await storage.apply("default", [DeleteTraces()])
            monkeypatch.setattr(keeper, "IDLE_S", 0.0)  # without another write
            assert sum(canaries(path).values()) > 0
        await until(lambda: sum(canaries(path).values()) == 0)


async def test_rows_deleted_during_a_read_are_erased_on_close(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "READERS_MS", 1)
    monkeypatch.setattr(keeper, "EVERY_S", 90.0)
    async with aclosing(SqliteStorage(path)) as other:
        await numbers(other)  # so that the log stays
        async with aclosing(SqliteStorage(path)) as storage:
            await storage.apply("default", [telltale(Random(1), 1)])
            with reading(path):
                await storage.apply("default", [DeleteTraces()])
            assert sum(canaries(path).values()) > 0
        assert sum(canaries(path).values()) == 0


@pytest.mark.parametrize("size", [0, 10**9])
async def test_a_small_file_is_vacuumed_once_after_a_deletion(
    path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "VACUUM_BYTES", size)
    monkeypatch.setattr(keeper, "AGAIN_S", 0.0)
    told = Told()
    async with aclosing(SqliteStorage(path, connect=told.connect)) as storage:
        await storage.apply("default", [PutTrace(make_trace(number)) for number in range(10)])
        await storage.apply("default", [DeleteTraces(id=make_trace(1).id)])
        await storage.apply("default", [PutTrace(make_trace(20))])
    assert told.statements.count("VACUUM") == (1 if size else 0)
    assert told.statements.count("PRAGMA secure_delete = ON") > 0


async def test_failing_to_start_the_thread_is_reported_and_retried(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with aclosing(SqliteStorage(path)) as storage:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
            with pytest.raises(StorageUnavailable, match="cannot be written to now: can't start new thread"):
                await storage.apply("default", [PutTrace(make_trace(1))])
        await storage.apply("default", [PutTrace(make_trace(2))])
        found = await storage.scan("default", TraceItems(), after=None, limit=9)
        assert [item.id for item in found] == [make_trace(2).id]


async def test_few_connections_stay_open_after_many_concurrent_reads(path: Path) -> None:
    opened: list[Closable] = []

    def counted(path: str) -> sqlite3.Connection:
        opened.append(sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=Closable))
        return opened[-1]

    together = threading.Barrier(10)
    async with aclosing(SqliteStorage(path, connect=counted)) as storage:
        await storage.apply("default", [PutTrace(make_trace(1))])
        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(storage._run, lambda connection: together.wait(30))
        assert len(opened) == 11
        assert sum(not each.is_closed for each in opened) <= 1 + 4


async def test_a_refusal_is_not_answered_if_its_transaction_is_rolled_back(path: Path) -> None:
    # it may rest on what another request of the same transaction has written, which is gone
    def refused(connection: Any) -> None:
        raise PreconditionFailed("no such trace")

    def full(connection: Any) -> None:
        connection.execute("PRAGMA max_page_count = 1").fetchall()
        connection.execute("CREATE TABLE large AS SELECT zeroblob(9000000)")

    both = [writer.Request(work) for work in (refused, full)]
    async with aclosing(SqliteStorage(path)) as storage:
        await storage.apply("default", [PutTrace(make_trace(1))])
        storage._writer._run(both)
        assert [type(each.error) for each in both] == [StorageFull, StorageFull]


async def test_one_process_at_a_time_checkpoints_the_log(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "LOG_BYTES", 50_000)
    monkeypatch.setattr(keeper, "EVERY_S", 0.001)
    moves, may_go_on = threading.Event(), threading.Event()

    def stopping(path: str) -> sqlite3.Connection:
        def stop(sql: str) -> None:
            if sql.startswith("PRAGMA wal_checkpoint"):
                moves.set()
                may_go_on.wait(30)

        connection = connect(path)
        connection.set_trace_callback(stop)
        return connection

    told = Told()
    async with (
        aclosing(SqliteStorage(path, connect=stopping)) as one,
        aclosing(SqliteStorage(path, clock=FakeClock(), connect=told.connect)) as other,
    ):
        await one.apply("default", [PutTrace(make_trace(number)) for number in range(100)])
        await until(moves.is_set)
        await other.apply("default", [PutTrace(make_trace(number)) for number in range(100, 200)])
        assert not [sql for sql in told.statements if "checkpoint(" in sql]
        may_go_on.set()
        await anyio.to_thread.run_sync(one._keeper.close)
        await other.apply("default", [PutTrace(make_trace(number)) for number in range(200, 300)])
        assert [sql for sql in told.statements if "checkpoint(" in sql] == ["PRAGMA wal_checkpoint(RESTART)"]


async def test_a_sweep_keeps_a_trace_that_replaced_an_expired_one_meanwhile(path: Path) -> None:
    old, new = (make_trace(1, created_at=f"2026-11-{day}T00:00:00.000Z", id=f"tr_{day}") for day in (10, 23))
    async with aclosing(SqliteStorage(path)) as storage:
        await storage.apply(SYSTEM_ACCOUNT, [SetRetention(production_s=7 * DAY_S)])
        await storage.apply("default", [PutTrace(old)])
        with closing(connect(str(path))) as connection:
            found = swept.find_old_traces(NOW, connection)
            await storage.apply("default", [DeleteTraces()])
            await storage.apply("default", [PutTrace(new)])  # SQLite gives it the number that is free
            assert [swept.remove_old(each, connection) for each in found] == [0]
        assert await storage.read("default", TraceById(new.id)) == new


async def test_a_sweep_removes_models_without_an_attempt_in_a_month(path: Path) -> None:
    async with aclosing(SqliteStorage(path)) as storage:
        for day, model in enumerate(("old", "new")):
            learned = Learned(NOW + day * DAY_S, good=1.0)
            await storage.apply(SYSTEM_ACCOUNT, [AddLearned("production", {model: learned})])
        for days, left in ((30.0, ["new", "old"]), (30.5, ["new"]), (31.5, [])):
            assert await storage.sweep(NOW + days * DAY_S) == 0
            found = await storage.read(SYSTEM_ACCOUNT, LearnedSince("production", 0))
            assert [each.model for each in found] == left
