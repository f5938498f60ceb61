"""Agent runs over ASGI on virtual time: accounts with limits, and the responses, plain or streamed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import anyio
import msgspec

from routewright import Agent, Catalogue, Console, MemoryStorage, Model, Pricing, Router, Settings
from routewright.server import HttpLimits, create_app
from routewright.testing import FakeClock, ScriptedProvider
from routewright.testing.provider import Line, Pause, Script
from routewright.wire import Delta, Events, Finish, LedgerRow, LedgerRows, Stands, ToolDelta, Usage
from routewright.wire.timestamps import timestamp
from tests.engine.faulty_storage import Behind

from .asgi_client import Client, scope_of
from .uvicorn_server import SECRET, bearer

ONE = Model(
    id="test/one", quality=0.8, pricing_per_1m=Pricing(1.0, 1.0), modalities=("text", "tool"), context_window=100_000
)
CALL_NANOS = 110_000
"""What each call of ``asks`` and ``says`` costs."""
SLOW_S = 8.0
"""How long the tool ``wait`` takes, and a call of ``slowly``."""


class How(NamedTuple):
    """How a run is asked for."""

    stream: bool
    key: str | None


HOWS = {
    "plain": How(False, None),
    "streamed": How(True, None),
    "plain with a key": How(False, "k"),
    "streamed with a key": How(True, "k"),
}
PLAIN, STREAMED, PLAIN_KEY, STREAMED_KEY = HOWS.values()


class Told(NamedTuple):
    """One event of a stream."""

    event: str
    id: int
    data: Any


class Outcome(NamedTuple):
    """What a client was sent."""

    status: int
    headers: dict[str, str]
    body: Any
    """The response of the run, or the error envelope."""
    events: list[Told]
    """Of a stream."""
    raw: bytes

    @property
    def names(self) -> list[str]:
        return [told.event for told in self.events]


def asks(name: str, arguments: Any, *more: tuple[str, Any], text: str = "") -> list[Line]:
    """An answer that calls tools."""
    calls = [(name, arguments), *more]
    deltas = [ToolDelta(place, json.dumps(given), f"call_{place}", tool) for place, (tool, given) in enumerate(calls)]
    return [Delta(text), *deltas, Usage(100, 10), Finish("tool_calls")]


def says(text: str) -> list[Line]:
    return [Delta(text), Usage(100, 10), Finish("stop")]


def slowly(turn: Sequence[Line]) -> list[Line]:
    """The same answer, late."""
    return [Pause(SLOW_S), *turn]


def outcome_of(client: Client) -> Outcome:
    """What a client was sent, which must be a whole answer. Of a stream: each event as the contract has it, ids one
    after another, and one last event."""
    assert client.status is not None
    assert client.is_whole
    if not client.headers["content-type"].startswith("text/event-stream"):
        return Outcome(client.status, client.headers, client.json, [], client.body)
    assert client.body.endswith(b"\n\n")
    events = list[Told]()
    for block in client.body.decode().removesuffix("\n\n").split("\n\n"):
        if not block.startswith(":"):
            event, number, data = block.split("\n")
            events.append(
                Told(
                    event.removeprefix("event: "),
                    int(number.removeprefix("id: ")),
                    json.loads(data.removeprefix("data: ")),
                )
            )
    assert [told.id for told in events] == list(range(1, len(events) + 1))
    assert [told.event in ("run.completed", "error") for told in events] == [False] * (len(events) - 1) + [True]
    return Outcome(client.status, client.headers, events[-1].data, events, client.body)


class House:
    """A Router over one scripted model, its accounts and keys, and its application. ``await house.open()`` first.

    Its agent has the tools ``add``, ``wait`` and ``greet``.
    """

    def __init__(self, script: Script, *, storage_s: float | None = None, **terms: Any) -> None:
        """``storage_s``: so long takes whatever the storage does, so that runs keep checkpoints; None: nothing waits
        for it, and they keep none. ``terms``: of the account ``acme``."""
        self.clock = FakeClock()
        self.storage = MemoryStorage(clock=self.clock)
        behind = Behind(self.storage, self.clock)
        behind.takes_s = storage_s or 0.0
        self.provider = ScriptedProvider(script, models=[ONE], clock=self.clock)
        self.router = Router(
            providers=[self.provider],
            catalogue=Catalogue(()),
            storage=self.storage if storage_s is None else behind,
            settings=Settings(clock=self.clock),
        )
        self.console = Console(self.storage, secret=SECRET, clock=self.clock)
        self.terms = {"plan": "unlimited", **terms}
        self.headers: dict[str, str] = {}

        async def add(a: int, b: int) -> int:  # a function in a thread would seem to take for ever
            return a + b

        async def wait() -> str:
            await self.clock.sleep(SLOW_S)
            return "waited"

        async def greet(name: str) -> str:
            return f"Hello {name}"

        self.agent = Agent(self.router, tools=[add, wait, greet])
        self.app = create_app(self.router, self.console, agent=self.agent, limits=HttpLimits(body_bytes=1 << 20))

    async def open(self, **of_key: Any) -> House:
        await self.console.create_account("acme", **self.terms)
        self.headers = await self.key(**of_key)
        return self

    async def key(self, **terms: Any) -> dict[str, str]:
        """The header of a new key."""
        made = await self.console.create_key("acme", name="test", **terms)
        return bearer(made.secret.reveal())

    def client(self, how: How = PLAIN, headers: dict[str, str] | None = None, **body: Any) -> Asking:
        """A client that is about to ask for a run."""
        fields = {"task": "go", **({"stream_steps": True} if how.stream else {}), **body}
        sent = {**self.headers, **({} if how.key is None else {"idempotency-key": how.key}), **(headers or {})}
        return Asking(self, fields, sent)

    async def run(self, how: How = PLAIN, headers: dict[str, str] | None = None, **body: Any) -> Outcome:
        """A run to its end."""
        client = self.client(how, headers, **body)
        await client.ask()
        return outcome_of(client)

    async def send(self, body: bytes, how: How, headers: dict[str, str]) -> Outcome:
        """Whatever bytes instead of a request."""
        client = self.client(how, headers)
        client.replace(body)
        await client.ask()
        return outcome_of(client)

    async def get(self, path: str, query: str = "") -> Any:
        client = Client()
        await self.app(scope_of("GET", path, query=query, headers=self.headers), client.receive, client.send)
        assert client.status == 200, client.body
        return client.json

    async def runs(self) -> list[Any]:
        """The traces of runs, newest first."""
        found: list[Any] = (await self.get("/v1/traces", "filter=kind%3Dagent&limit=200"))["data"]
        return found

    async def ends(self) -> list[Any]:
        """The events of runs that ended, oldest first."""
        await self.router.flush()
        stored = await self.storage.scan("acme", Events(), after=None, limit=1_000)
        return [each for each in stored if each.type == "agent.run_completed"]

    async def rows(self) -> list[LedgerRow]:
        found: list[LedgerRow] = await self.storage.scan("acme", LedgerRows(), after=None, limit=10_000)
        return found

    async def purses(self, key_id: str | None = None) -> dict[str, tuple[int | None, int, int]]:
        """Limit, spent and reserved, by level; of a key its budget or its month, whichever has a limit."""
        found = await self.storage.read("acme", Stands(timestamp(self.clock.time()), key_id))
        limited_last = sorted(found.purses, key=lambda each: each.limit_nanos is not None)
        return {each.level: (each.limit_nanos, each.spent_nanos, each.reserved_nanos) for each in limited_last}

    async def check_nothing_is_held(self) -> None:
        """No slot, no money, no upstream call; all that is spent stands in the ledger."""
        await self.router.flush()
        assert self.storage.accounts.state.holds == {}
        assert self.provider.open_calls == 0
        charged = sum(row.charge_nanos for row in await self.rows())
        for limit, spent, reserved in (await self.purses()).values():
            assert (spent, reserved) == (charged, 0)
            assert limit is None or spent <= limit


class Asking(Client):
    """A client of a ``House``."""

    def __init__(self, house: House, fields: dict[str, Any], headers: dict[str, str]) -> None:
        super().__init__(msgspec.json.encode({name: value for name, value in fields.items() if value is not None}))
        self._house = house
        self._headers = headers

    def replace(self, body: bytes) -> None:
        """Send this in place of the fields."""
        self._pieces = [body]

    async def ask(self, path: str = "/v1/agents/run") -> None:
        await self._house.app(scope_of(path=path, headers=self._headers), self.receive, self.send)

    async def ask_and_leave(self, after_s: float) -> None:
        """Ask, and be gone so long after; returns when the server is done with it."""

        async def leave() -> None:
            await self._house.clock.sleep(after_s)
            self.leave()

        async with anyio.create_task_group() as group:
            group.start_soon(leave)
            await self.ask()
