"""Servers are asked for their models before the first decision, once for all waiting calls, and then periodically."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress

import anyio
import anyio.to_thread
import pytest

from routewright import Caller, Catalogue, Model, Policy, Pricing, Router, Settings, ValidationFailed
from routewright.errors import NoProviders, ProviderFault
from routewright.testing import FakeClock, ScriptedProvider

pytestmark = pytest.mark.anyio

SMALL = Model(id="box/small", quality=0.4, context_window=8_192, pricing_per_1m=Pricing(0.0, 0.0))
LARGE = Model(id="box/large", quality=0.9, context_window=32_768, pricing_per_1m=Pricing(0.0, 0.0))
CLOUD = Model(id="cloud/one", quality=0.5, pricing_per_1m=Pricing(1.0, 4.0))
REFUSED = ProviderFault("connect", "box at http://10.0.0.7:1/v1 is away: start it", public="box has no models now")


class Box(ScriptedProvider):
    """A server whose models are what ``has`` says, or that cannot be asked while it is a fault."""

    discovers = True

    def __init__(self, has: Sequence[Model] | Exception, name: str = "box") -> None:
        super().__init__(lambda call: f"I am {call.model.id}", name=name)
        self.has = has
        self.asked = 0
        self.gate = threading.Event()
        self.gate.set()

    async def discover(self) -> None:
        self.asked += 1
        if not self.gate.is_set():  # as a server that is slow: only with the real clock
            await anyio.to_thread.run_sync(self.gate.wait, abandon_on_cancel=True)
        if isinstance(self.has, Exception):
            raise self.has
        self._models = tuple(self.has)


def names(router: Router) -> list[str]:
    return [model.id for model in router.models() if model.availability.status == "available"]


def cloud() -> ScriptedProvider:
    return ScriptedProvider(lambda call: "I am cloud", name="cloud", models=[CLOUD])


def test_a_model_listed_with_a_price_per_token_is_left_out_and_named(caplog: pytest.LogCaptureFixture) -> None:
    dear = Model(id="box/dear", quality=0.9, pricing_per_1m=Pricing(2.5e-06, 1e-05))
    router = Router(providers=[Box([SMALL, dear])])
    assert router.decide("hi").model == "box/small"
    assert names(router) == ["box/small"]
    assert caplog.messages == ["box lists prices that are too low to be per million tokens; left out: 'box/dear'"]
    router.blocking.close()


def test_nothing_is_asked_before_the_first_use() -> None:
    box = Box([SMALL])
    router = Router(providers=[box])
    assert box.asked == 0
    assert router.decide("hi").model == "box/small"
    assert box.asked == 1
    router.blocking.close()


async def test_plain_functions_in_a_loop_use_the_known_models_without_blocking() -> None:
    box = Box([SMALL])
    box.gate.clear()  # whoever blocked the loop would never get to open it
    router = Router(providers=[box])
    assert names(router) == []
    stream, prepared = router.stream("hi"), router.prepare("hi")
    with pytest.raises(NoProviders, match=r"^box has not listed its models yet$"):
        router.decide("hi")
    answers = list[str]()

    async def route() -> None:
        answers.append((await router.route("hi")).output)

    async def read() -> None:
        answers.append("".join([text async for text in stream.text()]))

    async def decide() -> None:
        answers.append((await prepared.decide()).model)

    async with anyio.create_task_group() as group:
        for waits in (route, read, decide):
            group.start_soon(waits)
        await anyio.wait_all_tasks_blocked()
        assert answers == []
        box.gate.set()
    assert sorted(answers) == ["I am box/small", "I am box/small", "box/small"]
    assert router.decide("hi").model == prepared.decision.model == "box/small"
    assert box.asked == 1
    await router.aclose()


async def test_a_policy_that_names_a_model_of_a_server_waits_for_it() -> None:
    router = Router(providers=[Box([SMALL])], policies=[Policy(name="own", models=["box/small"])])
    assert router.decide("hi", policy_id="own").model == "box/small"
    await router.aclose()


async def test_listing_models_asks_the_servers() -> None:
    async with Router(providers=[Box([SMALL, LARGE])]) as router:
        assert names(router) == ["box/small", "box/large"]


@pytest.mark.parametrize("clock", [FakeClock, None])
async def test_every_entry_point_waits_for_the_servers(clock: Callable[[], FakeClock] | None) -> None:
    settings = Settings() if clock is None else Settings(clock=clock())
    router = Router(providers=[Box([SMALL])], settings=settings)
    assert (await router.route("hi")).output == "I am box/small"
    await router.aclose()
    router = Router(providers=[Box([SMALL])], settings=settings)
    [answer] = await router.route_many(["hi"])
    assert not isinstance(answer, Exception)
    assert answer.output == "I am box/small"
    await router.aclose()
    async with Router(providers=[Box([SMALL])], settings=settings) as router, router.stream("hi") as stream:
        assert "".join([text async for text in stream.text()]) == "I am box/small"


async def test_first_calls_share_one_discovery() -> None:
    box = Box([SMALL])
    async with Router(providers=[box]) as router, anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(router.route, "hi")
    assert box.asked == 1
    router = Router(providers=[box := Box([SMALL])])
    threads = [threading.Thread(target=router.decide, args=["hi"]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await anyio.to_thread.run_sync(thread.join)
    assert box.asked == 1
    await router.aclose()


async def test_a_call_waits_a_short_time_for_a_slow_server_and_others_do_not_wait_again() -> None:
    box = Box([SMALL])
    box.gate.clear()
    router = Router(providers=[box, cloud()])
    assert (await router.route("hi")).output == "I am cloud"  # whoever waited for the answer would wait for ever
    assert router.decide("hi").model == "cloud/one"
    box.gate.set()
    while "box/small" not in names(router):  # noqa: ASYNC110
        await anyio.sleep(0.005)
    assert (await router.route("hi", models=["box/small"])).output == "I am box/small"
    assert box.asked == 1
    await router.aclose()


async def test_an_unavailable_server_is_named_with_a_hint_and_found_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, box = FakeClock(autojump=False), Box(REFUSED)
    router = Router(providers=[box], settings=Settings(clock=clock))
    for _ in range(3):  # nobody asks again for a call
        with pytest.raises(NoProviders, match=r"box at http://10\.0\.0\.7:1/v1 is away: start it") as caught:
            await router.route("hi")
    assert caught.value.outside is not None
    assert "10.0.0.7" not in str(caught.value.outside)
    with pytest.raises(NoProviders, match=r"^box has no models now$"):
        await router.route("hi", caller=Caller(key_id="own"))
    assert box.asked == 1
    await clock.advance(11)
    assert box.asked == 3
    assert [record.levelno for record in caplog.records if "is away" in record.message] == [logging.WARNING]
    box.has = [SMALL]
    await clock.advance(5)
    assert (await router.route("hi")).output == "I am box/small"
    await router.aclose()


async def test_models_come_and_go_and_stay_while_a_server_is_away() -> None:
    clock, box = FakeClock(autojump=False), Box([SMALL])
    async with Router(providers=[box, cloud()], settings=Settings(clock=clock)) as router:
        for has, found in (
            ([SMALL, LARGE], ["box/small", "box/large", "cloud/one"]),
            ([LARGE], ["box/large", "cloud/one"]),
            (REFUSED, ["box/large", "cloud/one"]),
            ([LARGE], ["box/large", "cloud/one"]),
        ):
            box.has = has
            await clock.advance(31)
            assert sorted(names(router)) == sorted(found)


async def test_health_of_other_models_is_kept() -> None:
    clock, box = FakeClock(autojump=False), Box([SMALL])
    async with Router(providers=[box, cloud()], settings=Settings(clock=clock)) as router:
        for _ in range(8):
            await router.route("hi", models=["cloud/one"])
        await clock.advance(1)
        before = router.decide("hi", models=["cloud/one"]).candidates[0]
        box.has = [SMALL, LARGE]
        await clock.advance(31)
        after = router.decide("hi", models=["cloud/one"]).candidates[0]
        assert after.stability == pytest.approx(before.stability, abs=0.01)
        assert before.stability != Router(providers=[cloud()]).decide("hi").candidates[0].stability


async def test_policies_apply_to_the_present_models() -> None:
    clock, box = FakeClock(autojump=False), Box([SMALL])
    policies = [Policy(name="own", models=["provider:box"], goal="quality")]
    async with Router(providers=[box, cloud()], policies=policies, settings=Settings(clock=clock)) as router:
        assert router.decide("hi", policy_id="own").model == "box/small"
        box.has = [SMALL, LARGE]
        await clock.advance(31)
        assert router.decide("hi", policy_id="own").model == "box/large"


async def test_models_that_a_policy_names_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    clock, box = FakeClock(autojump=False), Box([SMALL])
    policies = [Policy(name="own", models=["box/small"])]
    async with Router(providers=[box, cloud()], policies=policies, settings=Settings(clock=clock)) as router:
        box.has = [LARGE]
        await clock.advance(31)
        assert router.decide("hi", policy_id="own").model == "box/small"
        await clock.advance(3600)
        assert caplog.text.count("are not used") == 1
        box.has = [SMALL, LARGE]
        await clock.advance(31)
        assert caplog.text.count("the models that servers list are used again") == 1


async def test_the_catalogue_overrides_a_servers_list() -> None:
    rows = [{"id": "box/small", "quality": 0.77, "pricing_per_1m": Pricing(0.05, 0.05), "tags": ["own"]}]
    async with Router(providers=[Box([SMALL])], catalogue=Catalogue().overlaid(rows)) as router:
        [small] = [model for model in router.models() if model.id == "box/small"]
        assert (small.quality, small.pricing_per_1m, small.tags) == (0.77, Pricing(0.05, 0.05), ("own",))
        assert small.context_window == 8_192


async def test_an_exception_in_discover_is_reported_without_its_message() -> None:
    async with Router(providers=[Box(ZeroDivisionError("sk-canary"))]) as router:
        with pytest.raises(NoProviders, match=r"discover\(\) of box failed: ZeroDivisionError in test_di") as told:
            await router.route("hi")
        assert "canary" not in str(told.value)


async def test_a_router_that_was_used_closes_what_it_asked() -> None:
    router = Router(providers=[box := Box(REFUSED)])
    with suppress(NoProviders):
        await router.route("hi")
    await router.aclose()
    assert box.closed >= 1


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_dropped_router_ends() -> None:
    router = Router(providers=[Box([SMALL])])
    await router.route("hi")
    dropped = weakref.ref(router._parts)
    del router
    while dropped() is not None:  # a thread may be about to let go of it
        await anyio.sleep(0.005)
        gc.collect()


async def test_a_model_of_an_unavailable_server_is_reported_as_such() -> None:
    async with Router(providers=[Box(REFUSED), cloud()]) as router:
        with pytest.raises(ValidationFailed, match=r"unknown model 'box/small'; box has no models now$"):
            await router.route("hi", models=["box/small"])
        with pytest.raises(ValidationFailed, match="unknown model 'cloud/on'; did you mean 'cloud/one'"):
            await router.route("hi", models=["cloud/on"])


async def test_an_unknown_model_of_a_server_is_a_validation_error() -> None:
    async with Router(providers=[Box([SMALL])]) as router:
        with pytest.raises(ValidationFailed, match="unknown model 'box/smal'; did you mean 'box/small'"):
            await router.route("hi", models=["box/smal"])
