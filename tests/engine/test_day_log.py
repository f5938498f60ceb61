"""The log of a bad day. ``tests/data/golden/day.log`` is all that an operator sees of it; ``DAY`` is what happened."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec import json

from routewright import MemoryStorage, Model, OpenAIProvider, Policy, Pricing, ProviderFault, Router, Settings
from routewright.errors import RouterError, StorageUnavailable
from routewright.protocols import Facts
from routewright.testing import FakeClock, ScriptedProvider
from routewright.wire import (
    Caller,
    Delta,
    Finish,
    Heard,
    PolicyWeights,
    PutTrace,
    Taken,
    Takes,
    UpstreamCall,
    Usage,
)

from .account_router import account
from .faulty_storage import Behind
from .scripted_router import on_one_loop, said
from .test_discovery import Box

pytestmark = [pytest.mark.anyio, on_one_loop]
GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "day.log"
NIGHT = "".join(line for line in GOLDEN.read_text().splitlines(keepends=True) if line < "04:30")
MOST_LINES = 40
KEYS = ["sk-canary-one", "sk-canary-two"]

DAY = {
    "01:00": ("pair", "refuse one key of two"),
    "02:00": ("pair", "refuse both keys"),
    "03:30": ("pair", "accept"),
    "04:00": ("solo", "refuse"),
    "07:00": ("solo", "accept"),
    "08:00": ("own", "auth"),
    "08:45": ("own", ""),
    "09:00": ("flaky", "flap"),
    "10:00": ("flaky", ""),
    "13:00": ("flaky", "connect"),
    "13:50": ("flaky", ""),
    "14:00": ("redis", "away"),
    "14:30": ("redis", ""),
    "15:00": ("disk", "full"),
    "15:10": ("disk", ""),
    "17:00": ("box", "away"),
    "17:15": ("box", ""),
    "19:00": ("flaky", "bug"),
    "19:40": ("flaky", ""),
    "20:00": ("flaky", "rate_limited"),
    "20:20": ("flaky", ""),
}
FAULTS = {
    "connect": "10.0.0.7 refused the connection",
    "rate_limited": "429",
    "auth": "no\n12:00 forged line sk-canary",
}


class Vendor:
    """An HTTP transport that refuses keys."""

    def __init__(self) -> None:
        self.refused: list[str] = []

    @asynccontextmanager
    async def request(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes | None = None
    ) -> AsyncIterator[Any]:
        yield Reply(401 if headers["authorization"].removeprefix("Bearer ") in self.refused else 200)

    async def aclose(self) -> None:
        """Nothing is open."""


class Reply:
    headers = {"content-type": "application/json"}  # noqa: RUF012

    def __init__(self, status: int) -> None:
        self.status = status

    async def chunks(self) -> AsyncIterator[bytes]:
        choice = {"index": 0, "message": {"role": "assistant", "content": "Blue."}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 5}
        error = {"error": {"message": f"Incorrect API key provided: {KEYS[0]}", "code": "invalid_api_key"}}
        yield json.encode(error if self.status != 200 else {"choices": [choice], "usage": usage})

    async def read(self, limit: int) -> bytes:
        return b"".join([piece async for piece in self.chunks()])[:limit]


class Redis:
    """A coordination that can be away."""

    processes = 4
    away = False

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    def __repr__(self) -> str:
        return "Redis('redis://cache:6379')"

    async def announce(self, notice: object) -> None:
        """Nobody else listens."""

    async def hear(self, after: int | None) -> Heard:
        await self._clock.sleep(3600.0)
        return Heard((), 0)

    async def take(self, takes: Takes) -> Taken:
        if self.away:
            raise StorageUnavailable("refused")
        return Taken(takes, (), ())

    def end(self, taken: Taken, tokens: int | None, *, void: bool = False) -> None:
        """Nothing is held."""

    async def aclose(self) -> None:
        """Nothing is open."""


class Town:
    """A Router with every part that can fail, and what fails now."""

    def __init__(self) -> None:
        self.clock = clock = FakeClock()
        self.vendors = {"pair": Vendor(), "solo": Vendor()}
        self.failing: set[str] = set()
        self.faults = dict.fromkeys(["own", "flaky"], "")
        self.box = Box([model("box")])
        self.storage = Behind(MemoryStorage(clock=clock), clock)
        self.redis = Redis(clock)
        keys = {"pair": KEYS, "solo": "sk-canary-one"}
        urls = {name: f"https://{name}.example/v1" for name in keys}
        providers: list[Any] = [
            *(
                OpenAIProvider(
                    name=name,
                    api_key=keys[name],
                    base_url=urls[name],
                    transport=vendor,
                    models=[model(name)],
                    clock=clock,
                )
                for name, vendor in self.vendors.items()
            ),
            *(
                ScriptedProvider(self.answer, name=name, models=[model(name)], clock=clock)
                for name in (*self.faults, "spare")
            ),
            self.box,
        ]
        policies = [
            Policy(
                name=name,
                models=[*{f"{name}/best", "spare/best"}],
                weights=PolicyWeights(quality=100, cost=0, latency=0, stability=0),
            )
            for name in ("pair", "solo", "own", "flaky", "spare")
        ]
        settings = Settings(clock=clock, rng=Random(7))
        self.router = Router(
            providers=providers, policies=policies, storage=self.storage, coordination=self.redis, settings=settings
        )

    def answer(self, call: UpstreamCall) -> Any:
        fault = self.faults.get(call.model.id.partition("/")[0], "")
        if fault == "bug":
            raise KeyError("sk-canary")
        if fault == "flap":
            fault = "connect" if self.clock.time() % 240 < 120 else ""
        return [ProviderFault(fault, FAULTS[fault])] if fault else said(Delta("Blue."), Usage(10, 5), Finish("stop"))

    def happen(self, part: str, state: str) -> None:
        (self.failing.discard if state in ("", "accept") else self.failing.add)(part)
        match part:
            case "pair" | "solo":
                self.vendors[part].refused = KEYS[: {"accept": 0, "refuse one key of two": 1}.get(state, 2)]
            case "redis":
                self.redis.away = state == "away"
            case "disk":
                self.storage.before = fill if state else lambda thing: None
            case "box":
                self.box.has = ProviderFault("connect", "box is away: start it") if state else [model("box")]
            case _:
                self.faults[part] = state

    async def call(self, name: str, caller: Caller) -> None:
        try:
            await self.router.route("hi", policy_id=name, caller=caller, fallback={"maxRetries": 0})
        except RouterError as error:
            raise AssertionError(f"{name} at {self.clock.monotonic() / 3600}") from error

    async def live(self, hours: float = 24.0) -> None:
        start = self.clock.time()
        day = {start + 3600 * int(at[:2]) + 60 * int(at[3:]): event for at, event in DAY.items()}
        await self.storage.kept.apply("acme", [account(plan="team")])
        async with self.router:
            while self.clock.time() < start + 3_600 * hours:
                if (event := day.get(self.clock.time())) is not None:
                    self.happen(*event)
                for name in self.failing & {"pair", "solo", "own", "flaky"} or ("pair", "solo", "own", "flaky"):
                    await self.call(name, Caller())
                await self.call("spare", Caller("acme"))
                is_quick = not self.failing.isdisjoint(self.faults)
                await self.clock.sleep(20.0 if is_quick else 60.0 if self.failing else 300.0)


def fill(thing: object) -> None:
    if isinstance(thing, PutTrace | Facts):
        raise StorageUnavailable("traces.db: database or disk is full")


def model(name: str) -> Model:
    quality = 0.5 if name == "spare" else 0.9
    return Model(id=f"{name}/best", quality=quality, pricing_per_1m=Pricing(1.0, 4.0), context_window=100_000)


async def test_the_log_of_a_bad_day_says_in_forty_lines_what_happened_when(full: bool) -> None:
    town, lines = Town(), list[str]()
    handler = logging.Handler()

    def emit(record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            at = datetime.fromtimestamp(town.clock.time(), UTC)
            lines.append(f"{at:%H:%M} {record.levelname} {record.getMessage()}\n")

    handler.emit = emit  # type: ignore[method-assign]
    logger = logging.getLogger("routewright")
    logger.addHandler(handler)
    try:
        await town.live(24.0 if full else 4.5)
    finally:
        logger.removeHandler(handler)
    text = "".join(lines)
    if full and os.environ.get("RECORD_DAY"):
        GOLDEN.write_text(text)
    assert "canary" not in text
    assert text.count("\n") == len(lines) <= MOST_LINES
    assert text == (GOLDEN.read_text() if full else NIGHT)
