"""A server that speaks chat completions. Every request is checked against the types of the ``openai`` package."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, get_args, get_type_hints

from openai.types.chat.completion_create_params import CompletionCreateParams
from pydantic import ConfigDict, TypeAdapter
from typing_extensions import is_typeddict

from tests.upstream import Answer, Cut, Gate, Piece, Request, Upstream, of_json


def whole(message: dict[str, Any] | str = "hello", *, finish: str | None = "stop", **more: Any) -> Answer:
    """A plain completion; ``more`` is merged into the document."""
    said = {"role": "assistant", "content": message} if isinstance(message, str) else message
    document = {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": said, "finish_reason": finish}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
    }
    return of_json(document | more)


def delta(content: str | None = None, *, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """One chunk of a stream."""
    said = ({"content": content} if content is not None else {}) | more
    return {
        "id": "c1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "delta": said, "finish_reason": finish}],
    }


USAGE = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}}


def events(*parts: dict[str, Any] | str | bytes | Gate | Cut, done: bool = True) -> Answer:
    """A streamed completion: dictionaries become events, bytes are sent as they are."""
    pieces: list[Piece] = []
    for part in parts:
        text = json.dumps(part, ensure_ascii=False) if isinstance(part, dict) else part
        pieces.append(f"data: {text}\n\n".encode() if isinstance(text, str) else text)
    if done:
        pieces.append(b"data: [DONE]\n\n")
    return Answer(pieces, headers={"content-type": "text/event-stream"}, chunked=True)


class OpenAIServer(Upstream):
    """Checks each request; another protocol's are held to its own."""

    def __init__(
        self, answer: Callable[[Request], Answer] = lambda request: whole(), tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(answer, tls)

    def problems_in(self, request: Request) -> list[str]:
        return problems_of(request.body) if request.path.endswith("/chat/completions") else []


def echo(request: Request) -> Answer:
    """Echo the last message, plain or streamed as requested."""
    text = request.body["messages"][-1]["content"]
    if not request.body.get("stream"):
        return whole(text)
    return events(delta("", role="assistant"), *(delta(letter) for letter in text), delta(finish="stop"), USAGE)


def problems_of(body: Any) -> list[str]:
    return violations(CompletionCreateParams, body)


def violations(kind: Any, body: Any) -> list[str]:
    """What an official type says against a request body; unknown fields are problems."""
    try:
        _exhaust(_adapter(kind).validate_python(body, strict=True))
    except ValueError as exc:
        return [str(exc)]
    return []


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    _forbid_extra(kind, set())
    return TypeAdapter(kind)


def _forbid_extra(hint: Any, seen: set[Any]) -> None:
    """Let every dictionary type inside ``hint`` refuse fields that it does not name."""
    if is_typeddict(hint) and hint not in seen:
        seen.add(hint)
        hint.__pydantic_config__ = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
        for inner in get_type_hints(hint).values():
            _forbid_extra(inner, seen)
    for inner in get_args(hint):
        _forbid_extra(inner, seen)


def _exhaust(value: Any) -> None:
    """Iterables are checked only as they are iterated."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        return
    for inner in value.values() if isinstance(value, dict) else value:
        _exhaust(inner)
