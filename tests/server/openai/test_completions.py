"""Non-streamed chat completions, through the official SDK and on the wire."""

from __future__ import annotations

from datetime import datetime

from routewright import Delta, Finish
from routewright.testing import ScriptedProvider
from routewright.wire import Usage
from tests.server.uvicorn_server import Site

from .clients import CHAT, HI, ONE, raw, sdk, site_of


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


def test_a_truncated_answer_ends_with_length() -> None:
    with sdk(Site()) as client:
        answer = client.chat.completions.create(model="auto", messages=HI, max_tokens=5)
        budget = {"budget": {"maxTokens": 20}}
        by_budget = client.chat.completions.create(
            model="gpt-4.1", messages=HI, max_tokens=9, extra_body={"routewright": budget}
        )
    assert answer.choices[0].finish_reason == "length"
    assert by_budget.choices[0].finish_reason == "length"
