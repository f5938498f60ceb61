"""PostgreSQL stores for tests: created once per process and emptied for each test."""

from __future__ import annotations

from itertools import count

from routewright.backends.storage.postgres.connections import Address, Connection
from routewright.backends.storage.postgres.schema import create
from tests.database_servers import PostgresServer

_TABLES = """
SELECT quote_ident(relname) FROM pg_class WHERE relkind IN ('r', 'p') AND NOT relispartition
AND relnamespace = current_schema()::regnamespace AND relname <> 'store'
"""
_made: dict[int, str] = {}
_shared: dict[int, str] = {}
_emptying: dict[int, Connection] = {}
"""Connections that empty a store: the first statements of a new one take ten times as long."""
_numbers = count(1)


def new_store(server: PostgresServer) -> str:
    """The URL of a store of its own."""
    url = server.database()
    create(Address(url))
    return url


def new_schema(server: PostgresServer) -> str:
    """The URL of a schema in which there is nothing: quicker to make and to remove than a database."""
    if server.port not in _shared:
        _shared[server.port] = server.database()
    name = f"s{next(_numbers)}"
    with Address(_shared[server.port]).connect() as connection:
        connection.execute(f"CREATE SCHEMA {name}")
    return f"{_shared[server.port]}?options=-csearch_path%3D{name}"


def empty_store(server: PostgresServer) -> str:
    """The URL of the one store of a server, with nothing in it."""
    url = _made.get(server.port)
    if url is None:
        url = _made[server.port] = new_store(server)
    if server.port not in _emptying or _emptying[server.port].is_stale:  # the server was restarted
        _emptying[server.port] = Address(url).connect()
    connection = _emptying[server.port]
    # quicker than TRUNCATE where there are few rows
    names = [name for (name,) in connection.execute(_TABLES).fetchall()]
    connection.execute("; ".join(f"DELETE FROM {name}" for name in names))
    return url
