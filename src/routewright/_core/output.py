"""How is an answer of a given type asked for, read, and sent back where it does not fit? The type itself is elsewhere:
here it is a JSON schema and a function that reads one JSON text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import DecodeError, Raw
from msgspec.json import Decoder
from msgspec.structs import replace

from routewright.errors import Problem, ValidationFailed
from routewright.wire import Message, Params, RouteRequest, TokenBounds

from .request.json_scan import beneath
from .request.rules import FUNCTION_NAME
from .schema import rooted, strict_form
from .tokens.estimate import bounds_of

VALUE = "value"
"""The property in which a value travels that is no JSON object at its top."""
MOST_TOLD = 3
"""Misfits in one error."""
MOST_SAID = 10
"""Misfits that a model is shown."""
MOST_CHARS = 300
"""Of the words on one misfit."""
FENCE = "```"

_OBJECT = Decoder(dict[str, Raw])
_ANYTHING = Decoder(Raw)
_FORCED = "is given together with a tool_choice that demands a tool call, which is no JSON answer"


class Misfit(NamedTuple):
    """One thing in which an answer does not fit its type: for errors, in which nothing stands that the model wrote; and
    for the model itself."""

    told: str
    said: str
    told_at: str = ""
    said_at: str = ""
    """The place, as a JSON path."""

    def under(self, path: str) -> Misfit:
        """The same in a larger answer."""
        return self._replace(told_at=beneath(path, self.told_at), said_at=beneath(path, self.said_at))


_NO_OBJECT = Misfit("is not one JSON object", "is not one JSON object")
_NO_VALUE = Misfit("is missing", "is missing", VALUE, VALUE)


class Unfit(Exception):
    """What a reader raises of an answer that does not fit."""

    def __init__(self, misfits: Sequence[Misfit]) -> None:
        super().__init__()
        self.misfits = misfits


class Fit(NamedTuple):
    """An answer that fits."""

    value: Any


Reader = Callable[[bytes], Any]
"""Makes a value of one JSON text, or raises ``Unfit``."""


class Form:
    """One type of answers: the ``response_format`` that asks for it, and the reading of what comes."""

    def __init__(self, name: str, schema: dict[str, Any], read: Reader) -> None:
        schema = rooted(schema)
        self._wrapped = schema.get("type") != "object"
        if self._wrapped:
            schema = _wrapped(schema)
        strict = strict_form(schema)
        named = {"name": _plain(name), "schema": schema if strict is None else strict, "strict": strict is not None}
        self.response_format: dict[str, Any] = {"type": "json_schema", "json_schema": named}
        self._read = read

    def read(self, answer: str) -> Fit | Unfit:
        """The answer as a value of the type, or in what it does not fit."""
        try:
            return Fit(self._value(unfenced(answer).encode()))
        except Unfit as unfit:
            return Unfit([*unfit.misfits])  # without the frames, which hold the answer
        except Exception as error:  # of a check that the type brings along; its words may hold the answer
            told = f"fails with {type(error).__name__} in a check of its type"
            return Unfit([Misfit(told, told)])

    def _value(self, body: bytes) -> Any:
        try:
            fields = _OBJECT.decode(body)
        except (DecodeError, RecursionError):
            return self._bare(body)
        if not self._wrapped:
            return self._read(body)
        if VALUE not in fields:
            raise Unfit([_NO_VALUE])
        try:
            return self._read(bytes(fields[VALUE]))
        except Unfit as unfit:
            raise Unfit([misfit.under(VALUE) for misfit in unfit.misfits]) from None

    def _bare(self, body: bytes) -> Any:
        """The value itself, as some models give it that leave out what it is to travel in. No object: that could be
        read as another one, all of whose properties are left out."""
        if not self._wrapped:
            raise Unfit([_NO_OBJECT])
        try:
            _ANYTHING.decode(body)
            return self._read(body)
        except (Unfit, DecodeError, RecursionError):
            raise Unfit([_NO_OBJECT]) from None


class Repair(NamedTuple):
    """The turn back to a model whose answer does not fit."""

    messages: list[Message]
    """What follows on those of the request."""
    bounds: TokenBounds
    """So much longer they make the prompt."""


def with_output(request: RouteRequest, form: Form) -> RouteRequest:
    """Ask for answers of the form. Raises ``ValidationFailed`` where the request asks for something else."""
    params = request.params or Params()
    found = []
    if params.response_format is not None:
        hint = "give one of the two: output_type makes a response_format of its own"
        found.append(Problem("output_type", "is given together with params.response_format", hint))
    if request.tool_choice not in (None, "auto", "none"):
        found.append(Problem("output_type", _FORCED, "use tool_choice 'auto', or leave output_type out"))
    if found:
        raise ValidationFailed.of(*found)
    return replace(request, params=replace(params, response_format=form.response_format))


def expectations(unfit: Unfit) -> str:
    """In what an answer does not fit, for errors."""
    return "; ".join(_shortened([_at(misfit.told_at, misfit.told) for misfit in unfit.misfits], MOST_TOLD))


def repair_of(answer: str, unfit: Unfit) -> Repair:
    """Send a model its answer back, with what is wrong with it."""
    said = [_at(misfit.said_at, misfit.said) for misfit in unfit.misfits]
    listed = "".join(f"- {each}\n" for each in _shortened(said, MOST_SAID))
    asked = f"This answer does not fit the JSON schema that was given:\n{listed}Answer again with the whole JSON alone."
    messages = [Message("assistant", answer)] if answer.strip() else []  # some vendors refuse a turn without text
    messages.append(Message("user", asked))
    return Repair(messages, bounds_of(RouteRequest(messages)))


def unfenced(answer: str) -> str:
    """The text without the code fence that some models put around JSON."""
    text = answer.strip()
    if len(text) < 2 * len(FENCE) or not (text.startswith(FENCE) and text.endswith(FENCE)):
        return text
    head, line_break, rest = text[len(FENCE) : -len(FENCE)].partition("\n")
    if line_break and head.strip().isalnum():
        return rest.strip()
    return (head + line_break + rest).strip()


def _at(place: str, what: str) -> str:
    return f"{place}: {what}" if place else what


def _shortened(words: Sequence[str], most: int) -> list[str]:
    kept = [each if len(each) <= MOST_CHARS else f"{each[:MOST_CHARS]}..." for each in words[:most]]
    return kept if len(words) <= most else [*kept, f"and {len(words) - most} more"]


def _wrapped(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an object that holds the value; definitions stay at the top, where references look for them."""
    inner = {word: value for word, value in schema.items() if word != "$defs"}
    outer = {"type": "object", "properties": {VALUE: inner}, "required": [VALUE], "additionalProperties": False}
    return {**outer, "$defs": schema["$defs"]} if "$defs" in schema else outer


def _plain(name: str) -> str:
    """The name as vendors take one."""
    if FUNCTION_NAME.fullmatch(name):
        return name
    return "".join(each if each.isascii() and each.isalnum() else "_" for each in name)[:64] or "answer"
