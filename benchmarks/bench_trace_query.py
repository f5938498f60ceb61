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
    "a page of 50 traces": "",
    "a page of 50 traces by status": "status=failed",
    "a page of 50 traces by a metadata value": "metadata.team=team-3",
    "a page of 50 traces by two filters": "status=failed,metadata.team=team-3",
}
TARGETS = {"a trace by id": "40", "a page of 50 traces by a metadata value": "800"}
PLAIN = "SELECT body.trace FROM trace JOIN body USING (n) WHERE account = ? AND id = ?"
PAGE = """
SELECT body.trace FROM tag JOIN trace USING (account, id) JOIN body USING (n)
WHERE tag.account = ? AND key = 'team' AND value = 'team-3' ORDER BY tag.created_at DESC, id DESC LIMIT 50
"""


def ids(count: int) -> Iterator[str]:
    chance = Random(SEED)
    return cycle([trace_id(chance.randrange(count)) for _ in range(1_000)])


class TestById:
    def test_floor(self, timed_async: TimedAsync, filled: Filled) -> None:
        connection = sqlite3.connect(filled.path)
        decode = msgspec.json.Decoder(Trace).decode

        async def get(id: str) -> Trace:
            return decode(connection.execute(PLAIN, ("default", id)).fetchone()[0])

        timed_async(question("a trace by id", filled), "floor", get, ids(filled.traces))
        connection.close()

    def test_routewright(self, timed_async: TimedAsync, filled: Filled) -> None:
        timed_async(
            question("a trace by id", filled), "routewright", TraceStore(filled.storage).get, ids(filled.traces)
        )


class TestPages:
    def test_floor(self, timed_async: TimedAsync, filled: Filled) -> None:
        connection = sqlite3.connect(filled.path)

        async def page(_: str) -> int:
            return len(connection.execute(PAGE, ("default",)).fetchall())

        timed_async(question("a page of 50 traces by a metadata value", filled), "floor", page, cycle([""]))
        connection.close()

    @pytest.mark.parametrize("name", FILTERS)
    def test_routewright(self, timed_async: TimedAsync, filled: Filled, name: str) -> None:
        store = TraceStore(filled.storage)

        async def page(filter: str) -> int:
            return len((await store.query(filter=filter)).data)

        timed_async(question(name, filled), "routewright", page, cycle([FILTERS[name]]))


def question(what: str, filled: Filled) -> Question:
    target = TARGETS.get(what, "")
    if what == "a page of 50 traces by two filters" and filled.is_large:
        target = "1,000"
    return Question(f"{what}, of {filled.named} in SQLite", target)
