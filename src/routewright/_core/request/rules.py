"""Checks the values of request fields whose types are already checked. Policies and catalogues share the rules.
Does not check whether models and policies exist."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain, islice
from sys import float_info
from typing import Any, NamedTuple, get_args

import msgspec
from msgspec.json import encode
from msgspec.structs import fields, replace

from routewright import wire
from routewright._core.addresses import problem_of_url
from routewright._core.money import MOST_TOKENS, MOST_USD_PER_1M
from routewright.errors import Problem, ValidationFailed
from routewright.wire.json_scan import beneath, joined, quoted
from routewright.wire.problems import (
    EXACT,
    FORMATS,
    Problems,
    did_you_mean,
    example,
    hint_for,
    known_places,
    listed,
    no_choice,
    shown,
)

from .compatibility import complete_message, complete_tool

MAX_MESSAGES = 1_000
MAX_STOPS = 4
MAX_METADATA_BYTES = 16 * 1024
MAX_CALLER_EXTRA_BYTES = 64 * 1024  # of the vendor fields of a caller with a key
MAX_KEY_BYTES = 64
MAX_NAME_CHARS = 200  # of the name of a provider, model, alias, policy or region
MAX_PHRASES = 10_000  # in a deny-list, each up to MAX_NAME_CHARS
A_NAME = f"1 to {MAX_NAME_CHARS} printable characters"
MAX_PROBLEMS = 20  # listed in one error
DEFAULT_GOAL: dict[str, wire.Goal] = {**dict.fromkeys(get_args(wire.Strategy), "cost"), "quality-first": "quality"}
"""The goal by strategy of requests and policies that set none."""

TOOL_MODES = ("auto", "none", "required")
MODEL_ID = re.compile(r"[^/\s\x00-\x1f\x7f]+/[^\s\x00-\x1f\x7f]+")
FUNCTION_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
IMAGE_SCHEMES = ("https://", "http://", "data:image/")
FILE_SCHEMES = ("data:application/pdf;base64,", "https://")
_CAPS = frozenset(  # vendor fields that set how long the answer is, or how many there are; at any depth
    "max_tokens max_completion_tokens max_output_tokens maxOutputTokens max_new_tokens max_tokens_to_sample max_length "
    "max_gen_len maxTokens maxTokenCount num_predict n_predict min_tokens min_new_tokens min_length ignore_eos "
    "n n_cmpl best_of candidateCount candidate_count num_generations num_return_sequences use_beam_search "
    "beam_width".split()
)
_SET_BY_US = frozenset(  # other vendor fields that the router sets
    "model models messages input prompt contents system systemInstruction system_instruction instructions stream "
    "stream_options tools tool_choice toolConfig tool_config functions function_call".split()
)
_OWN_NAMES = frozenset(  # vendor fields that hold schemas or data
    "guided_json structured_outputs response_format response_schema responseSchema responseJsonSchema json_schema "
    "schema properties metadata labels logit_bias".split()
)
COST_NOTHING = frozenset(  # vendor fields that do not change the cost
    "frequency_penalty keep_alive labels logit_bias logprobs metadata min_p presence_penalty "
    "prompt_cache_key prompt_cache_retention repeat_penalty repetition_penalty safety_identifier safety_settings "
    "safetySettings store top_a top_k top_logprobs typical_p user".split()
)
CALLER_EXTRA = frozenset(  # vendor fields that callers with a key may send to most hosts: nothing is fetched or capped
    "frequency_penalty logit_bias min_p presence_penalty prompt_cache_key repetition_penalty safety_identifier "
    "top_a top_k user".split()
)


class Range(NamedTuple):
    """The numbers a field accepts. ``above``: the lower bound is excluded."""

    low: float
    high: float = float_info.max
    whole: bool = False
    above: bool = False

    def admits(self, value: float) -> bool:
        """True if the number is in the range. False for NaN and infinities."""
        if not self.low <= value <= self.high or (self.above and value == self.low):
            return False
        return not self.whole or value % 1 == 0

    @property
    def sample(self) -> str:
        """A number in the range."""
        return f"{self.low if self.low > 0 and not self.above else min(self.high, max(self.low + 1, 1)):g}"

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        if self.above:
            return f"{kind} above {self.low}" if self.high >= EXACT else f"{kind} above {self.low}, at most {self.high}"
        is_open = self.high >= EXACT and self.low >= 0
        return f"{kind} of at least {self.low}" if is_open else f"{kind} from {self.low} to {self.high}"


COUNT = Range(1, EXACT, whole=True)
_SHARE = Range(0, 1)
LONGEST_TIMEOUT_MS = 3_600_000
_TIMEOUT = Range(1, LONGEST_TIMEOUT_MS, whole=True)
TIMEOUT_S = Range(0.001, LONGEST_TIMEOUT_MS // 1000)
RETRIES = Range(0, 5, whole=True)
_TOKENS = Range(1, MOST_TOKENS, whole=True)
_USD_PER_1M = Range(0, MOST_USD_PER_1M)
USD = Range(0, 1_000_000_000)
"""Every limit and amount of money. Larger ones are mistakes; sums of many fit into 64 bits of nano-dollars."""

_POLICY = {"min_quality": _SHARE, "max_latency_ms": _TIMEOUT, "timeout_ms": _TIMEOUT}
NUMBERS: dict[type[msgspec.Struct], dict[str, Range]] = {
    wire.RouteRequest: {"timeout_ms": _TIMEOUT},
    wire.AgentRequest: {
        "max_steps": Range(1, 1_000, whole=True),
        "per_step_timeout_ms": _TIMEOUT,
        "total_budget_usd": USD,
    },
    wire.Fallback: {"max_retries": RETRIES},
    wire.Budget: {"max_cost_usd": USD, "max_tokens": COUNT},
    wire.ReasoningBudget: {"max_tokens": COUNT},
    wire.CacheOpts: {"max_error": _SHARE, "threshold": _SHARE, "ttl_seconds": Range(0, above=True), "explore": _SHARE},
    wire.Params: {
        "temperature": Range(0, 2),
        "top_p": Range(0, 1, above=True),
        "max_output_tokens": COUNT,
        "seed": Range(-EXACT, EXACT, whole=True),
    },
    wire.Policy: _POLICY,
    wire.PolicyClass: _POLICY,
    wire.PolicyWeights: dict.fromkeys(wire.PolicyWeights.__struct_fields__, Range(0, 100, whole=True)),
    wire.PolicyFallback: {"max_retries": RETRIES},
    wire.Model: {
        "context_window": _TOKENS,
        "max_output_tokens": _TOKENS,
        "quality": _SHARE,
        "ttft_s": Range(0, 3_600, above=True),
        "tokens_per_s": Range(0.001, 1_000_000),
    },
    wire.Pricing: {name: _USD_PER_1M for name in wire.Pricing.__struct_fields__ if name.endswith("_usd")},
    wire.ServicePrice: {name: _USD_PER_1M for name in wire.ServicePrice.__struct_fields__ if name.endswith("_usd")},
    wire.PriceTier: {
        "above_tokens": _TOKENS,
        **{name: _USD_PER_1M for name in wire.PriceTier.__struct_fields__ if name.endswith("_usd")},
    },
}
"""The range of every number in requests, policies and catalogues."""

_NUMBERS = {
    kind: tuple((f.name, f.encode_name, ranges[f.name]) for f in fields(kind) if f.name in ranges)
    for kind, ranges in NUMBERS.items()
}


def check_numbers(kind: type[msgspec.Struct], prefix: str, holder: object, problems: Problems) -> None:
    """Check the numeric fields of ``holder`` against the ranges of ``kind``."""
    for name, wire_name, allowed in _NUMBERS[kind]:
        value = getattr(holder, name)
        if value is not None and not allowed.admits(value):
            path = prefix + wire_name
            problems.append(Problem(path, f"must be {allowed}, got {shown(value)}", example(path, allowed.sample)))


def complete_request(request: wire.RouteRequest) -> wire.RouteRequest:
    """Check all rules, complete messages and tools, and fill in goal and strategy. Raises ``ValidationFailed``."""
    problems: Problems = []
    messages = _check_messages(request.messages, problems)
    if request.goal is not None and request.goal not in get_args(wire.Goal):
        problems.append(no_choice("goal", request.goal))
    if request.strategy is not None and request.strategy not in get_args(wire.Strategy):
        problems.append(no_choice("strategy", request.strategy))
    if request.policy_id == "":
        problems.append(_empty("policy_id"))
    if request.timeout_ms is not None:
        check_numbers(wire.RouteRequest, "", request, problems)
    if request.idempotency_key is not None:
        size = len(request.idempotency_key.encode())
        if not 1 <= size <= MAX_KEY_BYTES:
            problem = f"is {size} bytes long in UTF-8, must be 1 to {MAX_KEY_BYTES}"
            problems.append(Problem("idempotency_key", problem, "hash a longer one"))
    if request.models is not None:
        check_whitelist("models", request.models, problems)
    if request.fallback is not None:
        check_numbers(wire.Fallback, "fallback.", request.fallback, problems)
        check_ids("fallback.models", request.fallback.models or [], problems)
    prefer = [request.prefer] if isinstance(request.prefer, str) else request.prefer
    if prefer is not None:
        check_ids("prefer", prefer, problems)
    if request.budget is not None:
        check_numbers(wire.Budget, "budget.", request.budget, problems)
    if isinstance(request.cache, wire.CacheOpts):
        check_cache("cache", request.cache, problems)
    if request.tools is not None or request.tool_choice is not None:
        check_tools(request.tools or [], request.tool_choice, problems)
    if request.params is not None:
        check_params(request.params, problems)
    if request.metadata is not None:
        check_metadata(request.metadata, problems)
    if problems:  # a frame less on the path of every call
        refuse(problems)
    strategy = request.strategy or "balanced"
    return replace(
        request,
        goal=request.goal or DEFAULT_GOAL[strategy],
        strategy=strategy,
        messages=messages,
        tools=[complete_tool(tool) for tool in request.tools] if request.tools else None,
        prefer=prefer,
    )


def is_name(text: str) -> bool:
    """True for ``A_NAME``."""
    return bool(text.strip()) and len(text) <= MAX_NAME_CHARS and text.isprintable()


def check_text(path: str, text: str, problems: Problems) -> None:
    """Report a name that is blank, too long or not printable."""
    if not is_name(text):
        problems.append(Problem(path, f"must be {A_NAME}, got {quoted(text)}", "use a short name on one line"))


def refuse(problems: Problems) -> None:
    """Raise ``ValidationFailed`` with the first problems, if there are any."""
    if problems:
        raise ValidationFailed.of(*problems[:MAX_PROBLEMS])


def check_names(names: Mapping[str, str]) -> None:
    """Check names by their paths. Raises ``ValidationFailed``."""
    problems: Problems = []
    for path, name in names.items():
        check_text(path, name, problems)
    refuse(problems)


def is_date(text: str) -> bool:
    """True for a date or a timestamp."""
    try:
        return datetime.fromisoformat(text).date().isoformat() == text[:10]
    except ValueError:
        return False


def check_date(path: str, text: str, problems: Problems) -> None:
    """Report a text that is not a date or timestamp."""
    if not is_date(text):
        problems.append(Problem(path, f"must be a date, got {quoted(text)}", "write YYYY-MM-DD, or a timestamp"))


def is_day(text: str) -> bool:
    """True for ``YYYY-MM-DD``, which sorts as text."""
    return len(text) == len("YYYY-MM-DD") and is_date(text)


def check_day(path: str, text: str, problems: Problems) -> None:
    """Report a text that is not ``YYYY-MM-DD``."""
    if not is_day(text):
        problems.append(Problem(path, f"must be a date, got {quoted(text)}", "write 'YYYY-MM-DD'"))


def _empty(path: str) -> Problem:
    return Problem(path, "must not be empty", "fill it in")


def _check_messages(messages: list[wire.Message], problems: Problems) -> list[wire.Message]:
    """Check and complete the messages. Returns a list of its own, since the caller may change theirs later."""
    messages = [*messages]
    if not messages:
        problems.append(Problem("messages", "must hold at least one message", example("messages")))
    elif len(messages) > MAX_MESSAGES:
        problem = f"has {len(messages)} messages, at most {MAX_MESSAGES} are allowed"
        problems.append(Problem("messages", problem, "drop the oldest"))
    else:
        for index, message in enumerate(messages):
            more = message.tool_calls, message.tool_call_id, message.name, message.reasoning
            if type(message.content) is not str or message.role == "tool" or more != (None, None, None, None):
                messages[index] = message = complete_message(message)
                _check_message(f"messages[{index}]", message, problems)
    return messages


def _check_message(path: str, message: wire.Message, problems: Problems) -> None:
    content = message.content
    calls = message.tool_calls
    role = message.role
    if content is None and not (role == "assistant" and calls):
        hint = "only an assistant message with tool_calls may have none"
        problems.append(Problem(f"{path}.content", "is missing", hint))
    if isinstance(content, list):
        if not content:
            problems.append(Problem(f"{path}.content", "must hold at least one part", "send a text instead"))
        for index, part in enumerate(content):
            if isinstance(part, wire.ImagePart) and not part.image_url.url[:11].lower().startswith(IMAGE_SCHEMES):
                problem = "must begin with https://, http:// or data:image/"  # hides the image: errors are logged
                hint = "pass the URL of the image, or the image itself as a data: URL"
                problems.append(Problem(f"{path}.content[{index}].image_url.url", problem, hint))
            elif isinstance(part, wire.FilePart) and not part.file.file_data[:28].lower().startswith(FILE_SCHEMES):
                problem = f"must begin with {' or '.join(FILE_SCHEMES)}"
                hint = "send a PDF as base64 or by URL; send other files as text"
                problems.append(Problem(f"{path}.content[{index}].file.file_data", problem, hint))
            elif isinstance(part, wire.AudioPart) and not part.input_audio.data:
                problems.append(_empty(f"{path}.content[{index}].input_audio.data"))
            elif isinstance(part, wire.AudioPart) and (":" in part.input_audio.data or "." in part.input_audio.data):
                # some hosts would fetch an address
                hint = "send the recording itself as base64, without 'data:' before it"
                problems.append(Problem(f"{path}.content[{index}].input_audio.data", "is not base64", hint))
    if calls is not None:
        if not calls:
            problems.append(Problem(f"{path}.tool_calls", "must hold at least one call", "leave it out if none"))
        elif role != "assistant":
            problems.append(Problem(f"{path}.tool_calls", _no_place(role), "use 'assistant'"))
        for index, call in enumerate(calls):
            if not call.id:
                problems.append(_empty(f"{path}.tool_calls[{index}].id"))
            if not call.function.name:
                problems.append(_empty(f"{path}.tool_calls[{index}].function.name"))
    if message.reasoning is not None and role != "assistant":
        problems.append(Problem(f"{path}.reasoning", _no_place(role), "use 'assistant'"))
    if message.name == "":
        problems.append(_empty(f"{path}.name"))
    if role == "tool" and not message.tool_call_id:
        hint = "a tool message names the id of the call it answers"
        problems.append(Problem(f"{path}.tool_call_id", "is missing", hint))
    if role != "tool" and message.tool_call_id is not None:
        problems.append(Problem(f"{path}.tool_call_id", _no_place(role), "use 'tool'"))


def _no_place(role: str) -> str:
    return f"is not allowed in a message with role {role!r}"


def check_whitelist(path: str, models: list[str] | None, problems: Problems) -> None:
    """Check a list of allowed models."""
    check_ids(path, models or [], problems)
    if models == []:
        problems.append(Problem(path, "must name at least one model", "leave it out to allow every model"))


def check_ids(path: str, ids: list[str], problems: Problems) -> None:
    """Report ids that are empty or listed twice."""
    unique_ids: set[str] = set()
    for index, model in enumerate(ids):
        if len(problems) >= MAX_PROBLEMS:
            return
        if not model:
            problems.append(_empty(f"{path}[{index}]"))
        if model in unique_ids:
            problems.append(Problem(f"{path}[{index}]", f"lists {quoted(model)} again", "list each model once"))
        unique_ids.add(model)


def check_choice(path: str, words: Sequence[object], choices: Sequence[str], problems: Problems) -> None:
    """Report a list that is empty or has unknown or repeated words."""
    if not words:
        problems.append(Problem(path, "must name at least one", f"one of {', '.join(choices)}"))
    for index, word in enumerate(words):
        if word not in choices:
            problems.append(no_choice(f"{path}[{index}]", word, choices))
        elif word in words[:index]:
            problems.append(Problem(f"{path}[{index}]", f"lists {shown(word)} again", "list each once"))


def check_phrases(path: str, phrases: Sequence[object], problems: Problems) -> None:
    """Check a deny-list."""
    if not 1 <= len(phrases) <= MAX_PHRASES:
        problems.append(Problem(path, f"has {len(phrases)} phrases, must have 1 to {MAX_PHRASES}", "split the list"))
    for index, phrase in enumerate(phrases):
        if len(problems) >= MAX_PROBLEMS:
            return
        if isinstance(phrase, str):
            check_text(f"{path}[{index}]", " ".join(phrase.split()), problems)
        else:
            problems.append(Problem(f"{path}[{index}]", f"must be a string, got {shown(phrase)}", "pass a string"))


def check_cache(path: str, cache: wire.CacheOpts, problems: Problems) -> None:
    """Check the ranges of cache options, and that ``max_error`` and ``threshold`` are not both set."""
    check_numbers(wire.CacheOpts, f"{path}.", cache, problems)
    if cache.namespace == "":
        problems.append(_empty(f"{path}.namespace"))
    if cache.max_error is not None and cache.threshold is not None:
        hint = "set 'max_error' to learn the threshold, or 'threshold' to fix it"
        problems.append(Problem(path, "has both max_error and threshold", hint))


def check_tools(tools: list[wire.Tool], choice: str | wire.NamedToolChoice | None, problems: Problems) -> None:
    declared: dict[str, None] = {}
    for index, tool in enumerate(tools):
        path = f"tools[{index}]"
        name = tool.function_spec.name
        flat = [tool.name, tool.description, tool.parameters, tool.strict]
        if tool.function is not None and any(value is not None for value in flat):
            hint = "put name, description, parameters and strict into 'function', or leave 'function' out"
            problems.append(Problem(path, "mixes the nested and the flat form", hint))
        elif tool.function is None and tool.name is None:
            problems.append(Problem(path, "has no name", 'a tool is {"type": "function", "function": {"name": ...}}'))
        else:
            _check_function_name(f"{path}.function.name" if tool.function else f"{path}.name", name, problems)
        if name in declared:
            problems.append(Problem(path, f"declares {quoted(name)} again", "give each tool its own name"))
        declared[name] = None
    if isinstance(choice, wire.NamedToolChoice):
        _check_declared("tool_choice.function.name", choice.function.name, declared, problems)
    elif choice is not None and choice not in TOOL_MODES:
        _check_declared("tool_choice", choice, declared, problems)
    elif choice == "required" and not declared:
        problems.append(Problem("tool_choice", "is 'required', but there are no tools", "declare 'tools'"))


def _check_declared(path: str, name: str, declared: dict[str, None], problems: Problems) -> None:
    if name in declared:
        return
    known = f"declared: {listed([*declared])}" if declared else "there are no tools"
    problem = f"names the tool {quoted(name)}, which is not declared ({known})"
    modes = TOOL_MODES if path == "tool_choice" else ()
    other = f"name a declared tool, or use {', '.join(map(repr, TOOL_MODES))}" if modes else "declare it in 'tools'"
    problems.append(Problem(path, problem, did_you_mean(name, (*declared, *modes)) or other))


def _check_function_name(path: str, name: object, problems: Problems) -> None:
    if not isinstance(name, str) or not FUNCTION_NAME.fullmatch(name):
        hint = "use 1 to 64 ASCII letters, digits, underscores and dashes"
        problems.append(Problem(path, f"must be a name, got {shown(name)}", hint))


def check_params(params: wire.Params, problems: Problems) -> None:
    """Check the parameters of a request or policy."""
    check_numbers(wire.Params, "params.", params, problems)
    stops = params.stop if isinstance(params.stop, list) else [params.stop]
    if len(stops) > MAX_STOPS:
        problem = f"has {len(stops)} strings, at most {MAX_STOPS} are allowed"
        problems.append(Problem("params.stop", problem, "keep the most likely ones"))
    if "" in stops:
        problems.append(_empty("params.stop" if params.stop == "" else f"params.stop[{stops.index('')}]"))
    if params.response_format is not None:
        path = "params.response_format"
        _check_fields(path, params.response_format, problems)
        kind = params.response_format.get("type")
        inner = params.response_format.get("json_schema")
        if kind not in FORMATS:
            problems.append(no_choice(f"{path}.type", kind))
        elif kind != "json_schema" and inner is not None:
            problem = "is only for type 'json_schema'"
            problems.append(Problem(f"{path}.json_schema", problem, "set that type, or leave it out"))
        elif kind == "json_schema" and not isinstance(inner, dict):
            hint = 'pass {"name": ..., "schema": {...}}'
            problems.append(Problem(f"{path}.json_schema", f"must be a dict, got {shown(inner)}", hint))
        elif isinstance(inner, dict):
            path = f"{path}.json_schema"
            _check_fields(path, inner, problems)
            _check_function_name(f"{path}.name", inner.get("name"), problems)
            if not isinstance(inner.get("schema"), dict):
                problem = f"must be a JSON schema object, got {shown(inner.get('schema'))}"
                problems.append(Problem(f"{path}.schema", problem, 'for example {"type": "object"}'))
    if isinstance(params.reasoning, wire.ReasoningBudget):
        check_numbers(wire.ReasoningBudget, "params.reasoning.", params.reasoning, problems)
        cap = params.max_output_tokens
        if cap is not None and params.reasoning.max_tokens >= cap:
            problem = f"is {params.reasoning.max_tokens:g}, which uses up max_output_tokens={cap:g}"
            hint = "reasoning counts as output; raise max_output_tokens"
            problems.append(Problem("params.reasoning.max_tokens", problem, hint))
    for provider, values in (params.extra or {}).items():
        path = f"params.extra.{provider}"
        hint = "leave it out; use the request's own fields and 'params'"
        keys = chain((joined("", key) for key in values if key in _SET_BY_US), _places_of(_CAPS, values))
        problems += [Problem(beneath(path, key), "is set by the router", hint) for key in islice(keys, MAX_PROBLEMS)]


def check_costs_nothing(params: wire.Params | None) -> None:
    """Raise ``ValidationFailed`` for vendor fields whose cost cannot be estimated."""
    for provider, values in () if params is None or params.extra is None else params.extra.items():
        for key in values:
            if key not in COST_NOTHING:
                hint = f"under a limit on cost only these are allowed: {', '.join(sorted(COST_NOTHING))}"
                problem = "may add costs that no budget accounts for"
                raise ValidationFailed.at(f"params.extra.{provider}.{key}", problem, hint)


def _places_of(keys: Collection[str], holder: Any) -> Iterator[str]:
    """The paths, at any depth, of the keys of an object or array that are among ``keys``. The names in schemas and in
    data are the caller's own: a property may be called ``n``. Paths are built from the inside: those of all places of a
    large body would take much memory."""
    for key, inner in holder.items() if isinstance(holder, dict) else enumerate(holder):
        if key in keys:
            yield joined("", key)
        if isinstance(inner, dict | list) and key not in _OWN_NAMES:
            yield from (beneath(joined("", key), place) for place in _places_of(keys, inner))


URLS: tuple[wire.Feature, ...] = ("image_url", "file_url", "http_url", "caller_url")
"""Features of providers that fetch URLs."""


def checked_caller_extra(names: object, path: str = "caller_extra") -> frozenset[str]:
    """The vendor fields that an owner allows to callers with a key. Raises ``ValidationFailed``."""
    if not isinstance(names, Collection) or isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ValidationFailed.at(path, f"must be a list of names, got {shown(names)}", "write ['top_k']")
    for name in names:
        parts = name.split(".")
        if not all(part and part.isprintable() and " " not in part for part in parts):
            raise ValidationFailed.at(path, f"{quoted(name)} is not a field", "write ['top_k'], without the provider")
        if parts[0] in _SET_BY_US or not _CAPS.isdisjoint(parts):
            raise ValidationFailed.at(path, f"{quoted(name)} is set by the router", "leave it out")
    return frozenset(names)


def check_caller_extra(extra: Mapping[str, wire.JsonObject], allowed: Mapping[str, frozenset[str]]) -> None:
    """Raise ``ValidationFailed`` for vendor fields that a caller with a key may not send. ``allowed``: the fields of
    each provider; a name with a dot allows a key inside an object. Other providers have ``CALLER_EXTRA``."""
    problems: Problems = []
    if (size := len(encode(extra))) > MAX_CALLER_EXTRA_BYTES:
        problem = f"takes {size} bytes as JSON, at most {MAX_CALLER_EXTRA_BYTES} are allowed to callers with a key"
        raise ValidationFailed.at("params.extra", problem, "leave out values, for example of logit_bias")
    for provider, values in extra.items():
        names = allowed.get(provider, CALLER_EXTRA)
        known = ", ".join(sorted(names)) or "none"
        hint = f"allowed: {known}; the owner of the service can allow more with caller_extra of {quoted(provider)}"
        for path in _refused_fields(values, {tuple(name.split(".")) for name in names}):
            place = joined("params.extra", provider)
            for key in path:
                place = joined(place, key)
            problems.append(Problem(place, "may not be sent by callers with a key", hint))
    refuse(problems)


def _refused_fields(
    values: wire.JsonObject, allowed: Collection[tuple[str, ...]], before: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    for key, value in values.items():
        path = (*before, key)
        if path in allowed:
            continue
        if isinstance(value, dict) and any(longer[: len(path)] == path for longer in allowed):
            yield from _refused_fields(value, allowed, path)
        else:
            yield path


def check_public_urls(messages: Sequence[wire.Message]) -> None:
    """Raise ``ValidationFailed`` for images and files whose URL is not an ``https://`` URL of a public host."""
    problems = filter(None, (problem_of_url(path, url) for path, url in _urls_of(messages)))
    refuse([*islice(problems, MAX_PROBLEMS)])


def check_https(messages: Sequence[wire.Message]) -> None:
    """Raise ``ValidationFailed`` for images and files whose URL begins with ``http://``."""
    problem = "begins with http://, which no model here can fetch"
    hint = "use https://, or send the image as a data: URL"
    refuse([Problem(path, problem, hint) for path, url in _urls_of(messages) if url[:7].lower() == "http://"])


def _urls_of(messages: Sequence[wire.Message]) -> Iterator[tuple[str, str]]:
    """The URLs of images and files, with their paths. Images and files sent as ``data:`` have none."""
    for place, message in enumerate(messages):
        for index, part in enumerate(message.content if isinstance(message.content, list) else ()):
            path = f"messages[{place}].content[{index}]"
            if isinstance(part, wire.ImagePart) and not _is_data(part.image_url.url):
                yield f"{path}.image_url.url", part.image_url.url
            elif isinstance(part, wire.FilePart) and not _is_data(part.file.file_data):
                yield f"{path}.file.file_data", part.file.file_data


def _is_data(url: str) -> bool:
    return url[:5].lower() == "data:"


def _check_fields(place: str, value: wire.JsonObject, problems: Problems) -> None:
    for key in value:
        if len(problems) < MAX_PROBLEMS and key not in known_places().fields[place]:
            problems.append(Problem(joined(place, key), "is not a field", hint_for(key, place)))


def check_metadata(metadata: wire.JsonObject, problems: Problems) -> None:
    """Report metadata that is too large."""
    size = len(encode(metadata))
    if size > MAX_METADATA_BYTES:
        problem = f"takes {size} bytes as JSON, at most {MAX_METADATA_BYTES} are allowed"
        problems.append(Problem("metadata", problem, "keep long values elsewhere and put a reference here"))
