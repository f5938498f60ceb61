"""Money is set aside at all levels or at none, and free again when its owner is gone."""

from __future__ import annotations

from typing import Any, NamedTuple

import anyio
import pytest
from msgspec.structs import asdict

from routewright.errors import PreconditionFailed
from routewright.protocols import Storage
from routewright.wire import (
    RunLimit,
    Tokens,
)

from .money import AT, BIG, MONTH, NEXT_MONTH, PURSES, RUN, Till, make_account, make_key, make_row
from .retention import NOW
from .suite import Suite


class Case(NamedTuple):
    """A reservation where so much is spent and reserved of 1,000. ``waits`` None: it has room."""

    spent: int
    reserved: int
    asked: int
    waits: bool | None


ROOM = [
    Case(0, 0, 1_000, None),
    Case(0, 0, 1_001, False),
    Case(999, 0, 1, None),
    Case(1_000, 0, 0, None),
    Case(1_000, 0, 1, False),
    Case(0, 1_000, 1, True),
    Case(0, 1, 1_000, True),
    Case(0, 1, 1_001, False),
    Case(500, 500, 500, True),
    Case(500, 500, 501, False),
]


class Reserving(Suite):
    """Before a call."""

    async def test_who_was_never_set_up_is_unlimited_and_has_no_purse(self, storage: Storage) -> None:
        till = Till(storage)
        assert (await till.reserve("c", BIG, key_id="none")).created
        await till.settle("c", make_row(charge=BIG), key_id="none")
        standing = await till.standing(run=None)
        assert (standing.account, standing.key, standing.purses) == (None, None, ())

    async def test_a_standing_says_account_key_and_every_purse_from_the_innermost_on(self, storage: Storage) -> None:
        till = await Till(storage).open_full()
        standing = await till.standing()
        assert standing.account == make_account(prepaid=True, monthly_nanos=1_000)
        assert standing.key is not None
        assert standing.key.id == "k"
        assert [asdict(purse) for purse in standing.purses] == [
            {"level": level, "name": name, "limit_nanos": 1_000, "spent_nanos": 0, "reserved_nanos": 0}
            for level, name in zip(("agent_run", "key", "key", "account", "month"), PURSES, strict=True)
        ]

    async def test_without_limits_it_is_counted_all_the_same(self, storage: Storage) -> None:
        till = await Till(storage).open(make_key())
        await till.reserve("c", BIG - 5, key_id="k")
        assert await till.purses(run=None) == dict.fromkeys(PURSES[1:], (0, BIG - 5))
        assert {purse.limit_nanos for purse in (await till.standing(run=None)).purses} == {None}

    @pytest.mark.parametrize("short", PURSES)
    async def test_it_is_held_at_all_levels_or_at_none(self, storage: Storage, short: str) -> None:
        run = RunLimit("r", 500) if short == "run:r" else RUN
        budget = {"key:k": {"budget_nanos": 500}, "key:k:2026-11": {"monthly_nanos": 500}}.get(short, {})
        terms = {"account": {"credit": 500}, MONTH: {"monthly_nanos": 500}}.get(short, {})
        limits: dict[str, Any] = {"budget_nanos": 1_000, "monthly_nanos": 1_000}
        money: dict[str, Any] = {"credit": 1_000, "prepaid": True, "monthly_nanos": 1_000}
        till = await Till(storage).open(make_key(**limits | budget), **money | terms)
        told = await till.refused("c", 501, key_id="k", run=run)
        assert (told["name"], told["limit_nanos"], told["waits"]) == (short, 500, False)
        assert set((await till.purses(run=run)).values()) == {(0, 0)}
        await till.reserve("c", 500, key_id="k", run=run)
        assert await till.purses(run=run) == dict.fromkeys(PURSES, (0, 500))

    @pytest.mark.parametrize("case", ROOM, ids=str)
    async def test_only_what_others_hold_is_waited_for(self, storage: Storage, case: Case) -> None:
        till = await Till(storage).open(monthly_nanos=1_000)
        await till.settle("paid", make_row("paid", charge=case.spent))
        await till.reserve("other", case.reserved)
        if case.waits is None:
            await till.reserve("c", case.asked)
            return
        told = await till.refused("c", case.asked)
        assert told == {
            "level": "month", "name": MONTH, "limit_nanos": 1_000, "spent_nanos": case.spent,
            "reserved_nanos": case.reserved, "waits": case.waits,
        }  # fmt: skip

    @pytest.mark.parametrize("nanos", [0, 1, 400, 700, 1_000])
    async def test_again_with_the_same_id_it_holds_so_much_instead(self, storage: Storage, nanos: int) -> None:
        till = await Till(storage).open_full()
        assert (await till.reserve("c", 400, key_id="k", run=RUN)).created
        assert not (await till.reserve("c", nanos, key_id="k", run=RUN)).created
        assert await till.purses() == dict.fromkeys(PURSES, (0, nanos))
        await till.settle("c")
        assert await till.purses() == dict.fromkeys(PURSES, (0, 0))

    async def test_again_for_more_than_there_is_it_still_holds_what_it_held(self, storage: Storage) -> None:
        till = await Till(storage).open_full()
        await till.reserve("c", 400)
        await till.reserve("other", 500)
        assert (await till.refused("c", 501))["waits"]
        assert not (await till.refused("c", 1_001))["waits"]
        assert (await till.purses())["account"] == (0, 900)
        await till.reserve("c", 500)
        assert (await till.purses())["account"] == (0, 1_000)

    async def test_the_month_in_which_it_was_reserved_pays(self, storage: Storage) -> None:
        till = await Till(storage).open_full()
        await till.reserve("c", 400)
        await till.reserve("d", 600)
        await till.reserve("c", 300, at=NEXT_MONTH)
        for call in ("c", "d"):
            await till.settle(call, make_row(call, charge=200), at=NEXT_MONTH)
        assert (await till.purses())[MONTH] == (200, 0)
        assert (await till.purses(NEXT_MONTH))["month:2026-12"] == (200, 0)

    async def test_amounts_beyond_any_float_are_exact(self, storage: Storage) -> None:
        till = await Till(storage).open(monthly_nanos=BIG)
        await till.reserve("c", BIG - 1)
        assert (await till.refused("d", 2))["reserved_nanos"] == BIG - 1
        await till.reserve("d", 1)
        await till.settle("c", make_row(charge=BIG - 1, cost_range_nanos=(0, BIG - 1), tokens=Tokens(BIG, 1, BIG)))
        assert (await till.purses())[MONTH] == (BIG - 1, 1)
        (row,) = await till.rows()
        assert (row.charge_nanos, row.cost_range_nanos, row.tokens.input) == (BIG - 1, (0, BIG - 1), BIG)

    async def test_of_many_at_once_no_more_are_let_in_than_there_is_money_for(self, storage: Storage) -> None:
        till = await Till(storage).open_full()
        won: list[str] = []

        async def reserve(call: str) -> None:
            try:
                await till.reserve(call, 130, key_id="k", run=RUN)
            except PreconditionFailed:
                return
            won.append(call)

        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(reserve, f"c{number}")
        assert len(won) == 7
        assert set((await till.purses()).values()) == {(0, 910)}


class Leasing(Suite):
    """Owners that are gone."""

    async def test_it_is_held_until_its_owners_lease_ends_and_then_gives_room(self, storage: Storage) -> None:
        till = await Till(storage).open_full()
        await till.reserve("lost", 800, key_id="k", run=RUN, owner="dead")
        assert (await till.refused("c", 300, clock_s=29.999))["waits"]
        assert (await till.purses())["account"] == (0, 800)
        await till.reserve("c", 300, clock_s=30.0)
        purses = await till.purses()
        assert purses == {"run:r": (800, 0)} | dict.fromkeys(PURSES[1:3], (0, 0)) | dict.fromkeys(PURSES[3:], (0, 300))

    async def test_what_it_came_to_nobody_knows_and_a_row_says_so(self, storage: Storage) -> None:
        till = await Till(storage).open_full()
        await till.reserve("lost", 800, key_id="k", owner="dead")
        await till.reserve("c", 1_000, clock_s=31.0)
        (row,) = await till.rows(request_id="lost")
        said = row.attempt, row.kind, row.at, row.key_id, row.cost_nanos, row.charge_nanos, row.cost_range_nanos
        assert said == (0, "expired", AT, "k", 0, 0, (0, 800))
        assert row.note

    async def test_a_lease_that_is_kept_holds_for_another_length(self, storage: Storage) -> None:
        till = await Till(storage).open_full()
        await till.reserve("c", 800, owner="alive")
        for clock_s in (20.0, 45.0, 74.0):
            await till.keep("alive", clock_s)
            assert (await till.refused("d", 300, clock_s=clock_s + 29.9))["waits"]
        await till.reserve("d", 300, clock_s=104.0)
        assert await till.kinds() == ["expired"]

    @pytest.mark.parametrize("clock_s", [0.0, 5.0, 9_000.0])
    async def test_a_lease_is_over_where_the_clock_began_anew(self, storage: Storage, clock_s: float) -> None:
        till = await Till(storage).open_full()
        await till.reserve("lost", 800, owner="of the time before", clock_s=10_000.0)
        await till.reserve("c", 300, clock_s=clock_s)
        assert (await till.purses())["account"] == (0, 300)

    @pytest.mark.parametrize("late_s", [0.0, 0.001, 5.0, 600.0])
    async def test_who_read_the_clock_a_while_ago_and_had_to_wait_ends_no_lease(
        self, storage: Storage, late_s: float
    ) -> None:
        till = await Till(storage).open_full()
        await till.reserve("c", 800, clock_s=1_000.0)
        assert (await till.refused("d", 300, clock_s=1_000.0 - late_s, owner="other"))["waits"]
        await till.keep("other", 1_000.0 - late_s)
        await storage.sweep(NOW)
        assert (await till.purses())["account"] == (0, 800)

    async def test_who_asks_is_not_gone_and_what_it_held_long_ago_is_held_again(self, storage: Storage) -> None:
        till = await Till(storage).open_full()
        await till.reserve("first", 800)
        assert (await till.refused("second", 300, clock_s=100.0))["waits"]
        await till.reserve("second", 200, clock_s=100.0)
        assert (await till.refused("third", 1, clock_s=129.9, owner="other"))["waits"]

    async def test_a_refused_reservation_changes_nothing(self, storage: Storage) -> None:
        till = await Till(storage).open_full()
        await till.reserve("lost", 300, owner="dead")
        await till.reserve("held", 700, owner="alive")
        await till.keep("alive", 30.0)
        before = await till.purses(), await till.rows()
        assert (await till.refused("c", 301, clock_s=31.0))["waits"]
        assert (await till.purses(), await till.rows()) == before

    async def test_what_was_abandoned_in_a_run_gives_it_no_room(self, storage: Storage) -> None:
        till = await Till(storage).open_full()
        await till.reserve("lost", 800, run=RUN, owner="dead")
        told = await till.refused("c", 300, run=RUN, clock_s=31.0)
        assert (told["name"], told["spent_nanos"], told["waits"]) == ("run:r", 800, False)

    @pytest.mark.parametrize("charge", [None, 0, 100])
    async def test_a_call_that_settles_after_all_is_booked_and_no_longer_unknown(
        self, storage: Storage, charge: int | None
    ) -> None:
        till = await Till(storage).open_full()
        await till.reserve("lost", 800, key_id="k", run=RUN, owner="dead")
        await till.reserve("c", 1_000, clock_s=31.0)
        rows = [] if charge is None else [make_row("lost", charge=charge)]
        for is_first in (True, False):
            assert (await till.settle("lost", *rows, at=NEXT_MONTH)).created is is_first
            purses = await till.purses()
            assert {spent for spent, _ in purses.values()} == {charge or 0}
            assert purses["account"][1] == 1_000, "another has it by now"
        assert [(row.kind, row.overrun_nanos) for row in await till.rows(request_id="lost")] == [
            ("attempt", row.charge_nanos) for row in rows
        ]

    async def test_a_call_that_reserves_again_after_its_reservation_was_over_is_counted_once(
        self, storage: Storage
    ) -> None:
        till = await Till(storage).open_full()
        await till.reserve("slow", 300, run=RUN, owner="paused")
        await till.reserve("c", 900, clock_s=31.0)
        await till.settle("c")
        await till.reserve("slow", 200, run=RUN, owner="paused", clock_s=40.0)
        await till.settle("slow", make_row("slow", charge=150))
        purses = await till.purses()
        assert (purses["run:r"], purses["account"]) == ((150, 0), (150, 0))
        assert await till.kinds() == ["attempt"]

    async def test_a_sweep_ends_what_was_abandoned_in_every_account(self, storage: Storage) -> None:
        tills = [await Till(storage, name).open(monthly_nanos=1_000) for name in ("acme", "other")]
        for till in tills:
            await till.reserve("lost", 800, owner="dead")
            await till.reserve("held", 100, owner="alive", clock_s=20.0)
        await till.keep("alive", 31.0)
        assert await storage.sweep(NOW) == 0
        for till in tills:
            assert (await till.purses())["account"] == (0, 100)
            assert await till.kinds() == ["expired"]
        assert await storage.sweep(NOW) == 0
