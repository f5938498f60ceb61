"""SQLite on a full, failing, read-only or locked disk: a typed error, no partial writes, and recovery."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import ExitStack, aclosing, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pytest

from routewright.backends.storage.sqlite import SqliteStorage, upkeep
from routewright.backends.storage.sqlite.file import connect
from routewright.errors import (
    InternalError,
    RouterError,
    StorageCorrupt,
    StorageFull,
    StorageReadOnly,
    StorageUnavailable,
)
from routewright.protocols import Storage
from routewright.testing import FakeClock
from routewright.wire import (
    SYSTEM_ACCOUNT,
    DeleteTraces,
    HealthSnapshot,
    ModelHealth,
    PutFeedback,
    PutSnapshot,
    PutTrace,
    SetRetention,
    TraceById,
    TraceItems,
    UsageCounts,
    Write,
)
from tests.contracts.storage.samples import make_trace, spans_of_each_kind

from .faulty_connection import Failing
from .processes import run, running
from .store_audit import assert_sound, refusal_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # the contract suite runs on trio, too


Action = Callable[[Storage], Any]

FAULTS: dict[str, tuple[int, type[RouterError]]] = {
    "full": (sqlite3.SQLITE_FULL, StorageFull),
    "i/o": (sqlite3.SQLITE_IOERR, StorageUnavailable),
    "i/o of a sync": (sqlite3.SQLITE_IOERR_FSYNC, StorageUnavailable),
    "read-only": (sqlite3.SQLITE_READONLY, StorageReadOnly),
    "busy": (sqlite3.SQLITE_BUSY, StorageUnavailable),
    "memory": (sqlite3.SQLITE_NOMEM, StorageUnavailable),
    "damaged": (sqlite3.SQLITE_CORRUPT, StorageCorrupt),
    "cannot open": (sqlite3.SQLITE_CANTOPEN, StorageUnavailable),
    "a statement refused": (sqlite3.SQLITE_ERROR, InternalError),
}
NOW = 1_795_478_400.0
BATCH: list[Write] = [
    PutTrace(make_trace(1, spans=spans_of_each_kind(), metadata={"team": "ads"}), rollup_keys=("team",)),
    PutTrace(make_trace(2)),
    PutFeedback(make_trace(2).id, 1.0, None, 0.0, expect="present"),
    PutTrace(make_trace(3), durability="committed"),
]


async def contents(storage: Storage) -> object:
    usage = UsageCounts(first="2026-11-01", last="2026-11-30", group_by="metadata.team")
    return await storage.scan("default", TraceItems(), after=None, limit=100), await storage.read("default", usage)


async def put_batch(storage: Storage) -> None:
    await storage.apply("default", BATCH)


async def put_snapshots(storage: Storage) -> None:
    models = {f"a/{number}": ModelHealth() for number in range(9)}
    chain = [HealthSnapshot(f"hea_{number}", models | {"a/0": ModelHealth(stability=number)}) for number in range(3)]
    await storage.apply(SYSTEM_ACCOUNT, [PutSnapshot(snapshot) for snapshot in chain])


async def delete(storage: Storage) -> None:
    await storage.apply("default", [DeleteTraces()])


async def sweep(storage: Storage) -> None:
    await storage.sweep(NOW + 90 * 24 * 3600)


ACTIONS = {"put": put_batch, "put snapshots": put_snapshots, "delete": delete, "sweep": sweep}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("fault", FAULTS)
def test_any_failing_statement_is_a_typed_error_and_leaves_nothing_half_written(
    tmp_path: Path, fault: str, action: str, full: bool
) -> None:
    usual = ("full", "put")
    step = 1 if full else 9 if (fault, action) == usual else 19 if fault == "full" or action == "put" else 41
    for opened in (True, False) if step < 13 else (True,):
        failed, at = 0, 1 + list(FAULTS).index(fault) % step
        while anyio.run(_fail_at, tmp_path / "traces.db", at, fault, ACTIONS[action], opened):
            failed, at = failed + 1, at + step
        assert failed * step >= (20 if step < 13 else 1)


async def _fail_at(path: Path, at: int, fault: str, action: Action, opened: bool) -> bool:
    """Let a call fail. False: so many are not made."""
    code, kind = FAULTS[fault]
    await _copy_filled(path)
    failing = Failing(code)
    storage = SqliteStorage(path, busy_s=0.0, clock=FakeClock(), connect=failing)
    before = await contents(storage)
    if not opened:
        await storage.aclose()
    failing.at = at
    error = await _error_of(action, storage)
    met, failing.at = failing.at <= 0, 0
    if error is not None:
        assert type(error) is kind
        assert str(path) in str(error)
        assert error.__cause__ is failing.error
        if action is not sweep:  # which is several transactions
            assert await contents(storage) == before
    await storage.aclose()
    _check(path, action)
    await action(storage)
    await storage.aclose()
    _check(path, action)
    return met


async def _error_of(action: Action, storage: Storage) -> RouterError | None:
    try:
        await action(storage)
    except RouterError as error:
        return error
    return None


def _check(path: Path, action: Action) -> None:
    if action is sweep:  # the roll-ups count what is gone
        assert upkeep.check(path).problems == []
    else:
        assert_sound(path)


async def _copy_filled(path: Path) -> None:
    filled = path.with_suffix(".filled")
    if not filled.exists():
        await _fill(filled)
    shutil.copyfile(filled, path)


async def _fill(path: Path) -> None:
    async with aclosing(SqliteStorage(path, clock=FakeClock())) as storage:
        metadata = {"team": "search"}
        puts = [PutTrace(make_trace(number, metadata=metadata), rollup_keys=("team",)) for number in (1, 7, 8)]
        await storage.apply("default", [*puts, PutFeedback(make_trace(7).id, 1.0, None, 0.0)])
        await storage.apply(SYSTEM_ACCOUNT, [SetRetention(production_s=24 * 3600.0)])


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failure_while_a_file_is_created_can_be_recovered(tmp_path: Path, fault: str, full: bool) -> None:
    step = 1 if full else 5 if fault == "full" else 31
    at = 1 + list(FAULTS).index(fault) % step
    while anyio.run(_fail_to_make, tmp_path / f"{at}.db", at, fault):
        at += step
    assert at > 20


async def _fail_to_make(path: Path, at: int, fault: str) -> bool:
    code, kind = FAULTS[fault]
    failing = Failing(code)
    failing.at = at
    storage = SqliteStorage(path, busy_s=0.0, clock=FakeClock(), connect=failing)
    error = await _error_of(put_batch, storage)
    assert error is None or type(error) is kind
    met, failing.at = failing.at <= 0, 0
    await put_batch(storage)
    await storage.aclose()
    assert_sound(path)
    return met


# A disk that is really full


class Small:
    """``connect`` of a file that may have so many pages."""

    def __init__(self, pages: int) -> None:
        self.pages = pages

    def __call__(self, path: str) -> sqlite3.Connection:
        connection = connect(path)
        connection.execute(f"PRAGMA max_page_count = {self.pages}").fetchall()
        return connection


async def test_a_full_disk_loses_nothing_acknowledged_and_deleting_frees_space(tmp_path: Path) -> None:
    path = tmp_path / "traces.db"
    large = {"team": "x" * 6_000}
    async with aclosing(SqliteStorage(path, connect=Small(120))) as storage:
        kept = []
        for number in range(400):
            try:
                await storage.apply("default", [PutTrace(make_trace(number, metadata=large))])
            except StorageFull:
                break
            kept.append(make_trace(number).id)
        assert 10 < len(kept) < 400
        for _ in range(3):
            with pytest.raises(StorageFull):
                await storage.apply("default", [PutTrace(make_trace(1_000 + n, metadata=large)) for n in range(20)])
        found = await storage.scan("default", TraceItems(), after=None, limit=1_000)
        assert [item.id for item in found] == kept[::-1]
        (written,) = await storage.apply("default", [DeleteTraces(limit=len(kept) // 2)])
        assert written.count == len(kept) // 2
        await storage.apply("default", [PutTrace(make_trace(2_000, metadata=large))])
    assert_sound(path)


# A file, or a folder, that cannot be written to

READ_ONLY = """
    from routewright.errors import StorageUnavailable

    async def main():
        await put(SqliteStorage(sys.argv[1]), 0, 1)  # what is imported late is imported now
        if os.getuid() == 0:
            os.setuid(65534)
        for path in sys.argv[2:]:
            storage = SqliteStorage(path)
            try:
                await put(storage, 2, 1)
                print("written", end=" ")
            except StorageUnavailable as error:
                print(type(error).__name__, end=" ")
            try:
                print(await storage.read("default", TraceById(make_trace(1).id)) is not None)
            except StorageUnavailable as error:
                print(type(error).__name__)
    anyio.run(main)
"""


@pytest.mark.skipif(not hasattr(os, "setuid"), reason="no rights here")
def test_a_store_without_write_permission_is_read_only_and_unchanged() -> None:
    cases = [  # rights of folder and file, whether it is open elsewhere, results of a write and a read
        (0o777, 0o444, False, "StorageReadOnly True"),
        (0o777, 0o444, True, "StorageReadOnly True"),
        (0o555, 0o600, False, "StorageReadOnly StorageReadOnly"),
        (0o777, 0o666, False, "StorageUnavailable StorageUnavailable"),  # others could change it
        (0o555, 0o444, True, "StorageReadOnly True"),
        (0o777, 0o000, False, "StorageUnavailable StorageUnavailable"),
    ]
    with TemporaryDirectory() as place, ExitStack() as stack:  # pytest's own folder is closed to others
        root = Path(place)
        root.chmod(0o755)
        anyio.run(_fill, root / "filled.db")
        paths = [root / str(number) / "traces.db" for number in range(len(cases))]
        for path, (folder, file, is_open, _) in zip(paths, cases, strict=True):
            path.parent.mkdir()
            shutil.copyfile(root / "filled.db", path)
            if is_open:
                reader = stack.enter_context(closing(connect(str(path))))
                reader.execute("SELECT count(*) FROM trace").fetchone()
            for each in path.parent.iterdir():
                each.chmod(file)
                if file == 0o600:
                    os.chown(each, 65534, -1)
            path.parent.chmod(folder)
        said = run(READ_ONLY, root / "warm.db", *paths).split("\n")
        assert said == [results for *_, results in cases]
        for path in paths:
            path.parent.chmod(0o755)
            path.chmod(0o644)
            assert path.read_bytes() == (root / "filled.db").read_bytes()


# A file that another process locks


async def test_writes_wait_for_another_process_only_as_long_as_busy_s(tmp_path: Path) -> None:
    path = tmp_path / "traces.db"
    script = """
        from routewright.backends.storage.sqlite.file import connect
        connection = connect(sys.argv[1])
        connection.execute("BEGIN IMMEDIATE")
        say("locked")
        heard()
        connection.execute("ROLLBACK")
    """
    async with aclosing(SqliteStorage(path, busy_s=0.05)) as hasty, aclosing(SqliteStorage(path, busy_s=60)) as patient:
        await hasty.apply("default", [PutTrace(make_trace(1))])
        with running(script, path) as other:
            assert other.heard() == "locked"
            for _ in range(2):
                with pytest.raises(StorageUnavailable, match="another process has been writing for too long") as raised:
                    await hasty.apply("default", [PutTrace(make_trace(2))])
                assert raised.value.retryable
            assert await hasty.read("default", TraceById(make_trace(1).id)) is not None
            assert len(await hasty.scan("default", TraceItems(), after=None, limit=5)) == 1
            async with anyio.create_task_group() as group:
                group.start_soon(patient.apply, "default", [PutTrace(make_trace(3))])
                await anyio.wait_all_tasks_blocked()
                other.tell()
            await anyio.to_thread.run_sync(other.end)
        await hasty.apply("default", [PutTrace(make_trace(2))])
        assert len(await hasty.scan("default", TraceItems(), after=None, limit=5)) == 3


# Files that are no store


async def test_another_programs_file_is_refused_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "traces.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE diary (day TEXT)")
    before = path.read_bytes()
    async with aclosing(SqliteStorage(path)) as storage:
        await refusal_of(storage, StorageCorrupt, "no store of routewright; name another file")
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["traces.db"]


@pytest.mark.parametrize("name", ["none/traces.db", "."])
async def test_a_path_where_no_file_can_be_is_refused(tmp_path: Path, name: str) -> None:
    async with aclosing(SqliteStorage(tmp_path / name)) as storage:
        said = "is not a regular file" if name == "." else "it cannot be opened; check the file's"
        await refusal_of(storage, StorageUnavailable, said)


async def test_a_damaged_page_is_a_typed_error(tmp_path: Path) -> None:
    path = tmp_path / "traces.db"
    async with aclosing(SqliteStorage(path)) as storage:
        await storage.apply("default", [PutTrace(make_trace(number)) for number in range(200)])
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(b"\xff" * (path.stat().st_size - 8192))
    async with aclosing(SqliteStorage(path)) as storage:
        with pytest.raises(StorageCorrupt, match="it is damaged; run 'routewright store check'"):
            await storage.apply("default", BATCH)
        with pytest.raises(StorageCorrupt, match="it is damaged"):
            await storage.scan("default", TraceItems(), after=None, limit=5)
    with pytest.raises(StorageCorrupt):
        upkeep.backup(path, tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()


async def test_an_event_loop_never_waits_for_another_process_that_creates_the_file(tmp_path: Path) -> None:
    path, here, waits = tmp_path / "traces.db", threading.get_ident(), list[str]()

    class Listening(sqlite3.Connection):
        def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            if sql.startswith("PRAGMA busy_timeout") and threading.get_ident() == here:
                waits.append(sql)
            return super().execute(sql, parameters)

    def listening(name: str) -> sqlite3.Connection:
        options: dict[str, Any] = {"timeout": 0, "isolation_level": None, "check_same_thread": False}
        return sqlite3.connect(name, factory=Listening, **options)

    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        storage = SqliteStorage(path, busy_s=0.2, connect=listening)
        with pytest.raises(StorageUnavailable):
            await storage.read("default", TraceById("tr_1"))
    assert set(waits) == {"PRAGMA busy_timeout = 0"}
    assert await storage.read("default", TraceById("tr_1")) is None
    await storage.aclose()
