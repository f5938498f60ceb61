"""A naive model of limits, budgets and idempotency keys, and random histories that compare a storage with it.

The model keeps everything that happened in lists, and counts anew whenever it matters.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from fractions import Fraction
from random import Random
from typing import Any, Literal

from msgspec.structs import replace

from routewright._core.accounts.terms import limits_of
from routewright._core.idempotency import RESULT_TTL_S
from routewright.errors import AuthenticationFailed, IdempotencyKeyReused, RateLimited, RouterError, RouterTimeoutError
from routewright.protocols import Accounts, Facts, LimitingStorage
from routewright.testing import FakeClock
from routewright.wire import (
    Account,
    AddCredit,
    Ask,
    Caller,
    Claim,
    DeleteResults,
    Environment,
    Grant,
    Key,
    LedgerRow,
    LedgerRows,
    PutAccount,
    PutKey,
    RateLimits,
    Replay,
    RevokeKey,
    RunLimit,
    Short,
    Stands,
    TagLimit,
    Tags,
)
from routewright.wire.timestamps import timestamp

from .samples import AT, AT_S, DAY_S, make_account, make_ask, make_facts, make_key, make_row

Outcome = Literal["admitted", "replay", "reused", "busy", "limited", "short", "waits", "revoked"]
"""The outcome of an ask without waiting. ``busy``: another call has its idempotency key; ``waits``: others hold the
money."""
REFUSALS: dict[type[RouterError], Outcome] = {
    AuthenticationFailed: "revoked",
    IdempotencyKeyReused: "reused",
    RateLimited: "limited",
    RouterTimeoutError: "busy",
}
Change = PutAccount | PutKey | RevokeKey | AddCredit | DeleteResults
ACCOUNTS, KEYS, RUNS = ("acme", "other"), ("k1", "k2"), (RunLimit("r1", 120), RunLimit("r2", 120))
PAUSES = (0.0, 0.0, 0.5, 7.3, 20.0, 29.5, 59.5, 60.0, 61.7)


@dataclass(slots=True)
class Taken:
    """An admitted call."""

    ask: Ask
    at: Fraction
    parties: list[str]
    tokens: int
    nanos: int
    purses: list[str]
    runs: bool = True


@dataclass(slots=True)
class Charged:
    """What a call was charged."""

    account: str
    purses: Sequence[str]
    charge: int
    run_nanos: int


@dataclass(slots=True)
class Answer:
    """An answer under an idempotency key."""

    scope: tuple[str, Environment, str]
    fingerprint: str
    call: str
    result: bytes
    until: float


class NaiveAccounts:
    """Several accounts with keys and runs. Times are fractions, so that the model shares no rounding with the
    storage."""

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds of the monotonic clock."""
        self.accounts: dict[str, Account] = {}
        self.keys: dict[tuple[str, str], Key] = {}
        self.credits: dict[tuple[str, str], int] = {}
        self.taken: list[Taken] = []
        self.charged: list[Charged] = []
        self.rows: dict[tuple[str, str, int], LedgerRow] = {}
        self.lost: dict[str, tuple[str, int, Sequence[str]]] = {}
        """Calls of dead processes: account, most possible cost, and purses."""
        self.answers: list[Answer] = []

    @property
    def time(self) -> float:
        """Unix seconds."""
        return AT_S + self.now

    # Whose limits hold, and who pays

    def parties(self, caller: Caller) -> dict[str, RateLimits]:
        key = self._key(caller)
        found = {f"account {caller.account} {caller.environment}": limits_of(self.accounts.get(caller.account))}
        if key is not None and key.limits is not None:
            found[f"key {caller.account} {key.id}"] = key.limits
        return {name: limits for name, limits in found.items() if limits != RateLimits()}

    def purses(self, caller: Caller, day: str, run: RunLimit | None, tags: Tags = ()) -> dict[str, int | None]:
        account, key = self.accounts.get(caller.account), self._key(caller)
        first = date.fromisoformat(day)
        while first.weekday():
            first -= timedelta(days=1)
        purses: dict[str, int | None] = {}
        if caller.environment == "sandbox":
            return purses
        if run is not None:
            purses[f"run:{run.id}"] = run.limit_nanos
        days, months = {"day": day, "week": str(first)}, {"month": day[:7]}
        if account is not None:
            for name, value in tags:
                own = [limit for limit in account.tag_limits if limit.key == name and limit.value in (None, value)]
                for limit in sorted(own, key=lambda limit: limit.value is None)[:1]:
                    purses |= _limited(f"tag:{name}={value}:", limit.period_nanos, days | months)
        if key is not None:
            purses[f"key:{key.id}"] = key.budget_nanos
            purses |= _limited(f"key:{key.id}:", key.period_nanos, days)
            purses[f"key:{key.id}:{day[:7]}"] = key.monthly_nanos
        if account is not None:
            purses["account"] = self.granted(account.name) if account.prepaid else None
            purses |= _limited("", account.period_nanos, days)
            purses[f"month:{day[:7]}"] = account.monthly_nanos
        return purses

    def granted(self, account: str) -> int:
        return sum(nanos for (name, _), nanos in self.credits.items() if name == account)

    def spent(self, account: str, purse: str) -> int:
        """The amount charged to a purse; for a run including unknown costs."""
        mine = [each for each in self.charged if each.account == account and purse in each.purses]
        if not purse.startswith("run:"):
            return sum(each.charge for each in mine)
        unknown = sum(most for name, most, purses in self.lost.values() if name == account and purse in purses)
        return unknown + sum(each.run_nanos for each in mine)

    def reserved(self, account: str, purse: str) -> int:
        return sum(each.nanos for each in self.running() if each.ask.caller.account == account and purse in each.purses)

    def running(self) -> list[Taken]:
        return [each for each in self.taken if each.runs]

    def call(self, call: str) -> Taken | None:
        return next((each for each in self.running() if each.ask.id == call), None)

    def within(self, party: str) -> list[Taken]:
        """The calls in the window of a party."""
        return [each for each in self.taken if party in each.parties and Fraction(self.now) - 60 < each.at]

    # The outcome of an ask

    def outcome(self, ask: Ask) -> Outcome:
        own = self.call(ask.id)
        if own is not None:
            return self._money(own.ask, ask.nanos, own)
        key = self._key(ask.caller)
        if key is not None and key.revoked_at is not None:
            return "revoked"
        if ask.claim is not None:
            of = self._of_key(ask)
            if of is not None:
                there, busy = of
                return "reused" if there != ask.claim.fingerprint else "busy" if busy else "replay"
        if any(not self._has_room(party, limits, ask) for party, limits in self.parties(ask.caller).items()):
            return "limited"
        return self._money(ask, ask.nanos, None)

    def remaining(self, caller: Caller) -> list[int]:
        """Remaining requests and tokens, of the account and then of the key."""
        found = list[int]()
        for party, limits in self.parties(caller).items():
            there = self.within(party)
            if limits.requests_per_min is not None:
                found.append(max(0, limits.requests_per_min - len(there)))
            if limits.tokens_per_min is not None:
                found.append(max(0, limits.tokens_per_min - sum(each.tokens for each in there)))
        return found

    def _has_room(self, party: str, limits: RateLimits, ask: Ask) -> bool:
        there, running = self.within(party), [each for each in self.running() if party in each.parties]
        tokens, slots = sum(each.tokens for each in there), sum(each.ask.slot for each in running)
        return (
            (limits.requests_per_min is None or len(there) < limits.requests_per_min)
            and (limits.concurrency is None or not ask.slot or slots < limits.concurrency)
            and (
                limits.tokens_per_min is None
                or ask.tokens == 0
                or tokens + ask.tokens <= limits.tokens_per_min
                or (tokens == 0 and limits.tokens_per_min > 0)
            )
        )

    def _of_key(self, ask: Ask) -> tuple[str, bool] | None:
        """The fingerprint under an ask's key, and True if its call is running."""
        scope = scope_of(ask.caller, ask.claim)
        for each in self.running():
            if each.ask.claim is not None and scope_of(each.ask.caller, each.ask.claim) == scope:
                return each.ask.claim.fingerprint, True
        for kept in self.answers:
            if kept.scope == scope and self.time < kept.until:
                return kept.fingerprint, False
        return None

    def _money(self, ask: Ask, nanos: int, own: Taken | None) -> Outcome:
        if own is not None and nanos <= own.nanos:
            return "admitted"
        purses = self.purses(ask.caller, timestamp(ask.at)[:10], ask.run, ask.tags)
        if own is not None:
            purses = {name: purses.get(name) for name in own.purses}
        found: Outcome = "admitted"
        for name, limit in purses.items():
            if limit is not None:
                left = limit - self.spent(ask.caller.account, name)
                others = self.reserved(ask.caller.account, name) - (0 if own is None else own.nanos)
                if nanos > left:
                    return "short"
                if nanos > left - others:
                    found = "waits"
        return found

    # What happens

    def admit(self, ask: Ask) -> None:
        own = self.call(ask.id)
        purses = self.purses(ask.caller, timestamp(ask.at)[:10], ask.run, ask.tags)
        if own is not None:
            if any(purses.get(name) is not None for name in own.purses):
                own.nanos = ask.nanos
            return
        nanos = ask.nanos if any(limit is not None for limit in purses.values()) else 0
        self.taken.append(Taken(ask, Fraction(self.now), [*self.parties(ask.caller)], ask.tokens, nanos, [*purses]))

    def settle(self, facts: Facts) -> None:
        held, account, day = self.call(facts.id), facts.caller.account, facts.created_at[:10]
        lost = self.lost.pop(facts.id, None)
        rows = [row for row in facts.rows if (account, facts.id, row.attempt) not in self.rows]
        purses: Sequence[str] = [*self.purses(facts.caller, day, facts.run, facts.tags)] if lost is None else lost[2]
        keeps = facts.claim is not None and facts.result is not None
        if held is not None:
            self.end(held, facts.tokens)
            purses = held.purses
        elif keeps:
            of = [each for each in self.answers if each.scope == scope_of(facts.caller, facts.claim)]
            of = [each for each in of if self.time < each.until]
            keeps = not of and self._of_key(make_ask(caller=facts.caller, claim=facts.claim)) is None
            if not keeps and not any(each.call == facts.id for each in of):
                rows = [replace(row, charge_nanos=0) for row in rows]
        self.rows |= {(account, facts.id, row.attempt): row for row in rows}
        cost = max(sum(row.cost_nanos for row in rows), facts.run_nanos or 0) if rows else 0
        self.charged.append(Charged(account, purses, sum(row.charge_nanos for row in rows), cost))
        if keeps and facts.claim is not None and facts.result is not None:
            scope, until = scope_of(facts.caller, facts.claim), self.time + RESULT_TTL_S
            self.answers.append(Answer(scope, facts.claim.fingerprint, facts.id, facts.result, until))

    def end(self, held: Taken, tokens: int | None) -> None:
        held.runs = False
        held.tokens = held.tokens if tokens is None else tokens

    def lose(self, held: Taken) -> None:
        """Record that the process of a call died."""
        held.runs = False
        _, before, _ = self.lost.get(held.ask.id, ("", 0, ()))
        if before + held.nanos:
            self.lost[held.ask.id] = held.ask.caller.account, before + held.nanos, held.purses

    def change(self, account: str, write: Change) -> None:
        match write:
            case PutAccount(terms):
                self.accounts[account] = terms
            case PutKey(key):
                self.keys[account, key.id] = key
            case RevokeKey(key_id, at):
                self.keys[account, key_id] = replace(self.keys[account, key_id], revoked_at=at)
            case AddCredit(id, nanos):
                self.credits.setdefault((account, id), nanos)
            case DeleteResults(environment):
                gone = {(account, of) for of in ("production", "sandbox") if environment in (None, of)}
                self.answers = [each for each in self.answers if each.scope[:2] not in gone]

    def _key(self, caller: Caller) -> Key | None:
        return None if caller.key_id is None else self.keys.get((caller.account, caller.key_id))


def _limited(prefix: str, limits: Sequence[int | None], periods: Mapping[str, str]) -> dict[str, int]:
    return {
        f"{prefix}{period}:{start}": nanos
        for (period, start), nanos in zip(periods.items(), limits, strict=False)
        if nanos is not None
    }


def scope_of(caller: Caller, claim: Claim | None) -> tuple[str, Environment, str]:
    """The scope in which an idempotency key is unique."""
    return caller.account, caller.environment, "" if claim is None else claim.key


class Chance:
    """Draws the next step of a history, from ``random.Random(seed)`` or hypothesis's ``st.randoms()``, which shrinks
    failing histories. ``periods``: with limits by day, by week and for tags."""

    def __init__(self, rng: Random, *, periods: bool = True) -> None:
        self.rng, self.periods = rng, periods
        self.calls = 0

    def caller(self) -> Caller:
        environment: Environment = "sandbox" if self.rng.random() < 0.1 else "production"
        return Caller(self.rng.choice(ACCOUNTS), environment, self.rng.choice((None, *KEYS, "my own")))

    def ask(self, running: Sequence[Ask], at: float) -> Ask:
        """A new call ``at`` a time (Unix seconds), or one that runs and asks for another amount."""
        rng = self.rng
        nanos = rng.choice((0, 1, 10, 30, 60, 90))
        if running and rng.random() < 0.15:
            return replace(rng.choice(running), nanos=nanos)
        self.calls += 1
        claim = Claim(rng.choice("ij"), rng.choice("ffg")) if rng.random() < (0.4 if self.periods else 0.25) else None
        tags: Tags = ()
        if self.periods:
            at -= rng.choice((0.0, 0.0, 0.0, DAY_S / 2, 3 * DAY_S))
            tags = rng.choice(((), (("team", "a"),), (("team", "b"),), (("team", "b"), ("it's", "\x01"))))
        return make_ask(
            f"c{self.calls}", nanos, caller=self.caller(), at=at, tags=tags, tokens=rng.choice((0, 1, 2, 4, 9)),
            claim=claim, run=rng.choice((None, None, *RUNS)), slot=rng.random() < 0.8, lasts_s=1e9,
        )  # fmt: skip

    def facts(self, ask: Ask) -> Facts:
        rng, at = self.rng, timestamp(ask.at)
        rows = [
            make_row(ask.id, attempt, rng.choice((0, 10, 50)), rng.choice((0, 10, 70)), at=at)
            for attempt in range(1, rng.choice((1, 2, 2, 3)))
        ]
        return make_facts(
            ask.id, *rows, caller=ask.caller, created_at=at, run=ask.run, tags=ask.tags, claim=ask.claim,
            tokens=rng.choice((None, 0, 1, 3, 8)), run_nanos=rng.choice((None, 40)),
            result=rng.choice((None, ask.id.encode())),
        )  # fmt: skip

    def change(self, keys: Mapping[tuple[str, str], Key]) -> tuple[str, Change]:
        """A change of an account and its ``keys``."""
        rng, account = self.rng, self.rng.choice(ACCOUNTS)
        limits = RateLimits(
            requests_per_min=rng.choice((None, 0, 3, 8)),
            tokens_per_min=rng.choice((None, 5, 20)),
            concurrency=rng.choice((None, 1, 4)),
        )
        key_id = rng.choice(KEYS)
        match rng.randrange(9):
            case 0 | 1 | 2:
                terms: dict[str, Any] = {"prepaid": rng.random() < 0.5, "monthly_nanos": rng.choice((None, 100, 400))}
                terms |= self.short_limits()
                if self.periods:
                    terms["tag_limits"] = tuple(self.tag_limits())
                return account, PutAccount(make_account(name=account, limits=limits, **terms))
            case 3 | 4:
                budget = {"budget_nanos": rng.choice((None, 90, 300)), "monthly_nanos": rng.choice((None, 100))}
                budget |= self.short_limits()
                there = keys.get((account, key_id))
                revoked_at = None if there is None else there.revoked_at
                digest = f"{account} {key_id}"
                key = make_key(
                    id=key_id, account=account, digest=digest, limits=limits, revoked_at=revoked_at, **budget
                )
                return account, PutKey(key)
            case 5 | 6 | 7:
                return account, AddCredit(f"cr {rng.randrange(40)}", rng.choice((-40, 50, 200)), AT)
        if rng.random() < 0.2 and (account, key_id) in keys:
            return account, RevokeKey(key_id, AT)
        return account, DeleteResults(rng.choice((None, "production")))

    def short_limits(self) -> dict[str, int | None]:
        """Limits by day and by week."""
        names = ("daily_nanos", "weekly_nanos") if self.periods else ()
        return {name: self.rng.choice((None, None, 80, 150)) for name in names}

    def tag_limits(self) -> Iterator[TagLimit]:
        for key, value in (("team", None), ("team", "b"), ("it's", None)):
            if self.rng.random() < 0.5:
                day, week, month = (self.rng.choice((None, 70, 120)) for _ in range(3))
                yield TagLimit(key=key, value=value, daily_nanos=day, weekly_nanos=week, monthly_nanos=month)

    def pause(self) -> float:
        if self.periods and self.rng.random() < 0.02:
            return self.rng.choice((DAY_S / 2, DAY_S / 2, 4 * DAY_S))
        return DAY_S if self.rng.random() < 0.01 else self.rng.choice(PAUSES)


class AccountsWalk:
    """A random walk over calls and terms of several accounts, comparing a storage with the model.

    ``other`` is the storage as a second process opens it. Either process asks and settles. A process that makes no call
    for a lease loses what its calls hold, and may settle them late.
    """

    def __init__(
        self,
        storage: LimitingStorage,
        clock: FakeClock,
        rng: Random,
        *,
        other: LimitingStorage | None = None,
        lease_s: float = 30.0,
    ) -> None:
        self.processes = [storage] if other is None else [storage, other]
        self.clock, self.rng, self.lease_s = clock, rng, lease_s
        self.model, self.chance = NaiveAccounts(), Chance(rng)
        self.grants: dict[str, Grant] = {}
        self.owners: dict[str, int] = {}
        """The process of each call."""
        self.said: list[Facts] = []
        self._steps: tuple[Callable[[], Awaitable[None]], ...] = (
            *(*(self.ask,) * 6, *(self.settle,) * 3, self.settle_again, self.release, self.widen),
            *(*(self.change,) * 2, *(self.wait,) * 2),
        )

    async def go(self, steps: int) -> None:
        """Take some steps. Raises ``AssertionError`` if storage and model differ."""
        for account in ACCOUNTS:
            await self._apply(account, PutAccount(make_account(name=account)))
        await self.processes[0].apply("watch", [PutAccount(make_account(name="watch", monthly_nanos=1_000))])
        for _ in range(steps):
            await self.rng.choice(self._steps)()
            await self._check()
        for account in ACCOUNTS:
            await self._check_rows(account)

    async def ask(self) -> None:
        ask = self.chance.ask([each.ask for each in self.model.running()], self.model.time)
        process = self.owners.setdefault(ask.id, self.rng.randrange(len(self.processes)))
        expected = self.model.outcome(ask)
        found = await outcome_of(self.processes[process].accounts, ask)
        assert found[0] == expected, f"{ask} was answered with {found}, and {expected} by the model"
        if isinstance(found[1], Grant):
            self.model.admit(ask)
            self.grants[ask.id] = found[1]
            assert [state.remaining for state in found[1].windows] == self.model.remaining(ask.caller)

    async def settle(self) -> None:
        running = self.model.running()
        if running:
            await self._settle(self.chance.facts(self.rng.choice(running).ask))

    async def settle_again(self) -> None:
        if self.said:
            await self._settle(self.rng.choice(self.said))

    async def release(self) -> None:
        running = self.model.running()
        if running:
            held, tokens = self.rng.choice(running), self.rng.choice((None, 0, 3))
            owner = self._of(held.ask.id)
            for _ in range(self.rng.randint(1, 2)):
                owner.accounts.release(self.grants[held.ask.id], tokens)
            await owner.read("watch", Stands(AT))  # a release takes effect before what its process asks next
            self.model.end(held, tokens)

    async def widen(self) -> None:
        running = self.model.running()
        if running:
            held, nanos = self.rng.choice(running), self.rng.randrange(100)
            asked = replace(held.ask, nanos=nanos)
            expected = self.model.outcome(asked) == "admitted"
            assert await self._of(held.ask.id).accounts.widen(self.grants[held.ask.id], nanos) is expected
            if expected:
                self.model.admit(asked)

    async def change(self) -> None:
        account, write = self.chance.change(self.model.keys)
        await self._apply(account, write)

    async def wait(self) -> None:
        seconds = self.chance.pause()
        await self.clock.advance(seconds)
        self.model.now = self.clock.monotonic()
        survivor = self.rng.randrange(len(self.processes))
        await self._touch(survivor)  # first: what the others hold is over if that was a lease
        if seconds > self.lease_s:
            for held in self.model.running():
                if self.owners[held.ask.id] != survivor:
                    self.model.lose(held)
                    self.said.append(self.chance.facts(held.ask))
        for process in range(len(self.processes)):
            await self._touch(process)

    async def _touch(self, process: int) -> None:
        """Make a call of another account, which shows that the process lives."""
        accounts = self.processes[process].accounts
        grant = await accounts.admit(make_ask("touch", 1, caller=Caller("watch"), at=self.model.time))
        assert isinstance(grant, Grant)
        accounts.release(grant)
        await self.processes[process].read("watch", Stands(AT))

    def _of(self, call: str) -> LimitingStorage:
        """The process of a call."""
        return self.processes[self.owners[call]]

    async def _apply(self, account: str, write: Change) -> None:
        await self.rng.choice(self.processes).apply(account, [write])
        self.model.change(account, write)

    async def _settle(self, facts: Facts) -> None:
        await self._of(facts.id).accounts.settle(self.grants.get(facts.id), facts)
        self.model.settle(facts)
        self.said.append(facts)

    async def _check(self) -> None:
        """Check that one caller's purses equal the model's."""
        caller, run, at = self.chance.caller(), self.rng.choice(RUNS), timestamp(self.model.time)
        query = Stands(at, caller.key_id, run, (("team", "b"), ("it's", "\x01")))
        standing = await self.rng.choice(self.processes).read(caller.account, query)
        limits = self.model.purses(replace(caller, environment="production"), at[:10], run, query.tags)
        for purse in standing.purses:
            found = purse.limit_nanos, purse.spent_nanos, purse.reserved_nanos
            name, account = purse.name, caller.account
            assert found == (limits.pop(name), self.model.spent(account, name), self.model.reserved(account, name)), (
                name
            )
        assert limits == {}, "a purse is missing"

    async def _check_rows(self, account: str) -> None:
        """Check that the ledger has each row of the model once, and an expired one of each call that is lost."""
        rows = await self.processes[0].scan(account, LedgerRows(), after=None, limit=10_000)
        expected = [
            (call, attempt, row.charge_nanos, row.cost_nanos)
            for (of, call, attempt), row in self.model.rows.items()
            if of == account
        ]
        attempts = [
            (row.request_id, row.attempt, row.charge_nanos, row.cost_nanos) for row in rows if row.kind == "attempt"
        ]
        assert sorted(attempts) == sorted(expected)
        expired = {row.request_id: row.cost_range_nanos for row in rows if row.kind == "expired"}
        assert expired == {call: (0, nanos) for call, (of, nanos, _) in self.model.lost.items() if of == account}


async def outcome_of(accounts: Accounts, ask: Ask) -> tuple[Outcome, object]:
    """The outcome of an ask without waiting, and the storage's answer."""
    try:
        found = await accounts.admit(ask)
    except (AuthenticationFailed, IdempotencyKeyReused, RateLimited, RouterTimeoutError) as error:
        return REFUSALS[type(error)], error
    match found:
        case Grant():
            return "admitted", found
        case Replay():
            return "replay", found
        case Short(waits=waits):
            return "waits" if waits else "short", found
