"""What does a call cost a PostgreSQL server: processor time, log, and room on the disk?

    python -m benchmarks.size_postgres [seconds]

Prints a table; docs/how-to/postgresql.md has sums. One process calls, with 50 calls in flight, and the server syncs.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import psycopg
from tests.database_servers import PostgresServer

from routewright.backends.storage.postgres.connections import Address
from routewright.backends.storage.postgres.schema import create

from .bench_postgres import bare, everything, limited
from .crowd import Calling, crowd

_BYTES = """
SELECT regexp_replace(relname, '_[0-9_]+$', ''), sum(pg_total_relation_size(oid))::bigint
FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace GROUP BY 1
"""
_LOG = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"
TABLES = ("trace", "tag", "body", "ledger", "kept")
"""Tables that grow with calls. Others are as long as there are accounts, keys and hours."""


def main() -> None:
    """Measure each kind of call, and print a row for it."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    print("| a call with | our CPU | the server's CPU | log | " + " | ".join(TABLES) + " |")
    print("|---|" + "--:|" * (3 + len(TABLES)))
    kinds: dict[str, Calling] = {"nothing on": bare, "limits": limited, "everything on": everything}
    for what, calling in kinds.items():
        print(f"| {what} | {' | '.join(measured(calling, seconds))} |", flush=True)


def measured(calling: Calling, seconds: float) -> list[str]:
    """What a call costs, in microseconds and bytes."""
    with PostgresServer() as server, tempfile.TemporaryDirectory() as folder:
        url = server.database()
        create(Address(url))
        Path(folder, "url").write_text(url)
        with psycopg.connect(url, autocommit=True) as connection:

            def asked() -> dict[str, int]:
                connection.execute("VACUUM")
                ((log,),) = connection.execute(_LOG).fetchall()
                return {"log": log, **dict(connection.execute(_BYTES).fetchall())}

            before, spent = asked(), cpu_s(server)
            (load,) = crowd(calling, Path(folder), 1, [50], seconds).values()
            spent = cpu_s(server) - spent
            after = asked()
            ((calls,),) = connection.execute("SELECT count(*) FROM trace").fetchall()
    times = f"{load.cpu_us:.0f} µs", f"{spent / calls * 1e6:.0f} µs"
    return [*times, *(f"{(after[name] - before.get(name, 0)) / calls:,.0f}" for name in ("log", *TABLES))]


def cpu_s(server: PostgresServer) -> float:
    """Processor time of the server's processes, those that have ended included."""
    pid = server._process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    ticks = 0
    for each in (pid, *children):
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(int(field) for field in fields[11 : 15 if each == pid else 13])
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
