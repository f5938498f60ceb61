"""What was said so far: the turns and blocks of the Messages API as messages of the common chat format.

Results of tools become messages of their own, before what else their turn says, as Anthropic has them stand. What a
model thought in earlier turns is left out: no other model may be shown it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct, field

from routewright._core.request.problems import shown
from routewright.server.door import Ignored
from routewright.wire import FunctionCall, ImagePart, ImageUrl, Message, Part, Role, TextPart, ToolCall

from .fields import Fields, blocks, wrong

MEDIA = ("image/jpeg", "image/png", "image/gif", "image/webp")
FAILED = "The tool failed"
"""Stands before the result of a tool that is an error: the common chat format has no other word for it."""
_ROLES = ("user", "assistant", "system")


Placed = tuple[str, Message]
"""A message, and where it was written."""


class _Turn(Struct):
    """What the blocks of one turn come to."""

    parts: list[Part] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    results: list[Placed] = field(default_factory=list)


def messages_of(turns: list[Fields]) -> list[Placed]:
    """The turns as messages. Raises ``ValidationFailed``."""
    return [message for turn in turns for message in _messages_of(turn)]


def system_of(given: str | list[Any] | None, ignored: Ignored) -> list[Placed]:
    """The field ``system`` as a message, or none."""
    texts = [given] if isinstance(given, str) else _texts(given or [], "system", ignored)
    return [("system", Message("system", "\n\n".join(texts)))] if any(texts) else []


def _messages_of(fields: Fields) -> list[Placed]:
    role, path = fields.need("role", str, f"one of {', '.join(_ROLES)}"), fields.at("content")
    if role not in _ROLES:
        raise wrong(fields.at("role"), f"must be one of {', '.join(_ROLES)}, got {shown(role)}")
    given = fields.either("content")
    fields.end()
    if given is None:
        raise wrong(path, "is missing", "send a string or an array of blocks")
    if isinstance(given, str):
        return [(fields.path, Message(_ROLE[role], given))]
    if not given and role != "assistant":
        raise wrong(path, "must hold at least one block")
    turn = _read(given, path, role, fields.ignored)
    if not turn.parts and not turn.calls:
        return turn.results  # an assistant's turn of thought alone says nothing that may be repeated
    message = Message(_ROLE[role], _content(turn.parts), tool_calls=turn.calls or None)
    return [*turn.results, (fields.path, message)]


def _read(given: list[Any], path: str, role: str, ignored: Ignored) -> _Turn:
    turn, readers = _Turn(), _BLOCKS[role]
    for kind, block in blocks(given, path, ignored):
        reader = readers.get(kind)
        if reader is None:
            where = "the result of a tool" if role == "tool" else f"a message of role {role!r}"
            raise _no_block(kind, block, where, readers)
        reader(block, turn)
        block.end()
    return turn


def _no_block(kind: str, block: Fields, where: str, readers: Collection[str]) -> Exception:
    known = ", ".join(repr(each) for each in readers if each not in _THOUGHT)
    hint = f"taken there: {known}; say in a text block what it holds"
    return wrong(block.at("type"), f"is {shown(kind)}, a block that models are not sent from {where}", hint)


def _texts(given: list[Any], path: str, ignored: Ignored) -> list[str]:
    texts = []
    for kind, block in blocks(given, path, ignored):
        if kind != "text":
            raise _no_block(kind, block, f"{path!r}", ("text",))
        texts.append(block.need("text", str))
        block.end()
    return texts


def _content(parts: list[Part]) -> str | list[Part] | None:
    """One text as it is: every model knows that form."""
    if len(parts) == 1 and isinstance(parts[0], TextPart):
        return parts[0].text
    return parts or None


def _text(block: Fields, turn: _Turn) -> None:
    turn.parts.append(TextPart(block.need("text", str)))


def _image(block: Fields, turn: _Turn) -> None:
    source = block.inner("source")
    if source is None:
        raise wrong(block.at("source"), "is missing", "send a source of type 'base64' or 'url'")
    turn.parts.append(ImagePart(ImageUrl(_url_of(source))))
    source.end()


def _url_of(source: Fields) -> str:
    match kind := source.need("type", str, "'base64' or 'url'"):
        case "base64":
            media = source.need("media_type", str, f"one of {', '.join(MEDIA)}")
            if media not in MEDIA:
                raise wrong(source.at("media_type"), f"must be one of {', '.join(MEDIA)}, got {shown(media)}")
            return f"data:{media};base64,{source.need('data', str)}"
        case "url":
            url = source.need("url", str)
            if not url[:8].lower().startswith(("https://", "http://")):
                raise wrong(source.at("url"), "must begin with https:// or http://")
            return url
        case _:
            raise wrong(source.at("type"), f"must be 'base64' or 'url', got {shown(kind)}", "send the image itself")


def _tool_use(block: Fields, turn: _Turn) -> None:
    id, name = _named(block, "id"), _named(block, "name")
    arguments = msgspec.json.encode(block.need("input", dict)).decode()
    turn.calls.append(ToolCall(id, FunctionCall(name, arguments)))


def _tool_result(block: Fields, turn: _Turn) -> None:
    id, given, failed = _named(block, "tool_use_id"), block.either("content"), block.get("is_error", bool)
    inner = _Turn([TextPart(given)]) if isinstance(given, str) else _Turn()
    if isinstance(given, list):
        inner = _read(given, block.at("content"), "tool", block.ignored)
    parts = _failed(inner.parts) if failed else inner.parts
    turn.results.append((block.path, Message("tool", _content(parts) or "", tool_call_id=id)))


def _failed(parts: list[Part]) -> list[Part]:
    """The result of a tool, said to be an error."""
    match parts:
        case [TextPart(said), *rest] if said:
            return [TextPart(f"{FAILED}: {said}"), *rest]
        case _:
            return [TextPart(f"{FAILED}."), *parts]


def _named(block: Fields, name: str) -> str:
    text = block.need(name, str)
    if not text:
        raise wrong(block.at(name), "must not be empty")
    return text


def _left_out(kind: str, block: Fields, turn: _Turn) -> None:
    block.ignored.add(kind)
    block.forget()


_THOUGHT = ("thinking", "redacted_thinking")
_ROLE: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}
_BLOCKS: dict[str, dict[str, Callable[[Fields, _Turn], None]]] = {
    "user": {"text": _text, "image": _image, "tool_result": _tool_result},
    "assistant": {"text": _text, "tool_use": _tool_use, **{kind: partial(_left_out, kind) for kind in _THOUGHT}},
    "system": {"text": _text},
    "tool": {"text": _text, "image": _image},
}
"""What may stand in whose turn, and in the result of a tool."""
