"""Ids increase, differ across threads and forks, and rarely read system randomness."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from routewright._runtime.identity import CHANCE_LENGTH, DRAWN, Ids
from routewright.testing import FakeClock


class Counted(random.Random):
    """How often it was asked."""

    asked = 0

    def getrandbits(self, k: int, /) -> int:
        self.asked += 1
        return super().getrandbits(k)


async def made(ids: Ids, clock: FakeClock, count: int) -> list[str]:
    """Ids of as many milliseconds."""
    found = []
    for _ in range(count):
        await clock.advance(0.001)
        found.append(ids("tr_"))
    return found


@pytest.mark.anyio
async def test_ids_have_their_own_random_bits_drawn_in_blocks() -> None:
    clock, rng = FakeClock(), Counted(1)
    found = await made(Ids(clock, rng), clock, 2 * DRAWN)
    assert rng.asked == 2
    assert found == sorted(found)
    assert len({each[-CHANCE_LENGTH:] for each in found}) == len(found)


@pytest.mark.anyio
async def test_a_forked_child_draws_new_random_bits() -> None:
    clock, rng = FakeClock(), Counted(1)
    ids = Ids(clock, rng)
    await made(ids, clock, 1)
    ids.renew()
    await made(ids, clock, 1)
    assert rng.asked == 2


def test_threads_never_make_equal_ids() -> None:
    ids = Ids(FakeClock(), random.Random(1))
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: ids("tr_"), range(4_000)))
    assert len(set(found)) == len(found)
