"""Clients disconnect at any moment, over real sockets: upstream is closed, nothing leaks, and all is billed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from random import Random
from time import monotonic
from urllib.parse import urlsplit

import anyio
import msgspec
import pytest

from routewright import Catalogue, MemoryStorage, Model, RateLimits, Router
from routewright.backends.clock import SystemClock
from routewright.testing import ScriptedProvider
from routewright.testing.provider import Line, Pause, Turn
from routewright.wire import Delta, Finish, LedgerRows, Pricing, UpstreamCall, Usage

from .uvicorn_server import PATIENCE_S, Site

MODEL = Model(id="one/model", quality=0.5, pricing_per_1m=Pricing(input_usd=1.0, output_usd=2.0), context_window=9_000)
WORDS, GAP_S = 40, 0.005
AT_ONCE = 20


def slow(call: UpstreamCall) -> Turn:
    lines: list[Line] = []
    for _ in range(WORDS):
        lines += [Delta("word "), Pause(GAP_S)]
    return [*lines, Usage(3, WORDS), Finish("stop")]


def until(true: Callable[[], bool]) -> None:
    """Wait until it is so."""
    end, never = monotonic() + PATIENCE_S, threading.Event()
    while not true():
        assert monotonic() < end, "it never was"
        never.wait(0.01)


async def leave(url: str, key: str, after_s: float, stream: bool) -> bytes:
    """Ask, read for so long, and go. Gives what had come."""
    reader, writer = await asyncio.open_connection(urlsplit(url).hostname, urlsplit(url).port)
    body = msgspec.json.encode({"messages": [{"role": "user", "content": "Hello"}], "stream": stream})
    head = f"POST /v1/route HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    come = b""
    try:
        with anyio.move_on_after(after_s):
            while piece := await reader.read(4096):
                come += piece
                if b"route.completed" in come or (b'"finish_reason"' in come and not stream):
                    break
    finally:
        writer.transport.abort()  # as a process that dies does
    return come


@pytest.mark.parametrize("stream", [True, False])
def test_a_call_left_at_any_moment_holds_nothing_and_is_charged(full: bool, stream: bool) -> None:
    moments, chance = 200 if full else 15, Random(7)
    storage, provider = MemoryStorage(), ScriptedProvider(slow, models=[MODEL], clock=SystemClock())
    site = Site(Router(providers=[provider], catalogue=Catalogue(()), storage=storage), storage=storage)
    key = site.key(account_monthly_limit_usd=10.0, account_limits=RateLimits(concurrency=AT_ONCE))
    whole_s = WORDS * GAP_S * 1.5

    async def crowd(url: str, patience: list[float], at_once: int) -> list[bytes]:
        come: list[bytes] = []
        limit = anyio.CapacityLimiter(at_once)

        async def one(after_s: float) -> None:
            async with limit:
                come.append(await leave(url, key, after_s, stream))

        async with anyio.create_task_group() as group:
            for each in patience:
                group.start_soon(one, each)
        return come

    with site.served() as url:
        come = anyio.run(crowd, url, [chance.random() * whole_s for _ in range(moments)], AT_ONCE // 2)
        until(lambda: provider.open_calls == 0)
        until(lambda: site.console.blocking.standing("acme").month.reserved_nanos == 0)
        site.router.blocking.flush()
        traces = site.router.traces.as_account("acme").blocking.query(limit=200).data
        rows = anyio.run(partial(storage.scan, "acme", LedgerRows(), after=None, limit=10_000))
        spent = site.console.blocking.standing("acme").month.spent_nanos
        again = anyio.run(crowd, url, [PATIENCE_S] * AT_ONCE, AT_ONCE)
    left = [trace for trace in traces if trace.status == "cancelled"]
    assert {trace.status for trace in traces} <= {"cancelled", "completed"}
    assert len(left) > moments // 4
    assert all(b"HTTP/1.1 4" not in each and b"HTTP/1.1 5" not in each for each in come)
    assert spent == sum(row.charge_nanos for row in rows)
    assert sum(row.cost_nanos for row in rows) == sum(round(trace.cost_usd * 1e9) for trace in traces)
    assert all(trace.cost_usd > 0 for trace in left if trace.duration_ms > 3 * GAP_S * 1_000)
    assert all(each.startswith(b"HTTP/1.1 200") for each in again), "a slot is not free again"
