-- Functions of accounts and traces. Those of a tick restate rules of _core, which each names first: of State and settlement
-- (accounts/), Window (limits.py) and Claims (idempotency.py). They only check whether an ask fits all limits. If it does
-- not, they return the facts, and State finds the reason of the refusal.
--
-- Plans are made once per session, while tables may be empty (hold nearly always is). Without enable_seqscan = off, a
-- plan would scan whole tables even after they have grown. That setting inflates costs, so jit is off.

CREATE OR REPLACE FUNCTION lock_accounts(names text[], hurries boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE
    lock bigint;
BEGIN  -- in order, so that no two transactions wait for each other
    IF hurries THEN
        PERFORM set_config('lock_timeout', '50ms', true);
    END IF;
    FOR lock IN SELECT DISTINCT hashtextextended(name, 25) FROM unnest(names) AS name ORDER BY 1 LOOP
        PERFORM pg_advisory_xact_lock(lock);
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION day_of(at text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT left(at, 10)::date - DATE '1970-01-01'
$$;

-- Creates the partitions of days and then attaches them, which does not wait for readers. CREATE ... PARTITION OF
-- would, and would block all others meanwhile.
CREATE OR REPLACE FUNCTION make_days(days text[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '2s' AS $$
DECLARE
    day text;
    part record;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('days', 25));
    FOREACH day IN ARRAY days LOOP
        FOR part IN
            SELECT parent, parent || '_' || replace(day, '-', '_') AS name, first, last FROM (VALUES
                ('trace', day, (day::date + 1)::text), ('tag', day, (day::date + 1)::text),
                ('body', (day_of(day) << 40)::text, ((day_of(day) + 1) << 40)::text)) AS bounds(parent, first, last)
        LOOP
            CONTINUE WHEN to_regclass(part.name) IS NOT NULL;
            EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL)', part.name, part.parent);
            EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
                part.parent, part.name, part.first, part.last);
        END LOOP;
    END LOOP;
END $$;

-- Drops a day of trace, tag or body. Returns the number of its rows, an estimate from 100,000 on. Drop only one per
-- transaction: several could deadlock.
CREATE OR REPLACE FUNCTION drop_day(kind text, day text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '2s' AS $$
DECLARE
    part text := kind || '_' || replace(day, '-', '_');
    plan json;
    many bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('days', 25));
    IF part !~ '^(trace|tag|body)_\d{4}_\d\d_\d\d$' OR to_regclass(part) IS NULL THEN
        RETURN 0;
    END IF;
    EXECUTE format('EXPLAIN (FORMAT JSON) SELECT FROM %I', part) INTO plan;
    many := (plan -> 0 -> 'Plan' ->> 'Plan Rows')::float8;
    IF many < 100000 THEN
        EXECUTE format('SELECT count(*) FROM %I', part) INTO many;
    END IF;
    EXECUTE format('DROP TABLE %I', part);
    RETURN many;
END $$;

REVOKE ALL ON FUNCTION make_days, drop_day FROM PUBLIC;  -- they run with their owner's privileges

CREATE OR REPLACE FUNCTION merged(a bytea, b bytea) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    WITH pairs AS (
        SELECT int4(get_byte(together.b, i) | (get_byte(together.b, i + 1) << 8) | (get_byte(together.b, i + 2) << 16) | (get_byte(together.b, i + 3) << 24)) AS bucket,
            int4(get_byte(together.b, i + 4) | (get_byte(together.b, i + 5) << 8) | (get_byte(together.b, i + 6) << 16) | (get_byte(together.b, i + 7) << 24)) AS n
        FROM (SELECT a || b AS b) AS together, generate_series(0, octet_length(together.b) - 8, 8) AS i
    ), sums AS (
        SELECT int4send(bucket) AS k, int4send(sum(n)::int) AS v FROM pairs GROUP BY bucket HAVING sum(n) <> 0
    )
    SELECT coalesce(string_agg(
        substr(k, 4, 1) || substr(k, 3, 1) || substr(k, 2, 1) || substr(k, 1, 1)
        || substr(v, 4, 1) || substr(v, 3, 1) || substr(v, 2, 1) || substr(v, 1, 1), ''), '') FROM sums
$$;

-- A string member of a JSON object. PostgreSQL rejects JSON with an escaped NUL, so escaped NULs and backslashes become
-- spaces first.
CREATE OR REPLACE FUNCTION json_extract(body bytea, name text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT replace(replace(convert_from(body, 'UTF8'), '\\', '  '), '\u0000', ' ')::jsonb ->> name
$$;

CREATE OR REPLACE FUNCTION deliver() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM subscription) THEN
        INSERT INTO delivery (endpoint, event, account, type, state, due, tries)
        SELECT endpoint, NEW.id, account, type, 'waiting', 0, 0 FROM subscription
        WHERE type = json_extract(NEW.body, 'type') AND (NEW.account = '_system'
            OR account = NEW.account AND environment = json_extract(NEW.body, 'environment')) ORDER BY endpoint;
    END IF;
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER event_out AFTER INSERT ON event FOR EACH ROW EXECUTE FUNCTION deliver();

CREATE OR REPLACE FUNCTION plan_endpoint() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    whose text := CASE WHEN TG_OP = 'DELETE' THEN OLD.endpoint ELSE NEW.endpoint END;
BEGIN
    IF TG_OP = 'DELETE' AND OLD.due IS NULL THEN  -- nothing changes: the sweep locks no endpoints
        RETURN NULL;
    END IF;
    UPDATE endpoint SET due = (SELECT min(due) FROM delivery WHERE endpoint = whose AND due IS NOT NULL) WHERE id = whose;
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER delivery_planned AFTER INSERT OR UPDATE OF due OR DELETE ON delivery
FOR EACH ROW EXECUTE FUNCTION plan_endpoint();

CREATE OR REPLACE FUNCTION put_traces(traces jsonb, blobs bytea[]) RETURNS void
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off AS $$
BEGIN
    WITH numbered AS (
        SELECT day_of(created_at) << 40 | nextval('trace_n') AS n, t.* FROM jsonb_to_recordset(traces) AS t(
            account text, created_at text, id text, environment text, status text, kind text, model text, provider text,
            policy_id text, goal text, strategy text, error text, cache_hit boolean, fallback_used boolean,
            compromised boolean, cost_usd float8, duration_ms float8, key_id text,
            blob int, content int, keys int, shape int, sums bigint[], tags jsonb
        )
    ), traced AS (
        INSERT INTO trace SELECT n, account, created_at, id, environment, status, kind, model, provider, policy_id, goal,
            strategy, error, cache_hit, fallback_used, compromised, cost_usd, duration_ms, key_id FROM numbered
    ), bodied AS (
        INSERT INTO body SELECT n, blobs[blob], blobs[content], blobs[keys] FROM numbered
    ), tagged AS (
        INSERT INTO tag SELECT account, t.key, t.value, created_at, id, t.number
        FROM numbered, jsonb_to_recordset(tags) AS t(key text, value text, number float8) WHERE tags IS NOT NULL
    )
    INSERT INTO uncounted (account, shape, traces, cost, charged, input, output, cached)
    SELECT account, blobs[shape], sums[1], sums[2], sums[3], sums[4], sums[5], sums[6] FROM numbered;

    INSERT INTO naming SELECT name, count(*) FROM jsonb_array_elements(traces) AS t,
        jsonb_array_elements_text(t -> 'named') AS name GROUP BY name;
END $$;

-- settlement._crossed: the months, with their accounts, in which calls would reach a further threshold if all were
-- charged.
CREATE OR REPLACE FUNCTION crossed_months(ends jsonb) RETURNS text[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    RETURN ARRAY(SELECT due.account || E'\x01\x03' || month FROM (
            SELECT account, month, sum(charge) AS charge
            FROM jsonb_to_recordset(ends) AS e(account text, month text, charge bigint, tells boolean)
            WHERE charge > 0 GROUP BY 1, 2 HAVING bool_or(tells)
        ) AS due JOIN account AS a ON a.account = due.account
        LEFT JOIN purse ON purse.account = due.account AND purse.name = 'month:' || month
        LEFT JOIN purse AS last ON last.account = due.account AND last.name = 'told:month:' || month || ':' || a.monthly
        WHERE a.monthly > 0 AND (coalesce(purse.spent, 0) + charge)::numeric * 100 >= a.monthly::numeric
            * CASE WHEN coalesce(last.told, 0) < 50 THEN 50 WHEN last.told < 80 THEN 80
                   WHEN last.told < 100 THEN 100 ELSE NULL END);
END $$;

-- settlement.end_hold: ends calls and releases their holds, except their entries in windows. Returns the ended ones. Less
-- frequent cases are skipped (see transaction.py). Who deletes the hold books the call, in the same statement: to look
-- first would charge one twice that is settled twice at once (test_concurrent_settlements_of_a_call_count_once).
CREATE OR REPLACE FUNCTION end_calls(ends jsonb, blobs bytea[], now float8, today text) RETURNS int[]
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    crossed text[] := crossed_months(ends);
    ended int[];
BEGIN
    WITH e AS (
        SELECT * FROM jsonb_to_recordset(ends) AS e(i int, account text, id text, is_release boolean, nanos bigint,
            used bigint, charge bigint, run bigint, month text, created_at text, tells boolean, is_open boolean)
    ), gone AS (
        DELETE FROM hold USING e WHERE hold.account = e.account AND hold.id = e.id AND (e.is_release OR (
            NOT hold.late AND hold.nanos = e.nanos AND (e.is_open OR cardinality(hold.purses) > 0
                OR NOT EXISTS (SELECT FROM account WHERE account.account = e.account)
                AND NOT EXISTS (SELECT FROM key WHERE key.account = e.account AND key.id = hold.key_id))
            AND e.account || E'\x01\x03' || e.month <> ALL (crossed)
            AND NOT EXISTS (SELECT FROM trace WHERE trace.account = e.account AND trace.created_at = e.created_at
                AND trace.id = e.id)))
        RETURNING e.i, e.used, coalesce(e.charge, 0) AS charge, coalesce(e.run, 0) AS of_run, e.is_release, hold.*
    ), corrected AS (
        UPDATE entry SET tokens = entry.tokens + s.by FROM (
            SELECT party, taken_at, sum(used - tokens) AS by FROM gone, unnest(parties) AS party
            WHERE used <> tokens GROUP BY 1, 2
        ) AS s WHERE entry.party = s.party AND entry.at = s.taken_at RETURNING entry.party, s.by
    ), freed AS (
        UPDATE party SET slots = party.slots - s.slots, tokens = party.tokens + s.tokens FROM (
            SELECT name, sum(slots) AS slots, sum(tokens) AS tokens FROM (
                SELECT party AS name, slots, 0 AS tokens FROM gone, unnest(parties) AS party
                UNION ALL SELECT party, 0, by FROM corrected) AS changes GROUP BY name
        ) AS s WHERE party.name = s.name
    ), paid AS (
        INSERT INTO purse (account, name, spent, granted, at, reserved)
        SELECT account, name, sum(CASE WHEN name LIKE 'run:%' THEN of_run ELSE charge END), 0,
            CASE WHEN name ~ '^(run|tag):|(^|:)(day|week):' THEN today END, -sum(nanos)
        FROM gone, unnest(purses) AS name GROUP BY account, name
        HAVING sum(nanos) <> 0 OR sum(CASE WHEN name LIKE 'run:%' THEN of_run ELSE charge END) <> 0
        ON CONFLICT (account, name) DO UPDATE
        SET spent = purse.spent + excluded.spent, reserved = purse.reserved + excluded.reserved, at = excluded.at
    ), booked AS (
        INSERT INTO ledger (account, name, at, kind, key_id, provider, model, input, output, cached, cost, charge, credit,
            least, most, overrun, note, purses)
        SELECT gone.account, r.name, r.at, r.kind, r.key_id, r.provider, r.model, r.input, r.output, r.cached, r.cost,
            r.charge, r.credit, r.least, r.most, r.overrun, r.note,
            CASE WHEN cardinality(gone.purses) > 0 THEN to_json(gone.purses)::text END
        FROM gone, jsonb_to_recordset(ends -> gone.i -> 'rows') AS r(name text, at text, kind text, key_id text,
            provider text, model text, input bigint, output bigint, cached bigint, cost bigint, charge bigint,
            credit bigint, least bigint, most bigint, overrun bigint, note text)
        WHERE NOT gone.is_release
    ), answered AS (
        INSERT INTO kept SELECT gone.account, gone.claim, ends -> gone.i ->> 'environment', gone.fingerprint, gone.id,
            now + 86400, blobs[(ends -> gone.i ->> 'result')::int]
        FROM gone WHERE gone.claim IS NOT NULL AND ends -> gone.i ->> 'result' IS NOT NULL
        ON CONFLICT (account, claim) DO UPDATE SET environment = excluded.environment,
            fingerprint = excluded.fingerprint, call = excluded.call, until = excluded.until, result = excluded.result
    )
    SELECT coalesce(array_agg(i), '{}') INTO ended FROM gone;
    RETURN ended;
END $$;

-- If no process renewed its lease for half a lease, or the clock was set back, the database may have been unreachable,
-- and silent processes may be alive: each gets one more lease, once. Call it after locking accounts.
CREATE OR REPLACE FUNCTION spare(me bigint, moment float8, lease float8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    first float8 := moment + lease / 2;
    last float8 := moment + greatest(lease * 10, 3600);  -- others may have longer leases
BEGIN
    IF EXISTS (SELECT FROM owner WHERE id = me AND until BETWEEN first AND last)
            OR EXISTS (SELECT FROM owner WHERE until BETWEEN first AND last) THEN
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('spare', 25));
    UPDATE owner SET until = moment + lease, is_spared = true
    WHERE id <> me AND (until > last OR until < moment AND NOT is_spared);
END $$;

-- What a tick knows of asks, callers (Payer), their holds, windows and purses. An upgrade may add types, and changes none.
DO $$ BEGIN
    CREATE TYPE ask AS (i int, caller int, id text, came_at float8, lasts float8, tokens bigint, nanos bigint, claim text,
        fingerprint text, run text, run_limit bigint, slot int, again boolean, waits boolean, behind jsonb, kind text);
    CREATE TYPE payer AS (account text, key_id text, pays boolean, is_revoked boolean, is_limited boolean,
        windows int[], names text[], purses int[], terms jsonb);
    CREATE TYPE held AS (nanos bigint, purses text[], running text, answer jsonb);
    CREATE TYPE used_window AS (name text, requests_limit bigint, tokens_limit bigint, slots_limit bigint,
        requests bigint, tokens bigint, slots bigint, last float8, was_requests bigint, was_tokens bigint);
    CREATE TYPE used_purse AS (account text, name text, most bigint, spent bigint, granted bigint, reserved bigint, was bigint);
EXCEPTION WHEN duplicate_object THEN NULL;  -- an upgrade
END $$;

-- State.begin: extends the lease of a process. What is held by those that were silent expires in transaction.py.
CREATE OR REPLACE FUNCTION begin_tick(me bigint, settings jsonb, moment float8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    lease float8 := settings -> 'lease';
BEGIN
    IF settings ->> 'at' IS NULL THEN
        PERFORM spare(me, moment, lease);
    END IF;
    INSERT INTO owner VALUES (me, moment + lease, (settings -> 'tick')::bigint) ON CONFLICT (id) DO UPDATE
        SET until = excluded.until, ticks = excluded.ticks, is_spared = false WHERE owner.ticks < excluded.ticks;
    IF NOT FOUND THEN  -- its connection was given up, and with it its calls
        RAISE object_not_in_prerequisite_state USING MESSAGE = 'a later tick has come before this one';
    END IF;
END $$;

-- Window.age: drops entries older than a minute. Those ahead of a clock that was set back count as taken now.
CREATE OR REPLACE FUNCTION age_windows(callers jsonb, moment float8) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    parties text[] := ARRAY(SELECT unnest(ARRAY[window_, key_window])
        FROM jsonb_to_recordset(callers) AS c(window_ text, key_window text));
BEGIN
    IF EXISTS (SELECT FROM entry WHERE party = ANY (parties) AND entry.at > moment + 1) THEN
        WITH ahead AS (
            DELETE FROM entry WHERE party = ANY (parties) AND entry.at > moment RETURNING party, requests, tokens
        )
        INSERT INTO entry SELECT party, moment, sum(requests), sum(tokens) FROM ahead GROUP BY party;
    END IF;
    WITH old AS (
        DELETE FROM entry WHERE party = ANY (parties) AND entry.at <= moment - 60 RETURNING party, requests, tokens
    )
    UPDATE party SET requests = party.requests - s.requests, tokens = party.tokens - s.tokens FROM (
        SELECT party AS name, sum(requests) AS requests, sum(tokens) AS tokens FROM old GROUP BY party
    ) AS s WHERE party.name = s.name;
END $$;

-- purses.tag_purses: the purses of the tags [key, value] of a call, with their limits.
CREATE OR REPLACE FUNCTION tag_purses(owner text, tags jsonb, day text, week text) RETURNS TABLE (name text, most bigint)
LANGUAGE sql STABLE AS $$
    SELECT 'tag:' || (t.tag ->> 0) || '=' || (t.tag ->> 1) || ':' || p.period, p.most
    FROM account AS a, jsonb_array_elements(tags) WITH ORDINALITY AS t(tag, n), LATERAL (
        SELECT * FROM jsonb_to_recordset(a.tag_limits) AS l(key text, value text, daily_nanos bigint,
            weekly_nanos bigint, monthly_nanos bigint)
        WHERE l.key = t.tag ->> 0 AND (l.value IS NULL OR l.value = t.tag ->> 1) ORDER BY l.value NULLS LAST LIMIT 1
    ) AS l, LATERAL (VALUES (1, 'day:' || day, l.daily_nanos), (2, 'week:' || week, l.weekly_nanos),
        (3, 'month:' || left(day, 7), l.monthly_nanos)) AS p(m, period, most)
    WHERE a.account = owner AND p.most IS NOT NULL ORDER BY t.n, p.m
$$;

-- The purses of asks besides those of their callers: of runs and tags, and what calls hold from, if a limit is gone.
CREATE OR REPLACE FUNCTION further_purses(asks jsonb, payers payer[])
RETURNS TABLE (account text, name text, most bigint) LANGUAGE sql STABLE AS $$
    WITH a AS (
        SELECT payers[caller + 1].account, id, run, again OR kind = 'widens' AS is_held, tags, day, week
        FROM jsonb_to_recordset(asks) AS x(caller int, id text, run text, again boolean, kind text, tags jsonb, day text,
            week text)
    )
    SELECT account, name, max(most) FROM (
        SELECT account, 'run:' || run AS name, NULL::bigint AS most FROM a WHERE run IS NOT NULL
        UNION ALL SELECT a.account, t.name, t.most FROM a, tag_purses(a.account, tags, day, week) AS t
        WHERE tags IS NOT NULL
        UNION ALL SELECT account, unnest(hold.purses), NULL FROM a JOIN hold USING (account, id) WHERE is_held
    ) AS further GROUP BY account, name
$$;

-- State.payer: the callers, with the places of their windows (of the account and of the key; null: no limits) and purses
-- (the innermost first). keys: account and name of each purse. Limits of -1 are balances.
CREATE OR REPLACE FUNCTION payers_of(callers jsonb, asks jsonb,
    OUT payers payer[], OUT windows used_window[], OUT purses used_purse[], OUT keys text[]) LANGUAGE plpgsql AS $$
DECLARE
    c record; p payer; w used_window; parties text[] := '{}'; key text;
BEGIN
    keys := '{}';
    FOR c IN
        SELECT (x.account, x.key, pays, k.compromised_from IS NOT NULL OR is_made AND k.id IS NULL,
                pays AND (a.prepaid IS TRUE OR num_nonnulls(k.budget, k.daily, k.weekly, k.monthly, a.daily, a.weekly,
                    a.monthly) > 0), '{}',
                CASE WHEN pays AND k.id IS NOT NULL THEN ARRAY['key:' || k.id,
                    CASE WHEN k.daily IS NOT NULL THEN 'key:' || k.id || ':day:' || day END,
                    CASE WHEN k.weekly IS NOT NULL THEN 'key:' || k.id || ':week:' || week END,
                    'key:' || k.id || ':' || month] ELSE '{}' END
                || CASE WHEN pays AND a.account IS NOT NULL THEN ARRAY['account',
                    CASE WHEN a.daily IS NOT NULL THEN 'day:' || day END,
                    CASE WHEN a.weekly IS NOT NULL THEN 'week:' || week END, 'month:' || month] ELSE '{}' END, '{}',
                jsonb_build_object('account', convert_from(a.body, 'UTF8'), 'key', convert_from(k.body, 'UTF8')))::payer AS p,
            CASE WHEN k.id IS NOT NULL THEN ARRAY[k.budget, k.daily, k.weekly, k.monthly] END
                || ARRAY[CASE WHEN a.prepaid THEN -1 END, a.daily, a.weekly, a.monthly] AS limits,
            ARRAY[(CASE WHEN num_nonnulls(a.requests, a.tokens, a.slots) > 0 THEN window_ END, a.requests, a.tokens,
                    a.slots, 0, 0, 0, 0, 0, 0)::used_window,
                (CASE WHEN num_nonnulls(k.requests, k.tokens, k.slots) > 0 THEN key_window END, k.requests, k.tokens,
                    k.slots, 0, 0, 0, 0, 0, 0)::used_window] AS windows
        FROM jsonb_to_recordset(callers) AS x(i int, account text, key text, day text, week text, month text, pays boolean,
            window_ text, key_window text, is_made boolean)
        LEFT JOIN account AS a ON a.account = x.account LEFT JOIN key AS k ON k.account = x.account AND k.id = x.key
        ORDER BY x.i
    LOOP
        p := c.p;
        FOREACH w IN ARRAY c.windows LOOP
            IF w.name IS NOT NULL AND w.name <> ALL (parties) THEN
                parties := parties || w.name;
                windows := windows || w;
            END IF;
            p.windows := p.windows || array_position(parties, w.name);
        END LOOP;
        FOR n IN 1 .. cardinality(p.names) LOOP
            CONTINUE WHEN p.names[n] IS NULL;
            key := p.account || E'\x01\x03' || p.names[n];
            IF key <> ALL (keys) THEN
                keys := keys || key;
                purses := purses || (p.account, p.names[n], c.limits[n], 0, 0, 0, 0)::used_purse;
            END IF;
            p.purses := p.purses || array_position(keys, key);
        END LOOP;
        p.names := array_remove(p.names, NULL);
        payers := payers || p;
    END LOOP;
    SELECT purses || array_agg((account, name, most, 0, 0, 0, 0)::used_purse), keys || array_agg(account || E'\x01\x03' || name)
    INTO purses, keys FROM further_purses(asks, payers) WHERE account || E'\x01\x03' || name <> ALL (keys);
END $$;

-- State.purse, State.window: loads what is used.
CREATE OR REPLACE FUNCTION load_use(INOUT windows used_window[], INOUT purses used_purse[]) LANGUAGE plpgsql AS $$
BEGIN
    SELECT array_agg((w.name, x, y, z, coalesce(party.requests, 0), coalesce(party.tokens, 0), coalesce(party.slots, 0),
        coalesce(party.last, 0), coalesce(party.requests, 0), coalesce(party.tokens, 0))::used_window ORDER BY n) INTO windows
    FROM unnest(windows) WITH ORDINALITY AS w(name, x, y, z, a, b, c, d, e, f, n) LEFT JOIN party USING (name);
    SELECT array_agg((p.account, p.name, CASE WHEN p.most = -1 THEN coalesce(purse.granted, 0) ELSE p.most END,
        coalesce(purse.spent, 0), coalesce(purse.granted, 0), coalesce(purse.reserved, 0), coalesce(purse.reserved, 0)
    )::used_purse ORDER BY n) INTO purses
    FROM unnest(purses) WITH ORDINALITY AS p(account, name, most, a, b, c, d, n) LEFT JOIN purse USING (account, name);
END $$;

-- Claims.taken: what a call holds (nanos; null: nothing) of which purses; else who runs under its idempotency key, or
-- which answer is kept under it.
CREATE OR REPLACE FUNCTION held_by(call text, c payer, key bytea, now float8) RETURNS held LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT (own.nanos, own.purses,
        (SELECT other.fingerprint FROM hold AS other WHERE other.account = c.account AND other.claim = key),
        (SELECT jsonb_build_object('fingerprint', kept.fingerprint, 'call', kept.call) FROM kept
            WHERE kept.account = c.account AND kept.claim = key AND kept.until - now > 0))::held  -- not by kept_old
    FROM (VALUES (0)) AS one LEFT JOIN hold AS own ON own.account = c.account AND own.id = held_by.call);
END $$;

-- Window.admits: one more call has room. So it has where there is no window.
CREATE OR REPLACE FUNCTION window_admits(w used_window, amount bigint, slot int) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT w.name IS NULL OR (w.slots_limit IS NULL OR slot = 0 OR w.slots < w.slots_limit)
        AND (w.requests_limit IS NULL OR w.requests < w.requests_limit) AND (w.tokens_limit IS NULL OR amount < 1
            OR w.tokens + amount <= w.tokens_limit OR w.tokens = 0 AND w.tokens_limit > 0)
$$;

-- State._short: the place of the purse with the least left that has not the amount, else of one that others wait for.
-- Null: all have it. own: what the call holds of it; null for a new call.
CREATE OR REPLACE FUNCTION short_of(purses used_purse[], places int[], nanos bigint, own bigint, queued int[],
    behind jsonb) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    k int; least int; waits int;
BEGIN
    FOREACH k IN ARRAY places LOOP
        IF purses[k].most - purses[k].spent - purses[k].reserved + coalesce(own, 0) < nanos THEN
            IF least IS NULL OR purses[k].most - purses[k].spent < purses[least].most - purses[least].spent THEN
                least := k;
            END IF;
        ELSIF own IS NULL AND nanos > 0 AND purses[k].most IS NOT NULL AND (k = ANY (queued) OR behind ? purses[k].name) THEN
            waits := k;
        END IF;
    END LOOP;
    RETURN coalesce(least, waits);
END $$;

-- Window.take: counts a call in its windows.
CREATE OR REPLACE FUNCTION take_windows(windows used_window[], places int[], amount bigint, slot int, moment float8)
RETURNS used_window[] LANGUAGE plpgsql AS $$
DECLARE
    k int;
BEGIN
    FOREACH k IN ARRAY array_remove(places, NULL) LOOP
        windows[k].requests := windows[k].requests + 1;
        windows[k].tokens := windows[k].tokens + amount;
        windows[k].slots := windows[k].slots + slot;
        windows[k].last := moment;
    END LOOP;
    RETURN windows;
END $$;

-- Window.wait_s: the time of the entry whose expiry frees the needed amount. Null: all entries together are not enough.
CREATE OR REPLACE FUNCTION leaves(of_party text, of_tokens boolean, need bigint) RETURNS float8 LANGUAGE plpgsql AS $$
DECLARE
    e record;
BEGIN
    FOR e IN SELECT at, CASE WHEN of_tokens THEN tokens ELSE requests END AS n FROM entry WHERE party = of_party ORDER BY at
    LOOP
        need := need - e.n;
        IF need <= 0 THEN
            RETURN e.at;
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION window_facts(w used_window, amount bigint, at float8) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    requests_need bigint := w.requests + 1 - w.requests_limit;
    tokens_need bigint := w.tokens + CASE WHEN amount > w.tokens_limit THEN 0 ELSE amount - w.tokens_limit END;
BEGIN
    RETURN CASE WHEN w.name IS NOT NULL THEN jsonb_build_object('requests', w.requests, 'tokens', w.tokens,
        'slots', w.slots, 'last', w.last, 'requests_need', requests_need, 'tokens_need', tokens_need,
        'requests_at', CASE WHEN requests_need > 0 THEN coalesce(leaves(w.name, false, requests_need), at) END,
        'tokens_at', CASE WHEN tokens_need > 0 THEN coalesce(leaves(w.name, true, tokens_need), at) END) END;
END $$;

-- Window.states.
CREATE OR REPLACE FUNCTION used_of(w used_window) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN w.name IS NOT NULL THEN jsonb_build_array(w.requests, w.tokens, w.last) END
$$;

-- State.grant: what a call was granted. run: the purse of its agent run.
CREATE OR REPLACE FUNCTION grant_facts(amount bigint, c payer, run used_purse, windows used_window[]) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object('nanos', amount, 'is_limited', c.is_limited OR run.name IS NOT NULL,
        'run_left', run.most - run.spent,
        'windows', jsonb_build_array(used_of(windows[c.windows[1]]), used_of(windows[c.windows[2]])))
$$;

-- The facts by which State finds the reason of a refusal.
CREATE OR REPLACE FUNCTION refusal_facts(a ask, c payer, h held, windows used_window[], purses used_purse[], queued int[],
    moment float8) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
    RETURN jsonb_build_object(
        'held', CASE WHEN h.nanos IS NOT NULL THEN jsonb_build_object('nanos', h.nanos, 'purses', h.purses) END,
        'running', h.running, 'kept', h.answer,
        'queued', (SELECT jsonb_agg(purses[k].name) FROM unnest(queued) AS k WHERE purses[k].account = c.account),
        'windows', jsonb_build_array(window_facts(windows[c.windows[1]], a.tokens, moment),
            window_facts(windows[c.windows[2]], a.tokens, moment)),
        'purses', (SELECT jsonb_agg(jsonb_build_array(name, spent, granted, reserved)) FROM unnest(purses)
            WHERE account = c.account));
END $$;

-- State._inner, for tags: the places of their purses.
CREATE OR REPLACE FUNCTION tag_places(a jsonb, p payer, keys text[]) RETURNS int[] LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN CASE WHEN p.pays AND a ? 'tags' THEN ARRAY(SELECT array_position(keys, p.account || E'\x01\x03' || name)
        FROM tag_purses(p.account, a -> 'tags', a ->> 'day', a ->> 'week')) ELSE '{}' END;
END $$;

-- State.admit, for asks in their order: each takes all that it asks for, or nothing. reserves: some hold more money.
CREATE OR REPLACE FUNCTION admit_calls(asks jsonb, payers payer[], keys text[], owner bigint, moment float8, now float8,
    INOUT windows used_window[], INOUT purses used_purse[], OUT answers jsonb[], OUT reserves boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    this ask; payer payer; own held; k int; run int; places int[]; short int; queued int[] := '{}';
    fits boolean; amount bigint; more bigint;
BEGIN
    FOR this IN SELECT * FROM jsonb_populate_recordset(NULL::ask, asks) ORDER BY i LOOP
        payer := payers[this.caller + 1];
        run := CASE WHEN payer.pays THEN array_position(keys, payer.account || E'\x01\x03run:' || this.run) END;
        places := tag_places(asks -> this.i, payer, keys) || payer.purses;
        IF run IS NOT NULL THEN
            purses[run].most := this.run_limit;
            places := run || places;
        END IF;
        payer.is_limited := payer.is_limited OR cardinality(places) > cardinality(payer.purses);
        own := held_by(this.id, payer, decode(this.claim, 'hex'), now);
        IF own.nanos IS NULL THEN
            amount := CASE WHEN payer.is_limited THEN this.nanos ELSE 0 END;
            fits := this.kind = 'admits' AND NOT payer.is_revoked AND own.running IS NULL AND own.answer IS NULL
                AND window_admits(windows[payer.windows[1]], this.tokens, this.slot)
                AND window_admits(windows[payer.windows[2]], this.tokens, this.slot);
        ELSE  -- State.widen
            places := ARRAY(SELECT array_position(keys, payer.account || E'\x01\x03' || p) FROM unnest(own.purses) AS p);
            amount := CASE (SELECT count(purses[k].most) FROM unnest(places) AS k) WHEN 0 THEN own.nanos ELSE this.nanos END;
            fits := this.kind <> 'looks';
        END IF;
        IF fits AND (own.nanos IS NULL OR amount > own.nanos) THEN
            short := short_of(purses, places, amount, own.nanos, queued, this.behind);
            fits := short IS NULL;
            queued := queued
                || CASE WHEN this.waits AND purses[short].most - purses[short].spent >= amount THEN ARRAY[short] END;
        END IF;
        IF NOT fits THEN
            answers := answers || refusal_facts(this, payer, own, windows, purses, queued, moment);
            CONTINUE;
        END IF;
        more := amount - coalesce(own.nanos, 0);
        reserves := reserves OR more > 0;
        IF own.nanos IS NULL THEN
            windows := take_windows(windows, payer.windows, this.tokens, this.slot, moment);
            INSERT INTO hold VALUES (payer.account, this.id, payer.key_id, this.came_at, moment + this.lasts,
                array_remove(ARRAY[windows[payer.windows[1]].name, windows[payer.windows[2]].name], NULL), this.tokens,
                this.slot, amount, CASE WHEN cardinality(places) > cardinality(payer.purses)
                    THEN ARRAY(SELECT purses[k].name FROM unnest(places) AS k) ELSE payer.names END,
                decode(this.claim, 'hex'), coalesce(this.fingerprint, ''), owner, moment,
                CASE WHEN run > 0 THEN this.run END, CASE WHEN run > 0 THEN this.run_limit END, this.again AND EXISTS (
                    SELECT FROM ledger WHERE (account, name, kind) = (payer.account, this.id || '/0', 'expired')));
        ELSIF more <> 0 THEN
            UPDATE hold SET nanos = amount WHERE account = payer.account AND id = this.id;
        END IF;
        IF more <> 0 THEN
            FOREACH k IN ARRAY places LOOP
                purses[k].reserved := purses[k].reserved + more;
            END LOOP;
        END IF;
        answers := answers || grant_facts(amount, payer, purses[run], windows);
    END LOOP;
END $$;

-- State.take: writes what calls have taken of windows and purses.
CREATE OR REPLACE FUNCTION put_use(windows used_window[], purses used_purse[], moment float8, today text) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    WITH used AS (SELECT * FROM unnest(windows) WHERE requests > was_requests), entered AS (
        INSERT INTO entry SELECT name, moment, requests - was_requests, tokens - was_tokens FROM used
        ON CONFLICT (party, at) DO UPDATE
        SET requests = entry.requests + excluded.requests, tokens = entry.tokens + excluded.tokens
    )
    INSERT INTO party SELECT name, requests, tokens, slots, last FROM used ON CONFLICT (name) DO UPDATE
    SET requests = excluded.requests, tokens = excluded.tokens, slots = excluded.slots, last = excluded.last;
    INSERT INTO purse (account, name, spent, granted, reserved, at)
    SELECT account, name, 0, 0, reserved, CASE WHEN name ~ '^(run|tag):|(^|:)(day|week):' THEN today END
    FROM unnest(purses) WHERE reserved <> was ON CONFLICT (account, name) DO UPDATE
    SET reserved = excluded.reserved, at = excluded.at;
END $$;

-- A tick of a process: ends calls and charges their cost, then admits asks. All changes of an account are made under its
-- lock. settings: owner, lease, at (null: the server's clock), now. ends: those that end_calls skips are missing in
-- "ended".
CREATE OR REPLACE FUNCTION tick(settings jsonb, ends jsonb, callers jsonb, asks jsonb, traces jsonb, blobs bytea[]) RETURNS jsonb
LANGUAGE plpgsql SET lock_timeout = '2s' SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off AS $$
DECLARE
    me bigint := settings -> 'owner'; moment float8; now float8; ended int[] := '{}'; is_synced boolean := false;
    payers payer[]; windows used_window[]; purses used_purse[]; keys text[]; answers jsonb[] := '{}'; reserves boolean;
BEGIN
    PERFORM lock_accounts(ARRAY(SELECT jsonb_array_elements_text(settings -> 'accounts')), (settings -> 'hurries')::boolean);
    moment := coalesce((settings ->> 'at')::float8, extract(epoch FROM clock_timestamp()));
    now := coalesce((settings ->> 'now')::float8, moment);
    PERFORM begin_tick(me, settings, moment);
    IF jsonb_array_length(ends) > 0 THEN
        ended := end_calls(ends, blobs, now, settings ->> 'today');
        is_synced := EXISTS (SELECT FROM unnest(ended) AS n WHERE NOT (ends -> n ->> 'is_release')::boolean);
        IF jsonb_array_length(traces) > 0 THEN
            PERFORM put_traces((SELECT jsonb_agg(t) FROM jsonb_array_elements(traces) AS t
                WHERE (t ->> 'end')::int = ANY (ended)), blobs);
        END IF;
    END IF;
    IF jsonb_array_length(asks) > 0 THEN
        PERFORM age_windows(callers, moment);
        SELECT * INTO payers, windows, purses, keys FROM payers_of(callers, asks);
        SELECT * INTO windows, purses FROM load_use(windows, purses);
        SELECT * INTO windows, purses, answers, reserves
        FROM admit_calls(asks, payers, keys, me, moment, now, windows, purses);
        PERFORM put_use(windows, purses, moment, settings ->> 'today');
    END IF;
    IF NOT is_synced AND reserves IS NOT TRUE THEN  -- a request that is counted may be lost with the server
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    RETURN (SELECT jsonb_build_object('at', moment, 'now', now, 'ended', to_jsonb(ended), 'answers', to_jsonb(answers),
        'terms', coalesce(jsonb_agg(c.terms ORDER BY n), '[]'), 'left', jsonb_agg((
            SELECT min(purses[k].most - purses[k].spent) FROM unnest(c.places) AS k) ORDER BY n),
        'spent', jsonb_agg(ARRAY(SELECT purses[k].spent FROM unnest(c.places) AS k) ORDER BY n),
        'silent', EXISTS (SELECT FROM owner WHERE until < moment AND id <> me))
        FROM unnest(payers) WITH ORDINALITY AS c(a, k, p, r, l, w, m, places, terms, n));
END $$;
