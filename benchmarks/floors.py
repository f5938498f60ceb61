"""What the same work costs with nothing around it: plain loops over plain objects, and the least that a call needs.

The floors check the same constraints and fill the same plan. They leave out what makes a router worth having: exact
money, replay, a reason, classes of sizes, faults, traces.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import date
from random import Random
from typing import Any, NamedTuple

from routewright._core.routing.forecast import Forecast
from routewright.wire import Chunk, DecisionInput, Delta, ToolDelta

PLAN_LENGTH = 4
OUTPUT_TOKENS = 400
ALL_ABILITIES = 7


class Row:
    """One model."""

    __slots__ = (
        "able",
        "id",
        "input_price",
        "latency_ms",
        "merit",
        "output_price",
        "provider",
        "regions",
        "up",
        "window",
    )

    def __init__(self, forecast: Forecast, row: int, as_of: str) -> None:
        pool = forecast.pool
        model = pool.models[row]
        price = pool.prices[row][-1]
        self.id = model.id
        self.provider = model.provider
        self.up = (
            not model.disabled
            and (model.deprecated_at is None or date.fromisoformat(model.deprecated_at) > date.fromisoformat(as_of))
            and model.availability.status != "unavailable"
            and row not in forecast.open
        )
        self.able = int(pool.able[row])
        self.regions = frozenset(model.availability.regions)
        self.window = pool.window[row]
        self.input_price = price.input
        self.output_price = price.output
        self.latency_ms = pool.ttft_ms[row] + pool.us_per_token[row] * OUTPUT_TOKENS // 1000
        self.merit = (model.quality or 0.0) - self.latency_ms / 64_000


class Wanted(NamedTuple):
    """One request's numbers."""

    input_tokens: int
    needs: int
    models: frozenset[str] | None
    regions: frozenset[str]
    budget_tokens: float
    budget_picos: float
    timeout_ms: int
    quality: tuple[float, ...] | None


class Plan(NamedTuple):
    """The chosen model and those that follow."""

    model: str
    chain: list[str]
    picos: int


def rows(forecast: Forecast, as_of: str) -> list[Row]:
    """The pool as plain objects, in its own order."""
    return [Row(forecast, row, as_of) for row in range(len(forecast.pool))]


def wanted(given: DecisionInput) -> Wanted:
    """The input as a plain record."""
    return Wanted(
        given.tokens.best,
        given.needs,
        None if given.models is None else frozenset(given.models),
        frozenset(given.regions),
        float("inf") if given.budget_tokens is None else given.budget_tokens,
        float("inf") if given.budget_nanos is None else given.budget_nanos * 1_000,
        given.timeout_ms,
        None if given.quality is None else tuple(each / 1e6 for each in given.quality),
    )


def fits(row: Row, ask: Wanted, size: int) -> bool:
    """All constraints of one model."""
    return (
        row.up
        and row.window >= size
        and row.able & ask.needs == ask.needs
        and row.latency_ms <= ask.timeout_ms
        and size <= ask.budget_tokens
        and (ask.models is None or row.id in ask.models)
        and ask.regions <= row.regions
        and row.input_price * ask.input_tokens + row.output_price * OUTPUT_TOKENS <= ask.budget_picos
    )


def presorted(best_first: Sequence[Row], ask: Wanted) -> Plan:
    """Take the first four that fit from an order made beforehand."""
    size = ask.input_tokens + OUTPUT_TOKENS
    plan = []
    for row in best_first:
        if fits(row, ask, size):
            plan.append(row)
            if len(plan) == PLAN_LENGTH:
                break
    return _plan(plan, ask)


def full_scan(pool: Sequence[Row], ask: Wanted) -> Plan:
    """Score every model for this very request, and sort."""
    size = ask.input_tokens + OUTPUT_TOKENS
    scored = []
    for number, row in enumerate(pool):
        if fits(row, ask, size):
            picos = row.input_price * ask.input_tokens + row.output_price * OUTPUT_TOKENS
            merit = row.merit if ask.quality is None else ask.quality[number]
            scored.append((picos * 1e-10 - merit, number))
    scored.sort()
    return _plan([pool[number] for _, number in scored[:PLAN_LENGTH]], ask)


def _plan(chosen: list[Row], ask: Wanted) -> Plan:
    best = chosen[0]
    picos = best.input_price * ask.input_tokens + best.output_price * OUTPUT_TOKENS
    return Plan(best.id, [row.id for row in chosen[1:]], picos)


class Reply(NamedTuple):
    """What the least of all routers answers."""

    id: str
    text: str
    model: str
    chain: list[str]
    reason: str
    cost_usd: float
    latency_ms: float
    tokens: tuple[int, int]


Call = Callable[[Row, list[dict[str, Any]]], Awaitable[tuple[str, int, int]]]
Ask = Callable[[list[dict[str, Any]]], AsyncIterator[Chunk]]


class LeastRouter:
    """Guess the length, take the first that fits, call it under a timer, price the answer."""

    def __init__(self, best_first: Sequence[Row], call: Call) -> None:
        self._best_first = best_first
        self._rows = {row.id: row for row in best_first}
        self._call = call
        self._bits = Random().getrandbits

    async def route(self, messages: list[dict[str, Any]]) -> Reply:
        """Answer a chat."""
        started = time.perf_counter()
        tokens = sum(4 + len(message["content"]) // 4 for message in messages)
        plan = presorted(
            self._best_first, Wanted(tokens, 0, None, frozenset(), float("inf"), float("inf"), 60_000, None)
        )
        row = self._rows[plan.model]
        task = asyncio.current_task()
        assert task is not None, "routes run in tasks"
        timer = asyncio.get_running_loop().call_later(60.0, task.cancel)
        try:
            text, read, written = await self._call(row, messages)
        finally:
            timer.cancel()
        return Reply(
            f"tr_{self._bits(96):024x}",
            text,
            row.id,
            plan.chain,
            f"{row.id} is the best that fits, then {plan.chain[0]}",
            (row.input_price * read + row.output_price * written) / 1e12,
            (time.perf_counter() - started) * 1e3,
            (read, written),
        )


class LeastAgent:
    """Ask, call the tool, tell what it gave, ask again. It takes one call at a time, and checks nothing."""

    def __init__(self, ask: Ask, tools: Mapping[str, Callable[..., Awaitable[object]]], system: str) -> None:
        self._ask = ask
        self._tools = tools
        self._system = system

    async def run(self, task: str) -> str:
        """Work on a task to the end."""
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": self._system},
            {"role": "user", "content": task},
        ]
        while True:
            text, called = "", None
            async for chunk in self._ask(messages):
                if isinstance(chunk, Delta):
                    text += chunk.text
                elif isinstance(chunk, ToolDelta):
                    called = chunk
            if called is None:
                return text
            function = {"name": called.name, "arguments": called.arguments}
            asked = {"id": called.id, "type": "function", "function": function}
            messages.append({"role": "assistant", "content": text, "tool_calls": [asked]})
            result = await self._tools[called.name](**json.loads(called.arguments))
            messages.append({"role": "tool", "tool_call_id": called.id, "content": str(result)})


class LeastLimiter:
    """When each name was last admitted within a minute. It knows no weights, nor how long to wait."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._times: dict[str, deque[float]] = {}

    def admit(self, name: str) -> bool:
        """Let one in, if there is room."""
        now = time.monotonic()
        times = self._times.get(name)
        if times is None:
            times = self._times[name] = deque()
        while times and times[0] <= now - 60:
            times.popleft()
        if len(times) >= self._limit:
            return False
        times.append(now)
        return True


class BarePost(asyncio.Protocol):
    """The least that speaks HTTP: one connection, a request made beforehand, no header read but content-length."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._answer: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if self._answer is not None and found and len(body) >= content_length(bytes(head)):
            self._received.clear()
            self._answer.set_result(bytes(body))

    async def post(self, request: bytes) -> bytes:
        """Send a request; give the body of its answer."""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        self._transport.close()


async def bare_post(port: int) -> BarePost:
    """Connect to this machine."""
    _, bare = await asyncio.get_running_loop().create_connection(BarePost, "127.0.0.1", port)
    return bare


def request_bytes(path: str, body: bytes) -> bytes:
    """A request as it goes over the wire."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    )
    return head.encode() + b"\r\n" + body


def content_length(head: bytes) -> int:
    """What a head says of its body."""
    _, found, rest = head.lower().partition(b"content-length:")
    return int(rest.partition(b"\r\n")[0]) if found else 0
