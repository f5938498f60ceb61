"""What the doors for other vendors' clients have in common (contract 14): how ``model`` is read, how routing is asked
for beside it, and what is said of it in headers.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from routewright._core.account import holds_key
from routewright._core.request.json_scan import beneath, joined
from routewright._core.request.problems import CHOICES, did_you_mean, hint_for, shown
from routewright._core.request.read import converted
from routewright.errors import Problem, ValidationFailed
from routewright.wire import Budget, CacheOpts, Fallback, Goal, RouteRequest, RouteResponse, StartedData, Strategy

from .words import Words

FIELD = "routewright"
"""The field of another vendor's request that holds what only we know."""
AUTO = "auto"


MOST_SHOWN = 4
"""Names of models in a hint."""
MOST_IGNORED, LONGEST_IGNORED = 50, 64
"""Names of ignored fields go into one header."""


class Ignored(set[str]):
    """Names of fields that a request holds and nobody heeds: of many the first, and no long ones; never what they
    hold."""

    def add(self, name: str) -> None:
        """Note one."""
        if len(self) < MOST_IGNORED and len(name) <= LONGEST_IGNORED and not holds_key(name):
            super().add(name)


class Wishes(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Fields of the route request (spec 2.1) that other vendors have no words for."""

    goal: Goal | None = None
    strategy: Strategy | None = None
    policy_id: str | None = None
    models: list[str] | None = None
    prefer: str | list[str] | None = None
    fallback: Fallback | None = None
    budget: Budget | None = None
    cache: bool | CacheOpts | None = None
    metadata: dict[str, Any] | None = None
    timeout_ms: float | None = None


_KEY_HINT = "send it as the header Idempotency-Key"
_WISHES = tuple(name for name in Wishes.__struct_fields__ if name != "metadata")
"""Of those the ones that no other vendor has a field for."""

PLACES = {"params": "", "idempotency_key": "Idempotency-Key", **{name: f"{FIELD}.{name}" for name in _WISHES}}
"""What places of the route request are called at every door (``Words.places``)."""


def places_of(model: str) -> dict[str, str]:
    """What ``model`` says in the place of other fields."""
    kind, colon, _ = model.partition(":")
    if kind == "policy" and colon:
        return {"policy_id": "model"}
    return {} if kind == AUTO else {"models[0]": "model"}


def wishes_of(given: object, words: Words) -> Wishes:
    """What the field ``routewright`` asks for. Raises ``ValidationFailed`` naming the place."""
    if given is None:
        return Wishes()
    for name in given if isinstance(given, dict) else ():
        if name not in Wishes.__struct_fields__:
            hint = _KEY_HINT if name == "idempotency_key" else hint_for(name, "", Wishes.__struct_fields__)
            told = hint if hint.startswith("known: ") else words.text(hint)  # those that are known are within the field
            raise ValidationFailed.of(Problem(joined(FIELD, name), "is not a field", told))
    try:
        return converted(given, Wishes, "")
    except ValidationFailed as error:
        found = [each._replace(path=beneath(FIELD, each.path), hint=words.text(each.hint)) for each in error.problems]
    raise ValidationFailed.of(*found)


def check_placed(given: Mapping[str, Any]) -> None:
    """Refuse wishes that stand beside the field instead of in it: to ignore a budget would be to spend it. Raises
    ``ValidationFailed``."""
    if given.get("idempotency_key") is not None:
        raise ValidationFailed.of(Problem("idempotency_key", "is not a field of this interface", _KEY_HINT))
    for name in _WISHES:
        if given.get(name) is not None:
            hint = f"send it as {FIELD}.{name}: {{{FIELD!r}: {{{name!r}: ...}}}}".replace("'", '"')
            raise ValidationFailed.of(Problem(name, "is not a field of this interface", hint))


def wished(request: RouteRequest, model: str, vendor: str, wishes: Wishes, known: Container[str]) -> RouteRequest:
    """The request with what ``model`` and the wishes say of its routing.

    ``model`` is an id, ``auto``, ``auto:<goal>`` or ``policy:<id>``; a name without its vendor means this one's, where
    that is ``known``. Raises ``ValidationFailed`` where the two disagree.
    """
    if request.stream and wishes.fallback is not None and wishes.fallback.on_partial == "restart":
        hint = "leave it out, and a fault behind the first words ends the stream; POST /v1/route can begin again"
        raise ValidationFailed.of(Problem(f"{FIELD}.fallback.on_partial", "has no words in these streams", hint))
    told = {name: value for name in Wishes.__struct_fields__ if (value := getattr(wishes, name)) is not None}
    kind, colon, rest = model.partition(":")
    if model == AUTO:
        return replace(request, **told)
    if kind == AUTO and colon:
        return replace(request, **_joined(told, "goal", _goal(rest), model))
    if kind == "policy" and colon:
        return replace(request, **_joined(told, "policy_id", rest, model))
    own = f"{vendor}/{model}"
    name = own if own in known else model
    _check_alone(name, wishes)
    return replace(request, **_joined(told, "models", [name], model))


def routing_headers(told: RouteResponse | StartedData) -> dict[str, str]:
    """How a request is served: of a stream as it begins, of an answer as it was."""
    if isinstance(told, StartedData):
        return {"X-Routewright-Trace-Id": told.trace_id, "X-Routewright-Model": told.routing.selected_model}
    routing = told.routing
    return {
        "X-Routewright-Trace-Id": told.trace_id,
        "X-Routewright-Model": routing.selected_model,
        "X-Routewright-Cost-Usd": f"{routing.cost_usd:.9f}".rstrip("0").rstrip("."),
        "X-Routewright-Latency-Ms": f"{routing.latency_ms:.3f}",
        "X-Routewright-Policy-Version": routing.policy_version,
    }


def ignored_header(names: Ignored) -> dict[str, str]:
    """Which fields of a request were left unheeded, by their names."""
    told = ", ".join(sorted(name for name in names if name.isascii() and name.isidentifier()))
    return {"X-Routewright-Ignored": told} if told else {}


def _check_alone(name: str, wishes: Wishes) -> None:
    """Refuse a chain beside one model that is named, which allows no other, and say how to have both."""
    chain = [] if wishes.fallback is None else wishes.fallback.models or []
    if any(each != name for each in chain):
        said = f"stands beside the one model {shown(name)}, which allows no other"
        several = ", ".join(f'"{each}"' for each in dict.fromkeys([name, *chain][:MOST_SHOWN]))
        hint = f'send "model": "auto" with "{FIELD}": {{"models": [{several}]}}, and the best of them is asked first'
        raise ValidationFailed.of(Problem(f"{FIELD}.fallback.models", said, hint))


def _joined(told: dict[str, Any], field: str, value: Any, model: str) -> dict[str, Any]:
    if told.get(field, value) != value:
        said = f"is {shown(model)}, and {FIELD}.{field} says something else"
        raise ValidationFailed.of(Problem("model", said, f"say it in one of the two; with {FIELD}.{field} send 'auto'"))
    return told | {field: value}


def _goal(text: str) -> str:
    goals = CHOICES["goal"]
    if text in goals:
        return text
    hint = did_you_mean(text, goals) or f"take auto, or auto:{', auto:'.join(goals)}"
    raise ValidationFailed.of(Problem("model", f"asks for the goal {shown(text)}", hint))
