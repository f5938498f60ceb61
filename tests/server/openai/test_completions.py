"""Non-streamed chat completions, through the official SDK and on the wire."""

from __future__ import annotations

import threading
from datetime import datetime
from functools import partial
from typing import Any

import anyio
import httpx2

from routewright import CallableProvider, Delta, Finish
from routewright.testing import ScriptedProvider
from routewright.wire import ToolDelta, UpstreamCall, Usage
from tests.server.uvicorn_server import PATIENCE_S, Site, bearer
from tests.tables import table

from .clients import CHAT, HI, ONE, TOOL, TWO, raw, sandbox, sdk, site_of


def test_an_answer_is_a_chat_completion() -> None:
    with sdk(sandbox({"Hi": "Hello!"})) as client:
        answer = client.chat.completions.create(model="gpt-4.1", messages=HI)
    (choice,) = answer.choices
    assert (choice.index, choice.finish_reason, choice.message.content) == (0, "stop", "Hello!")
    assert (choice.message.role, choice.message.refusal, choice.message.tool_calls) == ("assistant", None, None)
    assert answer.model == "openai/gpt-4.1"
    assert answer.object == "chat.completion"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 1


def test_a_completion_has_every_field_that_typed_clients_require() -> None:
    provider = ScriptedProvider([[Delta("Four."), Usage(9, 2, cached=3), Finish("stop")]], models=[ONE])
    site = site_of(provider)
    with site.client(site.key()) as client:
        answer = client.post("/openai/v1/chat/completions", json=CHAT)
        trace = answer.headers["x-routewright-trace-id"]
        began = client.get(f"/v1/traces/{trace}").json()["created_at"]
    body = answer.json()
    assert body.pop("created") == int(datetime.fromisoformat(began).timestamp())
    assert body == {
        "id": "chatcmpl-" + trace.removeprefix("tr_"),
        "object": "chat.completion",
        "model": "test/one",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Four.", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 9,
            "completion_tokens": 2,
            "total_tokens": 11,
            "prompt_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


def test_headers_have_the_routing_and_the_remaining_limits() -> None:
    with raw(Site()) as client:
        headers = client.post(
            "/chat/completions", json={**CHAT, "model": "gpt-4.1", "user": "ann", "store": True}
        ).headers
    assert headers["content-type"] == "application/json"
    assert headers["x-routewright-model"] == "openai/gpt-4.1"
    assert float(headers["x-routewright-cost-usd"]) > 0
    assert headers["x-routewright-ignored"] == "store"
    assert headers["x-ratelimit-limit"] == headers["x-ratelimit-limit-requests"] == "3000"
    assert headers["x-ratelimit-remaining"] == headers["x-ratelimit-remaining-requests"] == "2999"
    assert 0 < int(headers["x-ratelimit-reset-requests"].removesuffix("s")) <= 61
    assert "x-ratelimit-limit-tokens" not in headers
    assert headers["x-request-id"].startswith("req_")


@table(
    ("fields", "model"),
    [
        ({"model": "openai/gpt-4.1"}, "openai/gpt-4.1"),
        ({"model": "auto", "routewright": {"models": ["openai/gpt-4.1"]}}, "openai/gpt-4.1"),
        ({"model": "gpt-4.1", "routewright": {"fallback": {"models": []}}}, "openai/gpt-4.1"),
    ],
)
def test_routing_options_are_in_model_and_in_the_field_routewright(fields: dict[str, Any], model: str) -> None:
    with raw(Site()) as client:
        assert client.post("/chat/completions", json={**CHAT, **fields}).json()["model"] == model


def test_the_answer_names_the_serving_model() -> None:
    site = sandbox(faults={"openai/gpt-4.1": "server"})
    wishes = {"models": ["openai/gpt-4.1", "openai/gpt-4o"], "fallback": {"models": ["openai/gpt-4o"]}}
    with sdk(site) as client:
        answer = client.chat.completions.create(model="auto", messages=HI, extra_body={"routewright": wishes})
    assert answer.model == "openai/gpt-4o"


def test_the_provider_gets_the_fields_that_were_sent() -> None:
    provider = ScriptedProvider(["Fine."], models=[ONE])
    with sdk(site_of(provider)) as client:
        client.chat.completions.create(
            model="auto",
            messages=[{"role": "developer", "content": "Be brief."}, *HI],
            max_completion_tokens=50,
            temperature=0.25,
            top_p=0.5,
            stop="END",
            seed=7,
            tools=[TOOL],
            tool_choice="none",
        )
    (call,) = provider.calls
    assert [message.content for message in call.messages] == ["Be brief.", "Hi"]
    assert call.max_output_tokens == 50
    assert (call.params.temperature, call.params.top_p, call.params.stop, call.params.seed) == (0.25, 0.5, "END", 7)
    assert call.tools is not None
    assert call.tool_choice == "none"


def test_tools_are_called_and_their_results_sent_back() -> None:
    script: list[Any] = [
        [ToolDelta(0, '{"city": ', "call_1", "weather"), ToolDelta(0, '"Ulm"}'), Finish("stop")],
        "It rains.",
    ]
    provider = ScriptedProvider(script, models=[ONE])
    with sdk(site_of(provider)) as client:
        asked = client.chat.completions.create(model="auto", messages=HI, tools=[TOOL])
        (choice,) = asked.choices
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        assert choice.message.tool_calls is not None
        (call,) = choice.message.tool_calls
        assert call.type == "function"
        assert (call.id, call.function.name, call.function.arguments) == ("call_1", "weather", '{"city": "Ulm"}')
        result: Any = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
        back: Any = choice.message.model_dump()
        answer = client.chat.completions.create(model="auto", messages=[*HI, back, result], tools=[TOOL])
    assert answer.choices[0].message.content == "It rains."
    assert [message.role for message in provider.calls[1].messages] == ["user", "assistant", "tool"]
    assert provider.calls[1].messages[1].tool_calls is not None


def test_an_unknown_finish_reason_becomes_stop() -> None:
    with sdk(site_of(ScriptedProvider([[Delta("Hello!"), Finish("tired")]], models=[ONE]))) as client:
        answer = client.chat.completions.create(model="test/one", messages=HI)
    assert answer.choices[0].finish_reason == "stop"


def test_a_truncated_answer_ends_with_length() -> None:
    with sdk(Site()) as client:
        answer = client.chat.completions.create(model="auto", messages=HI, max_tokens=5)
        budget = {"budget": {"maxTokens": 20}}
        by_budget = client.chat.completions.create(
            model="gpt-4.1", messages=HI, max_tokens=9, extra_body={"routewright": budget}
        )
    assert answer.choices[0].finish_reason == "length"
    assert by_budget.choices[0].finish_reason == "length"


def test_a_repeated_idempotency_key_makes_one_call() -> None:
    provider = ScriptedProvider(["One.", "Two."], models=[ONE])
    with sdk(site_of(provider)) as client:
        answers = [
            client.chat.completions.create(model="auto", messages=HI, extra_headers={"Idempotency-Key": "k1"})
            for _ in range(2)
        ]
    assert answers[0] == answers[1]
    assert len(provider.calls) == 1


def test_a_key_used_at_another_path_is_a_conflict() -> None:
    site = site_of(ScriptedProvider(["One.", "Two."], models=[ONE]))
    headers = {"Idempotency-Key": "k1"}
    with site.client(site.key()) as client:
        assert client.post("/v1/route", json={"messages": HI}, headers=headers).status_code == 200
        answer = client.post("/openai/v1/chat/completions", json=CHAT, headers=headers)
    assert answer.status_code == 409


class Held:
    """A model that answers once it is told to."""

    def __init__(self) -> None:
        self.entered, self.left, self.go_on = threading.Event(), threading.Event(), threading.Event()
        self.calls = 0
        self.provider = CallableProvider(self.answer, models=[ONE])

    async def answer(self, call: UpstreamCall) -> str:
        self.calls += 1
        self.entered.set()
        try:
            await anyio.to_thread.run_sync(self.go_on.wait, PATIENCE_S, abandon_on_cancel=True)
        finally:
            self.left.set()
        return "At last."


def leave(url: str, key: str, held: Held, **body: Any) -> None:
    """Ask, and hang up while the model thinks."""

    async def ask() -> None:
        headers = {**bearer(key), "Idempotency-Key": "k1"} if body.pop("keyed", False) else bearer(key)
        async with httpx2.AsyncClient(base_url=url, headers=headers) as client, anyio.create_task_group() as group:
            group.start_soon(partial(client.post, "/openai/v1/chat/completions", json={**CHAT, **body}))
            await anyio.to_thread.run_sync(held.entered.wait, PATIENCE_S)
            group.cancel_scope.cancel()

    anyio.run(ask)


@table("stream", [False, True])
def test_a_disconnect_cancels_the_call(stream: bool) -> None:
    held = Held()
    site = site_of(held.provider)
    key = site.key()
    with site.served() as url:
        leave(url, key, held, stream=stream)
        assert held.left.wait(PATIENCE_S)
        assert not held.go_on.is_set()
        held.go_on.set()


@table("stream", [False, True])
def test_with_a_key_the_call_finishes_and_is_replayed(stream: bool) -> None:
    held = Held()
    site = site_of(held.provider)
    key = site.key()
    with site.served() as url, httpx2.Client(base_url=url, headers=bearer(key), timeout=PATIENCE_S) as client:
        leave(url, key, held, stream=stream, keyed=True)
        held.go_on.set()
        body = {**CHAT, "stream": stream}
        answer = client.post("/openai/v1/chat/completions", json=body, headers={"Idempotency-Key": "k1"})
    assert "At last." in answer.text
    assert held.calls == 1


def test_a_model_of_another_vendor_is_the_fallback() -> None:
    first, second = ScriptedProvider([], models=[ONE]), ScriptedProvider(["Here."], models=[TWO])
    with sdk(site_of(first, second)) as client:
        answer = client.chat.completions.create(model="auto:quality", messages=HI)
    assert (answer.model, answer.choices[0].message.content) == ("other/two", "Here.")
