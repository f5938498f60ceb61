"""Processes share an account in PostgreSQL while they and the database are killed, and nothing is lost.

Database triggers record every hold and check every purse change, in any process.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import aclosing, closing
from pathlib import Path
from random import Random
from typing import Any

import anyio
import psycopg

from routewright.backends.storage.postgres import PostgresStorage
from routewright.backends.storage.postgres.connections import Address
from routewright.backends.storage.postgres.schema import create
from routewright.wire import WINDOW_S, RateLimits, Stands, UsageCounts
from tests.contracts.storage.samples import AT, MONTH
from tests.database_servers import PostgresServer

from .accounts_child import DAY, KEYS
from .test_accounts_processes import LEASE, SLOTS, Crew, Patron, set_up

REQUESTS = 1_500
LIMITS = RateLimits(requests_per_min=REQUESTS, tokens_per_min=40_000, concurrency=SLOTS)
"""Minutes are those of the server's clock, so that the test lasts for less than one, unless it is the full one."""
AUDIT = """
CREATE SEQUENCE audit_n;
CREATE TABLE audit_hold (id text, parties text[], slots int, taken_at float8, began bigint, ended bigint);
CREATE TABLE audit_broken (said text);
CREATE FUNCTION audit_hold() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO audit_hold VALUES (NEW.id, NEW.parties, NEW.slots, NEW.taken_at, nextval('audit_n'));
    ELSE
        UPDATE audit_hold SET ended = nextval('audit_n') WHERE id = OLD.id AND ended IS NULL;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER audit AFTER INSERT OR DELETE ON hold FOR EACH ROW EXECUTE FUNCTION audit_hold();
CREATE FUNCTION audit_purse() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    most bigint := CASE WHEN NEW.name = 'account' THEN NEW.granted
        WHEN NEW.name LIKE 'month:%' THEN (SELECT monthly FROM account WHERE account = NEW.account)
        WHEN NEW.name IN ('key:budget', 'key:monthly:2026-11') THEN 5000000
        WHEN NEW.name LIKE 'run:%' THEN 3000000 END;
    over bigint := (SELECT coalesce(sum(overrun), 0) FROM ledger);
BEGIN
    IF NEW.reserved < 0 OR NEW.spent + NEW.reserved > most + over THEN
        INSERT INTO audit_broken
        VALUES (format('%s: %s + %s > %s + %s', NEW.name, NEW.spent, NEW.reserved, most, over));
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER audit AFTER INSERT OR UPDATE ON purse FOR EACH ROW EXECUTE FUNCTION audit_purse();
"""


async def opened(url: str) -> None:
    async with aclosing(PostgresStorage(url)) as storage:
        await set_up(storage, LIMITS)


def live(folder: Path, server: PostgresServer, url: str, *, processes: int, kills: int, crashes: int) -> Crew:
    """Let them spend while they and the database are killed."""
    chance = Random(1)
    create(Address(url))
    anyio.run(opened, url)
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute(AUDIT)
    crew, patron = Crew(folder, chance, url), Patron(lambda: PostgresStorage(url, lease_s=LEASE), LIMITS)
    try:
        patron.start()
        for role in ("spend",) * (processes - 2) + ("idle", "read"):
            crew.start(role)
        for number in range(kills):
            time.sleep(chance.uniform(0.05, 0.3))
            if number % 4 == 3:
                stopped = crew.stop_one()
                time.sleep(1.5 * LEASE)
                crew.go_on(stopped)
            if number * crashes // kills < (number + 1) * crashes // kills:
                server.kill()
                server.start()
            crew.kill_one()
        time.sleep(1.0)
    finally:
        crew.close()
        patron.end()
    time.sleep(1.2 * LEASE)
    return crew


def rows_of(url: str, sql: str) -> list[Any]:
    with closing(psycopg.connect(url)) as connection:
        return connection.execute(sql).fetchall()


def most_at_once(spans: list[tuple[int, int, int]]) -> int:
    """The most that was held at a time, of amounts that were held from one step until another."""
    changes = sorted([(begin, 1, much) for begin, _, much in spans] + [(end, 0, -much) for _, end, much in spans])
    now = most = 0
    for _, _, change in changes:
        now += change
        most = max(most, now)
    return most


def check_limits(url: str) -> None:
    """No window of a minute and no slots were ever over a limit, and no purse."""
    assert rows_of(url, "SELECT * FROM audit_broken") == []
    taken = rows_of(url, "SELECT parties, slots, taken_at, began, ended FROM audit_hold ORDER BY began")
    for party, requests, slots in (("account:production:acme", REQUESTS, SLOTS), ("key:acme\1\1slow", 60, 4)):
        mine = [each for each in taken if party in each[0]]
        for place, (_, _, at, _, _) in enumerate(mine):
            within = [each for each in mine[: place + 1] if each[2] > at - WINDOW_S]
            assert len(within) <= requests
        assert most_at_once([(began, ended or began, held) for _, held, _, began, ended in mine]) <= slots, party


def check_answers(crew: Crew, url: str) -> Counter[str]:
    """Nothing that was told is lost, doubled or wrong. Says how often what was told."""
    charges: Counter[str] = Counter()
    for name, charge in rows_of(url, "SELECT name, charge FROM ledger WHERE kind = 'attempt'"):
        charges[name.partition("/")[0]] += charge
    results = {call: bytes(result).decode() for call, result in rows_of(url, "SELECT call, result FROM kept")}
    late = {name.partition("/")[0] for (name,) in rows_of(url, "SELECT name FROM ledger WHERE overrun > 0")}
    heard, by_key = Counter[str](), dict[str, str]()
    for each in crew.heard():
        heard[f"{each.what} {each.result}" if each.what == "refused" else each.what] += 1
        if each.what == "settled":
            assert each.call in charges, "a settlement that was answered is lost"
            assert charges[each.call] in (each.charge, 0), f"{each} is charged {charges[each.call]}"
            if each.call in results:
                assert by_key.setdefault(each.key, each.call) == each.call, f"{each.key} was answered twice"
            elif charges[each.call]:
                raise AssertionError(f"{each} is charged and its answer was not kept: {each.call in late}")
        elif each.what == "replayed":
            assert each.result in results, "an answer was given that is not kept"
            assert by_key.setdefault(each.key, each.result) == each.result, f"{each.key} was answered twice"
    return heard


async def sweep(url: str) -> list[Any]:
    """One who comes later finds nothing held, once those before were silent for a lease while it was there."""
    storage = PostgresStorage(url, lease_s=LEASE)
    with anyio.fail_after(30):
        while rows_of(url, "SELECT FROM hold"):
            await storage.sweep(0.0)
            await anyio.sleep(LEASE / 4)
    found = [await storage.read("acme", Stands(AT, key)) for key in KEYS]
    counts = await storage.read("acme", UsageCounts(first=DAY, last=DAY, environment=None, group_by="model"))
    await storage.aclose()
    return [*found, counts]


def check_sums(url: str) -> None:
    """Rows, purses, traces and analytics come to the same, and nothing is reserved."""
    *standings, counts = anyio.run(sweep, url)
    assert all(purse.reserved_nanos == 0 for standing in standings for purse in standing.purses)
    assert rows_of(url, "SELECT * FROM hold") == []
    assert rows_of(url, "SELECT name FROM party WHERE slots <> 0") == []
    purses = {purse.name: purse.spent_nanos for standing in standings for purse in standing.purses}
    ((spent,),) = rows_of(url, "SELECT sum(charge) FROM ledger")
    assert purses["account"] == purses[MONTH] == spent
    assert sum(count.charged_nanos for count in counts.all) == spent
    ((traces, calls),) = rows_of(url, "SELECT (SELECT count(*) FROM trace), (SELECT count(*) FROM body)")
    ((booked,),) = rows_of(url, "SELECT count(DISTINCT split_part(name, '/', 1)) FROM ledger WHERE kind = 'attempt'")
    assert traces == calls == booked


def test_killed_and_stopped_processes_lose_no_answer_and_break_no_limit(tmp_path: Path, full: bool) -> None:
    with PostgresServer(durable=False) as server:
        url = server.database()
        processes, kills, crashes = (8, 200, 20) if full else (5, 4, 1)
        crew = live(tmp_path, server, url, processes=processes, kills=kills, crashes=crashes)
        check_limits(url)
        heard = check_answers(crew, url)
        check_sums(url)
        print(dict(heard), f"{rows_of(url, 'SELECT count(*) FROM audit_hold')[0][0]} holds")
    assert heard["settled"]
    assert heard["admitted"]
