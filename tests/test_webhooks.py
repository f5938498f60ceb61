"""From a cause to a verified receiver: all eight events, each once, through the public surface."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, get_args

import anyio
import anyio.to_thread
import pytest
from msgspec.structs import replace

from routewright import (
    Agent,
    BudgetExceeded,
    Caller,
    Console,
    MemoryStorage,
    Model,
    Policy,
    Pricing,
    ProviderFault,
    Router,
    Settings,
    SqliteStorage,
    ValidationFailed,
)
from routewright.cli import main
from routewright.errors import NotFound, StorageUnavailable, UnsupportedWrite, UpstreamFailed
from routewright.settings import WebhookSettings
from routewright.testing import FakeClock, ScriptedProvider
from routewright.webhook import verify_request
from routewright.wire import (
    Delta,
    Endpoints,
    EventType,
    Finish,
    PutEndpoint,
    UpstreamCall,
    Usage,
    WebhookAnswer,
    WebhookEvent,
)

pytestmark = pytest.mark.anyio

PRICE = Pricing(input_usd=1.0, output_usd=100.0)
GOOD = Model(id="good/one", quality=0.9, pricing_per_1m=PRICE, context_window=9_000, modalities=("text", "tool"))
SPARE = Model(id="spare/two", quality=0.1, pricing_per_1m=PRICE, context_window=9_000)
URL = "https://hooks.example.com/in"


class Receiver:
    """A receiver that verifies; it answers with the statuses that it was told, then with 204."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.statuses: list[int] = []
        self.takes_s = 0.0
        self.secrets: list[str] = []
        self.events: list[WebhookEvent] = []

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> WebhookAnswer:
        await self.clock.sleep(self.takes_s)
        self.events.append(verify_request(body, headers, *self.secrets, now=self.clock.time()))
        return WebhookAnswer(self.statuses.pop(0) if self.statuses else 204)

    async def aclose(self) -> None:
        """Nothing to close."""

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]


class House:
    """A Router whose models do as they are asked, its console, and a receiver."""

    def __init__(self, storage: Any, clock: FakeClock, **options: Any) -> None:
        self.clock, self.receiver = clock, Receiver(clock)
        self.console = Console(storage, clock=clock)
        webhooks = WebhookSettings(transport=self.receiver, **options)
        self.router = Router(
            providers=[ScriptedProvider(_answer, models=[model], clock=clock) for model in (GOOD, SPARE)],
            storage=storage,
            settings=Settings(clock=clock, webhooks=webhooks),
        )

    async def register(self, account: str = "default", **terms: Any) -> str:
        new = await self.console.create_endpoint(account, URL, **terms)
        self.receiver.secrets.append(new.secret.reveal())
        return new.endpoint.id

    async def settle(self) -> None:
        await self.router.flush()
        await self.clock.sleep(6.0)


def _answer(call: UpstreamCall) -> Any:
    said = str(call.messages[-1].content)
    if said == "fail" or (said == "stumble" and call.model.id == GOOD.id):
        return ProviderFault("request")
    return [Delta("Hello."), Usage(10, 10), Finish("stop")]


@pytest.fixture(params=["memory", "sqlite"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> House:
    clock = FakeClock()
    storage = MemoryStorage(clock=clock) if request.param == "memory" else SqliteStorage(tmp_path / "s.db", clock=clock)
    return House(storage, clock)


async def test_each_event_is_delivered_once(house: House) -> None:
    console, router, receiver = house.console, house.router, house.receiver
    await console.create_account("acme", plan="unlimited", monthly_limit_usd=1_000)
    await house.register("acme")
    caller = Caller("acme")
    told: list[EventType] = []

    async def expect(*kinds: EventType) -> None:
        await house.settle()
        told.extend(kinds)
        assert receiver.types == told

    answer = await router.route("stumble", goal="quality", metadata={"team": "search"}, caller=caller)
    await expect("router.fallback_triggered")
    assert receiver.events[-1].data == {
        "trace_id": answer.trace_id, "primary_model": "good/one", "fallback_model": "spare/two",
        "reason": "upstream_5xx", "primary_latency_ms": 0.0, "metadata": {"team": "search"},
    }  # fmt: skip
    with pytest.raises(BudgetExceeded):
        await router.route("hi", budget={"maxCostUsd": 0.0}, caller=caller)
    await expect("router.budget_exceeded")
    router.reload_policies([Policy(name="cheap", goal="cost")])
    router.reload_policies([Policy(name="cheap", goal="cost")])
    await expect("router.policy_changed")
    await Agent(router).run("hi", caller=caller)
    await expect("agent.run_completed")
    await console.open_incident("Answers are slow", severity="minor")
    await expect("incident.created")
    await console.change_account("acme", monthly_limit_usd=0.005)  # two calls were $0.00101 each
    await router.route("hi", caller=caller, params={"max_output_tokens": 10})
    await expect("billing.threshold_crossed")
    assert (receiver.events[-1].data["threshold_percent"], receiver.events[-1].data["limit_usd"]) == (50, 0.005)
    await console.change_account("acme", monthly_limit_usd=1_000)
    for number in range(101):
        await router.route(f"question {number}?", cache={"mode": "exact"}, caller=caller)
    await house.clock.sleep(3_600.0)
    await router.route("another?", cache={"mode": "exact"}, caller=caller)
    await expect("cache.evicted")
    for _ in range(60):
        with pytest.raises(UpstreamFailed):
            await router.route("fail", caller=caller)
    await expect("router.error_burst")
    assert sorted(told) == sorted(get_args(EventType))
    assert [event.id for event in receiver.events] == [event.id for event in sorted(receiver.events)]


async def test_other_accounts_and_types_receive_nothing(house: House) -> None:
    await house.register("acme", events=["router.fallback_triggered"])
    await house.register("other")
    await house.router.route("stumble", goal="quality")
    with pytest.raises(BudgetExceeded):
        await house.router.route("hi", budget={"maxCostUsd": 0.0}, caller=Caller("acme"))
    await house.router.route("stumble", goal="quality", caller=Caller("acme", "sandbox"))
    await house.settle()
    assert house.receiver.types == []


@pytest.mark.parametrize(("attempts", "state"), [(1, "failed_delivery"), (2, "waiting")])
async def test_a_delivery_is_attempted_as_often_as_the_settings_say(attempts: int, state: str) -> None:
    clock = FakeClock()
    house = House(MemoryStorage(clock=clock), clock, max_attempts=attempts)
    await house.register()
    house.receiver.statuses = [500]
    await house.router.route("stumble", goal="quality")
    await house.settle()
    assert [delivery.state for delivery in await house.console.deliveries("default")] == [state]


async def test_failed_deliveries_are_inspected_and_replayed_with_their_ids(house: House) -> None:
    endpoint_id = await house.register()
    house.receiver.statuses = [500] * 5
    await house.router.route("stumble", goal="quality")
    await house.settle()
    await house.clock.sleep(5_000.0)
    (delivery,) = await house.console.deliveries("default")
    assert (delivery.state, [each.status for each in delivery.attempts]) == ("failed_delivery", [500] * 5)
    problem = f"webhook endpoint {endpoint_id} of default fails: it answered 500"
    assert problem in house.router.status().problems
    assert await house.console.deliveries("default", state="delivered") == []
    assert await house.console.replay("default", endpoint_id) == 1
    assert await house.console.replay("default", endpoint_id, "evt_unknown") == 0
    await house.settle()
    assert len({event.id for event in house.receiver.events}) == 1
    assert len(house.receiver.events) == 6
    (delivery,) = await house.console.deliveries("default", endpoint_id=endpoint_id)
    assert delivery.state == "delivered"
    with pytest.raises(NotFound):
        await house.console.replay("other", endpoint_id)


async def test_endpoints_are_listed_disabled_enabled_and_deleted(house: House) -> None:
    console, endpoint_id = house.console, await house.register(events=["incident.created"])
    (there,) = await console.endpoints("default")
    assert (there.id, there.url, there.events, there.disabled_at) == (endpoint_id, URL, ("incident.created",), None)
    await console.disable_endpoint("default", endpoint_id)
    await console.open_incident("one", severity="minor")
    await house.settle()
    assert (await console.endpoints("default"))[0].disabled_at is not None
    await console.enable_endpoint("default", endpoint_id)
    await console.open_incident("two", severity="minor")
    await house.router.route("hi")  # the Router has started by now
    await house.settle()
    assert [event.data["title"] for event in house.receiver.events] == ["two"]
    for act in (console.disable_endpoint, console.enable_endpoint, console.delete_endpoint, console.rotate_endpoint):
        with pytest.raises(NotFound, match="no endpoint"):
            await act("other", endpoint_id)
    await console.delete_endpoint("default", endpoint_id)
    assert await console.endpoints("default") == []


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"url": "https://127.0.0.1/in"}, "url"),
        ({"events": ["router.fallback_trigered"]}, "router.fallback_triggered"),
        ({"profile": "svix"}, "profile: is 'svix'"),
    ],
)
async def test_an_invalid_endpoint_is_refused(house: House, terms: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationFailed, match=said):
        await house.console.create_endpoint("acme", **{"url": URL} | terms)
    assert await house.console.endpoints("acme") == []


async def test_rotations_keep_all_unexpired_secrets(house: House) -> None:
    endpoint_id = await house.register()
    first = house.receiver.secrets[0]
    news = [await house.console.rotate_endpoint("default", endpoint_id) for _ in range(3)]
    for secret in (first, *(new.secret.reveal() for new in news)):
        house.receiver.secrets = [secret]
        await house.console.test_endpoint("default", endpoint_id, transport=house.receiver)
    only = await house.console.rotate_endpoint("default", endpoint_id, overlap_s=0)
    (there,) = await house.console.endpoints("default")
    assert len(there.secrets) == 1
    house.receiver.secrets = [only.secret.reveal()]
    await house.console.test_endpoint("default", endpoint_id, transport=house.receiver)
    assert len(house.receiver.events) == 5 * 8
    for seconds in (-1, 1e9, "soon"):
        with pytest.raises(ValidationFailed, match="overlap_s"):
            await house.console.rotate_endpoint("default", endpoint_id, overlap_s=seconds)  # type: ignore[arg-type]
    with pytest.raises(ValidationFailed, match="state"):
        await house.console.deliveries("default", state="failed")  # type: ignore[arg-type]
    for limit in (0, -1, 1_001, 2**63, 2.0, True):
        with pytest.raises(ValidationFailed, match="limit: must be a whole number from 1 to 1000, got"):
            await house.console.deliveries("default", limit=limit)  # type: ignore[arg-type]


async def test_signing_secrets_are_encrypted_and_survive_a_root_secret_rotation(tmp_path: Path) -> None:
    clock = FakeClock()
    house = House(SqliteStorage(tmp_path / "s.db", clock=clock), clock)
    await house.register()
    for _ in range(3):
        await house.console.rotate_secret()
    await house.router.route("stumble", goal="quality")
    await house.settle()
    assert len(house.receiver.events) == 1
    await house.router.aclose()
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())  # noqa: ASYNC240
    assert house.receiver.secrets[0].removeprefix("whsec_").encode() not in stored
    assert house.receiver.secrets[0] not in repr(await house.console.endpoints("default"))


async def test_swapped_secrets_are_not_used(house: House) -> None:
    ids = [await house.register() for _ in range(2)]
    one, two = await house.console.endpoints("default")
    storage = house.console._storage
    await storage.apply("default", [PutEndpoint(replace(one, secrets=two.secrets))])
    with pytest.raises(StorageUnavailable, match=f"the signing secret of webhook endpoint {ids[0]} cannot be read"):
        await house.console.test_endpoint("default", ids[0], transport=house.receiver)
    await house.console.rotate_endpoint("default", ids[0])
    assert await house.console.test_endpoint("default", ids[1], transport=house.receiver)


async def test_an_endpoint_needs_the_extra_webhooks(
    tmp_path: Path, house: House, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    said = (
        "sealing signing secrets needs the extra 'webhooks' (cryptography.hazmat.primitives.ciphers.aead is missing): "
        "pip install 'routewright[webhooks]'"
    )
    with pytest.raises(ModuleNotFoundError) as raised:
        await house.register()
    assert str(raised.value) == said
    assert await house.console.endpoints("default") == []
    await Console(SqliteStorage(tmp_path / "other.db")).create_account("acme")
    command = ["webhooks", "create", "acme", URL, "--store", str(tmp_path / "other.db")]
    assert await anyio.to_thread.run_sync(main, command) == 2
    assert capsys.readouterr() == ("", f"routewright: {said}\n")


async def test_a_router_with_deliver_off_sends_nothing(tmp_path: Path) -> None:
    clock = FakeClock()
    storage = SqliteStorage(tmp_path / "s.db", clock=clock)
    new = await Console(storage, clock=clock).create_endpoint("default", URL)
    idle = House(storage, clock, deliver=False).router
    await idle.route("stumble", goal="quality")
    await idle.flush()
    await clock.sleep(100.0)
    house = House(storage, clock)
    house.receiver.secrets = [new.secret.reveal()]
    await house.router.route("hi")  # starts the other one
    await clock.sleep(6.0)
    assert house.receiver.types == ["router.fallback_triggered"]


async def test_a_console_delivers_for_routers_and_drains_on_stop() -> None:
    clock, stop = FakeClock(), anyio.Event()
    storage = MemoryStorage(clock=clock)
    console, receiver = Console(storage, clock=clock), Receiver(clock)
    receiver.secrets.append((await console.create_endpoint("default", URL)).secret.reveal())
    idle = House(storage, clock, deliver=False).router
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(console.deliver, WebhookSettings(transport=receiver), stop=stop))
        await clock.sleep(1.0)
        receiver.takes_s = 5.0
        await idle.route("stumble", goal="quality")
        await clock.sleep(1.0)
        stop.set()
    assert clock.monotonic() == pytest.approx(6.0)
    (delivery,) = await console.deliveries("default")
    assert delivery.state == "delivered"


async def test_the_root_secret_of_a_storage_without_endpoints_can_be_rotated() -> None:
    class Plain(MemoryStorage):
        async def read(self, account: str, query: Any) -> Any:
            if isinstance(query, Endpoints):
                raise UnsupportedWrite("Plain knows no query Endpoints")
            return await super().read(account, query)

    clock = FakeClock()
    console = Console(Plain(clock=clock), clock=clock)
    before = console._secret.load()
    await console.rotate_secret()
    assert console._secret.load()[1:] == before


def test_webhook_settings_are_checked() -> None:
    for attempts in (0, 7, 1.5, True):
        with pytest.raises(ValidationFailed, match="max_attempts"):
            WebhookSettings(max_attempts=attempts)  # type: ignore[arg-type]
