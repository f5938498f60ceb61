"""Shared by the APIs for other vendors' clients (contract 14): the fields ``model`` and ``routewright``, headers about
routing, reasoning as opaque text, and errors with the client's names of fields."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar, cast, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from routewright import wire
from routewright.catalogue import model_called, undated
from routewright.errors import NotFound, Problem, RouterError, ValidationFailed
from routewright.router import CALLER_EXTRA
from routewright.wire import JsonObject
from routewright.wire.conversion import converted
from routewright.wire.json_scan import beneath, joined, scan
from routewright.wire.problems import did_you_mean, hint_for, shown

from .endpoints import Service
from .errors import retold
from .fields import Fields, Ignored, wrong

E = TypeVar("E", bound=RouterError)

_encode = msgspec.json.encode
_decode_reasoning = msgspec.json.Decoder(wire.Reasoning).decode

FIELD = "routewright"
"""Field of a vendor's request with our own options."""
AUTO = "auto"


class Wishes(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
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
OURS = tuple(name for name in Wishes.__struct_fields__ if name != "metadata")
"""Options that no vendor has a field for."""
PLACES = {"params": "", "idempotency_key": "Idempotency-Key", **{name: f"{FIELD}.{name}" for name in OURS}}
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

        def named(found: re.Match[str]) -> str:
            name = found[0]
            is_quoted = text[found.start() - 1 : found.end() + 1] == f"'{name}'"
            return self.path(name) if is_quoted or "." in name or "_" in name else name

        text = text.replace("Router.models()", self.listed_at)
        return _NAME.sub(named, text)

    def problem(self, problem: Problem) -> Problem:
        """Translate a problem. Its sentence only changes in the name of the output cap."""
        said = problem.problem.replace("max_output_tokens=", f"{self.path('params.max_output_tokens')}=")
        return Problem(self.path(problem.path), said, self.text(problem.hint))

    def error(self, error: E) -> E:
        """A translated copy of an error."""
        return retold(error, self.problem, self.text)


def wishes_of(given: object, words: Words) -> Wishes:
    """Read the field ``routewright``. Raises ``ValidationFailed``."""
    if given is None:
        return Wishes()
    known = Wishes.__struct_fields__
    for name in given if isinstance(given, dict) else ():
        if name not in known:
            hint = KEY_HINT if name == "idempotency_key" else hint_for(name, "", known)
            # known names are relative to the field
            raise wrong(joined(FIELD, name), "is not a field", hint if hint.startswith("known: ") else words.text(hint))
    try:
        return converted(given, Wishes, "")
    except ValidationFailed as error:
        found = [each._replace(path=beneath(FIELD, each.path), hint=words.text(each.hint)) for each in error.problems]
    raise ValidationFailed.of(*found)


class ModelNotFound(NotFound, code="model_not_found"):
    """No such model, with the vendors' error code."""


class Known(NamedTuple):
    """What a caller may name: models, and fields of vendors."""

    names: Mapping[str, str]
    """Model ids by id and alias."""
    models: Callable[[], Iterable[wire.Model]]
    extra: Callable[[str], Collection[str]] = lambda provider: CALLER_EXTRA
    """The vendor fields that the caller may send to a provider."""

    def id_of(self, model: str, vendor: str, listed_at: str) -> str:
        """The known name for a client's model: a name without a vendor is this vendor's, one with a date may mean the
        undated model. Names that leave the choice to the router are unchanged. Raises ``ModelNotFound``."""
        if not model:
            raise wrong("model", "must not be empty", "send an id, 'auto', 'auto:<goal>' or 'policy:<id>'")
        if chooses(model):
            return model
        for name in (model, f"{vendor}/{model}") if "/" in model else (f"{vendor}/{model}", model):
            if name in self.names:
                return name
        of, name = model.split("/", 1) if "/" in model else (vendor, model)
        if f"{of}/{undated(name)}" in self.names:  # cheaper than the search below
            return f"{of}/{undated(name)}"
        meant = model_called(name, self.models(), of)
        if meant is not None:
            return meant
        hint = did_you_mean(model, self.names) or did_you_mean(f"{vendor}/{model}", self.names)
        hint = hint or f"{listed_at} lists the callable ones, 'auto' chooses one"
        raise ModelNotFound(f"there is no model {shown(model)}, or you may not use it; {hint}")


NOBODY = Known({}, tuple)
"""No models."""


def known_to(service: Service, caller: wire.Caller) -> Known:
    """The models that a caller may name."""
    router = service.router
    extra = partial(router.caller_extra, caller=caller)
    return Known(router.model_names(caller=caller), partial(router.models, caller=caller), extra)


def chooses(model: str) -> bool:
    """True if the name leaves the choice to the router: ``auto``, ``auto:<goal>`` or ``policy:<id>``."""
    kind, colon, _ = model.partition(":")
    return model == AUTO or (colon != "" and kind in (AUTO, "policy"))


def places_of(model: str, fallback: wire.Fallback | None = None) -> dict[str, str]:
    """The fields of the route request that ``model`` and fallback models become (``Words.places``)."""
    if model.startswith("policy:"):
        return {"policy_id": "model"}
    if chooses(model):
        return {}
    behind = [] if fallback is None else fallback.models or []
    places = {f"models[{n + 1}]": f"{FIELD}.fallback.models[{n}]" for n in range(len(behind))}
    return {"models[0]": "model", **places}


def wished(
    request: wire.RouteRequest, model: str, vendor: str, wishes: Wishes, known: Container[str]
) -> wire.RouteRequest:
    """Add the routing options of ``model`` and ``wishes`` to a request. ``model`` is ``known``, or leaves the choice to
    the router (``chooses``). A named model is the only candidate, followed by ``fallback.models`` in order. Raises
    ``ValidationFailed`` if model and wishes contradict each other."""
    if request.stream and wishes.fallback is not None and wishes.fallback.on_partial == "restart":
        hint = "leave it out: a fault after the first text ends the stream; POST /v1/route can restart"
        raise wrong(f"{FIELD}.fallback.on_partial", "is not supported by these streams", hint)
    told = {name: each for name in Wishes.__struct_fields__ if (each := getattr(wishes, name)) is not None}
    if model == AUTO:
        return replace(request, **told)
    kind, _, rest = model.partition(":")
    goals, field, value = get_args(wire.Goal), "models", cast("Any", [model])
    if chooses(model):
        field, value = "goal" if kind == AUTO else "policy_id", rest
    if field == "goal" and rest not in goals:
        hint = f"{did_you_mean(rest, goals)} take auto, or auto:{', auto:'.join(goals)}".lstrip()
        raise wrong("model", f"asks for the goal {shown(rest)}", hint)
    if told.get(field, value) != value:
        hint = f"set only one; with {FIELD}.{field} send 'auto'"
        raise wrong("model", f"is {shown(model)}, but {FIELD}.{field} differs", hint)
    told[field] = value
    if field == "models" and wishes.fallback is not None and wishes.fallback.models:
        owned = [(f"{vendor}/{each}", each) for each in wishes.fallback.models]
        behind = [own if own in known else each for own, each in owned]
        told["fallback"] = replace(wishes.fallback, models=behind)
        told["models"] = [model, *[each for each in behind if each != model]]
        told.setdefault("prefer", model)
    return replace(request, **told)


def routing_headers(told: wire.RouteResponse | wire.StartedData, ignored: Ignored) -> dict[str, str]:
    """Headers with the serving model and ignored fields; of a complete answer also cost and latency."""
    routing = told.routing
    headers = {"X-Routewright-Trace-Id": told.trace_id, "X-Routewright-Model": routing.selected_model}
    headers |= ignored.headers(routing.selected_model, routing.ignored_params)
    if isinstance(told, wire.RouteResponse):
        headers |= {
            "X-Routewright-Cost-Usd": f"{told.routing.cost_usd:.9f}".rstrip("0").rstrip("."),
            "X-Routewright-Latency-Ms": f"{told.routing.latency_ms:.3f}",
            "X-Routewright-Policy-Version": routing.policy_version,
        }
    return headers


# Options that several vendors have

EFFORTS: dict[str, wire.Effort] = {**{effort: effort for effort in get_args(wire.Effort)}, "xhigh": "max"}
"""Our reasoning efforts by the vendors' words."""


def packed(reasoning: wire.Reasoning) -> str:
    """Reasoning as an opaque text, which clients send back unchanged. Its readable text is sent separately."""
    return b64encode(_encode(replace(reasoning, text=None))).decode()


def unpacked(text: object) -> wire.Reasoning | None:
    """The reasoning of an opaque text, or None if it is not ours."""
    if isinstance(text, str):
        with suppress(ValueError, msgspec.DecodeError, RouterError, RecursionError):
            raw = b64decode(text, validate=True)
            scan(raw)
            return _decode_reasoning(raw)
    return None


def joined_thoughts(found: list[wire.Reasoning]) -> wire.Reasoning | None:
    """The reasoning of one turn, from its pieces."""
    return replace(found[0], items=[item for each in found for item in each.items]) if found else None


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
    given = fields.object("cache_control")
    given.one_of("type", ("ephemeral",))
    ttl = given.may_be("ttl", ("5m", "1h"))
    return wire.CacheControl("ephemeral", cast('Literal["5m", "1h"] | None', ttl))
