"""``Router.status``: what is wrong with which part, without secrets, network or loading anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from routewright import Caller, Console, MemoryStorage, ProviderFault, Router, RouterError, Settings, SqliteStorage
from routewright._core.outage import Outage
from routewright._setup.status import MOST_FAULTS, make_status
from routewright.errors import NotFound, StorageUnavailable
from routewright.protocols import Storage
from routewright.testing import FakeClock
from routewright.wire import Delta, Finish, LimitsStatus, RateLimits, RouterStatus, UpstreamCall, Usage
from tests.engine.scripted_router import House, said
from tests.engine.test_admission import TracesAlone
from tests.engine.test_day_log import Redis
from tests.test_webhooks import House as WebhookHouse

pytestmark = pytest.mark.anyio


def answer(call: UpstreamCall) -> Any:
    return said(Delta("Blue."), Usage(10, 5), Finish("stop"))


def failing(call: UpstreamCall) -> Any:
    return ProviderFault("server")


async def ask(router: Router, **options: Any) -> None:
    await router.route("hi", **{"goal": "quality", "fallback": {"maxRetries": 0}, **options})


async def test_a_refused_key_is_in_the_status() -> None:
    faults = [ProviderFault("auth", status=401)]
    house = House(lambda call: faults[0] if faults else answer(call), answer)
    for _ in range(3):
        await ask(house.router)
    status = house.router.status()
    good, spare = status.providers
    assert (good.name, good.models, good.keys_refused, good.circuits_open) == ("good", 1, 1, 1)
    assert good.last_fault is not None
    assert (good.last_fault.model, good.last_fault.kind, good.last_fault.at) == ("good/one", "auth", status.at)
    assert (spare.keys_refused, spare.circuits_open, spare.last_fault) == (0, 0, None)
    assert [(circuit.model, circuit.fault) for circuit in status.circuits] == [("good/one", "auth")]
    assert 0 < status.circuits[0].probe_in_s <= 15
    assert status.rescued == {"good": {"auth": 1}}
    assert status.problems[0] == "good: the vendor refused its key"
    assert "good: 1 of 1 models are not called; the last fault was auth" in status.problems
    assert RouterStatus(**status.to_dict()).to_json() == status.to_json()
    faults.clear()
    await house.clock.advance(20.0)
    await ask(house.router)
    after = house.router.status()
    assert (after.problems, after.circuits, after.providers[0].keys_refused) == ([], [], 0)
    assert [(fault.part, fault.failing) for fault in after.faults] == [("circuit of good", False)]


async def test_parts_that_fail_come_before_all_that_work_again() -> None:
    log = House(answer).router._parts._log
    outages = {name: Outage(print, "works") for name in ("old", *map(str, range(MOST_FAULTS)))}
    for since, (name, outage) in enumerate(outages.items()):
        outage.begin(float(since), "fails")
        if name != "old":
            outage.end(float(since))
    limits = LimitsStatus("process", None)
    status = make_status(log, [], limits, House(answer).router._parts.hooks, outages, {})
    assert [fault.part for fault in status.faults[:2]] == ["old", str(MOST_FAULTS - 1)]
    assert (len(status.faults), status.problems) == (MOST_FAULTS, ["old: fails"])


def test_the_size_is_that_of_the_files_of_the_store(tmp_path: Path) -> None:
    for end in ("", "-wal", "-shm", "-journal", "-keep", ".secret", "2", ".bak"):
        (tmp_path / f"traces.db{end}").write_bytes(b"12345678")
    with Router(storage=SqliteStorage(tmp_path / "traces.db")).blocking as router:
        assert router.status().storage.database_bytes == 5 * 8


def test_a_status_loads_nothing_and_shows_no_key(tmp_path: Path) -> None:
    router = Router(storage=SqliteStorage(tmp_path / "traces.db"))
    status = router.blocking.status()
    assert (status.providers, status.circuits, status.faults, status.problems) == ([], [], [], [])
    assert not [*tmp_path.iterdir()]
    router.blocking.close()
    router.count_refusal(NotFound("nothing is there"))
    assert (router.status().storage.kind, router.status().refusals) == ("SqliteStorage", {"not_found": 1})


@pytest.mark.parametrize(
    ("storage", "place"),
    [
        (lambda folder: MemoryStorage(), "process"),
        (lambda folder: SqliteStorage(folder / "traces.db"), "storage"),
        (lambda folder: TracesAlone(), "none"),
    ],
)
async def test_a_status_says_where_limits_are_counted(
    storage: Callable[[Path], Storage], place: str, tmp_path: Path
) -> None:
    async with Router.sandbox(storage=storage(tmp_path)) as router:
        await router.route("hi")
        assert (router.status().limits.place, router.status().limits.share) == (place, None)


async def test_while_the_coordination_is_away_a_status_names_the_share_of_the_limits() -> None:
    clock = FakeClock()
    storage, redis = MemoryStorage(clock=clock), Redis(clock)
    await Console(storage, clock=clock).create_account("acme", plan="team")
    async with Router.sandbox(storage=storage, coordination=redis, settings=Settings(clock=clock)) as router:
        for away, share in ((False, None), (True, "1/4"), (False, None)):
            redis.away = away
            await clock.advance(10.0)
            await router.route("hi", caller=Caller("acme"))
            status = router.status()
            assert (status.limits.place, status.limits.share, bool(status.problems)) == ("coordination", share, away)
        assert [(fault.part, fault.failing) for fault in status.faults] == [("coordination", False)]


async def test_a_storage_that_fails_is_in_the_status_until_it_works(tmp_path: Path) -> None:
    clock = FakeClock()
    storage = SqliteStorage(tmp_path / "traces.db", clock=clock)
    async with Router.sandbox(storage=storage, settings=Settings(clock=clock)) as router:
        await router.route("hi")
        await router.flush()
        status = router.status()
        assert (status.storage.kind, status.storage.failing) == ("SqliteStorage", False)
        assert (status.storage.database_bytes or 0) >= (tmp_path / "traces.db").stat().st_size
        assert (status.storage.disk_free_bytes or 0) > 0
        apply = storage.apply

        async def fail(*args: Any) -> Any:
            raise StorageUnavailable("the disk is full")

        storage.apply = fail  # type: ignore[assignment, method-assign]
        await router.route("hi")
        with pytest.raises(StorageUnavailable):
            await router.flush()
        (fault,) = router.status().faults
        assert (fault.part, fault.failing, fault.at) == ("storage", True, router.status().at)
        assert "the disk is full" in fault.text
        assert router.status().problems == [f"storage: {fault.text}"]
        storage.apply = apply  # type: ignore[method-assign]
        await router.flush()
        (fault,) = router.status().faults
        assert (fault.failing, router.status().problems, router.status().storage.failing) == (False, [], False)


DOORS: dict[str, Callable[[Router], Any]] = {
    "route": lambda router: router.route("hi", caller=Caller("acme")),
    "stream": lambda router: router.stream("hi", caller=Caller("acme")).start(),
    "prepared": lambda router: router.prepare("hi", caller=Caller("acme")).run(),
    "prepared stream": lambda router: router.prepare("hi", caller=Caller("acme")).stream().start(),
    "decide": lambda router: router.prepare("hi", caller=Caller("acme")).decide(),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("terms", "code"),
    [
        ({"limits": RateLimits(requests_per_min=0)}, "RATE_LIMITED"),
        ({"prepaid": True}, "insufficient_balance"),
        ({"monthly_limit_usd": 1e-9}, "quota_exhausted"),
    ],
)
async def test_refusals_are_counted_by_code_at_every_door(door: str, terms: dict[str, Any], code: str) -> None:
    house = WebhookHouse(MemoryStorage(clock=(clock := FakeClock())), clock)
    await house.console.create_account("acme", **{"plan": "team", **terms})
    if door == "decide" and code != "RATE_LIMITED":
        pytest.skip("it costs nothing")
    for _ in range(2):
        with pytest.raises(RouterError):
            await DOORS[door](house.router)
    assert house.router.status().refusals == {code: 2}


async def test_a_call_whose_attempts_failed_is_not_refused() -> None:
    house = House(failing, failing)
    with pytest.raises(RouterError):
        await ask(house.router)
    with pytest.raises(RouterError):
        await ask(house.router, budget={"maxCostUsd": 1e-9})
    assert house.router.status().refusals == {"router.budget_exceeded": 1}


async def test_deliveries_are_counted_by_state() -> None:
    house = WebhookHouse(MemoryStorage(clock=(clock := FakeClock())), clock)
    await house.register()
    house.receiver.statuses = [500, 200, 400]
    for _ in range(2):
        await house.router.route("stumble")
        await house.settle()
        await house.clock.advance(100.0)
    status = house.router.status()
    assert status.deliveries == {"waiting": 1, "delivered": 1, "rejected": 1}
    (fault,) = status.faults
    assert (fault.part.partition(" whe_")[0], fault.failing) == ("webhook endpoint", True)
