from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from routewright._core.trace.ids import RANDOM_BITS, IdSequence, milliseconds_of, normalise_trace_id


def sequence(milliseconds: int = 1_795_000_000_000, bits: int = 0) -> IdSequence:
    made = IdSequence()
    made.begin(milliseconds, bits)
    return made


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**RANDOM_BITS - 1))
def test_an_id_is_its_prefix_and_26_characters(milliseconds: int, bits: int) -> None:
    assert re.fullmatch("tr_[0-9A-HJKMNP-TV-Z]{26}", sequence(milliseconds, bits).next("tr_"))


@given(
    st.integers(0, 2**47), st.integers(0, 2**RANDOM_BITS - 1), st.integers(1, 1000), st.integers(0, 2**RANDOM_BITS - 1)
)
def test_later_ids_are_greater(milliseconds: int, bits: int, step: int, later_bits: int) -> None:
    ids = sequence(milliseconds, bits)
    made = [ids.next("tr_") for _ in range(5)]
    ids.begin(milliseconds + step, later_bits)
    made += [ids.next("tr_") for _ in range(5)]
    assert made == sorted(made)
    assert len(set(made)) == 10


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**RANDOM_BITS - 1))
def test_an_id_tells_when_it_was_made(milliseconds: int, bits: int) -> None:
    assert milliseconds_of(sequence(milliseconds, bits).next("tr_")) == milliseconds


def test_what_is_no_id_was_made_at_the_beginning() -> None:
    assert milliseconds_of("tr_ünlesbar") == milliseconds_of("") == 0


def test_a_clock_that_steps_back_changes_nothing() -> None:
    ids = sequence(1_000)
    assert ids.milliseconds == 1_000


def test_the_other_published_prefix_is_an_alias() -> None:
    assert normalise_trace_id("trc_01") == "tr_01"
    assert normalise_trace_id("tr_01") == "tr_01"
