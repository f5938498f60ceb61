"""Figures for Prometheus: of requests as they end, of calls as their traces are kept, of the Router as it stands.

With ``PROMETHEUS_MULTIPROC_DIR`` in the environment when a process starts, its figures are in files there, and
whichever process is asked tells those of all.
"""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, get_args

from routewright.protocols import Clock
from routewright.router import Router
from routewright.wire import Environment, FallbackSpan, FaultKind, GuardrailSpan, ModelSpan, Trace

from .exchange import Exchange
from .figures import FIGURES, Figure
from .refusal import Refused

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
    from prometheus_client.exposition import CONTENT_TYPE_LATEST
    from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
except ModuleNotFoundError as exc:
    raise ModuleNotFoundError(
        f"{__name__} needs the extra 'metrics' ({exc.name} is missing): pip install 'routewright[metrics]'",
        name=exc.name,
    ) from exc

SHARED_BY = "PROMETHEUS_MULTIPROC_DIR"
"""The package's own variable."""
CONTENT_TYPE = CONTENT_TYPE_LATEST
FRESH_S = 5.0
"""How old the state of another process may be."""
MOST_MODELS = 1_000
"""Models that are told apart; those beyond are one."""
NONE, OTHER = "none", "other"

_OUTCOMES = frozenset((*FaultKind, "ok", "cancelled"))
_LIVE = re.compile(r"gauge_live[a-z]*_(\d+)\.db")


class Metrics:
    """Keeps the figures of one Router, and of the application that it is an observer of.

        metrics = Metrics(router)
        app = create_app(router, observers=[metrics])
        admin = create_admin(router, metrics=metrics)

    Where processes share their figures, make one a process.
    """

    def __init__(self, router: Router) -> None:
        self._registry = CollectorRegistry()
        self._shared = os.environ.get(SHARED_BY)
        self._made: dict[str, Any] = {word: self._make(figure) for word, figure in FIGURES.items()}
        for environment in get_args(Environment):  # opens the file of histograms now, while its folder is there
            self._made["call_seconds"].labels(environment)
        self._requests: dict[tuple[str, str, int], _Requests] = {}
        self._models: set[str] = set()
        self._told: dict[str, int] = {}
        self._followed: dict[str, Callable[[], int]] = {}
        self._router = router
        self._subscription = router.on_trace(self.tell)
        if self._shared is not None:
            router.run_in_background(_stay_fresh, weakref.ref(self), router.clock)

    def __call__(self, exchange: Exchange) -> None:
        """Count a request that has ended."""
        key = exchange.endpoint or NONE, exchange.known_method, exchange.final_status
        requests = self._requests.get(key) or self._requests_of(*key)
        requests.ended.inc()
        requests.seconds.observe(exchange.duration_s)

    def refused(self, refused: Refused) -> None:
        """Count a client that was refused before there was a request."""
        refusal = refused.refusal
        self._made["refusals"].labels(refusal.name.lower(), str(refusal.kind.status)).inc()

    def tell(self, trace: Trace) -> None:
        """Count a call that is over."""
        made, environment = self._made, trace.environment
        served = NONE if trace.selected_model is None else self._model(trace.selected_model)
        made["calls"].labels(served, trace.status, environment).inc()
        made["call_seconds"].labels(environment).observe(trace.duration_ms / 1000)
        for span in trace.spans:
            match span:
                case ModelSpan():
                    self._count(span, environment)
                case FallbackSpan():
                    made["fallbacks"].labels(span.reason, environment).inc()
                case GuardrailSpan():
                    made["guardrails"].labels(span.stage, span.action).inc(span.count)

    def follow(self, word: str, count: Callable[[], int]) -> None:
        """Tell, as the figure of this word, what another part of the process counts."""
        self._followed[word] = count

    def render(self) -> bytes:
        """All figures as Prometheus reads them, with ``CONTENT_TYPE``. Reads files where processes share them."""
        self.refresh()
        if self._shared is None or not Path(self._shared).is_dir():  # it was removed: what this process counted is here
            return generate_latest(self._registry)
        _forget_the_dead(self._shared)
        registry = CollectorRegistry()
        MultiProcessCollector(registry, self._shared)  # type: ignore[no-untyped-call]
        return generate_latest(registry)

    def refresh(self) -> None:
        """Take over how the Router stands."""
        router = self._router
        traces, hooks, limits = router.trace_counts, router.hook_counts, router.limit_counts
        self._made["circuits_open"].set(router.open_circuits)
        self._made["traces_waiting"].set(traces.waiting)
        self._made["hooks_waiting"].set(hooks.waiting)
        self._made["limits_degraded"].set(int(limits.degraded))
        self._raise_to("traces_refused", traces.refused)
        self._raise_to("traces_lost", traces.lost)
        self._raise_to("traces_unbilled", traces.unbilled)
        self._raise_to("limits_alone", limits.alone)
        self._raise_to("hooks_failed", hooks.failed)
        self._raise_to("hooks_lost", hooks.lost)
        for word, count in self._followed.items():
            self._raise_to(word, count())

    def close(self) -> None:
        """Hear of no more calls."""
        self._subscription()

    def _raise_to(self, word: str, count: int) -> None:
        """Add what came since; a Router counts from zero after a fork."""
        before = self._told.get(word, 0)
        self._made[word].inc(count - before if count >= before else count)
        self._told[word] = count

    def _count(self, span: ModelSpan, environment: str) -> None:
        made, model = self._made, self._model(span.model)
        outcome = span.error or span.status
        made["attempts"].labels(model, outcome if outcome in _OUTCOMES else OTHER, environment).inc()
        made["cost"].labels(model, environment).inc(span.cost_usd)
        if span.ttft_ms is not None:
            made["first_token"].labels(model).observe(span.ttft_ms / 1000)
        if span.tokens is not None:
            for kind in ("input", "output", "cached"):
                made["tokens"].labels(model, environment, kind).inc(getattr(span.tokens, kind))

    def _model(self, model: str) -> str:
        """The model as a label: their number stays bounded, whatever a catalogue brings in time."""
        if model in self._models:
            return model
        if len(self._models) >= MOST_MODELS:
            return OTHER
        self._models.add(model)
        return model

    def _requests_of(self, endpoint: str, method: str, status: int) -> _Requests:
        ended = self._made["requests"].labels(endpoint, method, str(status))
        found = _Requests(ended, self._made["request_seconds"].labels(endpoint))
        self._requests[endpoint, method, status] = found
        return found

    def _make(self, figure: Figure) -> Any:
        told: dict[str, Any] = {"labelnames": figure.labels, "registry": self._registry}
        match figure.kind:
            case "counter":
                return Counter(figure.name, figure.what, **told)
            case "gauge":
                return Gauge(figure.name, figure.what, multiprocess_mode="livesum", **told)
            case "histogram":
                return Histogram(figure.name, figure.what, buckets=figure.bounds, **told)


class _Requests(NamedTuple):
    """The figures of requests that are alike."""

    ended: Counter
    seconds: Histogram


async def _stay_fresh(of: weakref.ref[Metrics], clock: Clock) -> None:
    """Let other processes know how this one stands, as long as anybody wants to."""
    while (metrics := of()) is not None:
        metrics.refresh()
        del metrics
        await clock.sleep(FRESH_S)


def _forget_the_dead(folder: str) -> None:
    """Take the state of processes out that are no more. What they counted stays."""
    for file in Path(folder).glob("gauge_live*_*.db"):
        found = _LIVE.fullmatch(file.name)
        if found is not None and not _lives(int(found[1])):
            mark_process_dead(int(found[1]), folder)  # type: ignore[no-untyped-call]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True
