"""The tables of a store, and the migrations from its oldest supported version. Published migrations never change.

``PRAGMA user_version`` is the version of a file. A file of a newer version is refused unchanged.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from routewright.errors import StorageCorrupt, StorageUnavailable, StorageVersion

from .file import Connection, pragma, transact
from .sync import is_transient

APPLICATION_ID = 0x72777274
"""``rwrt``: marks a file as a store of routewright."""

TABLES = """
CREATE TABLE trace (
    n INTEGER PRIMARY KEY,
    account TEXT NOT NULL,
    created_at TEXT NOT NULL,
    id TEXT NOT NULL,
    environment TEXT NOT NULL,
    status TEXT NOT NULL,
    kind TEXT NOT NULL,
    model TEXT NOT NULL,
    provider TEXT NOT NULL,
    policy_id TEXT NOT NULL,
    goal TEXT NOT NULL,
    strategy TEXT NOT NULL,
    error TEXT NOT NULL,
    cache_hit INTEGER NOT NULL,
    fallback_used INTEGER NOT NULL,
    compromised INTEGER NOT NULL,
    cost_usd REAL NOT NULL,
    duration_ms REAL NOT NULL,
    key_id TEXT
);
CREATE UNIQUE INDEX trace_by_id ON trace (account, id);
CREATE INDEX trace_by_time ON trace (
    account, created_at, id, environment, status, kind, model, provider, policy_id, goal, strategy, error, cache_hit,
    fallback_used, compromised, cost_usd, duration_ms, key_id
);
CREATE INDEX trace_by_status ON trace (account, status, created_at, id) WHERE status <> 'completed';

CREATE TABLE tag (
    account TEXT NOT NULL,
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    created_at TEXT NOT NULL,
    id TEXT NOT NULL,
    number REAL,
    PRIMARY KEY (account, key, value, created_at, id)
) WITHOUT ROWID;
CREATE INDEX tag_number ON tag (account, key, created_at, id, number) WHERE number IS NOT NULL;

CREATE TABLE feedback (
    account TEXT NOT NULL,
    trace_id TEXT NOT NULL,
    body BLOB NOT NULL,   -- wire.PutFeedback as JSON
    PRIMARY KEY (account, trace_id)
) WITHOUT ROWID;

CREATE TABLE snapshot (
    id TEXT PRIMARY KEY,
    body BLOB,            -- wire.Snapshot as JSON, or what changed since base; NULL: it is named, and was never put
    base TEXT,            -- id of the snapshot before; NULL: the body is whole
    depth INTEGER NOT NULL,
    named INTEGER NOT NULL DEFAULT 0,  -- traces that name it
    at REAL NOT NULL      -- when it was last put, Unix seconds
) WITHOUT ROWID;
CREATE INDEX snapshot_by_base ON snapshot (base) WHERE base IS NOT NULL;
CREATE INDEX snapshot_free ON snapshot (at) WHERE named <= 0;

CREATE TABLE usage (
    account TEXT NOT NULL,
    per TEXT NOT NULL,    -- hour or day
    group_by TEXT NOT NULL,
    environment TEXT NOT NULL,
    start TEXT NOT NULL,
    value TEXT NOT NULL,
    requests INTEGER NOT NULL,
    errors INTEGER NOT NULL,
    cost_nanos INTEGER NOT NULL,
    charged_nanos INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    PRIMARY KEY (account, per, group_by, environment, start, value)
) WITHOUT ROWID;

CREATE TABLE cache_use (
    account TEXT NOT NULL,
    environment TEXT NOT NULL,
    day TEXT NOT NULL,
    age TEXT NOT NULL,
    lookups INTEGER NOT NULL,
    saved_nanos INTEGER NOT NULL,
    PRIMARY KEY (account, environment, day, age)
) WITHOUT ROWID;

CREATE TABLE fallback_use (
    account TEXT NOT NULL,
    environment TEXT NOT NULL,
    day TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    total INTEGER NOT NULL,
    counted INTEGER NOT NULL,
    PRIMARY KEY (account, environment, day, kind, name)
) WITHOUT ROWID;

CREATE TABLE latency (
    account TEXT NOT NULL,
    environment TEXT NOT NULL,
    day TEXT NOT NULL,
    model TEXT NOT NULL,
    strategy TEXT NOT NULL,
    buckets BLOB NOT NULL,  -- pairs of little-endian 32-bit numbers: bucket, requests
    PRIMARY KEY (account, environment, day, model, strategy)
) WITHOUT ROWID;

CREATE TABLE setting (
    name TEXT PRIMARY KEY,
    body BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE account (
    account TEXT PRIMARY KEY,
    body BLOB NOT NULL    -- wire.Account as JSON
) WITHOUT ROWID;

CREATE TABLE key (
    account TEXT NOT NULL,
    id TEXT NOT NULL,
    digest TEXT NOT NULL,
    created_at TEXT NOT NULL,
    compromised_from TEXT,  -- traces since then are; NULL: it was not revoked
    body BLOB NOT NULL,   -- wire.Key as JSON
    PRIMARY KEY (account, id)
) WITHOUT ROWID;
CREATE UNIQUE INDEX key_by_digest ON key (digest);
CREATE INDEX key_revoked ON key (account) WHERE compromised_from IS NOT NULL;

CREATE TABLE purse (
    account TEXT NOT NULL,
    name TEXT NOT NULL,
    spent INTEGER NOT NULL,     -- nano-dollars, as all money
    granted INTEGER NOT NULL,   -- what credit comes to
    told INTEGER NOT NULL,      -- the highest threshold that was told of
    at TEXT,                    -- when it was last used; NULL: it is never forgotten
    PRIMARY KEY (account, name)
) WITHOUT ROWID;
CREATE INDEX purse_old ON purse (at) WHERE at IS NOT NULL;

CREATE TABLE ledger (
    account TEXT NOT NULL,
    at TEXT NOT NULL,
    name TEXT NOT NULL,   -- the request's id, a slash and the attempt
    kind TEXT NOT NULL,
    key_id TEXT,
    provider TEXT NOT NULL,
    model TEXT NOT NULL,
    input INTEGER NOT NULL,
    output INTEGER NOT NULL,
    cached INTEGER NOT NULL,
    cost INTEGER NOT NULL,
    charge INTEGER NOT NULL,
    credit INTEGER NOT NULL,
    least INTEGER,        -- and most: NULL where the cost is known
    most INTEGER,
    overrun INTEGER NOT NULL,
    note TEXT NOT NULL,
    purses TEXT,          -- names of those that it counts in, as JSON; NULL: in none
    PRIMARY KEY (account, at, name)
) WITHOUT ROWID;
CREATE UNIQUE INDEX ledger_by_name ON ledger (account, name);

CREATE TABLE claim (
    account TEXT NOT NULL,
    claim BLOB NOT NULL,    -- hash of account, environment and idempotency key
    n INTEGER NOT NULL,     -- of its row in kept
    PRIMARY KEY (account, claim)
) WITHOUT ROWID;

CREATE TABLE event (
    n INTEGER PRIMARY KEY,
    account TEXT NOT NULL,
    id TEXT NOT NULL,
    created_at TEXT NOT NULL,
    body BLOB NOT NULL    -- wire.StoredEvent as JSON
);
CREATE UNIQUE INDEX event_by_id ON event (account, id);
CREATE INDEX event_old ON event (created_at);

CREATE TABLE told (
    account TEXT NOT NULL,
    once TEXT NOT NULL,
    at REAL NOT NULL,     -- when it was last told of that, Unix seconds
    until REAL NOT NULL,  -- from when on that may be forgotten
    PRIMARY KEY (account, once)
) WITHOUT ROWID;
CREATE INDEX told_old ON told (until);

CREATE TABLE incident (
    id TEXT PRIMARY KEY,
    started_at TEXT NOT NULL,
    body BLOB NOT NULL    -- wire.Incident as JSON
) WITHOUT ROWID;

CREATE TABLE policy_version (
    content TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    label TEXT NOT NULL UNIQUE,
    created_at TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX policy_version_by_name ON policy_version (name);

CREATE TABLE learned (
    fleet TEXT NOT NULL,
    model TEXT NOT NULL,
    epoch INTEGER NOT NULL,  -- in which something was added last
    body BLOB NOT NULL,      -- wire.LearnedModel as JSON
    PRIMARY KEY (fleet, model)
) WITHOUT ROWID;

CREATE TABLE body (
    n INTEGER PRIMARY KEY,  -- of its trace, whose row stays narrow
    trace BLOB NOT NULL,    -- _core.trace.line.CallLine as msgpack, or wire.Trace as JSON; without its content
    content BLOB,           -- wire.Content as JSON
    rollup_keys TEXT        -- what usage was counted by, as JSON; NULL: by nothing else than always
);

CREATE TABLE uncounted (
    n INTEGER PRIMARY KEY,
    account TEXT NOT NULL,
    shape BLOB NOT NULL,    -- wire.Counted as JSON, without amounts, and rollup keys: equal for most of an hour
    traces INTEGER NOT NULL,  -- 1; -1: it was removed
    cost INTEGER NOT NULL,
    charged INTEGER NOT NULL,
    input INTEGER NOT NULL,
    output INTEGER NOT NULL,
    cached INTEGER NOT NULL
);

CREATE TABLE tick (
    n INTEGER PRIMARY KEY,  -- the newest is never removed, so that no number is used twice
    owner INTEGER NOT NULL,
    at REAL NOT NULL,       -- seconds of the log's own clock
    until REAL NOT NULL,    -- of its owner's lease
    format INTEGER NOT NULL,
    ops BLOB NOT NULL       -- _core.accounts.log.Tick as MessagePack
);

CREATE TABLE fold (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    n INTEGER NOT NULL,     -- the last tick that is in it
    at REAL NOT NULL,
    body BLOB NOT NULL      -- _core.accounts.log.dump() as MessagePack
);

CREATE TABLE boot (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    name TEXT NOT NULL,     -- of the machine's start that the clock belongs to
    ahead REAL NOT NULL     -- seconds by which the log is ahead of that clock
);

CREATE TABLE kept (
    n INTEGER PRIMARY KEY,
    account TEXT NOT NULL,
    claim BLOB NOT NULL,
    environment TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    call TEXT NOT NULL,
    until REAL NOT NULL,    -- Unix seconds
    result BLOB NOT NULL
);

CREATE TABLE agent_state (
    account TEXT NOT NULL,
    environment TEXT NOT NULL,
    id TEXT NOT NULL,       -- of the run, or conversation:<name>
    claim TEXT,             -- the idempotency key of the run
    until REAL NOT NULL,    -- Unix seconds
    body BLOB NOT NULL,     -- wire.Checkpoint, or the messages, as JSON
    PRIMARY KEY (account, environment, id)
) WITHOUT ROWID;
CREATE INDEX agent_state_by_claim ON agent_state (account, environment, claim) WHERE claim IS NOT NULL;
CREATE INDEX agent_state_old ON agent_state (until);

CREATE TABLE endpoint (
    id TEXT PRIMARY KEY,
    account TEXT NOT NULL,
    body BLOB NOT NULL,     -- wire.Endpoint as JSON
    due REAL,               -- when the first of its pending deliveries is
    turn INTEGER NOT NULL DEFAULT 0  -- grows with each claim: those that were served longest ago come first
) WITHOUT ROWID;
CREATE INDEX endpoint_due ON endpoint (due, id) WHERE due IS NOT NULL;
CREATE INDEX endpoint_turn ON endpoint (turn);

CREATE TABLE subscription (  -- of endpoints that are not disabled
    type TEXT NOT NULL,     -- of events
    account TEXT NOT NULL,
    environment TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    PRIMARY KEY (type, endpoint)
) WITHOUT ROWID;

CREATE TABLE delivery (
    endpoint TEXT NOT NULL,
    event TEXT NOT NULL,
    account TEXT NOT NULL,  -- of the endpoint
    type TEXT NOT NULL,
    state TEXT NOT NULL,
    due REAL,               -- Unix seconds: the next attempt, or the end of the lease; NULL: it has ended
    lease TEXT,
    tries INTEGER NOT NULL,
    attempts BLOB NOT NULL, -- list[wire.DeliveryAttempt] as JSON
    ended_at REAL,
    PRIMARY KEY (endpoint, event)
) WITHOUT ROWID;
CREATE INDEX delivery_due ON delivery (endpoint, due, event) WHERE due IS NOT NULL;
CREATE INDEX delivery_pending ON delivery (endpoint, event, due) WHERE due IS NOT NULL;
CREATE INDEX delivery_by_account ON delivery (account, event, endpoint);
CREATE INDEX delivery_old ON delivery (ended_at) WHERE ended_at IS NOT NULL;
CREATE TRIGGER event_out AFTER INSERT ON event WHEN EXISTS (SELECT 1 FROM subscription) BEGIN
    INSERT INTO delivery SELECT endpoint, NEW.id, subscription.account, type, 'waiting', 0, NULL, 0, '[]', NULL
    FROM subscription WHERE type = json_extract(CAST(NEW.body AS TEXT), '$.type') AND (
        NEW.account = '_system' OR (subscription.account = NEW.account
        AND environment = json_extract(CAST(NEW.body AS TEXT), '$.environment'))); END;
CREATE TRIGGER delivery_begun AFTER INSERT ON delivery BEGIN
    UPDATE endpoint SET due = NEW.due WHERE id = NEW.endpoint; END;
CREATE TRIGGER delivery_moved AFTER UPDATE OF due ON delivery BEGIN
    UPDATE endpoint SET due = (
        SELECT min(due) FROM delivery INDEXED BY delivery_due WHERE endpoint = NEW.endpoint AND due IS NOT NULL
    ) WHERE id = NEW.endpoint; END;
CREATE TRIGGER delivery_gone AFTER DELETE ON delivery WHEN OLD.due IS NOT NULL BEGIN
    UPDATE endpoint SET due = (
        SELECT min(due) FROM delivery INDEXED BY delivery_due WHERE endpoint = OLD.endpoint AND due IS NOT NULL
    ) WHERE id = OLD.endpoint; END;
"""

OLDEST = 2
"""Version of a file with these tables only."""
MIGRATIONS: tuple[str, ...] = ()
"""Migration n upgrades a file from version ``OLDEST`` + n to the next."""

_PAGE_BYTES = 4096
"""Traces take two to three kilobytes."""
_ID = "SELECT body FROM setting WHERE name = 'id'"
_GIVE_ID = "INSERT OR IGNORE INTO setting (name, body) VALUES ('id', ?)"


def latest() -> int:
    """The version of stores that this program creates."""
    return OLDEST + len(MIGRATIONS)


def prepare(connection: Connection, path: Path) -> None:
    """Create the tables in a new file. Raises ``StorageVersion``, and ``StorageCorrupt`` if it is not a store."""
    if _is_new(connection):
        connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        _use_log(connection, path)
        transact(connection, _create)
    check_version(connection, path)
    try:
        _use_log(connection, path)  # restored backups have no log
    except sqlite3.Error as error:
        if is_transient(error):
            raise


def _create(connection: Connection) -> None:
    if _is_new(connection):  # else another process has created them
        migrate(connection, 0)


def check_version(connection: Connection, path: Path) -> None:
    """Raises ``StorageVersion`` for a file of another version, and ``StorageCorrupt`` if it is not a store."""
    version = supported_version(connection, path)
    if version < latest():
        raise StorageVersion(
            f"{path} is of version {version}, this routewright needs {latest()}; stop what uses it, "
            f"then run 'routewright store upgrade {path}', which makes a backup first"
        )


def version_of(connection: Connection, path: Path) -> int:
    """The version of a store. Raises ``StorageCorrupt`` if it is not a store."""
    if pragma(connection, "application_id") != APPLICATION_ID:
        raise StorageCorrupt(f"{path} is a database, but no store of routewright; name another file")
    return pragma(connection, "user_version")


def supported_version(connection: Connection, path: Path) -> int:
    """As ``version_of``. Raises ``StorageVersion`` if the store is too old, or a newer routewright made it."""
    version = version_of(connection, path)
    if version > latest():
        raise StorageVersion(
            f"{path} is of version {version}, and this routewright knows versions up to {latest()}; install a newer one"
        )
    if version < OLDEST:
        raise StorageVersion(
            f"{path} is of version {version}, and the oldest version that can be upgraded is {OLDEST}; start a new one"
        )
    return version


def id_of(connection: Connection) -> bytes | None:
    """The unique id of a store, which only its copies share. None: the file is not a store."""
    if pragma(connection, "application_id") != APPLICATION_ID:
        return None
    row = connection.execute(_ID).fetchone()
    return None if row is None else bytes(row[0])


def migrate(connection: Connection, old_version: int) -> None:
    """Upgrade a store from version ``old_version`` (0: a new file) to the present one, in the caller's transaction."""
    for script in (TABLES, *MIGRATIONS)[old_version and old_version - OLDEST + 1 :]:
        for statement in script.split(";\n"):
            connection.execute(statement)
    connection.execute(_GIVE_ID, (os.urandom(16),)).fetchall()
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {latest()}")


def _is_new(connection: Connection) -> bool:
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    return not tables and pragma(connection, "application_id") == 0 and pragma(connection, "user_version") == 0


def _use_log(connection: Connection, path: Path) -> None:
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StorageUnavailable(f"{path}: its file system cannot share memory between processes; use a local disk")
