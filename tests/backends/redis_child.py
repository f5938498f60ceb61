"""A process that counts calls in Redis at full speed, or holds slots until it is killed.

python -m tests.backends.redis_child URL count SECONDS
python -m tests.backends.redis_child URL hold MANY
"""

from __future__ import annotations

import sys
import time
from random import Random

import anyio

from routewright.backends.coordination import redis
from routewright.backends.coordination.redis import UNITS, RedisCoordination
from routewright.errors import RateLimited, StorageUnavailable
from routewright.wire import RateLimits, Taken, Takes

WINDOW_S = 1.0
"""In place of a minute."""
LEASE_S, PATIENCE_S = 1.0, 20.0
REQUESTS, TOKENS, SLOTS, TASKS = 60, 400, 40, 4
KEY_REQUESTS = 25
PARTIES = (
    ("account:production:acme", RateLimits(requests_per_min=REQUESTS, tokens_per_min=TOKENS, concurrency=SLOTS)),
    ("key:acme\0k", RateLimits(requests_per_min=KEY_REQUESTS)),
)


def takes(call: str, *, tokens: int = 0, of_key: bool = False, slots: int = 1) -> Takes:
    parties = PARTIES if of_key else PARTIES[:1]
    return Takes(id=call, account="acme", parties=parties, tokens=tokens, slots=slots, lasts_s=60.0)


async def until_taken(coordination: RedisCoordination, wanted: Takes) -> Taken:
    """Take something as soon as there is room, and a server."""
    with anyio.fail_after(PATIENCE_S):
        while True:
            try:
                return await coordination.take(wanted)
            except (RateLimited, StorageUnavailable):
                await anyio.sleep(0.02)


async def count(coordination: RedisCoordination, seconds: float) -> None:
    """Print time, tokens and tier of all that is admitted."""
    chance, ends = Random(), time.monotonic() + seconds

    async def work(number: int) -> None:
        turn = 0
        while time.monotonic() < ends:
            turn += 1
            tokens, of_key = chance.randint(0, 15), chance.random() < 0.5
            try:
                taken = await coordination.take(
                    takes(f"{number} {turn} {chance.random()}", tokens=tokens, of_key=of_key)
                )
            except RateLimited:
                await anyio.sleep(0.002)
                continue
            coordination.end(taken, None)
            print(taken.places[0][1], tokens, int(of_key))

    async with anyio.create_task_group() as tasks:
        for number in range(TASKS):
            tasks.start_soon(work, number)
    await coordination.aclose()


async def hold(coordination: RedisCoordination, many: int) -> None:
    for number in range(many):
        await coordination.take(takes(f"held {number}"))
    print("held", flush=True)
    await anyio.sleep(60.0)


def main(url: str, what: str, much: str) -> None:
    redis.WINDOW = int(WINDOW_S * UNITS)
    coordination = RedisCoordination(url, lease_s=LEASE_S)
    if what == "count":
        anyio.run(count, coordination, float(much))
    else:
        anyio.run(hold, coordination, int(much))


if __name__ == "__main__":
    main(*sys.argv[1:])
