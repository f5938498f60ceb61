"""Messages and tools of chat completions in the shapes of the route request, which are nearly the same.

What is not known is left out and noted by its name; what would change the meaning is refused. Types are not asked here:
what has the wrong one passes unchanged, and the decoder says so.
"""

from __future__ import annotations

from typing import Any, NoReturn

from routewright._core.request.json_scan import quoted
from routewright.errors import Problem, ValidationFailed
from routewright.server.door import Ignored

Fields = dict[str, Any]

MESSAGE = frozenset(("role", "content", "name", "tool_calls", "tool_call_id", "refusal", "function_call"))
CALL = frozenset(("id", "type", "function"))
CALLED = frozenset(("name", "arguments"))
TEXT = frozenset(("type", "text"))
REFUSAL = frozenset(("type", "refusal"))
IMAGE = frozenset(("type", "image_url"))
IMAGE_URL = frozenset(("url", "detail"))
TOOL = frozenset(("type", "function", "name", "description", "parameters", "strict"))
FUNCTION = frozenset(("name", "description", "parameters", "strict"))
CHOICE = frozenset(("type", "function"))
NAME = frozenset(("name",))

_NO_PARTS = {
    "input_audio": "send what is said in it as text",
    "file": "send its text, or its pages as image_url parts",
}
"""Parts that no model is sent here, and what to send in their place."""


class Noted(Ignored):
    """Names of fields that count for nothing."""

    def keep(self, value: Any, known: frozenset[str]) -> Any:
        """An object's known fields. The others are noted, unless they are null."""
        if type(value) is not dict or value.keys() <= known:
            return value
        for name, each in value.items():
            if name not in known and each is not None:
                self.add(name)
        return {name: each for name, each in value.items() if name in known}


def messages_of(given: Any, noted: Noted) -> Any:
    """The turns. Raises ``ValidationFailed`` for what has been given up, and for audio and files."""
    if type(given) is not list:
        return given
    return [_message(f"messages[{place}]", each, noted) for place, each in enumerate(given)]


def tools_of(given: Any, noted: Noted) -> Any:
    """The declarations of tools."""
    if type(given) is not list:
        return given
    return [_with(noted.keep(each, TOOL), "function", FUNCTION, noted) for each in given]


def choice_of(given: Any, noted: Noted) -> Any:
    """A ``tool_choice`` that names one function, or is a word."""
    return _with(noted.keep(given, CHOICE), "function", NAME, noted)


def _message(path: str, given: Any, noted: Noted) -> Any:
    message = noted.keep(given, MESSAGE)
    if type(message) is not dict:
        return message
    if message.get("role") == "function":
        hint = "send role 'tool', with the tool_call_id of the call that it answers"
        _refuse(f"{path}.role", "is 'function', which has been given up", hint)
    if message.get("function_call") is not None:
        _refuse(f"{path}.function_call", "has been given up", "send it as one of tool_calls, with an id")
    told: Fields = {name: each for name, each in message.items() if name not in ("refusal", "function_call")}
    _put_refusal(told, message.get("refusal"), noted)
    if type(told.get("content")) is list:
        told["content"] = [_part(f"{path}.content[{n}]", part, noted) for n, part in enumerate(told["content"])]
    if type(told.get("tool_calls")) is list:
        told["tool_calls"] = [_call(each, noted) for each in told["tool_calls"]] or None
    return told


def _put_refusal(message: Fields, refusal: Any, noted: Noted) -> None:
    """What a model said in refusing is what it said."""
    if type(refusal) is str and message.get("content") is None:
        message["content"] = refusal
    elif refusal is not None:
        noted.add("refusal")


def _part(path: str, given: Any, noted: Noted) -> Any:
    kind = given.get("type") if type(given) is dict else None
    if kind == "text":
        return noted.keep(given, TEXT)
    if kind == "image_url":
        return _image(noted.keep(given, IMAGE), noted)
    if kind == "refusal":
        return _text_of_refusal(path, noted.keep(given, REFUSAL))
    if kind in ("input_audio", "file"):
        _refuse(path, f"is of type {quoted(kind)}, which no model is sent here", _NO_PARTS[kind])
    return given


def _text_of_refusal(path: str, part: Fields) -> Fields:
    text = part.get("refusal")
    if type(text) is not str:
        _refuse(f"{path}.refusal", "must be a string", "")
    return {"type": "text", "text": text}


def _image(part: Fields, noted: Noted) -> Fields:
    part = _with(part, "image_url", IMAGE_URL, noted)
    image = part.get("image_url")
    if type(image) is dict and image.get("detail") == "original":  # one vendor's alone
        noted.add("detail")
        image = {name: each for name, each in image.items() if name != "detail"}
        return {**part, "image_url": image}
    return part


def _call(given: Any, noted: Noted) -> Any:
    return _with(noted.keep(given, CALL), "function", CALLED, noted)


def _with(outer: Any, name: str, known: frozenset[str], noted: Noted) -> Any:
    """An object whose field ``name`` keeps its known fields alone."""
    inner = outer.get(name) if type(outer) is dict else None
    kept = noted.keep(inner, known)
    return outer if kept is inner else {**outer, name: kept}


def _refuse(path: str, problem: str, hint: str) -> NoReturn:
    raise ValidationFailed.of(Problem(path, problem, hint))
