"""Rate limits in Redis: exact across processes, released by dead ones, robust to flushes and clock changes."""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from redis import Redis

from routewright.backends.coordination import redis as module
from routewright.backends.coordination.redis import UNITS, RedisCoordination
from routewright.errors import InternalError, RateLimited, StorageUnavailable, ValidationFailed
from routewright.wire import RateLimits, Taken, Takes
from tests.database_servers import RedisServer
from tests.programs import Program

from .redis_child import KEY_REQUESTS, LEASE_S, PATIENCE_S, REQUESTS, SLOTS, TOKENS, WINDOW_S, takes, until_taken

pytestmark = pytest.mark.anyio


def child(url: str, what: str, much: object) -> Program:
    return Program("-m", "tests.backends.redis_child", url, what, str(much))


Make = Callable[..., RedisCoordination]


@pytest.fixture
async def make(redis: RedisServer, anyio_backend: str) -> AsyncIterator[Make]:
    """Makes coordinations that are closed in the end."""
    made: list[RedisCoordination] = []

    def make(**given: Any) -> RedisCoordination:
        made.append(RedisCoordination(redis.url, **given))
        return made[-1]

    yield make
    for each in made:
        await each.aclose()


def most_within(entries: list[tuple[int, int]], length: int) -> int:
    """The largest sum in any window, open at its beginning."""
    entries = sorted(entries)
    times, sums = [at for at, _ in entries], [0]
    for _, amount in entries:
        sums.append(sums[-1] + amount)
    return max(sums[place + 1] - sums[bisect_right(times, at - length)] for place, (at, _) in enumerate(entries))


async def refused(coordination: RedisCoordination, wanted: Takes) -> dict[str, Any]:
    with pytest.raises(RateLimited) as error:
        await coordination.take(wanted)
    assert error.value.detail is not None
    return error.value.detail


def test_processes_together_never_exceed_a_limit_in_any_window(redis: RedisServer, full: bool) -> None:
    processes, seconds = (8, 60.0) if full else (4, 3.0)
    entries: list[tuple[int, int, int]] = []
    with ExitStack() as stack:
        running = [stack.enter_context(child(redis.url, "count", seconds)) for _ in range(processes)]
        for process in running:
            for line in process.stdout:
                at, tokens, of_key = map(int, line.split())
                entries.append((at, tokens, of_key))
            process.end()
    length = int(WINDOW_S * UNITS)
    assert most_within([(at, 1) for at, _, _ in entries], length) <= REQUESTS
    assert most_within([(at, tokens) for at, tokens, _ in entries], length) <= TOKENS
    assert most_within([(at, 1) for at, _, of_key in entries if of_key], length) <= KEY_REQUESTS
    spent = sum(tokens for _, tokens, _ in entries)
    assert spent > 0.8 * TOKENS * (seconds - WINDOW_S), "nobody is refused who fits"


async def test_slots_of_a_process_that_is_killed_are_back_within_the_lease_and_not_before_it_dies(
    make: Make, redis: RedisServer
) -> None:
    mine = make(lease_s=LEASE_S)
    many = 25
    with child(redis.url, "hold", many) as other:
        assert await anyio.to_thread.run_sync(other.heard) == "held"
        for number in range(SLOTS - many):
            await mine.take(takes(f"mine {number}"))
        ends = time.monotonic() + 2.5 * LEASE_S
        while time.monotonic() < ends:
            assert (await refused(mine, takes("more")))["limit_of"] == "concurrency"
            await anyio.sleep(0.05)
        other.kill()
        killed_at = time.monotonic()
    await until_taken(mine, takes("one more"))
    for number in range(many - 1):
        await until_taken(mine, takes(f"more {number}"))
    assert time.monotonic() - killed_at < 2 * LEASE_S
    assert (await refused(mine, takes("one too many")))["limit_of"] == "concurrency"


async def test_a_call_that_is_cancelled_holds_nothing(make: Make, redis: RedisServer) -> None:
    mine = make()
    party = ("p", RateLimits(requests_per_min=1, concurrency=1))
    for steps in range(30):
        wanted = Takes(id=f"c{steps}", account="acme", parties=(party,), tokens=5, slots=1, lasts_s=60.0)
        taken: list[Taken] = []

        async def ask(wanted: Takes = wanted, taken: list[Taken] = taken) -> None:
            taken.append(await mine.take(wanted))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            for _ in range(steps % 10):
                await anyio.lowlevel.checkpoint()
            if steps >= 10:
                await anyio.sleep(0.0001 * steps)
            group.cancel_scope.cancel()
        for each in taken:
            mine.end(each, 0, void=True)
        mine.end(await until_taken(mine, wanted), 0, void=True)


async def test_after_a_flush_windows_restart_and_slots_return_with_the_next_beat(
    make: Make, redis: RedisServer
) -> None:
    mine = make(lease_s=0.6)
    party = ("p", RateLimits(requests_per_min=2, concurrency=2))
    wanted = [Takes(id=f"c{n}", account="acme", parties=(party,), tokens=5, slots=1, lasts_s=60.0) for n in range(9)]
    first = await mine.take(wanted[0])
    second = await mine.take(wanted[1])
    redis.flush()
    third = await mine.take(wanted[2])
    await anyio.sleep(0.5)
    assert (await refused(mine, wanted[3]))["limit_of"] == "concurrency"
    for each in (first, second):
        mine.end(each, 0, void=True)
    assert (await mine.take(wanted[4])).windows[0].remaining == 0, "ends of what was flushed change nothing"
    mine.end(third, 0)
    assert (await refused(mine, wanted[5]))["limit_of"] == "requests_per_min"


async def test_a_script_lost_by_the_server_is_sent_again(make: Make, redis: RedisServer) -> None:
    mine, server = make(), Redis.from_url(redis.url)
    for number in range(3):
        server.script_flush()
        await mine.take(takes(f"c{number}"))
    assert (await mine.take(takes("c"))).windows[0].remaining == REQUESTS - 4
    server.close()


async def test_entries_of_a_server_with_a_fast_clock_are_dropped(make: Make, redis: RedisServer) -> None:
    mine, server = make(), Redis.from_url(redis.url)
    party = ("p", RateLimits(requests_per_min=1, concurrency=1))
    wanted = Takes(id="c", account="acme", parties=(party,), tokens=5, slots=1, lasts_s=60.0)
    at = int((time.time() + 3_600) * UNITS)
    server.hset("rw:{acme}:window:p", mapping={"h": 1, "n": 0, "r": 1, "t": 5, "l": at})
    server.zadd("rw:{acme}:slots:p", {"of another": at})
    await mine.take(wanted)
    server.close()


async def test_a_clock_that_steps_back_admits_nothing_too_early(make: Make, redis: RedisServer) -> None:
    mine, server = make(), Redis.from_url(redis.url)
    party = ("p", RateLimits(requests_per_min=2))
    wanted = [Takes(id=f"c{n}", account="acme", parties=(party,), tokens=5, slots=1, lasts_s=60.0) for n in range(3)]
    _, at = (await mine.take(wanted[0])).places[0]
    later = at + 30 * UNITS
    server.hset("rw:{acme}:window:p", "l", later)
    assert (await mine.take(wanted[1])).places[0] == (2, later)
    assert (await refused(mine, wanted[2]))["retry_after_seconds"] == 30
    server.close()


async def test_a_read_only_server_counts_as_unavailable(make: Make, redis: RedisServer) -> None:
    mine, server = make(), Redis.from_url(redis.url)
    server.replicaof("127.0.0.1", "1")
    try:
        with pytest.raises(StorageUnavailable, match="ReadOnlyError"):
            await mine.take(takes("c"))
    finally:
        server.replicaof("NO", "ONE")
    await mine.take(takes("c"))
    server.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_a_forked_child_inherits_no_slots(make: Make, redis: RedisServer) -> None:
    mine = make(lease_s=0.6)
    await mine.take(takes("c"))
    child = os.fork()
    if child == 0:
        os._exit(len(mine._slots))
    _, status = await anyio.to_thread.run_sync(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize("processes", [0, -1, 1.5, True, "2"])
async def test_processes_must_be_a_positive_integer(processes: Any) -> None:
    with pytest.raises(ValidationFailed):
        RedisCoordination("redis://localhost", processes=processes)


async def test_an_unexpected_script_error_fails_its_calls_but_not_the_thread(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mine = make()
    with monkeypatch.context() as patch:
        patch.setattr(module, "WINDOW", object())
        with pytest.raises(InternalError, match="RedisCoordination failed"):
            await mine.take(takes("c"))
    await mine.take(takes("d"))


# Its thread


async def until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(PATIENCE_S):
        while not holds():  # noqa: ASYNC110
            await anyio.sleep(0.01)


@pytest.mark.parametrize("away", ["gone", "frozen"])
async def test_closing_ends_the_thread_during_an_outage(make: Make, redis: RedisServer, away: str) -> None:
    mine = make()
    first, _ = await mine.take(takes("ended")), await mine.take(takes("running"))
    thread = mine._thread
    assert thread is not None
    (redis.stop if away == "gone" else redis.pause)()
    try:
        mine.end(first, 1)
        await until(lambda: len(mine._unsent) == 1)
        with anyio.fail_after(PATIENCE_S):
            await mine.aclose()
        assert not thread.is_alive()
        assert len(mine._unsent) == 0
    finally:
        (redis.start if away == "gone" else redis.resume)()
    await mine.take(takes("next"))


async def test_ends_are_retried_until_their_lease_expires(
    make: Make, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, tries = make(lease_s=3 * module.RETRY_S), list[int]()
    taken = [await mine.take(takes(f"c{number}")) for number in range(5)]
    evaluate = mine._server.evaluate

    def counted(*given: Any) -> list[Any]:
        tries.append(len(given))
        return evaluate(*given)

    monkeypatch.setattr(mine._server, "evaluate", counted)
    redis.stop()
    try:
        for each in taken:
            mine.end(each, 1)
        await until(lambda: bool(tries) and mine._thread is None)
    finally:
        redis.start()
    assert len(tries) < 15, "it does not spin"


async def test_slots_are_renewed_after_another_router_closes_the_coordination(make: Make, redis: RedisServer) -> None:
    mine = make()
    await mine.take(takes("running"))
    await mine.aclose()
    assert mine._thread is None
    await mine.hear(None)
    assert mine._thread is not None
