"""A real HTTP server on loopback that speaks the Messages API and is scripted by tests.

Every request and every answer is validated against the types of the official ``anthropic`` package.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from anthropic.types import Message, RawMessageStreamEvent
from anthropic.types.message_create_params import MessageCreateParams
from pydantic import TypeAdapter

from tests.upstream import Answer, Cut, Gate, Request, Upstream, of_json

from .openai_server import violations

COUNTED = {"input_tokens": 9, "output_tokens": 3}
OLD_FIELDS = ("temperature", "top_p")
"""What the types of the API's latest version do not name any more, that of the version before knows."""

_message: TypeAdapter[Any] = TypeAdapter(Message)
_event: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


class AnthropicServer(Upstream):
    """Answers each request with the next of ``answers``, or with what ``answer`` makes of it."""

    def __init__(self, answer: Callable[[Request], Answer] | None = None) -> None:
        super().__init__(echo if answer is None else answer)

    @property
    def url(self) -> str:
        return self.root

    def problems_in(self, request: Request) -> list[str]:
        return problems_of(request.body)


def problems_of(body: dict[str, Any]) -> list[str]:
    """What the official types say against a request body, and the order of its turns; unknown fields are problems."""
    old = [body[name] for name in OLD_FIELDS if name in body]
    problems = [f"{value} is no number from 0 to 1" for value in old if not 0 <= value <= 1]
    if any(one["role"] == next["role"] for one, next in pairwise(body["messages"])):
        problems.append("two turns of one role in a row")
    for turn in body["messages"]:
        results = [block["type"] == "tool_result" for block in turn["content"]]
        if not results or results != sorted(results, reverse=True):
            problems.append("a turn without content, or results of tools behind other blocks")
    known = {name: value for name, value in body.items() if name not in OLD_FIELDS}
    return problems + violations(MessageCreateParams, known)


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def used(name: str, arguments: dict[str, Any], id: str = "toolu_1") -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": arguments}


def thought(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": "c2ln"}


def message(*content: dict[str, Any], stop: str | None = "end_turn", **more: Any) -> dict[str, Any]:
    """A whole message; ``more`` is merged into the document."""
    document = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-opus-5-5",
        "content": list(content),
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": COUNTED,
    } | more
    _message.validate_python(document)
    return document


def events_of(whole: dict[str, Any], size: int = 3) -> list[dict[str, Any]]:
    """The events in which a message is streamed, its texts in pieces of ``size`` characters."""
    usage = whole["usage"]
    started = whole | {"content": [], "stop_reason": None, "usage": usage | {"output_tokens": 1}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": started}, {"type": "ping"}]
    for index, block in enumerate(whole["content"]):
        events += _events_of_block(index, block, size)
    events.append(
        {
            "type": "message_delta",
            "delta": {"stop_reason": whole["stop_reason"], "stop_sequence": whole["stop_sequence"]},
            "usage": {name: count for name, count in usage.items() if name.startswith("output")},
        }
    )
    events.append({"type": "message_stop"})
    for event in events:
        if event["type"] != "ping":
            _event.validate_python(event)
    return events


def _events_of_block(index: int, block: dict[str, Any], size: int) -> list[dict[str, Any]]:
    def delta(**fields: Any) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": index, "delta": fields}

    match block["type"]:
        case "text":
            empty = block | {"text": ""}
            deltas = [delta(type="text_delta", text=piece) for piece in _pieces(block["text"], size)]
        case "tool_use":
            empty = block | {"input": {}}
            text = json.dumps(block["input"], ensure_ascii=False) if block["input"] else ""
            deltas = [delta(type="input_json_delta", partial_json=piece) for piece in ["", *_pieces(text, size)]]
        case "thinking":
            empty = block | {"thinking": "", "signature": ""}
            deltas = [delta(type="thinking_delta", thinking=piece) for piece in _pieces(block["thinking"], size)]
            deltas.append(delta(type="signature_delta", signature=block["signature"]))
        case _:
            empty, deltas = block, []
    start = {"type": "content_block_start", "index": index, "content_block": empty}
    return [start, *deltas, {"type": "content_block_stop", "index": index}]


def _pieces(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def sse(*events: dict[str, Any] | bytes | Gate | Cut) -> Answer:
    """A stream of named events; bytes are sent as they are."""
    pieces = [written(event) if isinstance(event, dict) else event for event in events]
    return Answer(pieces, headers={"content-type": "text/event-stream; charset=utf-8"}, chunked=True)


def written(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n".encode()


def error(kind: str, text: str = "no", **details: Any) -> dict[str, Any]:
    """An error as the vendor writes it, in an answer and in a stream."""
    return {"type": "error", "error": {"type": kind, "message": text} | details, "request_id": "req_1"}


def answer(whole: dict[str, Any], *, stream: bool) -> Answer:
    return sse(*events_of(whole)) if stream else of_json(whole)


def echo(request: Request) -> Answer:
    """Echo the last text, plain or streamed as requested."""
    text = request.body["messages"][-1]["content"][-1]["text"]
    return answer(message(said(text)), stream=bool(request.body.get("stream")))
