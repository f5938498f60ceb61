"""A random walk: accounts write, delete and ask, and a dict an account says what each of them has to see.

Chance may be that of ``random.Random(seed)``, or hypothesis's ``st.randoms()``, which then finds the shortest walk that
goes wrong.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from copy import deepcopy
from datetime import datetime
from random import Random
from typing import Any

import pytest
from msgspec.structs import asdict

from routewright._core.analytics.rollup import Rollups
from routewright._core.moment import timestamp
from routewright._core.trace.filter import selects
from routewright.errors import PreconditionFailed
from routewright.protocols import Storage
from routewright.wire import (
    SYSTEM_ACCOUNT,
    DeleteTraces,
    Environment,
    Expect,
    FeedbackByTrace,
    PutFeedback,
    PutTrace,
    RollupKeys,
    SetRetention,
    TraceById,
    TraceItems,
    Traces,
)

from .retention import DAY_S, FOR_EVER
from .rollups import all_counts, answer
from .samples import HOURS, ROLLUP_KEYS, all_terms, make_trace, newest_first, random_trace

ENVIRONMENTS: tuple[Environment, ...] = ("production", "sandbox")
IDS = tuple(make_trace(number).id for number in range(8))
TERMS = all_terms()
COUNTS = tuple(all_counts())


class Seen:
    """What an account has to see."""

    def __init__(self) -> None:
        self.puts: dict[str, PutTrace] = {}
        self.swept = Rollups()
        """Of those that are gone by their age, and are counted still."""
        self.feedback: dict[str, PutFeedback] = {}

    def counted(self) -> Rollups:
        """The roll-ups, made anew."""
        rollups = deepcopy(self.swept)
        for put in self.puts.values():
            rollups.add(put.trace, put.rollup_keys)
        return rollups

    def drop(self, trace_id: str) -> None:
        """Forget a trace."""
        self.feedback.pop(trace_id, None)
        del self.puts[trace_id]


class Walk:
    """The accounts of one storage, each of which uses the same ids."""

    def __init__(self, storage: Storage, rng: Random, accounts: Sequence[str]) -> None:
        self._storage = storage
        self._rng = rng
        self._seen = {account: Seen() for account in accounts}
        self._steps: tuple[Callable[[str, Seen], Awaitable[None]], ...] = (
            *(self.put,) * 4,
            *(self.rate, self.read, self.read_feedback, self.scan, self.scan, self.count, self.count),
            *(self.delete, self.expect, self.list_keys, self.sweep),
        )

    async def step(self) -> None:
        """Take one, in one of the accounts."""
        account = self._rng.choice(list(self._seen))
        await self._rng.choice(self._steps)(account, self._seen[account])

    async def put(self, account: str, seen: Seen) -> None:
        """Keep one to three traces, new ones or in the place of others."""
        puts = [self._random_put(account) for _ in range(self._rng.randint(1, 3))]
        results = await self._storage.apply(account, puts)
        for put, written in zip(puts, results, strict=True):
            assert written.created == (put.trace.id not in seen.puts)
            seen.puts[put.trace.id] = put

    async def expect(self, account: str, seen: Seen) -> None:
        """Put a trace that should be there, or should not."""
        put = self._random_put(account, expect=self._rng.choice(("absent", "present")))
        if (put.trace.id in seen.puts) == (put.expect == "present"):
            await self._storage.apply(account, [put])
            seen.puts[put.trace.id] = put
            return
        with pytest.raises(PreconditionFailed):
            await self._storage.apply(account, [self._random_put(account, other_than=put), put])

    async def rate(self, account: str, seen: Seen) -> None:
        """Say what an answer was worth, if the account has it."""
        said = PutFeedback(self._rng.choice(IDS), self._rng.random(), account, 0.0, expect="present")
        if said.trace_id not in seen.puts:
            with pytest.raises(PreconditionFailed):
                await self._storage.apply(account, [said])
            return
        (written,) = await self._storage.apply(account, [said])
        assert written.created == (said.trace_id not in seen.feedback)
        seen.feedback[said.trace_id] = said

    async def read(self, account: str, seen: Seen) -> None:
        """Read a trace."""
        trace_id = self._rng.choice(IDS)
        put = seen.puts.get(trace_id)
        assert await self._storage.read(account, TraceById(trace_id)) == (None if put is None else put.trace)

    async def read_feedback(self, account: str, seen: Seen) -> None:
        """Read what was said of an answer."""
        trace_id = self._rng.choice(IDS)
        found = await self._storage.read(account, FeedbackByTrace(trace_id))
        said = seen.feedback.get(trace_id)
        assert (found and (found.score, found.comment)) == (said and (said.score, said.comment))

    async def scan(self, account: str, seen: Seen) -> None:
        """Ask for a page."""
        asked, limit = self._random_query(), self._rng.randint(1, 5)
        everywhere = [put.trace.key for other in self._seen.values() for put in other.puts.values()]
        after = self._rng.choice((None, *everywhere))
        there = newest_first([put.trace for put in seen.puts.values() if selects(asked, put.trace)])
        expected = [trace for trace in there if after is None or trace.key < after][:limit]
        assert await self._storage.scan(account, asked, after=after, limit=limit) == [each.item for each in expected]
        whole = Traces(**asdict(asked))
        assert await self._storage.scan(account, whole, after=after, limit=limit) == expected

    async def count(self, account: str, seen: Seen) -> None:
        """Ask for some counts."""
        query: Any = self._rng.choice(COUNTS)
        assert await self._storage.read(account, query) == answer(seen.counted(), query), query

    async def list_keys(self, account: str, seen: Seen) -> None:
        """Ask what usage is counted by."""
        assert await self._storage.read(account, RollupKeys()) == seen.counted().rollup_keys()

    async def delete(self, account: str, seen: Seen) -> None:
        """Delete one by its id, or some of those that a query selects."""
        asked, limit = self._random_query(), self._rng.randint(1, 4)
        only = self._rng.choice((None, *IDS))
        chosen = [put.trace for put in seen.puts.values() if only in (None, put.trace.id) and selects(asked, put.trace)]
        gone = sorted(chosen, key=lambda trace: trace.key)[:limit]
        (written,) = await self._storage.apply(account, [DeleteTraces(id=only, limit=limit, **asdict(asked))])
        assert written.count == len(gone)
        for trace in gone:
            seen.drop(trace.id)

    async def sweep(self, account: str, seen: Seen) -> None:
        """Remove what is old, from all accounts."""
        now = datetime.fromisoformat(f"{self._rng.choice(HOURS)}:00:00Z").timestamp()
        environment = self._rng.choice(ENVIRONMENTS)
        told = {"production": SetRetention(production_s=DAY_S), "sandbox": SetRetention(sandbox_s=DAY_S)}
        await self._storage.apply(SYSTEM_ACCOUNT, [told[environment]])
        asked = TraceItems(environment=environment, until=timestamp(now - DAY_S))
        removed = 0
        for each in self._seen.values():
            for old in [put for put in each.puts.values() if selects(asked, put.trace)]:
                each.drop(old.trace.id)
                each.swept.add(old.trace, old.rollup_keys)
                removed += 1
        assert await self._storage.sweep(now) == removed
        await self._storage.apply(SYSTEM_ACCOUNT, [FOR_EVER])

    def _random_put(
        self, account: str, *, expect: Expect | None = None, other_than: PutTrace | None = None
    ) -> PutTrace:
        numbers = [number for number, each in enumerate(IDS) if other_than is None or each != other_than.trace.id]
        trace = random_trace(self._rng, self._rng.choice(numbers), account)
        return PutTrace(trace, expect=expect, rollup_keys=self._rng.choice(((), ROLLUP_KEYS)))

    def _random_query(self) -> TraceItems:
        return TraceItems(
            environment=self._rng.choice((None, "production", "sandbox")),
            since=self._rng.choice((None, None, "2026-11-20T00:00:00.000Z")),
            until=self._rng.choice((None, None, "2026-11-20T13:00:00.001Z")),
            terms=tuple(self._rng.choice(TERMS) for _ in range(self._rng.randint(0, 2))),
        )


async def walk(storage: Storage, rng: Random, *, steps: int, accounts: Sequence[str]) -> None:
    """Take so many steps in an empty storage that keeps everything for ever."""
    taken = Walk(storage, rng, accounts)
    for _ in range(steps):
        await taken.step()
