"""A simulated disk with power cuts: it records SQLite's writes in order and rebuilds what remains at any moment.

Synced data survives. Of the writes after a file's last sync any subset may survive, as whole writes or single sectors.
The same holds for created and removed file names. Shared memory is lost.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import apsw

from routewright.backends.storage.sqlite.file import Connection

SECTOR = 512
_SYNC_NAMES = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL
"""Files whose first sync syncs their folder as well, as SQLite's own code for Unix does."""
_KEEPS = (0.0, 0.1, 0.5, 0.9, 1.0)
"""How likely a write is left."""

Files = dict[str, bytes]
"""Contents by name."""


class Write(NamedTuple):
    """Bytes were written."""

    file: int
    at: int
    data: bytes


class Truncate(NamedTuple):
    """A file was cut, or grew."""

    file: int
    size: int


class Sync(NamedTuple):
    """All that was written to a file is to stay."""

    file: int


class Name(NamedTuple):
    """A name now stands for a file; None: for no file any more."""

    name: str
    file: int | None


class SyncNames(NamedTuple):
    """All names are to stay."""


Event = Write | Truncate | Sync | Name | SyncNames


class Disk:
    """Records what SQLite does in a folder. Begins with ``before``."""

    def __init__(self, folder: Path, before: Files | None = None) -> None:
        self.folder = folder
        self.before = before or {}
        self.events: list[Event] = []
        self.files = {name: number for number, name in enumerate(self.before)}
        """Names as they are now."""
        self._made = len(self.files)
        folder.mkdir()
        fill(folder, self.before)
        self._vfs = _Vfs(f"recorded-{id(self)}", self)

    def note(self, event: Event) -> None:
        """Something was done."""
        self.events.append(event)

    def opened(self, name: str) -> int:
        """The number of a file, which is made if need be."""
        if name not in self.files:
            self.files[name] = self._made
            self._made += 1
            self.note(Name(name, self.files[name]))
        return self.files[name]

    def connect(self, path: str) -> Connection:
        """A connection that is recorded, for ``SqliteStorage(connect=...)``."""
        return _Connection(path, self._vfs.name)

    def sync(self, descriptor: int) -> None:
        """A file is synced by a descriptor of its own, for ``sync.true_sync``."""
        mine = os.fstat(descriptor)
        found = (number for name, number in self.files.items() if _is(self.folder / name, mine))
        self.note(Sync(next(found)))

    def cuts(self, places: Sequence[int], chance: Random) -> Iterator[tuple[int, Files]]:
        """What is left where the power is cut after so many events, for each of these places in order."""
        platter = _Platter(self.before)
        done = 0
        for place in sorted(places):
            for event in self.events[done:place]:
                platter.take(event)
            done = place
            yield place, platter.left(chance)

    def close(self) -> None:
        """Record nothing more. Connections must be closed."""
        self._vfs.unregister()


def fill(folder: Path, files: Files) -> None:
    """Write files into a folder."""
    for name, data in files.items():
        (folder / name).write_bytes(data)


def _is(path: Path, file: os.stat_result) -> bool:
    return path.exists() and os.path.samestat(path.stat(), file)


class _Platter:
    """What would stay, and what might."""

    def __init__(self, before: Files) -> None:
        self._names: dict[str, int | None] = {name: number for number, name in enumerate(before)}
        self._synced = {number: bytearray(data) for number, data in enumerate(before.values())}
        self._later: dict[int, list[Write | Truncate]] = {}
        self._later_names: dict[str, list[int | None]] = {}

    def take(self, event: Event) -> None:
        match event:
            case Write(file) | Truncate(file):
                self._later.setdefault(file, []).append(event)
            case Sync(file):
                for done in self._later.pop(file, []):
                    _do(self._synced.setdefault(file, bytearray()), done)
            case Name(name, to):
                self._later_names.setdefault(name, []).append(to)
            case SyncNames():
                self._names |= {name: changes[-1] for name, changes in self._later_names.items()}
                self._later_names.clear()

    def left(self, chance: Random) -> Files:
        names = dict(self._names)
        for name, changes in self._later_names.items():
            taken = chance.randint(0, len(changes))
            if taken:
                names[name] = changes[taken - 1]
        return {name: self._content(file, chance) for name, file in names.items() if file is not None}

    def _content(self, file: int, chance: Random) -> bytes:
        content = bytearray(self._synced.get(file, b""))
        keep, tear = chance.choice(_KEEPS), chance.choice((0.0, 0.3))
        for done in self._later.get(file, []):
            if isinstance(done, Write) and chance.random() < tear:
                for sector in _sectors(done):
                    if chance.random() < 0.5:
                        _do(content, sector)
            elif chance.random() < keep:
                _do(content, done)
        return bytes(content)


def _do(content: bytearray, done: Write | Truncate) -> None:
    size = done.size if isinstance(done, Truncate) else done.at
    if isinstance(done, Truncate):
        del content[size:]
    content.extend(bytes(max(0, size - len(content))))
    if isinstance(done, Write):
        content[size : size + len(done.data)] = done.data


def _sectors(write: Write) -> Iterator[Write]:
    """A write in pieces that lie in one sector each."""
    at, end = write.at, write.at + len(write.data)
    while at < end:
        after = min((at // SECTOR + 1) * SECTOR, end)
        yield Write(write.file, at, write.data[at - write.at : after - write.at])
        at = after


class _Vfs(apsw.VFS):
    """Does what SQLite's own does, and notes it."""

    def __init__(self, name: str, disk: Disk) -> None:
        super().__init__(name, "")
        self.name = name
        self._disk = disk

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        if name is None:
            return apsw.VFSFile("", name, flags)  # temporary
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        return _File(name, flags, self._disk, self._disk.opened(os.path.basename(path)))

    def xDelete(self, filename: str, syncdir: bool) -> None:
        super().xDelete(filename, syncdir)
        name = os.path.basename(filename)
        if self._disk.files.pop(name, None) is not None:
            self._disk.note(Name(name, None))
        if syncdir:
            self._disk.note(SyncNames())


class _File(apsw.VFSFile):
    """An open file."""

    def __init__(self, name: str | apsw.URIFilename, flags: list[int], disk: Disk, file: int) -> None:
        self._syncs_names = bool(flags[0] & apsw.SQLITE_OPEN_CREATE and flags[0] & _SYNC_NAMES)
        self._disk, self._file = disk, file
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)
        self._disk.note(Write(self._file, offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:
        super().xTruncate(newsize)
        self._disk.note(Truncate(self._file, newsize))

    def xSync(self, flags: int) -> None:
        self._disk.note(Sync(self._file))  # the disk below this one keeps its power
        if self._syncs_names:
            self._disk.note(SyncNames())
            self._syncs_names = False


class _Connection:
    """Looks like ``sqlite3.Connection``."""

    def __init__(self, path: str, vfs: str) -> None:
        with _like_sqlite3():
            self._connection = apsw.Connection(path, vfs=vfs)

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> _Rows:
        with _like_sqlite3():
            return _Rows(self._connection.execute(sql, tuple(parameters)).fetchall())

    def executemany(self, sql: str, parameters: Sequence[Sequence[Any]], /) -> _Rows:
        with _like_sqlite3():
            return _Rows(self._connection.executemany(sql, [tuple(each) for each in parameters]).fetchall())

    def create_function(self, name: str, narg: int, func: Callable[..., Any], /) -> None:
        with _like_sqlite3():
            self._connection.create_scalar_function(name, func, narg)

    def interrupt(self) -> None:
        self._connection.interrupt()

    def close(self) -> None:
        with _like_sqlite3():
            self._connection.close()


class _Rows:
    """The rows of a statement that has ended."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = iter(rows)

    def fetchone(self) -> Any:
        return next(self._rows, None)

    def fetchall(self) -> list[Any]:
        return list(self._rows)


@contextmanager
def _like_sqlite3() -> Iterator[None]:
    try:
        yield
    except apsw.Error as error:
        told = sqlite3.OperationalError(str(error))
        told.sqlite_errorcode = getattr(error, "extendedresult", sqlite3.SQLITE_ERROR)
        told.sqlite_errorname = type(error).__name__
        raise told from error
