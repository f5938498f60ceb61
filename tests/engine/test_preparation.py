"""``Router.prepare``: what a server keeps of a request between validation and the call."""

from __future__ import annotations

from typing import Any

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from routewright import (
    Answer,
    Caller,
    Catalogue,
    Console,
    MemoryStorage,
    RateLimited,
    RateLimits,
    Router,
    RouteRequest,
    Settings,
    ValidationFailed,
)
from routewright._core.request.read import decode_shape
from routewright._core.request.rules import complete_request
from routewright.errors import IdempotencyKeyReused, InvalidJson, RouterClosed
from routewright.testing import FakeClock
from routewright.wire import OutputDelta, RouteCompleted
from tests.tables import table

pytestmark = pytest.mark.anyio

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
BODY = b'{"messages":[{"role":"user","content":"Hello"}]}'


def body(**fields: Any) -> bytes:
    return msgspec.json.encode({"messages": [{"role": "user", "content": "Hello"}], **fields})


async def limited(storage: MemoryStorage, **limits: int) -> Caller:
    console = Console(storage, secret="a secret that is long enough for one")
    await console.create_account("acme", limits=RateLimits(**limits))
    key = await console.create_key("acme", name="k", environment="sandbox")
    return await console.authenticate(f"Bearer {key.secret.reveal()}")


async def test_preparing_calls_and_stores_nothing() -> None:
    router = Router.sandbox()
    prepared = router.prepare(BODY)
    assert (prepared.request.goal, prepared.request.strategy) == ("cost", "balanced")
    assert prepared.tokens.low <= prepared.tokens.estimate <= prepared.tokens.high
    assert prepared.caller == Caller(environment="sandbox")
    assert (await router.traces.query()).data == []


@pytest.mark.parametrize("request_", ["Hello", BODY, [{"role": "user", "content": "Hello"}], msgspec.json.decode(BODY)])
async def test_it_accepts_what_route_accepts_and_the_bytes_of_a_body(request_: Any) -> None:
    router = Router.sandbox(answers={"Hello": "hi"})
    answer = await router.prepare(request_, goal="quality").run()
    assert isinstance(answer, Answer)
    assert (answer.output, answer.trace.goal) == ("hi", "quality")


async def test_a_prepared_request_can_be_streamed() -> None:
    prepared = Router.sandbox(answers={"Hello": "hi"}).prepare(body(stream=True))
    assert prepared.request.stream
    async with prepared.stream() as stream:
        events = [event async for event in stream]
    assert "".join(event.data.text for event in events if isinstance(event, OutputDelta)) == "hi"
    assert isinstance(events[-1], RouteCompleted)


@table(
    ("sent", "error"),
    [
        (b"", InvalidJson),
        (b"\xef\xbb\xbf{}", InvalidJson),
        (b'{"messages":[], "messages":[]}', ValidationFailed),
        (b'{"messages":"Hello"}', ValidationFailed),
        (b'{"messages":[]}', ValidationFailed),
        (body(gaol="cost"), ValidationFailed),
        (body(timeout_ms=0), ValidationFailed),
    ],
)
def test_a_body_is_read_strictly(sent: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        Router.sandbox().prepare(sent)


@table(
    "fields",
    [
        {},
        {"goal": "stability", "timeout_ms": 2_000, "stream": True},
        {"timeout_ms": 2_000.0},
        {"strategy": "quality-first"},
        {"policy_id": "p", "prefer": "a/b", "metadata": {"a": 1}},
        {"params": {"max_output_tokens": 9, "stop": "x"}, "tools": []},
        {"models": ["a/b"], "fallback": {"models": []}, "budget": {"maxCostUsd": 1}, "cache": {"ttl_seconds": 5}},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "ü"}], "name": "ann"}]},
    ],
)
def test_the_fast_and_the_full_decoder_agree(fields: dict[str, Any]) -> None:
    router, sent = Router.sandbox(), body(**fields)
    whole = complete_request(decode_shape(sent))
    assert router.prepare(sent).request == whole
    assert router.prepare(sent, idempotency_key="a").request == replace(whole, idempotency_key="a")


def test_options_override_the_body() -> None:
    prepared = Router.sandbox().prepare(body(goal="cost", timeout_ms=5), goal="quality")
    assert (prepared.request.goal, prepared.request.timeout_ms) == ("quality", 5)


def test_conflicting_idempotency_keys_are_refused() -> None:
    router = Router.sandbox()
    assert router.prepare(BODY, idempotency_key="a").request.idempotency_key == "a"
    assert router.prepare(body(idempotency_key="a"), idempotency_key="a").request.idempotency_key == "a"
    for request in (body(idempotency_key="b"), RouteRequest([], idempotency_key="b")):
        with pytest.raises(ValidationFailed, match="send only one of the two"):
            router.prepare(request, idempotency_key="a")


async def test_under_one_key_another_address_or_body_is_another_request() -> None:
    router = Router.sandbox()
    first = await router.prepare(BODY, idempotency_key="a", path="/ask", body=b'{"q":"Hello"}').run()
    again = await router.prepare(BODY, idempotency_key="a", path="/ask", body=b'{ "q": "Hello" }').run()
    assert again.replayed
    assert again.trace_id == first.trace_id
    for path, sent in (("/tell", b'{"q":"Hello"}'), ("/ask", b'{"q":"hello"}'), ("/ask", None)):
        with pytest.raises(IdempotencyKeyReused):
            await router.prepare(BODY, idempotency_key="a", path=path, body=sent).run()


@pytest.mark.parametrize(("header", "kept"), [(TRACE, TRACE), ("nonsense", None), (None, None)])
async def test_a_valid_traceparent_is_kept_and_an_invalid_one_ignored(header: str | None, kept: str | None) -> None:
    answer = await Router.sandbox().prepare(BODY, traceparent=header).run()
    assert answer.trace.traceparent == kept


async def test_the_surrounding_trace_context_overrides_the_header() -> None:
    router = Router.sandbox()
    own = TRACE.replace("b7ad", "ffff")
    with router.traceparent(own), router.tags(team="support"):
        prepared = router.prepare(BODY, traceparent=TRACE)
    answer = await prepared.run()
    assert (answer.trace.traceparent, answer.trace.metadata) == (own, {"team": "support"})


async def test_decide_returns_the_decision_and_costs_nothing() -> None:
    storage = MemoryStorage()
    router = Router.sandbox(storage=storage)
    caller = await limited(storage, requests_per_min=1)
    prepared = router.prepare(BODY, caller=caller)
    for _ in range(3):
        assert prepared.decision.digest == router.decide("Hello", caller=caller).digest
    assert prepared.headers == {}
    assert (await prepared.run()).headers["X-RateLimit-Remaining"] == "0"


async def test_decide_counts_as_a_request_without_tokens() -> None:
    storage = MemoryStorage()
    router = Router.sandbox(storage=storage)
    prepared = router.prepare(BODY, caller=await limited(storage, requests_per_min=2, tokens_per_min=1_000))
    assert (await prepared.decide()).model == prepared.decision.model
    assert prepared.headers["X-RateLimit-Remaining"] == "1"
    await prepared.count_tokens()
    with pytest.raises(RateLimited) as refused:
        await prepared.run()
    assert "Retry-After" in refused.value.headers


async def test_count_tokens_takes_any_name_of_a_model() -> None:
    model = Router.sandbox().models()[0].id
    router = Router.sandbox(catalogue=Catalogue(aliases={"house": model}))
    prepared = router.prepare(BODY)
    count = await prepared.count_tokens("house")
    assert (count, count.model) == (await prepared.count_tokens(model), model)
    assert 0 < count.low <= count.estimate <= count.high
    assert (await prepared.count_tokens()).model == prepared.decision.model
    with pytest.raises(ValidationFailed):
        await prepared.count_tokens("nobody/nothing")


def test_the_repr_has_no_prompt() -> None:
    assert "Hello" not in repr(Router.sandbox().prepare(BODY))


def test_the_blocking_twin_does_the_same() -> None:
    with Router.sandbox(answers={"Hello": "hi"}).blocking as router:
        blocking = router.prepare(BODY)
        assert blocking.run().output == "hi"
        assert list(blocking.stream().text()) == ["hi"]
        assert blocking.decide().model == blocking.count_tokens().model == blocking.prepared.decision.model


# What a server needs of its Router besides.


def test_a_caller_is_resolved_as_calls_have_it() -> None:
    ann = Caller("ann")
    assert Router.sandbox().resolve_caller(ann) == Caller("ann", "sandbox")
    assert Router(providers=[]).resolve_caller(ann) is ann
    odd: Any
    for odd in (None, "ann", {"account": "ann"}, Caller(""), Caller("a", scopes=("route", []))):  # type: ignore[arg-type]
        with pytest.raises(ValidationFailed):
            Router.sandbox().resolve_caller(odd)


def test_model_names_are_ids_and_aliases_with_their_ids() -> None:
    model = Router.sandbox().models()[0].id
    router = Router.sandbox(catalogue=Catalogue(aliases={"house": model}))
    names, ids = router.model_names(), {model.id for model in router.models()}
    assert {name for name, id in names.items() if name == id} == ids
    assert names["house"] == model
    with pytest.raises(TypeError):
        names["a"] = "b"  # type: ignore[index]


def test_new_ids_sort_with_those_of_traces() -> None:
    router = Router.sandbox()
    before = router.new_id("req_")
    trace_id = router.blocking.route("Hello").trace_id
    after = router.new_id("req_")
    assert before[4:] < trace_id[3:] < after[4:]


async def test_a_closed_router_says_that_it_cannot_serve() -> None:
    router = Router.sandbox()
    assert await router.problem() is None
    await router.aclose()
    assert await router.problem() == "the router is closed"
    with pytest.raises(RouterClosed):
        router.prepare(BODY)


async def test_background_calls_end_with_the_router() -> None:
    began, ended = anyio.Event(), list[str]()

    async def watch(name: str) -> None:
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(name)

    async with Router.sandbox(settings=Settings(clock=FakeClock())) as router:  # so that it runs in this loop
        router.run_in_background(watch, "mine")
        await began.wait()
        assert ended == []
    assert ended == ["mine"]


def test_a_console_beside_it_shares_its_parts() -> None:
    storage = MemoryStorage()
    router = Router.sandbox(storage=storage)
    assert router.storage is storage
    assert router.coordination is router.coordination
    assert router.clock.virtual is False
    assert router.status().circuits == []
