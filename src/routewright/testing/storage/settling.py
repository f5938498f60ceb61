"""What a call came to is booked once, what was held beyond that is free, and thresholds are told of once."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from routewright.protocols import Storage
from routewright.wire import (
    AddCredit,
    Events,
    LedgerRow,
    PutAccount,
    PutKey,
    Settle,
    StoredEvent,
)

from .money import AT, EVENTS, NEXT_MONTH, PURSES, RUN, Till, make_account, make_key, make_row
from .suite import Suite


class Settling(Suite):
    """After a call."""

    async def test_what_was_held_beyond_the_charge_is_free_again_and_a_run_counts_cost(self, storage: Storage) -> None:
        till = await Till(storage).open_full()
        await till.reserve("c", 400, key_id="k", run=RUN)
        rows = make_row(attempt=1, cost=30, key_id="k"), make_row(attempt=2, charge=100, key_id="k", model="a/two")
        assert (await till.settle("c", *rows)).created
        assert await till.purses() == {name: (130 if name == "run:r" else 100, 0) for name in PURSES}
        assert await till.rows(request_id="c") == [rows[1], rows[0]]

    @pytest.mark.parametrize(("run_nanos", "counted"), [(None, 30), (20, 30), (300, 300)])
    async def test_a_run_counts_the_most_that_is_possible(
        self, storage: Storage, run_nanos: int | None, counted: int
    ) -> None:
        till = await Till(storage).open_full()
        await till.reserve("c", 400, run=RUN)
        await till.settle("c", make_row(charge=30), run_nanos=run_nanos)
        assert (await till.purses())["run:r"] == (counted, 0)

    async def test_without_rows_it_is_only_released(self, storage: Storage) -> None:
        till = await Till(storage).open_full()
        await till.reserve("c", 400, key_id="k", run=RUN)
        assert (await till.settle("c")).created
        assert not (await till.settle("c")).created
        assert await till.purses() == dict.fromkeys(PURSES, (0, 0))
        assert await till.kinds() == []

    async def test_it_is_booked_once_however_often_it_is_said(self, storage: Storage) -> None:
        till = await Till(storage).open_full()
        await till.reserve("c", 400, key_id="k", run=RUN)
        said: dict[str, Any] = {"key_id": "k", "run": RUN, "run_nanos": 200}
        assert (await till.settle("c", make_row(charge=100), **said)).created
        before = await till.purses(), await till.rows()
        for _ in range(2):
            assert not (await till.settle("c", make_row(charge=100), **said)).created
        assert (await till.purses(), await till.rows()) == before

    async def test_of_rows_that_are_partly_there_the_others_are_booked(self, storage: Storage) -> None:
        till = await Till(storage).open_full()
        await till.settle("c", make_row(attempt=1, charge=10))
        assert (await till.settle("c", make_row(attempt=1, charge=10), make_row(attempt=2, charge=20))).created
        assert (await till.purses())["account"] == (30, 0)

    async def test_without_a_reservation_the_rows_are_booked_all_the_same(self, storage: Storage) -> None:
        till = await Till(storage).open_full()
        await till.settle("c", make_row(charge=10), key_id="k", run=RUN)
        assert await till.purses() == dict.fromkeys(PURSES, (10, 0))
        assert [row.overrun_nanos for row in await till.rows(request_id="c")] == [0]

    async def test_an_overrun_is_said_in_the_last_row_and_nothing_else_is_let_in(self, storage: Storage) -> None:
        till = await Till(storage).open_full()
        await till.reserve("c", 1_000)
        await till.settle("c", make_row(attempt=1, charge=500), make_row(attempt=2, charge=700))
        assert [row.overrun_nanos for row in await till.rows(request_id="c")] == [200, 0]
        told = await till.refused("d", 0)
        assert (told["spent_nanos"], told["waits"]) == (1_200, False)

    async def test_a_run_is_overrun_by_cost_and_the_others_by_charge(self, storage: Storage) -> None:
        till = await Till(storage).open_full()
        for call, run in (("c", None), ("d", RUN)):
            await till.reserve(call, 400, run=run)
            await till.settle(call, make_row(call, charge=10, cost=450))
        assert [row.overrun_nanos for call in "cd" for row in await till.rows(request_id=call)] == [0, 50]

    async def test_many_in_one_batch_are_as_many_one_by_one(self, storage: Storage) -> None:
        till = await Till(storage).open_full()
        await till.reserve("c0", 10, key_id="k")
        rows = [[make_row(f"c{number}", attempt, charge=1) for attempt in (1, 2)] for number in range(100)]
        settles = [Settle(id=f"c{number}", at=AT, rows=(*each,), key_id="k") for number, each in enumerate(rows)]
        results = await storage.apply("acme", [*settles, *settles[:3]])
        assert [result.created for result in results] == [True] * 100 + [False] * 3
        assert await till.purses(run=None) == dict.fromkeys(PURSES[1:], (200, 0))
        assert len(await till.rows()) == 201

    async def test_a_key_that_gets_a_budget_later_has_spent_what_it_spent_before(self, storage: Storage) -> None:
        till = await Till(storage).open(make_key())
        await till.settle("c", make_row(charge=900), key_id="k")
        await till.put(PutKey(make_key(budget_nanos=1_000)))
        assert (await till.refused("d", 101, key_id="k"))["name"] == "key:k"
        await till.reserve("d", 100, key_id="k")

    async def test_a_correction_changes_what_was_spent_and_no_row(self, storage: Storage) -> None:
        till = await Till(storage).open_full()
        await till.settle("c", make_row(charge=100), key_id="k", run=RUN)
        wrong = make_row(attempt=-1, charge=-30, kind="correction", note="as invoiced")
        await till.settle("c", wrong, key_id="k", run=RUN)
        assert await till.purses() == dict.fromkeys(PURSES, (70, 0))
        assert {row.attempt: row for row in await till.rows(request_id="c")} == {1: make_row(charge=100), -1: wrong}

    async def test_credit_twice_is_once_and_may_be_taken_back(self, storage: Storage) -> None:
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


class Alerting(Suite):
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
    async def test_each_threshold_is_told_once_in_order(
        self, storage: Storage, charges: list[int], expected: list[list[int]]
    ) -> None:
        till = await Till(storage).open(monthly_nanos=1_000)
        told = [await self._told(till, f"c{place}", charge) for place, charge in enumerate(charges)]
        assert told == expected

    async def test_it_is_told_by_the_write_and_kept_with_its_cause(self, storage: Storage) -> None:
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

    async def test_of_a_changed_limit_a_threshold_is_told_anew_and_once_a_month(self, storage: Storage) -> None:
        till = await Till(storage).open(monthly_nanos=1_000)
        assert await self._told(till, "c1", 500) == [50]
        changes = [
            (10_000, 4_499, []), (10_000, 1, [50]), (10_000, 3_000, [80]), (100, 1, [50, 80, 100]), (None, 9, []),
            (10_000, 1, []), (1_000, 1, [80, 100]), (100, 1, []), (1_000, 1, []), (10_000, 2_000, [100]),
        ]  # fmt: skip
        for place, (limit, charge, expected) in enumerate(changes):
            await till.put(PutAccount(make_account(monthly_nanos=limit)))
            assert await self._told(till, f"change {place}", charge) == expected
        await till.put(PutAccount(make_account(monthly_nanos=1_000)))
        assert await self._told(till, "c2", 500, at=NEXT_MONTH) == [50]

    async def _told(self, till: Till, call: str, charge: int, **given: Any) -> list[int]:
        written = await till.settle(call, make_row(call, charge=charge), **{"event_ids": EVENTS} | given)
        return [event.data["threshold_percent"] for event in written.events]
