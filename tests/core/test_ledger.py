"""May money be set aside, and where does it go? The rules of an account's ledger, one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from routewright._core.ledger import THRESHOLDS, level_of
from routewright.testing.storage.samples import AT, EVENTS, NEXT_MONTH, RUN, make_account, make_key, make_row
from routewright.wire import AddCredit, KeepLease, LedgerRow, PutAccount, PutKey, RunLimit, StoredEvent

from .ledgers import Ledger

MONTH = "month:2026-11"
ALL = ("run:r", "key:k", "key:k:2026-11", "account", MONTH)
BIG = 2**62


def full(**given: Any) -> Ledger:
    """One with a limit of 1,000 at every level."""
    ledger = Ledger(make_key(budget_nanos=1_000, monthly_nanos=1_000), prepaid=True, monthly_nanos=1_000, **given)
    ledger.books.put(AddCredit("cr", 1_000, AT))
    return ledger


# Which purses


def test_a_request_is_inside_the_run_that_in_the_key_the_account_and_the_month() -> None:
    standing = full().standing(key_id="k", run=RUN)
    assert [purse.name for purse in standing.purses] == [*ALL]
    assert [purse.level for purse in standing.purses] == ["agent_run", "key", "key", "account", "month"]
    assert [purse.limit_nanos for purse in standing.purses] == [1_000] * 5
    assert [level_of(name) for name in ALL] == [purse.level for purse in standing.purses]


def test_who_was_never_set_up_is_unlimited() -> None:
    ledger = Ledger()
    ledger.books._account = None
    assert ledger.standing(key_id="none").purses == ()
    ledger.reserve("c", BIG)
    assert ledger.settle("c", make_row(charge=BIG)).created
    assert ledger.purses() == {}


def test_an_account_without_limits_counts_all_the_same() -> None:
    ledger = Ledger(make_key())
    ledger.reserve("c", 10, key_id="k")
    ledger.settle("c", make_row(charge=7))
    assert ledger.purses(key_id="k") == {"key:k": (7, 0), "key:k:2026-11": (7, 0), "account": (7, 0), MONTH: (7, 0)}
    assert {purse.limit_nanos for purse in ledger.standing(key_id="k").purses} == {None}


def test_a_key_that_gets_a_budget_later_has_spent_what_it_spent_before() -> None:
    ledger = Ledger(make_key())
    ledger.settle("c", make_row(charge=900), key_id="k")
    ledger.books.put(PutKey(make_key(budget_nanos=1_000)))
    assert ledger.refused("d", 101, key_id="k")["name"] == "key:k"
    ledger.reserve("d", 100, key_id="k")


def test_each_month_has_a_purse_of_its_own_which_the_reservation_chooses() -> None:
    ledger = full()
    ledger.reserve("c", 1_000)
    ledger.settle("c", make_row(charge=600), at=NEXT_MONTH)
    assert ledger.purse(MONTH).spent_nanos == 600
    assert ledger.purses(NEXT_MONTH)["month:2026-12"] == (0, 0)
    ledger.settle("d", make_row("d", charge=5), at=NEXT_MONTH)
    assert ledger.purses(NEXT_MONTH)["month:2026-12"] == (5, 0)


# Reserve


@pytest.mark.parametrize("short", ALL)
def test_it_is_held_at_all_levels_or_at_none(short: str) -> None:
    ledger = full()
    ledger.books.put_sums(short, replace(ledger.books.sums(short), spent=500))
    before = ledger.purses(key_id="k", run=RUN)
    refused = ledger.refused("c", 501, key_id="k", run=RUN)
    assert (refused["name"], refused["spent_nanos"], refused["waits"]) == (short, 500, False)
    assert ledger.purses(key_id="k", run=RUN) == before
    assert ledger.reserve("c", 500, key_id="k", run=RUN).created
    assert all(reserved == 500 for _, reserved in ledger.purses(key_id="k", run=RUN).values())


@pytest.mark.parametrize(
    ("spent", "reserved", "asked", "waits"),
    [
        (0, 0, 1_000, None),
        (0, 0, 1_001, False),
        (999, 0, 1, None),
        (1_000, 0, 0, None),
        (1_000, 0, 1, False),
        (0, 1_000, 1, True),
        (0, 1, 1_000, True),
        (0, 1, 1_001, False),
        (500, 500, 500, True),
        (500, 500, 501, False),
    ],
)
def test_only_what_others_hold_is_waited_for(spent: int, reserved: int, asked: int, waits: bool | None) -> None:
    ledger = Ledger(monthly_nanos=1_000)
    ledger.settle("paid", make_row("paid", charge=spent))
    ledger.reserve("other", reserved)
    if waits is None:
        ledger.reserve("c", asked)
    else:
        assert ledger.refused("c", asked)["waits"] is waits


def test_of_several_that_are_short_the_one_with_the_least_left_is_told() -> None:
    ledger = Ledger(make_key(budget_nanos=300), monthly_nanos=200)
    ledger.reserve("other", 150, key_id="k")
    told = ledger.refused("c", 250, key_id="k")
    assert (told["name"], told["level"], told["waits"]) == (MONTH, "month", False)


@pytest.mark.parametrize("nanos", [0, 1, 400, 700, 1_000])
def test_again_with_the_same_id_it_holds_so_much_instead(nanos: int) -> None:
    ledger = full()
    ledger.reserve("c", 400, key_id="k", run=RUN)
    assert not ledger.reserve("c", nanos, key_id="k", run=RUN).created
    assert set(ledger.purses(key_id="k", run=RUN).values()) == {(0, nanos)}


def test_again_for_more_than_there_is_it_still_holds_what_it_held() -> None:
    ledger = full()
    ledger.reserve("c", 400)
    ledger.reserve("other", 500)
    assert ledger.refused("c", 501)["waits"]
    assert not ledger.refused("c", 1_001)["waits"]
    assert ledger.purse("account").reserved_nanos == 900
    ledger.reserve("c", 500)
    assert ledger.purse("account").reserved_nanos == 1_000


def test_again_in_another_month_another_month_pays() -> None:
    ledger = full()
    ledger.reserve("c", 400)
    ledger.reserve("c", 300, at=NEXT_MONTH)
    assert ledger.purse(MONTH).reserved_nanos == 0
    assert ledger.purses(NEXT_MONTH)["month:2026-12"] == (0, 300)
    ledger.settle("c", make_row(charge=200))
    assert ledger.purses(NEXT_MONTH)["month:2026-12"] == (200, 0)


def test_amounts_beyond_any_float_are_exact() -> None:
    ledger = Ledger(monthly_nanos=BIG)
    ledger.reserve("c", BIG - 1)
    assert ledger.refused("d", 2)["waits"]
    ledger.reserve("d", 1)
    ledger.settle("c", make_row(charge=BIG - 1))
    assert ledger.purse(MONTH).left_nanos == 1


# Settle


def test_what_was_held_beyond_the_charge_is_free_again_and_a_run_counts_cost() -> None:
    ledger = full()
    ledger.reserve("c", 400, key_id="k", run=RUN)
    rows = make_row(attempt=1, charge=0, cost=30), make_row(attempt=2, charge=100)
    assert ledger.settle("c", *rows).created
    assert ledger.purses(key_id="k", run=RUN) == {name: (130 if name == "run:r" else 100, 0) for name in ALL}
    assert ledger.rows()[1:] == [*rows]


@pytest.mark.parametrize(("run_nanos", "counted"), [(None, 30), (0, 30), (20, 30), (300, 300)])
def test_a_run_counts_the_most_that_is_possible(run_nanos: int | None, counted: int) -> None:
    ledger = full()
    ledger.reserve("c", 400, run=RUN)
    ledger.settle("c", make_row(charge=30), run_nanos=run_nanos)
    assert ledger.purse("run:r", run=RUN).spent_nanos == counted


def test_without_rows_it_is_only_released() -> None:
    ledger = full()
    ledger.reserve("c", 400, key_id="k", run=RUN)
    assert ledger.settle("c", run_nanos=300).created
    assert set(ledger.purses(key_id="k", run=RUN).values()) == {(0, 0)}
    assert [each.kind for each in ledger.rows()] == ["credit"]


def test_it_is_booked_once_however_often_it_is_said() -> None:
    ledger = full()
    ledger.reserve("c", 400, key_id="k", run=RUN)
    assert ledger.settle("c", make_row(charge=100), key_id="k", run=RUN, run_nanos=200).created
    before = ledger.purses(key_id="k", run=RUN), ledger.rows()
    for _ in range(2):
        assert not ledger.settle("c", make_row(charge=100), key_id="k", run=RUN, run_nanos=200).created
    assert (ledger.purses(key_id="k", run=RUN), ledger.rows()) == before


def test_of_rows_that_are_partly_there_the_others_are_booked() -> None:
    ledger = full()
    ledger.settle("c", make_row(attempt=1, charge=10))
    ledger.settle("c", make_row(attempt=1, charge=10), make_row(attempt=2, charge=20))
    assert ledger.purse("account").spent_nanos == 30


def test_without_a_reservation_the_rows_are_booked_all_the_same() -> None:
    ledger = full()
    ledger.settle("c", make_row(charge=10), key_id="k", run=RUN)
    assert {spent for spent, _ in ledger.purses(key_id="k", run=RUN).values()} == {10}
    assert ledger.rows()[-1].overrun_nanos == 0


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
def test_the_last_row_says_by_how_much_it_came_to_more_than_was_held(
    charge: int, cost: int, run: RunLimit | None, run_nanos: int | None, overrun: int
) -> None:
    ledger = full()
    ledger.reserve("c", 400, run=run)
    ledger.settle("c", make_row(attempt=1), make_row(attempt=2, charge=charge, cost=cost), run_nanos=run_nanos)
    assert [each.overrun_nanos for each in ledger.rows()[1:]] == [0, overrun]


def test_nobody_is_told_of_an_overrun_where_nothing_is_counted() -> None:
    ledger = Ledger()
    ledger.books._account = None
    ledger.reserve("c", 1)
    ledger.settle("c", make_row(charge=5))
    assert ledger.rows()[0].overrun_nanos == 0


def test_after_an_overrun_nothing_else_is_admitted() -> None:
    ledger = full()
    ledger.reserve("c", 1_000)
    ledger.settle("c", make_row(charge=1_200))
    assert not ledger.refused("d", 0)["waits"]
    assert ledger.purse("account").left_nanos == -200


def test_a_correction_changes_what_was_spent_and_no_row() -> None:
    ledger = full()
    ledger.settle("c", make_row(charge=100), key_id="k", run=RUN)
    wrong = make_row(attempt=-1, charge=-30, kind="correction")
    ledger.settle("c", wrong, key_id="k", run=RUN)
    assert {spent for spent, _ in ledger.purses(key_id="k", run=RUN).values()} == {70}
    assert ledger.rows()[1:] == [make_row(charge=100), wrong]


# Credit


def test_credit_twice_is_once_and_may_be_taken_back() -> None:
    ledger = Ledger(prepaid=True)
    assert ledger.refused("c", 1) == {
        "level": "account", "name": "account", "limit_nanos": 0, "spent_nanos": 0, "reserved_nanos": 0, "waits": False
    }  # fmt: skip
    given = AddCredit("cr_1", 500, AT, note="invoice 7")
    assert [ledger.books.put(given).created for _ in range(2)] == [True, False]
    assert ledger.purse("account").limit_nanos == 500
    ledger.books.put(AddCredit("cr_2", -600, AT))
    assert ledger.purse("account").limit_nanos == -100
    assert ledger.rows()[0] == LedgerRow(
        request_id="cr_1", attempt=0, kind="credit", at=AT, credit_nanos=500, note="invoice 7"
    )


def test_credit_that_comes_before_the_account_is_there_for_it() -> None:
    ledger = Ledger()
    ledger.books.put(AddCredit("cr_1", 500, AT))
    assert ledger.purse("account").limit_nanos is None
    ledger.books.put(PutAccount(make_account(prepaid=True)))
    ledger.reserve("c", 500)


# Owners that are gone


def test_an_owner_that_is_gone_gives_room_and_leaves_a_row() -> None:
    ledger = full()
    ledger.reserve("lost", 800, key_id="k", run=RUN, owner="dead")
    assert ledger.refused("c", 300, clock_s=29.9)["waits"]
    ledger.reserve("c", 300, clock_s=30.0)
    assert ledger.purses(key_id="k", run=RUN) == {
        name: (800, 0) if name == "run:r" else (0, 0) if name.startswith("key") else (0, 300) for name in ALL
    }
    assert ledger.rows()[1:] == [
        LedgerRow(
            request_id="lost", attempt=0, kind="expired", at=AT, key_id="k", cost_range_nanos=(0, 800),
            note="its process ended before it did",
        )
    ]  # fmt: skip


def test_what_is_abandoned_is_taken_only_where_it_helps() -> None:
    ledger = full()
    ledger.reserve("lost", 300, owner="dead")
    ledger.reserve("held", 700, owner="alive")
    ledger.books.put(AddCredit("more", 1, AT))
    ledger.books._owners.keep("alive", 30.0, 30.0)
    before = ledger.purses(), ledger.rows()
    told = ledger.refused("c", 301, clock_s=31.0)
    assert (told["name"], told["waits"]) == (MONTH, True)
    assert (ledger.purses(), ledger.rows()) == before
    ledger.reserve("c", 300, clock_s=31.0)
    assert [each.kind for each in ledger.rows()] == ["credit", "credit", "expired"]


def test_a_run_is_given_no_room_by_an_owner_that_is_gone_as_nobody_knows_what_it_spent() -> None:
    ledger = full()
    ledger.reserve("lost", 800, run=RUN, owner="dead")
    told = ledger.refused("c", 300, run=RUN, clock_s=31.0)
    assert (told["name"], told["spent_nanos"], told["waits"]) == ("run:r", 800, False)
    ledger.reserve("c", 200, run=RUN, clock_s=31.0)
    assert ledger.purse("run:r", run=RUN).spent_nanos == 0, "nothing had to be taken for it"


def test_who_asks_is_not_gone() -> None:
    ledger = full()
    ledger.reserve("first", 800, owner="own")
    assert ledger.refused("second", 300, owner="own", clock_s=100.0)["waits"]
    ledger.reserve("second", 200, owner="own", clock_s=100.0)
    assert ledger.purse("account").reserved_nanos == 1_000


def test_a_call_may_go_on_with_a_reservation_of_its_own_that_was_abandoned() -> None:
    ledger = full()
    ledger.reserve("c", 800, owner="dead")
    ledger.reserve("c", 900, owner="heir", clock_s=100.0)
    assert ledger.purse("account").reserved_nanos == 900
    assert [each.kind for each in ledger.rows()] == ["credit"]


@pytest.mark.parametrize("rows", [(), (make_row("lost", charge=100),)])
def test_a_late_settle_books_what_it_was_after_all(rows: tuple[LedgerRow, ...]) -> None:
    ledger = full()
    ledger.reserve("lost", 800, key_id="k", run=RUN, owner="dead")
    ledger.reserve("c", 1_000, clock_s=31.0)
    assert ledger.settle("lost", *rows, at=NEXT_MONTH).created
    spent = 100 if rows else 0
    assert {each for each, _ in ledger.purses(key_id="k", run=RUN).values()} == {spent}
    assert [(each.kind, each.overrun_nanos) for each in ledger.rows()[1:]] == [("attempt", 100)][: len(rows)]
    assert not ledger.settle("lost", *rows, at=NEXT_MONTH).created


def test_a_call_that_reserves_again_after_its_reservation_expired_is_counted_once() -> None:
    ledger = full()
    ledger.reserve("lost", 300, run=RUN, owner="slow")
    ledger.reserve("c", 900, clock_s=31.0)
    ledger.settle("c")
    ledger.reserve("lost", 200, run=RUN, owner="slow", clock_s=40.0)
    assert ledger.purse("run:r", run=RUN).spent_nanos == 300
    ledger.settle("lost", make_row("lost", charge=150))
    assert ledger.purses(run=RUN) == {"run:r": (150, 0), "account": (150, 0), MONTH: (150, 0)}
    assert [each.kind for each in ledger.rows()] == ["credit", "attempt"]


def test_a_call_that_expires_twice_has_one_row_of_both() -> None:
    ledger = full()
    for clock_s, nanos in ((0.0, 300), (40.0, 200)):
        ledger.reserve("lost", nanos, run=RUN, owner="slow", clock_s=clock_s)
        ledger.reserve("c", 900, clock_s=clock_s + 31.0)
        ledger.settle("c")
    assert [each.cost_range_nanos for each in ledger.rows()[1:]] == [(0, 500)]
    assert ledger.purse("run:r", run=RUN).spent_nanos == 500


def test_a_correction_does_not_say_what_an_expired_call_came_to() -> None:
    ledger = full()
    ledger.reserve("lost", 800, owner="dead")
    ledger.reserve("c", 1_000, clock_s=31.0)
    ledger.settle("lost", make_row("lost", attempt=-1, cost=7, kind="correction"))
    assert [each.kind for each in ledger.rows()[1:]] == ["expired", "correction"]


def test_leases_that_are_kept_hold_for_another_length() -> None:
    ledger = full()
    ledger.reserve("c", 800, owner="alive")
    for clock_s in (20.0, 45.0, 74.0):
        owners = ledger.books._owners
        owners.keep(*_kept(KeepLease("alive", 30.0, clock_s)))
        assert ledger.refused("d", 300, clock_s=clock_s + 29.9)["waits"]
    ledger.reserve("d", 300, clock_s=104.0)


def _kept(write: KeepLease) -> tuple[str, float, float]:
    return write.owner, write.lease_s, write.clock_s


# Thresholds


def told(ledger: Ledger, call: str, charge: int, **given: Any) -> list[int]:
    """The thresholds that a call's settlement tells of."""
    facts: dict[str, Any] = {"event_ids": EVENTS} | given
    events: tuple[StoredEvent, ...] = ledger.settle(call, make_row(call, charge=charge), **facts).events
    return [event.data["threshold_percent"] for event in events]


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
def test_each_threshold_is_told_once_in_order(charges: list[int], expected: list[list[int]]) -> None:
    ledger = Ledger(monthly_nanos=1_000)
    assert [told(ledger, f"c{place}", charge) for place, charge in enumerate(charges)] == expected


def test_an_event_says_which_month_and_how_much_and_is_kept() -> None:
    ledger = Ledger(monthly_nanos=10_000_000_000)
    written = ledger.settle("c", make_row(charge=8_500_000_000), event_ids=EVENTS)
    first, second = written.events
    assert (first.id, second.id) == EVENTS[:2]
    assert second == replace(first, id="evt_2", data=first.data | {"threshold_percent": 80})
    assert (first.type, first.created_at, first.account) == ("billing.threshold_crossed", AT, "acme")
    assert first.data == {"period": "2026-11", "threshold_percent": 50, "spent_usd": 8.5, "limit_usd": 10.0}
    assert [*ledger.books._events.values()] == [first, second]


def test_of_a_changed_limit_a_threshold_is_told_anew_and_once_a_month() -> None:
    ledger = Ledger(monthly_nanos=1_000)
    assert told(ledger, "c1", 500) == [50]
    ledger.books.put(PutAccount(make_account(monthly_nanos=10_000)))
    assert told(ledger, "c2", 4_499) == []
    assert told(ledger, "c2b", 1) == [50], "whoever raises the limit hears of the new one"
    assert told(ledger, "c3", 3_000) == [80]
    ledger.books.put(PutAccount(make_account(monthly_nanos=100)))
    assert told(ledger, "c4", 1) == [50, 80, 100]
    ledger.books.put(PutAccount(make_account(monthly_nanos=None)))
    assert told(ledger, "c5", 9) == []
    ledger.books.put(PutAccount(make_account(monthly_nanos=10_000)))
    assert told(ledger, "c5b", 1) == [], "it was told of that limit"
    ledger.books.put(PutAccount(make_account(monthly_nanos=1_000)))
    assert told(ledger, "c5c", 1) == [80, 100]
    assert told(ledger, "c6", 500, at=NEXT_MONTH) == [50], "the next month begins anew"


def test_without_ids_for_events_they_are_told_by_the_next() -> None:
    ledger = Ledger(monthly_nanos=1_000)
    assert told(ledger, "c1", 600, event_ids=()) == []
    assert told(ledger, "c2", 1) == [50]


@given(
    limits=st.lists(st.integers(1, 3_000), min_size=1, max_size=8),
    charges=st.lists(st.integers(0, 900), min_size=1, max_size=20),
)
def test_whatever_is_charged_and_limited_each_is_told_once_of_each_limit_and_in_order(
    limits: list[int], charges: list[int]
) -> None:
    ledger, spent = Ledger(), 0
    heard = {limit: list[int]() for limit in limits}
    for place, charge in enumerate(charges):
        limit = limits[place % len(limits)]
        ledger.books.put(PutAccount(make_account(monthly_nanos=limit)))
        heard[limit] += told(ledger, f"c{place}", charge)
        spent += charge
        reached = [percent for percent in THRESHOLDS if spent * 100 >= percent * limit]
        assert heard[limit] == reached
