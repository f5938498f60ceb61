"""Agent runs: request, response, steps, stream events (spec 2.4, 2.5, contract 5, 10) and checkpoints."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

from .account import Durability, Environment
from .plain import StreamEvent, Struct, name_events
from .request import Goal, Message, Strategy, Tool, ToolCall
from .response import Tokens

RunStatus = Literal["completed", "partial", "failed", "budget_exceeded"]
Marker = Literal["max_steps_reached", "tool_calls_pending"]
Action = Literal["llm_call", "tool_call"]


class ModelStrategy(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a run's models are chosen. Same meaning as in a route request."""

    goal: Goal | None = None
    strategy: Strategy | None = None


class AgentRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Body of ``POST /v1/agents/run`` (spec 2.4)."""

    task: str
    """The task in plain words."""
    tools: list[str | Tool] | None = None
    """Names of built-in or registered tools, or tool declarations."""
    max_steps: float | None = None
    """Limit on model calls and tool calls together, 1 to 1,000. Default: 8."""
    per_step_timeout_ms: float | None = None
    """Time limit per step. Default: 30,000."""
    total_budget_usd: float | None = None
    """Limit on the run's cost, model calls and tools together."""
    model_strategy: ModelStrategy | None = None
    """Default: the defaults of a route request."""
    stream_steps: bool = False
    """Over HTTP: answer with server-sent events."""
    metadata: dict[str, Any] | None = None
    """Tags of the run and all its calls."""
    idempotency_key: str | None = None
    """At most 64 bytes in UTF-8. Repeating a request with the same key within 24 hours runs it only once."""


class Step(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One action of a run (spec 2.5)."""

    number: int
    """1, 2 ..."""
    action: Action
    tool: str | None = None
    """Name of the tool, for a ``tool_call``."""
    input: dict[str, Any] = {}
    """A tool's arguments, or the number of messages of a model call."""
    output: dict[str, Any] = {}
    """A tool's ``result`` or ``error``; a model call's ``text`` and the names of its ``tool_calls``."""
    start_ms: float
    """Time from the start of the run, without the time it waited to be resumed."""
    duration_ms: float
    cost_usd: float
    model: str | None = None
    """Like ``tokens`` and ``finish_reason``, only for an ``llm_call``."""
    tokens: Tokens | None = None
    finish_reason: str | None = None
    trace_id: str | None = None
    """Trace of the model call, or of an agent that ran as a tool."""


class RunSummary(Struct, frozen=True):
    """Totals of a run (spec 2.5)."""

    total_steps: int
    total_cost_usd: float
    total_latency_ms: float
    tools_used: list[str]
    """Names, in order of first use."""


class AgentResponse(Struct, frozen=True, kw_only=True):
    """The outcome of a run (spec 2.5, contract 10)."""

    trace_id: str
    status: RunStatus
    output: str
    """The final answer, or the model's last text if there is none."""
    steps: list[Step]
    summary: RunSummary
    marker: Marker | None = None
    """Why a run is ``partial``."""
    pending_tool_calls: list[ToolCall] = []
    """Tool calls for the client to run. Pass their results to ``Agent.resume``."""
    error: dict[str, str] | None = None
    """``code`` and ``message`` if the run is ``failed`` or ``budget_exceeded``."""


class RunStartedData(Struct, frozen=True):
    """Trace id and limits of the run."""

    trace_id: str
    max_steps: int
    total_budget_usd: float | None


class RunStarted(StreamEvent, frozen=True, tag="run.started"):
    """The run was admitted."""

    data: RunStartedData


class StepStartedData(Struct, frozen=True, omit_defaults=True):
    """The step that begins."""

    number: int
    action: Action
    tool: str | None = None
    input: dict[str, Any] = {}


class StepStarted(StreamEvent, frozen=True, tag="step.started"):
    """A step begins."""

    data: StepStartedData


class StepCompleted(StreamEvent, frozen=True, tag="step.completed"):
    """A step ended, successfully or not."""

    data: Step


class RunCompleted(StreamEvent, frozen=True, tag="run.completed"):
    """The end of a stream."""

    data: AgentResponse


AgentEvent = RunStarted | StepStarted | StepCompleted | RunCompleted
name_events(AgentEvent)


class AgentRunCompleted(Struct, frozen=True):
    """A run reached a terminal state (spec 6.1)."""

    type: ClassVar[str] = "agent.run_completed"
    trace_id: str
    """The trace of the run."""
    status: str
    """``completed``, ``partial``, ``failed`` or ``budget_exceeded``."""
    summary: RunSummary
    """``total_steps``, ``total_cost_usd``, ``total_latency_ms`` and ``tools_used``."""
    metadata: dict[str, Any]
    """The run's tags."""


class NestedCall(Struct, frozen=True, omit_defaults=True):
    """A call of the Router in a run, or a run within it."""

    step: int
    """Number of the tool's step; 0 in a run without steps."""
    trace_id: str
    cost_usd: float
    model: str | None = None
    tokens: Tokens | None = None
    start_ms: float = 0.0
    """Time from the start of a run without steps."""
    duration_ms: float = 0.0
    failed: bool = False


class Checkpoint(msgspec.Struct, kw_only=True):
    """State needed to continue a run after its last finished step. Contains prompts and answers."""

    trace_id: str
    created_at: float
    """Unix seconds."""
    request: AgentRequest
    messages: list[Message]
    steps: list[Step]
    tools: list[str] = []
    """Names of the tools that the model may call."""
    key: str | None = None
    """Idempotency key held by the process that performs the run: the caller's, or a generated one."""
    failed_tries: list[str] = []
    """Traces of model calls that were retried."""
    spent_nanos: int = 0
    """Cost of its steps."""
    nested: list[NestedCall] = []
    """Calls by its tools; included in the cost of their steps."""
    pending: list[ToolCall] = []
    """Tool calls of the last answer without a result."""
    approved: list[str] = []
    """Ids of pending calls approved by the client."""
    status: Literal["running", "pending"] = "running"
    """``pending``: the run waits for the client's results."""


class PutAgentState(Struct, frozen=True, tag=True):
    """Store or replace a run's checkpoint, a conversation, or data learned for an account. Without a body, remove it.
    ``DeleteResults`` removes them all."""

    id: str
    """A run's trace id, ``conversation:<name>``, ``warm:<name>`` (which model has a conversation cached), or ``heads``.
    The last two hold no text."""
    environment: Environment
    body: bytes | None
    until: float
    """Unix seconds of its removal. Infinity: it is never evicted."""
    claim: str | None = None
    """Idempotency key of the run."""
    durability: Durability = "buffered"


class AgentState(Struct, frozen=True, tag=True):
    """The bytes stored by ``PutAgentState`` under an id or idempotency key, or None."""

    id: str | None = None
    claim: str | None = None
    environment: Environment | None = None
    """None: either."""
    informs: bool = False
    """True: a decision needs it at once, so the answer may be slightly stale, or None."""
