"""An agent run as stored: a trace that refers to the traces of its model calls."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, json
from msgspec.structs import replace

from routewright import wire
from routewright._core.analytics.rollup import counted_of
from routewright._core.call import Call
from routewright._core.guardrails.capture import Texts
from routewright._core.money import usd
from routewright.wire import JsonObject
from routewright.wire.timestamps import timestamp


class RunRecord(Struct, eq=False):
    """A finished run (``protocols.TraceDraft``). Its model calls are counted and billed separately."""

    wordless: wire.Trace
    captured: Texts | None = None
    """The arguments and results of its tools (``words_of``), redacted on first read."""
    rollup_keys: tuple[str, ...] = ()
    deadline: float = 0.0
    text_bytes: int = 0

    line = None
    """None: the whole trace is stored."""
    rows: Sequence[wire.LedgerRow] = ()
    ledger_rows: Sequence[wire.LedgerRow] = ()
    snapshot_ids = None
    is_void = False
    cost_nanos = charged_nanos = 0

    def void(self, is_void: bool) -> None:
        """Does nothing: a run has no charge of its own."""

    def shorten(self) -> None:
        """Drop captured content."""
        self.captured = None

    def record_wait(self, at: float) -> None:
        """Does nothing: the answer of a run does not show its latency."""

    @property
    def id(self) -> str:
        """The run's trace id."""
        return self.wordless.id

    @property
    def caller(self) -> wire.Caller:
        """The account, environment and key of the run."""
        return wire.Caller(self.wordless.account, self.environment, self.wordless.key_id)

    @property
    def environment(self) -> wire.Environment:
        """The environment of the run."""
        return self.wordless.environment

    @property
    def created(self) -> str:
        """RFC 3339."""
        return self.wordless.created_at

    @property
    def key(self) -> str:
        """The key of its trace."""
        return self.wordless.key

    @property
    def trace(self) -> wire.Trace:
        """A new copy of its trace."""
        trace = self.wordless.copy()
        words = None if self.captured is None else self.captured.content.messages
        if words is None:
            return trace
        texts = iter(words)
        spans = [
            replace(span, input={"text": next(texts).content}, output={"text": next(texts).content})
            if isinstance(span, wire.ToolSpan)
            else span
            for span in trace.spans
        ]
        return replace(trace, spans=spans)

    @property
    def counted(self) -> wire.Counted:
        """The roll-up counts of the run itself, without its calls."""
        return counted_of(self.wordless)


def words_of(state: wire.Checkpoint) -> list[wire.Message]:
    """The arguments and result of each tool call, alternating."""
    tools = [step for step in state.steps if step.tool is not None]
    return [wire.Message("tool", json.encode(value).decode()) for step in tools for value in (step.input, step.output)]


def run_trace(
    state: wire.Checkpoint,
    caller: wire.Caller,
    request: wire.RouteRequest | None,
    status: wire.TraceStatus,
    duration_ms: float,
    error: str | None,
) -> wire.Trace:
    """The trace of a run, without texts. ``request``: of its own model calls, if there were any."""
    tokens = [step.tokens for step in state.steps if step.tokens is not None]
    tokens += [call.tokens for call in state.nested if call.step == 0 and call.tokens is not None]
    children = [step.trace_id for step in state.steps if step.trace_id is not None] + state.failed_tries
    children += [call.trace_id for call in state.nested]
    return wire.Trace(
        id=state.trace_id,
        kind="agent",
        status=status,
        created_at=timestamp(state.created_at),
        duration_ms=duration_ms,
        environment=caller.environment,
        account=caller.account,
        key_id=caller.key_id,
        policy_id=None if request is None else request.policy_id,
        goal=(request and request.goal) or "",
        strategy=(request and request.strategy) or "",
        cost_usd=usd(state.spent_nanos),
        tokens=wire.Tokens(
            sum(usage.input for usage in tokens),
            sum(usage.output for usage in tokens),
            sum(usage.cached for usage in tokens),
        ),
        metadata=state.request.metadata or {},
        error=error,
        children=sorted(children),  # ids sort by time
        spans=_spans(state),
    )


def _spans(state: wire.Checkpoint) -> list[wire.Span]:
    """A span per step, with its tool call or model call below it."""
    spans: list[wire.Span] = []
    for step in state.steps:
        status = "error" if "error" in step.output else "ok"
        shared: JsonObject = {"start_ms": step.start_ms, "duration_ms": step.duration_ms, "status": status}
        number = len(spans) + 1
        spans.append(wire.StepSpan(id=number, name=step.action, number=step.number, **shared))
        shared["parent_id"] = number
        if step.tool is not None:
            spans.append(
                wire.ToolSpan(
                    id=len(spans) + 1,
                    name=step.tool,
                    tool=step.tool,
                    input=_size(step.input),
                    output=_size(step.output),
                    still_running=bool(step.output.get("still_running")),
                    **shared,
                )
            )
        calls = [(call.model or "agent run", call) for call in state.nested if call.step == step.number]
        if step.trace_id is not None:
            own = wire.NestedCall(step.number, step.trace_id, step.cost_usd, step.model, step.tokens)
            calls.insert(0, (step.model or step.tool or "model call", own))
        for name, call in calls:
            spans.append(_sub_trace(len(spans) + 1, name, call, shared))
    for call in state.nested:
        if call.step == 0:
            status = "error" if call.failed else "ok"
            times: JsonObject = {"start_ms": call.start_ms, "duration_ms": call.duration_ms, "status": status}
            spans.append(_sub_trace(len(spans) + 1, call.model or "run", call, times))
    return spans


def _sub_trace(id: int, name: str, call: wire.NestedCall, shared: JsonObject) -> wire.SubTraceSpan:
    return wire.SubTraceSpan(
        id=id, name=name, trace_id=call.trace_id, model=call.model, cost_usd=call.cost_usd, tokens=call.tokens, **shared
    )


def _size(value: JsonObject) -> JsonObject:
    return {"bytes": len(json.encode(value))}


Recorded = Call | RunRecord
