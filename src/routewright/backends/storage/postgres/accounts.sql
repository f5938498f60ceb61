-- Functions of accounts and traces. They only check whether an ask fits all limits. If it does not, they return the
-- facts, and State (_core/accounts/state.py) finds the reason of the refusal.
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
    FOR lock IN SELECT DISTINCT hashtextextended(each, 25) FROM unnest(names) AS each ORDER BY 1 LOOP
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
    WITH given AS (
        SELECT day_of(created_at) << 40 | nextval('trace_n') AS n, t.* FROM jsonb_to_recordset(traces) AS t(
            account text, created_at text, id text, environment text, status text, kind text, model text, provider text,
            policy_id text, goal text, strategy text, error text, cache_hit boolean, fallback_used boolean,
            compromised boolean, cost_usd float8, duration_ms float8, key_id text,
            blob int, content int, keys int, shape int, sums bigint[], tags jsonb
        )
    ), traced AS (
        INSERT INTO trace SELECT n, account, created_at, id, environment, status, kind, model, provider, policy_id, goal,
            strategy, error, cache_hit, fallback_used, compromised, cost_usd, duration_ms, key_id FROM given
    ), bodied AS (
        INSERT INTO body SELECT n, blobs[blob], blobs[content], blobs[keys] FROM given
    ), tagged AS (
        INSERT INTO tag SELECT account, t.key, t.value, created_at, id, t.number
        FROM given, jsonb_to_recordset(tags) AS t(key text, value text, number float8) WHERE tags IS NOT NULL
    )
    INSERT INTO uncounted (account, shape, traces, cost, charged, input, output, cached)
    SELECT account, blobs[shape], sums[1], sums[2], sums[3], sums[4], sums[5], sums[6] FROM given;

    INSERT INTO naming SELECT name, count(*) FROM jsonb_array_elements(traces) AS t,
        jsonb_array_elements_text(t -> 'named') AS name GROUP BY name;
END $$;

-- Ends calls and releases their holds; their entries in the windows stay. Returns the ended ones. Less frequent cases
-- are skipped (see transaction.py).
CREATE OR REPLACE FUNCTION end_calls(ends jsonb, blobs bytea[], now float8, today text) RETURNS int[]
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    ended int[];
BEGIN
    WITH e AS (
        SELECT * FROM jsonb_to_recordset(ends) AS e(i int, account text, id text, is_release boolean, nanos bigint,
            used bigint, charge bigint, run bigint, month text, created_at text, tells boolean, is_open boolean)
    ), due AS (  -- what each month comes to if all are charged
        SELECT e.account, e.month, sum(e.charge) AS charge FROM e WHERE e.tells AND e.charge > 0 GROUP BY 1, 2
    ), crossing AS (
        SELECT due.account, due.month FROM due JOIN account USING (account)
        LEFT JOIN purse ON purse.account = due.account AND purse.name = 'month:' || due.month
        LEFT JOIN purse AS told
            ON told.account = due.account AND told.name = 'told:month:' || due.month || ':' || account.monthly
        WHERE account.monthly > 0 AND (coalesce(purse.spent, 0) + due.charge)::numeric * 100 >= account.monthly::numeric
            * CASE WHEN coalesce(told.told, 0) < 50 THEN 50 WHEN told.told < 80 THEN 80
                   WHEN told.told < 100 THEN 100 ELSE NULL END
    ), gone AS (
        DELETE FROM hold USING e WHERE hold.account = e.account AND hold.id = e.id AND (e.is_release OR (
            NOT hold.late AND hold.nanos = e.nanos AND (e.is_open OR cardinality(hold.purses) > 0
                OR NOT EXISTS (SELECT FROM account WHERE account.account = e.account)
                AND NOT EXISTS (SELECT FROM key WHERE key.account = e.account AND key.id = hold.key_id))
            AND NOT EXISTS (SELECT FROM crossing WHERE crossing.account = e.account AND crossing.month = e.month)
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
            CASE WHEN name LIKE 'run:%' THEN today END, -sum(nanos)
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

-- Time of the entry whose expiry frees the needed amount of a window. Null: all entries together are not enough.
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

CREATE OR REPLACE FUNCTION window_facts(names text[], requests bigint[], tokens bigint[], slots bigint[], last float8[],
    requests_limit bigint[], tokens_limit bigint[], k int, amount bigint, at float8) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    requests_need bigint := requests[k] + 1 - requests_limit[k];
    tokens_need bigint := tokens[k] + CASE WHEN amount > tokens_limit[k] THEN 0 ELSE amount - tokens_limit[k] END;
BEGIN
    RETURN CASE WHEN k > 0 THEN jsonb_build_object('requests', requests[k], 'tokens', tokens[k], 'slots', slots[k],
        'last', last[k], 'requests_need', requests_need, 'tokens_need', tokens_need,
        'requests_at', CASE WHEN requests_need > 0 THEN coalesce(leaves(names[k], false, requests_need), at) END,
        'tokens_at', CASE WHEN tokens_need > 0 THEN coalesce(leaves(names[k], true, tokens_need), at) END) END;
END $$;

CREATE OR REPLACE FUNCTION used_of(requests bigint[], tokens bigint[], last float8[], k int) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
    RETURN CASE WHEN k > 0 THEN jsonb_build_array(requests[k], tokens[k], last[k]) END;
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

-- Ends calls and charges their cost, then admits asks.
--
-- settings: owner, lease, at (null: the server's clock), now. ends: ended calls; those that end_calls skips are missing
-- in "ended". asks: processed in order. All changes of an account are made under its lock.
CREATE OR REPLACE FUNCTION tick(settings jsonb, ends jsonb, callers jsonb, asks jsonb, traces jsonb, blobs bytea[]) RETURNS jsonb
LANGUAGE plpgsql SET lock_timeout = '2s' SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    moment float8; now float8; me bigint; lease float8;
    ended int[] := '{}'; is_synced boolean := false; answers jsonb[] := '{}'; facts jsonb; c record; a record;
    i int; k int; n int; fits boolean; was_fit boolean; is_run boolean; is_limited boolean; held bigint; left_ bigint; run_left bigint;
    least bigint; blocked text; queued text[] := '{}'; names text[]; parties text[]; running hold%ROWTYPE; stored jsonb;
    -- callers: places of two windows and four purses each, 0 for none
    c_account text[] := '{}'; c_paying boolean[] := '{}'; c_revoked boolean[] := '{}'; c_windows int[] := '{}';
    c_purses int[] := '{}'; c_terms jsonb[] := '{}';
    -- windows: names, limits, what is used, what this tick takes
    w_name text[] := '{}'; w_requests_limit bigint[] := '{}'; w_tokens_limit bigint[] := '{}';
    w_slots_limit bigint[] := '{}'; w_requests bigint[]; w_tokens bigint[]; w_slots bigint[]; w_last float8[];
    w_more_requests bigint[]; w_more_tokens bigint[];
    -- purses: accounts and names, limits, sums, what this tick reserves
    p_whose text[] := '{}'; p_account text[] := '{}'; p_name text[] := '{}'; p_limit bigint[] := '{}';
    p_prepaid boolean[] := '{}'; p_spent bigint[]; p_granted bigint[]; p_reserved bigint[]; p_more bigint[];
BEGIN
    PERFORM lock_accounts(ARRAY(SELECT jsonb_array_elements_text(settings -> 'accounts')), (settings -> 'hurries')::boolean);
    moment := coalesce((settings ->> 'at')::float8, extract(epoch FROM clock_timestamp()));
    now := coalesce((settings ->> 'now')::float8, moment);
    me := (settings ->> 'owner')::bigint;
    lease := (settings ->> 'lease')::float8;
    IF settings ->> 'at' IS NULL THEN
        PERFORM spare(me, moment, lease);
    END IF;
    INSERT INTO owner VALUES (me, moment + lease, (settings ->> 'tick')::bigint) ON CONFLICT (id) DO UPDATE
        SET until = excluded.until, ticks = excluded.ticks, is_spared = false WHERE owner.ticks < excluded.ticks;
    IF NOT FOUND THEN  -- its connection was given up, and with it its calls
        RAISE object_not_in_prerequisite_state USING MESSAGE = 'a later tick has come before this one';
    END IF;

    IF jsonb_array_length(ends) > 0 THEN
        ended := end_calls(ends, blobs, now, settings ->> 'today');
        is_synced := EXISTS (SELECT FROM unnest(ended) AS n WHERE NOT (ends -> n ->> 'is_release')::boolean);
        IF jsonb_array_length(traces) > 0 THEN
            PERFORM put_traces((SELECT jsonb_agg(t) FROM jsonb_array_elements(traces) AS t
                WHERE (t ->> 'end')::int = ANY (ended)), blobs);
        END IF;
    END IF;

    IF jsonb_array_length(asks) > 0 THEN
        FOR c IN
            SELECT x.*, acc.account IS NOT NULL AS is_set_up, acc.requests, acc.tokens, acc.slots, acc.prepaid, acc.monthly,
                key.id IS NOT NULL AS has_key, key.requests AS key_requests, key.tokens AS key_tokens,
                key.slots AS key_slots, key.budget, key.monthly AS key_monthly,
                key.compromised_from IS NOT NULL OR x.is_made AND key.id IS NULL AS is_revoked,
                jsonb_build_object('account', convert_from(acc.body, 'UTF8'), 'key', convert_from(key.body, 'UTF8')) AS terms
            FROM jsonb_to_recordset(callers) AS x(i int, account text, key text, month text, pays boolean, window_ text,
                key_window text, is_made boolean)
            LEFT JOIN account AS acc ON acc.account = x.account
            LEFT JOIN key ON key.account = x.account AND key.id = x.key ORDER BY x.i
        LOOP
            FOR k IN 1 .. 2 LOOP
                i := 0;
                names := CASE k WHEN 1 THEN ARRAY[c.window_] ELSE ARRAY[c.key_window] END;
                IF names[1] IS NOT NULL AND (k = 1 AND num_nonnulls(c.requests, c.tokens, c.slots) > 0
                        OR k = 2 AND num_nonnulls(c.key_requests, c.key_tokens, c.key_slots) > 0) THEN
                    i := array_position(w_name, names[1]);
                    IF i IS NULL THEN
                        w_name := w_name || names;
                        w_requests_limit := w_requests_limit || CASE k WHEN 1 THEN c.requests ELSE c.key_requests END;
                        w_tokens_limit := w_tokens_limit || CASE k WHEN 1 THEN c.tokens ELSE c.key_tokens END;
                        w_slots_limit := w_slots_limit || CASE k WHEN 1 THEN c.slots ELSE c.key_slots END;
                        i := cardinality(w_name);
                    END IF;
                END IF;
                c_windows := c_windows || i;
            END LOOP;
            names := ARRAY['key:' || c.key, 'key:' || c.key || ':' || c.month, 'account', 'month:' || c.month];
            FOR k IN 1 .. 4 LOOP
                i := 0;
                IF c.pays AND (k < 3 AND c.has_key OR k > 2 AND c.is_set_up) THEN
                    i := array_position(p_whose, c.account || E'\x01\x03' || names[k]);
                    IF i IS NULL THEN
                        p_whose := p_whose || (c.account || E'\x01\x03' || names[k]);
                        p_account := p_account || c.account;
                        p_name := p_name || names[k];
                        p_limit := p_limit || CASE k WHEN 1 THEN c.budget WHEN 2 THEN c.key_monthly WHEN 4 THEN c.monthly END;
                        p_prepaid := p_prepaid || (k = 3 AND c.prepaid);
                        i := cardinality(p_whose);
                    END IF;
                END IF;
                c_purses := c_purses || i;
            END LOOP;
            c_account := c_account || c.account;
            c_paying := c_paying || c.pays;
            c_revoked := c_revoked || c.is_revoked;
            c_terms := c_terms || c.terms;
        END LOOP;
        FOR c IN SELECT DISTINCT c_account[x.caller + 1] AS account, 'run:' || x.run AS name
            FROM jsonb_to_recordset(asks) AS x(caller int, run text) WHERE x.run IS NOT NULL
        LOOP
            p_whose := p_whose || (c.account || E'\x01\x03' || c.name);
            p_account := p_account || c.account;
            p_name := p_name || c.name;
            p_limit := p_limit || NULL::bigint;
            p_prepaid := p_prepaid || false;
        END LOOP;

        IF EXISTS (SELECT FROM entry WHERE party = ANY (w_name) AND entry.at > moment + 1) THEN  -- the clock was set back
            WITH ahead AS (
                DELETE FROM entry WHERE party = ANY (w_name) AND entry.at > moment RETURNING party, requests, tokens
            )
            INSERT INTO entry SELECT party, moment, sum(requests), sum(tokens) FROM ahead GROUP BY party;
        END IF;
        WITH old AS (
            DELETE FROM entry WHERE party = ANY (w_name) AND entry.at <= moment - 60 RETURNING party, requests, tokens
        )
        UPDATE party SET requests = party.requests - s.requests, tokens = party.tokens - s.tokens FROM (
            SELECT party AS name, sum(requests) AS requests, sum(tokens) AS tokens FROM old GROUP BY party
        ) AS s WHERE party.name = s.name;
        SELECT array_agg(coalesce(requests, 0) ORDER BY o), array_agg(coalesce(tokens, 0) ORDER BY o),
            array_agg(coalesce(slots, 0) ORDER BY o), array_agg(coalesce(last, 0) ORDER BY o),
            array_agg(0::bigint), array_agg(0::bigint)
        INTO w_requests, w_tokens, w_slots, w_last, w_more_requests, w_more_tokens
        FROM unnest(w_name) WITH ORDINALITY AS u(named, o) LEFT JOIN party ON party.name = named;
        SELECT array_agg(coalesce(spent, 0) ORDER BY o), array_agg(coalesce(granted, 0) ORDER BY o),
            array_agg(coalesce(reserved, 0) ORDER BY o), array_agg(0::bigint)
        INTO p_spent, p_granted, p_reserved, p_more
        FROM unnest(p_account, p_name) WITH ORDINALITY AS u(whose, named, o)
        LEFT JOIN purse ON purse.account = whose AND purse.name = named;
        FOR i IN 1 .. cardinality(p_whose) LOOP
            IF p_prepaid[i] THEN
                p_limit[i] := p_granted[i];
            END IF;
        END LOOP;

        FOR a IN SELECT * FROM jsonb_to_recordset(asks) AS x(i int, caller int, id text, came_at float8, lasts float8,
            tokens bigint, nanos bigint, claim text, fingerprint text, run text, run_limit bigint, slot int, waits boolean,
            behind jsonb, kind text) ORDER BY x.i
        LOOP
            n := a.caller + 1;
            fits := NOT c_revoked[n] AND a.kind <> 'looks';
            stored := NULL;
            SELECT * INTO running FROM hold WHERE hold.account = c_account[n] AND hold.id = a.id;
            held := running.nanos;  -- null: it holds nothing yet
            fits := fits OR held IS NOT NULL AND a.kind <> 'looks';  -- its key was revoked since
            is_run := a.run IS NOT NULL AND c_paying[n];
            IF held IS NULL AND a.kind = 'widens' THEN
                fits := false;
            ELSIF held IS NULL THEN
                IF a.claim IS NOT NULL THEN
                    SELECT * INTO running FROM hold
                    WHERE hold.account = c_account[n] AND hold.claim = decode(a.claim, 'hex');
                    SELECT jsonb_build_object('fingerprint', kept.fingerprint, 'call', call) INTO stored FROM kept
                    WHERE kept.account = c_account[n] AND kept.claim = decode(a.claim, 'hex') AND kept.until - now > 0;  -- not by kept_old
                    fits := fits AND running.id IS NULL AND stored IS NULL;
                END IF;
                FOR i IN a.caller * 2 + 1 .. a.caller * 2 + 2 LOOP
                    k := c_windows[i];
                    fits := fits AND (k = 0 OR (w_slots_limit[k] IS NULL OR a.slot = 0 OR w_slots[k] < w_slots_limit[k])
                        AND (w_requests_limit[k] IS NULL OR w_requests[k] < w_requests_limit[k])
                        AND (w_tokens_limit[k] IS NULL OR a.tokens < 1 OR w_tokens[k] + a.tokens <= w_tokens_limit[k]
                            OR (w_tokens[k] = 0 AND w_tokens_limit[k] > 0)));
                END LOOP;
            END IF;

            -- The purses, that of its run first
            was_fit := fits;
            least := NULL;
            blocked := NULL;
            is_limited := false;
            run_left := NULL;
            names := '{}';
            FOR i IN 0 .. 4 LOOP
                IF i = 0 THEN
                    k := CASE WHEN is_run THEN array_position(p_whose, c_account[n] || E'\x01\x03run:' || a.run) ELSE 0 END;
                ELSE
                    k := c_purses[a.caller * 4 + i];
                END IF;
                CONTINUE WHEN NOT was_fit OR k = 0 OR held IS NOT NULL AND p_name[k] <> ALL (running.purses);
                names := names || p_name[k];
                left_ := CASE i WHEN 0 THEN a.run_limit ELSE p_limit[k] END - p_spent[k];
                CONTINUE WHEN left_ IS NULL;
                run_left := CASE i WHEN 0 THEN left_ ELSE run_left END;
                is_limited := true;
                IF left_ - p_reserved[k] + coalesce(held, 0) < a.nanos AND (held IS NULL OR a.nanos > held) THEN
                    fits := false;
                    IF least IS NULL OR left_ < least THEN
                        least := left_;
                        blocked := CASE WHEN left_ >= a.nanos THEN p_whose[k] END;
                    END IF;
                ELSIF held IS NULL AND a.nanos > 0 AND (p_whose[k] = ANY (queued) OR a.behind ? p_name[k]) THEN
                    fits := false;
                    blocked := CASE WHEN least IS NULL THEN coalesce(blocked, p_whose[k]) ELSE blocked END;
                END IF;
            END LOOP;
            IF a.waits AND blocked IS NOT NULL THEN
                queued := queued || blocked;
            END IF;

            facts := jsonb_build_object('i', a.i);
            IF NOT fits THEN
                facts := facts || jsonb_build_object(
                    'held', CASE WHEN held IS NOT NULL THEN jsonb_build_object('nanos', held, 'purses', running.purses) END,
                    'running', CASE WHEN held IS NULL THEN running.fingerprint END,
                    'kept', stored,
                    'queued', (SELECT jsonb_agg(name) FROM unnest(p_whose, p_account, p_name) AS u(whose, account, name)
                        WHERE whose = ANY (queued) AND account = c_account[n]), 'windows', jsonb_build_array(
                        window_facts(w_name, w_requests, w_tokens, w_slots, w_last, w_requests_limit, w_tokens_limit,
                            c_windows[a.caller * 2 + 1], a.tokens, moment),
                        window_facts(w_name, w_requests, w_tokens, w_slots, w_last, w_requests_limit, w_tokens_limit,
                            c_windows[a.caller * 2 + 2], a.tokens, moment)),
                    'purses', (SELECT jsonb_agg(jsonb_build_array(name, spent, granted, reserved))
                        FROM unnest(p_account, p_name, p_spent, p_granted, p_reserved)
                            AS u(account, name, spent, granted, reserved)
                        WHERE account = c_account[n]));
            ELSIF held IS NOT NULL THEN
                IF is_limited THEN
                    UPDATE hold SET nanos = a.nanos WHERE hold.account = c_account[n] AND hold.id = a.id;
                    FOREACH blocked IN ARRAY running.purses LOOP
                        k := array_position(p_whose, c_account[n] || E'\x01\x03' || blocked);
                        p_reserved[k] := p_reserved[k] + a.nanos - held;
                        p_more[k] := p_more[k] + a.nanos - held;
                    END LOOP;
                    is_synced := is_synced OR a.nanos > held;
                    held := a.nanos;
                END IF;
            ELSE
                held := CASE WHEN is_limited THEN a.nanos ELSE 0 END;
                is_synced := is_synced OR held > 0;
                parties := '{}';
                FOR i IN a.caller * 2 + 1 .. a.caller * 2 + 2 LOOP
                    k := c_windows[i];
                    CONTINUE WHEN k = 0;
                    parties := parties || w_name[k];
                    w_requests[k] := w_requests[k] + 1;
                    w_tokens[k] := w_tokens[k] + a.tokens;
                    w_slots[k] := w_slots[k] + a.slot;
                    w_last[k] := moment;
                    w_more_requests[k] := w_more_requests[k] + 1;
                    w_more_tokens[k] := w_more_tokens[k] + a.tokens;
                END LOOP;
                IF held > 0 THEN
                    FOREACH blocked IN ARRAY names LOOP
                        k := array_position(p_whose, c_account[n] || E'\x01\x03' || blocked);
                        p_reserved[k] := p_reserved[k] + held;
                        p_more[k] := p_more[k] + held;
                    END LOOP;
                END IF;
                INSERT INTO hold VALUES (c_account[n], a.id, callers -> a.caller ->> 'key', a.came_at, moment + a.lasts, parties,
                    a.tokens, a.slot, held, names, decode(a.claim, 'hex'), coalesce(a.fingerprint, ''), me, moment,
                    CASE WHEN is_run THEN a.run END, CASE WHEN is_run THEN a.run_limit END,
                    (asks -> a.i -> 'again')::boolean AND EXISTS (SELECT FROM ledger
                        WHERE ledger.account = c_account[n] AND ledger.name = a.id || '/0' AND ledger.kind = 'expired'));
            END IF;
            IF fits THEN
                facts := facts || jsonb_build_object('nanos', held, 'is_limited', is_limited, 'run_left', run_left,
                    'windows', jsonb_build_array(used_of(w_requests, w_tokens, w_last, c_windows[a.caller * 2 + 1]),
                        used_of(w_requests, w_tokens, w_last, c_windows[a.caller * 2 + 2])));
            END IF;
            answers := answers || facts;
        END LOOP;

        INSERT INTO entry SELECT name, moment, requests, tokens
            FROM unnest(w_name, w_more_requests, w_more_tokens) AS u(name, requests, tokens) WHERE requests > 0
            ON CONFLICT (party, at) DO UPDATE
            SET requests = entry.requests + excluded.requests, tokens = entry.tokens + excluded.tokens;
        INSERT INTO party SELECT name, requests, tokens, slots, last
            FROM unnest(w_name, w_requests, w_tokens, w_slots, w_last, w_more_requests)
                AS u(name, requests, tokens, slots, last, more) WHERE more > 0
            ON CONFLICT (name) DO UPDATE SET requests = excluded.requests, tokens = excluded.tokens, slots = excluded.slots,
                last = excluded.last;
        INSERT INTO purse (account, name, spent, granted, reserved, at)
            SELECT account, name, 0, 0, more, CASE WHEN name LIKE 'run:%' THEN settings ->> 'today' END
            FROM unnest(p_account, p_name, p_more) AS u(account, name, more) WHERE more <> 0
            ON CONFLICT (account, name) DO UPDATE SET reserved = purse.reserved + excluded.reserved, at = excluded.at;
    END IF;
    IF NOT is_synced THEN  -- a request that is counted may be lost with the server
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    RETURN jsonb_build_object('at', moment, 'now', now, 'ended', to_jsonb(ended), 'answers', to_jsonb(answers),
        'terms', to_jsonb(c_terms), 'left', (SELECT jsonb_agg(lefts.least ORDER BY lefts.o) FROM (
            SELECT o, (SELECT min(p_limit[p] - p_spent[p]) FROM unnest(c_purses[o * 4 - 3 : o * 4]) AS p WHERE p > 0) AS least
            FROM generate_series(1, cardinality(c_account)) AS o) AS lefts),
        'silent', EXISTS (SELECT FROM owner WHERE until < moment AND id <> me));
END $$;
