"""What does it cost to check the limits of an account and a key, of 10,000 of each: the step, in memory, in SQLite?"""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from contextlib import suppress
from itertools import cycle
from pathlib import Path

import pytest
from msgspec.structs import replace

from routewright import MemoryStorage, SqliteStorage
from routewright._core.accounts.settlement import End, end_hold
from routewright._core.accounts.state import State
from routewright.errors import RateLimited
from routewright.wire import Account, Ask, Caller, Grant, PutAccount, PutKey, RateLimits

from .accounts import AT, AT_S, KEY
from .conftest import Peer, Timed, TimedAsync
from .doubles import Terms
from .floors import LeastLimiter
from .measure import Effort, Figure
from .report import Question, Report

NAMES = 10_000
LIMIT = 600
ACCOUNT = Account(name="acme", created_at=AT, limits=RateLimits(requests_per_min=LIMIT))
LIMITED = replace(KEY, limits=RateLimits(requests_per_min=LIMIT), budget_nanos=None, monthly_nanos=None)
FULL = replace(ACCOUNT, limits=RateLimits(requests_per_min=1))

STEP = Question("limits of an account and a key checked and released, 10,000 keys", "2.5")
REFUSED = Question("the same, where the account is full")
STORED = {
    "memory": Question("both tiers of requests, admitted and released, in memory"),
    "sqlite": Question("both tiers of requests, admitted and released, in SQLite"),
}
BYTES = Question("memory of an account and a key that were used once")


def asks() -> list[Ask]:
    """Of each account and key one."""
    return [
        Ask(id=f"tr_{number}", caller=Caller(f"acme-{number}", key_id=f"key_{number}"), at=AT_S, lasts_s=30.0)
        for number in range(NAMES)
    ]


def meet(state: State, given: list[Ask]) -> None:
    """Let it have met every name."""
    for ask in given:
        check(state, ask)


def check(state: State, ask: Ask) -> None:
    """Admit a call at the time that it is, and release it."""
    at = time.monotonic()
    state.begin(1, at, at + 30.0)
    state.admit(ask, 1, AT_S)
    end_hold(state, End(ask.id, 0))


class TestStep:
    def test_floor(self, timed: Timed) -> None:
        limiter = LeastLimiter(LIMIT)
        pairs = cycle([(f"account:{number}", f"key:{number}") for number in range(NAMES)])
        for _ in range(NAMES):
            account, key = next(pairs)
            limiter.admit(account) and limiter.admit(key)
        timed(STEP, "floor", lambda pair: limiter.admit(pair[0]) and limiter.admit(pair[1]), pairs)

    def test_routewright(self, timed: Timed) -> None:
        given, state = asks(), State(Terms(ACCOUNT, LIMITED))
        meet(state, given)
        timed(STEP, "routewright", lambda ask: check(state, ask), cycle(given))
        assert len(state.windows) == 2 * NAMES

    def test_refused(self, timed: Timed) -> None:
        given, state = asks(), State(Terms(FULL, LIMITED))
        meet(state, given)

        def refused(ask: Ask) -> None:
            with suppress(RateLimited):
                check(state, ask)
                raise AssertionError("it was admitted")

        timed(REFUSED, "routewright", refused, cycle(given))

    def test_limits(self, peer: Peer, report: Report) -> None:
        report.add(STEP, "limits", peer("limits", "limits_window", str(NAMES)))

    def test_bytes(self, report: Report, effort: Effort) -> None:
        given, state = asks(), State(Terms(ACCOUNT, LIMITED))
        tracemalloc.start()
        meet(state, given)
        kept = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        report.add(BYTES, "routewright", Figure("bytes", kept / NAMES))


@pytest.mark.parametrize("kind", STORED)
def test_stored(loop: asyncio.Runner, timed_async: TimedAsync, effort: Effort, tmp_path: Path, kind: str) -> None:
    storage = MemoryStorage() if kind == "memory" else SqliteStorage(tmp_path / "limits.db")
    given = asks()[: NAMES if effort.runs > 1 else 10]

    async def admit(ask: Ask) -> None:
        grant = await storage.accounts.admit(ask)
        assert isinstance(grant, Grant)
        storage.accounts.release(grant)

    async def open_one(ask: Ask) -> None:
        name, key_id = ask.caller.account, ask.caller.key_id or ""
        key = replace(LIMITED, id=key_id, account=name, digest=key_id)
        await storage.apply(name, [PutAccount(replace(ACCOUNT, name=name)), PutKey(key)])

    async def meet_all() -> None:
        await asyncio.gather(*map(open_one, given))
        await asyncio.gather(*map(admit, given))

    loop.run(meet_all())
    timed_async(STORED[kind], "routewright", admit, cycle(given))
    loop.run(storage.aclose())
