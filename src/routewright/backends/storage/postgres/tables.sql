-- The tables of a PostgreSQL store. The columns are the same as in SQLite, so that both share statements (../tables).
-- Text is compared by bytes. make_days creates partitions, the sweep drops them.

CREATE TABLE store (
    version int NOT NULL,
    oldest int NOT NULL,            -- the oldest program version that may use the store
    id bytea NOT NULL
);

CREATE TABLE trace (
    n bigint NOT NULL,              -- upper bits: the day, so that the table body has the same partitions
    account text COLLATE "C" NOT NULL,
    created_at text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    environment text NOT NULL, status text NOT NULL, kind text NOT NULL,
    model text COLLATE "C" NOT NULL, provider text COLLATE "C" NOT NULL,
    policy_id text COLLATE "C" NOT NULL,
    goal text NOT NULL, strategy text NOT NULL,
    error text COLLATE "C" NOT NULL,
    cache_hit boolean NOT NULL, fallback_used boolean NOT NULL, compromised boolean NOT NULL,
    cost_usd float8 NOT NULL, duration_ms float8 NOT NULL,
    key_id text COLLATE "C",
    PRIMARY KEY (account, created_at, id)
) PARTITION BY RANGE (created_at);
CREATE INDEX trace_by_id ON trace (account, id);
CREATE INDEX trace_by_status ON trace (account, status, created_at, id) WHERE status <> 'completed';
CREATE INDEX trace_of_sandbox ON trace (account, created_at, id) WHERE environment = 'sandbox';  -- shorter retention
CREATE SEQUENCE trace_n CACHE 64;

CREATE TABLE body (
    n bigint PRIMARY KEY,
    trace bytea NOT NULL,
    content bytea, rollup_keys bytea
) PARTITION BY RANGE (n);

CREATE TABLE tag (
    account text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    value text COLLATE "C" NOT NULL,
    created_at text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    number float8,
    PRIMARY KEY (account, key, value, created_at, id)
) PARTITION BY RANGE (created_at);
CREATE INDEX tag_number ON tag (account, key, created_at, id, number) WHERE number IS NOT NULL;
CREATE INDEX tag_by_trace ON tag (account, id);

CREATE TABLE feedback (
    account text COLLATE "C" NOT NULL,
    trace_id text COLLATE "C" NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (account, trace_id)
);

CREATE TABLE snapshot (
    id text COLLATE "C" PRIMARY KEY,
    body bytea,
    base text COLLATE "C",
    depth int NOT NULL, named bigint NOT NULL DEFAULT 0, at float8 NOT NULL
);
CREATE INDEX snapshot_by_base ON snapshot (base) WHERE base IS NOT NULL;
CREATE TABLE naming (               -- increments to add to snapshot.named later: all calls name the same few snapshots
    id text COLLATE "C" NOT NULL,
    named bigint NOT NULL
);

CREATE TABLE uncounted (
    n bigint GENERATED ALWAYS AS IDENTITY,
    account text COLLATE "C" NOT NULL,
    shape bytea NOT NULL,
    traces int NOT NULL, cost bigint NOT NULL, charged bigint NOT NULL,
    input bigint NOT NULL, output bigint NOT NULL, cached bigint NOT NULL
);

CREATE TABLE usage (
    account text COLLATE "C" NOT NULL, per text NOT NULL,
    group_by text COLLATE "C" NOT NULL,
    environment text NOT NULL,
    start text COLLATE "C" NOT NULL,
    value text COLLATE "C" NOT NULL,
    requests bigint NOT NULL, errors bigint NOT NULL,
    cost_nanos bigint NOT NULL, charged_nanos bigint NOT NULL,
    input_tokens bigint NOT NULL, output_tokens bigint NOT NULL, cached_tokens bigint NOT NULL,
    PRIMARY KEY (account, per, group_by, environment, start, value)
);
CREATE TABLE cache_use (
    account text COLLATE "C" NOT NULL,
    environment text NOT NULL,
    day text COLLATE "C" NOT NULL,
    age text COLLATE "C" NOT NULL,
    lookups bigint NOT NULL, saved_nanos bigint NOT NULL,
    PRIMARY KEY (account, environment, day, age)
);
CREATE TABLE fallback_use (
    account text COLLATE "C" NOT NULL,
    environment text NOT NULL,
    day text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    total bigint NOT NULL, counted bigint NOT NULL,
    PRIMARY KEY (account, environment, day, kind, name)
);
CREATE TABLE latency (
    account text COLLATE "C" NOT NULL,
    environment text NOT NULL,
    day text COLLATE "C" NOT NULL,
    model text COLLATE "C" NOT NULL,
    strategy text COLLATE "C" NOT NULL,
    buckets bytea NOT NULL,
    PRIMARY KEY (account, environment, day, model, strategy)
);

CREATE TABLE setting (name text PRIMARY KEY, body bytea NOT NULL);
CREATE TABLE policy_version (
    content text COLLATE "C" PRIMARY KEY,
    name text COLLATE "C" NOT NULL,
    label text COLLATE "C" NOT NULL UNIQUE,
    created_at text NOT NULL
);
CREATE INDEX policy_version_by_name ON policy_version (name);
CREATE TABLE learned (
    fleet text NOT NULL,
    model text COLLATE "C" NOT NULL,
    epoch bigint NOT NULL, body bytea NOT NULL,
    PRIMARY KEY (fleet, model)
);

-- Accounts. The limits are also columns, for the functions in accounts.sql.

CREATE TABLE account (
    account text COLLATE "C" PRIMARY KEY,
    body bytea NOT NULL,
    requests bigint, tokens bigint, slots bigint,
    prepaid boolean NOT NULL DEFAULT false,
    monthly bigint, daily bigint, weekly bigint,
    tag_limits jsonb                -- an array of wire.TagLimit
);
CREATE TABLE key (
    account text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    digest text NOT NULL UNIQUE, created_at text NOT NULL,
    compromised_from text COLLATE "C", body bytea NOT NULL,
    requests bigint, tokens bigint, slots bigint,
    budget bigint, monthly bigint, daily bigint, weekly bigint,
    PRIMARY KEY (account, id)
);
CREATE INDEX key_revoked ON key (account) WHERE compromised_from IS NOT NULL;

CREATE TABLE purse (
    account text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    spent bigint NOT NULL, granted bigint NOT NULL,
    told bigint NOT NULL DEFAULT 0,
    at text COLLATE "C",
    reserved bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (account, name)
) WITH (fillfactor = 50);
CREATE INDEX purse_old ON purse (at) WHERE at IS NOT NULL;

CREATE TABLE party (                -- an account or key with limits on slots, or on requests or tokens per minute
    name text COLLATE "C" PRIMARY KEY,
    requests bigint NOT NULL,       -- sums of its entries
    tokens bigint NOT NULL,
    slots bigint NOT NULL,
    last float8 NOT NULL            -- time of its last entry
) WITH (fillfactor = 50);
CREATE TABLE entry (                -- requests and tokens taken at one moment (Unix seconds of the server's clock)
    party text COLLATE "C" NOT NULL,
    at float8 NOT NULL,
    requests bigint NOT NULL, tokens bigint NOT NULL,
    PRIMARY KEY (party, at)
);

CREATE TABLE owner (                -- a process with holds
    id bigint PRIMARY KEY,
    until float8 NOT NULL,          -- end of its lease
    ticks bigint NOT NULL,          -- number of its last tick
    is_spared boolean NOT NULL DEFAULT false
) WITH (fillfactor = 20);
CREATE TABLE hold (                 -- what a running call has taken (_core.accounts.holds.Hold)
    account text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    key_id text COLLATE "C",
    came_at float8 NOT NULL, ends_at float8 NOT NULL,
    parties text[] NOT NULL,
    tokens bigint NOT NULL, slots int NOT NULL, nanos bigint NOT NULL,
    purses text[] NOT NULL,
    claim bytea,
    fingerprint text COLLATE "C" NOT NULL,
    owner bigint NOT NULL, taken_at float8 NOT NULL,
    run text COLLATE "C", run_limit bigint,
    late boolean NOT NULL,          -- taken again after its lease expired
    PRIMARY KEY (account, id)
);
CREATE UNIQUE INDEX hold_by_claim ON hold (account, claim) WHERE claim IS NOT NULL;
CREATE INDEX hold_by_owner ON hold (owner);

CREATE TABLE ledger (
    account text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    at text COLLATE "C" NOT NULL,
    kind text NOT NULL,
    key_id text COLLATE "C",
    provider text COLLATE "C" NOT NULL, model text COLLATE "C" NOT NULL,
    input bigint NOT NULL, output bigint NOT NULL, cached bigint NOT NULL,
    cost bigint NOT NULL, charge bigint NOT NULL, credit bigint NOT NULL,
    least bigint, most bigint,
    overrun bigint NOT NULL,
    note text COLLATE "C" NOT NULL,
    purses text COLLATE "C",
    PRIMARY KEY (account, at, name)
);
CREATE UNIQUE INDEX ledger_by_name ON ledger (account, name);

CREATE TABLE kept (                 -- answers for idempotency keys
    account text COLLATE "C" NOT NULL,
    claim bytea NOT NULL,
    environment text NOT NULL,
    fingerprint text COLLATE "C" NOT NULL,
    call text COLLATE "C" NOT NULL,
    until float8 NOT NULL, result bytea NOT NULL,
    PRIMARY KEY (account, claim)
);
CREATE INDEX kept_old ON kept (until);

CREATE TABLE agent_state (
    account text COLLATE "C" NOT NULL,
    environment text NOT NULL,
    id text COLLATE "C" NOT NULL,
    claim text COLLATE "C",
    until float8 NOT NULL, body bytea NOT NULL,
    PRIMARY KEY (account, environment, id)
);
CREATE INDEX agent_state_by_claim ON agent_state (account, environment, claim) WHERE claim IS NOT NULL;
CREATE INDEX agent_state_old ON agent_state (until);

CREATE TABLE incident (id text COLLATE "C" PRIMARY KEY, started_at text COLLATE "C" NOT NULL, body bytea NOT NULL);
CREATE TABLE event (
    n bigint GENERATED ALWAYS AS IDENTITY,
    account text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    created_at text COLLATE "C" NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (account, id)
);
CREATE INDEX event_old ON event (created_at);
CREATE INDEX event_by_id ON event (id);
CREATE TABLE told (
    account text COLLATE "C" NOT NULL,
    once text COLLATE "C" NOT NULL,
    at float8 NOT NULL, until float8 NOT NULL,
    PRIMARY KEY (account, once)
);
CREATE INDEX told_old ON told (until);

CREATE TABLE endpoint (
    id text COLLATE "C" PRIMARY KEY,
    account text COLLATE "C" NOT NULL,
    body bytea NOT NULL,
    due float8, turn bigint NOT NULL DEFAULT 0
);
CREATE INDEX endpoint_due ON endpoint (due, id) WHERE due IS NOT NULL;
CREATE INDEX endpoint_by_account ON endpoint (account);
CREATE TABLE subscription (
    type text NOT NULL,
    account text COLLATE "C" NOT NULL,
    environment text NOT NULL,
    endpoint text COLLATE "C" NOT NULL,
    PRIMARY KEY (type, endpoint)
);
CREATE TABLE delivery (
    endpoint text COLLATE "C" NOT NULL,
    event text COLLATE "C" NOT NULL,
    account text COLLATE "C" NOT NULL,
    type text NOT NULL, state text NOT NULL,
    due float8, lease text,
    tries int NOT NULL,
    attempts bytea NOT NULL DEFAULT '[]',
    ended_at float8,
    PRIMARY KEY (endpoint, event)
);
CREATE INDEX delivery_due ON delivery (endpoint, due, event) WHERE due IS NOT NULL;
CREATE INDEX delivery_pending ON delivery (endpoint, event, due) WHERE due IS NOT NULL;
CREATE INDEX delivery_by_account ON delivery (account, event, endpoint);
CREATE INDEX delivery_old ON delivery (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE notice (               -- notifications of the last minute for other processes
    n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    topic text NOT NULL,
    said text COLLATE "C" NOT NULL
);

-- The tables of PostgresCache. Answers are in unlogged tables, which are empty after a crash of the server.
CREATE SEQUENCE cache_n;            -- logged, so that no number is used twice
CREATE UNLOGGED TABLE cache_entry (
    n bigint PRIMARY KEY,
    key bytea NOT NULL UNIQUE,
    account text COLLATE "C" NOT NULL,
    environment text NOT NULL,
    partition bytea NOT NULL,
    id text COLLATE "C" NOT NULL,
    namespace text COLLATE "C",
    created_at float8 NOT NULL, expires_at float8 NOT NULL,
    size bigint NOT NULL, cost_nanos bigint NOT NULL,
    metadata bytea, vector bytea,
    body bytea NOT NULL
);
ALTER TABLE cache_entry ALTER vector SET STORAGE EXTERNAL;  -- vectors do not compress
CREATE INDEX cache_entry_by_partition ON cache_entry (partition, n) WHERE vector IS NOT NULL;
CREATE INDEX cache_entry_by_account ON cache_entry (account, n);
CREATE INDEX cache_entry_by_end ON cache_entry (expires_at, n);
CREATE UNLOGGED TABLE cache_size (entries bigint NOT NULL, bytes bigint NOT NULL) WITH (fillfactor = 10);
CREATE UNLOGGED TABLE cache_lead (  -- answers that are being computed
    key bytea PRIMARY KEY,
    token bytea NOT NULL,           -- of the PostgresCache that leads
    until timestamptz NOT NULL
);
CREATE TABLE cache_lesson (         -- observations on cached answers (wire.Observation)
    n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    space text COLLATE "C" NOT NULL,
    body bytea NOT NULL
);
CREATE INDEX cache_lesson_by_space ON cache_lesson (space, n);
