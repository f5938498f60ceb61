"""Options of a call that frameworks have no setting for.

Model objects take them as keywords, and for one call as ``routewright`` in the framework's own settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from routewright import Caller, Router, ValidationFailed
from routewright.catalogue import routing_of
from routewright.router import Options
from routewright.wire import Fallback
from routewright.wire.problems import hint_for, shown

JOINED = ("metadata", "params")
"""Options of which a call may set some entries, and the model object others."""


class CallOptions(Options, total=False):
    """Keywords of ``Router.route``; dicts are in wire spelling."""

    caller: Caller | None


def check_options(router: object, model: str, options: Mapping[str, object]) -> None:
    """Check the arguments of a model object. Raises ``ValidationFailed``."""
    if not isinstance(router, Router):
        raise ValidationFailed.at("router", f"is not a Router, got {shown(router)}", "pass Router(...)")
    for name in options.keys() - CallOptions.__optional_keys__:
        raise ValidationFailed.at(name, "is not an option", hint_for(name, "", sorted(CallOptions.__optional_keys__)))
    field, value = routing_of(model)
    if value is not None and options.get(field, value) != value:
        hint = f"set only one; with {field} the model is 'auto'"
        raise ValidationFailed.at("model", f"is {shown(model)}, but {field} differs", hint)


def merge_options(model: str, turns: int, *layers: Mapping[str, Any]) -> CallOptions:
    """Merge options, later ones override, over what the name ``model`` stands for (contract 14): a named model is the
    only candidate, followed by ``fallback.models``.

    A framework's run calls the model several times under the same settings, so every call gets a key of its own from
    ``idempotency_key`` and ``turns``, the number of messages: a repeated run gets the same answers. Raises
    ``ValidationFailed``."""
    field, value = routing_of(model)
    merged: dict[str, Any] = {} if value is None else {field: value}
    for layer in layers:
        if not isinstance(layer, Mapping):
            raise ValidationFailed.at("routewright", f"is {shown(layer)}", "pass a dict of options of Router.route")
        for name, option in layer.items():
            joins = name in JOINED and isinstance(option, Mapping) and isinstance(merged.get(name), Mapping)
            merged[name] = {**merged[name], **option} if joins else option
    if (key := merged.get("idempotency_key")) is not None:
        merged["idempotency_key"] = f"{key}.{turns}"
    fallback = merged.get("fallback")
    fallbacks = fallback.models if isinstance(fallback, Fallback) else (fallback or {}).get("models")
    if fallbacks and merged.get("models") == [model]:
        merged["models"] = [model, *[name for name in fallbacks if name != model]]
        merged.setdefault("prefer", model)
    return cast("CallOptions", merged)
