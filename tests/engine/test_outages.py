"""What the log says of providers: a line for a change, none for a call."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from routewright import Catalogue, MemoryStorage, Model, Policy, ProviderFault, Router, Settings
from routewright._engine.outages import Outages
from routewright._engine.part import Part
from routewright.errors import UpstreamFailed
from routewright.testing import FakeClock, ScriptedProvider
from routewright.wire import Delta, FallbackDict, FaultKind, Finish, PolicyWeights, UpstreamCall, Usage

from .scripted_router import GOOD, SPARE, said
from .test_discovery import Box

pytestmark = pytest.mark.anyio
NO_RETRY: FallbackDict = {"maxRetries": 0}
ANSWER = said(Delta("Blue."), Usage(10, 5), Finish("stop"))
BEST = Policy(name="best", weights=PolicyWeights(quality=100, cost=0, latency=0, stability=0))
"""The better model is chosen however often it failed, unless its circuit is open."""


class Switch:
    def __init__(self) -> None:
        self.fault: ProviderFault | None = None

    def __call__(self, call: UpstreamCall) -> Any:
        return ANSWER if self.fault is None else [self.fault]


class Town:
    """A Router whose best model can be turned off, and the log's lines."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.caplog, self.clock, self.switch = caplog, FakeClock(), Switch()
        caplog.set_level(logging.WARNING, "routewright")
        providers = [
            ScriptedProvider(self.switch, models=[GOOD], clock=self.clock),
            ScriptedProvider(lambda call: ANSWER, models=[SPARE], clock=self.clock),
        ]
        self.router = Router(
            providers=providers,
            catalogue=Catalogue(()),
            settings=Settings(clock=self.clock),
            storage=MemoryStorage(),
            policies=[BEST],
        )

    async def ask(self, times: int = 1, every_s: float = 1.0) -> None:
        for _ in range(times):
            await self.clock.sleep(every_s)
            await self.router.route("hi", policy_id="best", fallback=NO_RETRY)

    def new(self) -> list[str]:
        lines = [record.getMessage() for record in self.caplog.records if record.name.startswith("routewright")]
        self.caplog.clear()
        return lines


@pytest.fixture
def town(caplog: pytest.LogCaptureFixture) -> Iterator[Town]:
    town = Town(caplog)
    yield town
    town.router.blocking.close()


async def test_what_works_is_not_logged(town: Town) -> None:
    await town.ask(20)
    assert town.new() == []


async def test_a_refused_key_of_any_provider_is_logged_once_and_when_it_works_again(town: Town) -> None:
    town.switch.fault = ProviderFault("auth", "401 sk-canary")
    await town.ask(100, 6.0)
    lines = town.new()
    assert lines[:2] == [
        "circuit of good's credential opened (auth): no call goes to its models but a probe; renew the credential",
        "good failed (auth): spare/two answered the call; further rescues are counted",
    ]
    assert [line.partition(": ")[0] for line in lines[2:]] == ["good failed"], lines
    town.switch.fault = None
    await town.ask(3, 20.0)
    assert town.new()[0].startswith("circuit of good's credential closed, after 10 min; other models answered ")


async def test_a_circuit_is_logged_when_it_opens_and_closes_but_not_when_a_probe_fails(town: Town) -> None:
    town.switch.fault = ProviderFault("connect", "10.0.0.7 is away")
    await town.ask(200)
    lines = town.new()
    assert lines[:2] == [
        "good failed (connect): spare/two answered the call; further rescues are counted",
        "circuit of good/one opened (connect): calls go to other models, and the first probe in 10 s",
    ]
    assert len(lines) == 3
    assert "10.0.0.7" not in "".join(lines)
    town.switch.fault = None
    await town.ask(10, 5.0)
    assert town.new()[0].startswith("circuit of good/one closed, after 3 min; ")


async def test_a_flapping_vendor_writes_few_lines(town: Town) -> None:
    for _ in range(20):
        town.switch.fault = ProviderFault("server", "500")
        await town.ask(10, 2.0)
        town.switch.fault = None
        await town.ask(10, 2.0)
    assert len(town.new()) <= 10


async def test_rescues_are_counted_at_growing_intervals(town: Town) -> None:
    town.switch.fault = ProviderFault("invalid_output", "odd")  # it counts against no circuit
    await town.ask(400, 60.0)
    lines = town.new()
    assert lines[0] == "good failed (invalid_output): spare/two answered the call; further rescues are counted"
    assert len(lines) <= 8
    assert town.router._parts.hosted("production").outages.rescues == Counter({("good", "invalid_output"): 400})


async def test_a_call_that_no_model_rescued_is_no_rescue(town: Town) -> None:
    town.switch.fault = ProviderFault("server", "500")
    with pytest.raises(UpstreamFailed):
        await town.router.route("hi", models=[GOOD.id], fallback=NO_RETRY)
    assert town.new() == []


def test_fifty_models_of_one_provider_that_fail_are_a_few_lines() -> None:
    outages = Outages()
    models = [Model(id=f"big/{number}", provider="big") for number in range(50)]
    for second, model in enumerate(models):
        outages.open_circuit(model, FaultKind.SERVER, 10.0, float(second))
    assert [line.partition(" opened")[0] for line in outages.lines] == [
        "circuit of big/0",
        "circuit of big/1",
        "circuit of big/2",
        "circuits of further big models",
    ]
    outages.lines.clear()
    for second, model in enumerate(models):
        outages.close(model, 600.0 + second)
    assert [*outages.lines] == [
        *(f"circuit of big/{number} closed, after 10 min" for number in range(3)),
        "circuits of further big models closed, after 11 min",
    ]


async def test_two_routers_do_not_share_what_was_logged(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        town = Town(caplog)
        town.switch.fault = ProviderFault("auth", "no")
        await town.ask()
        assert len(town.new()) == 2
        await town.router.aclose()


async def test_a_part_that_calls_can_do_without_is_logged_when_it_rests_and_when_it_works_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, part = FakeClock(), Part("embedder", 1.0)

    async def embed(*, is_away: bool) -> str:
        if is_away:
            raise OSError("sk-canary")
        return "vector"

    for is_away in [True] * 360 + [False] * 360:
        await part.ask(clock, embed(is_away=is_away), clock.monotonic() + 60.0)
        await clock.sleep(10.0)
    first, second = [record.getMessage() for record in caplog.records]
    assert first.startswith("the embedder failed 3 times in a row and is tried every 10 s: OSError")
    assert second == "the embedder works again, after 1 h"
    assert "canary" not in caplog.text


async def test_a_server_that_comes_and_goes_is_a_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    clock, box = FakeClock(autojump=False), Box([GOOD])
    async with Router(providers=[box], catalogue=Catalogue(()), settings=Settings(clock=clock)) as router:
        await router.route("hi")
        for minute in range(120):
            box.has = [GOOD] if minute % 2 else ProviderFault("connect", f"box is away:\nfault {minute}")
            await clock.advance(60.0)
        box.has = [GOOD]
        for _ in range(60):
            await clock.advance(60.0)
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == [
        "box is away: fault 0",
        "box lists its models again",
        "box is away: fault 2; it flaps",
        "box lists its models again; this has lasted for 30 min",
    ]


async def test_a_fleet_that_replaces_another_continues_its_log_and_counts(town: Town) -> None:
    town.switch.fault = ProviderFault("server", "500")
    await town.ask(10)
    parts = town.router._parts
    before, after = parts.hosted("production"), parts._make_fleet("production")
    town.new()
    after.learn_from(before)
    assert town.new() == ["circuit of good/one closed, after 5 s"], "circuits start closed"
    assert after.outages is before.outages
    assert after._guard is before._guard, "calls that run on the old fleet change it too"
