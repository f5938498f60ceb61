"""What each vendor documents about a request: functions from a body to what is wrong with it.

Each rule names the page that states it, or the error with which the vendor answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

Body = dict[str, Any]
_IMAGE = re.compile(r"data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+")
_PDF = re.compile(r"data:application/pdf;base64,[A-Za-z0-9+/=]+")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def chat(body: Body) -> list[str]:
    """Violations of chat completions, as documented by OpenAI."""
    return [*_tools_of("Function calling", [tool["function"] for tool in body.get("tools", ())]), *_chat(body)]


def _chat(body: Body) -> Iterator[str]:
    page = "API reference: Create chat completion"
    waiting: list[str] = []
    for message in body["messages"]:
        role = message["role"]
        if role == "tool":
            if message["tool_call_id"] not in waiting:
                yield f"{page}: a result without its call"
            else:
                waiting.remove(message["tool_call_id"])
            if not isinstance(message["content"], str) and any(part["type"] != "text" for part in message["content"]):
                yield f"{page}: results have text only"
            continue
        if waiting:
            yield "Function calling: each call is followed by its result"
        calls = message.get("tool_calls", [])
        waiting = [call["id"] for call in calls]
        if len({*waiting}) < len(waiting):
            yield "Function calling: ids of calls differ"
        for call in calls:
            if not 1 <= len(call["id"]) <= 40:
                yield "error string_above_max_length: an id has at most 40 characters"
            yield from _arguments("Function calling", call["function"]["arguments"])
        if calls and role != "assistant":
            yield f"{page}: only assistants call"
        if unknown := message.keys() - {"role", "content", "tool_calls", "tool_call_id", "name"}:
            yield f"{page}: no fields {unknown}"
        for part in message.get("content") if isinstance(message.get("content"), list) else ():
            if role == "assistant" and part["type"] != "text":
                yield f"{page}: assistants have text only"
            if part["type"] == "image_url" and not _is_image(part["image_url"]["url"]):
                yield "Images and vision: PNG, JPEG, WEBP or GIF in base64"
            if part["type"] == "file" and not _PDF.fullmatch(part["file"]["file_data"]):
                yield "File inputs: base64 of a PDF"
    if waiting:
        yield "Function calling: each call is followed by its result"


def responses(body: Body) -> list[str]:
    """Violations of the Responses API, stateless, as documented by OpenAI."""
    return [*_tools_of("Function calling", body.get("tools", [])), *_responses(body)]


def _responses(body: Body) -> Iterator[str]:
    page = "API reference: Create a model response"
    called: list[str] = []
    answered: list[str] = []
    for item in body["input"]:
        kind = item.get("type", "message")
        if kind == "function_call":
            called.append(item["call_id"])
            if not 1 <= len(item["call_id"]) <= 64:
                yield "error string_above_max_length: a call_id has at most 64 characters"
            yield from _arguments("Function calling", item["arguments"])
        elif kind == "function_call_output":
            answered.append(item["call_id"])
            if item["call_id"] not in called:
                yield "error: no tool call found for function call output"
        elif kind == "reasoning" and not item.get("encrypted_content"):
            yield "Reasoning models: without storage reasoning is encrypted"
        elif kind == "message":
            for part in item["content"] if isinstance(item["content"], list) else ():
                if part["type"] == "input_image" and not _is_image(part["image_url"]):
                    yield "Images and vision: PNG, JPEG, WEBP or GIF in base64"
                if (item["role"] == "assistant") != part["type"].startswith("output"):
                    yield f"{page}: assistants have output, others input"
    if len({*called}) < len(called):
        yield f"{page}: ids of calls differ"
    if {*called} != {*answered}:
        yield "error: no tool output found for function call"
    for one, next_one in pairwise(body["input"]):
        if one.get("type") == "reasoning" and next_one.get("role") == "user":
            yield "error: reasoning was provided without its required following item"


def anthropic(body: Body) -> list[str]:
    """Violations of the Messages API."""
    tools = [{"name": tool["name"], "parameters": tool["input_schema"]} for tool in body.get("tools", ())]
    return [*_tools_of("How to implement tool use", tools), *_anthropic(body)]


def _anthropic(body: Body) -> Iterator[str]:
    page = "How to implement tool use"
    turns = body["messages"]
    if turns[0]["role"] != "user":
        yield "Messages: the first turn is a user's"
    if any(one["role"] == next_one["role"] for one, next_one in pairwise(turns)):
        yield "Messages: roles alternate"
    used: list[str] = []
    waiting: list[str] = []
    for turn in turns:
        results = [block["tool_use_id"] for block in turn["content"] if block["type"] == "tool_result"]
        if sorted(results) != sorted(waiting):
            yield f"{page}: the turn after calls has one result for each"
        kinds = [block["type"] == "tool_result" for block in turn["content"]]
        if kinds != sorted(kinds, reverse=True):
            yield f"{page}: results come first in a turn"
        waiting = []
        for block in turn["content"]:
            match block["type"]:
                case "tool_use":
                    waiting.append(block["id"])
                    if not re.fullmatch(r"[a-zA-Z0-9_-]+", block["id"]):
                        yield "error: tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
                    if not isinstance(block["input"], dict):
                        yield f"{page}: an input is an object"
                case "text" if not block["text"].strip():
                    yield "error: text content blocks must contain non-whitespace text"
                case "thinking" if not block.get("signature"):
                    yield "Extended thinking: blocks are returned with their signature"
        used += waiting
        yield from _anthropic_media(turn["content"])
    if waiting:
        yield f"{page}: the turn after calls has one result for each"
    if len({*used}) < len(used):
        yield "error: tool_use ids must be unique"


def _anthropic_media(blocks: list[Any]) -> Iterator[str]:
    for block in blocks:
        if block["type"] == "tool_result":
            yield from _anthropic_media(block.get("content", []))
        source = block.get("source", {})
        if source.get("type") == "base64":
            url = f"data:{source['media_type']};base64,{source['data']}"
            if not (_PDF if block["type"] == "document" else _IMAGE).fullmatch(url):
                yield "Vision: base64 of image/jpeg, image/png, image/gif, image/webp; PDF support: application/pdf"


def gemini(body: Body) -> list[str]:
    """Violations of generateContent."""
    tools = [
        {"name": one["name"], "parameters": one["parametersJsonSchema"]}
        for tool in body.get("tools", ())
        for one in tool["functionDeclarations"]
    ]
    return [*_tools_of("Function calling", tools), *_gemini(body)]


def _gemini(body: Body) -> Iterator[str]:
    contents = body["contents"]
    if any(one["role"] == next_one["role"] for one, next_one in pairwise(contents)):
        yield "Text generation: roles alternate"
    waiting: list[tuple[str, str]] = []
    for content in contents:
        parts = content["parts"]
        answers = [part["functionResponse"] for part in parts if "functionResponse" in part]
        if [(answer["id"], answer["name"]) for answer in answers] != waiting:
            yield "error: the number of function response parts equals that of the function call parts"
        calls = [part for part in parts if "functionCall" in part]
        waiting = [(part["functionCall"]["id"], part["functionCall"]["name"]) for part in calls]
        if len({*waiting}) < len(waiting):
            yield "Function calling: ids map results to calls"
        if calls and "thoughtSignature" not in calls[0]:
            yield "Thought signatures: the first call of a turn has one"
        for part in calls:
            if not isinstance(part["functionCall"]["args"], dict):
                yield "API reference: args are an object"
        for part in [*parts, *(part for answer in answers for part in answer.get("parts", ()))]:
            data = part.get("inlineData")
            if data and data["mimeType"] not in (
                "image/png",
                "image/jpeg",
                "image/webp",
                "image/gif",
                "application/pdf",
            ):
                yield f"Image understanding: no type {data['mimeType']}"
    if waiting:
        yield "error: the number of function response parts equals that of the function call parts"


def _is_image(url: str) -> bool:
    return url.startswith("https://") or _IMAGE.fullmatch(url) is not None


def _arguments(page: str, text: object) -> Iterator[str]:
    try:
        is_object = isinstance(text, str) and isinstance(json.loads(text), dict)
    except ValueError:
        is_object = False
    if not is_object:
        yield f"{page}: arguments are JSON, an object"


def _tools_of(page: str, tools: list[Any]) -> Iterator[str]:
    for tool in tools:
        if not _NAME.fullmatch(tool["name"]):
            yield f"{page}: a name has 1 to 64 letters, digits, underscores and dashes"
        schema = tool.get("parameters")
        if not isinstance(schema, dict) or schema.get("type") != "object":
            yield f"{page}: parameters are an object (error: got 'type: \"None\"')"
        elif not isinstance(schema.get("properties"), dict):
            yield "error invalid_function_parameters: object schema missing properties"
        else:
            yield from _schemas_in(schema)


def _schemas_in(schema: object) -> Iterator[str]:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        yield "error invalid_function_parameters: a schema is an object or a boolean"
        return
    kinds = schema["type"] if isinstance(schema.get("type"), list) else [schema.get("type")]
    if "array" in kinds and not isinstance(schema.get("items"), dict | bool):
        yield "error invalid_function_parameters: array schema missing items"
    if not isinstance(schema.get("required", []), list):
        yield "error invalid_function_parameters: required is a list"
    for inner in (schema.get("properties") or {}).values():
        yield from _schemas_in(inner)
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for inner in schema.get(keyword, ()):
            yield from _schemas_in(inner)
    for keyword in ("items", "additionalProperties"):
        yield from _schemas_in(schema.get(keyword, True))


RULES: dict[str, Callable[[Body], list[str]]] = {
    "chat": chat, "responses": responses, "anthropic": anthropic, "gemini": gemini,
}  # fmt: skip
"""By protocol."""
