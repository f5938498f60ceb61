"""Options of a call that frameworks have no setting for.

Model objects take them as keywords, and for one call as ``routewright`` in the framework's own settings."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal, cast

import msgspec

from routewright import Answer, Caller, Router, RouterError, ValidationFailed, wire
from routewright.catalogue import routing_of
from routewright.router import Options
from routewright.wire.problems import hint_for, shown

JOINED = ("metadata", "params")
"""Options of which a call may set some entries, and the model object others."""
EFFORTS: dict[object, str] = {True: "medium", False: "none", "xhigh": "max"}
"""Levels of reasoning that have another name here."""
Detail = Literal["auto", "low", "high"] | None
AUDIO: dict[str, Literal["wav", "mp3"]] = {"audio/wav": "wav", "audio/x-wav": "wav"}
AUDIO |= {"audio/mpeg": "mp3", "audio/mp3": "mp3"}
UNRELATED = {"whitelist", "disabled", "deprecated", "provider_unavailable"}
"""Why models are left out whatever the prompt is."""
OVERFLOW = {"context", "context_overflow"}
"""Reasons of rejections, and errors of attempts."""


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


def merge_options(model: str, messages: Sequence[object], *layers: Mapping[str, Any]) -> CallOptions:
    """Merge options, later ones override, over what the name ``model`` stands for (contract 14): a named model is the
    only candidate, followed by ``fallback.models``.

    A framework's run calls the model many times under the same settings, also for several agents at once, so
    ``idempotency_key`` becomes a digest of itself, ``messages`` and the options: only a call that repeats all of them
    gets the same answer. Raises ``ValidationFailed``."""
    field, value = routing_of(model)
    merged: dict[str, Any] = {} if value is None else {field: value}
    for layer in layers:
        if not isinstance(layer, Mapping):
            raise ValidationFailed.at("routewright", f"is {shown(layer)}", "pass a dict of options of Router.route")
        for name, option in layer.items():
            joins = name in JOINED and isinstance(option, Mapping) and isinstance(merged.get(name), Mapping)
            merged[name] = {**merged[name], **option} if joins else option
    fallback = merged.get("fallback")
    fallbacks = fallback.models if isinstance(fallback, wire.Fallback) else (fallback or {}).get("models")
    if fallbacks and merged.get("models") == [model]:
        merged["models"] = [model, *[name for name in fallbacks if name != model]]
        merged.setdefault("prefer", model)
    key = merged.get("idempotency_key")
    if isinstance(key, str) and key:  # the Router refuses others
        # repr, since JSON cannot hold every text that a Router refuses by its place
        content = repr(msgspec.to_builtins([messages, merged], order="sorted", enc_hook=repr))
        merged["idempotency_key"] = blake2b(content.encode(), digest_size=32).hexdigest()
    return cast("CallOptions", merged)


def part_of(
    kind: str | None, data: bytes | str | None, url: str | None = None, name: str | None = None, detail: Detail = None
) -> wire.Part:
    """The part that sends a file of a MIME type: its ``data``, as bytes or base64, or a ``url``. Raises
    ``ValidationFailed`` for a type that cannot be sent, or not by its URL."""
    kind = (kind or "unknown").partition(";")[0].strip().lower()
    if url is None:
        if kind.startswith("text/"):
            content = b64decode(data) if isinstance(data, str) else data or b""
            return wire.TextPart(content.decode("utf-8", "replace"))
        text = data if isinstance(data, str) else b64encode(data or b"").decode()
        if kind in AUDIO:
            return wire.AudioPart(wire.InputAudio(text, AUDIO[kind]))
        url = f"data:{kind};base64,{text}"
    if kind.startswith("image/"):
        return wire.ImagePart(wire.ImageUrl(url, detail))
    if kind == "application/pdf":
        return wire.FilePart(wire.FileData(url, name))
    hint = "send images and PDFs, or the bytes of WAV, MP3 and text files"
    raise ValidationFailed.at("messages", f"a file of type {shown(kind)} cannot be sent", hint)


def facts_of(answer: Answer) -> wire.JsonObject:
    """What frameworks keep beside an answer. The cost is that of all attempts; of a replayed answer, of the original
    call."""
    response = answer.response
    routing = response.routing
    return {
        "trace_id": response.trace_id,
        "selected_model": routing.selected_model,
        "fallback_model": response.fallback_model,
        "finish_reason": response.finish_reason,
        "cost_usd": routing.cost_usd,
        "latency_ms": routing.latency_ms,
        "cache_hit": routing.cache_hit,
        "replayed": answer.replayed,
        "policy_version": routing.policy_version,
    }


def arguments_of(call: wire.ToolCall) -> wire.JsonObject | str:
    """The arguments of a call, or why they are no JSON object."""
    try:
        return msgspec.json.decode(call.function.arguments or "{}", type=wire.JsonObject)
    except (msgspec.DecodeError, RecursionError) as error:
        return str(error)


def is_overflow(error: RouterError) -> bool:
    """True if the length of the input alone is why no model could answer."""
    reasons = {row["reason"] for row in error.detail.get("rejected_candidates", ())} - UNRELATED
    reasons |= {attempt.get("error") for attempt in error.detail.get("attempts", ())}
    return bool(reasons) and reasons <= OVERFLOW
