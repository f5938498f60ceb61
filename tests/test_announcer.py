"""Who hears of a change of an account."""

from __future__ import annotations

import asyncio
from math import inf

import pytest

from routewright import (
    Console,
    MemoryCoordination,
    MemoryStorage,
    Router,
    Settings,
    StorageUnavailable,
)
from routewright.coordination import ANNOUNCE_S
from routewright.testing import FakeClock
from routewright.wire import Notice

from .offices import bearer, fake_clock

pytestmark = pytest.mark.anyio
HIDDEN = "redis://:password@host"


@pytest.fixture
def clock() -> FakeClock:
    return fake_clock()


async def test_a_change_is_told_to_all_who_share_the_storage_object(clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    listening = Router.sandbox(storage=storage, settings=Settings(clock=clock)).coordination
    last = (await listening.hear(None)).last
    async with Console(storage, clock=clock) as console:
        await console.create_account("acme")
    assert (await listening.hear(last)).notices == (Notice("account", "acme"),)


async def test_who_was_given_a_coordination_tells_it_alone_and_leaves_it_open(clock: FakeClock) -> None:
    class Given(MemoryCoordination):
        closed = 0

        async def aclose(self) -> None:
            self.closed += 1

    given, storage = Given(clock=clock), MemoryStorage(clock=clock)
    other = Router.sandbox(storage=storage, settings=Settings(clock=clock)).coordination
    last, others = (await given.hear(None)).last, (await other.hear(None)).last
    async with Console(storage, coordination=given, clock=clock) as console:
        await console.create_account("acme")
    assert (await given.hear(last)).notices == (Notice("account", "acme"),)
    assert given.closed == 0
    assert (await other.hear(None)).last == others


class Odd(MemoryCoordination):
    """Its announcing fails, or never ends."""

    def __init__(self, clock: FakeClock, fault: BaseException | None) -> None:
        super().__init__(clock=clock)
        self._waits, self._fault = clock, fault

    async def announce(self, notice: Notice) -> None:
        if self._fault is not None:
            raise self._fault
        await self._waits.sleep(inf)


ODD = [ConnectionError(HIDDEN), StorageUnavailable(HIDDEN), asyncio.CancelledError(HIDDEN), KeyError(HIDDEN), None]


@pytest.mark.parametrize("fault", ODD, ids=lambda fault: type(fault).__name__)
async def test_a_new_key_is_shown_whatever_becomes_of_announcing_it(
    fault: BaseException | None, caplog: pytest.LogCaptureFixture
) -> None:
    storage, clock = MemoryStorage(), FakeClock()
    console = Console(storage, coordination=Odd(clock, fault), secret="s" * 40, clock=clock)
    await console.create_account("acme")
    caplog.clear()
    began = clock.monotonic()
    new = await console.create_key("acme", name="x", environment="sandbox")
    assert clock.monotonic() - began == (ANNOUNCE_S if fault is None else 0)
    assert (await console.authenticate(bearer(new), "sandbox")).key_id == new.key.id
    why = "no answer within 0.25 s" if fault is None else type(fault).__name__
    assert caplog.messages == [f"a change was not announced ({why}): it holds within 2 s"]


async def test_one_who_is_cancelled_while_he_tells_is_cancelled() -> None:
    clock = FakeClock()
    console = Console(MemoryStorage(), coordination=Odd(clock, None), clock=clock)
    with clock.deadline(clock.monotonic() + ANNOUNCE_S / 2) as deadline:
        await console.create_account("acme")
    assert deadline.expired
    assert (await console.account("acme")).name == "acme"
