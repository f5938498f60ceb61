"""Money: reserved at all levels or at none, settled once, counted exactly, and free again when its owner is gone."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

import anyio
import pytest
from msgspec.structs import asdict, replace

from routewright._core.batch import MOST_CREDIT
from routewright._core.rows import key_of, summed
from routewright.errors import PreconditionFailed
from routewright.protocols import Storage
from routewright.wire import (
    SYSTEM_ACCOUNT,
    AddCredit,
    DeleteTraces,
    Events,
    LedgerRow,
    LedgerRows,
    LedgerSum,
    LedgerSums,
    LedgerSumsOfAll,
    PutAccount,
    PutKey,
    PutTrace,
    RunLimit,
    SetRetention,
    Settle,
    StoredEvent,
    Tokens,
)

from .basics import Suite
from .samples import (
    AT,
    BIG,
    EVENTS,
    MONTH,
    NEXT_MONTH,
    NOW,
    ODD_TEXTS,
    PURSES,
    RUN,
    Till,
    all_pages,
    make_account,
    make_key,
    make_row,
    make_trace,
)


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
DAYS = (("2026-11-19", "2026-11-21"), ("2026-11-20", "2026-11-20"), ("2026-11-22", "2026-11-21"))


class Money(Suite):
    """Tests of an account that has a key and a limit of 1,000 at every level."""

    @pytest.fixture
    async def till(self, storage: Storage) -> Till:
        """The account."""
        return await Till(storage).open_full()


class Reserving(Money):
    """Before a call."""

    async def test_an_account_that_was_never_set_up_is_unlimited_and_has_no_purse(self, storage: Storage) -> None:
        till = Till(storage)
        assert (await till.reserve("c", BIG, key_id="none")).created
        await till.settle("c", make_row(charge=BIG), key_id="none")
        standing = await till.standing(run=None)
        assert (standing.account, standing.key, standing.purses) == (None, None, ())

    async def test_a_standing_has_account_key_and_every_purse_the_innermost_first(self, till: Till) -> None:
        standing = await till.standing()
        assert standing.account == make_account(prepaid=True, monthly_nanos=1_000)
        assert standing.key is not None
        assert standing.key.id == "k"
        assert [asdict(purse) for purse in standing.purses] == [
            {"level": level, "name": name, "limit_nanos": 1_000, "spent_nanos": 0, "reserved_nanos": 0}
            for level, name in zip(("agent_run", "key", "key", "account", "month"), PURSES, strict=True)
        ]

    @pytest.mark.parametrize("short", PURSES)
    async def test_money_is_held_at_all_levels_or_at_none(self, storage: Storage, short: str) -> None:
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
        assert await till.refused("c", case.asked) == {
            "level": "month", "name": MONTH, "limit_nanos": 1_000, "spent_nanos": case.spent,
            "reserved_nanos": case.reserved, "waits": case.waits,
        }  # fmt: skip

    @pytest.mark.parametrize("nanos", [0, 1, 400, 700, 1_000])
    async def test_reserving_again_takes_the_place_of_the_first_reservation(self, till: Till, nanos: int) -> None:
        assert (await till.reserve("c", 400, key_id="k", run=RUN)).created
        assert not (await till.reserve("c", nanos, key_id="k", run=RUN)).created
        assert await till.purses() == dict.fromkeys(PURSES, (0, nanos))
        await till.settle("c")
        assert await till.purses() == dict.fromkeys(PURSES, (0, 0))

    async def test_reserving_again_for_more_than_there_is_leaves_the_first_reservation(self, till: Till) -> None:
        await till.reserve("c", 400)
        await till.reserve("other", 500)
        assert (await till.refused("c", 501))["waits"]
        assert not (await till.refused("c", 1_001))["waits"]
        assert (await till.purses())["account"] == (0, 900)
        await till.reserve("c", 500)
        assert (await till.purses())["account"] == (0, 1_000)

    async def test_the_month_in_which_it_was_reserved_pays(self, till: Till) -> None:
        await till.reserve("c", 400)
        await till.reserve("d", 600)
        await till.reserve("c", 300, at=NEXT_MONTH)
        for call in ("c", "d"):
            await till.settle(call, make_row(call, charge=200), at=NEXT_MONTH)
        assert (await till.purses())[MONTH] == (200, 0)
        assert (await till.purses(NEXT_MONTH))["month:2026-12"] == (200, 0)

    async def test_money_is_counted_exactly_beyond_any_float_and_without_limits_too(self, storage: Storage) -> None:
        till = await Till(storage).open(make_key(), monthly_nanos=BIG)
        await till.reserve("c", BIG - 1, key_id="k")
        assert (await till.refused("d", 2))["reserved_nanos"] == BIG - 1
        assert await till.purses(run=None) == dict.fromkeys(PURSES[1:], (0, BIG - 1))
        assert [purse.limit_nanos for purse in (await till.standing(run=None)).purses] == [None, None, None, BIG]
        await till.settle("c", make_row(charge=BIG - 1))
        assert await till.purses(run=None) == dict.fromkeys(PURSES[1:], (BIG - 1, 0))

    async def test_no_more_calls_at_once_are_admitted_than_there_is_money_for(self, till: Till) -> None:
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


class Leasing(Money):
    """Owners that are gone."""

    async def test_money_of_an_owner_that_is_gone_gives_room_and_a_row_tells_of_it(self, till: Till) -> None:
        await till.reserve("lost", 800, key_id="k", run=RUN, owner="dead")
        assert (await till.refused("c", 300, clock_s=29.999))["waits"]
        assert (await till.purses())["account"] == (0, 800)
        await till.reserve("c", 300, clock_s=30.0)
        assert await till.purses() == {
            "run:r": (800, 0), "key:k": (0, 0), "key:k:2026-11": (0, 0), "account": (0, 300), MONTH: (0, 300),
        }  # fmt: skip
        (row,) = await till.rows(request_id="lost")
        said = row.attempt, row.kind, row.at, row.key_id, row.cost_nanos, row.charge_nanos, row.cost_range_nanos
        assert said == (0, "expired", AT, "k", 0, 0, (0, 800))
        assert row.note
        told = await till.refused("d", 300, run=RUN, clock_s=31.0)
        assert (told["name"], told["spent_nanos"], told["waits"]) == ("run:r", 800, False), "runs get no room by it"

    async def test_a_renewed_lease_holds_for_its_whole_length(self, till: Till) -> None:
        await till.reserve("c", 800, owner="alive")
        for clock_s in (20.0, 45.0, 74.0):
            await till.keep("alive", clock_s)
            assert (await till.refused("d", 300, clock_s=clock_s + 29.9))["waits"]
        await till.reserve("d", 300, clock_s=104.0)
        assert await till.kinds() == ["expired"]

    @pytest.mark.parametrize("clock_s", [0.0, 5.0, 9_000.0])
    async def test_a_lease_is_over_when_the_clock_began_anew(self, till: Till, clock_s: float) -> None:
        await till.reserve("lost", 800, owner="of the time before", clock_s=10_000.0)
        await till.reserve("c", 300, clock_s=clock_s)
        assert (await till.purses())["account"] == (0, 300)

    @pytest.mark.parametrize("late_s", [0.0, 0.001, 5.0, 600.0])
    async def test_a_write_that_had_to_wait_ends_no_lease_by_its_old_time(self, till: Till, late_s: float) -> None:
        await till.reserve("c", 800, clock_s=1_000.0)
        assert (await till.refused("d", 300, clock_s=1_000.0 - late_s, owner="other"))["waits"]
        await till.keep("other", 1_000.0 - late_s)
        await till.storage.sweep(NOW)
        assert (await till.purses())["account"] == (0, 800)

    async def test_reserving_shows_that_an_owner_lives_and_keeps_what_it_held_long_ago(self, till: Till) -> None:
        await till.reserve("first", 800)
        assert (await till.refused("second", 300, clock_s=100.0))["waits"]
        await till.reserve("second", 200, clock_s=100.0)
        assert (await till.refused("third", 1, clock_s=129.9, owner="other"))["waits"]

    async def test_a_refused_reservation_changes_nothing(self, till: Till) -> None:
        await till.reserve("lost", 300, owner="dead")
        await till.reserve("held", 700, owner="alive")
        await till.keep("alive", 30.0)
        before = await till.purses(), await till.rows()
        assert (await till.refused("c", 301, clock_s=31.0))["waits"]
        assert (await till.purses(), await till.rows()) == before

    @pytest.mark.parametrize("charge", [None, 0, 100])
    async def test_a_lost_call_that_settles_after_all_is_booked(self, till: Till, charge: int | None) -> None:
        await till.reserve("lost", 800, key_id="k", run=RUN, owner="dead")
        await till.reserve("c", 1_000, clock_s=31.0)
        rows = [] if charge is None else [make_row("lost", charge=charge)]
        asked = LedgerSums("2026-11-21", "2026-11-21")
        found = await till.storage.read("acme", asked)
        assert [(each.kind, each.rows, each.most_nanos) for each in found] == [("credit", 1, 0), ("expired", 1, 800)]
        for is_first in (True, False):
            assert (await till.settle("lost", *rows, at=NEXT_MONTH)).created is is_first
            purses = await till.purses()
            assert {spent for spent, _ in purses.values()} == {charge or 0}
            assert purses["account"][1] == 1_000, "another has it by now"
        assert [(row.kind, row.overrun_nanos) for row in await till.rows(request_id="lost")] == [
            ("attempt", row.charge_nanos) for row in rows
        ]
        assert "expired" not in [each.kind for each in await till.storage.read("acme", asked)]

    async def test_a_call_that_reserves_again_after_its_lease_was_over_is_counted_once(self, till: Till) -> None:
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
        for _ in range(2):
            assert await storage.sweep(NOW) == 0
            for till in tills:
                assert (await till.purses())["account"] == (0, 100)
                assert await till.kinds() == ["expired"]


class Settling(Money):
    """After a call."""

    async def test_what_was_held_beyond_the_charge_is_free_again_and_a_run_counts_cost(self, till: Till) -> None:
        await till.reserve("c", 400, key_id="k", run=RUN)
        rows = make_row(attempt=1, cost=30, key_id="k"), make_row(attempt=2, charge=100, key_id="k", model="a/two")
        assert (await till.settle("c", *rows)).created
        assert await till.purses() == {name: (130 if name == "run:r" else 100, 0) for name in PURSES}
        assert await till.rows(request_id="c") == [rows[1], rows[0]]

    @pytest.mark.parametrize(("run_nanos", "counted"), [(None, 30), (20, 30), (300, 300)])
    async def test_a_run_counts_the_most_possible(self, till: Till, run_nanos: int | None, counted: int) -> None:
        await till.reserve("c", 400, run=RUN)
        await till.settle("c", make_row(charge=30), run_nanos=run_nanos)
        assert (await till.purses())["run:r"] == (counted, 0)

    @pytest.mark.parametrize("rows", [[], [make_row(charge=100)]], ids=["released", "booked"])
    async def test_a_call_is_settled_once_however_often_it_is_said(self, till: Till, rows: list[LedgerRow]) -> None:
        await till.reserve("c", 400, key_id="k", run=RUN)
        for is_first in (True, False, False):
            assert (await till.settle("c", *rows, key_id="k", run=RUN, run_nanos=200)).created is is_first
            spent = {name: (200 if name == "run:r" else 100, 0) for name in PURSES}
            assert await till.purses() == (spent if rows else dict.fromkeys(PURSES, (0, 0)))
            assert await till.rows(request_id="c") == rows

    async def test_rows_are_booked_once_and_without_a_reservation_too(self, till: Till) -> None:
        first, second = make_row(attempt=1, charge=10), make_row(attempt=2, charge=20)
        for rows, spent in (([first], 10), ([first, second], 30)):
            assert (await till.settle("c", *rows, key_id="k", run=RUN)).created
            assert await till.purses() == dict.fromkeys(PURSES, (spent, 0))
        assert await till.rows(request_id="c") == [second, first], "nothing is overrun"

    async def test_the_last_row_tells_the_overrun_and_nothing_else_is_admitted(self, till: Till) -> None:
        await till.reserve("c", 1_000)
        await till.settle("c", make_row(attempt=1, charge=500), make_row(attempt=2, charge=700))
        assert [row.overrun_nanos for row in await till.rows(request_id="c")] == [200, 0]
        told = await till.refused("d", 0)
        assert (told["spent_nanos"], told["waits"]) == (1_200, False)

    async def test_a_run_is_overrun_by_cost_and_the_other_purses_by_charge(self, till: Till) -> None:
        for call, run in (("c", None), ("d", RUN)):
            await till.reserve(call, 400, run=run)
            await till.settle(call, make_row(call, charge=10, cost=450))
        assert [row.overrun_nanos for call in "cd" for row in await till.rows(request_id=call)] == [0, 50]

    async def test_many_settlements_in_one_batch_are_as_many_one_by_one(self, till: Till) -> None:
        await till.reserve("c0", 10, key_id="k")
        rows = [[make_row(f"c{number}", attempt, charge=1) for attempt in (1, 2)] for number in range(100)]
        settles = [Settle(id=f"c{number}", at=AT, rows=(*each,), key_id="k") for number, each in enumerate(rows)]
        results = await till.storage.apply("acme", [*settles, *settles[:3]])
        assert [result.created for result in results] == [True] * 100 + [False] * 3
        assert await till.purses(run=None) == dict.fromkeys(PURSES[1:], (200, 0))
        assert len(await till.rows()) == 201

    async def test_a_key_that_gets_a_budget_later_has_spent_what_it_spent_before(self, storage: Storage) -> None:
        till = await Till(storage).open(make_key())
        await till.settle("c", make_row(charge=900), key_id="k")
        await till.put(PutKey(make_key(budget_nanos=1_000)))
        assert (await till.refused("d", 101, key_id="k"))["name"] == "key:k"
        await till.reserve("d", 100, key_id="k")

    async def test_a_correction_changes_what_was_spent_and_no_row(self, till: Till) -> None:
        await till.settle("c", make_row(charge=100), key_id="k", run=RUN)
        wrong = make_row(attempt=-1, charge=-30, kind="correction", note="as invoiced")
        await till.settle("c", wrong, key_id="k", run=RUN)
        assert await till.purses() == dict.fromkeys(PURSES, (70, 0))
        assert {row.attempt: row for row in await till.rows(request_id="c")} == {1: make_row(charge=100), -1: wrong}

    async def test_a_correction_leaves_what_nobody_knows_unknown(self, till: Till) -> None:
        await till.reserve("lost", 800, owner="dead")
        await till.reserve("c", 1_000, clock_s=31.0)
        await till.settle("lost", make_row("lost", attempt=-1, charge=-30, kind="correction"))
        assert await till.kinds() == ["correction", "expired"]

    async def test_credit_is_given_once_and_may_be_taken_back(self, storage: Storage) -> None:
        till = await Till(storage).open(prepaid=True)
        assert not (await till.refused("c", 1))["waits"]
        given = AddCredit("cr_1", 500, AT, note="invoice 7")
        assert [(await till.put(given)).created for _ in range(2)] == [True, False]
        await till.reserve("c", 500)
        await till.put(AddCredit("cr_2", -600, AT))
        (purse, _) = (await till.standing(key_id=None, run=None)).purses
        assert (purse.limit_nanos, purse.reserved_nanos) == (-100, 500)
        assert [replace(row, note="") for row in await till.rows(request_id="cr_1")] == [
            LedgerRow(request_id="cr_1", attempt=0, kind="credit", at=AT, credit_nanos=500)
        ]

    @pytest.mark.parametrize("sign", [1, -1])
    async def test_credit_beyond_its_bound_changes_nothing(self, storage: Storage, sign: int) -> None:
        till = await Till(storage).open(credit=sign * (MOST_CREDIT - 5), prepaid=True)
        given = AddCredit("all", sign * 5, AT)
        for refused in (AddCredit("cr_1", sign * 4, AT), AddCredit("cr_1", sign * 2**70, AT)):
            with pytest.raises(PreconditionFailed) as failed:
                await storage.apply("acme", [AddCredit("cr_2", sign * 3, AT), AddCredit("cr_3", -sign, AT), refused])
            assert failed.value.index == 2
        assert (await till.standing(key_id=None, run=None)).purses[0].limit_nanos == sign * (MOST_CREDIT - 5)
        assert len(await till.rows()) == 1
        assert [written.created for written in await storage.apply("acme", [given, given])] == [True, False]
        assert not (await till.put(given)).created, "said again it adds nothing"
        assert (await till.standing(key_id=None, run=None)).purses[0].limit_nanos == sign * MOST_CREDIT
        with pytest.raises(PreconditionFailed):
            await till.put(AddCredit("more", sign, AT))
        assert (await till.put(AddCredit("less", -sign, AT))).created


class Alerting(Money):
    """Thresholds of the month."""

    @pytest.mark.parametrize(
        ("charges", "expected"),
        [
            ([499, 1, 1], [[], [50], []]),
            ([500, 299, 1, 199, 1, 500], [[50], [], [80], [], [100], []]),
            ([800], [[50, 80]]),
            ([5_000, 5_000], [[50, 80, 100], []]),
            ([500, -400, 400], [[50], [], []]),
        ],
    )
    async def test_each_threshold_is_told_once(
        self, storage: Storage, charges: list[int], expected: list[list[int]]
    ) -> None:
        till = await Till(storage).open(monthly_nanos=1_000)
        assert [await _told(till, f"c{place}", charge) for place, charge in enumerate(charges)] == expected

    async def test_a_threshold_is_told_by_the_write_and_kept_with_its_cause(self, storage: Storage) -> None:
        till = await Till(storage).open(monthly_nanos=10_000_000_000)
        written = await till.settle("c", make_row(charge=8_500_000_000), event_ids=EVENTS)
        data = {"period": "2026-11", "threshold_percent": 50, "spent_usd": 8.5, "limit_usd": 10.0}
        first = StoredEvent(
            id="evt_1", type="billing.threshold_crossed", created_at=AT, data=data, account="acme",
            environment="production",
        )  # fmt: skip
        second = replace(first, id="evt_2", data=data | {"threshold_percent": 80})
        assert written.events == (first, second)
        assert await storage.scan("acme", Events(), after=None, limit=9) == [second, first]
        again = await till.settle("c", make_row(charge=8_500_000_000), event_ids=EVENTS)
        assert again.events == ()

    async def test_a_threshold_is_told_anew_for_another_limit_and_once_a_month(self, storage: Storage) -> None:
        till = await Till(storage).open(monthly_nanos=1_000)
        assert await _told(till, "c1", 500) == [50]
        changes = [
            (10_000, 4_499, []), (10_000, 1, [50]), (10_000, 3_000, [80]), (100, 1, [50, 80, 100]), (None, 9, []),
            (10_000, 1, []), (1_000, 1, [80, 100]), (100, 1, []), (1_000, 1, []), (10_000, 2_000, [100]),
        ]  # fmt: skip
        for place, (limit, charge, expected) in enumerate(changes):
            await till.put(PutAccount(make_account(monthly_nanos=limit)))
            assert await _told(till, f"change {place}", charge) == expected
        await till.put(PutAccount(make_account(monthly_nanos=1_000)))
        assert await _told(till, "c2", 500, at=NEXT_MONTH) == [50]


class Accounting(Money):
    """The ledger's rows and their sums: all of them, each once, whatever becomes of the traces."""

    async def test_every_row_comes_back_as_it_was(self, storage: Storage) -> None:
        texts = [*(text for text in ODD_TEXTS if len(text) <= 200), "n" * 200, ""]
        rows = [
            LedgerRow(
                request_id=text, attempt=number, at=AT, key_id=text, model=text, provider=text,
                tokens=Tokens(1, 2, BIG), cost_nanos=BIG, charge_nanos=-BIG, cost_range_nanos=(0, BIG),
                note=text * 3,
            )
            for number, text in enumerate(texts, start=-3)
        ]  # fmt: skip
        till = Till(storage)
        for row in rows:
            await till.settle(row.request_id, row)
        assert sorted(await till.rows(), key=key_of) == sorted(rows, key=key_of)
        for row in rows:
            assert await till.rows(request_id=row.request_id) == [row]

    async def test_pages_visit_each_row_once_newest_first(self, storage: Storage) -> None:
        noon = "2026-11-20T12:00:00.000Z"
        expected = sorted(await _book(Till(storage), Random(1), 60), key=key_of, reverse=True)
        asked = [LedgerRows(), LedgerRows(since=noon), LedgerRows(until=noon)]
        for query in [*asked, *(LedgerRows(request_id=call) for call in ("c1", "c1/1", "c"))]:
            since, until = query.since or "", query.until or "3000"
            fits = [row for row in expected if query.request_id in (None, row.request_id) and since <= row.at < until]
            for limit in (1, 7, 1_000):
                assert await all_pages(storage, "acme", query, key_of, limit) == fits
        assert await storage.scan("acme", LedgerRows(), after=None, limit=0) == []

    async def test_sums_are_what_the_rows_of_each_day_provider_model_and_kind_come_to(self, storage: Storage) -> None:
        names = ("acme", "other", "default")
        rows = {name: await _book(Till(storage, name), Random(seed), 25) for seed, name in enumerate(names)}
        for first, last in DAYS:
            fits = {name: [row for row in rows[name] if first <= row.at[:10] <= last] for name in names}
            for name in names:
                assert await storage.read(name, LedgerSums(first, last)) == _sums(fits[name])
            asked = LedgerSumsOfAll(first, last)
            assert await storage.read(SYSTEM_ACCOUNT, asked) == _sums([row for name in names for row in fits[name]])
            assert await storage.read("acme", asked) == [], "told to the system alone"

    async def test_sums_may_be_greater_than_any_one_amount(self, storage: Storage) -> None:
        for account in ("acme", "other"):
            for number in range(5):
                await Till(storage, account).settle("c", make_row(attempt=number, charge=BIG, cost=-BIG))
        (total,) = await storage.read("acme", LedgerSums("2026-11-21", "2026-11-21"))
        assert (total.charge_nanos, total.cost_nanos, total.most_nanos) == (5 * BIG, -5 * BIG, -5 * BIG)
        (total,) = await storage.read(SYSTEM_ACCOUNT, LedgerSumsOfAll("2026-11-21", "2026-11-21"))
        assert (total.rows, total.charge_nanos, total.cost_nanos) == (10, 10 * BIG, -10 * BIG)

    async def test_deleting_traces_leaves_the_ledger(self, till: Till) -> None:
        await till.put(PutTrace(make_trace(1, account="acme")))
        await till.settle(make_trace(1).id, make_row(make_trace(1).id, charge=5), key_id="k")
        await till.reserve("c", 7, key_id="k")
        before = await till.purses(), await till.rows()
        await till.put(DeleteTraces())
        await till.storage.apply(SYSTEM_ACCOUNT, [SetRetention(production_s=0.0, sandbox_s=0.0)])
        await till.storage.sweep(NOW + 1e9)
        assert (await till.purses(), await till.rows()) == before


async def _told(till: Till, call: str, charge: int, **given: Any) -> list[int]:
    """The thresholds that a charge crosses."""
    written = await till.settle(call, make_row(call, charge=charge), **{"event_ids": EVENTS} | given)
    return [event.data["threshold_percent"] for event in written.events]


async def _book(till: Till, rng: Random, calls: int) -> list[LedgerRow]:
    """Settle calls with rows of chance."""
    times, booked = ("00:00:00.000", "12:00:00.000", "23:59:59.999"), list[LedgerRow]()
    for call in ("c1/1", *(f"c{number}" for number in range(calls))):
        rows = [
            make_row(
                call, attempt, charge=rng.randrange(9), cost=rng.randrange(9),
                at=f"2026-11-{rng.choice((19, 20, 21))}T{rng.choice(times)}Z",
                model=rng.choice(("a/one", "b/two", "")), provider=rng.choice(("a", "b")),
                kind=rng.choice(("attempt", "correction")), tokens=Tokens(rng.randrange(9), 1, 2),
                cost_range_nanos=rng.choice((None, (1, 5))),
            )
            for attempt in rng.sample((-11, -2, -1, 1, 2, 3, 9, 10, 11), rng.randint(1, 4))
        ]  # fmt: skip
        await till.settle(call, *rows)
        booked += rows
    return booked


def _sums(rows: list[LedgerRow]) -> list[LedgerSum]:
    sums: dict[tuple[str, str, str, str], LedgerSum] = {}
    for row in rows:
        name = row.at[:10], row.provider, row.model, row.kind
        empty = LedgerSum(row.at[:10], row.provider, row.model, row.kind, 0, Tokens(), 0, 0, 0, 0, 0)
        sums[name] = summed(sums.get(name, empty), row)
    return [sums[name] for name in sorted(sums)]
