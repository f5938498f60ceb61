"""``timeout`` and ``max_retries``, named as in vendor SDKs: on a Router, a call and a provider."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest

from routewright import Agent, OpenAIProvider, Policy, Router, RouterError, Settings, ValidationFailed
from routewright.errors import ProviderFault, RouterTimeoutError, UpstreamFailed
from routewright.testing import FakeClock, FaultyTransport, Pause, ScriptedProvider
from routewright.wire import FaultKind, Finish, ModelSpan, PolicyFallback
from tests.tables import table

from .scripted_router import GOOD, SPARE, House

pytestmark = pytest.mark.anyio

HELLO = {"messages": [{"role": "user", "content": "Hello"}]}
POLICIES = [
    Policy(name="plain", goal="quality"),
    Policy(name="own", timeout_ms=90_000, fallback=PolicyFallback(max_retries=2)),
    Policy(name="short", timeout_ms=1_000),
]


def given(router: Router, request: Any = "Hello", **options: Any) -> tuple[int, int]:
    """The time and the retries that a request is decided with."""
    input = router.decide(request, **options).input
    return input.timeout_ms, input.max_retries


def test_a_router_has_the_defaults_of_all_calls() -> None:
    assert given(Router.sandbox()) == (60_000, 1)
    router = Router.sandbox(timeout=2.5, max_retries=0, policies=POLICIES)
    assert given(router) == (2_500, 0)
    assert given(router, policy_id="plain") == (2_500, 0)
    assert given(router, policy_id="own") == (90_000, 2)
    assert given(Router(timeout=7, max_retries=3, providers=[ScriptedProvider([], models=[GOOD])])) == (7_000, 3)


def test_a_call_overrides_its_router_and_a_policy_only_shortens_the_time() -> None:
    router = Router.sandbox(timeout=2.5, max_retries=0, policies=POLICIES)
    assert given(router, timeout=30, max_retries=4) == (30_000, 4)
    assert given(router, {**HELLO, "timeout_ms": 500, "fallback": {"maxRetries": 5}}) == (500, 5)
    assert given(router, timeout=30, max_retries=4, policy_id="short") == (1_000, 4)
    assert given(router, timeout=0.25, policy_id="short") == (250, 0)
    assert given(router, timeout=None, max_retries=None) == (2_500, 0)


@table(
    ("request_", "options", "said"),
    [
        (HELLO, {"timeout": 5, "timeout_ms": 4_000}, "timeout: is 5 s, but timeout_ms is 4000; pass only one of them"),
        ({**HELLO, "timeout_ms": 4_000}, {"timeout": 5}, "timeout: is 5 s, but timeout_ms is 4000"),
        (HELLO, {"max_retries": 1, "fallback": {"maxRetries": 2}}, "is 1, but fallback.maxRetries is 2"),
        ({**HELLO, "fallback": {"maxRetries": 2}}, {"max_retries": 1}, "is 1, but fallback.maxRetries is 2"),
        (HELLO, {"timeout": 0}, "timeout: must be a number from 0.001 to 3600, got 0; timeout is in seconds"),
        (HELLO, {"timeout": 60_000}, "got 60000; timeout is in seconds, timeout_ms in milliseconds"),
        (HELLO, {"timeout": float("nan")}, "timeout: must be"),
        (HELLO, {"timeout": True}, "timeout: must be"),
        (HELLO, {"timeout": object()}, "timeout: must be"),
        (HELLO, {"max_retries": 1.5}, "max_retries: must be a whole number from 0 to 5, got 1.5"),
        (HELLO, {"max_retries": -1}, "max_retries: must be"),
        (HELLO, {"max_retries": 1, "fallback": "none"}, "fallback: must be a dict"),
    ],
)
def test_contradicting_and_invalid_times_are_refused(request_: Any, options: Any, said: str) -> None:
    router = Router.sandbox()
    for ask in (router.decide, router.stream, router.prepare, router.blocking.route):
        with pytest.raises(ValidationFailed) as refused:
            ask(request_, **options)
        assert said in str(refused.value)


@table("wrong", [{"timeout": 0}, {"timeout": 4_000}, {"max_retries": 6}, {"max_retries": "2"}])
@table("make", [Router, Router.sandbox])
def test_a_router_refuses_the_same_values_as_a_call(make: Callable[..., Router], wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationFailed, match=next(iter(wrong))):
        make(**wrong)


@pytest.mark.parametrize(("options", "lasts_s"), [({}, 5.0), ({"timeout": 2.0}, 2.0)])
async def test_the_timeout_of_a_router_ends_its_calls(options: dict[str, Any], lasts_s: float) -> None:
    house = House(lambda call: [Pause(60)], lambda call: [Pause(60)], timeout=5.0)
    with pytest.raises(RouterTimeoutError):
        await house.router.route("Hello", goal="quality", **options)
    assert house.clock.monotonic() == lasts_s


async def test_a_call_waits_for_another_with_its_key_within_the_routers_timeout() -> None:
    house = House([[Pause(12), "Hello", Finish("stop")]])
    hurried = Router(
        providers=[house.good], storage=house.router.storage, settings=Settings(clock=house.clock), timeout=5.0
    )
    async with anyio.create_task_group() as group:
        group.start_soon(partial(house.router.route, "Hello", goal="quality", idempotency_key="k"))
        await house.clock.sleep(1.0)
        with pytest.raises(RouterError):
            await hurried.route("Hello", goal="quality", idempotency_key="k")
        assert house.clock.monotonic() == 6.0


class Stubborn(ScriptedProvider):
    """A provider that has its models tried again three times."""

    max_retries = 3


@pytest.mark.parametrize(
    ("kind", "router", "options", "calls"),
    [
        (ScriptedProvider, {}, {}, 2),
        (ScriptedProvider, {"max_retries": 2}, {}, 3),
        (Stubborn, {}, {}, 4),
        (Stubborn, {"max_retries": 0}, {}, 4),
        (Stubborn, {}, {"max_retries": 1}, 2),
        (Stubborn, {}, {"fallback": {"on_partial": "error"}}, 4),
        (Stubborn, {}, {"policy_id": "plain"}, 4),
        (Stubborn, {}, {"policy_id": "own"}, 3),
        (Stubborn, {}, {"policy_id": "own", "max_retries": 0}, 1),
    ],
)
async def test_retries_come_from_request_policy_provider_or_router(
    kind: type[ScriptedProvider], router: dict[str, Any], options: dict[str, Any], calls: int
) -> None:
    house = House([ProviderFault("server")] * 9, [ProviderFault("request")] * 9, kind=kind, policies=POLICIES, **router)
    with pytest.raises(UpstreamFailed):
        await house.router.route("Hello", **({"goal": "quality"} | options))
    assert len(house.good.calls) == calls


async def test_an_agent_accepts_max_retries_and_refuses_timeout_with_a_hint() -> None:
    clock = FakeClock()
    provider = ScriptedProvider([ProviderFault(FaultKind.SERVER)] * 3 + ["Hello"], models=[SPARE], clock=clock)
    router = Router(providers=[provider], settings=Settings(clock=clock))
    assert (await Agent(router, max_retries=3).run("Say hello")).output == "Hello"
    with pytest.raises(ValidationFailed, match="use per_step_timeout_ms, in milliseconds"):
        Agent(router, timeout=5)


@pytest.mark.parametrize("fault", ["silent", "stall_after_headers", "stall_mid_answer"])
@pytest.mark.parametrize("streams", [False, True], ids=["plain", "streamed"])
async def test_the_timeout_of_a_provider_leads_to_the_next_model(anyio_backend: str, fault: str, streams: bool) -> None:
    clock = FakeClock()
    transport = FaultyTransport(fault, clock)
    hangs = OpenAIProvider(
        "key", name="good", base_url="http://good.invalid", models=[GOOD], transport=transport, clock=clock, timeout=2.0
    )
    spare = ScriptedProvider(["Here."], models=[SPARE], clock=clock)
    router = Router(providers=[hangs, spare], settings=Settings(clock=clock))
    if streams:
        async with router.stream("Hello", goal="quality") as stream:
            async for _ in stream:
                pass
            answer = stream.result
    else:
        answer = await router.route("Hello", goal="quality")
    assert answer.output == "Here."
    assert (clock.monotonic(), transport.open_calls) == (2.0, 0)
    attempt = next(span for span in answer.trace.spans if isinstance(span, ModelSpan))
    assert (attempt.error, attempt.cost_range_usd is not None) == ("timeout", fault != "silent")
