"""The bytes of OpenAI's chat completions, good and bad: all that the cells say of a protocol."""

from __future__ import annotations

import json
import re
from typing import Any

from .steps import Head

ANSWER = "All is well."
"""What a good answer says."""
USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
DONE = b"data: [DONE]\n\n"
LETTERS = b"a" * (1 << 16)
JSON = Head(200, {"content-type": "application/json"})
EVENTS = Head(200, {"content-type": "text/event-stream"})


def document(said: Any = ANSWER, *, finish: str | None = "stop", usage: Any = USAGE, **message: Any) -> bytes:
    """A whole answer. ``usage=None`` leaves it out."""
    spoken = {"role": "assistant", "content": said} | message
    told = {} if usage is None else {"usage": usage}
    choice = {"index": 0, "message": spoken, "finish_reason": finish}
    return json.dumps(_named("chat.completion") | {"choices": [choice]} | told).encode()


def delta(said: Any = None, *, finish: str | None = None, **more: Any) -> bytes:
    """An event with a piece of an answer."""
    spoken = ({} if said is None else {"content": said}) | more
    return event({"choices": [{"index": 0, "delta": spoken, "finish_reason": finish}]})


def event(document: Any) -> bytes:
    """A document as an event of a stream."""
    return f"data: {json.dumps(_named('chat.completion.chunk') | document)}\n\n".encode()


def tokens(said: str = ANSWER) -> bytes:
    """A text, an event a word, after the one that says who speaks."""
    return delta("", role="assistant") + b"".join(map(delta, re.findall(r"\S+\s*|\s+", said)))


def ending(finish: str | None = "stop", usage: Any = USAGE) -> bytes:
    """How a stream ends. ``usage=None`` leaves it out."""
    told = b"" if usage is None else event({"choices": [], "usage": usage})
    return delta(finish=finish) + told + DONE


def error(message: str, code: str | int, type: str = "invalid_request_error") -> bytes:
    """What an error says, as the body of an answer."""
    return json.dumps({"error": {"message": message, "type": type, "code": code}}).encode()


def asks_for_stream(body: bytes | None) -> bool:
    """Whether a request wants its answer streamed."""
    try:
        asked = json.loads(body or b"")
    except ValueError:
        return False
    return isinstance(asked, dict) and asked.get("stream") is True


def _named(kind: str) -> dict[str, Any]:
    return {"id": "c1", "object": kind, "created": 1, "model": "m"}
