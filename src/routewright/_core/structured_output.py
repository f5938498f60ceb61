"""Structured output: requests an answer of a given type, reads it, and asks for a repair if it does not match.

Here a type is a JSON schema and a function that decodes JSON text. Vendors' strict mode supports only a part of JSON
Schema: objects whose properties are all required with no additional ones, arrays of one item type, ``anyOf``,
``enum``, references to ``$defs``, bounds of numbers and array lengths, patterns and common formats.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from msgspec import DecodeError, Raw
from msgspec.json import Decoder, encode
from msgspec.structs import replace

from routewright.errors import Problem
from routewright.wire import JsonObject, Message, Params, RouteRequest, TokenBounds
from routewright.wire.json_scan import beneath, is_json

from .request.rules import FUNCTION_NAME, refuse
from .tokens.estimate import bounds_of

VALUE = "value"  # property that wraps a value other than a JSON object
MAX_ERROR_MISFITS = 3  # misfits listed in an error
MAX_MODEL_MISFITS = 10  # misfits sent to the model
MOST_CHARS = 300  # limit on the description of one misfit
MOST_TAGS = 100  # tags of reasoning that are tried as the last one
FENCE = "```"

_THOUGHT_TAG = re.compile(
    # many, Seed, Perplexity; Mistral; Kimi; gpt-oss, without and with its special tokens; Gemma; Cohere, GLM
    r"</?(?:(?:seed:)?think|thinking|thoughts?|reasoning|reflection|analysis|answer)\s*>|\[/?THINK\]|\u25c1/?think\u25b7"
    r"|assistantfinal|<\|channel\|>[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>|<channel\|>|<\|(?:START|BEGIN|END)_\w+\|>",
    re.IGNORECASE,
)
_AFTER_JSON = re.compile(r"(?:(?:</answer>|<\|\w{1,20}\|>)\s*+){1,3}+\Z")
_OBJECT = Decoder(dict[str, Raw])
_ANYTHING = Decoder(Raw)
_FORCED = "cannot be combined with a tool_choice that requires a tool call"


class Misfit(NamedTuple):
    """A mismatch of answer and type. ``message`` is for errors (without model text), ``model_message`` for the
    model."""

    message: str
    model_message: str
    message_path: str = ""
    model_path: str = ""
    """JSON path of the mismatch."""

    def under(self, path: str) -> Misfit:
        """The same mismatch below ``path``."""
        return self._replace(message_path=beneath(path, self.message_path), model_path=beneath(path, self.model_path))


_NO_OBJECT = Misfit("is not one JSON object", "is not one JSON object")
_NO_VALUE = Misfit("is missing", "is missing", VALUE, VALUE)


class Unfit(Exception):
    """Raised by a reader if an answer does not match its type."""

    def __init__(self, misfits: Sequence[Misfit]) -> None:
        super().__init__()
        self.misfits = misfits


class Fit(NamedTuple):
    """The value of an answer that matches its type."""

    value: Any
    thought: str = ""
    """Reasoning before the JSON."""


Reader = Callable[[bytes], object]  # decodes JSON text, or raises ``Unfit``


class Form:
    """A type of answer: its ``response_format`` and its reader."""

    def __init__(self, name: str, schema: JsonObject, read: Reader) -> None:
        schema = resolve_root(schema)
        self._wrapped = schema.get("type") != "object"
        if self._wrapped:  # as a property of an object; ``$defs`` stays at the top, where references point to
            properties = {VALUE: {word: value for word, value in schema.items() if word != "$defs"}}
            definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
            schema = {"type": "object", "properties": properties, "required": [VALUE], "additionalProperties": False}
            schema |= definitions
        if not FUNCTION_NAME.fullmatch(name):  # vendors accept no other names
            name = "".join(char if char.isascii() and char.isalnum() else "_" for char in name)[:64] or "answer"
        strict = strict_form(schema)
        json_schema = {"name": name, "schema": schema if strict is None else strict, "strict": strict is not None}
        self.response_format: JsonObject = {"type": "json_schema", "json_schema": json_schema}
        self._read = read

    def read(self, answer: str) -> Fit | Unfit:
        """Decode an answer."""
        thought, text = split_thought(answer)
        try:
            return Fit(self._value(text.encode()), thought)
        except Unfit as unfit:
            return Unfit([*unfit.misfits])  # a new exception, because the frames of this one hold the answer
        except Exception as error:  # from a validator of the type; its message may contain the answer
            message = f"fails with {type(error).__name__} in a check of its type"
            return Unfit([Misfit(message, message)])

    def _value(self, body: bytes) -> object:
        try:
            fields = _OBJECT.decode(body)
        except (DecodeError, RecursionError):
            fields = None
        if not self._wrapped:
            if fields is None:
                raise Unfit([_NO_OBJECT])
            return self._read(body)
        if fields is None:
            # Some models leave out the wrapping object. An object without VALUE is not accepted as the value itself:
            # it could match a type whose properties are all optional.
            try:
                _ANYTHING.decode(body)
                return self._read(body)
            except (Unfit, DecodeError, RecursionError):
                raise Unfit([_NO_OBJECT]) from None
        if VALUE not in fields:
            raise Unfit([_NO_VALUE])
        try:
            return self._read(bytes(fields[VALUE]))
        except Unfit as unfit:
            raise Unfit([misfit.under(VALUE) for misfit in unfit.misfits]) from None


class Repair(NamedTuple):
    """Messages that ask a model to correct an answer."""

    messages: list[Message]
    """To append to the request's messages."""
    bounds: TokenBounds
    """Tokens that they add to the prompt."""


def with_output(request: RouteRequest, form: Form) -> RouteRequest:
    """Set ``response_format``. Raises ``ValidationFailed`` if the request has one or requires a tool call."""
    params = request.params or Params()
    problems = []
    if params.response_format is not None:
        hint = "use one of them; output_type sets response_format"
        problems.append(Problem("output_type", "cannot be combined with params.response_format", hint))
    if request.tool_choice not in (None, "auto", "none"):
        problems.append(Problem("output_type", _FORCED, "use tool_choice 'auto', or leave output_type out"))
    refuse(problems)
    return replace(request, params=replace(params, response_format=form.response_format))


def describe_misfits(unfit: Unfit) -> str:
    """Describe the mismatches for an error."""
    return "; ".join(_format([(misfit.message_path, misfit.message) for misfit in unfit.misfits], MAX_ERROR_MISFITS))


def repair_of(answer: str, unfit: Unfit) -> Repair:
    """Ask a model to correct its answer."""
    lines = _format([(misfit.model_path, misfit.model_message) for misfit in unfit.misfits], MAX_MODEL_MISFITS)
    listed = "".join(f"- {line}\n" for line in lines)
    text = f"This answer does not fit the JSON schema that was given:\n{listed}Answer again with the whole JSON alone."
    messages = [Message("assistant", answer)] if answer.strip() else []  # some vendors reject an empty turn
    messages.append(Message("user", text))
    return Repair(messages, bounds_of(RouteRequest(messages)))


def split_thought(answer: str) -> tuple[str, str]:
    """The reasoning before the JSON of an answer, and the JSON, without a fence. Without JSON: all of the answer."""
    # Many servers leave a model's reasoning in its text, in the tags of its training, often without the first one. All
    # such answers would be repaired, which is paid for, and some repairs fail as well. To cut at the last tag would cut
    # a text in the JSON that quotes one, at the first a thought that does. So what follows a tag is the answer if all
    # of it is JSON; an answer that is JSON as it is has no tags. See test_thoughts_before_json_are_taken_off.
    text = unfence(answer)
    if is_json(text):
        return "", text
    answer = _AFTER_JSON.sub("", answer)
    for tag in islice(_THOUGHT_TAG.finditer(answer), MOST_TAGS):
        rest = unfence(answer[tag.end() :])
        if is_json(rest):
            return _THOUGHT_TAG.sub("", answer[: tag.start()]).strip(), rest
    return "", text


def unfence(answer: str) -> str:
    """Remove the code fence that some models put around JSON."""
    text = answer.strip()
    if len(text) < 2 * len(FENCE) or not (text.startswith(FENCE) and text.endswith(FENCE)):
        return text
    body = text[len(FENCE) : -len(FENCE)]
    language = body.partition("\n")[0]
    if language != body and language.strip().isalnum():
        return body[len(language) :].strip()
    return body.strip()


def _format(misfits: Sequence[tuple[str, str]], limit: int) -> list[str]:
    """Format misfits, shortened to ``limit``."""
    lines = [f"{path}: {message}" if path else message for path, message in misfits[:limit]]
    shortened = [line if len(line) <= MOST_CHARS else f"{line[:MOST_CHARS]}..." for line in lines]
    return shortened if len(misfits) <= limit else [*shortened, f"and {len(misfits) - limit} more"]


MOST_DEFAULT_CHARS = 200  # limit on a default value written into a description

_AS_THEY_ARE = frozenset(
    "type description minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minItems maxItems pattern".split()
)
_ONLY_NOTES = frozenset("title default examples discriminator deprecated readOnly writeOnly $comment".split())
"""Keywords without effect on which answers match."""
_FORMATS = frozenset("date-time time date duration email hostname ipv4 ipv6 uuid".split())
_KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_DEFINED = "#/$defs/"


class _Loose(Exception):
    """The schema has something that strict mode does not support."""


def resolve_root(schema: Mapping[str, Any]) -> JsonObject:
    """Resolve the reference at the top of a schema, because vendors require an object there."""
    reference = schema.get("$ref")
    definitions = schema.get("$defs")
    if not isinstance(reference, str) or not isinstance(definitions, Mapping):
        return dict(schema)
    name = reference.removeprefix(_DEFINED)
    if not isinstance(definitions.get(name), Mapping):
        return dict(schema)
    top: JsonObject = {**definitions[name], **{word: value for word, value in schema.items() if word != "$ref"}}
    others = {other: value for other, value in definitions.items() if other != name}
    if encode(reference) not in encode([definitions[name], others]):
        top["$defs"] = others
    return {word: value for word, value in top.items() if word != "$defs" or value}


def strict_form(schema: Mapping[str, Any]) -> JsonObject | None:
    """Convert a schema to strict mode. None: not possible. Optional properties become required, with the default in
    their description."""
    definitions = schema.get("$defs", {})
    try:
        strict = _strict({word: value for word, value in schema.items() if word != "$defs"}, definitions)
        if definitions:
            strict["$defs"] = {name: _strict(inner, definitions) for name, inner in definitions.items()}
    except _Loose:
        return None
    return strict


def property_names(schema: object) -> set[str]:
    """Names of all properties in a schema."""
    if isinstance(schema, list):
        return set().union(*map(property_names, schema))
    if not isinstance(schema, Mapping):
        return set()
    properties = schema.get("properties")
    return (set(properties) if isinstance(properties, Mapping) else set()).union(*map(property_names, schema.values()))


def _strict(schema: object, definitions: Mapping[str, Any]) -> JsonObject:
    if not isinstance(schema, Mapping):  # true and false
        raise _Loose
    if "$ref" in schema:
        reference = schema["$ref"]
        is_known = isinstance(reference, str) and reference.removeprefix(_DEFINED) in definitions
        if not is_known or schema.keys() - {"$ref", "description"} - _ONLY_NOTES:
            raise _Loose
        if "description" not in schema:
            return {"$ref": reference}
        return {"anyOf": [{"$ref": reference}], "description": schema["description"]}
    strict: JsonObject = {}
    for word, value in schema.items():
        if word not in _ONLY_NOTES:
            strict |= {word: value} if word in _AS_THEY_ARE else _part(word, value, schema, definitions)
    if strict.get("type") == "object" and "properties" not in strict:
        raise _Loose  # accepts any object
    if strict.get("type") == "array" and "items" not in strict:
        raise _Loose
    if "type" not in strict and "anyOf" not in strict:
        raise _Loose  # accepts anything
    return strict


def _part(word: str, value: Any, schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> JsonObject:
    """A keyword of a schema in strict form."""
    match word:
        case "properties":
            required = schema.get("required", ())
            properties = {
                name: _strict(inner if name in required else _with_default(inner), definitions)
                for name, inner in schema["properties"].items()
            }
            return {"properties": properties, "required": [*properties], "additionalProperties": False}
        case "required":
            return {}  # all properties are
        case "additionalProperties" if value is False:
            return {}
        case "items":
            return {"items": _strict(value, definitions)}
        case "anyOf":
            return {"anyOf": [_strict(choice, definitions) for choice in value]}
        case "oneOf" if "discriminator" in schema:  # no value matches two
            return {"anyOf": [_strict(choice, definitions) for choice in value]}
        case "allOf" if len(value) == 1 and not schema.keys() & {"type", "properties", "anyOf"}:
            return _strict(value[0], definitions)
        case "enum":
            return _choice(value)
        case "const":
            return _choice([value])
        case "format" if value in _FORMATS:
            return {"format": value}
    raise _Loose


def _with_default(schema: object) -> JsonObject:
    """An optional property with its default in the description. ``_Loose`` if its default is not a valid value."""
    if not isinstance(schema, Mapping) or "default" not in schema:
        raise _Loose
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    if schema["default"] is None and "null" not in kinds and {"type": "null"} not in schema.get("anyOf", ()):
        raise _Loose
    default = encode(schema["default"]).decode()
    if len(default) > MOST_DEFAULT_CHARS:
        raise _Loose
    description = schema.get("description")
    return {**schema, "description": f"{description} (default: {default})" if description else f"Default: {default}"}


def _choice(values: list[object]) -> JsonObject:
    if not all(type(value) in _KINDS for value in values):
        raise _Loose
    kinds = list(dict.fromkeys(_KINDS[type(value)] for value in values))
    return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": values}
