"""Who shares a storage object shares its limits, in one process, too."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from routewright import Caller, Console, MemoryStorage, RateLimited, RateLimits, Router, Settings, SystemClock
from routewright.coordination import coordination_of
from routewright.testing import FakeClock
from routewright.wire import Account, Denied, PutAccount, Take, Taken

from .test_console import others_run

ACME = Account(name="acme", created_at="2026-11-01T00:00:00.000Z", limits=RateLimits(requests_per_min=3))


@pytest.mark.anyio
@pytest.mark.parametrize("clock", [FakeClock, SystemClock])
async def test_routers_of_one_storage_are_exact_together(clock: Any) -> None:
    storage, settings = MemoryStorage(), Settings(clock=clock())
    await storage.apply("acme", [PutAccount(ACME)])
    one, two = (Router.sandbox(storage=storage, settings=settings) for _ in range(2))
    for router in (one, two, one):
        await router.route("hi", caller=Caller("acme"))
    with pytest.raises(RateLimited):
        await two.route("hi", caller=Caller("acme"))
    await one.aclose()
    await two.aclose()


def test_other_storages_and_virtual_clocks_have_others() -> None:
    storage, system, fake = MemoryStorage(), SystemClock(), FakeClock()
    first = coordination_of(storage, system, 30.0)
    assert coordination_of(storage, SystemClock(), 30.0) is first
    others = [
        coordination_of(MemoryStorage(), system, 30.0),
        coordination_of(storage, fake, 30.0),
        coordination_of(storage, FakeClock(), 30.0),
    ]
    assert len({id(each) for each in (first, *others)}) == 4


@pytest.mark.anyio
async def test_routers_with_other_leases_are_exact_together_and_hear_a_console() -> None:
    storage, clock = MemoryStorage(), FakeClock()
    console = Console(storage, clock=clock)
    await console.create_account("acme", plan="pro", limits=ACME.limits)
    routers = [Router.sandbox(storage=storage, settings=Settings(clock=clock, lease_s=s)) for s in (30.0, 20.0, 10.0)]
    for router in routers:
        await router.route("hi", caller=Caller("acme"))
    with pytest.raises(RateLimited):
        await routers[0].route("hi", caller=Caller("acme"))
    await others_run(clock)  # they listen
    await console.change_account("acme", limits=RateLimits(requests_per_min=4))
    await others_run(clock)
    await routers[0].route("hi", caller=Caller("acme"))
    assert clock.monotonic() < 1.0
    for router in routers:
        await router.aclose()


@pytest.mark.anyio
@pytest.mark.parametrize("leases", [(10.0, 30.0), (30.0, 10.0)])
async def test_a_slot_is_held_for_the_longest_lease_of_all(leases: tuple[float, float]) -> None:
    storage, clock = MemoryStorage(), FakeClock()
    first, second = (coordination_of(storage, clock, lease_s) for lease_s in leases)
    take = [Take("a", "slots", 1)]
    assert isinstance(await first.take(take, "me"), Taken)
    await clock.advance(29.9)
    assert isinstance(await second.take(take, "another"), Denied)
    await clock.advance(0.1)
    assert isinstance(await second.take(take, "another"), Taken)
    await second.renew("another")
    await clock.advance(29.9)
    assert isinstance(await first.take(take, "me"), Denied)


def test_they_end_with_their_storage() -> None:
    storage = MemoryStorage()
    met = weakref.ref(coordination_of(storage, SystemClock(), 30.0))
    assert met() is not None
    del storage
    gc.collect()
    assert met() is None


class Nameless:
    """Equal to nothing, to which nothing can refer weakly."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]


def test_a_storage_of_which_nothing_can_be_kept_has_one_of_its_own() -> None:
    storage: Any = Nameless()
    assert coordination_of(storage, SystemClock(), 30.0) is not coordination_of(storage, SystemClock(), 30.0)
