"""Account data that the in-memory storage keeps besides traces."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from routewright import wire
from routewright._core.accounts.ledger import INCIDENTS, WEEK_S, Books, forgotten_at, is_quiet
from routewright._core.accounts.settlement import Expired
from routewright._core.idempotency import RESULT_TTL_S, KeptResult
from routewright.wire.timestamps import timestamp
from tests.contracts.storage.samples import AT, ledger_sums, make_row

NOW = 1_795_478_400.0


def event(number: int, at: float = NOW) -> wire.StoredEvent:
    return wire.StoredEvent(
        id=f"evt_{number:04}", type="x", created_at=timestamp(at), data={}, account="acme", environment="production"
    )


def keep(kept: Books, claim: bytes, until: float = NOW + RESULT_TTL_S) -> None:
    kept.put_result(claim, "production", until, KeptResult("f", "c", b"x"))


def kept_of(kept: Books, *claims: bytes) -> list[bytes]:
    """Those that have an answer."""
    return [claim for claim in claims if kept.read_result(claim, NOW) is not None]


# Bounds


def test_the_newest_of_each_kind_and_all_sums_are_kept() -> None:
    kept = Books(3)
    for number in range(5):
        kept.book(make_row(f"c{number}", charge=2))
        kept.put(wire.PutEvent(event(number)))
        keep(kept, b"%d" % number)
    assert [each.request_id for each in kept.scan(wire.LedgerRows(), None, 9)] == ["c4", "c3", "c2"]
    assert [each.id for each in kept.scan(wire.Events(), None, 9)] == ["evt_0004", "evt_0003", "evt_0002"]
    assert kept_of(kept, b"0", b"1", b"2", b"3", b"4") == [b"2", b"3", b"4"]
    (total,) = kept.answer(wire.LedgerSums("2026-11-21", "2026-11-21"))
    assert (total.rows, total.charge_nanos) == (5, 10)


def test_a_row_is_booked_once_and_only_an_expired_one_is_removed() -> None:
    kept, row = Books(9), make_row(attempt=0, kind="expired", cost_range_nanos=(0, 800))
    assert [kept.book(row, ["account"]) for _ in range(2)] == [True, False]
    kept.book(make_row("d", charge=5))
    assert (kept.attempts("c"), kept.attempts("d")) == ({0}, {1})
    assert kept.unbook("d") is None
    assert [kept.unbook("c") for _ in range(2)] == [Expired(800, ("account",)), None]
    (total,) = kept.answer(wire.LedgerSums("2026-11-21", "2026-11-21"))
    assert (total.rows, total.most_nanos) == (1, 5)


def test_the_latest_incidents_by_start_are_kept_despite_updates() -> None:
    kept = Books(1_000)
    numbers = [*range(INCIDENTS + 5)]
    Random(1).shuffle(numbers)
    for number in numbers:
        kept.put(wire.PutIncident(_incident(number)))
    for number in (7, INCIDENTS):
        assert not kept.put(wire.PutIncident(replace(_incident(number), resolved_at=AT))).created
    newest = [f"inc_{number}" for number in reversed(range(5, INCIDENTS + 5))]
    assert [each.id for each in kept.answer(wire.Incidents())] == newest


def _incident(number: int) -> wire.Incident:
    return wire.Incident(id=f"inc_{number}", title="slow", severity="minor", started_at=timestamp(NOW + number))


def test_a_sweep_removes_old_answers_events_and_marks() -> None:
    kept = Books(1_000)
    keep(kept, b"old", NOW)
    keep(kept, b"new", NOW + 0.001)
    for number, age_s in enumerate((WEEK_S + 0.001, WEEK_S, 0.0)):
        kept.put(wire.PutEvent(event(number, NOW - age_s), once=f"o{number}", at=NOW - age_s))
    assert kept.sweep(NOW) == 2
    assert (kept.read_result(b"old", 0.0), kept_of(kept, b"new")) == (None, [b"new"])
    assert [each.id for each in kept.scan(wire.Events(), None, 9)] == ["evt_0002", "evt_0001"]
    assert set(kept._last_events) == {"o2"}


# Events


@pytest.mark.parametrize(
    ("at", "quiet_s", "quiet"), [(9.0, 0.0, True), (10.0, 0.0, False), (14.9, 5.0, True), (15.0, 5.0, False)]
)
def test_an_event_suppresses_the_same_event_for_a_while(at: float, quiet_s: float, quiet: bool) -> None:
    assert is_quiet(10.0, wire.PutEvent(event(1), once="x", quiet_s=quiet_s, at=at)) is quiet


def test_the_time_of_an_event_is_kept_while_it_suppresses_others() -> None:
    assert forgotten_at(wire.PutEvent(event(1), once="x", quiet_s=5.0, at=10.0)) == 10.0 + WEEK_S
    assert forgotten_at(wire.PutEvent(event(1), once="x", quiet_s=WEEK_S + 5.0, at=10.0)) == 15.0 + WEEK_S


# Sums


ROWS = st.builds(
    wire.LedgerRow,
    request_id=st.text(max_size=3),
    attempt=st.integers(-9, 9),
    at=st.just(AT),
    tokens=st.builds(wire.Tokens, *[st.integers(0, 2**50)] * 3),
    cost_nanos=st.integers(-(2**62), 2**62),
    charge_nanos=st.integers(-(2**62), 2**62),
    credit_nanos=st.integers(-(2**62), 2**62),
    cost_range_nanos=st.none() | st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)),
)


@given(st.lists(ROWS, max_size=6, unique_by=lambda each: (each.request_id, each.attempt)))
def test_sums_add_up_all_rows_and_a_removed_row_leaves_nothing(rows: list[wire.LedgerRow]) -> None:
    kept, day = Books(3), wire.LedgerSums(AT[:10], AT[:10])
    for row in rows:
        kept.book(row)
    before = kept.answer(day)
    assert before == ledger_sums(rows)
    kept.book(replace(make_row("gone", 0, charge=5), kind="expired", cost_range_nanos=(1, 9)))
    assert [total.kind for total in kept.answer(day)] == ["attempt"] * len(before) + ["expired"]
    assert kept.unbook("gone") is not None
    assert kept.answer(day) == before
