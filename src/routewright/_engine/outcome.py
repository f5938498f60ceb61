"""A finished call as one value, and what is made of it: the response, the trace, the events. Made when asked for."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

from routewright._core.attempt import FAULTS, End
from routewright._core.decision import Decision
from routewright._core.money import usd
from routewright.errors import BudgetExceeded, RouterError
from routewright.wire import (
    BudgetRefused,
    CacheSpan,
    Caller,
    DecisionInput,
    DecisionSpan,
    FallbackSpan,
    FallbackTriggered,
    ModelSpan,
    PushedEvent,
    RouteRequest,
    RouteResponse,
    Routing,
    Span,
    Tokens,
    Trace,
    TraceStatus,
    Usage,
    WindowUsage,
)

from .attempt import Attempt

UNLIMITED = 2**53 - 1
BEST_KEPT = 5
"""Candidates in a trace; replay gives the whole table."""


class Admitted(NamedTuple):
    """A call that was let in: who asked what, when, under which policy."""

    request: RouteRequest
    caller: Caller
    trace_id: str
    created_at: float
    """Unix seconds."""
    started_at: float
    """Monotonic seconds."""
    policy_id: str | None
    policy_version: str
    given: DecisionInput


class Outcome:
    """What became of one call."""

    def __init__(
        self,
        admitted: Admitted,
        decision: Decision | None,
        attempts: list[Attempt],
        *,
        end: End | None,
        error: RouterError | None,
        ended_at: float,
    ) -> None:
        self.admitted = admitted
        self.decision = decision
        self.attempts = attempts
        self.end = end
        """None: the caller left, or the call never got as far."""
        self.error = error
        self.ended_at = ended_at
        self.cost_nanos = sum(attempt.cost_nanos for attempt in attempts)
        """Paid upstream, over all attempts."""
        self._response: RouteResponse | None = None
        self._trace: Trace | None = None

    @property
    def sandbox(self) -> bool:
        """Canned output at list price, with nobody billed."""
        return self.admitted.caller.environment == "sandbox"

    @property
    def fell_back(self) -> bool:
        """Another model than the chosen one served the request."""
        served = self.served
        return served is not None and self.decision is not None and served.model != self.decision.model

    @property
    def served(self) -> Attempt | None:
        """The attempt that brought the answer."""
        return self.attempts[-1] if self.end is End.SUCCEEDED else None

    @property
    def status(self) -> TraceStatus:
        """How the call stands in its trace."""
        if self.end is End.SUCCEEDED:
            return "completed"
        if self.error is None:
            return "cancelled"
        return "budget_exceeded" if isinstance(self.error, BudgetExceeded) else "failed"

    @property
    def charged_nanos(self) -> int:
        """Billed to the account: the cost of an answer, or of what was produced when the caller left mid-answer."""
        if self.sandbox:
            return 0
        left_midway = self.status == "cancelled" and any(attempt.delivered for attempt in self.attempts)
        return self.cost_nanos if self.end is End.SUCCEEDED or left_midway else 0

    @property
    def latency_ms(self) -> float:
        """The whole call at the router. In the sandbox the model's usual time is shown, not slept."""
        measured = (self.ended_at - self.admitted.started_at) * 1000
        return round(measured + sum(map(self._unslept_ms, self.attempts)), 3)

    @property
    def tokens(self) -> Tokens:
        """Of the attempt that served the request."""
        served = self.served
        return (None if served is None else _tokens(served.usage)) or Tokens()

    @property
    def response(self) -> RouteResponse:
        """The route response (spec 2.2) of a call that succeeded."""
        if self._response is None:
            self._response = self._make_response()
        return self._response

    def _make_response(self) -> RouteResponse:
        decision, served, admitted = self.decision, self.served, self.admitted
        assert decision is not None, "only a call that was decided can succeed"
        assert served is not None, "only a call that was served has a response"
        routing = Routing(
            selected_model=served.model,
            fallback_chain=decision.chain,
            policy_version=admitted.policy_version,
            decision_reason=decision.reason,
            cost_usd=usd(self.cost_nanos),
            latency_ms=self.latency_ms,
            cache_hit=False,
            tokens=self.tokens,
        )
        minute = int(admitted.created_at) // 60 * 60 + 60
        return RouteResponse(
            trace_id=admitted.trace_id,
            output=served.output,
            routing=routing,
            usage=WindowUsage(UNLIMITED, minute),
            primary_model=decision.model,
            fallback_model=served.model if self.fell_back else None,
            cache_hit=False,
            tool_calls=served.calls(),
            finish_reason=served.finish_reason,
        )

    @property
    def trace(self) -> Trace:
        """The trace (spec 2.6, contract 9). Holds no text of prompt or answer."""
        if self._trace is None:
            self._trace = self._make_trace()
        return self._trace

    def _make_trace(self) -> Trace:
        admitted, served = self.admitted, self.served
        return Trace(
            id=admitted.trace_id,
            status=self.status,
            created_at=timestamp(admitted.created_at),
            duration_ms=self.latency_ms,
            environment=admitted.caller.environment,
            account=admitted.caller.account,
            key_id=admitted.caller.key_id,
            policy_id=admitted.policy_id,
            policy_version=admitted.policy_version,
            goal=admitted.given.goal,
            strategy=admitted.given.strategy,
            selected_model=None if served is None else served.model,
            fallback_used=self.fell_back,
            cost_usd=usd(self.cost_nanos),
            charged_usd=usd(self.charged_nanos),
            tokens=self.tokens,
            metadata=admitted.request.metadata or {},
            error=None if self.error is None else self.error.code,
            decision_input=admitted.given,
            spans=self._spans(),
        )

    @property
    def events(self) -> list[PushedEvent]:
        """What the world is to be told of this call (spec 6.1)."""
        admitted, decision = self.admitted, self.decision
        metadata = admitted.request.metadata or {}
        if isinstance(self.error, BudgetExceeded):
            rejected: list[dict[str, Any]] = self.error.detail["rejected_candidates"]
            return [BudgetRefused(admitted.trace_id, rejected, admitted.request.budget, metadata)]
        if not self.fell_back or decision is None:
            return []
        primary = [attempt for attempt in self.attempts if attempt.model == decision.model]
        last = primary[-1] if primary else None
        reason = "budget" if last is None or last.fault is None else FAULTS[last.fault].reason
        spent_ms = sum((attempt.ended_at - attempt.started_at) * 1000 for attempt in primary)
        served = self.attempts[-1].model
        return [FallbackTriggered(admitted.trace_id, decision.model, served, reason, round(spent_ms, 3), metadata)]

    def _spans(self) -> list[Span]:
        spans: list[Span] = []
        if self.decision is not None:
            spans.append(self._decision_span(self.decision))
        if self.admitted.request.cache:
            spans.append(CacheSpan(id=len(spans) + 1, name="cache", start_ms=0.0, hit=False))
        for before, attempt in zip([None, *self.attempts], self.attempts, strict=False):
            if before is not None and before.model != attempt.model:
                spans.append(self._fallback_span(len(spans) + 1, before, attempt))
            spans.append(self._model_span(len(spans) + 1, attempt))
        return spans

    def _decision_span(self, decision: Decision) -> DecisionSpan:
        return DecisionSpan(
            id=1,
            name="decision",
            start_ms=0.0,
            candidates=decision.front[:BEST_KEPT],
            rejected={str(reason): count for reason, count in decision.rejected_counts.items()},
            digest=decision.digest,
            token_count="exact" if decision.input.tokens.counted else "bounds",
        )

    def _fallback_span(self, span_id: int, before: Attempt, attempt: Attempt) -> FallbackSpan:
        reason = "upstream_5xx" if before.fault is None else FAULTS[before.fault].reason
        return FallbackSpan(
            id=span_id,
            name="fallback",
            start_ms=self._since_start(attempt.started_at),
            used=attempt is self.served,
            from_model=before.model,
            to_model=attempt.model,
            reason=reason,
        )

    def _model_span(self, span_id: int, attempt: Attempt) -> ModelSpan:
        spent_ms = round((attempt.ended_at - attempt.started_at) * 1000 + self._unslept_ms(attempt), 3)
        first_ms = None if attempt.first_at is None else round((attempt.first_at - attempt.started_at) * 1000, 3)
        failed = attempt.fault is not None
        return ModelSpan(
            id=span_id,
            name=attempt.model,
            start_ms=self._since_start(attempt.started_at),
            duration_ms=spent_ms,
            status="error" if failed else "ok" if attempt.finish_reason else "cancelled",
            model=attempt.model,
            provider=attempt.provider,
            attempt=attempt.call.number,
            latency_ms=spent_ms,
            ttft_ms=first_ms,
            tokens=_tokens(attempt.usage),
            usage_estimated=attempt.usage_estimated,
            cost_usd=usd(attempt.cost_nanos),
            finish_reason=attempt.finish_reason,
            error=attempt.fault,
        )

    def _since_start(self, at: float) -> float:
        return round((at - self.admitted.started_at) * 1000, 3)

    def _unslept_ms(self, attempt: Attempt) -> float:
        """What the sandbox does not make the caller wait for."""
        if not self.sandbox or attempt.fault is not None or self.decision is None:
            return 0.0
        return float(self.decision.expected_ms[attempt.call.row])


def _tokens(usage: Usage | None) -> Tokens | None:
    return None if usage is None else Tokens(usage.input, usage.output, usage.cached)


def timestamp(at: float) -> str:
    """RFC 3339 in UTC with milliseconds."""
    milliseconds = int(at * 1000)
    return f"{_second(milliseconds // 1000)}.{milliseconds % 1000:03}Z"


@lru_cache(maxsize=8)
def _second(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S")
