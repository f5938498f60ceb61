"""Routes in an endless loop into a file and reports the time of each answer, until it is killed.

    python route_child.py '{"path": "traces.db", "durability": "buffered", ...}'

Writes ``ready``, then a line for each answer: the trace's id, the monotonic clock in nanoseconds, which is the same in
all processes, and ``waited_ns``. Exits cleanly when standard input ends.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from random import Random

import anyio
import anyio.to_thread
import msgspec

from routewright import (
    CallableProvider,
    Model,
    Pricing,
    ProviderFault,
    Router,
    RouterError,
    Settings,
    SqliteStorage,
    UpstreamCall,
)
from routewright.backends.storage.sqlite import background as keeper
from routewright.wire import Durability

MODELS = [
    Model(id=f"test/{name}", quality=quality, pricing_per_1m=Pricing(1.0, 4.0), context_window=100_000)
    for name, quality in (("large", 0.9), ("small", 0.5))
]


def waited_ns(process: int | str = "self") -> int:
    """How long the threads of a process could have run and had no processor."""
    waited = 0
    for thread in Path(f"/proc/{process}/task").iterdir():
        with suppress(OSError):  # it has ended
            waited += int((thread / "schedstat").read_text().split()[1])
    return waited


class Orders(msgspec.Struct):
    """What the child is to do."""

    path: str
    durability: Durability
    seed: int
    tasks: int = 8
    """How many calls there are at once."""
    streams: float = 0.0
    """The share of calls that are streamed."""
    wait_s: float = 0.003
    """How long a model takes at most."""
    log_bytes: int = keeper.LOG_BYTES
    """When the log is moved into the file."""


class Child:
    """Calls and tells."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._chance = Random(orders.seed)
        self._ended = False
        keeper.LOG_BYTES = orders.log_bytes
        provider = CallableProvider(self._answer, models=MODELS)
        settings = Settings(durability=orders.durability, rollup_keys=("team",))
        self._router = Router(providers=[provider], storage=SqliteStorage(orders.path), settings=settings)

    async def run(self) -> None:
        """Route until standard input ends."""
        self._router.decide("hi")  # what is loaded once
        os.write(1, b"ready\n")
        async with anyio.create_task_group() as group:
            for _ in range(self._orders.tasks):
                group.start_soon(self._call_on)
            await anyio.to_thread.run_sync(sys.stdin.read)
            self._ended = True
        await self._router.aclose()

    async def _answer(self, call: UpstreamCall) -> AsyncIterator[str]:
        await anyio.sleep(self._chance.random() * self._orders.wait_s)
        if self._chance.random() < 0.05:
            raise ProviderFault("server", status=500)
        yield "hello "
        yield "world"

    async def _call_on(self) -> None:
        while not self._ended:
            try:
                trace_id: str | None = await self._call()
            except RouterError as error:  # a failure is an answer, too
                trace_id = error.trace_id
            if trace_id is not None:
                os.write(1, f"{trace_id} {time.monotonic_ns()} {waited_ns()}\n".encode())

    async def _call(self) -> str:
        tags = {"team": self._chance.choice("xyz"), "tenant": self._chance.choice("uvw")}
        if self._chance.random() >= self._orders.streams:
            return (await self._router.route("hi", metadata=tags)).trace_id
        async with self._router.stream("hi", metadata=tags) as stream:
            async for _ in stream.text():
                pass
        return stream.result.trace_id


if __name__ == "__main__":
    anyio.run(Child(msgspec.json.decode(sys.argv[1], type=Orders)).run)
