"""The SQLite file: its version, backup, check and upgrade."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from routewright.backends.storage.sqlite import SqliteStorage, schema, upkeep
from routewright.backends.storage.sqlite.file import connect
from routewright.errors import (
    InternalError,
    NotFound,
    StorageCorrupt,
    StorageFull,
    StorageUnavailable,
    StorageVersion,
    ValidationFailed,
)
from routewright.wire import (
    Decisions,
    DeleteTraces,
    PutAccount,
    PutKey,
    PutTrace,
    RevokeKey,
    TraceById,
    TraceItems,
    Traces,
)
from tests.contracts.storage.samples import AT, make_account, make_key, make_trace, spans_of_each_kind

from .store_audit import assert_sound, refusal_of

pytestmark = pytest.mark.anyio

VERSION = schema.latest()
NEXT = "CREATE TABLE note (body TEXT NOT NULL);\nINSERT INTO note VALUES ('made');\n"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a hundred traces, closed."""
    path = tmp_path / "traces.db"
    anyio.run(_fill, path)
    return path


async def _fill(path: Path) -> None:
    spans = spans_of_each_kind()
    async with aclosing(SqliteStorage(path)) as storage:
        await storage.apply("default", [PutTrace(make_trace(number, spans=spans)) for number in range(100)])


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As if this routewright were newer by one migration."""
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, NEXT))
    return monkeypatch


def execute(path: Path, *statements: str) -> None:
    with closing(connect(str(path))) as connection:
        for sql in statements:
            connection.execute(sql)


def ask(path: Path, sql: str) -> Any:
    with closing(connect(str(path))) as connection:
        return connection.execute(sql).fetchone()[0]


def read(path: Path) -> bytes:
    return path.read_bytes()


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


async def refused(path: Path, match: str) -> None:
    async with aclosing(SqliteStorage(path)) as storage:
        assert not (await refusal_of(storage, StorageVersion, match)).retryable


# Versions


async def test_a_file_has_an_application_id(path: Path) -> None:
    assert ask(path, "PRAGMA application_id") == schema.APPLICATION_ID
    assert ask(path, "PRAGMA user_version") == VERSION
    assert ask(path, "PRAGMA journal_mode") == "wal"
    assert ask(path, "PRAGMA page_size") == 4096


async def test_a_newer_version_is_refused_unchanged(path: Path) -> None:
    execute(path, f"PRAGMA user_version = {VERSION + 1}")
    before = read(path)
    said = f"is of version {VERSION + 1}, and this routewright knows versions up to {VERSION}; install a newer one"
    await refused(path, said)
    for does in (upkeep.upgrade, upkeep.check):
        with pytest.raises(StorageVersion, match=said):
            does(path)
    assert read(path) == before
    assert names(path.parent) == {"traces.db"}


async def test_an_older_version_is_refused_with_a_hint(path: Path, later: pytest.MonkeyPatch) -> None:
    before = read(path)
    await refused(
        path, f"version {VERSION}, this routewright needs {VERSION + 1}; .*'routewright store upgrade {path}'"
    )
    assert read(path) == before
    assert names(path.parent) == {"traces.db"}


async def test_a_storage_open_during_an_upgrade_stops_writing(path: Path) -> None:
    async with aclosing(SqliteStorage(path)) as storage:
        await storage.apply("default", [PutTrace(make_trace(200))])
        execute(path, f"PRAGMA user_version = {VERSION + 1}")
        with pytest.raises(StorageVersion):
            await storage.apply("default", [PutTrace(make_trace(201))])
    assert ask(path, "SELECT count(*) FROM trace") == 101


# Upgrade


async def test_an_upgrade_creates_a_backup_first(path: Path, later: pytest.MonkeyPatch) -> None:
    kept = upkeep.upgrade(path)
    assert kept is not None
    assert kept.parent == path.parent
    assert names(path.parent) == {"traces.db", kept.name}
    assert ask(kept, "PRAGMA user_version") == VERSION
    assert ask(kept, "SELECT count(*) FROM trace") == 100
    assert ask(path, "SELECT body FROM note") == "made"
    assert_sound(path)
    async with aclosing(SqliteStorage(path)) as storage:
        await storage.apply("default", [PutTrace(make_trace(200))])
        assert len(await storage.scan("default", TraceItems(), after=None, limit=200)) == 101
    assert upkeep.upgrade(path) is None


def test_an_upgrade_is_synced_without_checkpoints(path: Path, later: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def told(path: str) -> sqlite3.Connection:
        connection = connect(path)
        connection.set_trace_callback(said.append)
        return connection

    later.setattr(upkeep, "connect", told)
    upkeep.upgrade(path)
    begins = said.index("BEGIN EXCLUSIVE")
    assert {"PRAGMA synchronous = FULL", "PRAGMA wal_autocheckpoint = 0"} <= {*said[:begins]}


def test_only_one_of_two_concurrent_upgrades_runs(path: Path, later: pytest.MonkeyPatch) -> None:
    backup = upkeep.backup

    def meanwhile(source: Path, target: Path) -> None:
        backup(source, target)
        later.setattr(upkeep, "backup", backup)
        assert upkeep.upgrade(path) is not None

    later.setattr(upkeep, "backup", meanwhile)
    assert upkeep.upgrade(path) is not None
    assert ask(path, "SELECT count(*) FROM note") == 1
    assert ask(path, "PRAGMA user_version") == VERSION + 1


def test_an_upgrade_of_a_store_in_use_is_refused(path: Path, later: pytest.MonkeyPatch) -> None:
    later.setattr(upkeep, "BUSY_MS", 10)
    with closing(connect(str(path))) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(InternalError, match="another process has been writing"):
            upkeep.upgrade(path)
        other.execute("ROLLBACK")
    assert upkeep.upgrade(path) is not None


# Backup


async def test_a_backup_is_a_complete_store_in_one_file(path: Path) -> None:
    target = path.with_name("copy.db")
    async with aclosing(SqliteStorage(path)) as storage:
        await storage.apply("default", [PutTrace(make_trace(200))])  # in the log as yet
        upkeep.backup(path, target)
        await storage.apply("default", [PutTrace(make_trace(201))])
    assert names(path.parent) == {"traces.db", "copy.db"}
    assert ask(target, "PRAGMA journal_mode") == "delete", "it can be read where nothing may be written"
    async with aclosing(SqliteStorage(target)) as copy:
        found = await copy.scan("default", TraceItems(), after=None, limit=200)
        assert [item.id for item in found] == [make_trace(number).id for number in (200, *reversed(range(100)))]
    assert_sound(target)


def test_a_backup_overwrites_no_existing_file(path: Path) -> None:
    target = path.with_name("copy.db")
    target.write_text("precious")
    with pytest.raises(ValidationFailed, match=r"copy\.db exists; name a new file"):
        upkeep.backup(path, target)
    assert target.read_text() == "precious"
    assert names(path.parent) == {"traces.db", "copy.db"}


def test_a_backup_overwrites_no_file_created_meanwhile(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, link = path.with_name("copy.db"), os.link

    def late(*names: Any) -> None:
        target.write_text("precious")
        link(*names)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(ValidationFailed, match="name a new file"):
        upkeep.backup(path, target)
    assert target.read_text() == "precious"
    assert names(path.parent) == {"traces.db", "copy.db"}


def test_an_error_of_a_backups_target_names_the_target(path: Path) -> None:
    target = path.parent / "missing" / "copy.db"
    with pytest.raises(StorageUnavailable, match=rf"^{target}: it cannot be opened"):
        upkeep.backup(path, target)


def test_a_backup_without_hard_links_replaces_no_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = path.with_name("copy.db")

    def refused(*names: Any) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    def late(*names: Any) -> None:
        target.write_text("precious")
        refused()

    monkeypatch.setattr(os, "link", refused)
    upkeep.backup(path, target)
    assert_sound(target)
    target.unlink()
    monkeypatch.setattr(os, "link", late)
    with pytest.raises(ValidationFailed, match="name a new file"):
        upkeep.backup(path, target)
    assert target.read_text() == "precious"
    assert names(path.parent) == {"traces.db", "copy.db"}


@pytest.mark.parametrize("work", [upkeep.check, upkeep.upgrade, lambda path: upkeep.backup(path, path / "copy.db")])
def test_maintenance_creates_no_missing_store(tmp_path: Path, work: Any) -> None:
    with pytest.raises(NotFound, match="there is no store"):
        work(tmp_path / "none.db")
    assert names(tmp_path) == set()


@pytest.mark.parametrize("content", [b"", b"a diary " * 5_000])
def test_maintenance_refuses_a_file_that_is_not_a_store(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "diary"
    path.write_bytes(content)
    for work in (upkeep.check, upkeep.upgrade, lambda path: upkeep.backup(path, tmp_path / "copy.db")):
        with pytest.raises(StorageCorrupt, match="store of routewright"):
            work(path)
    assert path.read_bytes() == content
    assert names(tmp_path) == {"diary"}


def test_a_backup_that_fails_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def small(path: str) -> sqlite3.Connection:
        connection = connect(path)
        if ".part-" in path:
            connection.execute("PRAGMA max_page_count = 3").fetchall()
        return connection

    monkeypatch.setattr(upkeep, "connect", small)
    with pytest.raises(StorageFull):
        upkeep.backup(path, path.with_name("copy.db"))
    assert names(path.parent) == {"traces.db"}


async def test_a_backup_during_writes_is_consistent(path: Path) -> None:
    stop = threading.Event()
    written = [100]

    def write() -> None:
        async def put() -> None:
            async with aclosing(SqliteStorage(path)) as storage:
                while not stop.is_set():
                    batch = [PutTrace(make_trace(number)) for number in range(written[0], written[0] + 7)]
                    await storage.apply("default", batch)
                    written[0] += 7

        anyio.run(put)

    async with anyio.create_task_group() as group:
        group.start_soon(anyio.to_thread.run_sync, write)
        for number in range(5):
            target, least = path.with_name(f"copy{number}.db"), written[0]
            await anyio.to_thread.run_sync(upkeep.backup, path, target)
            assert_sound(target)
            traces = ask(target, "SELECT count(*) FROM trace")
            assert least <= traces <= written[0] + 7
            assert (traces - 100) % 7 == 0, "batches are whole"
        stop.set()
    assert written[0] > 100
    assert not [name for name in names(path.parent) if "part" in name]


# Check


def test_a_sound_store_has_no_problems(path: Path) -> None:
    assert upkeep.check(path) == (VERSION, 100, path.stat().st_size, [])
    assert names(path.parent) == {"traces.db"}


async def test_a_revoked_key_is_no_problem(tmp_path: Path) -> None:
    store = tmp_path / "keys.db"
    async with aclosing(SqliteStorage(store)) as storage:
        await storage.apply("acme", [PutAccount(make_account()), PutKey(make_key())])
        await storage.apply("acme", [RevokeKey("k", AT)])
    assert upkeep.check(store).problems == []
    with closing(sqlite3.connect(store)) as connection, connection:
        connection.execute("UPDATE key SET compromised_from = NULL")
    assert upkeep.check(store).problems == ["key 'k' of 'acme' cannot be read"]


@pytest.mark.parametrize("page", range(1, 12))
def test_damage_is_found_in_any_page(path: Path, page: int) -> None:
    with path.open("r+b") as file:
        file.seek(8192 * page)
        file.write(b"\xa5" * 4_000)
    found = upkeep.check(path)
    assert found.problems
    assert found.bytes == path.stat().st_size


def test_an_index_that_does_not_match_its_table_is_found(path: Path) -> None:
    with closing(connect(str(path))) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        root = "SELECT rootpage FROM sqlite_master WHERE name = 'trace_by_status'"
        connection.execute(f"UPDATE sqlite_master SET rootpage = ({root}) WHERE name = 'trace_by_id'")
    assert upkeep.check(path).problems


@pytest.mark.parametrize("body", ["x''", "x'7b7d'", "CAST('not json' AS BLOB)", "x'ff'", "7"])
async def test_reading_a_damaged_trace_names_it_and_it_can_be_deleted(path: Path, body: str) -> None:
    one = make_trace(7)
    execute(path, f"UPDATE body SET trace = {body} WHERE n = (SELECT n FROM trace WHERE id = '{one.id}')")
    async with aclosing(SqliteStorage(path)) as storage:
        for asked in (TraceItems(), Traces()):
            with pytest.raises(StorageCorrupt, match=f"trace '{one.id}' is damaged; delete it by its id"):
                await storage.scan("default", asked, after=None, limit=200)
        with pytest.raises(StorageCorrupt, match=one.id):
            await storage.read("default", TraceById(one.id))
        records = await storage.scan("default", Decisions(), after=None, limit=200)
        assert [record.key for record in records if record.decision_input is None] == [one.key]  # no simulation ends
        (written,) = await storage.apply("default", [DeleteTraces(id=one.id, limit=1)])
        assert written.count == 1
        assert len(await storage.scan("default", Traces(), after=None, limit=200)) == 99
    assert upkeep.check(path)[1::2] == (99, [])
    assert one.id.encode() not in read(path)


async def test_a_damaged_trace_is_swept_when_it_expires_and_can_be_put_again(path: Path) -> None:
    damaged = f"('{make_trace(7).id}', '{make_trace(8).id}')"
    execute(path, f"UPDATE body SET trace = x'' WHERE n IN (SELECT n FROM trace WHERE id IN {damaged})")
    async with aclosing(SqliteStorage(path)) as storage:
        await storage.apply("default", [PutTrace(make_trace(8))])
        assert await storage.read("default", TraceById(make_trace(8).id)) == make_trace(8)
        assert await storage.sweep(4e9) == 100
    assert upkeep.check(path)[1::2] == (0, [])


def test_a_trace_under_another_traces_id_is_named(path: Path) -> None:
    one, other = make_trace(7).id, make_trace(8).id
    numbered = "(SELECT n FROM trace WHERE id = '{}')"
    body_of = f"(SELECT trace FROM body WHERE n = {numbered.format(other)})"
    execute(path, f"UPDATE body SET trace = {body_of} WHERE n = {numbered.format(one)}")
    (problem,) = upkeep.check(path).problems
    assert f"trace '{one}'" in problem


def test_the_first_twenty_of_many_problems_are_listed(path: Path) -> None:
    execute(path, "UPDATE body SET trace = x''")
    assert len(upkeep.check(path).problems) == 20


IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
OTHERS_WRITE = "other users can write {file}; run 'chmod go-w {file}', and check what is in it"
NO_FILE = "{file} is not a regular file; move it away"


def link(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.symlink_to(file.with_name("another"))


def lend(file: Path) -> None:
    file.chmod(0o660)
    os.chown(file, -1, 12_345)


def pipe(file: Path) -> None:
    file.unlink(missing_ok=True)
    os.mkfifo(file)


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-keep"])
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda file: file.chmod(0o606), OTHERS_WRITE),
        (lend, OTHERS_WRITE),
        (
            lambda file: os.chown(file, 12_345, -1),
            "{file} belongs to user 12345; run as that user, or run 'chown 0 {file}'",
        ),
        (link, "{file} is a symbolic link; put the file itself in its place"),
        (pipe, NO_FILE),
    ],
    ids=["all may write", "a group may write", "another owner", "link", "pipe"],
)
async def test_a_file_of_the_store_that_others_can_change_is_refused(
    path: Path, suffix: str, spoil: Any, said: str
) -> None:
    if not IS_ROOT:
        pytest.skip("only root can give files away")
    file = Path(f"{path}{suffix}")
    storage = SqliteStorage(path)  # first: a link in its place is then followed once and for all
    await anyio.to_thread.run_sync(file.touch)
    spoil(file)
    async with aclosing(storage):
        with pytest.raises(StorageUnavailable) as raised:
            await storage.scan("default", Traces(), after=None, limit=1)
    assert str(raised.value) == said.format(file=file)


async def test_a_store_that_the_group_of_this_process_may_write_is_used(path: Path) -> None:
    """Volumes of containers are mounted so."""
    os.chmod(path, 0o660)
    if IS_ROOT:
        os.chown(path, 12_345, os.getegid())
    async with aclosing(SqliteStorage(path)) as storage:
        assert len(await storage.scan("default", Traces(), after=None, limit=200)) == 100
