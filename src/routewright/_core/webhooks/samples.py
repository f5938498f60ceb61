"""What does the data of each event look like? Samples for test deliveries and for the reference."""

from __future__ import annotations

from routewright import wire

_LETTERS = "01M820F8M1PPDB3PTA889S3Z63"
_TRACE_ID = f"tr_{_LETTERS}"
_PRIMARY, _FALLBACK = "openai/gpt-4.1", "anthropic/claude-sonnet-4-5"
_REJECTED = {"model": _PRIMARY, "reason": "budget_cost", "estimated_cost_usd": 0.0421}
_TAGS = {"team": "search"}

SAMPLES: dict[wire.EventType, wire.PushedEvent] = {
    "router.fallback_triggered": wire.FallbackTriggered(_TRACE_ID, _PRIMARY, _FALLBACK, "upstream_5xx", 812.4, _TAGS),
    "router.budget_exceeded": wire.BudgetRefused(_TRACE_ID, [_REJECTED], wire.Budget(max_cost_usd=0.01), _TAGS),
    "router.error_burst": wire.ErrorBurst(window_seconds=300, requests=240, errors=18, error_rate=0.075),
    "router.policy_changed": wire.PolicyChanged(
        f"pol_{_LETTERS}", "support", "support@2026-11-20", "support@2026-11-22"
    ),
    "agent.run_completed": wire.AgentRunCompleted(
        _TRACE_ID, "completed", wire.RunSummary(5, 0.0184, 6420.5, ["web_search", "calculator"]), _TAGS
    ),
    "cache.evicted": wire.CacheEvicted(window_seconds=3600, hit_rate=0.031, threshold=0.05),
    "billing.threshold_crossed": wire.ThresholdCrossed("2026-11", 80, spent_usd=400.12, limit_usd=500.0),
    "incident.created": wire.IncidentCreated(
        f"inc_{_LETTERS}", "Answers are slow", "major", "2026-11-22T09:30:00.000Z", "https://status.example.com/7"
    ),
}
