"""``State`` over in-memory lists, and the helpers its tests share."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from routewright import wire
from routewright._core.accounts.eviction import Eviction
from routewright._core.accounts.holds import Hold, Wait
from routewright._core.accounts.log import Tick, Widened, fold
from routewright._core.accounts.settlement import Booked, End, Expired, end_hold, expire_hold, expired_row, settle
from routewright._core.accounts.state import State
from routewright._core.idempotency import KeptResult
from routewright.protocols import Facts
from tests.contracts.storage.accounts_model import Change
from tests.contracts.storage.samples import AT, AT_S, make_account, make_ask, make_facts, make_key

LEASE_S = 30.0


class Paper:
    """What lasts: all of it in lists, added up whenever it is asked for."""

    def __init__(self) -> None:
        self.accounts: dict[str, wire.Account] = {}
        self.keys: dict[tuple[str, str], wire.Key] = {}
        self.credits: list[tuple[str, int]] = []
        self.charges: list[tuple[tuple[str, str], int]] = []
        self.rows: list[tuple[str, wire.LedgerRow]] = []
        self.expired: dict[str, Expired] = {}
        self.answers: dict[bytes, tuple[str, wire.Environment, float, KeptResult]] = {}
        self.thresholds: dict[str, int] = {}
        self.reads = 0

    def account(self, name: str) -> wire.Account | None:
        return self.accounts.get(name)

    def key(self, account: str, key_id: str) -> wire.Key | None:
        return self.keys.get((account, key_id))

    def sums(self, account: str, purse: str) -> tuple[int, int]:
        self.reads += 1
        granted = sum(nanos for name, nanos in self.credits if name == account) if purse == "account" else 0
        return sum(nanos for name, nanos in self.charges if name == (account, purse)), granted

    def read_result(self, account: str, claim: bytes, now: float) -> KeptResult | None:
        found = self.answers.get(claim)
        return found[-1] if found is not None and now < found[2] else None

    def attempts(self, account: str, call: str) -> set[int]:
        return {row.attempt for name, row in self.rows if (name, row.request_id) == (account, call)}

    def unbook(self, account: str, call: str) -> Expired | None:
        found = self.expired.pop(call, None)
        if found is not None:
            self.rows = [(of, row) for of, row in self.rows if (row.request_id, row.kind) != (call, "expired")]
        return found

    def read_threshold(self, account: str, name: str) -> int:
        return self.thresholds.get(account + name, 0)

    def put_threshold(self, account: str, name: str, threshold: int) -> None:
        self.thresholds[account + name] = threshold


class Ledger:
    """One owner of a state, by default with the account ``acme``. It notes what a log would say, and folds it into
    those that follow, as it was written."""

    def __init__(self, *keys: wire.Key, owner: int = 1, paper: Paper | None = None, **terms: Any) -> None:
        self.paper, self.owner = paper or Paper(), owner
        self.state = State(self.paper)
        self.eviction = Eviction(self.state)
        self.followers: list[State] = []
        self.now = 0.0
        if paper is None:
            self.paper.accounts["acme"] = make_account(**terms)
            self.paper.keys = {(key.account, key.id): key for key in keys}

    @property
    def time(self) -> float:
        """Unix seconds."""
        return AT_S + self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def ask(self, call: str = "c", nanos: int = 0, **given: Any) -> Hold | wire.Replay | Wait | wire.Short:
        return self.admit(make_ask(call, nanos, **{"at": self.time} | given))

    def admit(self, ask: wire.Ask) -> Hold | wire.Replay | Wait | wire.Short:
        self.state.begin(self.owner, self.now, self.now + LEASE_S)
        there, tick = ask.id in self.state.holds, Tick()
        try:
            found = self.state.admit(ask, self.owner, self.time)
            if isinstance(found, Hold):
                tick = Tick(widened=[Widened(found.id, found.nanos)]) if there else Tick(admits=[found])
            return found
        finally:
            self.write(tick)

    def hold(self, call: str = "c", nanos: int = 0, **given: Any) -> Hold:
        found = self.ask(call, nanos, **given)
        assert isinstance(found, Hold), found
        return found

    def short(self, call: str, nanos: int, **given: Any) -> wire.Short:
        """Why there is not enough money, whether or not it is waited for."""
        found = self.ask(call, nanos, **given)
        short = found.short if isinstance(found, Wait) else found
        assert isinstance(short, wire.Short), found
        return short

    def settle(self, call: str = "c", *rows: wire.LedgerRow, **given: Any) -> Booked:
        return self.book(make_facts(call, *rows, **given))

    def book(self, facts: Facts) -> Booked:
        self.state.begin(self.owner, self.now, self.now + LEASE_S)
        booked = settle(self.state, self.paper, facts, self.time)
        self.paper.rows += [(facts.caller.account, row) for row in booked.rows]
        if booked.keeps is not None:
            claim, environment, until, kept = booked.keeps
            self.paper.answers[claim] = facts.caller.account, environment, until, kept
        self.write(Tick(ends=[booked.end]))
        return booked

    def release(self, call: str = "c", tokens: int | None = 0) -> None:
        self.state.begin(self.owner, self.now, self.now + LEASE_S)
        end = End(call, tokens)
        end_hold(self.state, end)
        self.write(Tick(ends=[end]))

    def expire(self, call: str = "c") -> None:
        self.state.begin(self.owner, self.now, self.now + LEASE_S)
        hold = expire_hold(self.state, call)
        assert hold is not None
        before = self.paper.unbook(hold.account, call)
        row = expired_row(hold, before)
        if row is not None and row.cost_range_nanos is not None:
            self.paper.rows.append((hold.account, row))
            self.paper.expired[call] = Expired(row.cost_range_nanos[1], hold.purses)
        self.write(Tick(expired=[call]))

    def apply(self, account: str, write: Change) -> None:
        """Write terms, credit, or that answers are gone."""
        paper = self.paper
        match write:
            case wire.PutAccount(terms):
                paper.accounts[account] = terms
            case wire.PutKey(key):
                paper.keys[account, key.id] = key
            case wire.RevokeKey(key_id, at):
                paper.keys[account, key_id] = replace(paper.keys[account, key_id], revoked_at=at)
            case wire.AddCredit(id, nanos, at) if 0 not in paper.attempts(account, id):
                row = wire.LedgerRow(request_id=id, attempt=0, kind="credit", at=at, credit_nanos=nanos)
                paper.rows.append((account, row))
                paper.credits.append((account, nanos))
            case wire.DeleteResults(environment):
                for claim, (name, of, *_) in [*paper.answers.items()]:
                    if name == account and environment in (None, of):
                        del paper.answers[claim]
        self.change(account)

    def change(self, account: str = "acme") -> None:
        """Say that the terms of an account were changed."""
        self.state.begin(self.owner, self.now, self.now + LEASE_S)
        self.state.forget(account)
        self.write(Tick(changed=[account]))

    def credit(self, nanos: int, account: str = "acme") -> None:
        self.paper.credits.append((account, nanos))
        self.change(account)

    def terms(self, **terms: Any) -> None:
        self.paper.accounts["acme"] = make_account(**terms)
        self.change()

    def write(self, tick: Tick) -> None:
        """Write what the books do not say yet, and what happened."""
        self.paper.charges += [((each.account, each.name), each.charged or 0) for each in self.state.charged]
        self.state.booked()
        said = msgspec.msgpack.encode(tick)
        for each in self.followers:
            fold(each, self.owner, self.now, self.now + LEASE_S, msgspec.msgpack.decode(said, type=Tick))

    def purse(self, name: str, **given: Any) -> wire.Purse:
        return next(each for each in self.standing(**given) if each.name == name)

    def purses(self, **given: Any) -> dict[str, tuple[int, int]]:
        """What is spent and reserved, by purse."""
        return {each.name: (each.spent_nanos, each.reserved_nanos) for each in self.standing(**given)}

    def standing(
        self, at: str = AT, key_id: str | None = "k", run: wire.RunLimit | None = None
    ) -> tuple[wire.Purse, ...]:
        return self.state.standing("acme", wire.Stands(at, key_id, run)).purses

    def kinds(self) -> list[str]:
        return [row.kind for _, row in self.paper.rows]


def full(**terms: Any) -> Ledger:
    """One with a limit of 1,000 at every level."""
    key = make_key(budget_nanos=1_000, monthly_nanos=1_000)
    ledger = Ledger(key, **{"prepaid": True, "monthly_nanos": 1_000} | terms)
    ledger.credit(1_000)
    return ledger


def by_key(key_id: str) -> wire.Caller:
    return wire.Caller("acme", key_id=key_id)


def one(fingerprint: str = "f") -> wire.Claim:
    """The idempotency key that all calls ask for."""
    return wire.Claim("i", fingerprint)


def seen(state: State) -> dict[str, Any]:
    """What a state comes to, however it came to be."""
    cut = state.at - 60.0
    windows = {}
    for name, window in state.windows.items():
        there = [each for each in zip(window.times, window.requests, window.tokens, strict=True) if each[0] > cut]
        if there or window.slots:
            windows[name] = there, window.slots
    return {
        "at": state.at,
        "windows": windows,
        "holds": {name: msgspec.to_builtins(hold) for name, hold in state.holds.items()},
        "claims": {claim: hold.id for claim, hold in state.claims.running.items()},
        "owners": {owner: {*holds} for owner, holds in state.owners.items()},
        "heard": state.heard,
        "reserved": {
            (account, name): sums.reserved
            for account, mine in state.sums.items()
            for name, sums in mine.items()
            if sums.reserved
        },
    }
