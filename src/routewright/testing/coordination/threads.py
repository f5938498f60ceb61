"""Several threads, each with an event loop of its own, take of one coordination at once: never too much, never less."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import anyio.to_thread

from routewright.fork import Guard
from routewright.protocols import Coordination
from routewright.wire import Take, Taken

from .suite import Suite, denied, requests, slots, taken

THREADS, ROUNDS, LIMIT, MOST = 8, 40, 100, 3
PATIENCE_S = 20.0
"""Who waits for longer waits for ever, which is a failure, too."""


class _Party:
    """What the threads have in common."""

    def __init__(self, coordination: Coordination) -> None:
        self.coordination = coordination
        self.together = threading.Barrier(THREADS)
        self.failed: list[Exception] = []
        self.admitted = self.held = self.most_held = 0
        self._guard = Guard()

    def count(self, admitted: int, held: int) -> None:
        """Book what one got or gave."""
        with self._guard.lock:
            self.admitted += admitted
            self.held += held
            self.most_held = max(self.most_held, self.held)

    async def take_part(self, number: int) -> None:
        """Each round take what all others want, too."""
        takes = [Take("all", "requests", LIMIT), Take(f"key:{number}", "tokens", 10**6, 7), Take("all", "slots", MOST)]
        for _ in range(ROUNDS):
            self.together.wait(PATIENCE_S)
            result = await self.coordination.take(takes, f"owner:{number}")
            if isinstance(result, Taken):
                self.count(1, 1)
                await anyio.lowlevel.checkpoint()
                self.count(0, -1)
                await self.coordination.end(result, 3)


class Threads(Suite):
    """Calls from threads."""

    async def test_threads_with_loops_of_their_own_get_no_more_than_there_is(
        self, coordination: Coordination, anyio_backend_name: str
    ) -> None:
        party = _Party(coordination)
        await anyio.to_thread.run_sync(_in_threads, party, anyio_backend_name)
        assert 0 < party.most_held <= MOST
        assert party.admitted <= LIMIT
        left = LIMIT - party.admitted
        for place in range(left):
            assert (await taken(coordination, requests("all", LIMIT))).states[0].remaining == left - place - 1
        await denied(coordination, requests("all", LIMIT))
        assert (await taken(coordination, slots("all", MOST))).states[0].remaining == MOST - 1


def _in_threads(party: _Party, backend: str) -> None:
    """Let all of them take part. Raises what the first failure raised."""

    def run(number: int) -> None:
        try:
            anyio.run(party.take_part, number, backend=backend)
        except threading.BrokenBarrierError:
            return  # another one failed, or waits for ever
        except Exception as error:
            party.failed.append(error)
            party.together.abort()

    threads = [threading.Thread(target=run, args=[number], daemon=True) for number in range(THREADS)]
    with _meeting_often():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    if party.failed:
        raise party.failed[0]
    assert not any(thread.is_alive() for thread in threads), "a thread waits for ever"


@contextmanager
def _meeting_often() -> Iterator[None]:
    """Let threads meet in the middle of things, as they do now and then in any case."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
