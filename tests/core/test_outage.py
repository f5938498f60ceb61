"""The rule of the log: one line for a change, and few for what flaps."""

from __future__ import annotations

from random import Random

import pytest

from routewright._core.outage import FAILS_S, WORKS_S, Outage, period
from tests.tables import table


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.outage = Outage(self.lines.append, "it is back")

    def new(self) -> list[str]:
        lines = self.lines[:]
        self.lines.clear()
        return lines


def test_an_outage_is_two_lines_however_often_it_is_reported() -> None:
    log = Log()
    for second in range(100):
        log.outage.begin(float(second), "it is away")
    assert log.new() == ["it is away"]
    for second in range(100, 200):
        log.outage.end(float(second))
    assert log.new() == ["it is back, after 2 min"]


@pytest.mark.parametrize(
    ("is_on", "last"),
    [
        (False, "it is back; this has lasted for 30 min, after 90 outages in 1.5 h"),
        (True, "it is away; this has lasted for 5 min, after 91 outages in 1.5 h"),
    ],
)
def test_what_flaps_for_hours_is_logged_when_it_starts_and_when_it_settles(is_on: bool, last: str) -> None:
    log = Log()
    for minute in range(90):
        log.outage.begin(minute * 60.0, "it is away")
        log.outage.end(minute * 60.0 + 30)
    if is_on:
        log.outage.begin(90 * 60.0, "it is away")
    first, second, third = log.new()
    assert (first, second) == ("it is away", "it is back, after 30 s")
    assert third.startswith(
        "it is away; it flaps, so the next line follows once it has failed for 5 min or worked for 30 min"
    )
    since = 90 * 60.0 if is_on else 89 * 60.0 + 30
    steady_at = since + (FAILS_S if is_on else WORKS_S)
    log.outage.settle(steady_at - 1)
    assert log.new() == []
    assert log.outage.steady_at == steady_at
    log.outage.settle(steady_at)
    log.outage.settle(steady_at + 1)
    assert log.new() == [last]


@table("seed", range(20))
def test_the_last_line_is_true_whatever_happens(seed: int) -> None:
    """After a quiet time the last line says how it is, and there are at most three lines in half an hour."""
    log, rng, now = Log(), Random(seed), 0.0
    count = 0
    for _ in range(300):
        is_on = rng.random() < 0.5
        now += rng.choice([1.0, 20.0, 200.0, 400.0, 4000.0])
        log.outage.begin(now, "it is away") if is_on else log.outage.end(now)
        if rng.random() < 0.2:
            now += WORKS_S
            log.outage.settle(now)
            lines = log.lines
            assert not lines or "it flaps" not in lines[-1]
            assert lines[-1:] == [] or lines[-1].startswith("it is away" if log.outage.is_on else "it is back")
        count = max(count, len(log.lines))
    assert count <= 3 + 3 * now / WORKS_S


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (59.7, "1 min"), (3569, "59 min"), (3599, "1 h"), (12_600, "3.5 h")]
)
def test_a_period_is_short(seconds: float, text: str) -> None:
    assert period(seconds) == text
