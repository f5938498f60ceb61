"""What is made of a body of chat completions, without a server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from routewright._core.request.rules import completed
from routewright.errors import Problem, ValidationFailed
from routewright.server.openai import Asked, in_words
from routewright.wire import RouteRequest

from .clients import CHAT

CALL: dict[str, Any] = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
KNOWN = {"openai/gpt-4.1", "anthropic/claude-x", "fast"}


def made(body: object) -> tuple[RouteRequest, Asked]:
    asked = Asked(KNOWN)
    return completed(asked.request_of(json.dumps(body).encode())), asked


def request(**fields: Any) -> RouteRequest:
    return made({**CHAT, **fields})[0]


def ignored(**fields: Any) -> set[str]:
    return set(made({**CHAT, **fields})[1].ignored)


def refused(body: object) -> Problem:
    asked = Asked(KNOWN)
    with pytest.raises(ValidationFailed) as caught:
        completed(asked.request_of(json.dumps(body).encode()))
    told = in_words(caught.value, asked.words, 0.0)
    assert isinstance(told, ValidationFailed)
    assert told.message == "\n".join(map(str, told.problems))
    return told.problems[0]


def fault(**fields: Any) -> Problem:
    return refused({**CHAT, **fields})
