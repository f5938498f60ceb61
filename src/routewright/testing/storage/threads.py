"""Several threads, each with an event loop of its own, use one storage at once: nothing is lost or counted twice."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import anyio
import anyio.to_thread

from routewright.errors import PreconditionFailed
from routewright.protocols import Storage
from routewright.wire import PutTrace, TraceById, TraceItems

from .rollups import answers, expected_answers
from .samples import ROLLUP_KEYS, all_items, make_trace, newest_first
from .suite import Suite

THREADS, ROUNDS = 8, 25
PATIENCE_S = 10.0
"""Who waits for longer waits for ever, which is a failure, too."""


class Threads(Suite):
    """Calls from threads."""

    async def test_threads_with_loops_of_their_own_lose_nothing_and_double_nothing(
        self, storage: Storage, anyio_backend_name: str
    ) -> None:
        won = await anyio.to_thread.run_sync(_in_threads, storage, anyio_backend_name)
        assert sorted(put.trace.id for put in won) == [_contested(0, turn).trace.id for turn in range(ROUNDS)]
        puts = [*won, *(_put(number, turn) for number in range(THREADS) for turn in range(ROUNDS))]
        expected = [trace.item for trace in newest_first([put.trace for put in puts])]
        assert await all_items(storage, TraceItems(), limit=100) == expected
        assert await answers(storage, "default") == expected_answers(puts)


def _in_threads(storage: Storage, backend: str) -> list[PutTrace]:
    """Let all of them take part. Gives what was the first of its id. Raises what the first failure raised."""
    together, won, failed = threading.Barrier(THREADS), list[PutTrace](), list[Exception]()

    def run(number: int) -> None:
        try:
            anyio.run(_take_part, storage, number, together, won, backend=backend)
        except threading.BrokenBarrierError:
            return  # another one failed, or waits for ever
        except Exception as error:
            failed.append(error)
            together.abort()

    threads = [threading.Thread(target=run, args=[number], daemon=True) for number in range(THREADS)]
    with _meeting_often():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    if failed:
        raise failed[0]
    assert not any(thread.is_alive() for thread in threads), "a thread waits for ever"
    return won


async def _take_part(storage: Storage, number: int, together: threading.Barrier, won: list[PutTrace]) -> None:
    """Each round write a trace, try to be the first with one that all others bring, too, and read."""
    for turn in range(ROUNDS):
        mine, contested = _put(number, turn), _contested(number, turn)
        together.wait(PATIENCE_S)
        (written,) = await storage.apply("default", [mine])
        assert written.created
        with suppress(PreconditionFailed):
            await storage.apply("default", [contested])
            won.append(contested)
        assert await storage.read("default", TraceById(mine.trace.id)) == mine.trace
        newest = await storage.scan("default", TraceItems(), after=None, limit=ROUNDS)
        assert len(newest) >= min(turn + 2, ROUNDS)


def _put(number: int, turn: int) -> PutTrace:
    return PutTrace(make_trace(number * ROUNDS + turn, cost_usd=0.25), rollup_keys=ROLLUP_KEYS)


def _contested(number: int, turn: int) -> PutTrace:
    """A trace of each round that every thread says otherwise."""
    return PutTrace(make_trace(10_000 + turn, error=f"of thread {number}"), expect="absent")


@contextmanager
def _meeting_often() -> Iterator[None]:
    """Let threads meet in the middle of things, as they do now and then in any case."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
