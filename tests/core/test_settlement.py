"""Booking when a call ends: rows, charges, overruns, thresholds and answers, exactly once and however late."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from routewright._core.accounts.settlement import THRESHOLDS, limit_cost
from routewright.errors import StorageCorrupt
from routewright.protocols import Facts
from routewright.wire import Caller, Claim, LedgerRow, RunLimit
from tests.contracts.storage.samples import AT, EVENT_IDS, NEXT_MONTH, PURSES, RUN, make_row

from .account_state import Ledger, by_key, full, one

LONG = RunLimit("r", 10_000)


def lost(nanos: int = 800, run: RunLimit | None = LONG) -> Ledger:
    """Of a call that had so much reserved when its owner was gone."""
    ledger = full()
    ledger.hold("lost", nanos, caller=by_key("k"), run=run, claim=one())
    ledger.expire("lost")
    return ledger


# A call that was held for


# A call that was not held for, or not any more


def test_a_call_without_a_hold_is_charged_to_the_month_it_came_in() -> None:
    ledger = full()
    booked = ledger.settle("c", make_row(charge=10), caller=by_key("k"), run=RUN, created_at=NEXT_MONTH)
    assert booked.end.purses == ("run:r", "key:k", "key:k:2026-12", "account", "month:2026-12")
    assert (booked.end.account, booked.rows[0].overrun_nanos) == ("acme", 0)
    sandbox = replace(by_key("k"), environment="sandbox")
    assert ledger.settle("d", make_row("d", charge=10), caller=sandbox).end.purses == ()


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


# Answers


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


# Thresholds


def charge(ledger: Ledger, call: str, nanos: int, **given: Any) -> list[int]:
    """The thresholds that the charge of a call crosses."""
    booked = ledger.settle(call, make_row(call, charge=nanos), **{"event_id": EVENT_IDS} | given)
    return [event.data["threshold_percent"] for event in booked.events]


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


# Less each time, if the storage refuses it, and never more than the cost


def facts(*costs: int, run_nanos: int | None = None) -> Facts:
    """Of a call with an attempt of each cost, which were charged."""
    rows = [
        LedgerRow(request_id="tr_1", attempt=n, at=AT, model="a/b", cost_nanos=cost, charge_nanos=cost)
        for n, cost in enumerate(costs, start=1)
    ]
    claim, run = Claim("k", "f"), None if run_nanos is None else RunLimit("run_1", 10**9)
    return Facts("tr_1", Caller("acme"), AT, rows=rows, claim=claim, result=b"", run=run, run_nanos=run_nanos)


@given(st.lists(st.integers(0, 100), max_size=4), st.integers(0, 150))
def test_a_bounded_bill_is_the_cost_up_to_the_reservation(costs: list[int], most: int) -> None:
    less = limit_cost(facts(*costs, run_nanos=sum(costs)), most)
    assert sum(row.cost_nanos for row in less.rows) == min(sum(costs), most)
    assert all(0 <= row.charge_nanos <= row.cost_nanos for row in less.rows)
    assert less.run_nanos == min(sum(costs), most)
    assert (less.claim, less.result, {row.model for row in less.rows} <= {""}) == (None, None, True)
    assert [row.attempt for row in less.rows] == [*range(1, len(costs) + 1)]
