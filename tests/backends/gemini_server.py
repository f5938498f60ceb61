"""A real HTTP server on loopback that speaks generateContent and is scripted by tests.

Requests are checked against the types of the official ``google-genai`` package, and so are its default answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from google.genai import types
from pydantic import BaseModel, ConfigDict, Field

from tests.upstream import Answer, Cut, Gate, Request, Upstream, of_json

USAGE = {"promptTokenCount": 9, "candidatesTokenCount": 3, "totalTokenCount": 12}


class Body(BaseModel):
    """The body of a request, in the official types."""

    model_config = ConfigDict(extra="forbid")

    contents: list[types.Content] = Field(min_length=1)
    systemInstruction: types.Content | None = None
    tools: list[types.Tool] | None = None
    toolConfig: types.ToolConfig | None = None
    generationConfig: types.GenerationConfig | None = None
    serviceTier: types.ServiceTier | None = None


def problems_of(body: bytes) -> list[str]:
    """What the official types say against a request body; unknown fields are problems."""
    try:
        made = Body.model_validate_json(body)
    except ValueError as exc:
        return [str(exc)]
    if any(one.role == next.role for one, next in pairwise(made.contents)):
        return ["two turns of one role in a row"]
    contents = [*made.contents, *([made.systemInstruction] if made.systemInstruction else [])]
    return [f"a part of {len(told)} kinds" for told in map(_kinds, contents) if any(len(kinds) != 1 for kinds in told)]


def _kinds(content: types.Content) -> list[set[str]]:
    """What each part is: exactly one thing."""
    beside = {"thought", "thought_signature", "media_resolution"}
    return [set(part.model_dump(exclude_none=True)) - beside for part in content.parts or [types.Part()]]


class GeminiServer(Upstream):
    """Answers each request with the next of ``answers``, or with what ``answer`` makes of it."""

    def __init__(self, answer: Callable[[Request], Answer] = lambda request: echo(request)) -> None:
        super().__init__(answer)

    @property
    def url(self) -> str:
        return self.root

    def problems_in(self, request: Request) -> list[str]:
        return problems_of(request.raw)


def generated(*parts: Any, finish: str | None = None, usage: Any = None, **more: Any) -> dict[str, Any]:
    """One document with a candidate. Text stands for its part; the official types take it."""
    made = [{"text": part} if isinstance(part, str) else part for part in parts]
    candidate: dict[str, Any] = {"content": {"role": "model"} | ({"parts": made} if made else {}), "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    document = {"candidates": [candidate], "modelVersion": "m", "responseId": "r1"} | more
    return checked(document | ({"usageMetadata": usage} if usage else {}))


def checked(document: dict[str, Any]) -> dict[str, Any]:
    """A document, if the official types take it."""
    types.GenerateContentResponse.model_validate_json(json.dumps(document))
    return document


def called(name: str, args: Any = None, id: str | None = None) -> dict[str, Any]:
    """A part that calls a function."""
    named = {"id": id, "name": name, "args": args}
    return {"functionCall": {key: value for key, value in named.items() if value is not None}}


def whole(*parts: Any, finish: str | None = "STOP", usage: Any = USAGE, **more: Any) -> Answer:
    """A plain answer."""
    return of_json(generated(*parts, finish=finish, usage=usage, **more))


def events(*documents: dict[str, Any] | str | bytes | Gate | Cut) -> Answer:
    """A streamed answer: dictionaries become events, bytes are sent as they are."""
    pieces = [
        part if isinstance(part, bytes | Gate | Cut) else f"data: {_text(part)}\r\n\r\n".encode() for part in documents
    ]
    return Answer(pieces, headers={"content-type": "text/event-stream"}, chunked=True)


def _text(part: dict[str, Any] | str) -> str:
    return part if isinstance(part, str) else json.dumps(part, ensure_ascii=False)


def error(code: int, status: str, message: str = "...", details: Any = None, **headers: str) -> Answer:
    """An error as Google writes it."""
    told = {"code": code, "message": message, "status": status} | ({"details": details} if details else {})
    return of_json({"error": told}, code, **headers)


def echo(request: Request) -> Answer:
    """Echo the last text, plain or streamed as requested."""
    text = request.body["contents"][-1]["parts"][-1].get("text", "none")
    if ":streamGenerateContent" not in request.path:
        return whole(text)
    return events(*map(generated, text), generated("", finish="STOP", usage=USAGE))
