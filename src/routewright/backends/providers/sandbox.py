"""Canned answers for every model of the catalogue: no key, no network, no waiting, never billed."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence, Set

from routewright._core.request.json_scan import quoted
from routewright._core.request.problems import did_you_mean, shown
from routewright._core.request.read import rebuilt
from routewright._core.tokens.estimate import bounds_of, estimate_text
from routewright.errors import Problem, ProviderFault, ValidationFailed
from routewright.wire import (
    Chunk,
    Delta,
    FaultKind,
    Finish,
    FunctionSpec,
    Message,
    Model,
    RouteRequest,
    TextPart,
    ToolDelta,
    UpstreamCall,
    Usage,
)

from .callable import Reply, RunningFunction, Threads
from .example import example_of

Answers = Mapping[str, str] | Callable[[UpstreamCall], Reply]
Faults = Mapping[str, str | Sequence[str]]


class SandboxProvider:
    """Answers as asked. ``answers`` maps the last user message to its answer, or is a function of the call.

    ``faults`` maps a model id, or ``"*"``, to a ``FaultKind`` that every call of it ends in, or to a list of them for
    its first calls.
    """

    name = "sandbox"

    def __init__(self, models: Sequence[Model], answers: Answers | None = None, faults: Faults | None = None) -> None:
        self._models = tuple(models)
        self._answers: Answers = {} if answers is None else answers
        self._threads = Threads()
        if not callable(self._answers):
            rebuilt(self._answers, dict[str, str], "answers")
        faults = {} if faults is None else faults
        if not isinstance(faults, Mapping):
            hint = "map model ids, or '*', to kinds of fault"
            raise ValidationFailed.of(Problem("faults", f"{shown(faults)} is not a dict", hint))
        known = {"*", *(model.id for model in self._models)}
        self._faults = {_known(model, known): _kinds(model, kinds) for model, kinds in faults.items()}

    def models(self) -> Sequence[Model]:
        """Every model of the catalogue."""
        return self._models

    def open(self, call: UpstreamCall) -> RunningFunction:
        """Start one call (``protocols.Provider``)."""
        return RunningFunction(self._reply, call, True, self._threads)

    async def aclose(self) -> None:
        """Nothing is held."""

    def _reply(self, call: UpstreamCall) -> Reply:
        kind = self._next_fault(call.model.id)
        if kind is not None:
            raise ProviderFault(kind, "injected by the sandbox")
        if callable(self._answers):
            return self._answers(call)
        return list(_chunks(call, self._answers.get(last_user_text(call.messages))))

    def _next_fault(self, model: str) -> FaultKind | None:
        kinds = self._faults.get(model, self._faults.get("*"))
        if isinstance(kinds, list):
            return kinds.pop(0) if kinds else None
        return kinds


def last_user_text(messages: Sequence[Message]) -> str:
    """The text of the last user message; empty if there is none."""
    for message in reversed(messages):
        if message.role == "user":
            content = message.content or ""
            if isinstance(content, str):
                return content
            return "".join(part.text for part in content if isinstance(part, TextPart))
    return ""


def _known(model: str, known: Set[str]) -> str:
    if model not in known:
        hint = did_you_mean(model, sorted(known)) or "name a model of the catalogue, or '*' for all"
        raise ValidationFailed.of(Problem(f"faults[{shown(model)}]", "is no known model", hint))
    return model


def _kinds(model: str, kinds: str | Sequence[str]) -> FaultKind | list[FaultKind]:
    listed = [kinds] if isinstance(kinds, str) or not isinstance(kinds, Sequence) else kinds
    for kind in listed:
        if kind not in list(FaultKind):
            hint = f"known kinds: {', '.join(FaultKind)}"
            raise ValidationFailed.of(Problem(f"faults[{quoted(model)}]", f"{shown(kind)} is no kind of fault", hint))
    return FaultKind(kinds) if isinstance(kinds, str) else [FaultKind(kind) for kind in kinds]


def _chunks(call: UpstreamCall, answer: str | None) -> Iterable[Chunk]:
    """A whole canned answer with its usage: a tool call where one is demanded, JSON where a schema is given."""
    asked = bounds_of(RouteRequest(call.messages, tools=call.tools)).estimate
    demanded = _demanded_tool(call) if answer is None else None
    if demanded is not None:
        arguments = json.dumps(example_of(demanded.parameters or {}))
        yield ToolDelta(0, arguments, "call_sandbox", demanded.name)
        yield Usage(asked, estimate_text(arguments))
        yield Finish("tool_calls")
        return
    text, reason = _cut(_canned(call) if answer is None else answer, call.max_output_tokens)
    pieces = text.split(" ")
    for place, word in enumerate(pieces):
        yield Delta(word if place == len(pieces) - 1 else word + " ")
    yield Usage(asked, estimate_text(text))
    yield Finish(reason)


def _demanded_tool(call: UpstreamCall) -> FunctionSpec | None:
    if not call.tools or call.tool_choice in (None, "auto", "none"):
        return None
    declared = {tool.function_spec.name: tool.function_spec for tool in call.tools}
    choice = call.tool_choice
    if choice == "required":
        return call.tools[0].function_spec
    return declared[choice if isinstance(choice, str) else choice.function.name]


def _canned(call: UpstreamCall) -> str:
    wanted = call.params.response_format or {}
    if wanted.get("type") == "json_schema":
        return json.dumps(example_of(wanted["json_schema"]["schema"]))
    if wanted.get("type") == "json_object":
        return json.dumps({"sandbox": True, "model": call.model.id})
    return f"This is a canned answer in the name of {call.model.id}. The sandbox calls no model and bills nobody."


def _cut(text: str, cap: int | None) -> tuple[str, str]:
    """Keep an answer within its cap, as a model would."""
    if cap is None or estimate_text(text) <= cap:
        return text, "stop"
    words = text.split(" ")
    kept = bisect_right(range(len(words)), cap, key=lambda count: estimate_text(" ".join(words[:count])))
    return " ".join(words[: max(0, kept - 1)]), "length"
