"""Examples of requests and answers for the document, as structs, so that all have the right shape."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from routewright import errors, wire
from routewright.server.endpoints import ListedModel, Models

Example = dict[str, Any]


class Shown(NamedTuple):
    """Examples of an operation."""

    answer: Any
    asked: Mapping[str, Example] = MappingProxyType({})
    """Bodies by name."""
    parameters: Mapping[str, str | int] = MappingProxyType({})


_TRACE_ID = "tr_01M820F8M1PPDB3PTA889S3Z63"
REQUEST_ID = "req_01M820F8KPZRQ2ASJK6EXZ1Q1V"
_FIRST, _SECOND = "openai/gpt-6-luna", "openai/gpt-6.1-sol"
_DAYS: dict[str, Any] = {"start_date": "2026-11-16", "end_date": "2026-11-22"}
_QUESTION = {"role": "user", "content": "Why is the sky blue?"}
_PLAIN = {"messages": [_QUESTION]}
_BOUNDED = {
    "messages": [{"role": "system", "content": "Answer in one sentence."}, _QUESTION],
    "goal": "quality",
    "models": [_FIRST, _SECOND],
    "budget": {"maxCostUsd": 0.05},
    "params": {"max_output_tokens": 2000, "reasoning": "low"},
    "metadata": {"team": "search"},
    "timeout_ms": 20000,
}
_PREFERRED = {"messages": [_QUESTION], "prefer": [_SECOND, _FIRST], "budget": {"maxCostUsd": 0.01}}
_TOOLS = {
    "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "description": "The weather of a city.",
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
            },
        }
    ],
    "tool_choice": "auto",
}

_TEXT = "Air scatters blue light more than red."
_TOKENS = wire.Tokens(14, 9, 0)
_REASON = (
    "goal=quality strategy=balanced: openai/gpt-6.1-sol scored 0.79 (quality 0.93, cost $0.014, p50 15.0 s);"
    " runner-up openai/gpt-6-luna 0.71"
)
_ANSWER = wire.RouteResponse(
    trace_id=_TRACE_ID,
    output=_TEXT,
    routing=wire.Routing(_SECOND, [_FIRST], "inline@2026-11-20", _REASON, 0.0001, 812.5, False, _TOKENS),
    usage=wire.WindowUsage(2999, 1795363999),
    primary_model=_SECOND,
    fallback_model=None,
    cache_hit=False,
    finish_reason="stop",
)
_CHOSEN = wire.Candidate(_SECOND, 0.785, 0.934, 0.014, 15.0, 0.901, (0.925, 0.3706, 0.4187, 0.802))
_NEXT = wire.Candidate(_FIRST, 0.713, 0.757, 0.0007, 14.5, 0.901, (0.7642, 0.6312, 0.4281, 0.802))
_DIGEST = "22206a01c5804dc9d6f001a1395787b3"
_DECIDED = wire.Decided(
    model=_SECOND,
    chain=[_FIRST],
    score=_CHOSEN.score,
    reason=_REASON,
    output_cap=2000,
    fallback_affordable=True,
    candidates=[_CHOSEN, _NEXT],
    rejected=[wire.Rejection("openai/gpt-6-astra", wire.Reason.WHITELIST, 0.07)],
    digest=_DIGEST,
)
_MODEL = wire.Model(
    id=_SECOND,
    provider="openai",
    context_window=922000,
    modalities=("text", "image", "tool"),
    pricing_per_1m=wire.Pricing(2.0, 10.0, cached_input_usd=0.2),
    availability=wire.Availability("available", ("us", "eu")),
    provider_model_id="gpt-6.1-sol",
    display_name="GPT-6.1 Sol",
    max_output_tokens=128000,
    quality=0.934,
)
_POLICY = wire.Policy(
    name="support",
    id="pol_01M820F8M1PPDB3PTA889S3Z63",
    created_at="2026-11-20T00:00:00.000Z",
    goal="quality",
    models=["openai/*", "anthropic/*"],
    fallback=wire.PolicyFallback(max_retries=1),
    budget=wire.Budget(max_cost_usd=0.05),
)
_WHOLE_TRACE = wire.Trace(
    id=_TRACE_ID,
    status="completed",
    created_at="2026-11-22T16:12:19.096Z",
    duration_ms=812.5,
    environment="production",
    account="acme",
    key_id="key_01M820F8GDEGR3P56T99HAFV6Q",
    policy_version="inline@2026-11-20",
    goal="quality",
    strategy="balanced",
    selected_model=_SECOND,
    cost_usd=0.0001,
    charged_usd=0.0001,
    tokens=_TOKENS,
    metadata={"team": "search"},
    spans=[
        wire.DecisionSpan(
            id=1,
            name="decision",
            start_ms=0.0,
            duration_ms=0.4,
            candidates=[_CHOSEN, _NEXT],
            rejected={"whitelist": 158},
            digest=_DIGEST,
        ),
        wire.ModelSpan(
            id=2,
            name=_SECOND,
            start_ms=0.4,
            duration_ms=812.1,
            model=_SECOND,
            provider="openai",
            attempt=1,
            latency_ms=812.1,
            ttft_ms=310.0,
            tokens=_TOKENS,
            cost_usd=0.0001,
            finish_reason="stop",
        ),
    ],
)
_ROW = wire.UsageRow(
    bucket_start="2026-11-22T00:00:00Z",
    group=_SECOND,
    requests=3,
    errors=0,
    cost_usd=0.0003,
    charged_usd=0.0003,
    tokens=wire.Tokens(42, 27, 0),
)
_SUMS = wire.UsageTotals(requests=3, cost_usd=0.0003, charged_usd=0.0003, tokens=wire.Tokens(42, 27, 0))

_STEPS = [
    wire.Step(
        number=1,
        action="llm_call",
        input={"messages": 2},
        output={"text": "", "tool_calls": ["calculator"]},
        start_ms=0.1,
        duration_ms=812.5,
        cost_usd=0.0001,
        model=_SECOND,
        tokens=_TOKENS,
        finish_reason="tool_calls",
        trace_id=_TRACE_ID,
    ),
    wire.Step(
        number=2,
        action="tool_call",
        tool="calculator",
        input={"expression": "2340 * 0.175"},
        output={"result": "409.5"},
        start_ms=812.7,
        duration_ms=0.2,
        cost_usd=0.0,
    ),
]
_RUN = wire.AgentResponse(
    trace_id="tr_01M820F8Q5WV9C9AT2Y7K4N6Z1",
    status="completed",
    output="17.5 % of 2,340 is 409.5.",
    steps=_STEPS,
    summary=wire.RunSummary(2, 0.0001, 812.9, ["calculator"]),
)
_TASK = {"task": "What is 17.5 % of 2,340?", "tools": ["calculator"], "max_steps": 5, "total_budget_usd": 0.05}
OPERATIONS: dict[str, Shown] = {
    "/v1/agents/run": Shown(_RUN, {"plain": _TASK}),
    "/v1/route": Shown(_ANSWER, {"plain": _PLAIN, "bounded": _BOUNDED, "preferred": _PREFERRED, "tools": _TOOLS}),
    "/v1/decide": Shown(_DECIDED, {"bounded": _BOUNDED}),
    "/v1/models": Shown(Models([ListedModel.of(_MODEL)])),
    "/v1/policies": Shown([_POLICY]),
    "/v1/traces": Shown(
        wire.Page([_WHOLE_TRACE.item]),
        parameters={"filter": 'status=failed,metadata.team="search"', "limit": 20, "from": "2026-11-22T09:30:00Z"},
    ),
    "/v1/traces/{trace_id}": Shown(_WHOLE_TRACE, parameters={"trace_id": _TRACE_ID}),
    "/v1/analytics/usage": Shown(
        wire.UsageReport(**_DAYS, bucket="day", group_by="model", data=[_ROW], totals=_SUMS),
        parameters={**_DAYS, "group_by": "model", "bucket": "day"},
    ),
    "/v1/analytics/cache": Shown(
        wire.CacheReport(
            **_DAYS, hit_rate=0.4, hits=2, misses=3, saved_usd=0.0002, ttl_distribution=[wire.TtlBucket(60.0, 2)]
        ),
        parameters=_DAYS,
    ),
    "/v1/analytics/fallback": Shown(
        wire.FallbackReport(
            **_DAYS,
            triggered=1,
            rate=0.25,
            reasons={"auth": 1},
            passed_by={_FIRST: 3},
            candidates=[wire.FallbackCandidate(model=_SECOND, attempts=4, success_rate=0.75)],
        ),
        parameters=_DAYS,
    ),
    "/v1/analytics/latency": Shown(
        wire.LatencyReport(
            **_DAYS,
            data=[
                wire.LatencyRow(model=_SECOND, strategy="balanced", count=3, p50_ms=790.0, p95_ms=1210.0, p99_ms=1210.0)
            ],
        ),
        parameters=_DAYS,
    ),
}
"""By path."""

EVENTS: tuple[wire.RouteEvent | wire.AgentEvent, ...] = (
    wire.RouteStarted(1, wire.StartedData(_TRACE_ID, wire.StartedRouting(_SECOND, [_FIRST], "inline@2026-11-20"))),
    wire.OutputDelta(2, wire.OutputData(_TEXT, 1)),
    wire.RouteCompleted(3, _ANSWER),
    wire.RunStarted(1, wire.RunStartedData(_RUN.trace_id, 5, 0.05)),
    wire.StepStarted(2, wire.StepStartedData(1, "llm_call")),
    wire.StepCompleted(3, _STEPS[0]),
    wire.RunCompleted(6, _RUN),
)
"""Events of streams."""

_LIMIT = {"level": "key", "resource": "requests", "limit_of": "requests_per_min", "limit": 60, "remaining": 0}
_ATTEMPTS = {"attempts": [{"model": _SECOND, "attempt": 1, "error": "server", "message": "503", "latency_ms": 210.0}]}
_SHORT = {"level": "account", "needed_usd": 0.0021}
_REJECTED = {
    "rejected_candidates": [msgspec.to_builtins(wire.Rejection(_FIRST, wire.Reason.BUDGET_COST, 0.0016))],
    "suggestion": "raise budget.maxCostUsd to 0.0016 to admit openai/gpt-6-luna",
}
ERRORS: tuple[errors.RouterError, ...] = (
    errors.ValidationFailed.at("goal", "must be one of cost, quality, stability, got 'speed'", "for example 'cost'"),
    errors.InvalidJson.of(errors.Problem("", "the body is empty", "send one JSON object")),
    errors.CursorExpired("the cursor is older than 24 hours; start again without a cursor"),
    errors.AuthenticationFailed("an API key is missing; send 'Authorization: Bearer sk_...'"),
    errors.InsufficientBalance("the balance of the account is too small; add credit", detail=_SHORT),
    errors.PermissionDenied("the API key lacks the scope 'traces:read'; use one that has it"),
    errors.BlockedByPolicy("the guardrail 'privacy' blocked the prompt"),
    errors.ContentRefused("openai refused the content", detail=_ATTEMPTS),
    errors.NotFound(f"no trace '{_TRACE_ID}'"),
    errors.MethodNotAllowed("this address takes POST"),
    errors.RequestTimedOut("the body did not come whole within 30 s; send it in one go"),
    errors.IdempotencyKeyReused("the idempotency key was sent with another request; take a new one"),
    errors.BodyTooLarge("the body is over 16777216 bytes: send a shorter one"),
    errors.UnsupportedMediaType("the Content-Type is none; send 'Content-Type: application/json'"),
    errors.BudgetExceeded("no model fits: 1 requested, rejected: openai/gpt-6-luna budget_cost", detail=_REJECTED),
    errors.RateLimited("the key is limited to 60 requests a minute", detail={**_LIMIT, "retry_after_seconds": 12}),
    errors.InternalError(f"the server failed to answer; the operator finds why in its log under {REQUEST_ID}"),
    errors.UpstreamFailed("every attempt failed: openai/gpt-6.1-sol (server: 503); try again later", detail=_ATTEMPTS),
    errors.RouterTimeoutError("no answer within 20000 ms; allow more with timeout_ms", detail=_ATTEMPTS),
)
