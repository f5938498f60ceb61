"""OpenTelemetry names of the parts of a call: one table with a column per version of the semantic conventions.

The names for generative AI still change; a rename is a cell here. Many tools read version ``1.36``; ``1.44`` is the
last one with these names, before they moved to a separate repository."""

from __future__ import annotations

from typing import Literal, NamedTuple

Version = Literal["1.36", "1.44"]
Place = Literal["call", "decision", "cache", "model", "fallback", "guardrail", "metrics"]


class Name(NamedTuple):
    """An attribute's name in each version; None: that version has none."""

    on: str
    """The spans, events and metrics that have it."""
    v1_36: str | None
    v1_44: str | None
    what: str


class Histogram(NamedTuple):
    """A metric's name in each version."""

    v1_36: str | None
    v1_44: str | None
    unit: str
    bounds: tuple[float, ...]
    what: str


def _own(on: str, word: str, what: str) -> Name:
    name = f"routewright.{word}"
    return Name(on, name, name, what)


def _ai(on: str, word: str, what: str, *, old: str | None = "") -> Name:
    name = f"gen_ai.{word}"
    return Name(on, name if old == "" else old, name, what)


CALL, DECISION, CACHE, FALLBACK, GUARDRAIL = (
    f"routewright.{word}" for word in ("route", "decide", "cache", "fallback", "guardrail")
)
"""Names of spans and events outside of the conventions; the span of an attempt is ``chat <model>``."""

OPERATION = "chat"

ATTRIBUTES: dict[str, Name] = {
    "trace": _own("call", "trace_id", "id of the Router's own trace"),
    "status": _own("call, model", "status", "how it ended: the call by the trace's words, an attempt by its span's"),
    "environment": _own("call", "environment", "`production` or `sandbox`"),
    "goal": _own("call", "goal", ""),
    "strategy": _own("call", "strategy", ""),
    "policy": _own("call", "policy_version", ""),
    "fallback": _own("call", "fallback_used", "another model than the chosen one served the request"),
    "cost": _own("call, model", "cost_usd", "paid upstream, in dollars"),
    "account": _own("call", "account", "only with `account=True`"),
    "key": _own("call", "key_id", "only with `account=True`"),
    "token_count": _own("decision", "token_count", "`bounds`, `estimated` or `exact`"),
    "rejected": _own("decision", "rejected", "models that do not fit"),
    "digest": _own("decision", "digest", "equal digests are equal decisions"),
    "hit": _own("cache", "cache_hit", ""),
    "model": _own("call, model", "model", "the model's whole id; of a call the one that served it"),
    "attempt": _own("model", "attempt", "1, 2 ... over all models of the call"),
    "hedge": _own("model", "hedge", "it ran beside an attempt that showed no life"),
    "from": _own("fallback", "from_model", ""),
    "to": _own("fallback", "to_model", ""),
    "reason": _own("fallback", "reason", "`upstream_5xx`, `timeout`, `budget` or `safety`"),
    "guardrail": _own("guardrail", "guardrail", "its name"),
    "rule": _own("guardrail", "rule", "which of its rules found something"),
    "stage": _own("guardrail", "stage", "`input` or `output`"),
    "action": _own("guardrail", "action", "`redact` or `block`"),
    "error": Name(
        "call, model, metrics", "error.type", "error.type", "the error's code; of an attempt the fault's kind"
    ),
    "operation": _ai("model, metrics", "operation.name", "`chat`"),
    "provider": _ai("model, metrics", "provider.name", "who was asked", old="gen_ai.system"),
    "request_model": _ai("model, metrics", "request.model", "the model as its provider has it"),
    "response_model": _ai("model, metrics", "response.model", "of an answer: the model that was asked for it"),
    "input": _ai("model", "usage.input_tokens", "cached ones too"),
    "output": _ai("model", "usage.output_tokens", "thought too"),
    "cached": _ai("model", "usage.cache_read.input_tokens", "of the input, those from a vendor's cache", old=None),
    "finish": _ai("model", "response.finish_reasons", ""),
    "first": _ai("model", "response.time_to_first_chunk", "seconds until the first of an answer came", old=None),
    "token_type": _ai("metrics", "token.type", "`input` or `output`"),
    "prompt": _ai("model", "input.messages", "only with `content=True`, as JSON", old=None),
    "answer": _ai("model", "output.messages", "only with `content=True`, as JSON", old=None),
}
"""By internal short names."""

_TOKENS = tuple(float(4**power) for power in range(14))
_SECONDS = tuple(0.01 * 2**power for power in range(14))

HISTOGRAMS: dict[str, Histogram] = {
    "tokens": Histogram(
        "gen_ai.client.token.usage", "gen_ai.client.token.usage", "{token}", _TOKENS, "tokens of an attempt, by type"
    ),
    "duration": Histogram(
        "gen_ai.client.operation.duration", "gen_ai.client.operation.duration", "s", _SECONDS, "of an attempt"
    ),
    "first": Histogram(
        None, "gen_ai.client.operation.time_to_first_chunk", "s", _SECONDS, "until the first of an answer came"
    ),
}

PROVIDERS: dict[str, dict[str, str]] = {
    "1.36": {"azure": "azure.ai.openai", "google": "gcp.gemini", "mistral": "mistral_ai"},
    "1.44": {"azure": "azure.ai.openai", "google": "gcp.gemini", "mistral": "mistral_ai", "xai": "x_ai"},
}
"""Providers with another name in the conventions."""


def names_of(table: dict[str, Name] | dict[str, Histogram], version: str) -> dict[str, str]:
    """The names in a version, by internal short name; without those that it lacks."""
    column = f"v{version.replace('.', '_')}"
    named = {word: getattr(row, column) for word, row in table.items()}
    return {word: name for word, name in named.items() if name is not None}
