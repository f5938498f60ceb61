"""Streamed chat completions: through the official SDK, and frame by frame."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import anyio
import httpx2

from routewright import CallableProvider, Delta, Finish
from routewright.errors import ProviderFault
from routewright.testing import ScriptedProvider
from routewright.wire import ToolDelta, UpstreamCall, Usage
from tests.server.uvicorn_server import PATIENCE_S, Site
from tests.tables import table

from .clients import CHAT, ONE, TOOL, TWO, raw, site_of

TEXT: Any = [Delta("Hel"), Delta("lo!"), Usage(4, 2, cached=1), Finish("stop")]
CALLS: Any = [
    ToolDelta(3, "", "call_a", "weather"),
    ToolDelta(3, '{"city":', "call_a", "weather"),
    ToolDelta(1, "{}", "call_b", "weather"),
    ToolDelta(3, ' "Ulm"}'),
    Finish("tool_calls"),
]


def scripted(*turns: Any) -> Site:
    return site_of(ScriptedProvider(turns, models=[ONE]))


def frames(site: Site, **fields: Any) -> tuple[httpx2.Response, list[Any]]:
    """The response, and what its frames hold; the last one as it is."""
    with raw(site, site.key()) as client:
        response = client.post("/chat/completions", json={**CHAT, "stream": True, **fields})
    assert response.text.endswith("\n\n")
    told = [frame.removeprefix("data: ") for frame in response.text[:-2].split("\n\n")]
    return response, [json.loads(each) if each != "[DONE]" else each for each in told]


def test_chunks_have_openais_format() -> None:
    response, (first, second, third, last, done) = frames(scripted(TEXT))
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    trace = response.headers["x-routewright-trace-id"]
    assert response.headers["x-routewright-model"] == "test/one"
    assert response.headers["x-ratelimit-remaining-requests"] == "2999"
    assert {key: first[key] for key in ("id", "object", "model")} == {
        "id": "chatcmpl-" + trace.removeprefix("tr_"),
        "object": "chat.completion.chunk",
        "model": "test/one",
    }
    assert {tuple(each) for each in (first, second, third, last)} == {("id", "object", "created", "model", "choices")}
    assert len({(each["id"], each["created"]) for each in (first, second, third, last)}) == 1
    ended = {"index": 0, "logprobs": None, "finish_reason": None}
    assert [each["choices"] for each in (first, second, third, last)] == [
        [{**ended, "delta": {"role": "assistant", "content": ""}}],
        [{**ended, "delta": {"content": "Hel"}}],
        [{**ended, "delta": {"content": "lo!"}}],
        [{**ended, "delta": {}, "finish_reason": "stop"}],
    ]
    assert done == "[DONE]"


def test_usage_is_the_last_chunk_if_requested() -> None:
    _, (*chunks, usage, done) = frames(scripted(TEXT), stream_options={"include_usage": True})
    assert [each["usage"] for each in chunks] == [None] * 4
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 4,
        "completion_tokens": 2,
        "total_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    assert done == "[DONE]"


def test_pieces_of_tool_calls_are_sent_once() -> None:
    _, chunks = frames(scripted(CALLS), tools=[TOOL])
    deltas = [each["choices"][0]["delta"] for each in chunks[:-1]]
    assert deltas == [
        {"role": "assistant", "content": None},
        {
            "tool_calls": [
                {"index": 0, "id": "call_a", "type": "function", "function": {"name": "weather", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"city":'}}]},
        {
            "tool_calls": [
                {"index": 1, "id": "call_b", "type": "function", "function": {"name": "weather", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 1, "function": {"arguments": "{"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ' "Ulm"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": "}"}}]},
        {},
    ]
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_fallback_before_content_is_invisible() -> None:
    first = ScriptedProvider([ProviderFault("server")] * 2, models=[ONE])
    second = ScriptedProvider([TEXT], models=[TWO])
    response, chunks = frames(site_of(first, second), model="auto:quality")
    assert {each["model"] for each in chunks[:-1]} == {"other/two"}
    assert response.headers["x-routewright-model"] == "other/two"
    assert [each["choices"][0]["delta"].get("role") for each in chunks[:-1]] == ["assistant", None, None, None]


class Breaking:
    """A model that breaks off after its first word, once that was read."""

    def __init__(self) -> None:
        self.was_read = threading.Event()
        self.provider = CallableProvider(self.answer, models=[ONE])

    async def answer(self, call: UpstreamCall) -> AsyncIterator[Delta]:
        yield Delta("Hel")
        await anyio.to_thread.run_sync(self.was_read.wait, PATIENCE_S)
        raise ProviderFault("reset")


def test_on_partial_restart_is_refused_since_chunks_cannot_restart() -> None:
    wishes = {"fallback": {"on_partial": "restart"}}
    with raw(site_of(ScriptedProvider(["Hello."], models=[ONE]))) as client:
        body = {**CHAT, "stream": True, "model": "auto", "routewright": wishes}
        answer = client.post("/chat/completions", json=body)
        plain = client.post("/chat/completions", json={**body, "stream": False})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "routewright.fallback.on_partial")
    assert plain.status_code == 200


@table("wishes", [{}, {"fallback": {"on_partial": "error"}}])
def test_a_fault_after_content_ends_the_stream_with_an_error(wishes: dict[str, Any]) -> None:
    breaking, other = Breaking(), ScriptedProvider(["Another answer."], models=[TWO])
    site = site_of(breaking.provider, other)
    body = {**CHAT, "stream": True, "model": "auto:quality", "routewright": wishes}
    with raw(site, site.key()) as client, client.stream("POST", "/chat/completions", json=body) as response:
        lines = response.iter_lines()
        told = [line for line in (next(lines) for _ in range(4)) if line]
        breaking.was_read.set()
        told += [line for line in lines if line]
    assert response.status_code == 200
    _, word, last = (json.loads(each.removeprefix("data: ")) for each in told)
    assert word["choices"][0]["delta"] == {"content": "Hel"}
    error = last["error"]
    assert (error["code"], error["type"], error["param"]) == ("router.upstream_failed", "server_error", None)
    assert error["trace_id"] == response.headers["x-routewright-trace-id"]
    assert error["request_id"] == response.headers["x-request-id"]
    assert other.calls == []


def test_a_replayed_answer_is_streamed_in_chunks() -> None:
    provider = ScriptedProvider([CALLS], models=[ONE])
    site = site_of(provider)
    body = {**CHAT, "stream": True, "tools": [TOOL]}
    with raw(site, site.key()) as client:
        once, again = (client.post("/chat/completions", json=body, headers={"Idempotency-Key": "k"}) for _ in range(2))
    assert len(provider.calls) == 1
    first = json.loads(once.text.partition("\n")[0].removeprefix("data: "))
    assert again.text.startswith("data: " + json.dumps(first, separators=(",", ":")))
    assert '"arguments":"{\\"city\\": \\"Ulm\\""' in again.text
    assert again.text.endswith("data: [DONE]\n\n")


def test_line_breaks_in_answers_break_no_frame() -> None:
    odd = "a\n\ndata: [DONE]\n\n\r\u2028b"
    _, chunks = frames(scripted([Delta(odd), Finish("stop")]))
    assert "".join(each["choices"][0]["delta"].get("content", "") for each in chunks[:-1]) == odd
    assert len(chunks) == 4
