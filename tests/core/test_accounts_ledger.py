"""Booking when a call ends: rows, charges, overruns, thresholds and answers, exactly once and however late."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from routewright._core.accounts.ledger import THRESHOLDS
from routewright._core.accounts.payer import End
from routewright.errors import StorageCorrupt
from routewright.wire import LedgerRow, RunLimit
from tests.contracts.storage.samples import (
    AT,
    BIG,
    EVENTS,
    MONTH,
    NEXT_MONTH,
    PURSES,
    RUN,
    make_row,
)

from .ledgers import Ledger, by_key, full, one

LONG = RunLimit("r", 10_000)


def lost(nanos: int = 800, run: RunLimit | None = LONG) -> Ledger:
    """Of a call that had so much reserved when its owner was gone."""
    ledger = full()
    ledger.hold("lost", nanos, caller=by_key("k"), run=run, claim=one())
    ledger.expire("lost")
    return ledger


# A call that was held for


def test_the_rest_of_a_hold_is_freed_and_a_run_counts_the_cost() -> None:
    ledger = full()
    ledger.hold("c", 400, caller=by_key("k"), run=RUN)
    rows = make_row(attempt=1, charge=0, cost=30), make_row(attempt=2, charge=100)
    assert ledger.settle("c", *rows, tokens=7).end == End("c", 7, 100, 130)
    assert ledger.purses(run=RUN) == {name: (130 if name == "run:r" else 100, 0) for name in PURSES}


@pytest.mark.parametrize(("run_nanos", "counted"), [(None, 30), (0, 30), (20, 30), (300, 300)])
def test_a_run_counts_the_highest_possible_cost(run_nanos: int | None, counted: int) -> None:
    ledger = full()
    ledger.hold("c", 400, run=RUN)
    ledger.settle("c", make_row(charge=30), run_nanos=run_nanos)
    assert ledger.purse("run:r", run=RUN).spent_nanos == counted


def test_a_settlement_without_rows_only_releases() -> None:
    ledger = full()
    ledger.hold("c", 400, run=RUN)
    assert ledger.settle("c", run_nanos=300).end == End("c", None)
    assert {*ledger.purses(run=RUN).values()} == {(0, 0)}


@pytest.mark.parametrize(
    ("charge", "cost", "run", "run_nanos", "overrun"),
    [
        (400, 400, None, None, 0),
        (401, 401, None, None, 1),
        (0, 500, None, None, 0),
        (0, 500, RUN, None, 100),
        (450, 500, RUN, None, 100),
        (0, 0, RUN, 402, 2),
        (0, 0, None, 402, 0),
    ],
)
def test_the_last_row_has_the_overrun(
    charge: int, cost: int, run: RunLimit | None, run_nanos: int | None, overrun: int
) -> None:
    ledger = full()
    ledger.hold("c", 400, run=run)
    booked = ledger.settle("c", make_row(attempt=1), make_row(attempt=2, charge=charge, cost=cost), run_nanos=run_nanos)
    assert [row.overrun_nanos for row in booked.rows] == [0, overrun]


def test_there_is_no_overrun_without_a_limit() -> None:
    ledger = Ledger()
    ledger.hold("c", 1)
    assert [row.overrun_nanos for row in ledger.settle("c", make_row(charge=5)).rows] == [0]


def test_amounts_beyond_any_float_are_exact() -> None:
    ledger = Ledger(monthly_nanos=BIG)
    ledger.hold("c", BIG - 1)
    assert ledger.short("d", 2).waits
    ledger.hold("d", 1)
    ledger.settle("c", make_row(charge=BIG - 1))
    assert ledger.purse(MONTH).left_nanos == 1


# A call that was not held for, or not any more


def test_a_repeated_settlement_is_booked_once() -> None:
    ledger = full()
    ledger.hold("c", 400, caller=by_key("k"), run=RUN)
    for place in range(3):
        booked = ledger.settle("c", make_row(charge=100), caller=by_key("k"), run=RUN, run_nanos=200)
        assert len(booked.rows) == (1 if place == 0 else 0)
    assert ledger.purses(run=RUN) == {name: (200 if name == "run:r" else 100, 0) for name in PURSES}


def test_only_missing_rows_are_booked() -> None:
    ledger = full()
    ledger.settle("c", make_row(attempt=1, charge=10))
    ledger.settle("c", make_row(attempt=1, charge=10), make_row(attempt=2, charge=20))
    assert ledger.purse("account").spent_nanos == 30


def test_a_call_without_a_hold_is_charged_to_the_month_it_came_in() -> None:
    ledger = full()
    booked = ledger.settle("c", make_row(charge=10), caller=by_key("k"), run=RUN, created_at=NEXT_MONTH)
    assert booked.end.purses == ("run:r", "key:k", "key:k:2026-12", "account", "month:2026-12")
    assert (booked.end.account, booked.rows[0].overrun_nanos) == ("acme", 0)
    sandbox = replace(by_key("k"), environment="sandbox")
    assert ledger.settle("d", make_row("d", charge=10), caller=sandbox).end.purses == ()


def test_an_expired_hold_leaves_a_row_if_it_held_money() -> None:
    ledger = lost()
    assert ledger.paper.rows[-1][1] == LedgerRow(
        request_id="lost", attempt=0, kind="expired", at=AT, key_id="k", cost_range_nanos=(0, 800),
        note="its process ended before it did",
    )  # fmt: skip
    assert lost(0).kinds() == []


@pytest.mark.parametrize("rows", [(), (make_row("lost", charge=100),)], ids=["nothing", "booked"])
def test_a_late_settlement_replaces_the_expired_row(rows: tuple[LedgerRow, ...]) -> None:
    ledger = lost()
    for _ in range(2):
        ledger.settle("lost", *rows, created_at=NEXT_MONTH, run=LONG)
        assert {spent for spent, _ in ledger.purses(run=LONG).values()} == {100 if rows else 0}
        assert ledger.kinds() == ["attempt"] * len(rows)


@pytest.mark.parametrize(("cost", "overrun"), [(500, 0), (800, 0), (900, 100)])
def test_an_expired_hold_of_a_run_pays_for_the_late_settlement(cost: int, overrun: int) -> None:
    ledger = lost()
    assert ledger.settle("lost", make_row("lost", charge=0, cost=cost)).rows[-1].overrun_nanos == overrun
    assert ledger.purse("run:r", run=LONG).spent_nanos == cost


@pytest.mark.parametrize(("cost", "overrun"), [(1_000, 0), (1_050, 50)])
def test_expired_and_new_holds_of_a_run_pay_together(cost: int, overrun: int) -> None:
    ledger = lost()
    ledger.hold("lost", 200, run=LONG)
    assert ledger.settle("lost", make_row("lost", charge=0, cost=cost)).rows[-1].overrun_nanos == overrun
    assert ledger.purse("run:r", run=LONG).spent_nanos == cost
    assert ledger.kinds() == ["attempt"]


def test_a_call_that_expires_twice_has_one_row() -> None:
    ledger = lost(300)
    ledger.hold("lost", 200, run=LONG)
    ledger.expire("lost")
    assert [row.cost_range_nanos for _, row in ledger.paper.rows] == [(0, 500)]
    assert ledger.purse("run:r", run=LONG).spent_nanos == 500


# Answers


def test_an_answer_is_kept_and_a_failure_is_not() -> None:
    for result in (b"x", None):
        ledger = full()
        ledger.hold("c", 10, claim=one())
        assert (ledger.settle("c", claim=one(), result=result).keeps is None) is (result is None)


def test_a_stored_answer_is_not_stored_again() -> None:
    ledger = full()
    ledger.hold("c", 10, claim=one())
    assert [bool(ledger.settle("c", claim=one(), result=b"x").keeps) for _ in range(3)] == [True, False, False]


def test_an_expired_call_keeps_its_answer_if_its_key_is_free() -> None:
    booked = lost().settle("lost", make_row("lost", charge=5), claim=one(), result=b"x")
    assert (bool(booked.keeps), booked.is_void, booked.end.charge) == (True, False, 5)


@pytest.mark.parametrize("ended", [True, False])
def test_an_expired_call_whose_key_was_taken_is_not_charged(ended: bool) -> None:
    ledger = lost()
    ledger.hold("d", 10, claim=one())
    if ended:
        ledger.settle("d", claim=one(), result=b"of d")
    for rows in (1, 0):
        booked = ledger.settle("lost", make_row("lost", charge=5), run=LONG, claim=one(), result=b"x")
        assert (bool(booked.keeps), booked.is_void, len(booked.rows)) == (False, True, rows)
    assert ledger.purse("account").spent_nanos == 0
    assert ledger.purse("run:r", run=LONG).spent_nanos == 5, "its run counts what it cost"


def test_an_expired_call_whose_key_is_free_again_keeps_its_answer() -> None:
    ledger = lost()
    ledger.hold("d", 10, claim=one())
    ledger.release("d")
    assert ledger.settle("lost", make_row("lost", charge=5), claim=one(), result=b"x").keeps


# Corrections


def test_a_correction_changes_the_sums_and_ends_no_hold() -> None:
    ledger = lost()
    ledger.settle("c", make_row(charge=100, key_id="k"), caller=by_key("k"))
    ledger.hold("runs", 10)
    for call in ("c", "lost", "runs"):
        wrong = make_row(call, attempt=-1, charge=-30, kind="correction", key_id="k")
        assert [len(ledger.correct(wrong).rows) for _ in range(2)] == [1, 0]
    assert ledger.purses() == {"key:k": (10, 0), "key:k:2026-11": (10, 0), "account": (10, 10), MONTH: (10, 10)}
    assert "expired" in ledger.kinds()


def test_a_correction_may_cross_a_threshold() -> None:
    booked = full().correct(make_row(attempt=-1, charge=800, kind="correction"), event_ids=EVENTS)
    assert [event.id for event in booked.events] == ["evt_1", "evt_2"]


# Thresholds


def charge(ledger: Ledger, call: str, nanos: int, **given: Any) -> list[int]:
    """The thresholds that a call's settlement tells of."""
    booked = ledger.settle(call, make_row(call, charge=nanos), **{"event_ids": EVENTS} | given)
    return [event.data["threshold_percent"] for event in booked.events]


@pytest.mark.parametrize(
    ("charges", "expected"),
    [
        ([499, 1, 1], [[], [50], []]),
        ([500, 299, 1, 199, 1, 500], [[50], [], [80], [], [100], []]),
        ([800], [[50, 80]]),
        ([1_000], [[50, 80, 100]]),
        ([5_000, 5_000], [[50, 80, 100], []]),
        ([0], [[]]),
        ([500, -400, 400], [[50], [], []]),
    ],
)
def test_each_threshold_is_reported_once_in_order(charges: list[int], expected: list[list[int]]) -> None:
    ledger = Ledger(monthly_nanos=1_000)
    assert [charge(ledger, f"c{place}", nanos) for place, nanos in enumerate(charges)] == expected


def test_a_threshold_event_has_month_and_amounts() -> None:
    first, second = Ledger(monthly_nanos=10_000_000_000).settle(
        "c", make_row(charge=8_500_000_000), event_ids=EVENTS
    ).events  # fmt: skip
    assert (first.id, second.id) == EVENTS[:2]
    assert second == replace(first, id="evt_2", data=first.data | {"threshold_percent": 80})
    assert (first.type, first.created_at, first.account) == ("billing.threshold_crossed", AT, "acme")
    assert first.data == {"period": "2026-11", "threshold_percent": 50, "spent_usd": 8.5, "limit_usd": 10.0}


def test_without_event_ids_the_next_settlement_reports_the_threshold() -> None:
    ledger = Ledger(monthly_nanos=1_000)
    assert charge(ledger, "c1", 600, event_ids=()) == []
    assert charge(ledger, "c2", 1) == [50]


def test_an_unreadable_account_is_not_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = full()
    ledger.hold("c", 400, caller=by_key("k"))
    with monkeypatch.context() as patch:
        patch.setattr(ledger.state, "account", Mock(side_effect=StorageCorrupt("damaged")))
        with pytest.raises(StorageCorrupt):
            charge(ledger, "c", 300)
    assert ledger.purses() == dict.fromkeys(PURSES[1:], (0, 400))
    assert charge(ledger, "c", 300) == []


def test_an_unreadable_account_keeps_its_expired_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = lost()
    ledger.change()
    with monkeypatch.context() as patch:
        patch.setattr(ledger.paper, "account", Mock(side_effect=StorageCorrupt("damaged")))
        with pytest.raises(StorageCorrupt):
            charge(ledger, "lost", 300)
    assert ledger.kinds() == ["expired"]
    charge(ledger, "lost", 300)
    assert ledger.kinds() == ["attempt"]


def test_thresholds_start_over_each_month() -> None:
    ledger = Ledger(monthly_nanos=1_000)
    assert charge(ledger, "c1", 600) == [50]
    assert charge(ledger, "c2", 600, created_at=NEXT_MONTH) == [50]


@given(
    limits=st.lists(st.integers(1, 3_000), min_size=1, max_size=8),
    charges=st.lists(st.integers(0, 900), min_size=1, max_size=20),
)
def test_any_history_reports_each_threshold_of_a_limit_once_in_order(limits: list[int], charges: list[int]) -> None:
    ledger, spent = Ledger(), 0
    heard = {limit: list[int]() for limit in limits}
    for place, nanos in enumerate(charges):
        limit = limits[place % len(limits)]
        ledger.terms(monthly_nanos=limit)
        heard[limit] += charge(ledger, f"c{place}", nanos)
        spent += nanos
        reached = [percent for percent in THRESHOLDS if spent * 100 >= percent * limit]
        assert heard[limit] == (reached if nanos else heard[limit])
