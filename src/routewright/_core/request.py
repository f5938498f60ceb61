"""The one door for a request: whatever a caller passes comes out as one checked, completed ``RouteRequest``.

Types are checked first, rules second. Whether model and policy ids exist is the catalogue's question.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, NamedTuple, TypeVar, get_args
from uuid import UUID

import msgspec
from msgspec.json import Decoder, decode, encode
from msgspec.structs import fields, replace

from routewright.errors import Problem, ValidationFailed
from routewright.wire import (
    Budget,
    CacheOpts,
    Fallback,
    FunctionCall,
    FunctionName,
    FunctionSpec,
    Goal,
    ImagePart,
    ImageUrl,
    Message,
    NamedToolChoice,
    Need,
    OnPartial,
    Params,
    Role,
    RouteRequest,
    Strategy,
    TextPart,
    Tool,
    ToolCall,
)

from .scan import Flaw, beneath, flaw_in, is_unicode, joined, quoted, scan

T = TypeVar("T")
Problems = list[Problem]
"""What was found wrong so far; every rule appends to it."""

MAX_MESSAGES = 1_000
MAX_STOPS = 4
MAX_METADATA_BYTES = 16 * 1024
MAX_KEY_BYTES = 64
MAX_PROBLEMS = 20
"""How many problems one error lists."""
DEFAULT_TIMEOUT_MS = 60_000.0
EXACT = 2**53 - 1
"""Beyond it a number in JSON may silently become another one."""

GOALS: tuple[str, ...] = get_args(Goal)
STRATEGIES: tuple[str, ...] = get_args(Strategy)
TOOL_MODES = ("auto", "none", "required")
FORMATS = ("text", "json_object", "json_schema")
FUNCTION_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
IMAGE_SCHEMES = ("https://", "http://", "data:image/")


class Range(NamedTuple):
    """The numbers that a field takes. ``above``: the lower bound itself is out."""

    low: int
    high: float = sys.float_info.max
    whole: bool = False
    above: bool = False

    def admits(self, value: float) -> bool:
        """Say whether a number is in the range; NaN and infinities never are."""
        if not self.low <= value <= self.high or (self.above and value == self.low):
            return False
        return not self.whole or value % 1 == 0

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        if self.above:
            return f"{kind} above {self.low}" if self.high >= EXACT else f"{kind} above {self.low}, at most {self.high}"
        is_open = self.high >= EXACT and self.low >= 0
        return f"{kind} of at least {self.low}" if is_open else f"{kind} from {self.low} to {self.high}"


_COUNT = Range(1, EXACT, whole=True)
_SHARE = Range(0, 1)

NUMBERS: dict[type[msgspec.Struct], dict[str, Range]] = {
    RouteRequest: {"timeout_ms": Range(1, 3_600_000, whole=True)},
    Fallback: {"max_retries": Range(0, 5, whole=True)},
    Budget: {"max_cost_usd": Range(0), "max_tokens": _COUNT},
    CacheOpts: {"max_error": _SHARE, "threshold": _SHARE, "ttl_seconds": Range(0, above=True), "explore": _SHARE},
    Params: {
        "temperature": Range(0, 2),
        "top_p": Range(0, 1, above=True),
        "max_output_tokens": _COUNT,
        "seed": Range(-EXACT, EXACT, whole=True),
    },
}

_PART = "messages[].content[]"
_CALL = "messages[].tool_calls[]"
_FORMAT = "params.response_format"

FIELDS: dict[str, tuple[str, ...]] = {
    "": RouteRequest.__struct_encode_fields__,
    "messages[]": Message.__struct_encode_fields__,
    _PART: ("type", *TextPart.__struct_encode_fields__, *ImagePart.__struct_encode_fields__),
    f"{_PART}.image_url": ImageUrl.__struct_encode_fields__,
    _CALL: ToolCall.__struct_encode_fields__,
    f"{_CALL}.function": FunctionCall.__struct_encode_fields__,
    "fallback": Fallback.__struct_encode_fields__,
    "budget": Budget.__struct_encode_fields__,
    "cache": CacheOpts.__struct_encode_fields__,
    "tools[]": Tool.__struct_encode_fields__,
    "tools[].function": FunctionSpec.__struct_encode_fields__,
    "tool_choice": NamedToolChoice.__struct_encode_fields__,
    "tool_choice.function": FunctionName.__struct_encode_fields__,
    "params": Params.__struct_encode_fields__,
    _FORMAT: ("type", "json_schema"),
    f"{_FORMAT}.json_schema": ("name", "description", "schema", "strict"),
}
"""Known fields by place, which is a path without its indices."""

CHOICES: dict[str, tuple[str, ...]] = {
    "goal": GOALS,
    "strategy": STRATEGIES,
    "messages[].role": get_args(Role),
    f"{_PART}.type": ("text", "image_url"),
    f"{_PART}.image_url.detail": ("auto", "low", "high"),
    f"{_CALL}.type": ("function",),
    "fallback.on_partial": get_args(OnPartial),
    "cache.mode": ("semantic", "exact"),
    "tools[].type": ("function",),
    "tool_choice.type": ("function",),
}

MEANT = {
    "max_tokens": "'params.max_output_tokens' caps the answer, 'budget.maxTokens' the whole call",
    "max_completion_tokens": "it is 'params.max_output_tokens' here",
    "model": "it is 'models' here, a list of ids",
    "role": "one message goes into a list of them",
    "content": "one message goes into a list of them",
}
"""What callers of other interfaces write, and what it is here."""

_NUMBERS = {
    kind: tuple((f.name, f.encode_name, ranges[f.name]) for f in fields(kind) if f.name in ranges)
    for kind, ranges in NUMBERS.items()
}
_ARGUMENTS = frozenset(RouteRequest.__struct_fields__) - {"messages"}
_SHAPES: dict[str, Any] = {
    "models": list[str],
    "fallback": Fallback,
    "budget": Budget,
    "cache": bool | CacheOpts,
    "tools": list[Tool],
    "tool_choice": str | NamedToolChoice,
    "params": Params,
}
_GROUPS = ("", "params", "budget", "fallback", "cache")
_NO_JSON = (Flaw, bytes, bytearray, memoryview, datetime, date, time, timedelta, UUID, Decimal)
_WORDS = {"str": "a string", "int": "a number", "float": "a number", "bool": "a boolean"}
_WORDS |= {"array": "an array", "list": "an array", "tuple": "an array", "object": "an object", "dict": "an object"}
_LONGEST_WORD = 100  # comparing is quadratic
_UNSEEN = object()
_IMAGE, _TOOLS, _JSON = int(Need.IMAGE), int(Need.TOOLS), int(Need.JSON)  # flags are slow to combine
_DECODER = Decoder(RouteRequest)

_INDEX = re.compile(r"\[\d+\]")
_STEP = re.compile(r"\.([^.\[]+)|\[([^\]]*)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")
_EXPECTED = re.compile(r"Expected `(.*?)`(?:, got `(.*)`)?")


def decode_request(body: bytes) -> RouteRequest:
    """Read the body of ``POST /v1/route``. Raises ``InvalidJson`` and ``ValidationFailed``."""
    scan(body)
    try:
        request = _DECODER.decode(body)
    except msgspec.ValidationError as error:
        problem = _problem_of(error, _plain(body), "")
    else:
        return _completed(request)
    raise ValidationFailed.of(problem)


def as_request(
    value: str | Sequence[Message | Mapping[str, Any]] | Mapping[str, Any] | RouteRequest,
    overrides: Mapping[str, Any],
) -> RouteRequest:
    """Make one request of the four things a caller may pass, with keyword arguments on top.

    Dicts are in wire spelling; structs may stand wherever a dict may. Raises ``ValidationFailed``.
    """
    given = _arguments(overrides) if overrides else {}
    return checked(_request_of(value, given))


def checked(request: RouteRequest) -> RouteRequest:
    """Hold a request to every rule, and fill in goal, strategy and time-out. Checking it again changes nothing.

    Structs check nothing when they are made, so types are checked here as well. Raises ``ValidationFailed``, with up
    to ``MAX_PROBLEMS`` problems. A few microseconds for a prompt and some scalars.
    """
    return _completed(request if _is_simple(request) else _typed(request))


def needs_of(request: RouteRequest) -> int:
    """Say what a checked request needs a model to be able to do, as bits of ``Need``."""
    needs = _TOOLS if request.tools else 0
    if any(isinstance(part, ImagePart) for m in request.messages if type(m.content) is list for part in m.content):
        needs |= _IMAGE
    if request.params is None or request.params.response_format is None:
        return needs
    return needs if request.params.response_format.get("type") == "text" else needs | _JSON


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Find the known name that a misspelt one most likely means; None where none is close."""
    if len(word) > _LONGEST_WORD:
        return None
    spelled = {name.lower(): name for name in known}
    close = get_close_matches(word.lower(), spelled, n=1)
    return spelled[close[0]] if close else None


# Types: whatever a caller made becomes the struct, or an error that names the place.


def _request_of(value: object, given: dict[str, Any]) -> RouteRequest:
    if isinstance(value, str):
        return RouteRequest([Message("user", value)], **given)
    if isinstance(value, RouteRequest):
        return replace(value, **given) if given else value
    if isinstance(value, Mapping):
        made = _converted(value, RouteRequest, "")
        return replace(made, **given) if given else made
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
        return RouteRequest(_converted(list(value), list[Message], "messages"), **given)
    hint = "pass a string, a list of messages, a dict or a RouteRequest"
    raise ValidationFailed.of(Problem("", f"{_shown(value)} is not a request", hint))


def _arguments(overrides: Mapping[str, Any]) -> dict[str, Any]:
    for name in overrides:
        if name == "messages":
            raise ValidationFailed.of(Problem(name, "is given twice", "the messages are the first argument"))
        if name not in _ARGUMENTS:
            raise ValidationFailed.of(Problem(joined("", name), "is not an argument", _hint(name, "")))
    return {name: _shaped(name, value) for name, value in overrides.items()}


def _shaped(name: str, value: Any) -> Any:
    if name not in _SHAPES or value is None or isinstance(value, (str, bool, msgspec.Struct)):
        return value
    return _converted(value, _SHAPES[name], name)


def _is_simple(request: RouteRequest) -> bool:
    """Say quickly that all types are right. It need not know every right one: ``_typed`` asks again, and thoroughly."""
    return (
        request.fallback is None
        and request.tools is None
        and request.tool_choice is None
        and request.params is None
        and request.metadata is None
        and (request.cache is None or _is_bool(request.cache))
        and _is_bool(request.stream)
        and (request.timeout_ms is None or _is_number(request.timeout_ms))
        and (request.goal is None or type(request.goal) is str)
        and (request.strategy is None or type(request.strategy) is str)
        and (request.policy_id is None or _is_ascii(request.policy_id))
        and (request.idempotency_key is None or _is_ascii(request.idempotency_key))
        and (request.models is None or (type(request.models) is list and all(map(_is_ascii, request.models))))
        and (request.budget is None or _is_plain_budget(request.budget))
        and type(request.messages) is list
        and all(map(_is_plain, request.messages))
    )


def _is_ascii(value: object) -> bool:
    return type(value) is str and value.isascii()


def _is_bool(value: object) -> bool:
    return type(value) is bool


def _is_number(value: object) -> bool:
    return type(value) is float or type(value) is int


def _is_plain_budget(budget: object) -> bool:
    return (
        type(budget) is Budget
        and (budget.max_cost_usd is None or _is_number(budget.max_cost_usd))
        and (budget.max_tokens is None or _is_number(budget.max_tokens))
    )


def _is_plain(message: object) -> bool:
    """Say whether it is an ordinary turn of text, as most are."""
    return (
        type(message) is Message
        and type(message.content) is str
        and is_unicode(message.content)
        and (message.role == "user" or message.role == "assistant" or message.role == "system")
        and not _has_more(message)
    )


def _typed(request: RouteRequest) -> RouteRequest:
    """Take a request apart and put it together again, which checks all types and parts it from the caller's objects."""
    try:
        tree = msgspec.to_builtins(request, builtin_types=_NO_JSON, enc_hook=_stand_in)
    except RecursionError:
        problem = "nests too deep to be read, or holds a value that contains itself"
        raise ValidationFailed.of(Problem("", problem, "flatten it")) from None
    except TypeError as error:  # a struct as a key
        raise ValidationFailed.of(Problem("", f"holds what is not JSON: {error}", "JSON keys are strings")) from None
    found = flaw_in(tree)
    if found is not None:
        raise ValidationFailed.of(Problem(found[0], found[1].problem, found[1].hint))
    return _converted(tree, RouteRequest, "")


def _stand_in(value: object) -> object:
    """Make a plain string of a subclass's; of everything else what ``flaw_in`` reports."""
    return str.__str__(value) if isinstance(value, str) else Flaw(f"{type(value).__name__} is not JSON", "")


def _converted(value: object, shape: type[T], path: str) -> T:
    try:
        return msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        problem = _problem_of(error, value, path)
    except UnicodeEncodeError as error:
        problem = Problem(path, f"holds half of a surrogate pair: {quoted(error.object)}", "send valid Unicode")
    raise ValidationFailed.of(problem)


# Words: what msgspec says, said with path, value and remedy.


def _plain(body: bytes) -> object:
    """Decode without a shape, to show values in errors."""
    try:
        return decode(body)
    except msgspec.DecodeError:  # a number that nothing can hold
        return _UNSEEN


def _problem_of(error: msgspec.ValidationError, source: object, prefix: str) -> Problem:
    """Translate the decoder's error. ``source`` is what it read, ``prefix`` the path at which that stands."""
    what, _, where = str(error).rpartition(" - at ")
    if not where.startswith(("`$", "`key` in `$")):
        what, where = str(error), "`$`"
    inside = where[where.index("$") + 1 : -1]
    path = beneath(prefix, inside.lstrip("."))
    place = _INDEX.sub("[]", path)
    if unknown := _UNKNOWN.fullmatch(what):
        return Problem(joined(path, unknown[1]), "is not a field", _hint(unknown[1], place))
    if missing := _MISSING.fullmatch(what):
        return Problem(joined(path, missing[1]), "is missing", _example(joined(place, missing[1])))
    if where.startswith("`key`"):
        return Problem(path, "has a key that is not a string", "JSON keys are strings")
    value = _value_at(source, inside)
    if place in CHOICES and isinstance(value, str):
        return _no_choice(path, value, CHOICES[place])
    if expected := _EXPECTED.fullmatch(what):
        return Problem(path, f"must be {_either(expected[1])}, got {_got(path, value, expected[2])}", "")
    return Problem(path, what[:1].lower() + what[1:], "")


def _hint(name: str, place: str) -> str:
    """Say what an unknown field's author most likely meant."""
    if place in ("", "params") and name in MEANT:
        return MEANT[name]
    known = FIELDS.get(place, ())
    if spelled := _respelled(name, known):
        return f"JSON and dicts spell it {spelled!r}" if place else f"did you mean {spelled!r}?"
    for group in _GROUPS:
        if group != place and (spelled := _respelled(name, FIELDS[group])):
            return f"it is {joined(group, spelled)!r} here"
    return _did_you_mean(name, known) or f"known: {', '.join(known)}"


def _respelled(name: str, known: Iterable[str]) -> str | None:
    bare = name[:_LONGEST_WORD].replace("_", "").lower()
    return next((field for field in known if field.replace("_", "").lower() == bare), None)


def _did_you_mean(word: object, known: Iterable[str]) -> str:
    near = nearest(word, known) if isinstance(word, str) else None
    return f"did you mean {near!r}?" if near else ""


def _example(place: str) -> str:
    if place == "messages":
        return 'for example [{"role": "user", "content": "Hello"}]'
    return f"one of {', '.join(CHOICES[place])}" if place in CHOICES else ""


def _value_at(source: Any, path: str) -> object:
    for name, index in _STEP.findall(path):
        try:
            source = source[name] if name else source[int(index)]
        except (LookupError, TypeError, ValueError):
            return _UNSEEN
    return source


def _either(expected: str) -> str:
    words = [_WORDS.get(word, word) for word in expected.split(" | ") if word != "null"]
    return " or ".join(dict.fromkeys(words))


def _got(path: str, value: object, kind: str | None) -> str:
    """Show the wrong value, but no text of a message: errors end up in logs."""
    if value is _UNSEEN or (isinstance(value, str) and path.startswith("messages")):
        return _WORDS.get(kind or "", kind or "something else")
    return _shown(value)


def _shown(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, (int, float)):
        return f"{value:.15g}" if abs(value) <= EXACT or type(value) is float else "a huge number"
    kind = type(value).__name__
    return _WORDS.get(kind, kind)


def _no_choice(path: str, value: object, choices: tuple[str, ...]) -> Problem:
    allowed = f"one of {', '.join(choices)}" if len(choices) > 1 else repr(choices[0])
    return Problem(path, f"must be {allowed}, got {_shown(value)}", _did_you_mean(value, choices))


# Rules, in the order of the fields, over values whose types are right.


def _completed(request: RouteRequest) -> RouteRequest:
    found: Problems = []
    _check_messages(request.messages, found)
    _check_scalars(request, found)
    if request.models is not None or request.fallback is not None:
        _check_models(request.models, request.fallback, found)
    if request.budget is not None:
        _check_numbers(Budget, "budget.", request.budget, found)
    if isinstance(request.cache, CacheOpts):
        _check_cache(request.cache, found)
    if request.tools is not None or request.tool_choice is not None:
        _check_tools(request.tools or [], request.tool_choice, found)
    if request.params is not None:
        _check_params(request.params, found)
    if request.metadata is not None:
        _check_metadata(request.metadata, found)
    if found:
        raise ValidationFailed.of(*found[:MAX_PROBLEMS])
    strategy: Strategy = request.strategy or "balanced"
    return replace(
        request,
        goal=request.goal or ("quality" if strategy == "quality-first" else "cost"),
        strategy=strategy,
        tools=request.tools or None,
        timeout_ms=DEFAULT_TIMEOUT_MS if request.timeout_ms is None else request.timeout_ms,
    )


def _check_scalars(request: RouteRequest, found: Problems) -> None:
    if request.goal is not None and request.goal not in GOALS:
        found.append(_no_choice("goal", request.goal, GOALS))
    if request.strategy is not None and request.strategy not in STRATEGIES:
        found.append(_no_choice("strategy", request.strategy, STRATEGIES))
    if request.policy_id == "":
        found.append(_empty("policy_id"))
    if request.timeout_ms is not None:
        _check_numbers(RouteRequest, "", request, found)
    if request.idempotency_key is not None:
        size = len(request.idempotency_key.encode())
        if not 1 <= size <= MAX_KEY_BYTES:
            problem = f"takes {size} bytes in UTF-8, must take 1 to {MAX_KEY_BYTES}"
            found.append(Problem("idempotency_key", problem, "hash a longer one"))


def _check_numbers(kind: type[msgspec.Struct], prefix: str, holder: object, found: Problems) -> None:
    for name, wire_name, allowed in _NUMBERS[kind]:
        value = getattr(holder, name)
        if value is not None and not allowed.admits(value):
            found.append(Problem(prefix + wire_name, f"must be {allowed}, got {_shown(value)}", ""))


def _empty(path: str) -> Problem:
    return Problem(path, "must not be empty", "")


def _check_messages(messages: list[Message], found: Problems) -> None:
    if not messages:
        found.append(Problem("messages", "must hold at least one message", _example("messages")))
    elif len(messages) > MAX_MESSAGES:
        found.append(Problem("messages", f"holds {len(messages)} messages, at most {MAX_MESSAGES} are allowed", ""))
    else:
        for index, message in enumerate(messages):
            if type(message.content) is not str or message.role == "tool" or _has_more(message):
                _check_message(f"messages[{index}]", message, found)


def _has_more(message: Message) -> bool:
    return message.tool_calls is not None or message.tool_call_id is not None or message.name is not None


def _check_message(path: str, message: Message, found: Problems) -> None:
    _check_content(f"{path}.content", message, found)
    if message.tool_calls is not None:
        _check_tool_calls(f"{path}.tool_calls", message, found)
    if message.name == "":
        found.append(_empty(f"{path}.name"))
    if message.role == "tool" and not message.tool_call_id:
        hint = "a tool message names the id of the call it answers"
        found.append(Problem(f"{path}.tool_call_id", "is missing", hint))
    if message.role != "tool" and message.tool_call_id is not None:
        problem = f"has no place in a message of role {message.role!r}"
        found.append(Problem(f"{path}.tool_call_id", problem, "use 'tool'"))


def _check_content(path: str, message: Message, found: Problems) -> None:
    if message.content is None and not (message.role == "assistant" and message.tool_calls):
        found.append(Problem(path, "is missing", "only an assistant message with tool_calls may go without"))
    if not isinstance(message.content, list):
        return
    if not message.content:
        found.append(Problem(path, "must hold at least one part", ""))
    for index, part in enumerate(message.content):
        if isinstance(part, ImagePart) and not part.image_url.url[:11].lower().startswith(IMAGE_SCHEMES):
            problem = f"must begin with https://, http:// or data:image/, got {part.image_url.url[:11]!r}"
            found.append(Problem(f"{path}[{index}].image_url.url", problem, ""))


def _check_tool_calls(path: str, message: Message, found: Problems) -> None:
    if message.role != "assistant":
        found.append(Problem(path, f"has no place in a message of role {message.role!r}", "use 'assistant'"))
    if not message.tool_calls:
        found.append(Problem(path, "must hold at least one call", "leave it out where there is none"))
    for index, call in enumerate(message.tool_calls or ()):
        if not call.id:
            found.append(_empty(f"{path}[{index}].id"))
        if not call.function.name:
            found.append(_empty(f"{path}[{index}].function.name"))


def _check_models(models: list[str] | None, fallback: Fallback | None, found: Problems) -> None:
    _check_ids("models", models or [], found)
    if models == []:
        found.append(Problem("models", "must name at least one model", "leave it out to allow every model"))
    if fallback is None:
        return
    _check_numbers(Fallback, "fallback.", fallback, found)
    chain = fallback.models or []
    _check_ids("fallback.models", chain, found)
    outside = [model for model in chain if models and model not in models]
    if outside:
        lists = f"fallback.models: {_listed(chain)}; models: {_listed(models or [])}"
        hint = "add it to 'models', or take it out of 'fallback.models'"
        found.append(Problem("fallback.models", f"{_listed(outside)} is outside the whitelist ({lists})", hint))


def _check_ids(path: str, ids: list[str], found: Problems) -> None:
    seen: set[str] = set()
    for index, model in enumerate(ids):
        if not model:
            found.append(_empty(f"{path}[{index}]"))
        if model in seen:
            found.append(Problem(f"{path}[{index}]", f"names {quoted(model)} again", "name each model once"))
        seen.add(model)


def _listed(names: list[str]) -> str:
    return ", ".join(map(quoted, names[:10])) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _check_cache(cache: CacheOpts, found: Problems) -> None:
    _check_numbers(CacheOpts, "cache.", cache, found)
    if cache.namespace == "":
        found.append(_empty("cache.namespace"))
    if cache.max_error is not None and cache.threshold is not None:
        hint = "give 'max_error' to have the threshold learned, 'threshold' to set it yourself"
        found.append(Problem("cache", "has both max_error and threshold", hint))


def _check_tools(tools: list[Tool], choice: str | NamedToolChoice | None, found: Problems) -> None:
    declared: list[str] = []
    for index, tool in enumerate(tools):
        name = _check_tool(f"tools[{index}]", tool, found)
        if name in declared:
            found.append(Problem(f"tools[{index}]", f"declares {quoted(name)} again", "give each tool its own name"))
        declared.append(name)
    if isinstance(choice, NamedToolChoice):
        _check_declared("tool_choice.function.name", choice.function.name, declared, found)
    elif choice is not None and choice not in TOOL_MODES:
        _check_declared("tool_choice", choice, declared, found)
    elif choice == "required" and not declared:
        found.append(Problem("tool_choice", "is 'required', but there are no tools", "declare 'tools'"))


def _check_tool(path: str, tool: Tool, found: Problems) -> str:
    """Check one declaration and return its name."""
    flat = [tool.name, tool.description, tool.parameters, tool.strict]
    if tool.function is not None and any(value is not None for value in flat):
        hint = "put name, description, parameters and strict into 'function', or leave 'function' out"
        found.append(Problem(path, "mixes the nested and the flat form", hint))
    elif tool.function is None and tool.name is None:
        hint = "a tool is {'type': 'function', 'function': {'name': ...}}"
        found.append(Problem(path, "has no name", hint))
    else:
        inner = "function.name" if tool.function else "name"
        _check_function_name(f"{path}.{inner}", tool.function_spec.name, found)
    return tool.function_spec.name


def _check_function_name(path: str, name: object, found: Problems) -> None:
    if not isinstance(name, str) or not FUNCTION_NAME.fullmatch(name):
        hint = "use 1 to 64 ASCII letters, digits, underscores and dashes"
        found.append(Problem(path, f"must be a name, got {_shown(name)}", hint))


def _check_declared(path: str, name: str, declared: list[str], found: Problems) -> None:
    if name in declared:
        return
    known = f"declared: {_listed(declared)}" if declared else "there are no tools"
    problem = f"names the tool {quoted(name)}, which is not declared ({known})"
    found.append(Problem(path, problem, _did_you_mean(name, (*declared, *TOOL_MODES))))


def _check_params(params: Params, found: Problems) -> None:
    _check_numbers(Params, "params.", params, found)
    stops = params.stop if isinstance(params.stop, list) else [params.stop]
    if len(stops) > MAX_STOPS:
        found.append(Problem("params.stop", f"holds {len(stops)} strings, at most {MAX_STOPS} are allowed", ""))
    if "" in stops:
        found.append(_empty("params.stop" if params.stop == "" else f"params.stop[{stops.index('')}]"))
    if params.response_format is not None:
        _check_format(params.response_format, found)


def _check_format(form: dict[str, Any], found: Problems) -> None:
    _check_fields(_FORMAT, form, found)
    kind, schema = form.get("type"), form.get("json_schema")
    if kind not in FORMATS:
        found.append(_no_choice(f"{_FORMAT}.type", kind, FORMATS))
    elif kind != "json_schema" and schema is not None:
        found.append(Problem(f"{_FORMAT}.json_schema", "goes with type 'json_schema' only", ""))
    elif kind == "json_schema" and not isinstance(schema, dict):
        hint = "give {'name': ..., 'schema': {...}}"
        found.append(Problem(f"{_FORMAT}.json_schema", f"must be an object, got {_shown(schema)}", hint))
    elif isinstance(schema, dict):
        _check_schema(f"{_FORMAT}.json_schema", schema, found)


def _check_schema(path: str, schema: dict[str, Any], found: Problems) -> None:
    _check_fields(path, schema, found)
    _check_function_name(f"{path}.name", schema.get("name"), found)
    if not isinstance(schema.get("schema"), dict):
        problem = f"must be a JSON schema object, got {_shown(schema.get('schema'))}"
        found.append(Problem(f"{path}.schema", problem, ""))


def _check_fields(place: str, value: dict[str, Any], found: Problems) -> None:
    for key in value:
        if key not in FIELDS[place]:
            found.append(Problem(joined(place, key), "is not a field", _hint(key, place)))


def _check_metadata(metadata: dict[str, Any], found: Problems) -> None:
    size = len(encode(metadata))
    if size > MAX_METADATA_BYTES:
        problem = f"takes {size} bytes as JSON, at most {MAX_METADATA_BYTES} are allowed"
        found.append(Problem("metadata", problem, "keep long values elsewhere and put a reference here"))
