"""Memory and tasks stay flat: after thousands of calls a Router holds no more than after the first hundreds."""

from __future__ import annotations

import asyncio
import gc
import sys
from random import Random

import pytest

from routewright import MemoryStorage, ProviderFault, RouterError
from routewright.testing import Pause
from routewright.testing.provider import Turn
from routewright.wire import Delta, Finish, UpstreamCall, Usage

from .scripted_router import House, plain, said, streamed

pytestmark = pytest.mark.anyio
CALLS = 100
WARM_UP = 4
"""Rounds until everything that is bounded is full."""
ANSWER = said(Pause(0.1), Delta("an answer"), Usage(10, 2), Finish("stop"))
FAULTS = ("server", "reset", "rate_limited", "timeout")


async def serve(house: House, chance: Random) -> None:
    """A round of calls, plain and streamed, of which one in ten is cancelled."""
    for number in range(CALLS):
        patience_s = 0.05 if number % 10 == 0 else 100.0
        with house.clock.deadline(house.clock.monotonic() + patience_s):
            try:
                await chance.choice([plain, streamed])(house.router)
            except RouterError:
                continue
    for provider in (house.good, house.spare):
        provider.calls.clear()


async def test_memory_and_tasks_are_flat_over_calls_that_fail_and_are_cancelled(full: bool) -> None:
    chance, blocks = Random(5), list[int]()

    def answer(_: UpstreamCall) -> Turn:
        return ANSWER if chance.random() < 0.7 else said(Delta("an"), ProviderFault(chance.choice(FAULTS)))

    house = House(answer, answer, storage=MemoryStorage(newest=50))
    await serve(house, chance)
    tasks = asyncio.all_tasks()  # with the one that watches the storage
    for _ in range(WARM_UP + (5_000 if full else 8)):
        await serve(house, chance)
        await house.clock.sleep(1.0)
        gc.collect()
        blocks.append(sys.getallocatedblocks())
        assert (asyncio.all_tasks(), house.left_open) == (tasks, 0)
    early, late = blocks[WARM_UP : WARM_UP + 4], blocks[-4:]
    assert max(late) - max(early) < 4 * CALLS, "half an object of each call is left"
