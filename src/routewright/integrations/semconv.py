"""OpenTelemetry names of the parts of a call.

The names of generative AI are those of version 1.44 of the semantic conventions, the last one before they moved to a
separate repository. They still change; a rename is a cell here."""

from __future__ import annotations

from typing import NamedTuple


class Name(NamedTuple):
    """An attribute."""

    on: str
    """The spans, events and metrics that have the attribute."""
    name: str
    help: str


class Histogram(NamedTuple):
    """A metric."""

    name: str
    unit: str
    bounds: tuple[float, ...]
    help: str


def _own(on: str, word: str, help: str) -> Name:
    return Name(on, f"routewright.{word}", help)


def _ai(on: str, word: str, help: str) -> Name:
    return Name(on, f"gen_ai.{word}", help)


CALL = "routewright.route"
DECISION = "routewright.decide"
CACHE = "routewright.cache"
FALLBACK = "routewright.fallback"
GUARDRAIL = "routewright.guardrail"
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
    "error": Name("call, model, metrics", "error.type", "the error's code; of an attempt the fault's kind"),
    "operation": _ai("model, metrics", "operation.name", "`chat`"),
    "provider": _ai("model, metrics", "provider.name", "the provider"),
    "request_model": _ai("model, metrics", "request.model", "the model as its provider has it"),
    "response_model": _ai("model, metrics", "response.model", "the model of the answer"),
    "input": _ai("model", "usage.input_tokens", "cached ones too"),
    "output": _ai("model", "usage.output_tokens", "thought too"),
    "cached": _ai("model", "usage.cache_read.input_tokens", "of the input, those from a vendor's cache"),
    "finish": _ai("model", "response.finish_reasons", ""),
    "first": _ai("model", "response.time_to_first_chunk", "seconds until the answer began"),
    "token_type": _ai("metrics", "token.type", "`input` or `output`"),
    "prompt": _ai("model", "input.messages", "only with `content=True`, as JSON"),
    "answer": _ai("model", "output.messages", "only with `content=True`, as JSON"),
}
"""By internal short names."""

_TOKENS = tuple(float(4**power) for power in range(14))
_SECONDS = tuple(0.01 * 2**power for power in range(14))

HISTOGRAMS: dict[str, Histogram] = {
    "tokens": Histogram("gen_ai.client.token.usage", "{token}", _TOKENS, "tokens of an attempt, by type"),
    "duration": Histogram("gen_ai.client.operation.duration", "s", _SECONDS, "of an attempt"),
    "first": Histogram("gen_ai.client.operation.time_to_first_chunk", "s", _SECONDS, "until the answer began"),
}

PROVIDERS = {"azure": "azure.ai.openai", "google": "gcp.gemini", "mistral": "mistral_ai", "xai": "x_ai"}
"""Providers with another name in the conventions."""
