"""Metrics for Prometheus, of HTTP requests, calls and the Router's state.

With ``PROMETHEUS_MULTIPROC_DIR`` in the environment at the start, the metrics are in files there, and each process
renders those of all."""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from routewright.errors import require_extra
from routewright.protocols import Clock
from routewright.router import Router
from routewright.wire import CacheSpan, Environment, FallbackSpan, FaultKind, GuardrailSpan, ModelSpan, Trace

from .errors import RefusedClient
from .exchange import Exchange

with require_extra("metrics", __name__):
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
    from prometheus_client.exposition import CONTENT_TYPE_LATEST
    from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

SHARED_BY = "PROMETHEUS_MULTIPROC_DIR"
"""Variable of ``prometheus_client``."""
CONTENT_TYPE = CONTENT_TYPE_LATEST
FRESH_S = 5.0
"""Maximum age of the gauges of another process."""
MOST_MODELS = 1_000
"""Models with their own label; all others share one."""
NONE, OTHER = "none", "other"

_OUTCOMES = frozenset((*FaultKind, "ok", "cancelled"))
_LIVE = re.compile(r"gauge_live[a-z]*_(\d+)\.db")
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Bounds of the histograms."""


class Figure(NamedTuple):
    """One metric. Labels have no text of a caller's choice: no accounts, keys or metadata."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str


def _counter(name: str, labels: str, text: str) -> Figure:
    return Figure(f"routewright_{name}_total", "counter", tuple(labels.split()), text)


def _gauge(name: str, labels: str, text: str) -> Figure:
    return Figure(f"routewright_{name}", "gauge", tuple(labels.split()), text)


def _seconds(name: str, labels: str, text: str) -> Figure:
    return Figure(f"routewright_{name}_seconds", "histogram", tuple(labels.split()), text)


FIGURES: dict[str, Figure] = {
    "requests": _counter(
        "http_requests",
        "endpoint method status",
        "HTTP requests that have ended; status 499: the client left; endpoint none: there is nothing there",
    ),
    "request_seconds": _seconds("http_request_duration", "endpoint", "From a request's first byte to its end"),
    "clients": _counter(
        "http_refusals",
        "reason status",
        "Clients that `routewright serve` refused before there was a request: malformed, late, busy ...",
    ),
    "calls": _counter("calls", "model status environment", "Calls by the model that served them, or none"),
    "call_seconds": _seconds("call_duration", "environment", "The whole call at the router"),
    "attempts": _counter("attempts", "model outcome environment", "Attempts: ok, cancelled, or the kind of fault"),
    "first_token": _seconds("time_to_first_token", "model", "Time to an attempt's first token, or to a plain answer"),
    "tokens": _counter("tokens", "model environment kind", "Tokens of all attempts; cached ones are input, too"),
    "cost": _counter("cost_usd", "model environment", "Dollars paid upstream, of all attempts"),
    "fallbacks": _counter("fallbacks", "reason environment", "Moves to the next model of the chain"),
    "guardrails": _counter("guardrail_hits", "stage action", "What guardrails found in requests and answers"),
    "cache": _counter(
        "cache_lookups",
        "outcome environment",
        "Look-ups in the response cache: hit, miss, or explored, which is a hit that was answered live to check it",
    ),
    "refusals": _counter(
        "refusals",
        "code",
        "Requests and calls that were refused, by the code of their error, 402 and 429 included; not calls whose "
        "attempts failed, and in process no invalid requests",
    ),
    "rescued": _counter("rescued", "from kind", "Calls that another model answered, by failed provider and fault"),
    "circuit_open": _gauge("circuit_open", "model", "1 while a model is not called, for its faults or a refused key"),
    "key_refused": _gauge("key_refused", "provider", "Keys that the provider's vendor refused when last used"),
    "deliveries": _counter("webhook_deliveries", "state", "Attempts to deliver a webhook, by its state after them"),
    "traces_waiting": _gauge("traces_waiting", "", "Traces that are not in the storage yet"),
    "traces_refused": _counter("traces_refused", "", "Traces that the storage refused"),
    "traces_lost": _counter("traces_lost", "", "Traces that were lost"),
    "traces_unbilled": _counter("traces_unbilled", "", "Traces that were lost to the ledger, too"),
    "hooks_waiting": _gauge("hooks_waiting", "", "Calls whose hooks are still to be called"),
    "hooks_failed": _counter("hooks_failed", "", "Times that a hook raised"),
    "hooks_lost": _counter("hooks_lost", "", "Calls whose hooks are never called; these figures miss them as well"),
}
"""By a short name."""


class Metrics:
    """Metrics of one Router, and of the application that it observes.

        metrics = Metrics(router)
        app = create_app(router, observers=[metrics])
        admin = create_admin(router, metrics=metrics)

    Create one in each process."""

    def __init__(self, router: Router) -> None:
        self._registry = CollectorRegistry()
        self._shared = os.environ.get(SHARED_BY)
        self._metrics: dict[str, Any] = {}
        make: dict[str, Callable[..., object]] = {
            "counter": Counter,
            "gauge": partial(Gauge, multiprocess_mode="livesum"),
            "histogram": partial(Histogram, buckets=_SECONDS),
        }
        for word, figure in FIGURES.items():
            one = {"multiprocess_mode": "livemax"} if figure.kind == "gauge" and figure.labels else {}
            metric = make[figure.kind](figure.name, figure.help, figure.labels, registry=self._registry, **one)
            self._metrics[word] = metric
        for environment in get_args(Environment):  # opens the file of histograms while its folder exists
            self._metrics["call_seconds"].labels(environment)
        self._requests: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._models: set[str] = set()
        self._counts: dict[tuple[str, ...], int] = {}
        """By name and labels."""
        self._router = router
        self._subscription = router.on_trace(self.tell)
        if self._shared is not None:
            router.run_in_background(_stay_fresh, weakref.ref(self), router.clock)

    def __call__(self, exchange: Exchange) -> None:
        """Count an ended request."""
        endpoint = exchange.endpoint or NONE
        key = (endpoint, exchange.method_label, exchange.final_status)
        if (series := self._requests.get(key)) is None:
            requests = self._metrics["requests"].labels(*key)
            series = self._requests[key] = (requests, self._metrics["request_seconds"].labels(endpoint))
        requests, seconds = series
        requests.inc()
        seconds.observe(exchange.duration_s)

    def on_refusal(self, client: RefusedClient) -> None:
        """Count a client that was refused before it sent a valid request."""
        refusal = client.refusal
        self._metrics["clients"].labels(refusal.name.lower(), str(refusal.kind.status)).inc()

    def tell(self, trace: Trace) -> None:
        """Count an ended call."""
        metrics, environment = self._metrics, trace.environment
        served = NONE if trace.selected_model is None else self._model(trace.selected_model)
        metrics["calls"].labels(served, trace.status, environment).inc()
        metrics["call_seconds"].labels(environment).observe(trace.duration_ms / 1000)
        for span in trace.spans:
            match span:
                case ModelSpan(error=error, tokens=tokens):
                    model = self._model(span.model)
                    outcome = error or span.status
                    metrics["attempts"].labels(model, outcome if outcome in _OUTCOMES else OTHER, environment).inc()
                    metrics["cost"].labels(model, environment).inc(span.cost_usd)
                    if span.ttft_ms is not None:
                        metrics["first_token"].labels(model).observe(span.ttft_ms / 1000)
                    for kind in () if tokens is None else ("input", "output", "cached"):
                        metrics["tokens"].labels(model, environment, kind).inc(getattr(tokens, kind))
                case FallbackSpan():
                    metrics["fallbacks"].labels(span.reason, environment).inc()
                case CacheSpan():
                    outcome = "hit" if span.hit else "explored" if span.explored else "miss"
                    metrics["cache"].labels(outcome, environment).inc()
                case GuardrailSpan():
                    metrics["guardrails"].labels(span.stage, span.action).inc(span.count)

    def _model(self, model: str) -> str:
        """The label of a model. Their number is bounded."""
        if model not in self._models:
            if len(self._models) >= MOST_MODELS:
                return OTHER
            self._models.add(model)
        return model

    def render(self) -> bytes:
        """All metrics in the format of ``CONTENT_TYPE``. Reads the files of all processes."""
        self.refresh()
        if self._shared is None or not Path(self._shared).is_dir():  # removed: only this process's metrics are left
            return generate_latest(self._registry)
        for file in Path(self._shared).glob("gauge_live*_*.db"):  # gauges of ended processes; their counters stay
            if (match := _LIVE.fullmatch(file.name)) is None:
                continue
            try:
                os.kill(int(match[1]), 0)
            except ProcessLookupError:
                mark_process_dead(int(match[1]), self._shared)  # type: ignore[no-untyped-call]
            except PermissionError:  # another user's
                pass
        registry = CollectorRegistry()
        MultiProcessCollector(registry, self._shared)  # type: ignore[no-untyped-call]
        return generate_latest(registry)

    def refresh(self) -> None:
        """Update the gauges and counters of the Router's state."""
        status = self._router.status()
        counts: dict[tuple[str, ...], int] = {}
        counts |= {(f"traces_{name}",): status.traces[name] for name in ("waiting", "refused", "lost", "unbilled")}
        counts |= {(f"hooks_{name}",): count for name, count in status.hooks.items()}
        counts |= {("refusals", code): count for code, count in status.refusals.items()}
        counts |= {("deliveries", state): count for state, count in status.deliveries.items()}
        counts |= {labels: 0 for labels in self._counts if labels[0] in ("circuit_open", "key_refused")}
        for provider in status.providers:
            counts["key_refused", provider.name] = provider.keys_refused
        for failed, kinds in status.rescued.items():
            counts |= {("rescued", failed, kind): count for kind, count in kinds.items()}
        counts |= {("circuit_open", self._model(circuit.model)): 1 for circuit in status.circuits}
        for labels, count in counts.items():
            word, *values = labels
            metric = self._metrics[word].labels(*values) if values else self._metrics[word]
            previous = self._counts.get(labels, 0)
            if FIGURES[word].kind == "gauge":
                metric.set(count)
            else:  # a Router counts anew after a fork
                metric.inc(count - previous if count >= previous else count)
        self._counts = counts

    def close(self) -> None:
        """Stop counting calls."""
        self._subscription()


async def _stay_fresh(reference: weakref.ref[Metrics], clock: Clock) -> None:
    """Update the gauges for other processes while the metrics are in use."""
    while (metrics := reference()) is not None:
        metrics.refresh()
        del metrics
        await clock.sleep(FRESH_S)
