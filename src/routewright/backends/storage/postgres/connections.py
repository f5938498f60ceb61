"""Connections to a PostgreSQL server, and the translation of statements and errors.

The statements of ``tables/`` are in the common dialect of SQLite and PostgreSQL; remaining differences are translated
here.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from math import inf
from select import POLLIN, POLLOUT, poll
from typing import Any, TypeVar

from routewright import errors
from routewright._runtime.fork import Renewals
from routewright._runtime.loop import Threads
from routewright.errors import RouterError, StorageUnavailable, require_extra

with require_extra("postgres", __name__):
    import psycopg
    from psycopg import pq
    from psycopg.abc import PQGen
    from psycopg.adapt import Buffer, Loader
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
    from psycopg.generators import execute
    from psycopg.types.string import StrDumper
    from psycopg.waiting import Ready

T = TypeVar("T")
CONNECT_S = 2
"""Connect timeout, the least that libpq supports."""
PATIENCE_S = 2.5
"""Timeout of statements that calls wait for."""
LONG_S = 60.0
"""Timeout of reports, pages, deletions and upkeep, also on the server."""
MAX_IDLE = 16
"""Idle connections of a process. More are opened on demand and closed again."""
AGAIN_S = 0.25
"""After a failed connection, others fail at once for this time."""
LOCK = "SELECT lock_accounts(%s)"

_DIALECT = (
    (re.compile(r" INDEXED BY \w+"), ""),
    # look up each tag in order: else all traces are read and sorted
    (
        re.compile(r"\bCROSS JOIN trace ON (.+?) WHERE\b"),
        r"CROSS JOIN LATERAL (SELECT * FROM trace WHERE \1 LIMIT 1) AS trace WHERE",
    ),
    (re.compile(r"CAST\((\w+) AS TEXT\), '\$\.(\w+)'"), r"\1, '\2'"),
    (re.compile(r"/\* (FOR UPDATE.*?) \*/"), r"\1"),
    (re.compile("%"), "%%"),
    (re.compile(r"\?"), "%s"),
)
_KINDS: tuple[tuple[str, type[RouterError], str], ...] = (
    ("53100", errors.StorageFull, "the server's disk is full; free some space there"),
    ("25006", errors.StorageReadOnly, "the server is a read-only replica; name the primary"),
    ("42501", errors.StorageReadOnly, "the role lacks a privilege; see 'routewright store create'"),
    ("42P01", errors.StorageVersion, "there is no store yet; run 'routewright store create'"),
    ("42883", errors.StorageVersion, "the store is of an older version; run 'routewright store upgrade'"),
    ("42703", errors.StorageVersion, "run 'routewright store upgrade', unless the database belongs to another program"),
    ("08", StorageUnavailable, "the connection was lost"),
    ("40", StorageUnavailable, "it conflicted with another transaction"),
    ("53", StorageUnavailable, "the server has no more connections or memory"),
    ("55", StorageUnavailable, "another transaction has the lock"),
    ("57", StorageUnavailable, "the server cancelled the statement"),
    ("58", StorageUnavailable, "the server's disk failed"),
)
"""Meanings of errors by SQLSTATE or its class."""
NO_PARTITION = "23514"
LOCKED = "55P03"
LOST = "08"
COLLIDED = "40"
IDLE = pq.TransactionStatus.IDLE


class Address:
    """The address of a database. Its password is never shown."""

    def __init__(self, url: str) -> None:
        info: dict[str, Any] = {"port": "none"}
        with suppress(psycopg.Error):  # its message contains the password
            info = {**conninfo_to_dict(url)}
        public: dict[str, Any] = {name: info[name] for name in ("host", "hostaddr", "port", "dbname") if name in info}
        if "@" in "".join(public.values()) or re.search("[^0-9,]", info.get("port", "")):
            hint = "write postgresql://user@host:5432/database, with %40 for @ and %2F for / in a password"
            raise errors.ValidationFailed.at("url", "is not the address of a PostgreSQL database", hint)
        defaults: dict[str, Any] = {"connect_timeout": CONNECT_S, "tcp_user_timeout": 10_000}
        self._conninfo = make_conninfo("", **defaults | {"application_name": "routewright"} | info)
        self._shown = make_conninfo(**public) or "the default database"
        self._refused_until = 0.0
        self._refusal = ""

    def __str__(self) -> str:
        return self._shown

    def connect(self) -> Connection:
        """A new connection in autocommit mode. Raises kinds of ``StorageUnavailable``."""
        if time.monotonic() < self._refused_until:
            raise StorageUnavailable(self._refusal)
        try:
            connection = Connection.connect(self._conninfo, autocommit=True, prepare_threshold=None)
        except psycopg.Error as error:
            reason = str(error).rpartition(" failed: ")[2].partition("\n")[0].removeprefix("FATAL:").strip()
            self._refusal = f"{self}: cannot connect: {reason}"
            self._refused_until = time.monotonic() + AGAIN_S
            raise StorageUnavailable(self._refusal) from None
        connection.adapters.register_dumper(str, _Text)
        connection.adapters.register_loader("text", _Texts)
        connection.adapters.register_loader("numeric", _Numbers)
        return connection

    @contextmanager
    def translate(self) -> Iterator[None]:
        """Translate the driver's errors."""
        try:
            yield
        except TooLate as error:
            raise StorageUnavailable(f"{self}: the server did not answer in time") from error
        except psycopg.Error as error:
            code = error.sqlstate or f"{LOST}000"
            message = error.diag.message_primary
            for prefix, kind, meaning in _KINDS:
                if code.startswith(prefix):
                    raise kind(f"{self}: {meaning}{'' if message is None else f' ({message})'}") from error
            raise errors.InternalError(f"{self}: PostgreSQL refused a statement ({code}: {message})") from error


def state_of(error: RouterError) -> str | None:
    """The SQLSTATE behind an error, if there is one."""
    return getattr(error.__cause__, "sqlstate", None)


class TooLate(psycopg.OperationalError):
    """The server did not answer in time. The statement may still take effect."""


class Connection(psycopg.Connection[Any]):
    """Closes itself when it is dropped by the process that opened it, and when the server is too late."""

    until = inf
    """Monotonic deadline of its user."""

    def __del__(self, *_: Any) -> None:
        """Prevent psycopg's warning: libpq closes the connection, unless this is a forked child."""

    @property
    def is_stale(self) -> bool:
        """True if there is unexpected input: the server has ended the connection."""
        poller = poll()
        poller.register(self.pgconn.socket, POLLIN)
        return bool(poller.poll(0))

    def wait(self, gen: PQGen[T], interval: float = 0.0, timeout: float | None = None) -> T:
        """psycopg's ``wait`` with the deadline ``until``. Raises ``TooLate``."""
        poller = poll()
        mask = 0
        try:
            state = next(gen)
            while True:
                if state != mask:
                    mask = state
                    poller.register(self.pgconn.socket, POLLIN * bool(state & 1) | POLLOUT * bool(state & 2))
                left_s = self.until - time.monotonic()
                events = poller.poll(None if left_s == inf else max(0.0, left_s * 1000))
                if not events:
                    self.close()
                    raise TooLate
                ((_, event),) = events
                ready = state if event & ~(POLLIN | POLLOUT) else bool(event & POLLIN) | bool(event & POLLOUT) << 1
                state = gen.send(Ready(ready))
        except StopIteration as end:
            result: T = end.value
            return result


class Database:
    """Queries a database in at most ``max_threads`` threads of each event loop; ``inline``: in the caller's thread. A
    forked child starts without connections."""

    def __init__(self, address: Address, kind: str, max_threads: int, *, inline: bool) -> None:
        self.address = address
        self._threads = Threads(kind, max_threads)
        self._inline = inline
        self.renewals = Renewals()
        self.renewals.add(self)

    def __repr__(self) -> str:
        return repr(str(self.address))

    def renew(self) -> None:
        """Start without connections."""
        self._idle: deque[Connection] = deque()

    @contextmanager
    def connection(self, patience_s: float = PATIENCE_S) -> Iterator[Connection]:
        """Take a connection with a timeout. Raises kinds of ``StorageUnavailable``."""
        try:
            connection = self._idle.pop()
            if connection.is_stale:  # the server was restarted, so the others are stale, too
                connection.close()
                self.close()
                connection = self.address.connect()
        except IndexError:
            connection = self.address.connect()
        connection.until = time.monotonic() + patience_s
        try:
            yield connection
        finally:
            if connection.closed or connection.info.transaction_status != IDLE or len(self._idle) >= MAX_IDLE:
                connection.close()
            else:
                self._idle.append(connection)

    def close(self) -> None:
        """Close idle connections."""
        with suppress(IndexError):  # none is left
            while True:
                self._idle.pop().close()

    async def run(self, work: Callable[[], T]) -> T:
        """Run work in a thread."""
        return work() if self._inline else await self._threads.run(work)

    async def value(self, sql: str, *values: bytes | str | float | None) -> bytes:
        """``value_now`` in a thread."""
        return await self.run(partial(self.value_now, sql, *values))

    def value_now(self, sql: str, *values: bytes | str | float | None) -> bytes:
        """The single value of a statement in PostgreSQL's binary format; null is empty. Raises kinds of
        ``StorageUnavailable``."""
        args = [value if value is None or isinstance(value, bytes) else escape(str(value)).encode() for value in values]
        formats = [int(isinstance(value, bytes)) for value in values]
        with self.address.translate(), self.connection() as connection:
            return call(connection, sql.encode(), args, formats, result_format=1)


class Tables:
    """Runs the statements of ``tables/`` in a transaction."""

    def __init__(self, connection: Connection) -> None:
        self.raw = connection

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> psycopg.Cursor[Any]:
        """Run one."""
        return self.raw.execute(_translate(sql), parameters)

    def executemany(self, sql: str, parameters: Sequence[Sequence[Any]], /) -> None:
        """Run one for each row of parameters, in one round trip."""
        if parameters:
            with self.raw.cursor() as cursor:
                cursor.executemany(_translate(sql), parameters)


@lru_cache(maxsize=1_000)
def _translate(sql: str) -> str:
    for pattern, replacement in _DIALECT:
        sql = pattern.sub(replacement, sql)
    return sql


def call(
    connection: Connection, sql: bytes, values: Sequence[bytes | None], formats: Sequence[int], result_format: int = 0
) -> bytes:
    """The single value of a statement in its own transaction. Faster than a cursor. Raises ``psycopg.Error``."""
    pgconn = connection.pgconn
    pgconn.send_query_params(sql, values, param_formats=formats, result_format=result_format)
    result = connection.wait(execute(pgconn))[-1]
    if result.status != pq.ExecStatus.TUPLES_OK:
        raise psycopg.errors.error_from_result(result)
    return result.get_value(0, 0) or b""


def array_of(blobs: Sequence[bytes | None]) -> bytes:
    """A ``bytea[]`` in PostgreSQL's binary format."""
    parts = [_ARRAY_HEAD, len(blobs).to_bytes(4), b"\0\0\0\1"] if blobs else [b"\0\0\0\0\0\0\0\0\0\0\0\x11"]
    for blob in blobs:
        parts.append(b"\xff\xff\xff\xff" if blob is None else len(blob).to_bytes(4) + blob)
    return b"".join(parts)


_ARRAY_HEAD = b"\0\0\0\1\0\0\0\1\0\0\0\x11"
"""One dimension, with nulls, of type ``bytea``."""


def escape(text: str) -> str:
    """Escape NUL, which PostgreSQL cannot store, without changing the sort order."""
    if "\0" in text or "\1" in text:
        return text.replace("\1", "\1\2").replace("\0", "\1\1")
    return text


def unescape(text: str) -> str:
    """Undo ``escape``."""
    return text.replace("\1\1", "\0").replace("\1\2", "\1") if "\1" in text else text


class _Text(StrDumper):
    def dump(self, obj: str) -> Buffer | None:
        return escape(obj).encode()


class _Texts(Loader):
    def load(self, data: Buffer) -> str:
        return unescape(bytes(data).decode())


class _Numbers(Loader):
    """Sums of whole numbers."""

    def load(self, data: Buffer) -> int:
        return int(bytes(data))
