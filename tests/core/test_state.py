"""Running calls and what they hold: each rule, then random histories against a naive model and a replayed log."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from random import Random
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from routewright._core.accounts.eviction import LATE_S
from routewright._core.accounts.holds import Hold, Wait
from routewright._core.accounts.log import Tick, dump, fold, load
from routewright._core.accounts.purses import level_of, purses_of
from routewright._core.accounts.settlement import end_hold, expire_hold
from routewright._core.accounts.state import State
from routewright._core.idempotency import scope_of
from routewright.errors import AuthenticationFailed, IdempotencyKeyReused, RateLimited, RouterError
from routewright.wire import Ask, Caller, Grant, PutAccount, RateLimits, Replay, RunLimit, Short, Stands
from routewright.wire.timestamps import timestamp
from tests.contracts.storage.accounts_model import ACCOUNTS, REFUSALS, RUNS, Chance, NaiveAccounts, Outcome
from tests.contracts.storage.samples import AT_S, MONTH, PURSES, RUN, make_account, make_ask, make_key, make_row

from .account_state import LEASE_S, Ledger, by_key, full, one, seen

# Which purses


def test_a_call_is_paid_from_key_account_and_month_in_order() -> None:
    terms = make_account(prepaid=True, monthly_nanos=3)
    assert [*purses_of(terms, make_key(budget_nanos=1), "2026-11-30").items()] == [
        ("key:k", 1), ("key:k:2026-11", None), ("account", -1), (MONTH, 3),
    ]  # fmt: skip
    assert purses_of(None, None, "2026-11-30") == {}
    assert [level_of(name) for name in PURSES] == ["agent_run", "key", "key", "account", "month"]


# Others that wait


def test_a_new_call_queues_behind_waiting_ones_and_learns_the_limit() -> None:
    ledger = full()
    ledger.state.queued["acme", MONTH] = 1
    found = ledger.ask("c", 10)
    assert isinstance(found, Wait)
    assert found.on == ("acme", MONTH)
    assert found.short is not None
    assert (found.short.waits, found.short.purse.limit_nanos) == (True, 1_000)
    ledger.hold("free", 0)


def test_a_running_call_does_not_queue_behind_waiting_ones() -> None:
    ledger = full()
    ledger.hold("c", 10)
    ledger.hold("reserves nothing")
    ledger.state.queued["acme", MONTH] = 1
    ledger.hold("c", 20)
    ledger.hold("reserves nothing", 20)


def test_freed_money_is_noted_only_if_a_call_waits() -> None:
    ledger = full()
    ledger.hold("c", 10)
    ledger.release("c")
    assert ledger.state.freed == {}
    ledger.hold("c", 10)
    ledger.state.queued["acme", "account"] = 1
    ledger.release("c")
    assert [*ledger.state.freed] == [("acme", "account")]
    ledger.state.freed.clear()
    ledger.credit(5)
    assert [*ledger.state.freed] == [("acme", "account")]


# Widening


def test_widening_a_call_of_a_run_widens_its_run() -> None:
    ledger = full()
    hold = ledger.hold("c", 100, run=RunLimit("r", 300))
    short = ledger.state.widen(hold, 301)
    assert isinstance(short, Short)
    assert short.purse.name == "run:r"
    assert ledger.state.widen(hold, 300) is None
    ledger.settle("c", make_row(charge=200, cost=250))
    assert ledger.purse("run:r", run=RUN).spent_nanos == 250


def test_a_call_admitted_before_a_limit_is_widened_within_it() -> None:
    ledger = Ledger()
    hold = ledger.hold("c", 100)
    assert ledger.state.widen(hold, 200) is None
    assert hold.nanos == 0
    ledger.terms(monthly_nanos=150)
    assert isinstance(ledger.state.widen(hold, 200), Short)
    assert ledger.state.widen(hold, 150) is None
    assert ledger.purses(key_id=None) == {"account": (0, 150), MONTH: (0, 150)}


# Idempotency keys


def test_the_key_is_checked_before_limits_and_money() -> None:
    ledger = Ledger(limits=RateLimits(requests_per_min=1), monthly_nanos=10)
    ledger.hold("c", 10, claim=one())
    assert ledger.ask("d", 10, claim=one()) == Wait(scope_of(Caller("acme"), "i"), None)
    with pytest.raises(IdempotencyKeyReused):
        ledger.ask("d", 10, claim=one("another"))
    ledger.settle("c", make_row(charge=10), claim=one(), result=b"x")
    assert ledger.ask("d", 10, claim=one()) == Replay(b"x")
    with pytest.raises(RateLimited):
        ledger.ask("d", 10)


# What is left


def test_left_reads_only_memory() -> None:
    ledger = full()
    caller = by_key("k")
    assert ledger.state.left(caller, AT_S, None) is None, "nobody asked yet"
    assert ledger.state.look(caller, AT_S, RUN).nanos == 1_000
    reads = ledger.paper.reads
    left = ledger.state.left(caller, AT_S, RunLimit("r", 70))
    assert left is not None
    assert (left.nanos, ledger.paper.reads) == (70, reads)
    assert ledger.state.left(caller, AT_S, RunLimit("another", 70)) is None
    assert ledger.state.left(caller, AT_S + 86_400, None) is None, "it may be another month"
    ledger.change()
    assert ledger.state.left(caller, AT_S, None) is None, "its terms may be others"


# What the books do not say yet


def test_thresholds_count_charges_made_after_a_change_of_terms() -> None:
    ledger = full()
    ledger.hold("c", 900)
    ledger.change()
    booked = ledger.settle("c", make_row(charge=900), event_id=str)
    assert [event.id for event in booked.events] == ["50", "80"]
    assert ledger.purse(MONTH).spent_nanos == 900
    assert not ledger.short("d", 101).waits


# Owners


def test_an_owner_with_holds_that_is_silent_for_a_lease_is_reported() -> None:
    ledger = full()
    ledger.hold("c", 10)
    ledger.wait(LEASE_S)
    ledger.state.begin(2, ledger.now, ledger.now + LEASE_S)
    assert ledger.state.silent(2, ledger.state.at) == []
    ledger.wait(0.001)
    ledger.state.begin(2, ledger.now, ledger.now + LEASE_S)
    assert ledger.state.silent(2, ledger.state.at) == [1]
    assert ledger.state.silent(1, ledger.state.at) == []
    ledger.state.begin(1, ledger.now, ledger.now + LEASE_S)
    assert ledger.state.silent(2, ledger.state.at) == []
    ledger.release("c")
    ledger.wait(1e6)
    ledger.state.begin(2, ledger.now, ledger.now + LEASE_S)
    assert ledger.state.silent(2, ledger.state.at) == [], "it holds nothing"


def test_a_call_that_should_have_ended_a_lease_ago_is_overdue() -> None:
    ledger = full()
    ledger.hold("c", 10, lasts_s=60.0)
    ledger.hold("d", 10, lasts_s=61.0)
    for seconds, expected in ((90.0, []), (0.5, ["c"]), (1.0, ["c", "d"])):
        ledger.wait(seconds)
        ledger.state.begin(1, ledger.now, ledger.now + LEASE_S)
        assert [hold.id for hold in ledger.state.overdue(1, LEASE_S)] == expected
        assert ledger.state.overdue(2, LEASE_S) == []


def test_an_expired_hold_is_freed_except_for_windows_and_its_run() -> None:
    ledger = full(limits=RateLimits(requests_per_min=2, tokens_per_min=10, concurrency=1))
    ledger.hold("c", 800, caller=by_key("k"), run=RUN, tokens=4, claim=one())
    ledger.expire("c")
    assert ledger.purses(run=RUN) == {name: (800 if name == "run:r" else 0, 0) for name in PURSES}
    ledger.hold("d", 1_000, claim=one())
    (window,) = ledger.state.windows.values()
    assert (window.used_requests, window.used_tokens, window.slots) == (2, 4, 1)
    assert expire_hold(ledger.state, "c") is None


# The log


def test_each_tick_of_an_owner_renews_its_lease_for_followers() -> None:
    ledger = full()
    ledger.followers.append(State(ledger.paper))
    ledger.hold("c", 10)
    for _ in range(3):
        ledger.wait(20.0)
        ledger.write(Tick())
        ledger.state.begin(1, ledger.now, ledger.now + LEASE_S)
        assert seen(ledger.followers[0]) == seen(ledger.state)


def test_folding_does_not_read_the_books() -> None:
    ledger = full()
    follower = State(ledger.paper)
    ledger.followers.append(follower)
    reads = ledger.paper.reads
    hold = Hold("c", "acme", None, AT_S, 60.0, (), 0, 0, 10, ("account", MONTH), None, "")
    ticks = [Tick(admits=[hold]), Tick(changed=["acme"])]
    for tick in ticks:
        ledger.write(tick)
    ledger.write(msgspec.convert([[], [], [], [["c", 30]], []], Tick))
    ledger.write(msgspec.convert([[], [], [["c", None, 25]], [], []], Tick))
    assert ledger.paper.reads == reads
    assert (follower.charged, follower.holds) == ([], {})


# What it remembers


def test_idle_names_leave_memory(full: bool) -> None:
    ledger = Ledger()
    sizes = []
    for number in range(50_000 if full else 4_000):
        name = f"a{number}"
        ledger.paper.accounts[name] = make_account(name=name, monthly_nanos=9, limits=RateLimits(requests_per_min=9))
        ledger.paper.charges.clear()
        ledger.hold(name, 5, caller=Caller(name), run=RunLimit(name, 9), claim=one())
        end_hold(ledger.state, msgspec.convert([name, 0, 3, 3], type(ledger.settle(name).end)))
        ledger.wait(1.0)
        ledger.eviction.step(ledger.state.at)
        if number % 100 == 0:
            state = ledger.state
            sizes.append(len(state.windows) + sum(map(len, state.sums.values())) + len(state.payers))
            assert (state.holds, state.claims.running) == ({}, {})
    assert max(sizes) <= 5 * 160
    assert (ledger.state.owners, ledger.state.heard) == ({}, {})


def test_refusals_change_nothing() -> None:
    ledger = Ledger(limits=RateLimits(requests_per_min=0))
    for number in range(1_000):
        with pytest.raises(RateLimited):
            ledger.ask(f"c{number}", claim=one())
    assert (ledger.state.holds, ledger.state.claims.running, ledger.state.owners) == ({}, {}, {})
    assert len(ledger.state.windows) == 1


# A batch


def test_a_batch_equals_single_calls_and_never_overdraws() -> None:
    asks = [make_ask(f"c{number}", nanos, tokens=4, claim=one()) for number, nanos in enumerate((700, 400, 200))]
    asks += [make_ask("d", 300, tokens=3), make_ask("e", 100, run=RUN)]
    admitted = set()
    for order in permutations(asks):
        ledger, batch = full(limits=RateLimits(tokens_per_min=10)), list[Hold]()
        for ask in order:
            try:
                found = ledger.state.admit(ask, 1, AT_S)
            except RateLimited:
                continue
            batch += [found] if isinstance(found, Hold) else []
        at_once = State(ledger.paper)
        fold(at_once, 1, 0.0, LEASE_S, msgspec.msgpack.decode(msgspec.msgpack.encode(Tick(admits=batch)), type=Tick))
        assert seen(at_once) == seen(ledger.state)
        assert all(spent + reserved <= 1_000 for spent, reserved in ledger.purses(run=RUN).values())
        assert sum(hold.tokens for hold in batch) <= 10
        assert sum(hold.claim is not None for hold in batch) <= 1
        admitted.add(tuple(sorted(hold.id for hold in batch)))
    assert len(admitted) > 1, "the order says who gets what there is"


# Histories of chance


class History:
    """A state, the model that it is held to, and another that follows its log."""

    def __init__(self, rng: Random) -> None:
        self.rng, self.chance, self.model = rng, Chance(rng), NaiveAccounts()
        self.ledgers = [Ledger(owner=1)]
        paper = self.ledgers[0].paper
        self.ledgers.append(Ledger(owner=2, paper=paper))
        for account in ACCOUNTS:
            self.change(account, PutAccount(make_account(name=account)))
        reader = State(paper)
        for mine, other in zip(self.ledgers, reversed(self.ledgers), strict=True):
            mine.followers = [other.state, reader]
        self.said: list[Any] = []
        self.lost_at: dict[str, float] = {}
        self.steps: tuple[Callable[[Ledger], None], ...] = (
            *(*(self.ask,) * 8, *(self.settle,) * 4, self.settle_again, self.release, self.expire, self.again),
            *(*(self.terms,) * 2, *(self.wait,) * 2, self.tidy),
        )

    def go(self, steps: int) -> None:
        for _ in range(steps):
            mine = self.rng.choice(self.ledgers)
            self.rng.choice(self.steps)(mine)
            self.check(mine)

    def ask(self, mine: Ledger) -> None:
        ask = self.chance.ask([each.ask for each in self.model.running()], self.model.time)
        expected = self.model.outcome(ask)
        found, result = outcome_of(mine, ask)
        assert found == expected, f"{ask} was answered with {result}, and {expected} by the model"
        if isinstance(result, Hold):
            self.model.admit(ask)
            grant = mine.state.grant(ask, result)
            assert isinstance(grant, Grant)
            assert [each.remaining for each in grant.windows] == self.model.remaining(ask.caller)

    def settle(self, mine: Ledger) -> None:
        if running := self.model.running():
            self.book(mine, self.chance.facts(self.rng.choice(running).ask))

    def settle_again(self, mine: Ledger) -> None:
        if self.said:
            self.book(mine, self.rng.choice(self.said))

    def book(self, mine: Ledger, facts: Any) -> None:
        mine.book(facts)
        self.model.settle(facts)
        self.said.append(facts)

    def release(self, mine: Ledger) -> None:
        if running := self.model.running():
            held, tokens = self.rng.choice(running), self.rng.choice((None, 0, 3))
            mine.release(held.ask.id, tokens)
            self.model.end(held, tokens)

    def expire(self, mine: Ledger) -> None:
        if running := self.model.running():
            held = self.rng.choice(running)
            mine.expire(held.ask.id)
            self.model.lose(held)
            self.lost_at[held.ask.id] = self.model.now
            self.said.append(self.chance.facts(held.ask))

    def again(self, mine: Ledger) -> None:
        """A call that was lost goes on, and asks anew; not for ever."""
        late = {call for call, at in self.lost_at.items() if self.model.now > at + LATE_S}
        lost = [each.ask for each in self.model.taken if each.ask.id in self.model.lost.keys() - late and not each.runs]
        if lost:
            ask = self.rng.choice(lost)
            if self.model.call(ask.id) is None:
                found, _ = outcome_of(mine, ask)
                assert found == self.model.outcome(ask)
                if found == "admitted":
                    self.model.admit(ask)

    def terms(self, mine: Ledger) -> None:
        self.change(*self.chance.change(self.model.keys), mine)

    def change(self, account: str, write: Any, mine: Ledger | None = None) -> None:
        self.model.change(account, write)
        (mine or self.ledgers[0]).apply(account, write)

    def wait(self, mine: Ledger) -> None:
        seconds = self.chance.pause()
        for each in self.ledgers:
            each.wait(seconds)
        self.model.now += seconds

    def tidy(self, mine: Ledger) -> None:
        """Forget what is not used, or begin anew from what another remembers."""
        if self.rng.random() < 0.5:
            mine.eviction.step(mine.state.at)
        follower = State(mine.paper)
        at, heard, windows, holds = msgspec.msgpack.decode(msgspec.msgpack.encode(dump(mine.state)))
        named = [(owner, when) for owner, when in heard]
        load(follower, at, named, windows, msgspec.convert(holds, list[Hold]))
        assert seen(follower) == seen(mine.state)
        for each in self.ledgers:
            each.followers[1] = follower

    def check(self, mine: Ledger) -> None:
        for each in mine.followers:
            each.begin(0, mine.now, mine.now + LEASE_S)
            mine.state.begin(0, mine.now, mine.now + LEASE_S)
            assert seen(each) == seen(mine.state)
        caller, run = self.chance.caller(), self.rng.choice(RUNS)
        at, tags = timestamp(self.model.time), (("team", "b"), ("it's", "\x01"))
        limits = self.model.purses(replace(caller, environment="production"), at[:10], run, tags)
        standing = mine.state.standing(caller.account, Stands(at, caller.key_id, run, tags))
        for purse in standing.purses:
            spent, reserved = (count(caller.account, purse.name) for count in (self.model.spent, self.model.reserved))
            found = purse.limit_nanos, purse.spent_nanos, purse.reserved_nanos
            assert found == (limits.pop(purse.name), spent, reserved), purse
        assert {*mine.state.holds} == {each.ask.id for each in self.model.running()}


def outcome_of(ledger: Ledger, ask: Ask) -> tuple[Outcome, object]:
    try:
        found = ledger.admit(ask)
    except (AuthenticationFailed, IdempotencyKeyReused, RateLimited) as error:
        return REFUSALS[type(error)], error
    match found:
        case Hold():
            return "admitted", found
        case Replay():
            return "replay", found
        case Wait(_, None):
            return "busy", found
        case Wait():
            return "waits", found
    return "short", found


def test_random_histories_match_a_naive_model_and_all_followers_agree(full: bool) -> None:
    for seed in range(10_000 if full else 60):
        try:
            History(Random(seed)).go(100)
        except (AssertionError, RouterError, KeyError) as error:
            raise AssertionError(f"History(Random({seed}))") from error
