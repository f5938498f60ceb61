"""What a storage in memory keeps of an account besides its traces."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from routewright._core.books import INCIDENTS, WEEK_S, Books, forgotten_at, is_quiet
from routewright._core.idempotency import KEPT_S
from routewright._core.lease import Owners, is_held
from routewright._core.moment import timestamp
from routewright._core.rows import key_of, summed
from routewright.testing.storage.samples import AT, make_row
from routewright.wire import (
    ClaimKey,
    EndClaim,
    Events,
    Incident,
    Incidents,
    LedgerRow,
    LedgerRows,
    LedgerSum,
    LedgerSums,
    PutEvent,
    PutIncident,
    RunLimit,
    Settle,
    StoredEvent,
    Tokens,
    Written,
)

from .ledgers import Ledger

NOW = 1_795_478_400.0
EMPTY = LedgerSum("2026-11-21", "a", "a/one", "attempt", 0, Tokens(), 0, 0, 0, 0, 0)


def books(newest: int = 1_000) -> Books:
    return Books(Owners(), newest)


def event(number: int, at: float = NOW) -> StoredEvent:
    return StoredEvent(
        id=f"evt_{number:04}", type="x", created_at=timestamp(at), data={}, account="acme", environment="production"
    )


# Leases


@pytest.mark.parametrize(
    ("until", "lease_s", "clock_s", "held"),
    [
        (30.0, 30.0, 0.0, True),
        (30.0, 30.0, 29.999, True),
        (30.0, 30.0, 30.0, False),
        (30.0, 30.0, 1e9, False),
        (30.1, 30.0, 0.0, True),  # who asks read the clock a while ago
        (630.0, 30.0, 0.0, True),
        (630.1, 30.0, 0.0, False),  # it ends later than it could: the clock began anew
        (1e6, 30.0, 5.0, False),
        (0.0, 0.0, 5.0, False),
    ],
)
def test_a_lease_holds_until_its_end_and_not_over_a_clock_that_began_anew(
    until: float, lease_s: float, clock_s: float, held: bool
) -> None:
    assert is_held(until, lease_s, clock_s) is held


@given(st.floats(0, 1e9), st.floats(0.001, 1e4), st.floats(0, 1e5))
def test_a_lease_that_was_kept_just_now_is_held_for_its_length(clock_s: float, lease_s: float, later: float) -> None:
    owners = Owners()
    owners.keep("own", lease_s, clock_s)
    assert owners.lives("own", clock_s)
    assert owners.lives("own", clock_s + later) is (clock_s + later < clock_s + lease_s)
    assert not owners.lives("other", clock_s)


def test_owners_that_are_gone_are_forgotten() -> None:
    owners = Owners()
    for number in range(10):
        owners.keep(f"own-{number}", 30.0, number * 10.0)
    owners.sweep()
    assert list(owners._leases) == ["own-7", "own-8", "own-9"]


# Bounds


def test_of_each_kind_the_newest_are_kept_and_all_sums() -> None:
    kept = books(newest=3)
    for number in range(5):
        kept.put(Settle(id=f"c{number}", at=AT, rows=(make_row(f"c{number}", charge=2),)))
        kept.put(PutEvent(event(number)))
        kept.put(_claim(f"k{number}"))
    assert [each.request_id for each in kept.scan(LedgerRows(), None, 9)] == ["c4", "c3", "c2"]
    assert [each.id for each in kept.scan(Events(), None, 9)] == ["evt_0004", "evt_0003", "evt_0002"]
    (total,) = kept.answer(LedgerSums("2026-11-21", "2026-11-21"))
    assert (total.rows, total.charge_nanos) == (5, 10)
    assert len(kept._claims) == 5, "they run"
    for number in range(5):
        kept.put(_end(f"k{number}"))
    assert {key for (_, key), _ in kept._claims.items()} == {"k2", "k3", "k4"}


def test_a_call_that_runs_keeps_its_key_and_the_results_that_came_last_are_kept() -> None:
    kept = books(newest=2)
    for key in ("runs", "late", "a", "b"):
        kept.put(_claim(key))
    for key in ("a", "b", "late"):
        kept.put(_end(key))
    assert {key for (_, key), _ in kept._claims.items()} == {"runs", "b", "late"}
    assert kept.put(_end("a")) == Written(created=True)
    assert {key for (_, key), _ in kept._claims.items()} == {"runs", "late", "a"}


def test_a_run_that_has_something_reserved_is_not_forgotten() -> None:
    ledger = Ledger(newest=2)
    for number in range(4):
        run = RunLimit(f"r{number}", 100)
        ledger.reserve(f"c{number}", 60, run=run)
    full = [ledger.refused(f"d{number}", 60, run=RunLimit(f"r{number}", 100)) for number in range(4)]
    assert [each["level"] for each in full] == ["agent_run"] * 4
    for number in range(4):
        ledger.settle(f"c{number}")
    assert len(ledger.books._runs) == 2


def test_the_incidents_that_began_last_are_kept_whatever_is_said_of_them_later() -> None:
    kept = books()
    numbers = [*range(INCIDENTS + 5)]
    Random(1).shuffle(numbers)
    for number in numbers:
        kept.put(PutIncident(_incident(number)))
    for number in (7, INCIDENTS):
        assert not kept.put(PutIncident(replace(_incident(number), resolved_at=AT))).created
    newest = [f"inc_{number}" for number in reversed(range(5, INCIDENTS + 5))]
    assert [each.id for each in kept.answer(Incidents())] == newest


def _incident(number: int) -> Incident:
    return Incident(id=f"inc_{number}", title="slow", severity="minor", started_at=timestamp(NOW + number))


def _claim(key: str) -> ClaimKey:
    return ClaimKey(
        key=key, environment="production", fingerprint="f", call=key, owner="own", lease_s=9.0, clock_s=0.0, at=NOW
    )


def _end(key: str) -> EndClaim:
    return EndClaim(
        key=key, environment="production", call=key, result=b"x", until=NOW + KEPT_S, fingerprint="f"
    )  # fmt: skip


def test_a_sweep_takes_old_results_events_and_marks_and_ends_what_was_abandoned() -> None:
    ledger = Ledger(monthly_nanos=100)
    kept = ledger.books
    for key, until in (("old", NOW), ("new", NOW + 0.001)):
        kept.put(_claim(key))
        kept.put(EndClaim(key=key, environment="production", call=key, result=b"x", until=until))
    kept.put(_claim("runs"))
    kept.put(replace(_claim("lost"), at=NOW - KEPT_S, owner="dead"))
    for number, age_s in enumerate((WEEK_S + 0.001, WEEK_S, 0.0)):
        kept.put(PutEvent(event(number, NOW - age_s), once=f"o{number}", at=NOW - age_s))
    ledger.reserve("lost", 100, owner="dead")
    kept._owners.keep("own", 30.0, 31.0)
    assert kept.sweep(NOW) == 2
    assert {key for (_, key), _ in kept._claims.items()} == {"new", "runs"}
    assert [each.id for each in kept.scan(Events(), None, 9)] == ["evt_0002", "evt_0001"]
    assert set(kept._told) == {"o2"}
    assert [each.kind for each in ledger.rows()] == ["expired"]
    assert ledger.purse("account").reserved_nanos == 0


# Events


@pytest.mark.parametrize(
    ("at", "quiet_s", "quiet"), [(9.0, 0.0, True), (10.0, 0.0, False), (14.9, 5.0, True), (15.0, 5.0, False)]
)
def test_after_an_event_all_is_quiet_for_so_long(at: float, quiet_s: float, quiet: bool) -> None:
    assert is_quiet(10.0, PutEvent(event(1), once="x", quiet_s=quiet_s, at=at)) is quiet


def test_that_something_was_told_is_known_for_as_long_as_that_matters() -> None:
    assert forgotten_at(PutEvent(event(1), once="x", quiet_s=5.0, at=10.0)) == 10.0 + WEEK_S
    assert forgotten_at(PutEvent(event(1), once="x", quiet_s=WEEK_S + 5.0, at=10.0)) == 15.0 + WEEK_S


# Sums


ROWS = st.builds(
    LedgerRow,
    request_id=st.text(max_size=3),
    attempt=st.integers(-9, 9),
    at=st.just(AT),
    tokens=st.builds(Tokens, *[st.integers(0, 2**50)] * 3),
    cost_nanos=st.integers(-(2**62), 2**62),
    charge_nanos=st.integers(-(2**62), 2**62),
    credit_nanos=st.integers(-(2**62), 2**62),
    cost_range_nanos=st.none() | st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)),
)


@given(st.lists(ROWS, max_size=6))
def test_what_is_taken_out_of_a_sum_leaves_nothing_behind(rows: list[LedgerRow]) -> None:
    total = EMPTY
    for each in rows:
        total = summed(total, each)
    assert (total.rows, total.charge_nanos) == (len(rows), sum(each.charge_nanos for each in rows))
    bounds = [each.cost_range_nanos or (each.cost_nanos, each.cost_nanos) for each in rows]
    assert (total.least_nanos, total.most_nanos) == (sum(low for low, _ in bounds), sum(high for _, high in bounds))
    for each in rows:
        total = summed(total, each, -1)
    assert total == EMPTY


@given(st.lists(ROWS, max_size=8, unique_by=lambda each: (each.request_id, each.attempt)))
def test_rows_stand_apart_by_their_keys(rows: list[LedgerRow]) -> None:
    assert len({key_of(each) for each in rows}) == len(rows)


def test_sums_are_told_by_day_provider_model_and_kind_in_order() -> None:
    ledger = Ledger()
    made: list[dict[str, Any]] = [
        {"at": "2026-11-22T00:00:00.000Z"},
        {"model": "a/two"},
        {"provider": "0"},
        {"kind": "correction"},
        {},
        {"at": "2026-11-20T23:59:59.999Z"},
    ]
    ledger.settle("c", *(make_row(attempt=place, charge=1, **given) for place, given in enumerate(made)))
    told = ledger.books.answer(LedgerSums("2026-11-21", "2026-11-22"))
    assert [(each.day[-2:], each.provider, each.model, each.kind) for each in told] == [
        ("21", "0", "a/one", "attempt"),
        ("21", "a", "a/one", "attempt"),
        ("21", "a", "a/one", "correction"),
        ("21", "a", "a/two", "attempt"),
        ("22", "a", "a/one", "attempt"),
    ]
