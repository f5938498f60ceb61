"""Runs an agent on a file store until it is killed, or prints the result.

python -m tests.engine.agent_child '{"path": "store.db", "key": "k", "steps": 4}'
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio
import msgspec

from routewright import Agent, Caller, Catalogue, Model, Pricing, Router, SqliteStorage
from routewright.wire import Account, Chunk, Delta, Finish, PutAccount, ToolDelta, UpstreamCall, Usage

ONE = Model(
    id="test/one", quality=0.8, pricing_per_1m=Pricing(1.0, 1.0), context_window=100_000, modalities=("text", "tool")
)
LEASE_S = 0.4


class Child(msgspec.Struct):
    path: str
    key: str
    steps: int
    """Rounds of a model call and a tool call before the answer."""


class Scripted:
    """Answers by how far the conversation is."""

    name = "test"

    def __init__(self, child: Child) -> None:
        self._child = child

    def models(self) -> list[Model]:
        return [ONE]

    @asynccontextmanager
    async def open(self, call: UpstreamCall) -> AsyncIterator[AsyncIterator[Chunk]]:
        yield self._chunks(call)

    async def _chunks(self, call: UpstreamCall) -> AsyncIterator[Chunk]:
        told = sum(message.role == "tool" for message in call.messages)
        await anyio.sleep(0.01)
        if told < self._child.steps:
            yield ToolDelta(0, f'{{"round": {told}}}', f"call_{told}", "note")
        else:
            yield Delta(f"done after {told}")
        yield Usage(100, 10)
        yield Finish("tool_calls" if told < self._child.steps else "stop")

    async def aclose(self) -> None:
        pass


async def main(child: Child) -> None:
    async def note(round: int) -> str:
        await anyio.sleep(0.005)
        return f"noted {round}"

    storage = SqliteStorage(child.path, busy_s=30.0, lease_s=LEASE_S)
    await storage.apply(
        "acme", [PutAccount(Account(name="acme", created_at="2026-01-01T00:00:00.000Z", plan="unlimited"))]
    )
    async with Router(providers=[Scripted(child)], catalogue=Catalogue(()), storage=storage) as router:
        agent = Agent(router, tools=[note], max_steps=50)
        print("ready", flush=True)
        answer = await agent.run("go", caller=Caller("acme"), idempotency_key=child.key)
        print(msgspec.json.encode(answer.response).decode(), flush=True)


if __name__ == "__main__":
    anyio.run(partial(main, msgspec.json.decode(sys.argv[1], type=Child)))
