from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright._core.salvage import GIVE_UP_S, PATIENCE_S, Part, is_lost, next_part, pause_after


@pytest.mark.parametrize(
    ("refused", "waited_s", "then"),
    [
        (Part.WHOLE, 0.0, Part.BILL),
        (Part.WHOLE, inf, Part.BILL),
        (Part.BILL, 0.0, None),
        (Part.BILL, PATIENCE_S - 0.001, None),
        (Part.BILL, PATIENCE_S, Part.BOUND),
        (Part.BILL, inf, Part.BOUND),
        (Part.BOUND, 0.0, None),
        (Part.BOUND, inf, None),
    ],
)
def test_what_is_refused_whole_is_tried_in_parts(refused: Part, waited_s: float, then: Part | None) -> None:
    assert next_part(refused, waited_s) is then


@given(st.floats(0.0, GIVE_UP_S))
def test_whatever_was_refused_it_comes_to_an_end_within_a_few_hundred_tries(waited_s: float) -> None:
    tries = 0
    while not is_lost(waited_s):
        waited_s += pause_after(waited_s)
        tries += 1
    assert tries < 200
