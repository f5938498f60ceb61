"""Options of a call that frameworks have no setting for.

Model objects take them as keywords, and for one call as ``routewright`` in the framework's own settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from routewright import Caller, ValidationFailed
from routewright.catalogue import routing_of
from routewright.router import Options
from routewright.wire import Fallback
from routewright.wire.problems import shown

JOINED = ("metadata", "params")
"""Options of which a call may set some entries, and the model object others."""


class CallOptions(Options, total=False):
    """Keywords of ``Router.route``; dicts are in wire spelling."""

    caller: Caller | None


def merge_options(model: str, turns: int, *layers: Mapping[str, Any]) -> CallOptions:
    """Merge options, later ones override, and add what the name ``model`` stands for (contract 14): a named model is
    the only candidate, followed by ``fallback.models``.

    A framework's run calls the model several times under the same settings, so every call gets a key of its own from
    ``idempotency_key`` and ``turns``, the number of messages: a repeated run gets the same answers. Raises
    ``ValidationFailed`` if an option contradicts the model."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            joins = name in JOINED and isinstance(value, Mapping) and merged.get(name)
            merged[name] = {**merged[name], **value} if joins else value
    if (key := merged.get("idempotency_key")) is not None:
        merged["idempotency_key"] = f"{key}.{turns}"
    field, value = routing_of(model)
    if value is not None:
        if merged.get(field) not in (None, value):
            hint = f"set only one; with {field} the model is 'auto'"
            raise ValidationFailed.at("model", f"is {shown(model)}, but {field} differs", hint)
        merged[field] = value
    fallback = merged.get("fallback")
    fallbacks = fallback.models if isinstance(fallback, Fallback) else (fallback or {}).get("models")
    if field == "models" and fallbacks:
        merged["models"] = [model, *[name for name in fallbacks if name != model]]
        merged.setdefault("prefer", model)
    return cast("CallOptions", merged)
