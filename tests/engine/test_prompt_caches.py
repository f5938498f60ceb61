"""A conversation stays on the model with a warm prompt cache until another model is worth the switch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import pytest

from routewright import Caller, Catalogue, PatternGuardrail, Router, Settings, SqliteStorage
from routewright.errors import ProviderFault, StorageUnavailable, UnsupportedWrite
from routewright.protocols import Storage
from routewright.testing import FakeClock, ScriptedProvider
from routewright.wire import (
    AgentState,
    DeleteResults,
    Delta,
    Finish,
    Model,
    ModelSpan,
    Pricing,
    PutAgentState,
    UpstreamCall,
    Usage,
)

pytestmark = pytest.mark.anyio

LONG = "The harbour keeps a ledger of every ship. " * 1_000
TOKENS = 10_000
"""About what ``LONG`` comes to."""


def model(id: str, usd: float, cached: float | None = None, **fields: Any) -> Model:
    pricing = Pricing(input_usd=usd, output_usd=4 * usd, cached_input_usd=cached)
    facts = {"quality": 0.8, "ttft_s": 1.0, "tokens_per_s": 100.0, "context_window": 200_000} | fields
    return Model(id=id, provider=id.partition("/")[0], pricing_per_1m=pricing, **facts)


HOME = model("home/one", 2.0, 0.2)
AWAY = model("away/two", 1.4, 0.14)
"""It wins where nothing is warm."""


class Vendors:
    """Providers whose caches work as vendors say, or never."""

    def __init__(self, *models: Model, caches: bool = True) -> None:
        self.clock = FakeClock()
        self.caches = caches
        self.warm: dict[str, int] = {}
        self.faults: set[str] = set()
        self.models = models
        self.calls: list[UpstreamCall] = []

    def answer(self, call: UpstreamCall) -> Any:
        self.calls.append(call)
        if call.model.id in self.faults:
            return ProviderFault("server")
        size = sum(len(str(message.content)) for message in call.messages) // 4
        cached, self.warm[call.model.id] = self.warm.get(call.model.id, 0), size
        usage = Usage(size, 10, cached=min(cached, size) if self.caches else 0)
        return [Delta("an answer"), usage, Finish("stop")]

    def router(self, storage: Storage | None = None, **settings: Any) -> Router:
        providers = [ScriptedProvider(self.answer, models=[each], clock=self.clock) for each in self.models]
        made = Settings(clock=self.clock, **settings)
        return Router(providers=providers, catalogue=Catalogue(()), storage=storage, settings=made)


class Chat:
    """A conversation that grows by a question and an answer a turn."""

    def __init__(self, router: Router, text: str = LONG, **options: Any) -> None:
        self.router = router
        self.messages: list[Any] = [{"role": "user", "content": text}]
        self.options = options

    async def begin(self) -> Self:
        """At home."""
        await self.ask(models=[HOME.id])
        return self

    async def ask(self, **options: Any) -> Any:
        answer = await self.router.route(self.messages, **{**self.options, **options})
        said = {"role": "assistant", "content": answer.output}
        self.messages = [*self.messages, said, {"role": "user", "content": "And then?"}]
        return answer

    def next(self, **options: Any) -> Any:
        return self.router.decide(self.messages, **{**self.options, **options})


async def test_a_conversation_stays_with_the_model_that_has_it_cached() -> None:
    router = Vendors(HOME, AWAY).router()
    chat = Chat(router)
    assert chat.next().model == AWAY.id
    await chat.ask(models=[HOME.id])
    for _ in range(3):
        answer = await chat.ask()
        assert answer.routing.selected_model == HOME.id
    (warm,) = answer.decision.input.warm
    assert warm.model == HOME.id
    assert warm.tokens == pytest.approx(TOKENS, rel=0.1)


async def test_the_cache_of_another_account_is_never_used() -> None:
    router = Vendors(HOME, AWAY).router()
    chat = await Chat(router).begin()
    assert chat.next(caller=Caller("other")).model == AWAY.id
    assert not chat.next(caller=Caller("other")).input.warm
    assert chat.next(caller=Caller(key_id="key_1")).input.warm


async def test_the_saving_is_in_the_response_and_in_the_trace() -> None:
    router = Vendors(HOME).router()
    chat = Chat(router)
    first = await chat.ask()
    assert "saved_usd" not in first.to_dict()["routing"]
    second = await chat.ask()
    cached = second.routing.tokens.cached
    assert cached > 0.9 * TOKENS
    assert second.routing.saved_usd == pytest.approx(cached * 1.8e-6)
    spans = [[span for span in answer.trace.spans if isinstance(span, ModelSpan)] for answer in (first, second)]
    assert "saved_usd" not in first.trace.to_dict()["spans"][-1]
    assert spans[1][0].saved_usd == second.routing.saved_usd


async def test_a_decision_with_cached_prompts_replays_and_is_explained() -> None:
    router = Vendors(HOME, AWAY).router()
    chat = await Chat(router).begin()
    answer = await chat.ask()
    assert router.replay(answer).digest == answer.decision.digest
    assert router.replay(answer).model == HOME.id
    assert f"in a vendor's cache: {HOME.id} (" in router.explain(answer)
    assert str(router.why_not(chat.messages, HOME.id)) == f"{HOME.id} is chosen."


async def test_streams_and_steps_use_cached_prompts_too() -> None:
    router = Vendors(HOME, AWAY).router()
    chat = Chat(router)
    async with router.stream(chat.messages, models=[HOME.id]) as stream:
        async for _ in stream:
            pass
    said = {"role": "assistant", "content": "an answer"}
    chat.messages = [*chat.messages, said, {"role": "user", "content": "And then?"}]
    assert chat.next().model == HOME.id


async def test_the_setting_turns_it_off() -> None:
    chat = await Chat(Vendors(HOME, AWAY).router(warm_prefixes=False)).begin()
    assert chat.next().model == AWAY.id
    assert not chat.next().input.warm


async def test_prompts_with_megabytes_of_images_are_not_hashed() -> None:
    vendors = Vendors(model("home/one", 2.0, 0.2, modalities=("text", "image")))
    for megabytes, found in ((1, 1), (5, 0)):
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * (megabytes << 20)}}
        chat = Chat(vendors.router(), LONG)
        chat.messages[0]["content"] = [{"type": "text", "text": LONG}, image]
        await chat.ask(models=[HOME.id])
        assert len(chat.next().input.warm) == found


async def test_the_sandbox_has_no_caches() -> None:
    vendors = Vendors(HOME, AWAY)
    chat = await Chat(vendors.router(), caller=Caller(environment="sandbox")).begin()
    assert not chat.next().input.warm


async def test_a_prompt_changed_by_a_guardrail_is_hashed_as_sent() -> None:
    vendors = Vendors(HOME, AWAY)
    router = Router(
        providers=[ScriptedProvider(vendors.answer, models=[HOME], clock=vendors.clock)],
        catalogue=Catalogue(()),
        guardrails=[PatternGuardrail("email")],
        settings=Settings(clock=vendors.clock),
    )
    chat = Chat(router, f"{LONG} Write to ann@example.com.")
    await chat.ask()
    chat.messages[0] = {"role": "user", "content": f"{LONG} Write to bob@example.com."}
    answer = await chat.ask()
    assert "example.com" not in str(vendors.calls[-1].messages)
    assert answer.decision.input.warm[0].tokens > 0.9 * TOKENS


# Several processes share it through the store.


async def test_processes_share_a_conversation_through_the_store(tmp_path: Path) -> None:
    vendors = Vendors(HOME, AWAY)
    named: Any = {"metadata": {"conversation": "harbour"}}
    async with vendors.router(SqliteStorage(tmp_path / "s.db", clock=vendors.clock)) as first:
        chat, nameless = Chat(first, **named), Chat(first)
        await chat.ask(models=[HOME.id])
        await nameless.ask(models=[HOME.id])
        await written(vendors)
        async with vendors.router(SqliteStorage(tmp_path / "s.db", clock=vendors.clock)) as second:
            for each in (chat, nameless):
                each.router = second
            assert not nameless.next().input.warm
            assert chat.next(caller=Caller("other")).model == AWAY.id
            assert chat.next().model == HOME.id
            assert (await chat.ask()).routing.selected_model == HOME.id
            await vendors.clock.advance(300.0)
            assert chat.next().model == AWAY.id


async def test_a_turn_written_by_another_version_is_ignored(tmp_path: Path) -> None:
    vendors = Vendors(HOME, AWAY)
    async with vendors.router(SqliteStorage(tmp_path / "s.db", clock=vendors.clock)) as first:
        chat = await Chat(first, metadata={"conversation": "harbour"}).begin()
        await written(vendors)
        storage = SqliteStorage(tmp_path / "s.db", clock=vendors.clock)
        await storage.apply(
            "default", [PutAgentState("warm:harbour", "production", b"\xc1", vendors.clock.time() + 60)]
        )
        async with vendors.router(storage) as second:
            chat.router = second
            assert chat.next().model == AWAY.id


async def written(vendors: Vendors) -> None:
    for _ in range(3):
        await vendors.clock.sleep(0.05)


async def test_a_stored_turn_is_deleted_with_its_account_and_expires(tmp_path: Path) -> None:
    vendors = Vendors(HOME, AWAY)
    storage = SqliteStorage(tmp_path / "s.db", clock=vendors.clock)
    async with vendors.router(storage) as router:
        for end in ("deleted", "swept"):
            await Chat(router, metadata={"conversation": end}).ask()
            await written(vendors)
            query = AgentState(f"warm:{end}", environment="production")
            kept = await storage.read("default", query)
            assert kept is not None
            assert b"harbour" not in kept
            if end == "deleted":
                await storage.apply("default", [DeleteResults()])
            else:
                await storage.sweep(vendors.clock.time() + 301.0)
            assert await storage.read("default", query) is None


class Away(SqliteStorage):
    """A storage that knows no turns, or cannot be asked for them."""

    fault: Exception = UnsupportedWrite("unknown")

    async def read(self, account: str, query: Any) -> Any:
        if isinstance(query, AgentState):
            raise self.fault
        return await super().read(account, query)

    async def apply(self, account: str, writes: Any) -> Any:
        if any(isinstance(write, PutAgentState) for write in writes):
            raise self.fault
        return await super().apply(account, writes)


@pytest.mark.parametrize("fault", [UnsupportedWrite("unknown"), StorageUnavailable("away")])
async def test_with_a_store_that_keeps_no_turns_other_processes_start_cold(tmp_path: Path, fault: Exception) -> None:
    vendors = Vendors(HOME, AWAY)
    storage = Away(tmp_path / "s.db", clock=vendors.clock)
    storage.fault = fault
    async with vendors.router(storage) as first, vendors.router(storage) as second:
        chat = await Chat(first, metadata={"conversation": "harbour"}).begin()
        await written(vendors)
        assert chat.next().model == HOME.id
        chat.router = second
        assert chat.next().model == AWAY.id
        await first.flush()
