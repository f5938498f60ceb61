"""An agent run as the storage keeps it: its trace, which names the traces of its model calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, json

from routewright._core.analytics.rollup import counted_of
from routewright._core.call import Call
from routewright._core.moment import timestamp
from routewright._core.money import usd
from routewright.wire import (
    Caller,
    Checkpoint,
    Counted,
    Environment,
    LedgerRow,
    Span,
    StepSpan,
    SubTraceSpan,
    Tokens,
    ToolSpan,
    Trace,
    TraceStatus,
)


class RunRecord(Struct, eq=False):
    """A run that has ended (``protocols.TraceDraft``). Its model calls are counted and billed by themselves, so it
    adds nothing to any sum."""

    caller: Caller
    state: Checkpoint
    status: TraceStatus
    duration_ms: float
    error_code: str | None
    rollup_keys: tuple[str, ...] = ()
    deadline: float = 0.0

    line = None
    """It is stored as its trace."""
    captured: Any = None
    text_bytes = 0
    rows: Sequence[LedgerRow] = ()
    ledger_rows: Sequence[LedgerRow] = ()
    snapshot_ids = None
    is_void = False
    cost_nanos = charged_nanos = 0

    def void(self, is_void: bool) -> None:
        """Nothing: it is charged nothing."""

    @property
    def id(self) -> str:
        """The run's trace id."""
        return self.state.trace_id

    @property
    def environment(self) -> Environment:
        """Where it was made."""
        return self.caller.environment

    @property
    def created(self) -> str:
        """RFC 3339."""
        return timestamp(self.state.created_at)

    @property
    def key(self) -> str:
        """Its trace's key."""
        return self.created + self.id

    @property
    def wordless(self) -> Trace:
        """Its trace, which holds no words but those that are captured."""
        return self.trace

    @property
    def trace(self) -> Trace:
        """Its trace. Each reader gets one of its own."""
        state, caller = self.state, self.caller
        strategy = state.request.model_strategy
        tokens = [step.tokens for step in state.steps if step.tokens is not None]
        children = [step.trace_id for step in state.steps if step.trace_id is not None] + state.failed_tries
        return Trace(
            id=self.id,
            kind="agent",
            status=self.status,
            created_at=self.created,
            duration_ms=self.duration_ms,
            environment=caller.environment,
            account=caller.account,
            key_id=caller.key_id,
            goal=(strategy and strategy.goal) or "",
            strategy=(strategy and strategy.strategy) or "",
            cost_usd=usd(state.spent_nanos),
            tokens=Tokens(
                sum(each.input for each in tokens),
                sum(each.output for each in tokens),
                sum(each.cached for each in tokens),
            ),
            metadata=state.request.metadata or {},
            error=self.error_code,
            children=sorted(children),  # ids are in the order of time
            spans=self.spans,
        )

    @property
    def spans(self) -> list[Span]:
        """Each step, and what it did below it."""
        found: list[Span] = []
        for step, start_ms in zip(self.state.steps, self.state.starts_ms, strict=True):
            status = "error" if "error" in step.output else "ok"
            shared: dict[str, Any] = {"start_ms": start_ms, "duration_ms": step.duration_ms, "status": status}
            number = len(found) + 1
            found.append(StepSpan(id=number, name=step.action, number=step.number, **shared))
            shared |= {"id": number + 1, "parent_id": number}
            if step.tool is not None:
                found.append(
                    ToolSpan(
                        name=step.tool,
                        tool=step.tool,
                        input=_size(step.input),
                        output=_size(step.output),
                        still_running=bool(step.output.get("still_running")),
                        **shared,
                    )
                )
            if step.trace_id is not None:
                found.append(
                    SubTraceSpan(
                        name=step.model or step.tool or "model call",
                        trace_id=step.trace_id,
                        model=step.model,
                        cost_usd=step.cost_usd,
                        tokens=step.tokens,
                        **shared | {"id": len(found) + 1},
                    )
                )
        return found

    @property
    def counted(self) -> Counted:
        """That there was a run, and how it ended: its calls are counted by themselves."""
        return counted_of(self.trace)


def _size(value: dict[str, Any]) -> dict[str, Any]:
    return {"bytes": len(json.encode(value))}


Recorded = Call | RunRecord
"""What leaves a trace."""
