"""Makes calls for an account in a store shared with other processes.

    python -m tests.engine.router_child '{"path": "traces.db", ...}'

Writes ``ready``, then one ``Report`` line for each ``Order`` line on standard input. Exits cleanly when standard input
ends.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from random import Random

import anyio
import anyio.to_thread
import msgspec

from routewright import Model, Pricing, Router, RouterError, Settings, SqliteStorage
from routewright.wire import Caller, Chunk, Delta, Finish, ParamsDict, UpstreamCall, Usage

MODEL = Model(id="good/one", quality=0.9, pricing_per_1m=Pricing(10.0, 40.0), context_window=100_000, ttft_s=1.0)
ACCOUNT = "acme"


class Child(msgspec.Struct):
    """What the process is."""

    path: str
    seed: int
    lease_s: float


class Order(msgspec.Struct):
    """Calls to make at once."""

    calls: int
    in_flight: int
    key: str | None = None
    """Their idempotency key."""
    max_output_tokens: int = 200
    takes_s: float = 0.01
    """How long the model takes, at most."""
    timeout_ms: float = 20_000


class Report(msgspec.Struct):
    """What came of them."""

    upstream: int
    """Calls that came to the model."""
    refused: dict[str, int]
    """By code."""
    responses: list[str]
    """Of each answer its response as JSON."""


class Worker(msgspec.Struct):
    """A model that takes its time, and of its cap what it likes."""

    chance: Random
    takes_s: float = 0.0
    calls: int = 0
    name: str = "good"

    def models(self) -> list[Model]:
        return [MODEL]

    @asynccontextmanager
    async def open(self, call: UpstreamCall) -> AsyncIterator[AsyncIterator[Chunk]]:
        self.calls += 1
        yield self._chunks(call)

    async def _chunks(self, call: UpstreamCall) -> AsyncIterator[Chunk]:
        await anyio.sleep(self.chance.random() * self.takes_s)
        yield Delta("an answer")
        yield Usage(10, self.chance.randint(1, call.max_output_tokens or 1))
        yield Finish("stop")

    async def aclose(self) -> None:
        pass


async def carry_out(order: Order, router: Router, worker: Worker) -> Report:
    """Make the calls of an order."""
    before, refused, responses = worker.calls, Counter[str](), list[str]()
    worker.takes_s, left = order.takes_s, order.calls

    async def go_on() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            options: ParamsDict = {"max_output_tokens": order.max_output_tokens}
            try:
                answer = await router.route(
                    "hi", caller=Caller(ACCOUNT), params=options, idempotency_key=order.key, timeout_ms=order.timeout_ms
                )
            except RouterError as error:
                refused[error.code] += 1
            else:
                responses.append(msgspec.json.encode(answer.response).decode())

    async with anyio.create_task_group() as group:
        for _ in range(order.in_flight):
            group.start_soon(go_on)
    return Report(worker.calls - before, dict(refused), responses)


async def main(child: Child) -> None:
    """Carry orders out until there are no more."""
    chance = Random(child.seed)
    worker = Worker(chance)
    storage = SqliteStorage(child.path, busy_s=30.0, lease_s=child.lease_s)
    async with Router(providers=[worker], storage=storage, settings=Settings(rng=chance)) as router:
        print("ready", flush=True)
        while line := await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            report = await carry_out(msgspec.json.decode(line, type=Order), router, worker)
            print(msgspec.json.encode(report).decode(), flush=True)


if __name__ == "__main__":
    anyio.run(partial(main, msgspec.json.decode(sys.argv[1], type=Child)))
