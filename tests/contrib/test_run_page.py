"""The page of an agent's run: its models, steps and money, and its spans in the order of their tree."""

from __future__ import annotations

import re

from routewright.contrib.notebook import trace_html
from routewright.wire import DecisionSpan, ModelSpan, StepSpan, SubTraceSpan, Tokens, ToolSpan, Trace

MODEL = "openai/gpt-4.1"
RUN = Trace(
    id="tr_run", kind="agent", status="completed", created_at="2026-11-22T12:00:00.000Z", duration_ms=100.0,
    environment="production", account="default", cost_usd=0.004, tokens=Tokens(200, 40, 0), children=["tr_a", "tr_b"],
    spans=[
        StepSpan(id=1, name="llm_call", start_ms=0.0, number=1),
        SubTraceSpan(id=2, parent_id=1, name=MODEL, start_ms=0.0, trace_id="tr_a", model=MODEL),
        DecisionSpan(
            id=3, parent_id=2, name="decision", start_ms=0.0, candidates=[], rejected={"whitelist": 7}, digest="a4"
        ),
        ModelSpan(
            id=4, parent_id=2, name=MODEL, start_ms=1.0, model=MODEL, provider="openai", attempt=1, latency_ms=9.0
        ),
        StepSpan(id=5, name="tool_call", start_ms=10.0, number=2),
        ToolSpan(id=6, parent_id=5, name="research", start_ms=10.0, tool="research", input={}, output={}),
        SubTraceSpan(id=7, parent_id=5, name="research", start_ms=10.0, trace_id="tr_b"),
        StepSpan(id=8, parent_id=7, name="llm_call", start_ms=15.0, number=1),
        StepSpan(id=9, name="tool_call", start_ms=10.0, number=3),
        ToolSpan(id=10, parent_id=9, name="calculator", start_ms=10.0, tool="calculator", input={}, output={}),
    ],
)  # fmt: skip


def test_the_head_shows_models_steps_cost_and_tokens() -> None:
    page = " ".join(re.sub("<[^>]*>", " ", trace_html(RUN)).split())
    assert f"{MODEL} · 3 steps · 100 ms · $0.004 · 200 tokens in, 40 out" in page
    assert "no model" not in page
    assert "charged" not in page


def test_overlapping_tools_keep_their_children() -> None:
    rows = re.findall(r"rw-swatch rw-(\w+)", trace_html(RUN))
    assert rows == [span.type for span in RUN.spans]


def test_a_run_shows_no_decisions() -> None:
    assert "Rejected" not in trace_html(RUN)
