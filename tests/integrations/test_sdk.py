"""``router_client``: the openai and anthropic SDKs, unmodified, with a Router of the same process as their server."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import anthropic
import anyio
import openai
import pytest
from anthropic import Anthropic, AsyncAnthropic
from openai import AsyncOpenAI, OpenAI

from routewright import CallableProvider, Caller, MemoryStorage, Model, Pricing, Router, Settings, ValidationFailed
from routewright.integrations.sdk import router_client
from routewright.testing import FakeClock, ScriptedProvider
from routewright.testing.provider import Line, Pause
from routewright.wire import Delta, Finish, UpstreamCall

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings(
        "ignore:Async generator '(openai|httpx2):ResourceWarning"
    ),  # which the SDKs leave to trio
]

HI: Any = [{"role": "user", "content": "Hi"}]
CHAT: Any = {"model": "auto", "messages": HI}
MESSAGE: Any = {**CHAT, "max_tokens": 100}
MODEL = Model(id="local/one", quality=0.5, pricing_per_1m=Pricing(1.0, 2.0), context_window=100_000)
ONE_TRY = {"routewright": {"fallback": {"models": [], "maxRetries": 0}}}
ANSWERS = {"Hi": "Hello there, you"}


def openai_of(router: Router, **options: Any) -> AsyncOpenAI:
    return AsyncOpenAI(http_client=router_client(router), api_key="-", **options)


class Gated:
    """A provider whose second piece comes when the test says so."""

    def __init__(self) -> None:
        self.is_written = anyio.Event()
        self.has_ended = anyio.Event()
        self.router = Router(providers=[CallableProvider(self.answer, models=[MODEL])])

    async def answer(self, call: UpstreamCall) -> AsyncIterator[str]:
        try:
            yield "one "
            await self.is_written.wait()
            yield "two"
        finally:
            self.has_ended.set()


async def test_asynchronous_sdks_are_answered_and_streamed_without_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # it must not be used
    async with Router.sandbox(ANSWERS) as router:
        client = openai_of(router)
        assert (await client.chat.completions.create(**CHAT)).choices[0].message.content == "Hello there, you"
        assert (await client.responses.create(model="auto", input="Hi")).output_text == "Hello there, you"
        pieces = [
            chunk.choices[0].delta.content async for chunk in await client.chat.completions.create(**CHAT, stream=True)
        ]
        assert "".join(filter(None, pieces)) == "Hello there, you"
        claude = AsyncAnthropic(http_client=router_client(router), api_key="-")
        assert (await claude.messages.create(**MESSAGE)).stop_reason == "end_turn"
        async with claude.messages.stream(**MESSAGE) as stream:
            assert await stream.get_final_text() == "Hello there, you"


def test_plain_sdks_are_answered_and_streamed_without_a_server() -> None:
    with Router.sandbox(ANSWERS).blocking as router:
        client = OpenAI(http_client=router_client(router), api_key="-")
        assert client.chat.completions.create(**CHAT).choices[0].message.content == "Hello there, you"
        pieces = [chunk.choices[0].delta.content for chunk in client.chat.completions.create(**CHAT, stream=True)]
        assert "".join(filter(None, pieces)) == "Hello there, you"
        with Anthropic(http_client=router_client(router), api_key="-").messages.stream(**MESSAGE) as stream:
            assert stream.get_final_text() == "Hello there, you"


async def test_requests_in_a_run_are_part_of_it() -> None:
    async with Router.sandbox(ANSWERS) as router:
        client = openai_of(router)
        async with router.run(total_budget_usd=0.01) as run:
            await client.chat.completions.create(**CHAT)
            _ = [chunk async for chunk in await client.chat.completions.create(**CHAT, stream=True)]
        assert len((await router.trace(run.trace_id)).children) == 2
        plain = OpenAI(http_client=router_client(router.blocking), api_key="-")
        with router.blocking.run() as run:
            plain.chat.completions.create(**CHAT)
            _ = [*plain.chat.completions.create(**CHAT, stream=True)]
        assert len((await router.trace(run.trace_id)).children) == 2


@pytest.mark.parametrize("base_url", ["http://any/v1", "http://any/openai/v1", "http://any/v1/"])
async def test_the_base_url_may_be_any_that_ends_in_v1(base_url: str) -> None:
    async with Router.sandbox(ANSWERS) as router:
        client = openai_of(router, base_url=base_url)
        assert (await client.chat.completions.create(**CHAT)).choices[0].message.content == "Hello there, you"


async def test_the_models_of_each_vendor_are_listed_below_its_name() -> None:
    async with Router.sandbox() as router:
        client = openai_of(router, base_url="http://router/openai/v1")
        claude = AsyncAnthropic(http_client=router_client(router), api_key="-", base_url="http://router/anthropic")
        names = {model.id async for model in client.models.list()}
        assert "openai/gpt-4.1" in names
        assert {model.id async for model in claude.models.list()} >= {"anthropic/claude-sonnet-4-6"}


async def test_a_stream_arrives_piece_by_piece() -> None:
    gated = Gated()
    stream = await openai_of(gated.router).chat.completions.create(**CHAT, stream=True)
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content == "one ":
            assert not gated.is_written.is_set()
            gated.is_written.set()
    assert gated.is_written.is_set()
    await gated.router.aclose()


async def leave_a_stream(client: AsyncOpenAI) -> None:
    async with await client.chat.completions.create(**CHAT, stream=True) as stream:
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                return


async def cancel_a_call(client: AsyncOpenAI) -> None:
    with anyio.move_on_after(0.03):
        await client.chat.completions.create(**CHAT)


async def time_out(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.APITimeoutError):
        await client.chat.completions.create(**CHAT, timeout=0.03)


@pytest.mark.parametrize("leave", [leave_a_stream, cancel_a_call, time_out])
async def test_a_client_that_leaves_ends_the_call(leave: Callable[[AsyncOpenAI], Awaitable[None]]) -> None:
    gated = Gated()
    await leave(openai_of(gated.router, max_retries=0))
    await gated.has_ended.wait()
    await gated.router.aclose()
    assert not gated.is_written.is_set()


def test_plain_code_that_leaves_a_stream_ends_the_call() -> None:
    has_ended = threading.Event()

    async def answer(call: UpstreamCall) -> AsyncIterator[str]:
        try:
            yield "one"
            await anyio.sleep_forever()
        finally:
            has_ended.set()

    with Router(providers=[CallableProvider(answer, models=[MODEL])]).blocking as router:
        client = OpenAI(http_client=router_client(router), api_key="-")
        with client.chat.completions.create(**CHAT, stream=True) as stream:
            assert next(iter(stream)).object == "chat.completion.chunk"
        assert has_ended.wait(10)


async def test_the_timeout_of_the_sdk_is_the_longest_wait_for_a_piece() -> None:
    clock = FakeClock()
    script: list[Line] = [Delta("one "), Pause(8.0), Delta("two "), Pause(9.5), Delta("three"), Finish("stop")]
    provider = ScriptedProvider([script], models=[MODEL], clock=clock)
    router = Router(providers=[provider], settings=Settings(clock=clock))
    texts = []

    async def read() -> None:
        async for chunk in await openai_of(router).chat.completions.create(**CHAT, stream=True, timeout=9):
            texts.append(chunk.choices[0].delta.content)

    with pytest.raises(openai.APITimeoutError):
        await read()
    assert texts[-1] == "two "


async def test_a_reader_that_pauses_stops_the_model() -> None:
    written = 0

    async def answer(call: UpstreamCall) -> AsyncIterator[str]:
        nonlocal written
        for _ in range(50):
            written += 1
            yield "x" * 40_000

    router = Router(providers=[CallableProvider(answer, models=[MODEL])])
    async with await openai_of(router).chat.completions.create(**CHAT, stream=True) as stream:
        await anext(aiter(stream))
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        assert written < 10
    await router.aclose()


async def test_calls_have_the_tags_of_the_code_that_makes_them() -> None:
    async with Router.sandbox() as router:
        client = openai_of(router)
        with router.tags(team="tax"):
            await client.chat.completions.create(**CHAT, metadata={"ticket": "7"})
        await client.chat.completions.create(**CHAT)
        assert [trace.metadata for trace in (await router.traces.query()).data] == [{}, {"ticket": "7", "team": "tax"}]


def test_plain_calls_have_the_tags_of_the_code_that_makes_them() -> None:
    with Router.sandbox().blocking as router:
        with router.router.tags(team="tax"):
            OpenAI(http_client=router_client(router), api_key="-").chat.completions.create(**CHAT)
        assert router.traces.query().data[0].metadata == {"team": "tax"}


async def test_calls_are_those_of_the_routers_caller() -> None:
    async with Router.sandbox(storage=MemoryStorage()) as router:
        view = router.as_caller(Caller("acme"))
        await openai_of(view).chat.completions.create(**CHAT)
        assert [trace.account for trace in (await view.traces.query()).data] == ["acme"]
        assert (await router.traces.query()).data == []


async def test_a_refusal_is_an_error_of_the_sdk_which_does_not_repeat_it() -> None:
    async with Router.sandbox() as router:
        with pytest.raises(openai.UnprocessableEntityError, match="no model fits"):
            await openai_of(router).chat.completions.create(
                **CHAT, extra_body={"routewright": {"budget": {"maxCostUsd": 1e-9}}}
            )
        assert len((await router.traces.query()).data) == 1


async def test_a_failure_of_all_models_may_be_tried_again() -> None:
    async with Router.sandbox(faults={"*": "server"}) as router:
        with pytest.raises(openai.InternalServerError) as caught:
            await openai_of(router, max_retries=0).chat.completions.create(**CHAT, extra_body=ONE_TRY)
        assert caught.value.response.headers["X-Should-Retry"] == "true"


async def test_an_unknown_model_is_the_error_of_the_sdk() -> None:
    async with Router.sandbox() as router:
        with pytest.raises(anthropic.NotFoundError, match="claude-sonet"):
            await AsyncAnthropic(http_client=router_client(router), api_key="-").messages.create(
                **{**MESSAGE, "model": "claude-sonet-4-6"}
            )


async def test_a_body_sent_in_pieces_is_read() -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b'{"messages": [{"role": "user", '
        yield b'"content": "Hi"}]}'

    async with Router.sandbox(ANSWERS) as router, router_client(router) as client:
        response = await client.post(
            "http://router/v1/route", content=body(), headers={"Content-Type": "application/json"}
        )
        assert response.json()["output"] == "Hello there, you"


def test_a_plain_body_sent_in_pieces_is_read() -> None:
    def body() -> Iterator[bytes]:
        yield b'{"messages": [{"role": "user", '
        yield b'"content": "Hi"}]}'

    with Router.sandbox(ANSWERS).blocking as router, router_client(router) as client:
        response = client.post("http://router/v1/route", content=body(), headers={"Content-Type": "application/json"})
        assert response.json()["output"] == "Hello there, you"


def test_plain_code_cannot_share_a_virtual_clock() -> None:
    with pytest.raises(ValidationFailed, match="pass the Router itself"):
        router_client(Router.sandbox(settings=Settings(clock=FakeClock())).blocking)
