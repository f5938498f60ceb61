"""A finished call as values: ``Facts``, which make the trace, and the ``Outcome`` that callers get.

Of what was said ``Facts`` hold nothing, unless it is captured: then the words, until their redactor has seen them, and
what it left from then on. What is made of them is made when it is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from routewright._core.decision import Decision
from routewright._core.fault import FAULTS
from routewright._core.guardrail import Hit
from routewright._core.moment import timestamp
from routewright._core.money import usd
from routewright.errors import BudgetExceeded, RouterError
from routewright.wire import (
    Budget,
    BudgetRefused,
    CacheSpan,
    Caller,
    Content,
    DecisionInput,
    DecisionSpan,
    Environment,
    FallbackReason,
    FallbackSpan,
    FallbackTriggered,
    GuardrailSpan,
    ModelSpan,
    PushedEvent,
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
from .capture import Captured

UNLIMITED = 2**53 - 1
BEST_KEPT = 5
"""Candidates in a trace; replay gives the whole table."""


class Admitted(NamedTuple):
    """A call that was let in: who asks, when, under which policy. Nothing of what was said."""

    caller: Caller
    trace_id: str
    created_at: float
    """Unix seconds."""
    started_at: float
    """Monotonic seconds."""
    policy_id: str | None
    policy_version: str
    given: DecisionInput
    metadata: dict[str, Any]
    asks_cache: bool
    hits: Sequence[Hit] = ()
    """What the guardrails found in the request."""


class Facts:
    """What became of one call; its ``trace`` is made when it is read. Prompt and answer are only in ``captured``."""

    __slots__ = (
        "admitted",
        "attempts",
        "captured",
        "cost_nanos",
        "decision",
        "ended_at",
        "error_code",
        "given",
        "rollup_keys",
        "served",
        "status",
    )

    def __init__(
        self,
        admitted: Admitted,
        decision: Decision | None,
        attempts: list[Attempt],
        served: Attempt | None,
        error: RouterError | None,
        ended_at: float,
        rollup_keys: tuple[str, ...] = (),
    ) -> None:
        self.admitted = admitted
        self.given = admitted.given if decision is None else decision.input
        self.attempts = attempts
        self.served = served
        """The attempt that brought the answer."""
        self.status = _status(served, error)
        self.error_code = None if error is None else error.code  # an error itself holds on to the frames it passed
        self.ended_at = ended_at
        self.cost_nanos = sum([attempt.cost_nanos for attempt in attempts])
        """Paid upstream, over all attempts."""
        self.decision = decision
        self.rollup_keys = rollup_keys
        """Metadata that usage is counted by."""
        self.captured: Captured | None = None
        """What was said in the call, if it is to be kept: word for word until it is redacted, when it is first read."""

    @property
    def id(self) -> str:
        """The trace's."""
        return self.admitted.trace_id

    @property
    def text_bytes(self) -> int:
        """About how much memory its captured words take."""
        return 0 if self.captured is None else self.captured.size

    @property
    def key(self) -> str:
        """The trace's."""
        return timestamp(self.admitted.created_at) + self.admitted.trace_id

    @property
    def environment(self) -> Environment:
        """Where the call was made."""
        return self.admitted.caller.environment

    @property
    def decision_input(self) -> DecisionInput:
        """What the decision was made from."""
        return self.given

    @property
    def fell_back(self) -> bool:
        """Another model than the chosen one served the request."""
        served = self.served
        return served is not None and self.decision is not None and served.model != self.decision.model

    @property
    def cost_range_usd(self) -> tuple[float, float] | None:
        """The least and the most that all attempts can have cost; None where every provider told."""
        ranges = [attempt.cost_range_nanos for attempt in self.attempts]
        if not any(ranges):
            return None
        both = [told or (a.cost_nanos, a.cost_nanos) for told, a in zip(ranges, self.attempts, strict=True)]
        return usd(sum(low for low, _ in both)), usd(sum(high for _, high in both))

    @property
    def charged_nanos(self) -> int:
        """Billed to the account: the cost of an answer, or of what was produced when the caller left after content
        had been delivered."""
        if self.environment == "sandbox":
            return 0
        left_midway = self.status == "cancelled" and any(attempt.delivered for attempt in self.attempts)
        return self.cost_nanos if self.served is not None or left_midway else 0

    @property
    def latency_ms(self) -> float:
        """The whole call at the router. In the sandbox the model's usual time is shown, not slept."""
        measured = (self.ended_at - self.admitted.started_at) * 1000
        return round(measured + sum([attempt.unslept_ms for attempt in self.attempts]), 3)

    @property
    def tokens(self) -> Tokens:
        """Of the attempt that served the request."""
        served = self.served
        return (None if served is None else _tokens(served.usage)) or Tokens()

    @property
    def trace(self) -> Trace:
        """The trace (spec 2.6, contract 9). Each who reads it gets one of his own."""
        return self._trace(None if self.captured is None else self.captured.content)

    @property
    def wordless(self) -> Trace:
        """The trace without what was captured, so that no redactor has to be asked."""
        return self._trace(None)

    def _trace(self, content: Content | None) -> Trace:
        admitted, served = self.admitted, self.served
        return Trace(
            id=admitted.trace_id,
            status=self.status,
            created_at=timestamp(admitted.created_at),
            duration_ms=self.latency_ms,
            environment=self.environment,
            account=admitted.caller.account,
            key_id=admitted.caller.key_id,
            policy_id=admitted.policy_id,
            policy_version=admitted.policy_version,
            goal=self.given.goal,
            strategy=self.given.strategy,
            selected_model=None if served is None else served.model,
            fallback_used=self.fell_back,
            cost_usd=usd(self.cost_nanos),
            cost_range_usd=self.cost_range_usd,
            charged_usd=usd(self.charged_nanos),
            tokens=self.tokens,
            metadata=deepcopy(admitted.metadata),
            error=self.error_code,
            decision_input=self.given,
            spans=self._spans(),
            content=content,
        )

    def fallback_triggered(self) -> FallbackTriggered | None:
        """The event of a call that another model than the chosen one served (spec 6.3)."""
        decided, served = self.decision, self.served
        if decided is None or served is None or not self.fell_back:
            return None
        primary = [attempt for attempt in self.attempts if attempt.model == decided.model]
        reason = _reason(primary[-1] if primary else None)
        spent_ms = round(sum((attempt.ended_at - attempt.started_at) * 1000 for attempt in primary), 3)
        return FallbackTriggered(self.id, decided.model, served.model, reason, spent_ms, self.admitted.metadata)

    def _spans(self) -> list[Span]:
        spans: list[Span] = []
        if self.decision is not None:
            took_ms = self._since_start(self.attempts[0].started_at if self.attempts else self.ended_at)
            spans.append(_decision_span(self.decision, took_ms))
        spans += self._guardrail_spans(len(spans), self.admitted.hits, self.admitted.started_at, None)
        if self.admitted.asks_cache:
            spans.append(CacheSpan(id=len(spans) + 1, name="cache", start_ms=0.0, hit=False))
        for place, attempt in enumerate(self.attempts):
            before = _before(attempt, self.attempts[:place])
            from_model = self.decision.model if before is None and self.decision is not None else attempt.model
            from_model = from_model if before is None else before.model
            if from_model != attempt.model and (not attempt.call.hedge or attempt is self.served):
                spans.append(self._fallback_span(len(spans) + 1, from_model, before, attempt))
            spans.append(self._model_span(len(spans) + 1, attempt))
            spans += self._guardrail_spans(len(spans), attempt.hits, attempt.ended_at, spans[-1].id)
        return spans

    def _guardrail_spans(self, before: int, hits: Sequence[Hit], at: float, parent: int | None) -> list[Span]:
        return [
            GuardrailSpan(
                id=before + place,
                parent_id=parent,
                name=hit.guardrail,
                start_ms=self._since_start(at),
                status="error" if hit.action == "block" else "ok",
                rule=hit.rule,
                stage=hit.stage,
                action=hit.action,
                count=hit.count,
            )
            for place, hit in enumerate(hits, start=1)
        ]

    def _fallback_span(self, span_id: int, from_model: str, before: Attempt | None, attempt: Attempt) -> FallbackSpan:
        return FallbackSpan(
            id=span_id,
            name="fallback",
            start_ms=self._since_start(attempt.started_at),
            used=attempt is self.served,
            from_model=from_model,
            to_model=attempt.model,
            reason=_reason(before),
        )

    def _model_span(self, span_id: int, attempt: Attempt) -> ModelSpan:
        spent_ms = round((attempt.ended_at - attempt.started_at) * 1000 + attempt.unslept_ms, 3)
        first_ms = None if attempt.first_at is None else round((attempt.first_at - attempt.started_at) * 1000, 3)
        failed, ranged = attempt.fault is not None, attempt.cost_range_nanos
        return ModelSpan(
            id=span_id,
            name=attempt.model,
            start_ms=self._since_start(attempt.started_at),
            duration_ms=spent_ms,
            status="error" if failed else "cancelled" if attempt.finish_reason is None else "ok",
            model=attempt.model,
            provider=attempt.provider,
            attempt=attempt.call.number,
            latency_ms=spent_ms,
            ttft_ms=first_ms,
            tokens=_tokens(attempt.usage),
            usage_estimated=attempt.usage_estimated,
            cost_usd=usd(attempt.cost_nanos),
            cost_range_usd=None if ranged is None else (usd(ranged[0]), usd(ranged[1])),
            finish_reason=attempt.finish_reason,
            error=attempt.fault,
            repair=attempt.call.repair is not None,
            hedge=attempt.call.hedge,
            probe=attempt.call.probe,
        )

    def _since_start(self, at: float) -> float:
        return round((at - self.admitted.started_at) * 1000, 3)


class Outcome:
    """What became of one call: its facts, the words that came, which the facts forget, and what went wrong."""

    def __init__(self, facts: Facts, budget: Budget | None, error: RouterError | None, data: Any = None) -> None:
        self.facts = facts
        self.error = error
        self.data = data
        self.output = "" if facts.served is None else facts.served.answer
        self.tool_calls = None if facts.served is None else facts.served.answer_calls
        self._budget = budget  # of the request, whose text nobody needs any more
        self._response: RouteResponse | None = None
        for attempt in facts.attempts:
            attempt.forget_text()

    @property
    def events(self) -> list[PushedEvent]:
        """What the world is to be told of this call (spec 6.1)."""
        facts = self.facts
        if isinstance(self.error, BudgetExceeded):
            rejected: list[dict[str, Any]] = self.error.detail["rejected_candidates"]
            return [BudgetRefused(facts.id, rejected, self._budget, facts.admitted.metadata)]
        fallback = facts.fallback_triggered()
        return [] if fallback is None else [fallback]

    @property
    def response(self) -> RouteResponse:
        """The route response (spec 2.2) of a call that was served."""
        if self._response is None:
            self._response = self._make_response()
        return self._response

    def _make_response(self) -> RouteResponse:
        facts, decision, admitted = self.facts, self.facts.decision, self.facts.admitted
        assert decision is not None, "only what was decided can be served"
        served = facts.served
        assert served is not None, "there is an answer"
        routing = Routing(
            selected_model=served.model,
            fallback_chain=decision.chain,
            policy_version=admitted.policy_version,
            decision_reason=decision.reason,
            cost_usd=usd(facts.cost_nanos),
            latency_ms=facts.latency_ms,
            cache_hit=False,
            tokens=facts.tokens,
        )
        return RouteResponse(
            trace_id=admitted.trace_id,
            output=self.output,
            routing=routing,
            usage=WindowUsage(UNLIMITED, int(admitted.created_at) // 60 * 60 + 60),
            primary_model=decision.model,
            fallback_model=served.model if facts.fell_back else None,
            cache_hit=False,
            tool_calls=self.tool_calls,
            finish_reason=served.finish_reason,
        )


def _decision_span(decided: Decision, took_ms: float) -> DecisionSpan:
    return DecisionSpan(
        id=1,
        name="decision",
        start_ms=0.0,
        duration_ms=took_ms,
        candidates=decided.front[:BEST_KEPT],
        rejected={str(reason): count for reason, count in decided.rejected_counts.items()},
        digest=decided.digest,
        token_count=decided.token_count,
    )


def _status(served: Attempt | None, error: RouterError | None) -> TraceStatus:
    """How a call stands in its trace. Without answer and error the caller left."""
    if served is not None:
        return "completed"
    if error is None:
        return "cancelled"
    return "budget_exceeded" if isinstance(error, BudgetExceeded) else "failed"


def _before(attempt: Attempt, earlier: list[Attempt]) -> Attempt | None:
    """The one whose fault led to an attempt, or that it ran beside."""
    after = attempt.call.after
    if after is None:
        return earlier[0] if earlier else None
    return next((each for each in reversed(earlier) if each.call.row == after.row), None)


def _reason(before: Attempt | None) -> FallbackReason:
    """Why another model was called after an attempt, or in the place of one that was not made as faults came before."""
    if before is None:
        return "upstream_5xx"
    return "timeout" if before.fault is None else FAULTS[before.fault].reason  # a hedge was quicker


def _tokens(usage: Usage | None) -> Tokens | None:
    return None if usage is None else Tokens(usage.input, usage.output, usage.cached)
