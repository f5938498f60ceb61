"""Makes a ``Problem`` with path, value and remedy from msgspec's errors and from wrong values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Any, get_args

import msgspec

from routewright.errors import Problem
from routewright.wire import (
    AvailabilityStatus,
    Budget,
    CacheOpts,
    Capability,
    Fallback,
    FunctionCall,
    FunctionName,
    FunctionSpec,
    Goal,
    GuardrailAction,
    ImagePart,
    ImageUrl,
    Message,
    Modality,
    ModelStrategy,
    NamedToolChoice,
    OnPartial,
    Params,
    PatternKind,
    Policy,
    PolicyFallback,
    PolicyGuardrail,
    PolicyWeights,
    Role,
    RouteRequest,
    Stage,
    Strategy,
    TextPart,
    Tokenizer,
    Tool,
    ToolCall,
)

from .json_scan import beneath, decode, joined, quoted

Problems = list[Problem]
"""Problems found so far; every rule appends to it."""

EXACT = 2**53 - 1
"""Beyond it a whole number may change silently on its way through JSON."""

_PART = "messages[].content[]"
_CALL = "messages[].tool_calls[]"
_FORMAT = "params.response_format"

_STRUCTS: dict[str, type[msgspec.Struct]] = {
    "": RouteRequest,
    "messages[]": Message,
    f"{_PART}.image_url": ImageUrl,
    _CALL: ToolCall,
    f"{_CALL}.function": FunctionCall,
    "fallback": Fallback,
    "budget": Budget,
    "cache": CacheOpts,
    "tools[]": Tool,
    "tools[].function": FunctionSpec,
    "tool_choice": NamedToolChoice,
    "tool_choice.function": FunctionName,
    "params": Params,
    "model_strategy": ModelStrategy,
    "policies[]": Policy,
    "policies[].weights": PolicyWeights,
    "policies[].fallback": PolicyFallback,
    "policies[].budget": Budget,
    "policies[].cache": CacheOpts,
    "policies[].guardrails[]": PolicyGuardrail,
}

FIELDS: dict[str, tuple[str, ...]] = {
    **{place: kind.__struct_encode_fields__ for place, kind in _STRUCTS.items()},
    _PART: ("type", *TextPart.__struct_encode_fields__, *ImagePart.__struct_encode_fields__),
    _FORMAT: ("type", "json_schema"),
    f"{_FORMAT}.json_schema": ("name", "description", "schema", "strict"),
}
"""Known fields by place, which is a path without its indices."""

CHOICES: dict[str, tuple[str, ...]] = {
    "goal": get_args(Goal),
    "strategy": get_args(Strategy),
    "messages[].role": get_args(Role),
    f"{_PART}.type": ("text", "image_url"),
    f"{_PART}.image_url.detail": ("auto", "low", "high"),
    f"{_CALL}.type": ("function",),
    "fallback.on_partial": get_args(OnPartial),
    "cache.mode": ("semantic", "exact"),
    "tools[].type": ("function",),
    "tool_choice.type": ("function",),
    f"{_FORMAT}.type": ("text", "json_object", "json_schema"),
    "policies[].goal": get_args(Goal),
    "policies[].strategy": get_args(Strategy),
    "policies[].capabilities[]": get_args(Capability),
    "policies[].fallback.on_partial": get_args(OnPartial),
    "policies[].fallback.on_refusal": ("fail", "fallback"),
    "policies[].cache.mode": ("semantic", "exact"),
    "policies[].guardrails[].patterns[]": get_args(PatternKind),
    "policies[].guardrails[].action": get_args(GuardrailAction),
    "policies[].guardrails[].stages[]": get_args(Stage),
    "model_strategy.goal": get_args(Goal),
    "model_strategy.strategy": get_args(Strategy),
    "models[].modalities[]": get_args(Modality),
    "models[].tokenizer": get_args(Tokenizer),
    "models[].availability.status": get_args(AvailabilityStatus),
}
"""Allowed words by place."""

MEANT = {
    "max_tokens": "'params.max_output_tokens' caps the answer, 'budget.maxTokens' the whole call",
    "max_completion_tokens": "it is 'params.max_output_tokens' here",
    "model": "it is 'models' here, a list of ids",
    "role": "one message goes into a list of them",
    "content": "one message goes into a list of them",
    "prompt": "it is 'messages' here",
    "input": "it is 'messages' here",
    "system": 'give a message with the role "system"',
    **dict.fromkeys(
        (
            *("top_k", "n", "logprobs", "top_logprobs", "logit_bias", "presence_penalty", "frequency_penalty"),
            *("reasoning_effort", "verbosity", "parallel_tool_calls", "service_tier", "stream_options", "user"),
        ),
        "no provider is sent it; leave it out",
    ),
}
"""Fields of other interfaces, and what they are here."""

_EXAMPLES = {
    "messages": '[{"role": "user", "content": "Hello"}]',
    "models": '["openai/gpt-4.1"]',
    "fallback": '{"models": ["openai/gpt-4.1"]}',
    "budget": '{"maxCostUsd": 0.01}',
}
"""A value for a place."""

_GROUPS = ("", "params", "budget", "fallback", "cache")
_WORDS = {"str": "a string", "int": "a number", "float": "a number", "bool": "a boolean"}
_WORDS |= {"array": "an array", "list": "an array", "tuple": "an array", "object": "an object", "dict": "an object"}
_LONGEST_WORD = 100  # comparing is quadratic
_MOST_COMPARED = 500  # and names beyond these cost an error more time than its hint is worth
_UNSEEN = object()

_SAID = (".content", ".text", ".arguments")
"""Ends of the paths of a message's texts."""

_INDEX = re.compile(r"\[[^\[\]]*\]")
_STEP = re.compile(r"\.([^.\[]+)|\[([^\]]*)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")
_EXPECTED = re.compile(r"Expected `(.*?)`(?:, got `(.*)`)?")


def problem_of(error: msgspec.ValidationError, source: object, prefix: str) -> Problem:
    """Translate the decoder's error. ``source`` is what it read, ``prefix`` the path at which that stands."""
    what, _, where = str(error).rpartition(" - at ")
    if not where.startswith(("`$", "`key` in `$")):
        what, where = str(error), "`$`"
    inside = where[where.index("$") + 1 : -1]
    path = beneath(prefix, inside.lstrip("."))
    place = _INDEX.sub("[]", path)
    if unknown := _UNKNOWN.fullmatch(what):
        return Problem(joined(path, unknown[1]), "is not a field", hint_for(unknown[1], place))
    if missing := _MISSING.fullmatch(what):
        return Problem(joined(path, missing[1]), "is missing", example(joined(place, missing[1])))
    if where.startswith("`key`"):
        return Problem(path, "has a key that is not a string", "JSON keys are strings")
    value: Any = source
    try:
        for name, index in _STEP.findall(inside):
            value = value[name] if name else value[int(index)]
    except (LookupError, TypeError, ValueError):
        value = _UNSEEN
    if place in CHOICES and isinstance(value, str):
        return no_choice(path, value)
    if expected := _EXPECTED.fullmatch(what):
        words = dict.fromkeys(_WORDS.get(word, word) for word in expected[1].split(" | ") if word != "null")
        got = _got(path, value, expected[2])
        return Problem(path, f"must be {' or '.join(words)}, got {got}", example(place))
    return Problem(path, what[:1].lower() + what[1:], "")


def _got(path: str, value: object, kind: str | None) -> str:
    """Show the wrong value, but no text where a message or the whole request is expected, and no number where the text
    of a message is: errors end up in logs."""
    hidden = str | int | float if path.endswith(_SAID) else str
    if value is _UNSEEN or (isinstance(value, hidden) and (not path or path.startswith("messages"))):
        return _WORDS.get(kind or "", kind or "something else")
    return shown(value)


def unshaped(body: bytes) -> object:
    """Decode without a shape, to show values in errors."""
    try:
        return decode(body)
    except msgspec.DecodeError:  # a number that nothing can hold
        return _UNSEEN


def no_choice(path: str, value: object) -> Problem:
    """The problem of a value that is none of the ``CHOICES`` at its place."""
    choices = CHOICES[_INDEX.sub("[]", path)]
    allowed = f"one of {', '.join(choices)}" if len(choices) > 1 else repr(choices[0])
    return Problem(path, f"must be {allowed}, got {shown(value)}", did_you_mean(value, choices))


def hint_for(name: str, place: str, known: Sequence[str] | None = None) -> str:
    """Guess what an unknown field was meant to be. ``known``: the fields of its place, if not all of ``FIELDS``."""
    if place in ("", "params") and name in MEANT:
        return MEANT[name]
    known = FIELDS.get(place, ()) if known is None else known
    if spelled := _respelled(name, known):
        return f"JSON and dicts spell it {spelled!r}" if place else f"did you mean {spelled!r}?"
    for group in _GROUPS:
        if group != place and (spelled := _respelled(name, FIELDS[group])):
            return f"it is {joined(group, spelled)!r} here"
    return did_you_mean(name, known) or (f"known: {', '.join(known)}" if known else "")


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name that a misspelt one most likely means; None if none is close."""
    if len(word) > _LONGEST_WORD:
        return None
    spelled = {name.lower(): name for name in known}
    if len(spelled) > _MOST_COMPARED:  # people rarely get the first letter wrong
        alike = ((low, name) for low, name in spelled.items() if low[:1] == word[:1].lower())
        spelled = dict(islice(alike, _MOST_COMPARED))
    close = get_close_matches(word.lower(), spelled, n=1)
    return spelled[close[0]] if close else None


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """A hint with the nearest known name; empty if none is close."""
    near = nearest(word, known) if isinstance(word, str) else None
    return f"did you mean {near!r}?" if near else ""


def example(place: str) -> str:
    """A hint with a value for a place; empty if its name says enough."""
    if place in _EXAMPLES:
        return f"for example {_EXAMPLES[place]}"
    return f"one of {', '.join(CHOICES[place])}" if place in CHOICES else ""


def shown(value: object) -> str:
    """A value as JSON, in short: strings cut, arrays and objects only named."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, (int, float)):
        return f"{value:.15g}" if abs(value) <= EXACT or not isinstance(value, int) else "a huge number"
    kind = type(value).__name__
    return _WORDS.get(kind, kind)


def listed(names: Sequence[str]) -> str:
    """Names in quotes, the first ten of them."""
    return ", ".join(map(quoted, names[:10])) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _respelled(name: str, known: Iterable[str]) -> str | None:
    bare = name[:_LONGEST_WORD].replace("_", "").lower()
    return next((field for field in known if field.replace("_", "").lower() == bare), None)
