"""Completes messages and tools that some vendors refuse: arguments that are not JSON objects, heads of ``data:`` URLs,
and what JSON Schema lets a tool leave out. Sound messages stay the same objects."""

from __future__ import annotations

import re

from msgspec.structs import replace

from routewright import wire
from routewright.wire import JsonObject
from routewright.wire.json_stream import complete_object

_STARTS = {"iVBORw0": "image/png", "/9j/": "image/jpeg", "R0lGOD": "image/gif", "UklGR": "image/webp"}
_STARTS["JVBERi0"] = "application/pdf"
"""Media types by the first bytes, in base64."""
_SOUND = tuple(f"data:{kind};base64,{start}" for start, kind in _STARTS.items())
_JPEG = re.compile("image/(p?jpg|pjpeg|jfif|pipeg)")
_BY_NAME = frozenset("properties $defs definitions patternProperties dependentSchemas".split())
_NESTED = frozenset("items prefixItems additionalProperties contains anyOf oneOf allOf not if then else".split())
"""Keywords with schemas by name, and with other schemas."""


# --- messages


def complete_message(message: wire.Message) -> wire.Message:
    """The message with arguments and ``data:`` URLs that every vendor takes."""
    content = message.content
    if isinstance(content, list):
        content = [_complete_part(part) for part in content]
    calls = message.tool_calls and [complete_call(call) for call in message.tool_calls]
    if content == message.content and calls == message.tool_calls:
        return message
    return replace(message, content=content, tool_calls=calls)


def complete_call(call: wire.ToolCall) -> wire.ToolCall:
    """The call with arguments that are the text of one JSON object."""
    function = call.function
    arguments = complete_object(function.arguments)
    return call if arguments is function.arguments else replace(call, function=replace(function, arguments=arguments))


def _complete_part(part: wire.Part) -> wire.Part:
    match part:
        case wire.ImagePart():
            return replace(part, image_url=replace(part.image_url, url=_complete_url(part.image_url.url)))
        case wire.FilePart():
            return replace(part, file=replace(part.file, file_data=_complete_url(part.file.file_data)))
    return part


def _complete_url(url: str) -> str:
    """A ``data:`` URL with the media type of its first bytes, or else the common name of its own, without parameters:
    vendors compare the head as a text, and some refuse a type that the bytes belie."""
    if url.startswith(_SOUND) and "\n" not in url:
        return url
    head = url.partition(",")[0]
    words = [word.strip() for word in head.lower().split(";")]
    if not words[0].startswith("data:"):
        return url
    data = "".join(url[len(head) + 1 :].split())
    first = next((name for start, name in _STARTS.items() if data.startswith(start)), None)
    kind = first or _JPEG.sub("image/jpeg", words[0][5:].strip().replace("/x-", "/"))
    return f"data:{kind};base64,{data}" if first or "base64" in words else f"data:{kind},{data}"


# --- tools


def complete_tool(tool: wire.Tool) -> wire.Tool:
    """The tool with a schema that every vendor takes."""
    spec = tool.function or tool
    spec = replace(spec, parameters=_complete(_as_root(spec.parameters or {}), is_open=not spec.strict))
    return spec if isinstance(spec, wire.Tool) else replace(tool, function=spec)


def _as_root(schema: JsonObject) -> JsonObject:
    """The schema as that of an object, which arguments always are, without a reference or null beside it."""
    for keyword in ("anyOf", "oneOf", "allOf"):
        branches = schema.get(keyword)
        rest = [branch for branch in branches if branch != {"type": "null"}] if isinstance(branches, list) else []
        if len(rest) == 1 and isinstance(rest[0], dict):
            schema = {**rest[0], **{key: value for key, value in schema.items() if key != keyword}}
    match str(schema.get("$ref")).split("/"):
        case ["#", group, name] if isinstance(schema.get(group), dict) and isinstance(schema[group].get(name), dict):
            schema = {**schema[group][name], **{key: value for key, value in schema.items() if key != "$ref"}}
    kind = schema.get("type")
    if kind in (None, "", "None", "object") or (isinstance(kind, list) and "object" in kind):
        schema = {**schema, "type": "object"}
        schema.setdefault("properties", {})
    return schema


def _complete(schema: JsonObject, *, is_open: bool) -> JsonObject:
    """The schema and all inside it, with ``properties`` of objects and ``items`` of arrays. ``is_open``: nested objects
    may have any properties. Those of strict tools are closed, so an empty list would change their meaning."""
    completed: JsonObject = {}
    for keyword, value in schema.items():
        if keyword in _BY_NAME:
            named = value.items() if isinstance(value, dict) else ()
            schemas = {name: {} if isinstance(inner, bool) else inner for name, inner in named}
            value = {name: _complete(inner, is_open=is_open) for name, inner in schemas.items() if type(inner) is dict}
        elif keyword in _NESTED and isinstance(value, list):
            value = [_complete(inner, is_open=is_open) if isinstance(inner, dict) else inner for inner in value]
        elif keyword in _NESTED and isinstance(value, dict):
            value = _complete(value, is_open=is_open)
        if value is not None or keyword in ("default", "const"):
            # lists of items are those of JSON Schema before 2020
            completed["prefixItems" if keyword == "items" and isinstance(value, list) else keyword] = value
    kinds = str(completed.get("type"))  # one or a list
    if "array" in kinds:
        completed.setdefault("items", {})
    if "object" in kinds and is_open:
        completed.setdefault("properties", {})
    return completed
