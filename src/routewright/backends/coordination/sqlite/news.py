"""Notices in the tables: numbered by the machine's clock, so that one that was kept in a file before comes after."""

from __future__ import annotations

from routewright.backends.coordination.memory import NOTICE_S
from routewright.backends.storage.sqlite.connection import Connection
from routewright.wire import Heard, Notice


def announce(connection: Connection, notice: Notice, now: float) -> None:
    """Write one. Those of before the machine started again are old, too."""
    connection.execute("DELETE FROM notice WHERE at <= ? OR at > ?", (now - NOTICE_S, now))
    (last,) = connection.execute("SELECT max(n) FROM notice").fetchone()
    number = max(_number(now), 0 if last is None else last + 1)
    sql = "INSERT INTO notice (n, at, topic, said) VALUES (?, ?, ?, ?)"
    connection.execute(sql, (number, now, notice.topic, notice.said))


def since(connection: Connection, after: int | None, now: float) -> Heard:
    """Notices after that number. None: no notices, only the number to start from."""
    if after is None:
        (last,) = connection.execute("SELECT max(n) FROM notice").fetchone()
        return Heard((), _number(now) - 1 if last is None else max(last, _number(now) - 1))
    sql = "SELECT n, topic, said FROM notice WHERE n > ? ORDER BY n"
    found = connection.execute(sql, (after,)).fetchall()
    return Heard(tuple(Notice(topic, said) for _, topic, said in found), found[-1][0] if found else after)


def _number(now: float) -> int:
    return int(now * 1e9)
