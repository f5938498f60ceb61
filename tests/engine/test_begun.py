"""A coroutine that is begun at once, and awaited only if it had to wait."""

from __future__ import annotations

import anyio
import pytest

from routewright.loop import Begun
from routewright.testing import FakeClock


async def at_hand() -> str:
    return "here"


async def fails() -> str:
    raise ValueError("no")


@pytest.mark.anyio
async def test_what_is_at_hand_needs_no_wait() -> None:
    begun = Begun(at_hand())
    assert (begun.is_done, begun.result) == (True, "here")
    assert await begun == "here"


@pytest.mark.anyio
async def test_what_waits_goes_on_from_there() -> None:
    clock = FakeClock()
    steps: list[str] = []

    async def waits() -> str:
        steps.append("begun")
        await clock.sleep(1)
        await clock.sleep(1)
        return "later"

    begun = Begun(waits())
    assert (begun.is_done, steps) == (False, ["begun"])
    assert await begun == "later"
    assert (steps, clock.monotonic()) == (["begun"], 2.0)


@pytest.mark.anyio
async def test_an_error_comes_where_it_is_begun() -> None:
    with pytest.raises(ValueError, match="no"):
        Begun(fails())


@pytest.mark.anyio
async def test_a_deadline_ends_it_where_it_waits() -> None:
    clock, ended = FakeClock(), list[str]()

    async def waits() -> None:
        try:
            await clock.sleep(60)
        finally:
            ended.append("left")

    begun = Begun(waits())
    with clock.deadline(5.0) as limit:
        await begun
    assert (limit.expired, ended, clock.monotonic()) == (True, ["left"], 5.0)


@pytest.mark.anyio
async def test_it_may_swallow_what_is_thrown_at_it() -> None:
    event = anyio.Event()

    async def stubborn() -> str:
        try:
            await event.wait()
        except BaseException:
            return "went on"
        return "was set"

    begun = Begun(stubborn())
    event.set()
    assert await begun == "was set"
