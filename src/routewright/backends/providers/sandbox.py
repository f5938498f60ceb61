"""Canned answers for all models of the catalogue, without keys, network, delays or costs.

If a request has a JSON schema, the answer is a small value that matches it.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from math import ceil, inf, isfinite
from typing import Any, Literal

from routewright import wire
from routewright._core.tokens.estimate import bounds_of, estimate_text
from routewright._runtime.loop import Threads
from routewright.errors import ProviderFault, ValidationFailed
from routewright.wire.conversion import rebuild
from routewright.wire.json_scan import quoted
from routewright.wire.problems import did_you_mean, shown

from .callable import THREADS, Reply, RunningFunction

Answers = Mapping[str, str] | Callable[[wire.UpstreamCall], Reply]
Faults = Mapping[str, str | Sequence[str]]

MOST_VALUES = 1_000
"""Values per example, including nested ones."""
MOST_DEPTH = 32
MOST_CHARACTERS = 1_000
"""Characters per string."""
_WORD = "sandbox"
_FORMATS = {
    "date-time": "2026-01-01T12:00:00Z", "date": "2026-01-01", "time": "12:00:00Z", "duration": "P1D", "decimal": "0",
    "email": "sandbox@example.com", "hostname": "example.com", "ipv4": "192.0.2.1", "ipv6": "2001:db8::1",
    "ipv4network": "192.0.2.0/24", "ipv6network": "2001:db8::/32", "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}  # fmt: skip
"""An example of each string format."""


class SandboxProvider:
    """Answers with canned text. ``answers`` maps the last user message to its answer, or is a function of the call.

    ``faults`` maps a model id, or ``"*"`` for all others, to a ``FaultKind`` for every call, or to a list of them for
    the first calls.
    """

    name = "sandbox"
    fetches_urls: bool | Literal["callers"] = "callers"
    """It fetches nothing: ``unsupported`` lists the vendors that would not (``protocols.BaseProvider``)."""

    def __init__(
        self, models: Sequence[wire.Model], answers: Answers | None = None, faults: Faults | None = None
    ) -> None:
        self._models = tuple(models)
        self._answers: Answers = {} if answers is None else answers
        self._threads = Threads("the sandbox", THREADS)
        if not callable(self._answers):
            rebuild(self._answers, dict[str, str], "answers")
        faults = {} if faults is None else faults
        if not isinstance(faults, Mapping):
            hint = "map model ids, or '*', to kinds of fault"
            raise ValidationFailed.at("faults", f"{shown(faults)} is not a dict", hint)
        names = {"*", *(model.id for model in self._models)}
        self._faults: dict[str, wire.FaultKind | list[wire.FaultKind]] = {}
        for model, kinds in faults.items():
            if model not in names:
                hint = did_you_mean(model, sorted(names)) or "name a model of the catalogue, or '*' for all"
                raise ValidationFailed.at(f"faults[{shown(model)}]", "is not a model of the catalogue", hint)
            for kind in [kinds] if isinstance(kinds, str) or not isinstance(kinds, Sequence) else kinds:
                if kind not in list(wire.FaultKind):
                    hint = f"known kinds: {', '.join(wire.FaultKind)}"
                    raise ValidationFailed.at(f"faults[{quoted(model)}]", f"{shown(kind)} is not a kind of fault", hint)
            self._faults[model] = wire.FaultKind(kinds) if isinstance(kinds, str) else [*map(wire.FaultKind, kinds)]

    def models(self) -> Sequence[wire.Model]:
        """All models of the catalogue."""
        return self._models

    def unsupported(self, model: wire.Model) -> Collection[wire.Feature]:
        """Features that the model's own vendor does not support (``protocols.BaseProvider``)."""
        from .features import unsupported_at  # loads the tables of all vendors, which only calls need

        return unsupported_at(model.provider, model)

    @property
    def caller_extra(self) -> Collection[str]:
        """Vendor fields that callers with a key may send, of all vendors (``protocols.Provider``)."""
        from .hosts import ENDPOINTS

        return frozenset().union(*(vendor.caller_extra for vendor in ENDPOINTS.values()))

    def open(self, call: wire.UpstreamCall) -> RunningFunction:
        """Start one call (``protocols.Provider``)."""
        return RunningFunction(self._reply, call, True, self._threads)

    async def aclose(self) -> None:
        """Does nothing."""

    def _reply(self, call: wire.UpstreamCall) -> Reply:
        kind = self._faults.get(call.model.id, self._faults.get("*"))
        if isinstance(kind, list):
            kind = kind.pop(0) if kind else None
        if kind is not None:
            raise ProviderFault(kind, "injected by the sandbox")
        if callable(self._answers):
            return self._answers(call)
        return list(_build_chunks(call, self._answers.get(last_user_text(call.messages))))


def last_user_text(messages: Sequence[wire.Message]) -> str:
    """The text of the last user message; empty if there is none."""
    content = next((message.content for message in reversed(messages) if message.role == "user"), None) or ""
    parts = [wire.TextPart(content)] if isinstance(content, str) else content
    return "".join(part.text for part in parts if isinstance(part, wire.TextPart))


def _build_chunks(call: wire.UpstreamCall, text: str | None) -> Iterable[wire.Chunk]:
    """A complete answer with its usage: a tool call if one is required, JSON if there is a schema."""
    input_tokens = bounds_of(wire.RouteRequest(call.messages, tools=call.tools)).estimate
    if text is None and call.tools and call.tool_choice not in (None, "auto", "none"):
        choice = call.tool_choice
        specs = [tool.function_spec for tool in call.tools]
        name = choice.function.name if isinstance(choice, wire.NamedToolChoice) else choice
        spec = specs[0] if choice == "required" else next(spec for spec in specs if spec.name == name)
        arguments = json.dumps(example_of({"type": "object"} | (spec.parameters or {})))
        yield wire.ToolDelta(0, arguments, "call_sandbox", spec.name)
        yield wire.Usage(input_tokens, estimate_text(arguments))
        yield wire.Finish("tool_calls")
        return
    response_format = call.params.response_format or {}
    if text is None and response_format.get("type") == "json_schema":
        text = json.dumps(example_of(response_format["json_schema"]["schema"]))
    elif text is None and response_format.get("type") == "json_object":
        text = json.dumps({"sandbox": True, "model": call.model.id})
    elif text is None:
        text = f"This is a canned answer in the name of {call.model.id}. The sandbox calls no model and bills nobody."
    words = text.split(" ")
    cap = call.max_output_tokens
    reason = "stop"
    if cap is not None and estimate_text(text) > cap:
        fitting = bisect_right(range(len(words)), cap, key=lambda count: estimate_text(" ".join(words[:count])))
        words = words[: max(0, fitting - 1)] or [""]
        reason = "length"
    for word in words[:-1]:
        yield wire.Delta(word + " ")
    yield wire.Delta(words[-1])
    yield wire.Usage(input_tokens, estimate_text(" ".join(words)))
    yield wire.Finish(reason)


# --- examples


def example_of(schema: object) -> object:
    """A small value that matches a JSON schema.

    Supports const, enum, local references, anyOf, oneOf, allOf, type, properties, required, items, prefixItems,
    minItems, bounds of numbers and lengths, multipleOf and common formats. Ignores the rest, such as ``pattern``. None
    for an invalid schema.
    """
    try:
        return _Example(schema).value(schema, 0)
    except (TypeError, ValueError, ArithmeticError, AttributeError, LookupError, RuntimeError):
        return None


class _Example:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._left = MOST_VALUES

    def value(self, schema: object, depth: int) -> object:
        """One value. None beyond the limits."""
        self._left -= 1
        if self._left < 0 or depth > MOST_DEPTH:
            return None
        if not isinstance(schema, Mapping):  # true or missing: any value matches
            return _WORD
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return schema["enum"][0]
        if "$ref" in schema:
            return self.value(self._resolve(schema["$ref"]), depth + 1)
        for word in ("anyOf", "oneOf", "allOf"):
            if options := schema.get(word):
                rest = {name: value for name, value in schema.items() if name != word}
                if word != "allOf" and {"type": "null"} in options:
                    return None
                return self.value(self._merge([rest, *(options if word == "allOf" else options[:1])]), depth + 1)
        kind = schema.get("type", "object" if "properties" in schema else "string")
        match kind[0] if isinstance(kind, list) else kind:
            case "object":
                inner = schema.get("properties", {})
                names = islice(schema.get("required", inner), self._left)
                return {name: self.value(inner.get(name), depth + 1) for name in names if self._left > 0}
            case "array":
                items = [*islice(schema.get("prefixItems", ()), self._left)]
                items += [schema.get("items")] * (min(schema.get("minItems", 0), self._left) - len(items))
                return [self.value(item, depth + 1) for item in items if self._left > 0]
            case "integer" | "number" as word:
                return _build_number(schema, ceil if word == "integer" else float)
            case "boolean":
                return False
            case "null":
                return None
        size = min(max(len(_WORD), schema.get("minLength", 0)), schema.get("maxLength", inf), MOST_CHARACTERS)
        return _FORMATS.get(schema.get("format", "")) or (_WORD * -(-size // len(_WORD)))[:size]

    def _merge(self, schemas: Iterable[object]) -> wire.JsonObject:
        """Merge schemas: union of properties and required names; for other keys, the last one wins."""
        merged: wire.JsonObject = {}
        for schema in schemas:
            if isinstance(schema, Mapping):
                schema = {**schema, **self._resolve(schema["$ref"])} if "$ref" in schema else schema
                properties = {**merged.get("properties", {}), **schema.get("properties", {})}
                required = [*merged.get("required", ()), *schema.get("required", ())]
                merged |= {name: value for name, value in schema.items() if name != "$ref"}
                merged |= {"properties": properties} if properties else {}
                merged |= {"required": required} if required else {}
        return merged

    def _resolve(self, pointer: str) -> Any:
        """Resolve a JSON pointer in the root schema."""
        node = self._root
        for part in pointer.removeprefix("#").split("/")[1:]:
            node = node[part.replace("~1", "/").replace("~0", "~")]
        return node


def _build_number(schema: Mapping[str, Any], convert: Callable[[Any], Any]) -> Any:
    """Zero if it is within the bounds, else a value near them. Zero if there is none."""
    low, above = schema.get("minimum", -inf), schema.get("exclusiveMinimum", -inf)
    high, below = schema.get("maximum", inf), schema.get("exclusiveMaximum", inf)
    ends = [end for end in (low, above, high, below) if isfinite(end)]
    numbers = [0, *ends, *(end + 1 for end in ends), *(end - 1 for end in ends)]
    numbers += [sum(ends) / len(ends)] if ends else []
    if step := schema.get("multipleOf"):
        numbers = [ceil(number / step) * step for number in numbers]
    return next((number for number in map(convert, numbers) if low <= number <= high and above < number < below), 0)
