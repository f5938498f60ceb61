"""How long does reading traces take, and does it grow with their number: by id, a page, a filtered page?"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import cycle
from random import Random

import msgspec
import pytest

from routewright import Trace, TraceStore

from .conftest import Filled, TimedAsync
from .data import SEED
from .report import Question
from .stores import trace_id

FILTERS = {
    "all": "",
    "one status in a hundred": "status=failed",
    "one team in twenty": "metadata.team=team-3",
    "one model in forty": "model=alder/m0017",
    "both a status and a team": "status=failed,metadata.team=team-3",
}
PLAIN = "SELECT body.trace FROM trace JOIN body USING (n) WHERE account = ? AND id = ?"
PAGE = "SELECT body.trace FROM trace JOIN body USING (n) WHERE account = ? ORDER BY created_at DESC, id DESC LIMIT 50"


def ids(count: int) -> Iterator[str]:
    chance = Random(SEED)
    return cycle([trace_id(chance.randrange(count)) for _ in range(1_000)])


class TestById:
    def test_floor(self, timed_async: TimedAsync, filled: Filled) -> None:
        connection = sqlite3.connect(filled.path)
        decode = msgspec.json.Decoder(Trace).decode

        async def get(id: str) -> Trace:
            return decode(connection.execute(PLAIN, ("default", id)).fetchone()[0])

        timed_async(question("by id", filled, "40"), "floor", get, ids(filled.traces))
        connection.close()

    def test_routewright(self, timed_async: TimedAsync, filled: Filled) -> None:
        timed_async(question("by id", filled, "40"), "routewright", TraceStore(filled.storage).get, ids(filled.traces))


class TestPages:
    def test_floor(self, timed_async: TimedAsync, filled: Filled) -> None:
        connection = sqlite3.connect(filled.path)

        async def page(_: str) -> int:
            return len(connection.execute(PAGE, ("default",)).fetchall())

        timed_async(question("a page of 50, all", filled), "floor", page, cycle([""]))
        connection.close()

    @pytest.mark.parametrize("name", FILTERS)
    def test_routewright(self, timed_async: TimedAsync, filled: Filled, name: str) -> None:
        store = TraceStore(filled.storage)

        async def page(filter: str) -> int:
            return len((await store.query(filter=filter)).data)

        target = "800" if name != "all" else ""
        timed_async(question(f"a page of 50, {name}", filled, target), "routewright", page, cycle([FILTERS[name]]))


def question(what: str, filled: Filled, target: str = "") -> Question:
    return Question(f"{what}, of {filled.traces:,} traces", target)
