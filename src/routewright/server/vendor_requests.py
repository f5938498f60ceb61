"""Shared by the APIs for other vendors' clients (contract 14): the fields ``model`` and ``routewright``, headers about
routing, reasoning as opaque text, and errors with the client's names of fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple, TypeVar, cast, get_args

from msgspec import Struct
from msgspec.structs import replace

from routewright import wire
from routewright.catalogue import AUTO, chooses, model_called, routing_of, undated
from routewright.errors import NotFound, Problem, RouterError, ValidationFailed
from routewright.router import CALLER_EXTRA
from routewright.wire import JsonObject
from routewright.wire.conversion import convert_value
from routewright.wire.json_scan import beneath, joined
from routewright.wire.problems import did_you_mean, hint_for, shown

from .endpoints import Service
from .errors import rewrite
from .fields import Fields, Ignored, wrong

E = TypeVar("E", bound=RouterError)

FIELD = "routewright"
"""Field of a vendor's request with our own options."""


class RoutingOptions(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The field ``routewright``: fields of the route request (spec 2.1) that the vendors lack."""

    goal: wire.Goal | None = None
    strategy: wire.Strategy | None = None
    policy_id: str | None = None
    models: list[str] | None = None
    prefer: str | list[str] | None = None
    fallback: wire.Fallback | None = None
    budget: wire.Budget | None = None
    cache: bool | wire.CacheOpts | None = None
    metadata: JsonObject | None = None
    timeout_ms: float | None = None


KEY_HINT = "send it as the header Idempotency-Key"
OPTIONS = tuple(name for name in RoutingOptions.__struct_fields__ if name != "metadata")
"""Options that no vendor has a field for."""
PLACES = {"params": "", "idempotency_key": "Idempotency-Key", **{name: f"{FIELD}.{name}" for name in OPTIONS}}
"""Names of these fields in every API (``Words.places``)."""

_MESSAGE = re.compile(r"messages\[(\d+)\]")
_NAME = re.compile(r"(?<![\w./-])(?<!did you mean ')(?<!policy ')(?<!key ')[a-z_]+(?:\.\w+|\[\d+\])*")
"""Possible fields in a message. Not suggested names, values, and names of policies and keys."""


class Words(Struct, frozen=True):
    """Translates names of fields in errors into those that the client wrote."""

    places: Mapping[str, str]
    """The client's paths by ours. The longest matching prefix of a path is replaced."""
    listed_at: str
    """Endpoint that lists the models."""
    turns: Sequence[str] | None = None
    """The client's path of each message. None: the same as ours."""

    def having(self, places: Mapping[str, str], turns: Sequence[str] | None = None) -> Words:
        """A copy with paths of one request."""
        return replace(self, places={**self.places, **places}, turns=turns)

    def path(self, path: str) -> str:
        """The client's path to a field."""
        message = _MESSAGE.match(path)
        if message is not None and self.turns is not None and int(message[1]) < len(self.turns):
            return self.turns[int(message[1])]
        head = path
        while head:
            if head in self.places:
                return (self.places[head] + path[len(head) :]).removeprefix(".")
            head = head[: max(head.rfind("."), head.rfind("["), 0)]
        return path

    def text(self, text: str) -> str:
        """Translate a message or hint. A word is a field if it has a dot or underscore, or is quoted."""

        def translate(match: re.Match[str]) -> str:
            name = match[0]
            is_quoted = text[match.start() - 1 : match.end() + 1] == f"'{name}'"
            return self.path(name) if is_quoted or "." in name or "_" in name else name

        text = text.replace("Router.models()", self.listed_at)
        return _NAME.sub(translate, text)

    def problem(self, problem: Problem) -> Problem:
        """Translate a problem. Its sentence only changes in the name of the output cap."""
        sentence = problem.problem.replace("max_output_tokens=", f"{self.path('params.max_output_tokens')}=")
        return Problem(self.path(problem.path), sentence, self.text(problem.hint))

    def error(self, error: E) -> E:
        """A translated copy of an error."""
        return rewrite(error, self.problem, self.text)


def read_options(tree: object, words: Words) -> RoutingOptions:
    """Read the field ``routewright``. Raises ``ValidationFailed``."""
    if tree is None:
        return RoutingOptions()
    fields = RoutingOptions.__struct_fields__
    for name in tree if isinstance(tree, dict) else ():
        if name not in fields:
            hint = KEY_HINT if name == "idempotency_key" else hint_for(name, "", fields)
            # known names are relative to the field
            raise wrong(joined(FIELD, name), "is not a field", hint if hint.startswith("known: ") else words.text(hint))
    try:
        return convert_value(tree, RoutingOptions, "")
    except ValidationFailed as error:
        problems = [Problem(beneath(FIELD, path), text, words.text(hint)) for path, text, hint in error.problems]
    raise ValidationFailed.of(*problems)


class ModelNotFound(NotFound, code="model_not_found"):
    """No such model, with the vendors' error code."""


class Directory(NamedTuple):
    """What a caller may name: models, and fields of vendors."""

    names: Mapping[str, str]
    """Model ids by id and alias."""
    models: Callable[[], Iterable[wire.Model]]
    extra: Callable[[str], Collection[str]] = lambda provider: CALLER_EXTRA
    """The vendor fields that the caller may send to a provider."""

    def id_of(self, model: str, vendor: str, listed_at: str) -> str:
        """The known name for a client's model: an id or an alias, else a model of this vendor; one with a date may mean
        the undated model. Names that leave the choice to the router are unchanged. Raises ``ModelNotFound``."""
        if not model:
            raise wrong("model", "must not be empty", "send an id, 'auto', 'auto:<goal>' or 'policy:<id>'")
        if chooses(model):
            return model
        for name in (model, f"{vendor}/{model}"):
            if name in self.names:
                return name
        provider, name = model.split("/", 1) if "/" in model else (vendor, model)
        if f"{provider}/{undated(name)}" in self.names:  # cheaper than the search below
            return f"{provider}/{undated(name)}"
        match = model_called(name, self.models(), provider)
        if match is not None:
            return match
        hint = did_you_mean(model, self.names) or did_you_mean(f"{vendor}/{model}", self.names)
        hint = hint or f"{listed_at} lists the callable ones, 'auto' chooses one"
        raise ModelNotFound(f"there is no model {shown(model)}, or you may not use it; {hint}")


NO_MODELS = Directory({}, tuple)
"""No models."""


def directory_of(service: Service, caller: wire.Caller) -> Directory:
    """The models that a caller may name."""
    router = service.router
    extra = partial(router.caller_extra, caller=caller)
    return Directory(router.model_names(caller=caller), partial(router.models, caller=caller), extra)


def places_of(model: str, fallback: wire.Fallback | None = None) -> dict[str, str]:
    """The fields of the route request that ``model`` and fallback models become (``Words.places``)."""
    if model.startswith("policy:"):
        return {"policy_id": "model"}
    if chooses(model):
        return {}
    fallbacks = [] if fallback is None else fallback.models or []
    places = {f"models[{n + 1}]": f"{FIELD}.fallback.models[{n}]" for n in range(len(fallbacks))}
    return {"models[0]": "model", **places}


def add_options(
    request: wire.RouteRequest, model: str, vendor: str, options: RoutingOptions, names: Container[str]
) -> wire.RouteRequest:
    """Add the routing of ``model`` and ``options`` to a request. ``model`` is ``names``, or leaves the choice to the
    router (``chooses``). A named model is the only candidate, followed by ``fallback.models`` in order. Raises
    ``ValidationFailed`` if model and options contradict each other."""
    if request.stream and options.fallback is not None and options.fallback.on_partial == "restart":
        hint = "leave it out: a fault after the first text ends the stream; POST /v1/route can restart"
        raise wrong(f"{FIELD}.fallback.on_partial", "is not supported by these streams", hint)
    changes = {key: wish for key in RoutingOptions.__struct_fields__ if (wish := getattr(options, key)) is not None}
    if model == AUTO:
        return replace(request, **changes)
    option, value = routing_of(model)
    if changes.get(option, value) != value:
        hint = f"set only one; with {FIELD}.{option} send 'auto'"
        raise wrong("model", f"is {shown(model)}, but {FIELD}.{option} differs", hint)
    changes[option] = value
    if option == "models" and options.fallback is not None and options.fallback.models:
        fallbacks = [
            name if name in names or f"{vendor}/{name}" not in names else f"{vendor}/{name}"
            for name in options.fallback.models
        ]
        changes["fallback"] = replace(options.fallback, models=fallbacks)
        changes["models"] = [model, *[name for name in fallbacks if name != model]]
        changes.setdefault("prefer", model)
    return replace(request, **changes)


def routing_headers(answer: wire.RouteResponse | wire.StartedData, ignored: Ignored) -> dict[str, str]:
    """Headers with the serving model and ignored fields; of a complete answer also cost and latency."""
    routing = answer.routing
    headers = {"X-Routewright-Trace-Id": answer.trace_id, "X-Routewright-Model": routing.selected_model}
    headers |= ignored.headers(routing.selected_model, routing.ignored_params)
    if isinstance(answer, wire.RouteResponse):
        headers |= {
            "X-Routewright-Cost-Usd": f"{answer.routing.cost_usd:.9f}".rstrip("0").rstrip("."),
            "X-Routewright-Latency-Ms": f"{answer.routing.latency_ms:.3f}",
            "X-Routewright-Policy-Version": routing.policy_version,
        }
    return headers


# Options that several vendors have

EFFORTS: dict[str, wire.Effort] = {**{effort: effort for effort in get_args(wire.Effort)}, "xhigh": "max"}
"""Our reasoning efforts by the vendors' words."""


def join_thoughts(thoughts: list[wire.Reasoning]) -> wire.Reasoning | None:
    """The reasoning of one turn, from its pieces."""
    return replace(thoughts[0], items=[item for thought in thoughts for item in thought.items]) if thoughts else None


def content_of(parts: list[wire.Part]) -> str | list[wire.Part] | None:
    """The content of a message. A single text becomes a string, which every model supports."""
    match parts:
        case [wire.TextPart(text, None)]:
            return text
    return parts or None


def mark_of(fields: Fields) -> wire.CacheControl | None:
    """``cache_control``."""
    if fields.peek("cache_control") is None:
        return None
    mark = fields.object("cache_control")
    mark.one_of("type", ("ephemeral",))
    ttl = mark.may_be("ttl", ("5m", "1h"))
    return wire.CacheControl("ephemeral", cast('Literal["5m", "1h"] | None', ttl))
