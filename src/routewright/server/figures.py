"""Which figures does the server keep? Their names, labels and meanings, as a table."""

from __future__ import annotations

from typing import Literal, NamedTuple

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Figure(NamedTuple):
    """One metric. No label holds what a caller makes up: accounts, keys and metadata are none."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    what: str
    bounds: tuple[float, ...] = ()


def _counter(name: str, labels: str, what: str) -> Figure:
    return Figure(f"routewright_{name}_total", "counter", tuple(labels.split()), what)


def _gauge(name: str, what: str) -> Figure:
    return Figure(f"routewright_{name}", "gauge", (), what)


def _seconds(name: str, labels: str, what: str) -> Figure:
    return Figure(f"routewright_{name}_seconds", "histogram", tuple(labels.split()), what, _SECONDS)


FIGURES: dict[str, Figure] = {
    "requests": _counter(
        "http_requests",
        "endpoint method status",
        "HTTP requests that have ended; status 499: the client left; endpoint none: there is nothing there",
    ),
    "request_seconds": _seconds("http_request_duration", "endpoint", "From a request's first byte to its end"),
    "refusals": _counter(
        "http_refusals",
        "reason status",
        "Clients that `routewright serve` refused before there was a request: malformed, late, busy ...",
    ),
    "calls": _counter("calls", "model status environment", "Calls by the model that served them, or none"),
    "call_seconds": _seconds("call_duration", "environment", "The whole call at the router"),
    "attempts": _counter(
        "attempts", "model outcome environment", "Attempts at a model: ok, cancelled, or the kind of fault"
    ),
    "first_token": _seconds(
        "time_to_first_token", "model", "Until the first of an answer came; of a plain call all of it"
    ),
    "tokens": _counter(
        "tokens", "model environment kind", "Tokens of all attempts: input, output, and cached, which are input, too"
    ),
    "cost": _counter("cost_usd", "model environment", "Dollars paid upstream, of all attempts"),
    "fallbacks": _counter("fallbacks", "reason environment", "Moves to the next model of the chain"),
    "guardrails": _counter("guardrail_hits", "stage action", "What guardrails found in requests and answers"),
    "circuits_open": _gauge("circuits_open", "Models that are not called for a while, for their faults"),
    "traces_waiting": _gauge("traces_waiting", "Traces that are not in the storage yet"),
    "traces_refused": _counter("traces_refused", "", "Traces that the storage refused"),
    "traces_lost": _counter("traces_lost", "", "Traces that were lost"),
    "traces_unbilled": _counter("traces_unbilled", "", "Traces that were lost to the ledger, too"),
    "limits_degraded": _gauge("limits_degraded", "1: what processes share for their rate limits is away"),
    "limits_alone": _counter("limits_alone", "", "Times that a process went on without what is shared"),
    "hooks_waiting": _gauge("hooks_waiting", "Calls that hooks are still to hear of"),
    "hooks_failed": _counter("hooks_failed", "", "Times that a hook raised"),
    "hooks_lost": _counter("hooks_lost", "", "Calls that hooks do not hear of; these figures miss them as well"),
    "log_lines_lost": _counter(
        "log_lines_lost", "", "Lines of the logs of `routewright serve` that nobody read in time, or that had no room"
    ),
}
"""By our own short words."""
