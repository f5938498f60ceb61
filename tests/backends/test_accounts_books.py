"""Ledger rows are found by the exact id of their call, whatever the other ids are."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from routewright.errors import PreconditionFailed
from routewright.wire import AddCredit, Correct, RunLimit
from tests.contracts.storage.samples import AT, Till, make_row

from .places import KINDS, LEASE_S, Place, at_once, tills_of

ALIKE = ["c", "c/", "c/1", "c/1/1", "c/-1", "c1", "c1/1", "c-1", "cU", "c\0", "c\0/1", "c'", 'c"', "c😀", "c😀/0", ""]
"""Ids that must not be taken for each other."""
ids = st.lists(st.text("c/-01U\0'\"%😀é", max_size=5), min_size=2, max_size=6, unique=True)
RUN = RunLimit("r", 10**9)
Checked = Callable[[list[str]], None]


def for_ids(full: bool) -> Callable[[Checked], Checked]:
    """Check something for these, and for any others like them."""
    chosen = settings(max_examples=2_000 if full else 12, deadline=None, suppress_health_check=list(HealthCheck))
    return lambda check: example(ALIKE)(chosen(given(ids)(check)))


def attempts(till: Till, call: str) -> list[tuple[int, str]]:
    """The rows of a call, and of what kind they are."""
    return sorted((row.attempt, row.kind) for row in at_once(till.rows(request_id=call)))


@pytest.mark.parametrize("kind", KINDS)
def test_ledger_rows_are_found_by_the_exact_call_id(kind: str, tmp_path: Path, full: bool) -> None:
    place, accounts = Place(kind, tmp_path / "traces.db"), count()

    @for_ids(full)
    def check(calls: list[str]) -> None:
        tills = tills_of(place, f"a{next(accounts)}")
        till = tills[-1]
        for call in calls:
            at_once(till.settle(call, make_row(call, 1, 10)))
        for call in reversed(calls):
            at_once(tills[0].settle(call, make_row(call, 1, 10), make_row(call, 2, 100)))
            assert [at_once(till.put(AddCredit(call, 7, AT))).created for _ in range(2)] == [True, False]
        for number, call in enumerate(calls):
            for attempt in (-1, -2):  # with a correction goes how many rows its call had
                row = make_row(call, attempt, number, kind="correction")
                with pytest.raises(PreconditionFailed):
                    at_once(till.put(Correct(row=row, after=1 - attempt)))
                assert at_once(till.put(Correct(row=row, after=2 - attempt))).created
            assert attempts(till, call) == [
                (-2, "correction"), (-1, "correction"), (0, "credit"), (1, "attempt"), (2, "attempt"),
            ]  # fmt: skip
        purses = {purse.name: purse for purse in at_once(till.standing(key=None, run=None)).purses}
        spent = sum(110 + 2 * number for number in range(len(calls)))
        assert (purses["account"].spent_nanos, purses["month:2026-11"].spent_nanos) == (spent, spent)
        assert purses["account"].limit_nanos == 10**9 + 7 * len(calls)

    check()  # type: ignore[call-arg]
    place.close()


def test_a_late_settlement_replaces_its_own_expired_row(tmp_path: Path, full: bool) -> None:
    place, accounts = Place("sqlite", tmp_path / "traces.db"), count()

    @for_ids(full)
    def check(calls: list[str]) -> None:
        silent, heir = tills_of(place, f"a{next(accounts)}")
        for number, call in enumerate(calls):
            at_once(silent.admit(call, 100 + number, run=RUN, lasts_s=1e9))
        place.clock.now += LEASE_S + 1.0
        place.touch(heir.limiting)
        expected = {call: (100 + number, [(0, "expired")]) for number, call in enumerate(calls)}
        for number, call in enumerate(calls):
            for teller in (silent, heir):
                asked = silent.asks[call]
                rows = [make_row(call, attempt, number) for attempt in (1, 2)]
                at_once(teller.settle(call, *rows, caller=asked.caller, run=asked.run))
                expected[call] = 2 * number, [(1, "attempt"), (2, "attempt")]
                assert {each: attempts(heir, each) for each in calls} == {each: expected[each][1] for each in calls}
                purses = at_once(heir.purses(key=None, run=RUN))
                assert purses["run:r"] == (sum(nanos for nanos, _ in expected.values()), 0)
                assert purses["account"] == (sum(2 * before for before in range(number + 1)), 0)

    check()  # type: ignore[call-arg]
    place.close()
