"""Builds a checked ``RouteRequest`` from what a caller passes: types first, then rules. Optional fields get their
defaults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from operator import attrgetter
from typing import Any, get_args

import msgspec
from msgspec.json import Decoder, encode
from msgspec.structs import replace

from routewright import wire
from routewright.errors import Problem, ValidationFailed
from routewright.wire.conversion import convert_value, rebuild, without_nulls
from routewright.wire.foreign import HINTS
from routewright.wire.json_scan import finite, is_unicode, joined, scan
from routewright.wire.problems import as_attribute, decode_plain, hint_for, shown

from .rules import MAX_METADATA_BYTES, NUMBERS, RETRIES, TIMEOUT_S, Range, check_numbers, complete_request

Tags = Mapping[str, Any]  # JSON values by name, added to the metadata of every request made within a scope

STREAMED = Problem(
    "stream", "is True, but this call returns whole answers", "call router.stream(...) to get the answer in chunks"
)
_NUMBERS = frozenset((int, float, type(None)))
ROUTE_ARGUMENTS = (
    *(name for name in wire.RouteRequest.__struct_fields__ if name not in ("messages", "stream")),
    "timeout",
    "max_retries",
)
_TURN = frozenset(wire.Message.__struct_fields__)
_NOTHING: tuple[object, ...] = None, "", [], {}
_LANGCHAIN = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool"}
"""Roles by the types of LangChain's messages."""
_SHAPES: dict[str, Any] = {
    "models": list[str],
    "prefer": str | list[str],
    "fallback": wire.Fallback,
    "budget": wire.Budget,
    "cache": bool | wire.CacheOpts,
    "tools": list[wire.Tool],
    "tool_choice": str | wire.NamedToolChoice,
    "params": wire.Params,
}
_NUMBERS_OF_PARAMS = attrgetter(*NUMBERS[wire.Params])
_WORDS_OF_PARAMS = attrgetter(*(name for name in wire.Params.__struct_fields__ if name not in NUMBERS[wire.Params]))
BITS: Any = type("Bits", (), {str(need.name): int(need) for need in wire.Need})
"""The needs as plain numbers: flags are slow to combine."""
TIER_BITS: dict[str | None, int] = {"flex": BITS.FLEX, "priority": BITS.PRIORITY}
_FORM_BITS: dict[object, int] = {
    "json_object": BITS.JSON | BITS.JSON_OBJECT,
    "json_schema": BITS.JSON | BITS.JSON_SCHEMA,
}
BRIEF_TOKENS = 1024  # the smallest reasoning budget of some models; their output cap must be larger
_LEAST_TOP_P = 0.95  # some models refuse a lower top_p while they reason
PLAIN_ROLES: dict[str, wire.Role] = {"user": "user", "assistant": "assistant", "system": "system"}
_ROLES = frozenset(get_args(wire.Role))
_DECODER = Decoder(wire.RouteRequest, float_hook=finite)


def decode_request(body: bytes) -> wire.RouteRequest:
    """Decode and check the body of ``POST /v1/route``. Raises ``InvalidJson`` and ``ValidationFailed``."""
    return complete_request(decode_shape(body))


def decode_shape(body: bytes) -> wire.RouteRequest:
    """Decode the body and check its types, but not the rules of ``complete_request``."""
    scan(body)
    try:
        return _DECODER.decode(body)
    except msgspec.ValidationError as error:
        return without_nulls(decode_plain(body), wire.RouteRequest, "", error)


def as_request(value: object, overrides: Mapping[str, object]) -> wire.RouteRequest:
    """Build a request from what a caller passed. Overrides replace its fields. Dicts use the wire spelling; a struct is
    accepted wherever a dict is. Raises ``ValidationFailed``; paths into structs use attribute names."""
    try:
        return check_request(_overridden(value, overrides))
    except ValidationFailed as error:
        is_struct = isinstance(value, wire.RouteRequest)
        structs = {name for name, override in overrides.items() if isinstance(override, msgspec.Struct)}
        problems = [
            as_attribute(problem) if is_struct or problem.path.partition(".")[0] in structs else problem
            for problem in error.problems
        ]
    raise ValidationFailed.of(*problems)


def read_request(value: object, overrides: Mapping[str, Any]) -> wire.RouteRequest:
    """Build a request from what a server received. Bytes are the JSON of a whole request. An idempotency key in the
    overrides must equal the request's own. Raises ``InvalidJson`` and ``ValidationFailed``."""
    if isinstance(value, bytes):
        request = decode_shape(value)
        if not overrides:
            return complete_request(request)
    else:
        request = _request_of(value)
    check_same_key(overrides.get("idempotency_key"), request.idempotency_key)
    return check_request(_overridden(request, overrides))


def check_same_key(header: str | None, own: str | None) -> None:
    """Raise ``ValidationFailed`` if the idempotency keys of header and body differ."""
    if None not in (header, own) and header != own:
        problem = f"is {shown(header)}, but the body says {shown(own)}"
        raise ValidationFailed.at("Idempotency-Key", problem, "send only one of the two")


def check_request(request: wire.RouteRequest) -> wire.RouteRequest:
    """Check types and rules, and fill in goal and strategy. Idempotent. Structs are not validated when constructed, so
    their types are checked here. Raises ``ValidationFailed`` with up to ``MAX_PROBLEMS`` problems."""
    messages = request.messages
    is_plain = type(messages) is list and are_plain(messages)
    if not is_plain and (type(messages) is not list or {*map(type, messages)} != {wire.Message}):
        return complete_request(rebuild(request, wire.RouteRequest, ""))
    if not _has_plain_types(request):
        request = rebuild(replace(request, messages=[]), wire.RouteRequest, "")
    if not is_plain:  # a chat grows, and is sent with every turn: to rebuild all of it would cost more than to route it
        messages = [_checked_turn(message, index) for index, message in enumerate(messages)]
    return complete_request(replace(request, messages=messages))


def as_budget(value: wire.Budget | Mapping[str, object]) -> wire.Budget:
    """Build a budget from a struct or a dict in wire spelling. Raises ``ValidationFailed``."""
    budget = rebuild(value, wire.Budget, "budget")
    problems: list[Problem] = []
    check_numbers(wire.Budget, "budget.", budget, problems)
    if problems:
        raise ValidationFailed.of(*(map(as_attribute, problems) if isinstance(value, wire.Budget) else problems))
    return budget


def needs_of(request: wire.RouteRequest) -> int:
    """The abilities a checked request needs from a model, as bits of ``Need``."""
    needs: int = BITS.TOOLS if request.tools else 0
    for part in (part for m in request.messages if type(m.content) is list for part in m.content):
        if isinstance(part, wire.ImagePart):
            scheme = part.image_url.url[:5].lower()
            needs |= BITS.IMAGE if scheme == "data:" else BITS.IMAGE | BITS.IMAGE_URL
            if scheme == "http:":
                needs |= BITS.HTTP_URL
        elif isinstance(part, wire.FilePart):
            needs |= BITS.FILE if part.file.file_data[:5].lower() == "data:" else BITS.FILE | BITS.FILE_URL
        elif isinstance(part, wire.AudioPart):
            needs |= BITS.AUDIO
    if request.tool_choice not in (None, "auto", "none"):
        needs |= BITS.TOOL_CHOICE
    params = request.params
    if params is None:
        return needs
    if params.temperature not in (None, 1):  # every model's default temperature and top_p is 1
        needs |= BITS.TEMPERATURE
    if params.top_p not in (None, 1):
        needs |= BITS.TOP_P
    if params.stop:
        needs |= BITS.STOP
    if params.seed is not None:
        needs |= BITS.SEED
    if request.tools and needs & (BITS.STOP | BITS.SEED):
        needs |= BITS.TOOLS_STOP
    if params.response_format is not None:
        needs |= _FORM_BITS.get(params.response_format.get("type"), 0)
    if params.parallel_tool_calls is False and request.tools:
        needs |= BITS.SERIAL_TOOLS
    if params.reasoning is None or params.reasoning == "none":
        return needs if params.reasoning is None else needs | BITS.NO_REASONING
    needs |= BITS.REASONING
    brief = BITS.REASONING_BRIEF
    if isinstance(params.reasoning, wire.ReasoningBudget):
        needs |= BITS.REASONING_TOKENS
        brief = BITS.REASONING_TOKENS_BRIEF
        if params.reasoning.max_tokens < BRIEF_TOKENS:
            needs |= brief
    if params.max_output_tokens is not None and params.max_output_tokens <= BRIEF_TOKENS:
        needs |= brief
    if needs & BITS.TOOLS:
        needs |= BITS.REASONING_TOOLS
    if needs & BITS.TOOL_CHOICE:
        needs |= BITS.REASONING_TOOL_CHOICE
    if needs & BITS.TEMPERATURE or (params.top_p is not None and params.top_p < _LEAST_TOP_P):
        needs |= BITS.REASONING_SAMPLING
    return needs


def wishes_of(request: wire.RouteRequest) -> int:
    """Requested vendor features that do not exclude a model without them, as bits of ``Need``."""
    wishes: int = BITS.CACHE_CONTROL if any(mark is not None for mark in _marks(request)) else 0
    params = request.params
    if params is not None:
        wishes |= TIER_BITS.get(params.service_tier, 0)
        if params.verbosity is not None:
            wishes |= BITS.VERBOSITY
    return wishes


def keeps_an_hour(request: wire.RouteRequest) -> bool:
    """True if a ``cache_control`` asks the vendor to cache the prompt for an hour."""
    return any(mark is not None and mark.ttl == "1h" for mark in _marks(request))


def _marks(request: wire.RouteRequest) -> Iterator[wire.CacheControl | None]:
    for tool in request.tools or ():
        yield tool.cache_control
    for message in request.messages:
        if type(message.content) is list:
            yield from (part.cache_control for part in message.content)


def _request_of(value: object) -> wire.RouteRequest:
    if type(value) is list:
        return wire.RouteRequest(convert_value(_turns(value), list[wire.Message], "messages"))
    if isinstance(value, str):
        return wire.RouteRequest([wire.Message("user", value)])
    if isinstance(value, wire.RouteRequest):
        return value
    if isinstance(value, Mapping):
        if isinstance(messages := value.get("messages"), list):
            value = {**value, "messages": _turns(messages)}
        return convert_value(value, wire.RouteRequest, "")
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
        return wire.RouteRequest(convert_value(_turns(value), list[wire.Message], "messages"))
    hint = "pass a string, a list of messages, a dict or a RouteRequest"
    raise ValidationFailed.at("", f"{shown(value)} is not a request", hint)


def _turns(values: Sequence[object]) -> list[object]:
    """Turns as plain data, also those that are objects of an SDK or their dumps."""
    return [
        value if type(value) is wire.Message or (type(value) is dict and value.keys() <= _TURN) else _turn(value)
        for value in values
    ]


def _turn(value: object) -> object:
    # An SDK's object has fields that only its vendor knows: OpenAI's ``refusal``, ``annotations``, ``audio``. If they
    # are empty they say nothing, and go; one with a content is refused by its name, since a request must not lose it in
    # silence. LangChain's have other names for all they have; what else they carry is bookkeeping of LangChain.
    # test_messages_of_other_libraries_are_messages, test_a_foreign_field_with_a_content_is_refused_by_name
    dump = getattr(value, "model_dump", None)
    turn = dump() if callable(dump) else value
    if not isinstance(turn, dict):
        if isinstance(getattr(value, "message", None), wire.Message):
            raise ValidationFailed.at("messages", f"{type(value).__name__} is not a message", "append answer.message")
        return value
    role = _LANGCHAIN.get(str(turn.get("type")).removesuffix("MessageChunk").lower())
    if role is None or "role" in turn:
        return {name: field for name, field in turn.items() if name in _TURN or field not in _NOTHING}
    content = turn.get("content")
    if role == "assistant" and isinstance(content, list):  # with the vendor's blocks for calls and thoughts
        content = [block for block in content if isinstance(block, dict) and block.get("type") == "text"]
    calls = [
        {"id": call["id"], "function": {"name": call["name"], "arguments": encode(call["args"]).decode()}}
        for call in turn.get("tool_calls") or ()
    ]
    own = {name: turn.get(name) for name in ("name", "tool_call_id")}
    return {"role": role, "content": content or (None if calls else ""), "tool_calls": calls or None, **own}


def timeout_ms_of(seconds: object) -> int:
    """The argument ``timeout`` in milliseconds. Raises ``ValidationFailed``."""
    return round(_number("timeout", seconds, TIMEOUT_S, "timeout is in seconds, timeout_ms in milliseconds") * 1000)


def read_retries(retries: object) -> int:
    """The argument ``max_retries``. Raises ``ValidationFailed``."""
    return int(_number("max_retries", retries, RETRIES, "retries of one model before the next model is tried"))


def _number(name: str, value: object, allowed: Range, hint: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not allowed.admits(value):
        raise ValidationFailed.at(name, f"must be {allowed}, got {shown(value)}", hint)
    return value


def _overridden(value: object, overrides: Mapping[str, object]) -> wire.RouteRequest:
    """The request with fields replaced by arguments. ``timeout`` and ``max_retries`` must agree with its own."""
    for name in overrides:
        if name == "stream":
            raise ValidationFailed.of(STREAMED._replace(problem="is not an argument"))
        if name not in ROUTE_ARGUMENTS:
            hint = HINTS["arguments"].get(name) or hint_for(name, "", (*ROUTE_ARGUMENTS, "output_type", "caller"))
            raise ValidationFailed.at(joined("", name), "is not an argument", hint)
    request = _request_of(value)
    if not overrides:
        return request
    fields = {
        name: value
        if name not in _SHAPES or value is None or isinstance(value, (str, bool, msgspec.Struct))
        else convert_value(value, _SHAPES[name], name)
        for name, value in overrides.items()
    }
    seconds = fields.pop("timeout", None)
    retries = fields.pop("max_retries", None)
    request = replace(request, **fields)
    if seconds is not None:
        timeout_ms = timeout_ms_of(seconds)
        _check_agrees("timeout", f"{seconds} s", "timeout_ms", request.timeout_ms, timeout_ms)
        request = replace(request, timeout_ms=timeout_ms)
    if retries is not None:
        fallback = request.fallback or wire.Fallback()
        retries = read_retries(retries)
        if isinstance(fallback, wire.Fallback):  # any other type is refused later
            _check_agrees("max_retries", retries, "fallback.maxRetries", fallback.max_retries, retries)
            request = replace(request, fallback=replace(fallback, max_retries=retries))
    return request


def _check_agrees(name: str, text: object, field: str, value: object, meant: int) -> None:
    if value is not None and value != meant:
        raise ValidationFailed.at(name, f"is {text}, but {field} is {shown(value)}", "pass only one of them")


def are_plain(messages: list[wire.Message]) -> bool:
    """True if all messages are plain text in a common role."""
    for message in messages:
        if (
            type(message) is not wire.Message
            or type(message.content) is not str
            or not (message.content.isascii() or is_unicode(message.content))
            or message.role not in PLAIN_ROLES
            or message.tool_calls is not None
            or message.tool_call_id is not None
            or message.name is not None
            or message.reasoning is not None
        ):
            return False
    return True


def _checked_turn(message: wire.Message, index: int) -> wire.Message:
    """A message with the right types, and a list of calls of its own, since the caller may change theirs later."""
    content = message.content
    calls = message.tool_calls
    id = message.tool_call_id
    if (
        (content is None or (type(content) is str and (content.isascii() or is_unicode(content))))
        and type(message.role) is str
        and message.role in _ROLES
        and message.name is None
        and message.reasoning is None
        and (id is None or (type(id) is str and id.isascii()))
        and (calls is None or (type(calls) is list and all(map(_is_sound_call, calls))))
    ):
        return replace(message, tool_calls=[*calls]) if calls else message
    return rebuild(message, wire.Message, f"messages[{index}]")


def _is_sound_call(call: object) -> bool:
    if type(call) is not wire.ToolCall or type(call.function) is not wire.FunctionCall:
        return False
    texts = [call.id, call.type, call.function.name, call.function.arguments]
    return {*map(type, texts)} == {str} and texts[1] == "function" and is_unicode("".join(texts))


def _has_plain_types(request: Any) -> bool:
    """True if the types are certainly right, except those of messages. False means undecided: ``rebuild`` checks them
    in full."""
    budget = request.budget
    fallback = request.fallback
    params = request.params
    return (
        request.tools is None
        and request.tool_choice is None
        and request.metadata is None
        and request.prefer is None
        and (request.cache is None or type(request.cache) is bool)
        and type(request.stream) is bool
        and type(request.timeout_ms) in _NUMBERS
        and (request.goal is None or type(request.goal) is str)
        and (request.strategy is None or type(request.strategy) is str)
        and (request.policy_id is None or _is_ascii(request.policy_id))
        and (request.idempotency_key is None or _is_ascii(request.idempotency_key))
        and (request.models is None or (type(request.models) is list and all(map(_is_ascii, request.models))))
        and (
            budget is None
            or (type(budget) is wire.Budget and {type(budget.max_cost_usd), type(budget.max_tokens)} <= _NUMBERS)
        )
        and (fallback is None or (type(fallback) is wire.Fallback and fallback.models is None))
        and (fallback is None or (fallback.on_partial is None and _is_number(fallback.max_retries)))
        and (
            params is None
            or (
                type(params) is wire.Params
                and {*map(type, _WORDS_OF_PARAMS(params))} == {type(None)}
                and all(map(_is_number, _NUMBERS_OF_PARAMS(params)))
            )
        )
    )


def _is_number(value: object) -> bool:
    return value is None or ((type(value) is int or type(value) is float) and -inf < value < inf)


def _is_ascii(value: object) -> bool:
    return type(value) is str and value.isascii()


def read_tags(tags: Tags) -> Tags:
    """A checked copy of tags. Raises ``ValidationFailed`` if they are not JSON or too large."""
    mine: wire.JsonObject = rebuild(tags, wire.JsonObject, "tags")
    _check_size("tags", mine, "")
    return mine


def merge_tags(outer: Tags, inner: Tags) -> Tags:
    """Outer and inner tags merged; inner ones win. Raises ``ValidationFailed`` if the result is too large."""
    if not outer:
        return inner
    both = {**outer, **inner}
    _check_size("tags", both, f" together with the outer tags, which take {_size(outer)}")
    return both


def add_tags(request: wire.RouteRequest, tags: Tags) -> wire.RouteRequest:
    """The request with tags added to its metadata, which wins. Raises ``ValidationFailed`` if that is too large."""
    metadata = request.metadata or {}
    both = {**tags, **metadata}
    if metadata:
        path = "metadata" if _size(metadata) >= _size(tags) else "tags"
        _check_size(path, both, f" together: {_size(metadata)} for the request's metadata, {_size(tags)} for the tags")
    return replace(request, metadata=both)


def _check_size(path: str, tags: Tags, parts: str) -> None:
    size = _size(tags)
    if size > MAX_METADATA_BYTES:
        problem = f"takes {size} bytes as JSON{parts}; at most {MAX_METADATA_BYTES} are allowed"
        raise ValidationFailed.at(path, problem, "keep long values elsewhere and put a reference here")


def _size(tags: Tags) -> int:
    return len(encode(tags))
