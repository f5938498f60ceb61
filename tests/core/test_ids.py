from __future__ import annotations

import re
from itertools import cycle

from hypothesis import given
from hypothesis import strategies as st

from routewright.identity import CHANCE_LENGTH, IdSequence, letters_of
from routewright.wire.ids import milliseconds_of, normalise_trace_id

chances = st.binary(min_size=CHANCE_LENGTH, max_size=CHANCE_LENGTH).map(letters_of)


@given(st.integers(0, 2**48 - 1), chances)
def test_an_id_is_its_prefix_and_26_characters(milliseconds: int, chance: str) -> None:
    assert re.fullmatch("tr_[0-9A-HJKMNP-TV-Z]{26}", IdSequence().next("tr_", milliseconds, chance))


@given(st.integers(0, 2**47), st.integers(1, 1000), st.integers(1, 3_000), st.lists(chances, min_size=1, max_size=20))
def test_later_ids_are_greater(milliseconds: int, step: int, count: int, chance: list[str]) -> None:
    ids = IdSequence()
    made = [ids.next("tr_", milliseconds, each) for _, each in zip(range(count), cycle(chance))]
    made += [ids.next("tr_", milliseconds + step, each) for each in chance]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


@given(st.integers(0, 2**48 - 1), chances)
def test_an_id_has_its_creation_time(milliseconds: int, chance: str) -> None:
    assert milliseconds_of(IdSequence().next("tr_", milliseconds, chance)) == milliseconds


def test_an_invalid_id_has_time_zero() -> None:
    assert milliseconds_of("tr_ünlesbar") == milliseconds_of("") == 0


def test_a_clock_that_steps_back_changes_nothing() -> None:
    ids = IdSequence()
    first = ids.next("tr_", 1_000, "0" * CHANCE_LENGTH)
    assert milliseconds_of(ids.next("tr_", 999, "0" * CHANCE_LENGTH)) == 1_000
    assert ids.next("tr_", 998, "0" * CHANCE_LENGTH) > first


def test_the_other_published_prefix_is_an_alias() -> None:
    assert normalise_trace_id("trc_01") == "tr_01"
    assert normalise_trace_id("tr_01") == "tr_01"
