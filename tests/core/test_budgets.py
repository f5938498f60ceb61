"""Counts over a time window depend only on what happened within the window."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from routewright._core.attempts.retry import WindowedCount


@given(st.integers(1, 8), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1)), max_size=60), st.integers(0, 12))
def test_a_windowed_count_counts_the_last_steps(length: int, happened: list[tuple[int, int]], later: int) -> None:
    lately, step, all_of_it = WindowedCount(length), 0, list[tuple[int, int]]()
    for further, bad in happened:
        step += further
        lately.add(step, bad)
        all_of_it.append((step, bad))
        seen = [was_bad for at, was_bad in all_of_it if at > step - length]
        assert (lately.total, lately.bad) == (len(seen), sum(seen))
    lately.move_to(step + later)
    seen = [was_bad for at, was_bad in all_of_it if at > step + later - length]
    assert (lately.total, lately.bad) == (len(seen), sum(seen))
