"""A call as HTTP: the JSON body in a host's dialect, and the request around it."""

from __future__ import annotations

import re
from base64 import b32encode
from hashlib import blake2b
from typing import Any

import msgspec

from routewright.wire import ImagePart, Message, Model, NamedToolChoice, Part, TextPart, Tool, UpstreamCall
from routewright.wire.secret import Secret

from .endpoint import wire_name
from .hosts import Host

USAGE_FIELD = "stream_options"
_TOOL_CHOICES = ("auto", "none", "required")
_SHORT_ID = re.compile("[a-zA-Z0-9]{9}")
_SHOWN_BELOW = "(images, which are shown below)"
"""In the place of a result that says nothing else."""


class HttpRequest(msgspec.Struct, frozen=True):
    """One HTTP request. ``headers`` hide the key; ``reveal()`` gives them as they are to be sent."""

    method: str
    url: str
    headers: dict[str, str | Secret]
    body: bytes
    key: Secret
    """The key that is among the headers; empty for none."""
    call: UpstreamCall
    """What is asked."""

    def __repr__(self) -> str:
        # no body: a repr ends up in logs
        return f"<HttpRequest {self.method} {self.url}, {len(self.body)} bytes>"

    def reveal(self) -> dict[str, str]:
        """Give the headers with the key in the open, for the client that sends them and nothing else."""
        return {name: value.reveal() if isinstance(value, Secret) else value for name, value in self.headers.items()}


def request_body(call: UpstreamCall, host: Host) -> dict[str, Any]:
    """The JSON body of a call in the host's dialect."""
    body: dict[str, Any] = {
        "model": wire_name(call.model),
        "messages": _thoughtful(_messages(call.messages, host), call.model, host),
        **host.extra_body,
    }
    if call.max_output_tokens is not None:
        body[host.cap_field] = call.max_output_tokens
    if call.stream:
        body["stream"] = True
        if host.usage_on_request:
            body[USAGE_FIELD] = {"include_usage": True}
    if call.tools:
        body |= _tools(call.tools, call.tool_choice, host)
    return body | _params(call, host)


def _tools(tools: list[Tool], choice: str | NamedToolChoice | None, host: Host) -> dict[str, Any]:
    name = _name_in(choice)
    if name is not None and not host.tool_by_name:
        tools, choice = [tool for tool in tools if tool.function_spec.name == name], "required"
    said = {"tools": [{"type": "function", "function": tool.function_spec} for tool in tools]}
    return said if choice is None else said | {"tool_choice": _tool_choice(choice)}


def _name_in(choice: str | NamedToolChoice | None) -> str | None:
    """The tool that is to be called, if one is named."""
    if isinstance(choice, NamedToolChoice):
        return choice.function.name
    return None if choice in _TOOL_CHOICES else choice


def _params(call: UpstreamCall, host: Host) -> dict[str, Any]:
    params = call.params
    lacking = call.model.unsupported or ()  # where it asks for what a model does of itself
    named = {
        "temperature": None if "temperature" in lacking else _whole(params.temperature),
        "top_p": None if "top_p" in lacking else _whole(params.top_p),
        "stop": params.stop,
        host.seed_field: _whole(params.seed),
        "response_format": params.response_format,
    }
    return {name: value for name, value in named.items() if value is not None}


def _whole(value: float | None) -> float | None:
    """As an integer where it is one: some hosts refuse ``1.0`` for a count."""
    return int(value) if value is not None and float(value).is_integer() else value


def _tool_choice(choice: str | NamedToolChoice) -> str | NamedToolChoice | dict[str, Any]:
    if isinstance(choice, NamedToolChoice) or choice in _TOOL_CHOICES:
        return choice
    return {"type": "function", "function": {"name": choice}}


def _messages(messages: list[Message], host: Host) -> list[Message]:
    if not host.any_call_id:
        messages = [_with_short_ids(message) for message in messages]
    if not host.images_in_results and any(message.role == "tool" and _images(message) for message in messages):
        messages = _with_images_apart(messages)
    if not host.developer_role and any(message.role == "developer" for message in messages):
        messages = [
            msgspec.structs.replace(message, role="system") if message.role == "developer" else message
            for message in messages
        ]
    if not host.message_names and any(message.name is not None for message in messages):
        messages = [msgspec.structs.replace(message, name=None) for message in messages]
    if not host.turns_of_one_role:
        messages = _in_turns(messages)
    if not host.text_in_parts:
        messages = [msgspec.structs.replace(message, content=_put_together(message.content)) for message in messages]
    return messages


def _with_images_apart(messages: list[Message]) -> list[Message]:
    """Images of results in a message of the user's, behind all results of a turn: nothing may stand between those."""
    told: list[Message] = []
    shown: list[Part] = []
    for message in messages:
        if shown and message.role != "tool":
            told.append(Message("user", shown))
            shown = []
        if message.role == "tool" and (images := _images(message)):
            shown += [TextPart(f"Images of the tool call {message.tool_call_id}:"), *images]
            message = msgspec.structs.replace(message, content=_texts(message) or _SHOWN_BELOW)
        told.append(message)
    return [*told, Message("user", shown)] if shown else told


def _images(message: Message) -> list[Part]:
    return [part for part in _parts(message.content) if isinstance(part, ImagePart)]


def _texts(message: Message) -> str | list[Part]:
    texts = [part for part in _parts(message.content) if isinstance(part, TextPart) and part.text]
    return texts[0].text if len(texts) == 1 else [*texts]


def _in_turns(messages: list[Message]) -> list[Message]:
    """System messages, then the others, those of one role that follow one another as one."""
    turns: list[Message] = []
    for message in sorted(messages, key=lambda message: message.role != "system"):
        if turns and _of_one_turn(turns[-1], message):
            content = [*_parts(turns.pop().content), *_parts(message.content)]
            message = msgspec.structs.replace(message, content=_put_together(content))
        turns.append(message)
    return turns


def _of_one_turn(one: Message, next: Message) -> bool:
    return one.role == next.role != "tool" and not (one.tool_calls or next.tool_calls)


def _parts(content: str | list[Part] | None) -> list[Part]:
    return content if isinstance(content, list) else [TextPart(content or "")]


def _put_together(content: str | list[Part] | None) -> str | list[Part] | None:
    """Text in parts as one, a paragraph each; as it is where there are images."""
    texts = [part.text for part in content if isinstance(part, TextPart)] if isinstance(content, list) else []
    return content if content is None or len(texts) < len(content) else "\n\n".join(texts)


def _with_short_ids(message: Message) -> Message:
    if not message.tool_calls and message.tool_call_id is None:
        return message
    calls = [msgspec.structs.replace(call, id=_short(call.id)) for call in message.tool_calls or ()]
    answers = None if message.tool_call_id is None else _short(message.tool_call_id)
    return msgspec.structs.replace(message, tool_calls=calls or None, tool_call_id=answers)


def _short(id: str) -> str:
    """An id of another vendor's as nine letters and digits, the same for a call and its result."""
    return id if _SHORT_ID.fullmatch(id) else b32encode(blake2b(id.encode(), digest_size=6).digest()).decode()[:9]


def _thoughtful(messages: list[Message], model: Model, host: Host) -> list[Message] | list[dict[str, Any]]:
    """The messages with a blank for the thought behind them, where the host demands one; some refuse an empty text."""
    if not (host.thought_needed and model.reasoning and any(message.tool_calls for message in messages)):
        return messages
    told: list[dict[str, Any]] = [msgspec.to_builtins(message) for message in messages]
    return [each | {"reasoning_content": " "} if each["role"] == "assistant" else each for each in told]
