from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from routewright._core.trace.ids import RANDOM_BITS, IdSequence, milliseconds_of, normalise_trace_id


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**RANDOM_BITS - 1))
def test_an_id_is_its_prefix_and_26_characters(milliseconds: int, bits: int) -> None:
    assert re.fullmatch("tr_[0-9A-HJKMNP-TV-Z]{26}", IdSequence().next("tr_", milliseconds, bits))


@given(
    st.integers(0, 2**47), st.integers(0, 2**RANDOM_BITS - 1), st.integers(1, 1000), st.integers(0, 2**RANDOM_BITS - 1)
)
def test_later_ids_are_greater(milliseconds: int, bits: int, step: int, later_bits: int) -> None:
    ids = IdSequence()
    made = [ids.next("tr_", milliseconds, bits) for _ in range(5)]
    made += [ids.next("tr_", milliseconds + step, later_bits) for _ in range(5)]
    assert made == sorted(made)
    assert len(set(made)) == 10


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**RANDOM_BITS - 1))
def test_an_id_tells_when_it_was_made(milliseconds: int, bits: int) -> None:
    assert milliseconds_of(IdSequence().next("tr_", milliseconds, bits)) == milliseconds


def test_what_is_no_id_was_made_at_the_beginning() -> None:
    assert milliseconds_of("tr_ünlesbar") == milliseconds_of("") == 0


def test_a_clock_that_steps_back_changes_nothing() -> None:
    ids = IdSequence()
    first = ids.next("tr_", 1_000, 0)
    assert milliseconds_of(ids.next("tr_", 999, 0)) == 1_000
    assert ids.next("tr_", 998, 0) > first


def test_the_other_published_prefix_is_an_alias() -> None:
    assert normalise_trace_id("trc_01") == "tr_01"
    assert normalise_trace_id("tr_01") == "tr_01"
