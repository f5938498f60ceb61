"""What the doors for other vendors' clients share (contract 14): how ``model`` is read, the field ``routewright``, the
headers about routing, and errors that name fields as the client wrote them.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from copy import copy
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from routewright._core.account import holds_key
from routewright._core.request.json_scan import beneath, joined
from routewright._core.request.problems import CHOICES, did_you_mean, hint_for, shown
from routewright._core.request.read import converted
from routewright.errors import Problem, RouterError, ValidationFailed
from routewright.wire import Budget, CacheOpts, Fallback, Goal, RouteRequest, RouteResponse, StartedData, Strategy

E = TypeVar("E", bound=RouterError)

FIELD = "routewright"
"""The field of a vendor's request that holds what only we know."""
AUTO = "auto"
MOST_SHOWN = 4
"""Models that a hint names."""
MOST_IGNORED, LONGEST_IGNORED = 50, 64
"""Bounds of the header that names ignored fields."""


class Ignored(set[str]):
    """Names of the fields of a request that were ignored: of many the first, no long ones, and never their values."""

    def add(self, name: str) -> None:
        """Note one."""
        if len(self) < MOST_IGNORED and len(name) <= LONGEST_IGNORED and not holds_key(name):
            super().add(name)

    def keep(self, value: Any, known: frozenset[str]) -> Any:
        """An object's known fields. The others are noted, unless they are null."""
        if type(value) is not dict or value.keys() <= known:
            return value
        for name, each in value.items():
            if name not in known and each is not None:
                self.add(name)
        return {name: each for name, each in value.items() if name in known}

    @property
    def headers(self) -> dict[str, str]:
        """The header that tells the client."""
        told = ", ".join(sorted(name for name in self if name.isascii() and name.isidentifier()))
        return {"X-Routewright-Ignored": told} if told else {}


class Wishes(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The field ``routewright``: fields of the route request (spec 2.1) that other vendors do not have."""

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
_OURS = tuple(name for name in Wishes.__struct_fields__ if name != "metadata")
"""The wishes that no vendor has a field for."""
PLACES = {"params": "", "idempotency_key": "Idempotency-Key", **{name: f"{FIELD}.{name}" for name in _OURS}}
"""What the places of these fields are called at every door (``Words.places``)."""

_MESSAGE = re.compile(r"messages\[(\d+)\]")
_NAME = re.compile(r"(?<![\w./-])(?<!did you mean ')(?<!policy ')(?<!key ')[a-z_]+(?:\.\w+|\[\d+\])*")
"""What may be a field of ours in a message. Suggested names, values, and names of policies and keys are not."""


class Words(Struct, frozen=True):
    """Translates the fields of a route request, in errors, into the names that the client wrote."""

    places: Mapping[str, str]
    """Theirs by ours. The longest place that a path begins with is replaced; the rest of the path stays."""
    listed_at: str
    """Where a client finds the models that it may name."""
    turns: Sequence[str] | None = None
    """Where each message was written, if its parts are not where ours are; None: messages stand as they were sent."""

    def having(self, places: Mapping[str, str], turns: Sequence[str] | None = None) -> Words:
        """The same, for a request that says where it wrote some of its fields."""
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
        """A message or a hint. A word in it is a field if it has a dot or an underscore, or stands in quotes."""

        def named(found: re.Match[str]) -> str:
            name = found[0]
            is_quoted = text[found.start() - 1 : found.end() + 1] == f"'{name}'"
            return self.path(name) if is_quoted or "." in name or "_" in name else name

        text = text.replace("Router.models()", self.listed_at)
        return _NAME.sub(named, text)

    def problem(self, problem: Problem) -> Problem:
        """One problem. Its own sentence shows the client's value, and stays."""
        return Problem(self.path(problem.path), problem.problem, self.text(problem.hint))

    def error(self, error: E) -> E:
        """A copy of the error in the client's words."""
        told = copy(error)
        if isinstance(told, ValidationFailed) and told.problems:
            told.problems = [self.problem(each) for each in told.problems]
            told.message = "\n".join(map(str, told.problems))
            told.detail = told.detail | {"problems": [each._asdict() for each in told.problems]}
            return told
        told.message = self.text(told.message)
        suggestion = told.detail.get("suggestion")
        if isinstance(suggestion, str):
            told.detail = told.detail | {"suggestion": self.text(suggestion)}
        return told


def wrong(path: str, problem: str, hint: str = "") -> ValidationFailed:
    """The error of one field."""
    return ValidationFailed.of(Problem(path, problem, hint))


def wishes_of(given: object, words: Words) -> Wishes:
    """Read the field ``routewright``. Raises ``ValidationFailed``."""
    if given is None:
        return Wishes()
    known = Wishes.__struct_fields__
    for name in given if isinstance(given, dict) else ():
        if name not in known:
            hint = _KEY_HINT if name == "idempotency_key" else hint_for(name, "", known)
            # the list of known names means names inside the field
            raise wrong(joined(FIELD, name), "is not a field", hint if hint.startswith("known: ") else words.text(hint))
    try:
        return converted(given, Wishes, "")
    except ValidationFailed as error:
        found = [each._replace(path=beneath(FIELD, each.path), hint=words.text(each.hint)) for each in error.problems]
    raise ValidationFailed.of(*found)


def check_placed(given: Mapping[str, Any]) -> None:
    """Refuse wishes beside the field ``routewright``: to ignore a budget would be to overspend it."""
    if given.get("idempotency_key") is not None:
        raise wrong("idempotency_key", "is not a field of this interface", _KEY_HINT)
    for name in _OURS:
        if given.get(name) is not None:
            hint = f'send it as {FIELD}.{name}: {{"{FIELD}": {{"{name}": ...}}}}'
            raise wrong(name, "is not a field of this interface", hint)


def places_of(model: str) -> dict[str, str]:
    """Fields of the route request that ``model`` stands for (``Words.places``)."""
    kind, colon, _ = model.partition(":")
    if kind == "policy" and colon:
        return {"policy_id": "model"}
    return {} if kind == AUTO else {"models[0]": "model"}


def wished(request: RouteRequest, model: str, vendor: str, wishes: Wishes, known: Container[str]) -> RouteRequest:
    """Add to a request what ``model`` and the wishes say about its routing.

    ``model`` is an id, ``auto``, ``auto:<goal>`` or ``policy:<id>``; a name without a vendor means this vendor's, if
    that is ``known``. Raises ``ValidationFailed`` where the two disagree.
    """
    if request.stream and wishes.fallback is not None and wishes.fallback.on_partial == "restart":
        hint = "leave it out, and a fault behind the first words ends the stream; POST /v1/route can begin again"
        raise wrong(f"{FIELD}.fallback.on_partial", "has no words in these streams", hint)
    given = {name: getattr(wishes, name) for name in Wishes.__struct_fields__}
    told = {name: each for name, each in given.items() if each is not None}
    kind, colon, rest = model.partition(":")
    if model == AUTO:
        return replace(request, **told)
    field: str
    value: Any
    if kind == AUTO and colon:
        goals = CHOICES["goal"]
        if rest not in goals:
            hint = did_you_mean(rest, goals) or f"take auto, or auto:{', auto:'.join(goals)}"
            raise wrong("model", f"asks for the goal {shown(rest)}", hint)
        field, value = "goal", rest
    elif kind == "policy" and colon:
        field, value = "policy_id", rest
    else:
        own = f"{vendor}/{model}"
        field, value = "models", [own if own in known else model]
        _check_alone(value[0], wishes)
    if told.get(field, value) != value:
        hint = f"say it in one of the two; with {FIELD}.{field} send 'auto'"
        raise wrong("model", f"is {shown(model)}, and {FIELD}.{field} says something else", hint)
    return replace(request, **told | {field: value})


def _check_alone(name: str, wishes: Wishes) -> None:
    """Refuse a chain beside one named model, which allows no other, and say how to have both."""
    chain = [] if wishes.fallback is None else wishes.fallback.models or []
    if any(each != name for each in chain):
        several = ", ".join(f'"{each}"' for each in dict.fromkeys([name, *chain][:MOST_SHOWN]))
        hint = f'send "model": "auto" with "{FIELD}": {{"models": [{several}]}}, and the best of them is asked first'
        problem = f"stands beside the one model {shown(name)}, which allows no other"
        raise wrong(f"{FIELD}.fallback.models", problem, hint)


def routing_headers(told: RouteResponse | StartedData) -> dict[str, str]:
    """Headers that say which model serves a request: of a stream as it begins, of an answer also what it took."""
    routing = told.routing
    headers = {"X-Routewright-Trace-Id": told.trace_id, "X-Routewright-Model": routing.selected_model}
    if isinstance(told, RouteResponse):
        headers |= {
            "X-Routewright-Cost-Usd": f"{told.routing.cost_usd:.9f}".rstrip("0").rstrip("."),
            "X-Routewright-Latency-Ms": f"{told.routing.latency_ms:.3f}",
            "X-Routewright-Policy-Version": routing.policy_version,
        }
    return headers
