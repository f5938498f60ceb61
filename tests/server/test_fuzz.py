"""Any input gets an answer or a refusal: never an internal error, and no unexpected 5xx."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from random import Random
from typing import Any

import anyio
import msgspec
import pytest

from routewright import Caller, Router
from routewright.server import create_app
from routewright.server.routes import ENDPOINTS

from .asgi_client import Client, scope_of

SEEDS: list[Any] = [
    {"messages": [{"role": "user", "content": "Hello"}]},
    {
        "messages": [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": [{"type": "text", "text": "What is it?"}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "1", "content": "x"},
        ],
        "goal": "quality",
        "strategy": "balanced",
        "models": ["openai/gpt-4o"],
        "fallback": {"models": [], "maxRetries": 1, "on_partial": "error"},
        "budget": {"maxCostUsd": 0.5, "maxTokens": 9000},
        "cache": {"mode": "exact", "ttl_seconds": 5},
        "stream": True,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "tool_choice": "auto",
        "params": {"temperature": 0.5, "stop": ["x"], "seed": 1, "response_format": {"type": "json_object"}},
        "metadata": {"a": [1, {"b": None}]},
        "timeout_ms": 5000,
        "idempotency_key": "k",
    },
    {"model": "auto", "messages": [{"role": "user", "content": "Hi"}], "system": "x", "max_tokens": 9, "stream": True},
]
ODD: list[Any] = [
    *(None, True, False, 0, -1, 1, 1.5, 2**53, -(2**63), 1e308, "", "x", "\0", "é", "😀", "\u202e", "a" * 300),
    *([], {}, [[]], [None], {"": {}}, {"type": "text"}, ["x"] * 50, "../../etc/passwd", "%s%n", "' OR 1=1 --", "null"),
]
HEADERS = [
    *("content-type", "content-encoding", "idempotency-key", "authorization", "traceparent", "x-api-key", "expect"),
    *("accept", "range", "cookie", "x-forwarded-for", "content-length", "anthropic-version", "x-request-id", "te"),
]
PATHS = [
    *(path.partition("{")[0] for path in ENDPOINTS),
    *("/", "", "*", "/v1", "/v1/", "/v2/route", "/v1/route/", "/%2e/v1"),
]
METHODS = ["GET", "POST", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"]
EXPLAINED = {502, 504}
"""What the sandbox may come to by what is asked: nothing else of 5xx."""


class Fuzz:
    """Requests by chance, the same for a seed."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)

    def value(self, seed: Any, depth: int = 0) -> Any:
        """A value like the seed, with something odd in it now and then."""
        chance = self.chance
        if chance.random() < 0.06:
            return chance.choice(ODD)
        match seed:
            case dict():
                made = {key: self.value(each, depth + 1) for key, each in seed.items() if chance.random() > 0.05}
                if chance.random() < 0.05:
                    made[chance.choice(["x", "", "stream", "n", "\0", "__proto__"])] = chance.choice(ODD)
                return made
            case list():
                made_list = [self.value(each, depth + 1) for each in seed]
                return made_list * chance.choice((1, 1, 1, 2, 0)) if chance.random() < 0.1 else made_list
        return seed

    def body(self) -> bytes:
        chance = self.chance
        raw = msgspec.json.encode(self.value(chance.choice(SEEDS)))
        kind = chance.random()
        if kind < 0.1:
            return self.mangled(raw)
        if kind < 0.12:
            return chance.randbytes(chance.randrange(200))
        if kind < 0.14:
            return b"[" * chance.randrange(200) + raw
        return raw

    def mangled(self, raw: bytes) -> bytes:
        made, chance = bytearray(raw), self.chance
        for _ in range(chance.randrange(1, 6)):
            at = chance.randrange(len(made) + 1)
            match chance.randrange(3):
                case 0:
                    made[at : at + chance.randrange(4)] = b""
                case 1:
                    made[at:at] = chance.randbytes(chance.randrange(4))
                case _:
                    made[at : at + 1] = chance.choice([b"\0", b"\xff", b"}", b'"', b"\\", b"\xed\xa0\x80", b"1e999"])
        return bytes(made)

    def text(self, most: int = 40) -> str:
        return "".join(chr(self.chance.randrange(1, 256)) for _ in range(self.chance.randrange(most)))

    def path(self) -> str:
        path = self.chance.choice(PATHS)
        return path + self.text() if self.chance.random() < 0.3 else path

    def query(self) -> str:
        if self.chance.random() < 0.6:
            return ""
        names = [*"from to filter limit cursor group_by bucket start_date end_date".split(), self.text(9)]
        values = [*"1 2026-11-01 status=failed day model metadata.x>=1 %ff %00 a,b".split(), self.text(), ""]
        pairs = (f"{self.chance.choice(names)}={self.chance.choice(values)}" for _ in range(self.chance.randrange(4)))
        return "&".join(pairs)

    def headers(self) -> dict[str, str]:
        some = self.chance.sample(HEADERS, self.chance.randrange(4))
        told = {name: self.text() if self.chance.random() < 0.5 else "application/json" for name in some}
        return {"content-type": "application/json", **told} if self.chance.random() < 0.9 else told


@pytest.mark.parametrize("who", ["default", "acme"])
def test_no_request_causes_an_internal_error(full: bool, who: str, caplog: pytest.LogCaptureFixture) -> None:
    app = create_app(Router.sandbox(), authenticate=lambda scope: Caller(who))
    fuzz, answers = Fuzz(11), Counter[int | None]()

    async def run() -> None:
        for _ in range(40_000 if full else 350):
            scope = scope_of(fuzz.chance.choice(METHODS[:2] if fuzz.chance.random() < 0.8 else METHODS), "/")
            scope["path"], scope["query_string"] = fuzz.path(), fuzz.query().encode("latin-1")
            scope["headers"] = [(name.encode(), value.encode("latin-1")) for name, value in fuzz.headers().items()]
            body = fuzz.body()
            cut = fuzz.chance.randrange(len(body) + 1)
            client = Client(*((body,) if fuzz.chance.random() < 0.8 else (body[:cut], body[cut:])))
            await app(scope, client.receive, client.send)
            assert client.is_whole
            answers[client.status] += 1
            if client.status is not None and client.status >= 500:
                assert client.status in EXPLAINED, (scope, body)

    with caplog.at_level(logging.ERROR):
        anyio.run(run)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert {200, 400, 404, 405, 415} <= {*answers}, answers


VALUES = [
    *("1e400", "-1e400", "1e19", "-1e19", "1e308", "5e-324", "-0.0", "0", "-1", "1.5", "1e9", "9007199254740993"),
    *("18446744073709551616", "9" * 400, "1" + "0" * 5_000, "01", "0x10", "NaN", "Infinity", "true", "null"),
    *('""', '"x"', '" "', '"1e400"', '"inf"', '"\\u0000"', '"\\ud83d\\ude00"', '"\\ud800"', '"\\u202e\u00e9"'),
    *('"%s"' % ("a" * 70_000), "[]", "{}", "[[]]", "[null]", "[1e400]", '{"a":1e400}', '{"":{}}', '{"a":1,"a":2}'),
    *(
        "[" * 60 + "]" * 60,
        "[" * 70 + "]" * 70,
        '{"a":' * 70 + "1" + "}" * 70,
        "[1,2.5,true,null]",
        '[{"type":"text"}]',
    ),
]
"""Raw JSON, or what looks like it."""
CHAT: Any = {
    "model": "auto", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0.5, "top_p": 0.5,
    "max_tokens": 9, "stop": ["x"], "stream": False, "metadata": {"a": "b"},
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "routewright": {"budget": {"maxCostUsd": 0.5}, "timeout_ms": 5000},
}  # fmt: skip
MESSAGES: Any = {
    "model": "auto", "system": "x", "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
    "max_tokens": 9, "temperature": 0.5, "top_k": 3, "thinking": {"type": "enabled", "budget_tokens": 1024},
    "tools": [{"name": "f", "input_schema": {"type": "object"}}], "stop_sequences": ["x"],
}  # fmt: skip
BODIES: dict[str, Any] = {
    "/v1/route": SEEDS[1] | {"stream": False},
    "/v1/agents/run": {
        "task": "What is 2 + 2?", "tools": ["calculator"], "max_steps": 3, "per_step_timeout_ms": 1000,
        "total_budget_usd": 0.5, "model_strategy": {"goal": "quality", "strategy": "balanced"}, "stream_steps": False,
        "metadata": {"a": [1]}, "idempotency_key": "k",
    },
    "/openai/v1/chat/completions": CHAT,
    "/openai/v1/responses": {
        "model": "auto", "input": [{"role": "user", "content": "Hi"}], "instructions": "x", "max_output_tokens": 20,
        "temperature": 0.5, "metadata": {"a": "b"}, "reasoning": {"effort": "low"},
    },
    "/anthropic/v1/messages": MESSAGES,
    "/anthropic/v1/messages/count_tokens": {name: MESSAGES[name] for name in ("model", "system", "messages", "tools")},
}  # fmt: skip


def places_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """All places in a body, inner ones included."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in inner:
        yield (*path, name)
        yield from places_in(part, (*path, name))


def with_value(body: Any, place: tuple[Any, ...], raw: str) -> bytes:
    changed = deepcopy(body)
    *outer, last = place
    part = changed
    for name in outer:
        part = part[name]
    part[last] = "@here@"
    return msgspec.json.encode(changed).replace(b'"@here@"', raw.encode())


def test_no_value_of_a_field_causes_an_internal_error(full: bool, caplog: pytest.LogCaptureFixture) -> None:
    app = create_app(Router.sandbox(), authenticate=lambda scope: Caller("default"))
    fields = [(path, place) for path, body in BODIES.items() for place in places_in(body)]
    cases = [(path, place, raw) for path, place in fields for raw in VALUES]
    assert len(cases) > 3_000
    certain = [case for case in cases if case[2] in ("1e400", "1e19") and case[0] == "/v1/agents/run"]
    answers = Counter[int | None]()

    async def run() -> None:
        for path, place, raw in cases if full else [*certain, *Random(13).sample(cases, 300)]:
            client = Client(with_value(BODIES[path], place, raw))
            await app(scope_of("POST", path), client.receive, client.send)
            answers[client.status] += 1
            assert client.status is not None
            assert client.status < 500 or client.status in EXPLAINED, (path, place, raw[:80], client.body)

    with caplog.at_level(logging.ERROR):
        anyio.run(run)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert {200, 400} <= {*answers}
