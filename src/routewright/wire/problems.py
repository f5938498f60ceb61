"""Turns msgspec errors and wrong values into a ``Problem`` with path, value and hint. Texts use Python's words
(``None``, ``True``, ``a list``); ``in_json`` translates them to JSON's for HTTP and files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice
from math import inf
from typing import Any, Literal, NamedTuple, get_args, get_origin

import msgspec
from msgspec.structs import fields

from routewright.errors import Problem, ValidationFailed

from .agent import ModelStrategy
from .analytics import Bucket
from .foreign import HINTS
from .json_scan import beneath, decode, joined, quoted
from .model import AvailabilityStatus, Feature, Modality, Tokenizer
from .policy import Policy
from .request import Budget, Fallback, RouteRequest

Problems = list[Problem]  # found so far; every rule appends to it

EXACT = 2**53 - 1  # larger whole numbers may be rounded when they pass through JSON

_FORMAT = "params.response_format"

FORMATS = ("text", "json_object", "json_schema")
_FIELDS = {_FORMAT: ("type", "json_schema"), f"{_FORMAT}.json_schema": ("name", "description", "schema", "strict")}
_CHOICES = {
    f"{_FORMAT}.type": FORMATS,
    "bucket": get_args(Bucket),
    "tool_choice.allowed_tools.mode": ("auto", "required"),
    "models[].modalities[]": get_args(Modality),
    "models[].tokenizer": get_args(Tokenizer),
    "models[].unsupported[]": get_args(Feature),
    "models[].availability.status": get_args(AvailabilityStatus),
}
_ROOTS: dict[str, type[msgspec.Struct]] = {"": RouteRequest, "model_strategy": ModelStrategy, "policies[]": Policy}


class Places(NamedTuple):
    """The known fields and choices by place. A place is a path without indices."""

    fields: dict[str, tuple[str, ...]]
    choices: dict[str, tuple[str, ...]]
    """Allowed words."""

    def note(self, place: str, kind: object) -> None:
        """Add the fields and choices of a type at a place, recursively."""
        origin, args = get_origin(kind), get_args(kind)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            field_names = self.fields.get(place, ())
            config = kind.__struct_config__
            if config.tag_field is not None:
                field_names = field_names or (config.tag_field,)
                tags = f"{place}.{config.tag_field}"
                self.choices[tags] = (*self.choices.get(tags, ()), str(config.tag))
            self.fields[place] = (*dict.fromkeys((*field_names, *kind.__struct_encode_fields__)),)
            for field in fields(kind):
                self.note(joined(place, field.encode_name), field.type)
        elif origin is Literal:
            self.choices[place] = args
        elif origin is list:
            self.note(f"{place}[]", args[0])
        elif origin is not dict:
            for inner in args:
                self.note(place, inner)


@lru_cache
def known_places() -> Places:
    """The places of requests and policies. Built on the first error, since it takes milliseconds."""
    places = Places({**_FIELDS}, {**_CHOICES})
    for place, kind in _ROOTS.items():
        places.note(place, kind)
    return places


_EXAMPLES = {  # by the last name of a place
    "messages": '[{"role": "user", "content": "Hello"}]',
    "models": '["openai/gpt-6-luna"]',
    "prefer": '"openai/gpt-6-luna"',
    "fallback": '{"models": ["openai/gpt-6-luna"]}',
    "budget": '{"maxCostUsd": 0.01}',
    "cache": 'True, or {"mode": "exact"}',
    "tools": '[{"type": "function", "function": {"name": "weather"}}]',
    "tool_choice": '"auto"',
    "params": '{"temperature": 0.7}',
    "metadata": '{"team": "support"}',
    "response_format": '{"type": "json_object"}',
    "image_url": '{"url": "https://example.com/cat.png"}',
    "function": '{"name": "weather"}',
    "stop": '["END"]',
    "task": '"Compare these two offers"',
    "model_strategy": '{"goal": "quality"}',
    **dict.fromkeys(("maxCostUsd", "max_cost_usd", "total_budget_usd"), "0.01"),
    **dict.fromkeys(("maxTokens", "max_tokens"), "8000"),
    **dict.fromkeys(("timeout_ms", "per_step_timeout_ms", "max_latency_ms"), "30000"),
    **dict.fromkeys(("context_window", "above_tokens"), "128000"),
    **dict.fromkeys(("ttl_seconds", "tokens_per_s"), "3600"),
    **dict.fromkeys(("max_output_tokens",), "1000"),
    **dict.fromkeys(("max_error", "explore"), "0.01"),
    "max_steps": "8",
}

_GROUPS = ("cache", "fallback", "budget", "params", "")  # if two have the same field, the last wins
_WORDS = {"str": "a string", "int": "a number", "float": "a number", "bool": "a bool", "null": "None"}
_WORDS |= {"array": "a list", "list": "a list", "tuple": "a tuple", "object": "a dict", "dict": "a dict"}
_SAMPLES = {"a string": '"text"', "a number": "1", "a bool": "True or False", "a list": "[]", "a dict": "{}"}
"""A value of each kind."""
_JSON = {"None": "null", "True": "true", "False": "false", "a dict": "an object", "a list": "an array"}
_JSON |= {"a tuple": "an array", "a bool": "a boolean", "dicts": "objects"}
ATTRIBUTES = {  # fields whose wire spelling differs from the attribute, by wire spelling
    f"{place}.{field.encode_name}": f"{place}.{field.name}"
    for place, kind in (("budget", Budget), ("fallback", Fallback))
    for field in fields(kind)
    if field.encode_name != field.name
}
BOTH = {attr: f"{attr} ({spelled.rpartition('.')[2]} in a dict)" for spelled, attr in ATTRIBUTES.items()}
"""How messages name such a field if the caller may have passed a dict or a struct, by attribute."""
_JSON |= {BOTH[attribute]: spelled for spelled, attribute in ATTRIBUTES.items()}  # before their own prefixes
_JSON |= {attribute: spelled for spelled, attribute in ATTRIBUTES.items()}
_QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_PYTHON = re.compile(rf"(?<!\w)(?:{_QUOTED}|{'|'.join(map(re.escape, _JSON))})(?!\w)")
"""Matches a word of ``_JSON``, or a quoted text."""
_BETWEEN = re.compile(r"[\W_]+")
_CLOSE = 0.75  # the least similarity of a misspelt and a known word, 0 to 1
_LONGEST_WORD = 100  # comparing takes quadratic time
_MOST_COMPARED = 500  # bounds the time spent on a hint
_UNSEEN = object()

_TEXTS = (".content", ".text", ".arguments")  # path suffixes of a message's texts

_INDEX = re.compile(r"\[[^\[\]]*\]")
STEP = re.compile(r"\.([^.\[]+)|\[([^\]]*)\]")
_AT = re.compile(r"(.*) - at (`(?:key` in `)?\$.*`)", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")
_EXPECTED = re.compile(r"Expected `(.*?)`(?:, got `(.*)`)?")


def problem_of(error: msgspec.ValidationError, source: object, prefix: str) -> Problem:
    """Translate a msgspec error. ``source`` is the decoded value, ``prefix`` its path."""
    match = _AT.fullmatch(str(error))
    message = str(error) if match is None else match[1]
    location = "`$`" if match is None else match[2]
    inside = location[location.index("$") + 1 : -1]
    path = beneath(prefix, inside.lstrip("."))
    place = _INDEX.sub("[]", path)
    if unknown := _UNKNOWN.fullmatch(message):
        return Problem(joined(path, unknown[1]), "is not a field", hint_for(unknown[1], place))
    if missing := _MISSING.fullmatch(message):
        return Problem(joined(path, missing[1]), "is missing", example(joined(place, missing[1])) or "add it")
    if location.startswith("`key`"):
        return Problem(path, "has a key that is not a string", "make every key a string")
    value: Any = source
    try:
        for name, index in STEP.findall(inside):
            value = value[name] if name else value[int(index)]
    except (LookupError, TypeError, ValueError):
        value = _UNSEEN
    if place in known_places().choices and isinstance(value, str):
        return no_choice(path, value)
    expected = _EXPECTED.fullmatch(message)
    if expected is None:
        return Problem(path, message[:1].lower() + message[1:], example(place) or "use another value")
    words = [*dict.fromkeys(_WORDS.get(word, word) for word in expected[1].split(" | ") if word != "null")]
    # errors are logged: never show what stands in the place of a message or its text
    hidden = str | int | float if path.endswith(_TEXTS) else str
    got = shown(value)
    if value is _UNSEEN or (isinstance(value, hidden) and (not path or path.startswith("messages"))):
        got = _WORDS.get(expected[2] or "", expected[2] or "something else")
    problem = f"must be {' or '.join(words)}, got {got}"
    return Problem(path, problem, example(place, _SAMPLES.get(words[0], "a value of that kind")))


def as_attribute(problem: Problem, prefix: str = "") -> Problem:
    """The problem with its path in attribute names, for structs. ``prefix`` precedes the path inside the request."""
    inner = problem.path.removeprefix(prefix)
    return problem._replace(path=prefix + ATTRIBUTES[inner]) if inner in ATTRIBUTES else problem


def decode_plain(body: bytes) -> object:
    """Decode to plain values, which errors show."""
    try:
        return decode(body)
    except msgspec.DecodeError:  # a number out of range
        return _UNSEEN


def no_choice(path: str, value: object, choices: Sequence[str] | None = None) -> Problem:
    """The problem of a value outside ``choices``; by default those of its place."""
    choices = known_places().choices[_INDEX.sub("[]", path)] if choices is None else choices
    if len(choices) == 1:
        return Problem(path, f"must be {choices[0]!r}, got {shown(value)}", "it is the only choice")
    meant = "max" if value == "xhigh" else value  # the name some vendors use
    hint = did_you_mean(meant, choices) or f"for example {choices[0]!r}"
    return Problem(path, f"must be one of {', '.join(choices)}, got {shown(value)}", hint)


def hint_for(name: str, place: str, field_names: Sequence[str] | None = None) -> str:
    """A hint for an unknown field. ``field_names`` defaults to the fields of its place."""
    if hint := HINTS["request"].get(name if place in ("", "params") else f"{place}.{name}"):
        return hint
    field_names = known_places().fields.get(place, ()) if field_names is None else field_names
    if spelled := _respelled(name, field_names):
        return f"it is spelled {spelled!r}{' in a dict' if f'{place}.{spelled}' in ATTRIBUTES else ''}"
    others = {key: joined(group, key) for group in _GROUPS if group != place for key in known_places().fields[group]}
    if spelled := _respelled(name, others):
        return f"it is {others[spelled]!r} here"
    near = nearest(name, others)  # not quoted, or ``in_json`` would take it for a value
    rest = f"known: {', '.join(field_names)}" if field_names else "leave it out"
    return did_you_mean(name, field_names) or (f"did you mean {others[near]}?" if near else rest)


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The known name closest to a misspelt one; None if none is close. Model ids are compared without their provider,
    which would make different models look alike; ids of the same provider win."""
    low = word.lower()
    if len(word) > _LONGEST_WORD or not (tail := _tail(low)):
        return None
    tails: dict[str, list[str]] = {}
    for name in choices:
        tails.setdefault(_tail(name.lower()), []).append(name)
    if len(tails) > _MOST_COMPARED:  # people rarely get the first letter wrong
        tails = dict(islice(((end, names) for end, names in tails.items() if end[:1] == tail[:1]), _MOST_COMPARED))
    close = get_close_matches(tail, tails, n=len(tails) or 1, cutoff=_CLOSE)
    close = [end for end in close if abs(len(end) - len(tail)) * 2 < len(end)]  # chance puts three letters into five
    provider = f"{low.partition('/')[0]}/"
    close = sorted(close, key=lambda end: not any(name.lower().startswith(provider) for name in tails[end]))[:1]
    if not close:  # swapped letters, or added or missing words
        words = {*_BETWEEN.split(tail)}
        split = {end: {*_BETWEEN.split(end)} for end in tails}
        close = [end for end, own in split.items() if own <= words or words <= own or sorted(end) == sorted(tail)]
    names = {name.lower(): name for end in close for name in tails[end]}
    return names[get_close_matches(low, names, n=1, cutoff=0)[0]] if names else None


def _tail(name: str) -> str:
    return name if "*" in name else name.rpartition("/")[2]


def did_you_mean(word: object, choices: Iterable[str]) -> str:
    """A hint with the closest known name; empty if none is close."""
    near = nearest(word, choices) if isinstance(word, str) else None
    return f"did you mean {near!r}?" if near else ""


def one_of(word: object, choices: Sequence[str]) -> str:
    """A hint with the closest word, then all known words."""
    return f"{did_you_mean(word, choices)} one of {', '.join(choices)}".lstrip()


def example(place: str, sample: str = "") -> str:
    """A hint with an example value for a place, else ``sample``; empty if both are missing."""
    if choices := known_places().choices.get(place):
        return f"one of {', '.join(choices)}"
    name = place.rpartition(".")[2]
    value = _EXAMPLES.get(name.removesuffix("[]"), sample)
    if name.endswith("[]") and value.startswith("["):
        value = value[1:-1]
    return f"for example {value}" if value else ""


def check_bounds(name: str, **bounds: object) -> None:
    """Raise ``ValidationFailed`` for a bound that is not a whole number above 0."""
    for field, bound in bounds.items():
        if type(bound) is not int or bound < 1:
            raise ValidationFailed.at(f"{name}.{field}", f"is {shown(bound)}", "use a whole number above 0")


def check_lease(storage: str, lease_s: object) -> None:
    """Raise ``ValidationFailed`` for a lease that is not a number of seconds above 0."""
    if not isinstance(lease_s, int | float) or isinstance(lease_s, bool) or not 0 < lease_s < inf:
        raise ValidationFailed.at(f"{storage}.lease_s", f"is {shown(lease_s)}", "use a number of seconds above 0")


def shown(value: object) -> str:
    """A short form of a value in Python's words: strings are cut, lists and dicts only named."""
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, (int, float)):
        if abs(value) <= EXACT or not isinstance(value, int):
            return f"{value:.15g}" if abs(value) <= EXACT else f"{value:.17g}"
        return "a huge number"
    kind = type(value).__name__
    return _WORDS.get(kind, kind)


def in_json(text: str) -> str:
    """Replace Python's words and attribute names by JSON's. Quoted texts stay unchanged."""
    return _PYTHON.sub(lambda match: _JSON.get(match[0], match[0]), text)


def problem_in_json(problem: Problem) -> Problem:
    """The problem in JSON's words."""
    return Problem(problem.path, in_json(problem.problem), in_json(problem.hint))


def listed(names: Sequence[str]) -> str:
    """The first ten names, quoted, and how many more there are."""
    return ", ".join(map(quoted, names[:10])) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _respelled(name: str, field_names: Iterable[str]) -> str | None:
    bare = name[:_LONGEST_WORD].replace("_", "").lower()
    return next((field for field in field_names if field.replace("_", "").lower() == bare), None)
