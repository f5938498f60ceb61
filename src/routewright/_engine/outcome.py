"""A finished call as values: ``Facts``, which make the trace, and the ``Outcome`` that callers get.

Of what was said ``Facts`` hold nothing, unless it is captured: then the words, until their redactor has seen them, and
what it left from then on. What is made of them is made when it is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from routewright._core.allowance import usage_of
from routewright._core.decision import Decision
from routewright._core.guardrail import Hit
from routewright._core.moment import timestamp
from routewright._core.money import usd
from routewright._core.traceparent import TraceParent
from routewright.errors import BudgetExceeded, RouterError
from routewright.wire import (
    Budget,
    BudgetRefused,
    Caller,
    Content,
    DecisionInput,
    Environment,
    FallbackTriggered,
    LedgerRow,
    PushedEvent,
    RouteResponse,
    Routing,
    Tokens,
    Trace,
    TraceStatus,
    WindowState,
)

from .attempt import Attempt
from .capture import Captured
from .span import reason_after, spans_of, tokens_of


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
    windows: Sequence[WindowState] = ()
    """How its rate limits stood when it was let in."""
    traceparent: TraceParent | None = None
    """Where it was called from."""


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
        "is_booked",
        "is_void",
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
        self.is_booked = False
        """What it cost is booked by whoever writes it, and not with its trace."""
        self.is_void = False
        """Another call was answered and billed in its place."""
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
        if self.environment == "sandbox" or self.is_void:
            return 0
        left_midway = self.status == "cancelled" and any(attempt.delivered for attempt in self.attempts)
        return self.cost_nanos if self.served is not None or left_midway else 0

    @property
    def rows(self) -> list[LedgerRow]:
        """What is to be booked with its trace (``TraceDraft``)."""
        return [] if self.is_booked else self.ledger_rows

    @property
    def ledger_rows(self) -> list[LedgerRow]:
        """What the ledger says of it: one row an attempt that may have cost anything. Of the sandbox none."""
        if self.environment == "sandbox":
            return []
        charged = bool(self.charged_nanos)
        return [self._row(each, charged=charged) for each in self.attempts if each.usage or each.cost_range_nanos]

    def _row(self, attempt: Attempt, *, charged: bool) -> LedgerRow:
        admitted = self.admitted
        return LedgerRow(
            request_id=self.id,
            attempt=attempt.call.number,
            at=timestamp(admitted.created_at),
            key_id=admitted.caller.key_id,
            model=attempt.model,
            provider=attempt.provider,
            tokens=tokens_of(attempt.usage) or Tokens(),
            cost_nanos=attempt.cost_nanos,
            charge_nanos=attempt.cost_nanos if charged else 0,
            cost_range_nanos=attempt.cost_range_nanos,
        )

    @property
    def latency_ms(self) -> float:
        """The whole call at the router. In the sandbox the model's usual time is shown, not slept."""
        measured = (self.ended_at - self.admitted.started_at) * 1000
        return round(measured + sum([attempt.unslept_ms for attempt in self.attempts]), 3)

    @property
    def tokens(self) -> Tokens:
        """Of the attempt that served the request."""
        served = self.served
        return (None if served is None else tokens_of(served.usage)) or Tokens()

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
            traceparent=None if admitted.traceparent is None else admitted.traceparent.text,
            spans=spans_of(self),
            content=content,
        )

    def fallback_triggered(self) -> FallbackTriggered | None:
        """The event of a call that another model than the chosen one served (spec 6.3)."""
        decided, served = self.decision, self.served
        if decided is None or served is None or not self.fell_back:
            return None
        primary = [attempt for attempt in self.attempts if attempt.model == decided.model]
        reason = reason_after(primary[-1] if primary else None)
        spent_ms = round(sum((attempt.ended_at - attempt.started_at) * 1000 for attempt in primary), 3)
        return FallbackTriggered(self.id, decided.model, served.model, reason, spent_ms, self.admitted.metadata)


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
            usage=usage_of(admitted.windows, admitted.created_at),
            primary_model=decision.model,
            fallback_model=served.model if facts.fell_back else None,
            cache_hit=False,
            tool_calls=self.tool_calls,
            finish_reason=served.finish_reason,
        )


def _status(served: Attempt | None, error: RouterError | None) -> TraceStatus:
    """How a call stands in its trace. Without answer and error the caller left."""
    if served is not None:
        return "completed"
    if error is None:
        return "cancelled"
    return "budget_exceeded" if isinstance(error, BudgetExceeded) else "failed"
