"""Maintenance of a store's file: backup, check and upgrade."""

from __future__ import annotations

import os
import re
import sqlite3
import stat
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from itertools import islice
from pathlib import Path

from routewright.backends.storage.tables.check import LIVE_DIGESTS, SHOWN, Check, problems_of
from routewright.backends.storage.tables.statements import Statements
from routewright.errors import NotFound, StorageCorrupt, StorageUnavailable, ValidationFailed

from .file import connect, make_file
from .schema import latest, migrate, supported_version, version_of
from .sync import fault_of, is_damage, is_transient, translate

BUSY_MS = 5_000
"""How long to wait for the locks of other processes."""

_MAX_FAULTS = 1_000_000
"""False reports must not hide others."""
_NULL = re.compile(r"NULL value in (\w+)\.(\w+)")
_NULLS = "SELECT 1 FROM {} WHERE typeof({}) = 'null' LIMIT 1"
"""Not by ``IS NULL``, which SQLite takes for false where the column is declared ``NOT NULL``."""
_BODIES = "SELECT trace.n, trace.id, body.trace, body.content FROM trace LEFT JOIN body USING (n)"
MISTAKEN = {
    table: f"SELECT account, name FROM {table} WHERE typeof(account) <> 'text' OR typeof(name) <> 'text'"
    + "".join(f" OR typeof({column}) <> 'integer'" for column in columns.split())
    for table, columns in (("purse", "spent granted told"), ("ledger", "cost charge credit"))
}
"""Queries for rows with values of a wrong type, of all accounts, by table."""


@contextmanager
def _open_store(path: Path) -> Iterator[sqlite3.Connection]:
    """Connect to a store, and wait for the locks of other processes. Raises ``NotFound``."""
    if not path.is_file():
        raise NotFound(f"there is no store {path}")
    with translate(path), closing(connect(str(path))) as connection:
        connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
        yield connection


def backup(path: Path, target: Path) -> None:
    """Copy a consistent snapshot of a store; other processes can write. ``target`` appears complete or not at all.

    Raises ``NotFound``, ``ValidationFailed`` if the target exists, and kinds of ``StorageUnavailable``.
    """
    # Copying the file would miss the commits that are still in its log, and a copy that was stopped halfway looks like
    # a store. So SQLite copies a snapshot into a file beside the target, which is checked and then linked under its
    # name. A link fails if the name was taken meanwhile; a rename would replace that file
    # (`test_a_backup_overwrites_no_file_created_meanwhile`, `test_a_backup_during_writes_is_consistent`,
    # `test_a_backup_that_fails_leaves_nothing`).
    part = target.with_name(f"{target.name}.part-{os.getpid()}-{threading.get_ident()}")
    try:
        if target.exists():
            raise FileExistsError
        with _open_store(path) as source:
            version_of(source, path)
            make_file(part)
            with _blame_target(target), closing(connect(str(part))) as copy:
                source.backup(copy)
        with translate(part), closing(connect(str(part))) as copy:
            for problem in _faults_of(copy):
                raise StorageCorrupt(f"{path} is damaged, so the backup is: {problem}")
            copy.execute("PRAGMA journal_mode = DELETE")  # one file without a log, synced
        part.chmod(stat.S_IMODE(path.stat().st_mode))
        _link(part, target)
    except FileExistsError:
        raise ValidationFailed.at("target", f"{target} exists", "name a new file") from None
    except OSError as error:
        raise StorageUnavailable(f"{target} cannot be written: {error.strerror}") from error
    finally:
        for leftover in (part, *(part.with_name(part.name + suffix) for suffix in ("-wal", "-shm", "-journal"))):
            with suppress(OSError):
                leftover.unlink()


@contextmanager
def _blame_target(target: Path) -> Iterator[None]:
    """Attribute errors to the copy, except damage and locks: only the source can have those."""
    try:
        yield
    except sqlite3.Error as error:
        if is_damage(error) or is_transient(error):
            raise
        raise fault_of(error, target) from error


def _link(part: Path, target: Path) -> None:
    """Rename the copy to its target. Raises ``FileExistsError`` if that exists by now."""
    try:
        os.link(part, target)
    except FileExistsError:
        raise
    except OSError:  # exFAT, for example, has no hard links
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        part.replace(target)


def _faults_of(connection: Statements) -> Iterator[str]:
    """Yield the problems that SQLite reports for a file.

    Some versions (3.40, for example) misread the columns of a table without rowids whose last column belongs to its
    key, as ``subscription``, and report that each of its rows has a NULL.
    """
    rows = connection.execute(f"PRAGMA integrity_check({_MAX_FAULTS})").fetchall()
    for (problem,) in dict.fromkeys(rows):
        null = _NULL.fullmatch(problem)
        if problem != "ok" and (null is None or connection.execute(_NULLS.format(*null.groups())).fetchone()):
            yield problem


def check(path: Path) -> Check:
    """Read the whole store and list its problems. Takes some seconds per gigabyte; other processes can write.

    Raises ``StorageVersion`` if a newer routewright made it, and ``StorageCorrupt`` if it is not a store.
    """
    with _open_store(path) as connection:
        version = traces = 0
        problems: list[str] = []
        try:
            version = supported_version(connection, path)
            connection.execute("BEGIN")  # all reads see one snapshot
            problems += islice(_faults_of(connection), SHOWN)
            if version == latest() and not problems:
                problems += islice(problems_of(connection.execute, _BODIES, MISTAKEN), SHOWN)
            traces = connection.execute("SELECT count(*) FROM trace").fetchone()[0]
        except sqlite3.Error as error:
            if not is_damage(error):
                raise
            problems = problems or [str(error)]
        return Check(version, traces, path.stat().st_size, problems)


def live_digests(path: Path) -> list[str]:
    """The digests of all keys that are not revoked. Raises ``NotFound``, and kinds of ``StorageUnavailable``."""
    with _open_store(path) as connection:
        return [digest for (digest,) in connection.execute(LIVE_DIGESTS).fetchall()]


def upgrade(path: Path) -> Path | None:
    """Upgrade a store to the present version. Returns the backup made beside it; None if there is nothing to do.

    No other process may use it meanwhile. Raises ``StorageVersion`` if a newer routewright made it.
    """
    # A process may be killed between any two statements, and a store with half of a migration fits no program. So all
    # statements run in one exclusive transaction, together with `user_version`, which SQLite keeps in the file and
    # rolls back like a row. The version is read again inside it: another upgrade may have come first. The commit is
    # synced in the log, because a checkpoint would skip the keeper's lock. Proved by
    # `test_an_upgrade_killed_at_any_statement_leaves_the_old_or_the_new_store` and
    # `test_only_one_of_two_concurrent_upgrades_runs`.
    with _open_store(path) as connection:
        version = supported_version(connection, path)
        if version == latest():
            return None
        suffixes = ("", *(f".{number}" for number in range(2, 1_000)))  # failed upgrades leave their backups
        names = (path.with_name(f"{path.name}.version-{version}{suffix}") for suffix in suffixes)
        target = next(name for name in names if not name.exists())
        backup(path, target)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # its checkpoints would skip the lock of background.py
        connection.execute("PRAGMA secure_delete = ON")  # else dropped tables leave prompts in free pages
        connection.execute("BEGIN EXCLUSIVE")
        if version_of(connection, path) == version:
            migrate(connection, version)
        connection.execute("COMMIT")
        return target
