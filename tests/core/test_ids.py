from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from routewright._runtime.identity import Ids
from routewright.testing import FakeClock
from routewright.wire.ids import milliseconds_of, normalise_trace_id

seeds = st.integers(0, 2**32)


class Wall(FakeClock):
    """A clock whose wall time can be set, also back."""

    milliseconds = 0

    def time(self) -> float:
        return self.milliseconds / 1000 + 1e-6


def ids_at(milliseconds: int, seed: int = 1) -> tuple[Ids, Wall]:
    clock = Wall()
    clock.milliseconds = milliseconds
    return Ids(clock, Random(seed)), clock


@given(st.integers(0, 2**43), st.integers(1, 1000), st.integers(1, 3_000), st.integers(1, 20), seeds)
def test_later_ids_are_greater(milliseconds: int, step: int, count: int, later: int, seed: int) -> None:
    ids, clock = ids_at(milliseconds, seed)
    made = [ids("tr_") for _ in range(count)]
    clock.milliseconds += step
    made += [ids("tr_") for _ in range(later)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


@given(st.integers(0, 2**43), seeds)
def test_an_id_has_its_creation_time(milliseconds: int, seed: int) -> None:
    ids, _ = ids_at(milliseconds, seed)
    assert milliseconds_of(ids("tr_")) == milliseconds


def test_an_invalid_id_has_time_zero() -> None:
    assert milliseconds_of("tr_ünlesbar") == milliseconds_of("") == 0


def test_a_clock_that_steps_back_changes_nothing() -> None:
    ids, clock = ids_at(1_000)
    first = ids("tr_")
    clock.milliseconds = 999
    second = ids("tr_")
    assert milliseconds_of(second) == 1_000
    clock.milliseconds = 998
    assert ids("tr_") > second > first


def test_the_other_published_prefix_is_an_alias() -> None:
    assert normalise_trace_id("trc_01") == "tr_01"
    assert normalise_trace_id("tr_01") == "tr_01"
