"""How long does a report over thirty days take, and does it grow with the traces that it is about?"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import cycle

import pytest

from routewright import TraceStore

from .conftest import Filled, TimedAsync
from .report import Question
from .stores import FIRST_DAY, LAST_DAY

Report = Callable[[str, str], Awaitable[object]]

REPORTS: dict[str, Callable[[TraceStore], Report]] = {
    "usage by model and day": lambda store: store.usage,
    "latency": lambda store: store.latency_report,
}


@pytest.mark.parametrize("name", REPORTS)
def test_thirty_days(timed_async: TimedAsync, filled: Filled, name: str) -> None:
    report = REPORTS[name](TraceStore(filled.storage))

    async def read(days: tuple[str, str]) -> object:
        return await report(*days)

    target = "20,000" if name == "usage by model and day" and filled.is_large else ""
    question = Question(f"report of {name}, 30 days, {filled.named} traces", target)
    timed_async(question, "routewright", read, cycle([(FIRST_DAY, LAST_DAY)]))
