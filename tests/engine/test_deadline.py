"""A call ends exactly at its deadline, whatever providers do, and the caller may cancel at any time."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import anyio
import pytest

from routewright import MemoryStorage, ProviderFault, RouterError
from routewright.errors import ContentRefused, RouterTimeoutError, UpstreamFailed
from routewright.testing import Pause
from routewright.testing.provider import Line, Turn
from routewright.wire import Delta, FaultKind, Finish, UpstreamCall, Usage

from .chaos_matrix import HEAVY, NAMES, Pair
from .scripted_router import House, said, traces_in

pytestmark = pytest.mark.anyio

LIGHT = sorted(set(NAMES) - HEAVY)
KINDS = [kind for kind in FaultKind if kind not in (FaultKind.REFUSED, FaultKind.BLOCKED)]


def random_turn(chance: Random) -> Turn:
    """An answer of pauses and pieces that may break off anywhere."""
    lines: list[Line] = []
    for _ in range(chance.randint(0, 4)):
        lines += [Pause(chance.choice([0.0, 0.1, 2.0, 30.0])), Delta("word ")]
    lines.append(Pause(chance.choice([0.0, 1.0, 20.0])))
    ends: list[list[Line]] = [
        [Usage(10, 5), Finish("stop")],
        [],
        [ProviderFault(chance.choice(KINDS), retry_after=chance.choice([None, 0.0, 3.0, 1e9]))],
    ]
    return said(*lines, *chance.choice(ends))


async def call(seed: int) -> tuple[float, float, RouterError | None, House]:
    chance = Random(seed)
    timeout_ms = chance.choice([1, 100, 5_000, 20_000, 60_000])

    def answer(_: UpstreamCall) -> Turn:
        return random_turn(chance)

    house = House(answer, answer)
    options = {"timeout_ms": timeout_ms, "fallback": {"maxRetries": chance.randint(0, 5)}}
    failed: RouterError | None = None
    try:
        if chance.random() < 0.5:
            await house.router.route("hi", goal="quality", **options)  # type: ignore[call-overload]
        else:
            async with house.router.stream("hi", goal="quality", **options) as stream:  # type: ignore[arg-type]
                async for _ in stream:
                    pass
            _ = stream.result
    except RouterError as error:
        failed = error
    return timeout_ms / 1000, house.clock.monotonic(), failed, house


async def test_every_call_ends_by_its_deadline_and_says_why(full: bool) -> None:
    for seed in range(10_000 if full else 50):
        timeout_s, took_s, failed, house = await call(seed)
        assert took_s <= timeout_s, seed
        assert house.left_open == 0, seed
        if isinstance(failed, RouterTimeoutError):
            assert took_s == timeout_s, seed
        elif failed is not None:
            assert isinstance(failed, UpstreamFailed), seed


async def call_over_the_wire(seed: int) -> tuple[float, float, RouterError | None, Pair]:
    """A call whose providers fail on the wire as chance has it."""
    chance = Random(seed)

    def faults() -> Iterator[str | None]:
        while True:
            yield chance.choice(LIGHT) if chance.random() < 0.8 else None

    timeout_ms, pair, failed = chance.choice([1, 100, 5_000, 20_000, 60_000]), Pair(faults(), faults()), None
    options: dict[str, Any] = {"timeout_ms": timeout_ms, "fallback": {"maxRetries": chance.randint(0, 5)}}
    try:
        if chance.random() < 0.5:
            await pair.router.route("hi", goal="quality", **options)
        else:
            async with pair.router.stream("hi", goal="quality", **options) as stream:
                async for _ in stream:
                    pass
            _ = stream.result
    except RouterError as error:
        failed = error
    return timeout_ms / 1000, pair.clock.monotonic(), failed, pair


async def test_over_the_wire_every_call_ends_by_its_deadline_and_says_why(full: bool) -> None:
    for seed in range(10_000 if full else 50):
        timeout_s, took_s, failed, pair = await call_over_the_wire(seed)
        assert took_s <= timeout_s + 1e-9, seed
        assert pair.left_open == 0, seed
        if isinstance(failed, RouterTimeoutError):
            assert took_s == pytest.approx(timeout_s), seed
        elif failed is not None:
            assert isinstance(failed, UpstreamFailed | ContentRefused), seed


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_caller_may_leave_at_any_moment_and_nothing_stays_open(streamed: bool, full: bool) -> None:
    slow = said(Pause(1.0), Delta("a"), Pause(1.0), ProviderFault("server", retry_after=1.0))
    fine = said(Pause(1.0), Delta("b"), Pause(1.0), Usage(10, 2), Pause(1.0), Finish("stop"), Pause(0.3))
    whole_s = 12.3
    for step in range(0, int(whole_s) * 4, 1 if full else 5):
        storage = MemoryStorage()
        house = House([slow, slow], [fine], storage=storage)

        async def ask(house: House = house) -> None:
            if not streamed:
                await house.router.route("hi", goal="quality")
                return
            async with house.router.stream("hi", goal="quality") as stream:
                async for _ in stream:
                    pass

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await house.clock.advance(0.1 + step * 0.25)
            group.cancel_scope.cancel()
        assert house.left_open == 0, step
        (trace,) = await traces_in(storage)
        assert trace.status in ("cancelled", "completed"), step
        billed = streamed or trace.status == "completed"
        assert trace.charged_usd == (trace.cost_usd if billed else 0.0), step
