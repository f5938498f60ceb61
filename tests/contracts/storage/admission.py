"""Contract of admission: rate limits, slots and money are taken all or none, and calls wait for money in order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

import anyio
import anyio.to_thread
import pytest
from anyio.lowlevel import checkpoint
from msgspec.structs import asdict, replace

from routewright._runtime.fork import Guard
from routewright.errors import AuthenticationFailed, RateLimited, RouterTimeoutError
from routewright.protocols import LimitingStorage
from routewright.testing import FakeClock
from routewright.wire import (
    Grant,
    PutAccount,
    PutKey,
    RateLimits,
    Replay,
    RevokeKey,
    RunLimit,
    Short,
    Stands,
    TagLimit,
    WindowState,
)
from routewright.wire.timestamps import timestamp

from .samples import (
    ALIKE,
    AT,
    AT_S,
    BIG,
    DAY_S,
    MONTH,
    NEXT_MONTH,
    NEXT_MONTH_S,
    PURSES,
    RUN,
    Till,
    make_account,
    make_key,
    make_row,
)
from .threads import Meet, run_in_threads

A_MOMENT_S = 0.001
THREADS, ROUNDS, LIMIT, MOST = 8, 40, 100, 3
PATIENCE_S = 20.0
CANCELLED_AFTER = 20
"""The cancellation test cancels after 0 to this many checkpoints."""
MADE = "key_" + "0" * 26
"""A key id as a Console makes them."""


@pytest.mark.anyio
class AccountsSuite:
    """Base of tests of a storage with accounts. Each test has a new storage with one account, ``acme``.

    Time is that of the clock passed to ``make``, and moves only when a test moves it.
    """

    lease_s = 30.0
    """After this long without a call, a process counts as dead."""

    def make(self, clock: FakeClock) -> LimitingStorage:
        """Make an empty storage that uses ``clock``."""
        raise NotImplementedError("override make(clock) to return an empty storage that uses the clock")

    def other(self, clock: FakeClock) -> LimitingStorage | None:
        """Open the storage of the last ``make`` a second time, as another process does. None: not possible."""
        return None

    @pytest.fixture
    def clock(self) -> FakeClock:
        """A clock that stands still at ``AT``."""
        return FakeClock(AT_S, autojump=False)

    @pytest.fixture
    async def till(self, clock: FakeClock) -> AsyncIterator[Till]:
        """The account in an empty storage, not created yet."""
        storage = self.make(clock)
        yield Till(storage)
        await storage.aclose()

    @pytest.fixture
    async def full(self, till: Till) -> Till:
        """The account with a key ``k``, and a limit of 1,000 at every level."""
        return await till.open_full()


class Windows(AccountsSuite):
    """Rate limits: no minute exceeds the limit, and no call that fits is refused."""

    most_paid = MOST
    """Calls that the month pays for at once. More than ``MOST`` where slots and money are not freed in one step."""

    async def test_a_limit_admits_exactly_its_number_of_calls(self, till: Till) -> None:
        await till.open(limits=RateLimits(requests_per_min=3))
        for left in (2, 1, 0):
            grant = await till.admit(f"c{left}")
            assert grant.windows == (WindowState("requests", 3, left, 60.0),), "a grant says what is left after it"
        said = await till.limited()
        assert (said["level"], said["resource"], said["limit"], said["remaining"]) == ("account", "requests", 3, 0)
        assert said["retry_after_seconds"] == 60

    async def test_a_window_slides_and_is_open_at_its_beginning(self, till: Till, clock: FakeClock) -> None:
        await till.open(limits=RateLimits(requests_per_min=2))
        await clock.advance(0.5)
        await till.admit("first")
        await clock.advance(45.0)
        await till.admit("second")
        await clock.advance(15.0 - A_MOMENT_S)
        assert (await till.limited())["retry_after_seconds"] == 1
        await clock.advance(A_MOMENT_S)
        await till.admit("third")
        assert (await till.limited())["retry_after_seconds"] == 45

    @pytest.mark.parametrize("limits", [{"requests_per_min": 3}, {"tokens_per_min": 7}], ids=str)
    async def test_a_call_is_admitted_after_the_retry_after_of_its_refusal(
        self, till: Till, clock: FakeClock, limits: dict[str, int]
    ) -> None:
        await till.open(limits=RateLimits(**limits))
        for turn in range(30):
            for number in range(9):
                try:
                    await till.admit(f"{turn} {number}", tokens=2)
                except RateLimited:
                    break
                await clock.advance(0.1 + turn / 7)
            await clock.advance((await till.limited(tokens=2))["retry_after_seconds"])
            await till.admit(f"{turn} again", tokens=2)

    async def test_a_limit_of_zero_admits_nothing(self, till: Till) -> None:
        for name in ("requests_per_min", "tokens_per_min", "concurrency"):
            closed = await Till(till.storage, name).open(limits=RateLimits(**{name: 0}))
            told = await closed.limited(tokens=1)
            assert (told["limit_of"], told["retry_after_seconds"]) == (name, 60)

    @pytest.mark.parametrize("limits", [{"requests_per_min": 1}, {"tokens_per_min": 5}, {"concurrency": 1}], ids=str)
    async def test_a_call_refused_by_one_limit_counts_against_none(self, till: Till, limits: dict[str, int]) -> None:
        key = make_key(limits=RateLimits(**limits), budget_nanos=1_000)
        await till.open(key, limits=RateLimits(requests_per_min=2, tokens_per_min=10, concurrency=2))
        await till.admit("first", 10, key="k", tokens=5)
        for _ in range(3):
            assert (await till.limited("second", 10, key="k", tokens=5, same="i"))["level"] == "key"
        assert (await till.purses(run=None))["key:k"] == (0, 10), "no money is held for it"
        assert [state.remaining for state in (await till.admit("third", tokens=5, same="i")).windows] == [0, 0]

    async def test_environments_keys_and_accounts_have_separate_windows(self, till: Till) -> None:
        one = RateLimits(requests_per_min=1)
        keys = [make_key(id=name, digest=name, limits=one) for name in ("key_a", "key_b")]
        await till.open(*keys, limits=RateLimits(requests_per_min=2))
        for key in keys:
            await till.admit(key.id, key=key.id)
            assert (await till.limited(key=key.id))["retry_after_seconds"] == 60
        await till.limited()
        await till.admit("sandbox", caller=till.caller(environment="sandbox"))
        for name in ALIKE:
            if name != "acme":
                key = make_key(id="key_a", account=name, digest=name, limits=one)
                other = await Till(till.storage, name).open(key, limits=RateLimits(requests_per_min=2))
                await other.admit(f"of {name}", key="key_a")
                assert (await other.limited(key="key_a"))["level"] == "key"
                await other.admit(f"more of {name}")
                await other.limited()

    async def test_tokens_are_corrected_at_the_time_of_their_admission(self, till: Till, clock: FakeClock) -> None:
        await till.open(make_key(limits=RateLimits(tokens_per_min=90)), limits=RateLimits(tokens_per_min=100))
        await till.admit("c", key="k", tokens=80)
        await clock.advance(30.0)
        await till.limited(tokens=21)
        await till.settle("c", tokens=45)
        assert (await till.admit("d", key="k", tokens=45)).windows[1].remaining == 0
        await clock.advance(29.0)
        assert (await till.limited(tokens=11))["retry_after_seconds"] == 1
        await clock.advance(1.0)
        await till.admit("e", tokens=55)

    # Slots

    async def test_a_slot_is_held_while_a_call_runs_and_freed_once(self, till: Till) -> None:
        await till.open(make_key(limits=RateLimits(concurrency=1)), limits=RateLimits(concurrency=2))
        await till.admit("first", key="k")
        await till.admit("second")
        said = await till.limited()
        assert (said["level"], said["resource"], said["limit_of"]) == ("account", "requests", "concurrency")
        assert said["retry_after_seconds"] == 1
        for _ in range(2):
            await till.settle("first")
            till.release("first")
        await till.admit("third", key="k")
        await till.limited()
        till.release("second")
        await till.admit("fourth")
        await till.limited()

    # Keys

    async def test_a_revoked_key_is_refused_at_once_and_its_running_calls_are_settled(self, till: Till) -> None:
        await till.open(make_key(monthly_nanos=1_000))
        await till.admit("runs", 100, key="k")
        await till.put(RevokeKey("k", AT))
        for asked in (till.ask("c", key="k"), till.accounts.look(till.caller("k"))):
            with pytest.raises(AuthenticationFailed):
                await asked
        await till.settle("runs", make_row("runs", charge=70, key_id="k"))
        assert set((await till.purses(run=None)).values()) == {(70, 0)}

    async def test_an_unknown_key_of_a_console_is_refused_and_an_own_key_has_no_limits(self, till: Till) -> None:
        await till.open()
        with pytest.raises(AuthenticationFailed):
            await till.ask("c", key=MADE)
        assert not (await till.admit("d", BIG, key="my own")).is_limited

    async def test_threads_with_their_own_loops_stay_within_the_limits(
        self, till: Till, anyio_backend_name: str
    ) -> None:
        await till.open(limits=RateLimits(requests_per_min=LIMIT, concurrency=MOST), monthly_nanos=30 * self.most_paid)
        guard, admitted, held, most_held = Guard(), 0, 0, 0

        def count(new: int, change: int) -> None:
            nonlocal admitted, held, most_held
            with guard.lock:
                admitted, held = admitted + new, held + change
                most_held = max(most_held, held)

        async def take_part(number: int, meet: Meet) -> None:
            for turn in range(ROUNDS):
                call = f"{number} {turn}"
                meet()
                try:
                    await till.admit(call, 30)
                except RateLimited:
                    continue
                count(1, 1)
                await checkpoint()
                count(0, -1)
                till.release(call)

        together = partial(run_in_threads, many=THREADS, backend=anyio_backend_name, patience_s=PATIENCE_S)
        await anyio.to_thread.run_sync(together, take_part)
        assert 0 < most_held <= MOST
        assert admitted <= LIMIT
        for left in reversed(range(LIMIT - admitted)):
            assert (await till.admit(f"more {left}")).windows[0].remaining == left
            till.release(f"more {left}")
        await till.limited()
        assert (await till.purses(run=None))[MONTH] == (0, 0)


class Case(NamedTuple):
    """An ask with some of 1,000 spent and reserved. ``waits`` None: there is room."""

    spent: int
    reserved: int
    asked: int
    waits: bool | None


ROOM = [
    Case(0, 0, 1_000, None), Case(0, 0, 1_001, False), Case(999, 0, 1, None), Case(1_000, 0, 0, None),
    Case(1_001, 0, 0, False), Case(1_000, 0, 1, False), Case(0, 1_000, 1, True), Case(0, 1_000, 0, None),
    Case(0, 1, 1_000, True), Case(0, 1, 1_001, False), Case(500, 500, 500, True), Case(500, 500, 501, False),
]  # fmt: skip


class Budgets(AccountsSuite):
    """Money: reserved at every level that has a limit, or at none; spent and reserved stay within each."""

    async def test_an_account_that_was_never_created_is_unlimited(self, till: Till) -> None:
        assert not (await till.admit("c", BIG, key="none")).is_limited
        await till.settle("c", make_row(charge=BIG))
        standing = await till.standing(key="none", run=None)
        assert (standing.account, standing.key, standing.purses) == (None, None, ())
        left = await till.accounts.look(till.caller())
        assert (left.account, left.key, left.nanos) == (None, None, None)

    async def test_a_standing_has_account_key_and_all_purses_innermost_first(self, full: Till) -> None:
        standing = await full.standing()
        assert standing.account == make_account(prepaid=True, monthly_nanos=1_000)
        assert standing.key is not None
        assert standing.key.id == "k"
        assert [asdict(purse) for purse in standing.purses] == [
            {"level": level, "name": name, "limit_nanos": 1_000, "spent_nanos": 0, "reserved_nanos": 0}
            for level, name in zip(("agent_run", "key", "key", "account", "month"), PURSES, strict=True)
        ]

    @pytest.mark.parametrize("short", PURSES)
    async def test_money_is_reserved_at_all_levels_or_none(self, till: Till, short: str) -> None:
        run = RunLimit("r", 500) if short == "run:r" else RUN
        budget = {"key:k": {"budget_nanos": 500}, "key:k:2026-11": {"monthly_nanos": 500}}.get(short, {})
        terms = {"account": {"credit": 500}, MONTH: {"monthly_nanos": 500}}.get(short, {})
        limits: dict[str, Any] = {"budget_nanos": 1_000, "monthly_nanos": 1_000}
        money: dict[str, Any] = {"credit": 1_000, "prepaid": True, "monthly_nanos": 1_000}
        windows = RateLimits(requests_per_min=1, concurrency=1)
        await till.open(make_key(**limits | budget), limits=windows, **money | terms)
        refused = await till.short("c", 501, key="k", run=run)
        purse = refused.purse
        assert (purse.name, purse.limit_nanos, purse.left_nanos, refused.waits) == (short, 500, 500, False)
        assert set((await till.purses(run=run)).values()) == {(0, 0)}
        grant = await till.admit("c", 500, key="k", run=run)
        assert (grant.nanos, grant.is_limited) == (500, True), "nothing was taken of the rate limits either"
        assert await till.purses(run=run) == dict.fromkeys(PURSES, (0, 500))

    async def test_a_call_waits_only_for_money_that_others_hold(self, till: Till) -> None:
        for number, case in enumerate(ROOM):
            mine = await Till(till.storage, f"account {number}").open(monthly_nanos=1_000)
            await mine.settle("paid", make_row("paid", charge=case.spent))
            if case.reserved:
                await mine.admit(f"other {number}", case.reserved)
            if case.waits is None:
                await mine.admit(f"c{number}", case.asked)
                continue
            refused = await mine.short(f"c{number}", case.asked)
            assert refused.waits is case.waits, "True where it would fit but for what other calls hold"
            assert asdict(refused.purse) == {
                "level": "month", "name": MONTH, "limit_nanos": 1_000, "spent_nanos": case.spent,
                "reserved_nanos": case.reserved,
            }  # fmt: skip

    async def test_a_call_is_charged_to_the_month_of_its_admission(self, full: Till) -> None:
        await full.admit("c", 400)
        await full.admit("d", 400, at=NEXT_MONTH_S)
        for call in ("c", "d"):
            await full.settle(call, make_row(call, charge=200), created_at=NEXT_MONTH)
        assert (await full.purses())[MONTH] == (200, 0)
        assert (await full.purses(NEXT_MONTH))["month:2026-12"] == (200, 0)

    async def test_day_and_week_turn_over_at_midnight_in_utc(self, till: Till) -> None:
        # NEXT_MONTH is Tuesday, 2026-12-01; the week began on 2026-11-30
        monday = NEXT_MONTH_S - DAY_S
        await till.open(make_key(daily_nanos=150, weekly_nanos=400), daily_nanos=200, weekly_nanos=300)
        for call, at in (("last", monday - 0.001), ("first", monday)):
            await till.admit(call, 150, key="k", at=at)
            short = await till.short("more", 1, key="k", at=at)
            assert (short.purse.level, short.waits) == ("key", True)
            await till.admit(f"{call} without", 50, at=at)
            assert (await till.short("more", 1, at=at)).purse.level == "day"
        await till.admit("next", 100, key="k", at=NEXT_MONTH_S)
        assert (await till.short("more", 1, key="k", at=NEXT_MONTH_S)).purse.name == "week:2026-11-30"
        for call in ("last", "first", "next"):
            await till.settle(call, make_row(call, charge=90), created_at=timestamp(till.asks[call].at))
        purses = await till.purses(NEXT_MONTH, run=None)
        assert (purses["day:2026-12-01"], purses["week:2026-11-30"]) == ((90, 0), (180, 50))
        assert (purses["key:k:day:2026-12-01"], purses["key:k:week:2026-11-30"]) == ((90, 0), (180, 0))
        assert (await till.purses("2026-11-29T23:59:59.999Z", run=None))["week:2026-11-23"] == (90, 50)

    async def test_a_value_of_metadata_has_a_purse_of_its_own(self, till: Till) -> None:
        limits = TagLimit(key="team", daily_nanos=100), TagLimit(key="team", value="big", weekly_nanos=300)
        await till.open(tag_limits=(*limits, TagLimit(key="it's", value="\x01", monthly_nanos=50)))
        for value in ("a", "b"):
            assert (await till.admit(f"of {value}", 100, tags=(("team", value),))).is_limited
            short = await till.short("more", 1, tags=(("team", value),))
            assert (short.purse.level, short.purse.name) == ("tag", f"tag:team={value}:day:2026-11-21")
        await till.admit("big", 300, tags=(("team", "big"),), run=RUN)
        await till.settle("big", make_row("big", charge=120, cost=130))
        assert (await till.short("more", 181, tags=(("team", "big"),))).purse.name == "tag:team=big:week:2026-11-16"
        tags = ("it's", "\x01"), ("team", "big")
        assert (await till.short("more", 51, tags=tags)).purse.limit_nanos == 50
        assert not (await till.admit("without", BIG)).is_limited
        assert not (await till.admit("other", BIG, tags=(("it's", "2"),))).is_limited
        standing = await till.storage.read(till.account, Stands(AT, None, RUN, tags))
        assert [(purse.name, purse.spent_nanos) for purse in standing.purses] == [
            ("run:r", 130), ("tag:it's=\x01:month:2026-11", 0), ("tag:team=big:week:2026-11-16", 120),
            ("account", 120), (MONTH, 120),
        ]  # fmt: skip

    async def test_purses_of_past_periods_are_removed_and_others_stay(self, till: Till) -> None:
        tags = (("team", "a"),)
        limit = TagLimit(key="team", daily_nanos=100, monthly_nanos=100)
        account = make_account(daily_nanos=100, weekly_nanos=100, tag_limits=(limit,))
        for write in (PutAccount(account), PutKey(make_key(daily_nanos=100))):
            await till.put(write)
        await till.admit("c", 100, key="k", tags=tags)
        await till.settle("c", make_row(charge=70), tags=tags)

        async def spent() -> dict[str, int]:
            standing = await till.storage.read(till.account, Stands(AT, "k", None, tags))
            return {purse.name: purse.spent_nanos for purse in standing.purses}

        names = [*await spent()]
        await till.storage.sweep(AT_S + 30 * DAY_S)
        assert await spent() == dict.fromkeys(names, 70)
        await till.storage.sweep(AT_S + 70 * DAY_S)
        await till.put(PutAccount(account))  # so that the sums are read again
        assert await spent() == dict.fromkeys(names, 0) | dict.fromkeys(PURSES[1:], 70)

    async def test_the_shares_spent_of_limits_are_read_from_memory(self, till: Till) -> None:
        await till.open(make_key(daily_nanos=200, monthly_nanos=0), daily_nanos=1_000, weekly_nanos=300)
        accounts, caller = till.accounts, till.caller("k")
        await accounts.look(caller)
        assert accounts.spent_shares(caller) == {"day": 0, "week": 0, "month": 1_000_000}
        await till.admit("c", 100)
        await till.settle("c", make_row(charge=100))
        await accounts.look(till.caller())
        assert accounts.spent_shares(till.caller()) == {"day": 100_000, "week": 333_333}
        await accounts.look(caller)
        assert accounts.spent_shares(caller) == {"day": 100_000, "week": 333_333, "month": 1_000_000}

    async def test_sandbox_calls_are_free(self, full: Till) -> None:
        sandbox = full.caller(environment="sandbox")
        grant = await full.admit("c", BIG, caller=sandbox, run=RUN)
        assert (grant.nanos, grant.is_limited) == (0, False)
        assert (await full.accounts.look(sandbox, RUN)).nanos is None
        await full.settle("c")
        assert set((await full.purses()).values()) == {(0, 0)}

    async def test_money_beyond_float_precision_is_counted_exactly(self, till: Till) -> None:
        await till.open(make_key(), monthly_nanos=BIG)
        await till.admit("c", BIG - 1, key="k")
        assert (await till.short("d", 2)).purse.reserved_nanos == BIG - 1
        assert await till.purses(run=None) == dict.fromkeys(PURSES[1:], (0, BIG - 1))
        assert [purse.limit_nanos for purse in (await till.standing(run=None)).purses] == [None, None, None, BIG]
        await till.settle("c", make_row(charge=BIG - 1))
        assert await till.purses(run=None) == dict.fromkeys(PURSES[1:], (BIG - 1, 0))

    async def test_concurrent_calls_stay_within_the_budget(self, full: Till) -> None:
        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(partial(full.ask, f"c{number}", 130, key="k", run=RUN))
        assert len(full.grants) == 7
        assert set((await full.purses()).values()) == {(0, 910)}

    # A call that runs

    async def test_a_reservation_is_widened_at_every_level_if_there_is_room_now(self, full: Till) -> None:
        grant = await full.admit("c", 400, key="k", run=RUN)
        await full.admit("other", 300)
        assert not await full.accounts.widen(grant, 701), "others hold it, and it never waits"
        assert grant.nanos == 400
        assert await full.accounts.widen(grant, 700)
        assert grant.nanos == 700
        assert (await full.purses())["run:r"] == (0, 700)
        assert (await full.purses())["account"] == (0, 1_000)
        await full.settle("c", make_row(charge=650))
        assert (await full.purses())["run:r"] == (650, 0)
        assert [row.overrun_nanos for row in await full.rows(request_id="c")] == [0]
        assert not await full.accounts.widen(grant, 800), "it has ended"

    # What is left

    async def test_look_returns_the_least_that_any_level_has_left(self, till: Till) -> None:
        await till.open(make_key(budget_nanos=700), credit=900, prepaid=True)
        await till.settle("paid", make_row("paid", charge=600), key="k")
        found = [await till.accounts.look(till.caller(key), run) for key in (None, "k") for run in (None, RUN)]
        assert [left.nanos for left in found] == [300, 300, 100, 100]
        assert (await till.accounts.look(till.caller("k"), RunLimit("r", 50))).nanos == 50
        assert (found[3].account, found[3].key) == (make_account(prepaid=True), make_key(budget_nanos=700))

    async def test_left_is_what_the_last_look_returned_or_none(self, full: Till) -> None:
        left = await full.accounts.look(full.caller("k"), RUN)
        assert full.accounts.left(full.caller("k"), RUN) in (None, left), "None: it does not know"
        assert full.accounts.left(full.caller("k"), RunLimit("another", 5)) in (None, replace(left, nanos=5))


class Queues(AccountsSuite):
    """Calls that wait for money held by others: in order, within their time, and for nothing else."""

    async def test_freed_money_goes_to_waiting_calls_in_order(self, full: Till, clock: FakeClock) -> None:
        await full.admit("first", 1_000)
        async with waiting(full, clock, [("a", 800), ("b", 50), ("c", 200), ("d", 50)]) as heard:
            assert heard == {}
            await full.settle("first", make_row("first", charge=100))
            await clock.advance(0.0)
            assert {*heard} == {"a", "b"}
            assert (await full.short("late", 50)).waits, "who comes later stands behind them"
            full.release("b")
            await clock.advance(0.0)
            assert {*heard} == {"a", "b"}, "d stands behind c, though there is room for it"
            full.release("a")
        assert all(isinstance(found, Grant) for found in heard.values())

    async def test_a_call_waits_no_longer_than_allowed(self, full: Till, clock: FakeClock) -> None:
        await full.admit("first", 900)
        async with waiting(full, clock, [("a", 200)], waits_s=5.0) as heard:
            await clock.advance(5.0 - A_MOMENT_S)
            assert heard == {}
            await clock.advance(A_MOMENT_S)
        (found,) = heard.values()
        assert isinstance(found, Short)
        assert (found.waits, found.purse.limit_nanos, found.purse.reserved_nanos) == (True, 1_000, 900)
        full.release("first")
        assert (await full.purses())["account"] == (0, 0), "it stands in no queue any more"
        await full.admit("second", 1_000)

    async def test_a_waiting_call_is_refused_once_the_money_is_spent(self, full: Till, clock: FakeClock) -> None:
        await full.admit("first", 900)
        async with waiting(full, clock, [("a", 200), ("b", 100)]) as heard:
            await full.settle("first", make_row("first", charge=850))
            await clock.advance(0.0)
        assert isinstance(heard["a"], Short)
        assert (heard["a"].waits, heard["a"].purse.spent_nanos) == (False, 850)
        assert isinstance(heard["b"], Grant), "those behind it go on"

    async def test_a_cancelled_call_leaves_the_queue(self, full: Till, clock: FakeClock) -> None:
        await full.admit("first", 500)
        scope = anyio.CancelScope()

        async def large() -> None:
            with scope:
                await full.ask("large", 600, waits_s=50.0)

        async with anyio.create_task_group() as group:
            group.start_soon(large)
            await clock.advance(0.0)
            async with waiting(full, clock, [("small", 400)]) as heard:
                assert heard == {}
                scope.cancel()
        assert (await full.purses())["account"] == (0, 900)

    async def test_a_cancelled_call_holds_nothing(self, till: Till, clock: FakeClock) -> None:
        await till.open(limits=RateLimits(concurrency=1), monthly_nanos=100)
        for steps in range(CANCELLED_AFTER):
            call = f"c{steps}"
            async with anyio.create_task_group() as group:
                group.start_soon(partial(till.ask, call, 100, same="i"))
                for _ in range(steps):
                    await checkpoint()
                group.cancel_scope.cancel()
            if call in till.grants:
                till.release(call)
            await clock.advance(0.0)
            await till.admit(f"next {steps}", 100, same="i")
            till.release(f"next {steps}")

    async def test_a_call_cancelled_while_it_is_granted_holds_nothing(self, full: Till, clock: FakeClock) -> None:
        await full.admit("first", 1_000)
        async with waiting(full, clock, [("a", 1_000)], cancels=True):
            full.release("first")
        await clock.advance(0.0)
        await full.admit("b", 1_000)

    async def test_a_higher_limit_admits_waiting_calls(self, till: Till, clock: FakeClock) -> None:
        await till.open(monthly_nanos=1_000)
        await till.admit("first", 900)
        async with waiting(till, clock, [("a", 200)]):
            await till.put(PutAccount(make_account(monthly_nanos=1_100)))

    async def test_a_call_whose_key_is_revoked_while_it_waits_is_refused(self, full: Till, clock: FakeClock) -> None:
        await full.admit("first", 1_000)
        heard = list[BaseException]()

        async def wait() -> None:
            with pytest.raises(AuthenticationFailed) as refused:
                await full.ask("a", 100, key="k", waits_s=50.0)
            heard.append(refused.value)

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await clock.advance(0.0)
            await full.put(RevokeKey("k", AT))
            full.release("first")
        assert len(heard) == 1

    # Idempotency keys

    async def test_all_calls_joined_to_one_get_its_answer(self, till: Till, clock: FakeClock) -> None:
        await till.admit("first", same="i")
        async with waiting(till, clock, [(f"c{number}", 0) for number in range(200)], same="i") as heard:
            await till.settle("first", result=b"answer")
        assert [*heard.values()] == [Replay(b"answer")] * 200

    async def test_one_joined_call_runs_if_the_first_fails(self, till: Till, clock: FakeClock) -> None:
        await till.admit("first", same="i")
        async with waiting(till, clock, [("a", 0), ("b", 0), ("c", 0)], same="i") as heard:
            till.release("first")
            await clock.advance(0.0)
            assert [*heard] == ["a"]
            await till.settle("a", result=b"answer")
        assert [*heard.values()][1:] == [Replay(b"answer")] * 2

    async def test_a_joined_call_waits_no_longer_than_allowed(self, till: Till, clock: FakeClock) -> None:
        await till.admit("first", same="i")
        with pytest.raises(RouterTimeoutError):
            await till.ask("a", same="i")

        async def join() -> None:
            with pytest.raises(RouterTimeoutError):
                await till.ask("b", same="i", waits_s=5.0)

        async with anyio.create_task_group() as group:
            group.start_soon(join)
            await clock.advance(5.0)


@asynccontextmanager
async def waiting(
    till: Till, clock: FakeClock, calls: list[tuple[str, int]], *, cancels: bool = False, **given: Any
) -> AsyncIterator[dict[str, Any]]:
    """Start calls that ask for amounts in order and wait. Yields their answers by call, as they come. Leaving waits for
    all, or cancels them."""
    heard = dict[str, Any]()

    async def ask(call: str, nanos: int) -> None:
        heard[call] = await till.ask(call, nanos, **{"waits_s": 50.0} | given)

    async with anyio.create_task_group() as group:
        for call, nanos in calls:
            group.start_soon(ask, call, nanos)
            await clock.advance(0.0)
        yield heard
        if cancels:
            group.cancel_scope.cancel()
