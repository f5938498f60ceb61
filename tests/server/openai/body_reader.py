"""Reads a chat completions body without a server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from routewright._core.request.rules import complete_request
from routewright.errors import Problem, ValidationFailed
from routewright.server.openai import ChatCall
from routewright.server.vendor_requests import Directory
from routewright.wire import Model, RouteRequest

from .clients import CHAT

CALL: dict[str, Any] = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
IDS = ("openai/gpt-4.1", "openai/o3", "anthropic/claude-x", "deepseek/chat")
KNOWN = Directory({**dict(zip(IDS, IDS, strict=True)), "fast": "openai/o3"}, lambda: [Model(id=id) for id in IDS])


def made(body: object) -> tuple[RouteRequest, ChatCall]:
    asked = ChatCall(KNOWN)
    return complete_request(asked.decode(json.dumps(body).encode())), asked


def request(**fields: Any) -> RouteRequest:
    return made({**CHAT, **fields})[0]


def ignored(**fields: Any) -> set[str]:
    return set(made({**CHAT, **fields})[1].ignored)


def refused(body: object) -> Problem:
    asked = ChatCall(KNOWN)
    with pytest.raises(ValidationFailed) as caught:
        complete_request(asked.decode(json.dumps(body).encode()))
    told = asked.in_words(caught.value, 0.0)
    assert isinstance(told, ValidationFailed)
    assert told.message == "\n".join(map(str, told.problems))
    return told.problems[0]


def fault(**fields: Any) -> Problem:
    return refused({**CHAT, **fields})
