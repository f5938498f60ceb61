"""A store for the tests of commands: traces whose every figure is known, recorded at a known noon."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import anyio

from routewright.backends.clock import SystemClock
from routewright.cli import main
from routewright.cli.show import Block, render
from routewright.trace import TraceStore
from routewright.wire import (
    CacheSpan,
    Candidate,
    DecisionSpan,
    FallbackSpan,
    GuardrailSpan,
    ModelSpan,
    Span,
    Tokens,
    Trace,
)

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
BIG, SMALL = "openai/gpt-4.1", "openai/gpt-4o"


def at_noon(monkeypatch: Any) -> None:
    """Let it be noon, and no store be named by the environment."""
    monkeypatch.setattr(SystemClock, "time", lambda self: NOON.timestamp())
    for name in ("ROUTEWRIGHT_STORE", "ROUTEWRIGHT_SECRET", "NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def trace(trace_id: str, hours_ago: float = 1.0, **given: Any) -> Trace:
    """One that the small model served after 2 s for a fifth of a cent."""
    created_at = (NOON - timedelta(hours=hours_ago)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    usual: dict[str, Any] = {
        "status": "completed",
        "created_at": created_at,
        "duration_ms": 2000.0,
        "environment": "production",
        "account": "default",
        "policy_version": "inline@2026-11-20",
        "goal": "cost",
        "strategy": "balanced",
        "selected_model": SMALL,
        "cost_usd": 0.002,
        "charged_usd": 0.002,
        "tokens": Tokens(100, 20, 0),
        "spans": [model(1, SMALL)],
    }
    return Trace(id=trace_id, **{**usual, **given})


def model(span_id: int, name: str, **given: Any) -> ModelSpan:
    """An attempt that took the whole time and brought the answer."""
    usual: dict[str, Any] = {
        "start_ms": 0.0,
        "duration_ms": 2000.0,
        "latency_ms": 2000.0,
        "attempt": 1,
        "finish_reason": "stop",
    }
    return ModelSpan(id=span_id, name=name, model=name, provider=name.split("/")[0], **{**usual, **given})


def rescued() -> Trace:
    """One of every kind of span: the big model failed twice, the small one answered, and its answer was redacted."""
    candidates = [
        Candidate(BIG, 0.44, 0.31, 0.0032, 5.0, 0.9, (0.0, 0.0, 0.0, 0.0)),
        Candidate(SMALL, 0.28, 0.12, 0.004, 5.0, 0.9, (0.0, 0.0, 0.0, 0.0)),
    ]
    failed: dict[str, Any] = {"status": "error", "error": "server", "finish_reason": None}
    spans: list[Span] = [
        DecisionSpan(
            id=1, name="decision", start_ms=0, duration_ms=2.5, candidates=candidates, rejected={"whitelist": 158},
            digest="a4218108",
        ),
        CacheSpan(id=2, name="cache", start_ms=0, hit=False),
        model(3, BIG, start_ms=10, duration_ms=500, **failed),
        model(4, BIG, start_ms=500, duration_ms=500, attempt=2, **failed),
        FallbackSpan(
            id=5, name="fallback", start_ms=1000, used=True, from_model=BIG, to_model=SMALL, reason="upstream_5xx"
        ),
        model(
            6, SMALL, start_ms=1000, duration_ms=1000, attempt=3, tokens=Tokens(100, 20, 0), cost_usd=0.002,
            ttft_ms=250.0,
        ),
        GuardrailSpan(
            id=7, parent_id=6, name="pii", start_ms=2000, rule="email", stage="output", action="redact", count=2
        ),
    ]  # fmt: skip
    return trace("tr_rescued", 2.0, fallback_used=True, metadata={"team": "search", "n": 3}, spans=spans)


def few() -> list[Trace]:
    """The traces of most tests, newest first."""
    failed: dict[str, Any] = {
        "status": "failed",
        "error": "router.upstream_failed",
        "selected_model": None,
        "cost_usd": 0.0,
        "charged_usd": 0.0,
        "tokens": Tokens(),
        "spans": [],
    }
    return [
        trace("tr_newest", 1.0, metadata={"team": "chat"}),
        rescued(),
        trace("tr_sandbox", 3.0, environment="sandbox", charged_usd=0.0),
        trace("tr_failed", 26.0, **failed),
        trace("tr_oldest", 50.0),
        trace("tr_hers", 1.0, account="anna"),
    ]


def record(path: Path, traces: Sequence[Trace], **settings: Any) -> Path:
    """Make a store of traces."""
    anyio.run(partial(_record, path, traces, settings))
    return path


def listed(capsys: Any, *argv: str) -> list[str]:
    """The ids that ``routewright traces ls`` tells."""
    assert main(["traces", "ls", "--json", *argv]) == 0
    return [item["id"] for item in json.loads(capsys.readouterr().out)["data"]]


async def _record(path: Path, traces: Sequence[Trace], settings: dict[str, Any]) -> None:
    store = TraceStore(f"sqlite:///{path}", **settings)
    for each in traces:
        await store.record(each)
    await store.aclose()


def plain(blocks: Iterable[Block]) -> str:
    """Blocks of a page as text without colours."""
    return render(blocks, StringIO())
