"""A storage under load: random walks of several accounts, and several threads at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from datetime import datetime
from functools import partial
from random import Random
from typing import Any

import anyio.to_thread
import pytest
from msgspec.structs import asdict

from routewright._core.analytics.rollup import Rollups
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
from routewright.wire.timestamps import timestamp

from .samples import (
    DAY_S,
    FOR_EVER,
    HOURS,
    ROLLUP_KEYS,
    all_counts,
    all_items,
    all_terms,
    answer,
    answers,
    expected_answers,
    make_trace,
    newest_first,
    random_trace,
)
from .threads import Meet, run_in_threads
from .traces import Suite

ENVIRONMENTS: tuple[Environment, ...] = ("production", "sandbox")
IDS = tuple(make_trace(number).id for number in range(8))
TERMS = all_terms()
COUNTS = tuple(all_counts())
THREADS, ROUNDS = 8, 12
PATIENCE_S = 10.0


class Seen:
    """What an account should see."""

    def __init__(self) -> None:
        self.puts: dict[str, PutTrace] = {}
        self.swept = Rollups()
        """Roll-ups of traces removed for their age, which are still counted."""
        self.feedback: dict[str, PutFeedback] = {}

    def counted(self) -> Rollups:
        rollups = deepcopy(self.swept)
        for put in self.puts.values():
            rollups.add(put.trace, put.rollup_keys)
        return rollups

    def drop(self, trace_id: str) -> None:
        self.feedback.pop(trace_id, None)
        del self.puts[trace_id]


class Walk:
    """Random writes, deletions and reads by several accounts that use the same ids, checked against ``Seen``.

    ``rng`` may be ``random.Random(seed)``, or hypothesis's ``st.randoms()``, which shrinks failing walks.
    """

    def __init__(self, storage: Storage, rng: Random, accounts: Sequence[str]) -> None:
        self._storage = storage
        self._rng = rng
        self._seen = {account: Seen() for account in accounts}
        self._steps: tuple[Callable[[str, Seen], Awaitable[None]], ...] = (
            *(*(self.put,) * 4, self.expect, self.rate, self.delete, self.sweep),
            *(*(self.read,) * 2, *(self.scan,) * 2, *(self.count,) * 2),
        )

    async def step(self) -> None:
        """Take one step, in one of the accounts."""
        account = self._rng.choice(list(self._seen))
        await self._rng.choice(self._steps)(account, self._seen[account])

    async def put(self, account: str, seen: Seen) -> None:
        puts = [self._random_put(account) for _ in range(self._rng.randint(1, 3))]
        results = await self._storage.apply(account, puts)
        for put, written in zip(puts, results, strict=True):
            assert written.created == (put.trace.id not in seen.puts)
            seen.puts[put.trace.id] = put

    async def expect(self, account: str, seen: Seen) -> None:
        put = self._random_put(account, expect=self._rng.choice(("absent", "present")))
        if (put.trace.id in seen.puts) == (put.expect == "present"):
            await self._storage.apply(account, [put])
            seen.puts[put.trace.id] = put
            return
        with pytest.raises(PreconditionFailed):
            await self._storage.apply(account, [self._random_put(account, other_than=put), put])

    async def rate(self, account: str, seen: Seen) -> None:
        said = PutFeedback(self._rng.choice(IDS), self._rng.random(), account, 0.0, expect="present")
        if said.trace_id not in seen.puts:
            with pytest.raises(PreconditionFailed):
                await self._storage.apply(account, [said])
            return
        (written,) = await self._storage.apply(account, [said])
        assert written.created == (said.trace_id not in seen.feedback)
        seen.feedback[said.trace_id] = said

    async def read(self, account: str, seen: Seen) -> None:
        trace_id = self._rng.choice(IDS)
        put = seen.puts.get(trace_id)
        assert await self._storage.read(account, TraceById(trace_id)) == (None if put is None else put.trace)
        found = await self._storage.read(account, FeedbackByTrace(trace_id))
        said = seen.feedback.get(trace_id)
        assert (found and (found.score, found.comment)) == (said and (said.score, said.comment))

    async def scan(self, account: str, seen: Seen) -> None:
        asked, limit = self._random_query(), self._rng.randint(1, 5)
        everywhere = [put.trace.key for other in self._seen.values() for put in other.puts.values()]
        after = self._rng.choice((None, *everywhere))
        there = newest_first([put.trace for put in seen.puts.values() if selects(asked, put.trace)])
        expected = [trace for trace in there if after is None or trace.key < after][:limit]
        assert await self._storage.scan(account, asked, after=after, limit=limit) == [each.item for each in expected]
        whole = Traces(**asdict(asked))
        assert await self._storage.scan(account, whole, after=after, limit=limit) == expected

    async def count(self, account: str, seen: Seen) -> None:
        query: Any = self._rng.choice(COUNTS)
        counted = seen.counted()
        assert await self._storage.read(account, query) == answer(counted, query), query
        assert await self._storage.read(account, RollupKeys()) == counted.rollup_keys()

    async def delete(self, account: str, seen: Seen) -> None:
        asked, limit = self._random_query(), self._rng.randint(1, 4)
        only = self._rng.choice((None, *IDS))
        chosen = [put.trace for put in seen.puts.values() if only in (None, put.trace.id) and selects(asked, put.trace)]
        gone = sorted(chosen, key=lambda trace: trace.key)[:limit]
        (written,) = await self._storage.apply(account, [DeleteTraces(id=only, limit=limit, **asdict(asked))])
        assert written.count == len(gone)
        for trace in gone:
            seen.drop(trace.id)

    async def sweep(self, account: str, seen: Seen) -> None:
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
    """Take some steps in an empty storage without retention."""
    taken = Walk(storage, rng, accounts)
    for _ in range(steps):
        await taken.step()


class Loads(Suite):
    """Random walks and threads."""

    @pytest.mark.parametrize("seed", range(4))
    async def test_a_random_walk_matches_a_dict(self, storage: Storage, seed: int) -> None:
        accounts = [("one", "two"), ("acme", "acme%"), ("a'; --", "a"), ("one", SYSTEM_ACCOUNT)][seed]
        await storage.apply(SYSTEM_ACCOUNT, [FOR_EVER])
        await walk(storage, Random(seed), steps=60, accounts=accounts)

    async def test_threads_with_their_own_loops_lose_and_duplicate_nothing(
        self, storage: Storage, anyio_backend_name: str
    ) -> None:
        won = list[PutTrace]()

        def contested(number: int, turn: int) -> PutTrace:
            return PutTrace(make_trace(10_000 + turn, error=f"of thread {number}"), expect="absent")

        def own(number: int, turn: int) -> PutTrace:
            return PutTrace(make_trace(number * ROUNDS + turn, cost_usd=0.25), rollup_keys=ROLLUP_KEYS)

        async def take_part(number: int, meet: Meet) -> None:
            for turn in range(ROUNDS):
                mine, of_all = own(number, turn), contested(number, turn)
                meet()
                (written,) = await storage.apply("default", [mine])
                assert written.created
                with suppress(PreconditionFailed):
                    await storage.apply("default", [of_all])
                    won.append(of_all)
                assert await storage.read("default", TraceById(mine.trace.id)) == mine.trace
                newest = await storage.scan("default", TraceItems(), after=None, limit=ROUNDS)
                assert len(newest) >= min(turn + 2, ROUNDS)

        together = partial(run_in_threads, many=THREADS, backend=anyio_backend_name, patience_s=PATIENCE_S)
        await anyio.to_thread.run_sync(together, take_part)
        assert sorted(put.trace.id for put in won) == [contested(0, turn).trace.id for turn in range(ROUNDS)]
        puts = [*won, *(own(number, turn) for number in range(THREADS) for turn in range(ROUNDS))]
        expected = [trace.item for trace in newest_first([put.trace for put in puts])]
        assert await all_items(storage, TraceItems(), limit=100) == expected
        assert await answers(storage) == expected_answers(puts)
