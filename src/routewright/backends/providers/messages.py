"""A call in the words of Anthropic's Messages API.

All system and developer messages go to ``system``, in their order, wherever they stand: most models take none among
the turns, and Anthropic's own compatible address does the same. Turns of one role are joined, results of tools first.
Blank texts are left out, since they are refused; so are ``detail`` of images and names of speakers, for which there
are no words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from routewright._core.request.json_scan import object_in
from routewright.errors import ProviderFault
from routewright.wire import (
    FaultKind,
    ImageUrl,
    Message,
    Model,
    NamedToolChoice,
    TextPart,
    Tool,
    ToolCall,
    UpstreamCall,
)

from .claude import lacks, takes_one_of_two, takes_prefill
from .closed_schema import OpenEnded, closed_form
from .endpoint import wire_name

DEFAULT_MAX_TOKENS = 4096
"""The cap, which has to be sent, where neither the call nor the model has one."""

_MEDIA = ("image/jpeg", "image/png", "image/gif", "image/webp")
_DATA_URL = re.compile(r"data:([^;,]*);base64,", re.IGNORECASE)
_NO_ID_CHARACTER = re.compile(r"[^a-zA-Z0-9_-]")
_TOOL_CHOICES = {"auto": "auto", "none": "none", "required": "any"}
_SHOWN_CHARS = 40

_Block = dict[str, Any]


def message_body(call: UpstreamCall) -> dict[str, Any]:
    """The JSON body. Raises ``ProviderFault("request")`` for what cannot be said, with nothing of the prompt."""
    body: dict[str, Any] = {
        "model": wire_name(call.model),
        "max_tokens": call.max_output_tokens or call.model.max_output_tokens or DEFAULT_MAX_TOKENS,
        "messages": _ended(_turns(call.messages), call.model),
    }
    if system := [text for message in call.messages if _is_system(message) for text in _system_texts(message)]:
        body["system"] = "\n\n".join(system)
    if call.stream:
        body["stream"] = True
    if call.tools:
        body["tools"] = [_tool(tool) for tool in call.tools]
        if call.tool_choice is not None:
            body["tool_choice"] = _tool_choice(call.tool_choice)
    return body | _sampling(call) | _stops(call.params.stop) | _output(call.params.response_format)


def _is_system(message: Message) -> bool:
    return message.role in ("system", "developer")


def _system_texts(message: Message) -> Iterator[str]:
    for block in _content(message):
        if block["type"] != "text":
            raise _unsayable("takes no images in system messages")
        yield block["text"]


def _turns(messages: list[Message]) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = []
    for message in messages:
        blocks = [] if _is_system(message) else [*_blocks(message)]
        role = "assistant" if message.role == "assistant" else "user"
        if blocks and turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    if not turns:
        raise _unsayable("takes no conversation of system messages and blanks alone")
    for turn in turns:
        turn["content"].sort(key=_comes_later)
    return turns


def _ended(turns: list[dict[str, Any]], model: Model) -> list[dict[str, Any]]:
    """The turns, if the model takes how they end; words that it is to go on with end without white space."""
    if turns[-1]["role"] != "assistant":
        return turns
    if not takes_prefill(model):
        raise _unsayable("takes for this model no conversation that ends with the assistant's words")
    last = turns[-1]["content"][-1]
    if last["type"] == "text":
        last["text"] = last["text"].rstrip()
    return turns


def _comes_later(block: _Block) -> bool:
    """Results of tools come first in a turn, or they are refused."""
    return bool(block["type"] != "tool_result")


def _blocks(message: Message) -> Iterator[_Block]:
    if message.role != "tool":
        yield from _content(message)
        yield from map(_tool_use, message.tool_calls or ())
        return
    result: _Block = {"type": "tool_result", "tool_use_id": _plain_id(message.tool_call_id or "")}
    if content := [*_content(message)]:
        result["content"] = content
    yield result


def _content(message: Message) -> Iterator[_Block]:
    parts = [TextPart(message.content)] if isinstance(message.content, str) else message.content or ()
    for part in parts:
        if not isinstance(part, TextPart):
            yield {"type": "image", "source": _source(part.image_url)}
        elif part.text.strip():
            yield {"type": "text", "text": part.text}


def _source(image: ImageUrl) -> _Block:
    if image.url[:5].lower() != "data:":
        return {"type": "url", "url": image.url}
    found = _DATA_URL.match(image.url)
    media = found[1].lower() if found else ""
    if found is None or media not in _MEDIA:
        raise _unsayable(
            f"takes images as base64 of {', '.join(_MEDIA)}, got {media[:_SHOWN_CHARS] or 'another data: URL'!r}"
        )
    return {"type": "base64", "media_type": media, "data": image.url[found.end() :]}


def _tool_use(call: ToolCall) -> _Block:
    arguments = object_in(call.function.arguments or "{}")
    if arguments is None:
        raise _unsayable("takes tool calls whose arguments are a JSON object only")
    return {"type": "tool_use", "id": _plain_id(call.id), "name": call.function.name, "input": arguments}


def _plain_id(id: str) -> str:
    """An id of another vendor's in the characters that are taken here; two that differ still do."""
    return _NO_ID_CHARACTER.sub(lambda found: f"_{ord(found[0]):x}_", id)


def _tool(tool: Tool) -> dict[str, Any]:
    spec = tool.function_spec
    schema = {"type": "object"} | ({"properties": {}} if spec.parameters is None else spec.parameters)
    made: dict[str, Any] = {"name": spec.name, "input_schema": schema}
    if spec.description is not None:
        made["description"] = spec.description
    if spec.strict:
        made |= {"strict": True, "input_schema": _closed(schema, "a strict tool")}
    return made


def _tool_choice(choice: str | NamedToolChoice) -> dict[str, str]:
    if isinstance(choice, str) and choice in _TOOL_CHOICES:
        return {"type": _TOOL_CHOICES[choice]}
    return {"type": "tool", "name": choice if isinstance(choice, str) else choice.function.name}


def _sampling(call: UpstreamCall) -> dict[str, float]:
    """Temperature and ``top_p``. A 1, which asks for nothing, is left out where the model would refuse it."""
    named = {"temperature": call.params.temperature, "top_p": call.params.top_p}
    given = {name: value for name, value in named.items() if value is not None}
    if given.get("temperature", 0) > 1:
        raise _unsayable(f"takes a temperature from 0 to 1, got {given['temperature']}")
    if "temperature" in lacks(call.model) or (len(given) == 2 and takes_one_of_two(call.model)):
        given = {name: value for name, value in given.items() if value != 1}
        if len(given) == 2:
            raise _unsayable(
                f"takes temperature or top_p for this model, got {given['temperature']} and {given['top_p']}"
            )
    return given


def _stops(stop: str | list[str] | None) -> dict[str, list[str]]:
    stops = [stop] if isinstance(stop, str) else stop or []
    for each in stops:
        if not each.strip():
            raise _unsayable(f"takes no stop sequence of white space alone, got {each[:_SHOWN_CHARS]!r}")
    return {"stop_sequences": stops} if stops else {}


def _output(form: dict[str, Any] | None) -> dict[str, Any]:
    kind = "text" if form is None else form.get("type")
    if form is None or kind == "text":
        return {}
    if kind != "json_schema":
        raise _unsayable(f"takes a response_format with a JSON schema, got {str(kind)[:_SHOWN_CHARS]!r}")
    schema = _closed(form["json_schema"]["schema"], "a response_format")
    return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}


def _closed(schema: dict[str, Any], whose: str) -> dict[str, Any]:
    try:
        return closed_form(schema)
    except (OpenEnded, RecursionError, TypeError, AttributeError):  # of a word whose value is not of its kind
        pass
    raise _unsayable(f"takes {whose} with named properties and values of known types only")


def _unsayable(what: str) -> ProviderFault:
    return ProviderFault(FaultKind.REQUEST, f"the Messages API {what}")
