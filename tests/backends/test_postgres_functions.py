"""PostgreSQL's functions decide as ``State`` does.

Random histories are played through both, tick by tick. After each tick all answers are compared, and all that is kept:
holds, purses, windows, slots, answers under idempotency keys, and the ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from random import Random
from typing import Any

from msgspec.structs import replace

from routewright._core.accounts.holds import FreedName, Hold, Wait
from routewright._core.accounts.purses import RUN
from routewright.backends.storage.postgres.connections import Address, Connection
from routewright.backends.storage.postgres.request_queue import Ending, PendingAsk
from routewright.backends.storage.postgres.transaction import Server
from routewright.backends.storage.postgres.writer import Writer
from routewright.backends.storage.tables.ledger import ROW, row_of
from routewright.errors import RouterError
from routewright.protocols import Facts
from routewright.wire import WINDOW_S, Ask, Caller, Grant, Left, PutAccount, Replay, RunLimit
from tests.contracts.storage.accounts_model import ACCOUNTS, Chance, Change
from tests.contracts.storage.samples import make_account
from tests.core.account_state import LEASE_S, Ledger
from tests.database_servers import PostgresServer

from .account_storages import SetClock
from .postgres_stores import new_store

TICKS = 8
FOUND = (7787, 257, 284)
"""Histories that find what others rarely do: a call that expired and was released waited for more money, and then got
it; calls queue behind one that is short of two purses, or of the very amount that is left."""
TABLES = "hold party entry purse ledger kept account key owner event".split()
READS = (
    "SELECT id, account, key_id, came_at, ends_at, parties, tokens, slots, nanos, purses, claim, fingerprint, owner, "
    "taken_at, run, run_limit, late FROM hold",
    "SELECT name, slots FROM party WHERE slots <> 0",
    "SELECT name FROM party LEFT JOIN entry ON party = name GROUP BY name HAVING "
    "(party.requests, party.tokens) <> (coalesce(sum(entry.requests), 0), coalesce(sum(entry.tokens), 0))",
    "SELECT party, at, requests, tokens FROM entry WHERE at > {cut} AND (requests, tokens) <> (0, 0)",
    "SELECT account, name, spent, granted, reserved FROM purse WHERE (spent, granted, reserved) <> (0, 0, 0)",
    "SELECT account || name, told FROM purse WHERE told > 0",
    "SELECT claim, account, environment, until, fingerprint, call, result FROM kept",
    f"SELECT account, {ROW} FROM ledger",
)
Known = dict[tuple[Caller, RunLimit | None], Left | None]
"""What callers have left, with and without their agent runs."""


class Rule(Ledger):
    """The accounts by ``State``, for all processes in turn. All times are Unix seconds, as in PostgreSQL."""

    def __init__(self) -> None:
        super().__init__()
        self.paper.accounts.clear()
        self.known: Known = {}

    @property
    def time(self) -> float:
        return self.now

    def answers(
        self, asks: Sequence[PendingAsk], waits: Container[PendingAsk], behind: Mapping[PendingAsk, Iterable[FreedName]]
    ) -> dict[PendingAsk, Any]:
        """The answers to asks, one after the other. ``waits``: those that may wait, and then get a ``Wait``.
        ``behind``: what others wait for, by new asks."""
        for asking in asks:
            self._note(asking.ask, None)
        answers = dict[PendingAsk, Any]()
        queues: list[FreedName] = []
        for asking in asks:
            self.state.queued = dict.fromkeys([*queues, *behind.get(asking, ())], 1)
            found = self._answer(asking)
            if isinstance(found, Wait) and asking in waits:
                queues.append(found.on)
            elif isinstance(found, Wait):
                found = found.give_up()
            answers[asking] = found
        self.state.queued = {}
        return answers

    def expire_silent(self) -> bool:
        """End the holds of processes that were silent for a lease. False: there are none."""
        owners = self.state.silent(self.owner, self.now)
        lost = [call for owner in owners for call in self.state.owners[owner]]
        for call in lost:
            self.expire(call)
        return bool(lost)

    def kept(self) -> dict[str, Any]:
        state, paper = self.state, self.paper
        entries = [
            (name, *entry)
            for name, window in state.windows.items()
            for entry in zip(window.times, window.requests, window.tokens, strict=True)
            if entry[0] > self.now - WINDOW_S and entry[1:] != (0, 0)
        ]
        names = {name for name, _ in paper.charges} | {(account, "account") for account, _ in paper.credits}
        names |= {(account, name) for account, purses in state.sums.items() for name in purses}
        purses = {(*name, *paper.sums(*name), state.purse(*name).reserved) for name in names}
        return {
            "holds": {hold.id: (replace(hold, tags=()), hold.id in paper.expired) for hold in state.holds.values()},
            "slots": {name: window.slots for name, window in state.windows.items() if window.slots},
            "entries": sorted(entries),
            "purses": {purse for purse in purses if purse[2:] != (0, 0, 0)},
            "told": paper.thresholds,
            "answers": {(claim, *answer, *kept) for claim, (*answer, kept) in paper.answers.items()},
            "rows": {(account, row.request_id, row.attempt): row for account, row in paper.rows},
        }

    def _answer(self, asking: PendingAsk) -> Any:
        try:
            return self._decide(asking)
        except RouterError as error:
            return error

    def _decide(self, asking: PendingAsk) -> Any:
        ask, hold = asking.ask, self.state.holds.get(asking.ask.id)
        if asking.kind == "looks":
            self.known[ask.caller, ask.run] = self.state.look(ask.caller, ask.at, ask.run)
            return self.known[ask.caller, ask.run]
        if asking.kind == "widens" and (hold is None or self.state.widen(hold, ask.nanos) is not None):
            return None
        found = hold if asking.kind == "widens" else self.state.admit(ask, self.owner, self.now)
        if not isinstance(found, Hold):
            return found
        if found.run is not None:
            self._note(ask, ask.run)
        return self.state.grant(ask, found)

    def _note(self, ask: Ask, run: RunLimit | None) -> None:
        self.state.payer(ask.caller, ask.at)
        if run is not None:
            self.state.purse(ask.caller.account, RUN + run.id)
        self.known[ask.caller, run] = self.state.left(ask.caller, ask.at, run)


class Database:
    """The same accounts in PostgreSQL."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def clear(self) -> None:
        self._connection.execute("; ".join(f"DELETE FROM {table}" for table in TABLES).encode())

    def kept(self, now: float) -> dict[str, Any]:
        cursor = self._connection.execute("; ".join(READS).format(cut=repr(now - WINDOW_S)).encode())
        results = [cursor.fetchall()]
        while cursor.nextset():
            results.append(cursor.fetchall())
        holds, slots, wrong, entries, purses, told, answers, ledger = results
        assert not wrong, "a party has the sums of its entries"
        rows = [(account, row_of(columns)) for account, *columns in ledger]
        return {
            "holds": {call: hold_of(call, *columns) for call, *columns in holds},
            "slots": dict(slots),
            "entries": sorted(entries),
            "purses": {*purses},
            "told": dict(told),
            "answers": {*answers},
            "rows": {(account, row.request_id, row.attempt): row for account, row in rows},
        }


def hold_of(*row: Any) -> tuple[Hold, bool]:
    """A hold, and whether it was taken again after it expired."""
    *columns, run, run_limit, late = row
    hold = Hold(*columns)
    hold.run = None if run is None else RunLimit(run, run_limit)
    hold.parties = tuple(hold.parties)
    hold.purses = tuple(hold.purses)
    return hold, late


class Listening(Server):
    """Remembers the places of the calls that ``tick`` ended. The others are booked after its asks."""

    def __init__(self, url: str, clock: SetClock) -> None:
        super().__init__(url, clock, inline=True)
        self.ended = set[int]()

    def tick(self, values: Sequence[Any], blobs: Sequence[bytes | None]) -> dict[str, Any]:
        answer = super().tick(values, blobs)
        self.ended.update(answer["ended"])
        return answer


class Process:
    """A process that uses the database, and its calls."""

    def __init__(self, url: str, clock: SetClock) -> None:
        self.server = Listening(url, clock)
        self.writer = Writer(self.server, clock, LEASE_S, inline=True)
        self.clear()

    def clear(self) -> None:
        self.writer.renew()
        self.calls: dict[str, tuple[Ask, Grant]] = {}
        self.over: list[tuple[Grant, Facts]] = []
        self.waiting: list[PendingAsk] = []

    def tick(self, ends: Sequence[Ending], asks: Sequence[PendingAsk]) -> None:
        self.writer.balances.clear()
        self.server.ended.clear()
        self.writer._tick([*ends, *asks])
        waiting = {asking for asking in (*self.waiting, *asks) if asking.waits is not None}
        self.waiting = sorted(waiting, key=attrgetter("number"))
        for asking in asks:
            call, grant = asking.ask.id, asking.result
            if isinstance(grant, Grant):
                if call in self.calls and call.endswith("2"):  # its later grants do not arrive
                    grant = self.calls[call][1]
                self.calls[call] = asking.ask, grant


class History:
    """Two processes that share accounts, tick by tick."""

    def __init__(
        self, processes: Sequence[Process], database: Database, clock: SetClock, rng: Random, *, periods: bool
    ) -> None:
        self.processes, self.database, self.clock, self.rng = processes, database, clock, rng
        self.chance, self.rule = Chance(rng, periods=periods), Rule()
        self.outcomes = Counter[str]()
        database.clear()
        for process in processes:
            process.clear()
        for account in ACCOUNTS:
            if rng.random() < 0.8:  # the others are set up later, or never
                self.change(account, PutAccount(make_account(name=account, monthly_nanos=rng.choice((None, 100, 200)))))

    def go(self, ticks: int) -> None:
        for _ in range(ticks):
            for _ in range(self.rng.choice((0, 0, 1, 2))):
                self.change(*self.chance.change(self.rule.paper.keys))
            self.clock.now += self.chance.pause()
            self.tick(self.rng.choice(self.processes))

    def change(self, account: str, write: Change) -> None:
        server = self.processes[0].server
        server.transact(partial(server.apply, account, [write]), [account])
        self.rule.now, self.rule.owner = self.clock.time(), 0
        self.rule.apply(account, write)

    def tick(self, process: Process) -> None:
        """Play one tick of a process through both, and compare."""
        rule = self.rule
        ends, asks = [*self.ends(process)], [*self.asks(process)]
        if not ends and not asks:
            return
        waits = {asking for asking in asks if asking.ask.waits_s > 0 and asking.until > self.clock.monotonic()}
        others = [asking.waits.on for asking in process.waiting if asking.waits and asking not in asks]
        behind = {asking: others for asking in asks if asking.waits is None}
        process.tick(ends, asks)

        rule.now, rule.owner = self.clock.time(), process.writer.owner
        rule.state.begin(rule.owner, rule.now, rule.now + LEASE_S)
        rule.known.clear()
        ended = [ending for place, ending in enumerate(ends) if place in process.server.ended]
        self.book("ended", ended)
        expected = rule.answers(asks, waits, behind)
        self.book("skipped", [ending for ending in ends if ending not in ended])
        if rule.expire_silent():
            refused = [asking for asking in asks if not isinstance(expected[asking], Grant)]
            expected |= rule.answers(refused, waits, behind)

        for asking in asks:
            answer = asking.waits or asking.error or asking.result
            assert plain(answer) == plain(expected[asking]), asking.ask
            self.outcomes[type(answer).__name__] += 1
        assert {who: left for who, (left, _) in process.writer.balances.items()} == rule.known
        assert self.database.kept(rule.now) == rule.kept()

    def book(self, outcome: str, ends: Sequence[Ending]) -> None:
        """End calls by the rule, and compare the events."""
        for ending in ends:
            assert ending.error is None
            if ending.facts is None:
                self.rule.release(ending.call, ending.tokens)
            else:
                assert [*(ending.result or ())] == self.rule.book(ending.facts).events
                self.outcomes[outcome] += 1

    def ends(self, process: Process) -> Iterator[Ending]:
        """Calls that are settled or released, and sometimes one that was settled before."""
        rng, calls = self.rng, [*process.calls]
        if process.over and rng.random() < 0.2:
            grant, facts = rng.choice(process.over)
            yield Ending(grant.caller.account, grant.id, grant, facts)
        for call in rng.sample(calls, min(len(calls), rng.choice((0, 0, 1, 2, 4)))):
            ask, grant = process.calls.pop(call)
            if rng.random() < 0.2:
                yield Ending(ask.caller.account, call, grant, tokens=rng.choice((None, 0, 3)))
                continue
            facts = self.chance.facts(ask)
            if ask.caller.environment == "production" and rng.random() < 0.7:
                facts.event_id = f"{call} {{}}".format
            process.over.append((grant, facts))
            yield Ending(ask.caller.account, call, grant, facts)

    def asks(self, process: Process) -> Iterator[PendingAsk]:
        """Calls that waited, and others that come, that ask for another amount, or that look."""
        rng, running = self.rng, [ask for ask, _ in process.calls.values()]
        if rng.random() < 0.6:
            yield from process.waiting
        for _ in range(rng.choice((0, 1, 2, 3, 5))):
            ask = self.chance.ask(running, self.clock.time())
            ask = replace(ask, waits_s=rng.choice((0.0, 40.0, 200.0)), windows=rng.random() < 0.95)
            yield PendingAsk(ask, rng.choice(("looks", *("admits",) * 9)), inline=True)
        for call in rng.sample([*process.calls], min(len(process.calls), rng.choice((0, 0, 1)))):
            asking = process.writer.make_widening(process.calls[call][1], rng.randrange(100))
            if asking is not None:
                yield asking


def plain(answer: object) -> object:
    """What can be compared of an answer. The result of a replay is read later."""
    match answer:
        case RouterError():
            return type(answer), str(answer), answer.detail
        case Replay():
            return Replay
    return answer


def play(server: PostgresServer, seeds: Iterable[int]) -> Counter[str]:
    """Play histories, and count the answers."""
    url, clock, outcomes = new_store(server), SetClock(), Counter[str]()
    processes = [Process(url, clock) for _ in range(2)]
    with Address(url).connect() as connection:
        for seed in seeds:
            history = History(processes, Database(connection), clock, Random(seed), periods=seed not in FOUND)
            try:
                history.go(TICKS)
            except (AssertionError, RouterError, KeyError) as error:
                raise AssertionError(f"History(…, Random({seed}))") from error
            outcomes += history.outcomes
    return outcomes


def test_random_histories_have_the_same_answers(postgres_server: PostgresServer, full: bool) -> None:
    outcomes = play(postgres_server, [*FOUND, *range(10_000 if full else 70)])
    assert min(outcomes[each] for each in ("Grant", "Replay", "Wait", "Short", "Left", "RateLimited", "skipped")) > 10
    assert outcomes.keys() >= {"IdempotencyKeyReused", "RouterTimeoutError", "AuthenticationFailed"}
    assert outcomes["ended"] > outcomes["skipped"]
