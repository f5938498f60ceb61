"""Raw HTTP exchanges of the Messages API, without the SDK."""

from __future__ import annotations

from typing import Any

import httpx2
import msgspec

from routewright import Caller, Router
from routewright.errors import AuthenticationFailed
from routewright.server import create_app
from tests.server.uvicorn_server import served
from tests.tables import table

from .clients import ASKED, WEATHER, sandbox

AT = "/anthropic/v1/messages"
AGENT: dict[str, Any] = {
    "model": "claude-haiku-4-5-20251001",
    "max_tokens": 32_000,
    "stream": True,
    "temperature": 1,
    "metadata": {"user_id": "user_1_account__session_2"},
    "thinking": {"type": "enabled", "budget_tokens": 31_999},
    "context_management": {"edits": []},
    "system": [
        {"type": "text", "text": "You are a coding agent."},
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
    ],
    "tools": [{**WEATHER, "cache_control": {"type": "ephemeral"}, "eager_input_streaming": True}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Look"}, {"type": "text", "text": "around"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "content": [{"type": "text", "text": "none"}],
                    "is_error": True,
                    "cache_control": {"type": "ephemeral"},
                }
            ],
        },
    ],
}
HEADERS = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219,fine-grained-tool-streaming"}


def events_of(text: str) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), msgspec.json.decode(data.removeprefix("data: "))))
    return found


def test_a_coding_agent_is_answered() -> None:
    site = sandbox()
    with site.client() as client:
        key = site.key(environment="sandbox")
        answer = client.post(f"{AT}?beta=true", json=AGENT, headers={**HEADERS, "x-api-key": key})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["X-Routewright-Model"] == "anthropic/claude-haiku-4-5"
    assert answer.headers["X-Routewright-Ignored"].split(", ") == ["context_management", "eager_input_streaming"]
    events = events_of(answer.text)
    assert all(name == data["type"] for name, data in events)
    assert [name for name, _ in events][:2] == ["message_start", "content_block_start"]
    assert [name for name, _ in events][-2:] == ["message_delta", "message_stop"]


def test_a_stream_ends_with_its_usage() -> None:
    site = sandbox({"Hi": "Hello"})
    with site.client(site.key(environment="sandbox")) as client:
        whole = client.post(AT, json=ASKED).json()
        events = events_of(client.post(AT, json={**ASKED, "stream": True}).text)
    started, ended = events[0][1]["message"], events[-2][1]
    assert started["content"] == []
    assert started["stop_reason"] is None
    assert started["usage"]["output_tokens"] == 0
    assert ended["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert ended["usage"] == whole["usage"]


def test_every_response_has_its_id_and_cost() -> None:
    site = sandbox()
    with site.client(site.key(environment="sandbox")) as client:
        answer = client.post(AT, json=ASKED)
        stream = client.post(AT, json={**ASKED, "stream": True})
        refused = client.post(AT, json={**ASKED, "model": "nope", "top_k": 1})
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    assert answer.headers["X-Routewright-Trace-Id"].removeprefix("tr_") == answer.json()["id"].removeprefix("msg_")
    assert float(answer.headers["X-Routewright-Cost-Usd"]) > 0
    assert answer.headers["X-RateLimit-Limit"] == "3000"
    assert stream.headers["X-RateLimit-Limit"] == "3000"
    assert stream.headers["request-id"].startswith("req_")
    assert refused.headers["request-id"] == refused.json()["request_id"]


def keyed(client: httpx2.Client, **headers: str) -> httpx2.Response:
    return client.post(AT, json=ASKED, headers=headers)


def test_a_key_may_be_in_either_header_or_the_same_in_both() -> None:
    site = sandbox()
    key, other = (site.key(environment="sandbox") for _ in range(2))
    bearer = f"Bearer {key}"
    with site.client() as client:
        assert keyed(client, authorization=bearer).status_code == 200
        assert keyed(client, **{"x-api-key": key}).status_code == 200
        assert keyed(client, **{"x-api-key": key}, authorization=bearer).status_code == 200
        assert keyed(client, **{"x-api-key": key}, authorization=f"bearer {key}").status_code == 200
        both = keyed(client, **{"x-api-key": other}, authorization=bearer)
        none = keyed(client)
        wrong = keyed(client, **{"x-api-key": "sk_test_" + "0" * 33})
    assert [answer.status_code for answer in (both, none, wrong)] == [401, 401, 401]
    assert "different API keys" in both.json()["error"]["message"]
    assert key not in both.text
    assert other not in both.text


def test_the_hosts_authenticate_replaces_both_headers() -> None:
    def known(scope: Any) -> Caller:
        if (b"x-api-key", b"theirs") in scope["headers"]:
            return Caller("acme", "sandbox")
        raise AuthenticationFailed("who are you?")

    app = create_app(Router.sandbox(), authenticate=known)
    with served(app) as url, httpx2.Client(base_url=url) as client:
        assert keyed(client, **{"x-api-key": "theirs"}, authorization="Bearer other").status_code == 200
        assert keyed(client, **{"x-api-key": "mine"}).json()["error"]["message"] == "who are you?"


@table("empty", ["", "Bearer"])
def test_an_empty_key_header_counts_as_missing(empty: str) -> None:
    site = sandbox()
    key = site.key(environment="sandbox")
    with site.client() as client:
        answer = client.post(AT, json=ASKED, headers={"x-api-key": key, "Authorization": empty})
        bearer = client.post(AT, json=ASKED, headers={"x-api-key": empty, "Authorization": f"Bearer {key}"})
    assert (answer.status_code, bearer.status_code) == (200, 200 if not empty else 401)
