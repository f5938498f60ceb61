-- The functions of PostgresCache.

CREATE OR REPLACE FUNCTION framed(n bigint, body bytea) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT int8send(n) || int4send(octet_length(body)) || body
$$;

-- Puts an answer, one at a time: the limits hold, and numbers are committed in order. Always uses the indexes: a table
-- that fills quickly has no statistics yet.

CREATE OR REPLACE FUNCTION put_answer(new cache_entry, most_entries bigint, most_bytes bigint) RETURNS void
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
DECLARE
    is_kept int := (new.size <= most_bytes AND new.expires_at > new.created_at)::int;
    total cache_size;
    old record;
    gone bigint[] := '{}';
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('cache', 25));
    SELECT * FROM cache_size INTO total;
    IF NOT FOUND THEN
        INSERT INTO cache_size SELECT count(*), coalesce(sum(size), 0) FROM cache_entry RETURNING * INTO total;
    END IF;
    total := (total.entries + is_kept, total.bytes + is_kept * new.size);
    FOR old IN SELECT n, size, expires_at, true AS is_replaced FROM cache_entry WHERE key = new.key
    UNION ALL (SELECT n, size, expires_at, false FROM cache_entry WHERE key <> new.key ORDER BY expires_at, n) LOOP
        EXIT WHEN NOT old.is_replaced AND total.entries <= most_entries AND total.bytes <= most_bytes
        AND (old.expires_at > new.created_at OR cardinality(gone) > 500);
        gone := gone || old.n;
        total := (total.entries - 1, total.bytes - old.size);
    END LOOP;
    DELETE FROM cache_entry WHERE n = ANY(gone);
    IF is_kept = 1 THEN
        new.n := nextval('cache_n');
        INSERT INTO cache_entry SELECT new.*;
    END IF;
    UPDATE cache_size SET entries = total.entries, bytes = total.bytes;
END $$;

CREATE OR REPLACE FUNCTION drop_answers(numbers bigint[], at float8) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    valid bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('cache', 25));
    WITH gone AS (DELETE FROM cache_entry WHERE n = ANY(numbers) RETURNING expires_at, size),
    counted AS (UPDATE cache_size SET entries = entries - (SELECT count(*) FROM gone),
        bytes = bytes - (SELECT coalesce(sum(size), 0) FROM gone))
    SELECT count(*) FROM gone WHERE expires_at > at INTO valid;
    RETURN valid;
END $$;

CREATE OR REPLACE FUNCTION exchange_lessons(of_space text, told bytea[], heard bigint, most bigint) RETURNS bytea LANGUAGE plpgsql AS $$
DECLARE
    others bytea;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('cache lessons', 25));
    SELECT string_agg(framed(n, body), '' ORDER BY n) FROM cache_lesson WHERE space = of_space
    AND n > CASE WHEN heard <= (SELECT max(n) FROM cache_lesson) THEN heard ELSE 0 END INTO others;  -- else it is a new database
    INSERT INTO cache_lesson (space, body) SELECT of_space, lesson FROM unnest(told) AS lesson;
    DELETE FROM cache_lesson WHERE space = of_space
    AND n <= (SELECT n FROM cache_lesson WHERE space = of_space ORDER BY n DESC OFFSET most LIMIT 1);
    RETURN framed((SELECT coalesce(max(n), 0) FROM cache_lesson), '') || coalesce(others, '');
END $$;
