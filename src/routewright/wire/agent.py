"""Agent runs: request, response, steps and stream events (spec 2.4, 2.5, contract 5, 10), and checkpoints of a run."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

from .account import Durability, Environment
from .plain import Struct
from .request import Goal, Message, Strategy, Tool, ToolCall
from .response import Tokens

RunStatus = Literal["completed", "partial", "failed", "budget_exceeded"]
Marker = Literal["max_steps_reached", "tool_calls_pending"]
Action = Literal["llm_call", "tool_call"]


class ModelStrategy(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How the models of a run are chosen, as in a route request."""

    goal: Goal | None = None
    strategy: Strategy | None = None


class AgentRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Body of ``POST /v1/agents/run`` (spec 2.4)."""

    task: str
    """What to do, in plain words."""
    tools: list[str | Tool] | None = None
    """Names of built-in or registered tools, and tool objects."""
    max_steps: float | None = None
    """The most model calls and tool calls together, 1 to 1,000. Default: 8."""
    per_step_timeout_ms: float | None = None
    """Time for each step. Default: 30,000."""
    total_budget_usd: float | None = None
    """The most that the run may cost, model calls and tools together."""
    model_strategy: ModelStrategy | None = None
    """Default: as a route request."""
    stream_steps: bool = False
    """Over HTTP: answer with server-sent events."""
    metadata: dict[str, Any] | None = None
    """Tags of the run and of each of its calls."""
    idempotency_key: str | None = None
    """At most 64 bytes in UTF-8: under one key the same run is made once in 24 hours."""


class Step(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One action of a run (spec 2.5)."""

    number: int
    """1, 2 ..."""
    action: Action
    tool: str | None = None
    """Of a ``tool_call``."""
    input: dict[str, Any] = {}
    """The arguments of a tool; of a model call the number of messages."""
    output: dict[str, Any] = {}
    """``result`` or ``error`` of a tool; ``text`` and the names of ``tool_calls`` of a model call."""
    start_ms: float
    """From the start of the run. The time that a run waits to be resumed does not count."""
    duration_ms: float
    cost_usd: float
    model: str | None = None
    """This and the next two of an ``llm_call``."""
    tokens: Tokens | None = None
    finish_reason: str | None = None
    trace_id: str | None = None
    """The trace of the model call, or of the agent that ran as a tool."""


class RunSummary(Struct, frozen=True):
    """A run in figures (spec 2.5)."""

    total_steps: int
    total_cost_usd: float
    total_latency_ms: float
    tools_used: list[str]
    """Names in the order of their first use."""


class AgentResponse(Struct, frozen=True, kw_only=True):
    """The outcome of a run (spec 2.5, contract 10)."""

    trace_id: str
    status: RunStatus
    output: str
    """The final answer; of a run that did not come to one, what the model said last."""
    steps: list[Step]
    summary: RunSummary
    marker: Marker | None = None
    """Why a run is ``partial``."""
    pending_tool_calls: list[ToolCall] = []
    """Calls left to the client. ``Agent.resume`` takes their results."""
    error: dict[str, str] | None = None
    """``code`` and ``message`` of a run that is ``failed`` or ``budget_exceeded``."""


class RunStartedData(Struct, frozen=True):
    """Which run, and its limits."""

    trace_id: str
    max_steps: int
    total_budget_usd: float | None


class RunStarted(Struct, frozen=True):
    """The run is admitted."""

    event: ClassVar[str] = "run.started"
    id: int
    data: RunStartedData


class StepStartedData(Struct, frozen=True, omit_defaults=True):
    """A step that begins."""

    number: int
    action: Action
    tool: str | None = None
    input: dict[str, Any] = {}


class StepStarted(Struct, frozen=True):
    """A step begins."""

    event: ClassVar[str] = "step.started"
    id: int
    data: StepStartedData


class StepCompleted(Struct, frozen=True):
    """A step has ended, well or not."""

    event: ClassVar[str] = "step.completed"
    id: int
    data: Step


class RunCompleted(Struct, frozen=True):
    """The end of a stream."""

    event: ClassVar[str] = "run.completed"
    id: int
    data: AgentResponse


AgentEvent = RunStarted | StepStarted | StepCompleted | RunCompleted


class AgentRunCompleted(Struct, frozen=True):
    """A run has reached a terminal state (spec 6.1)."""

    type: ClassVar[str] = "agent.run_completed"
    trace_id: str
    """The trace of the run."""
    status: str
    """``completed``, ``partial``, ``failed`` or ``budget_exceeded``."""
    summary: RunSummary
    """``total_steps``, ``total_cost_usd``, ``total_latency_ms`` and ``tools_used``."""
    metadata: dict[str, Any]
    """The run's tags."""


class Checkpoint(msgspec.Struct, kw_only=True):
    """What a run needs to go on after its last finished step. It holds what was said."""

    trace_id: str
    created_at: float
    """Unix seconds."""
    request: AgentRequest
    messages: list[Message]
    steps: list[Step]
    tools: list[str] = []
    """Names of the tools that the model may ask for."""
    key: str | None = None
    """The idempotency key that whoever performs it holds: the caller's, or one of its own."""
    failed_tries: list[str] = []
    """Traces of model calls that were tried once more."""
    spent_nanos: int = 0
    """What its steps cost."""
    pending: list[ToolCall] = []
    """Calls of the last answer that have no result yet."""
    approved: list[str] = []
    """Ids of those that the client has approved."""
    status: Literal["running", "pending"] = "running"
    """``pending``: it waits for results from the client."""


class PutAgentState(Struct, frozen=True, tag=True):
    """Keep the checkpoint of a run, a conversation, or what was learned of an account, in place of the one before;
    without a body, remove it. ``DeleteResults`` removes them all."""

    id: str
    """The run's trace id, or ``conversation:<name>``; ``warm:<name>`` for where one is warm, and ``heads``, which hold
    no text."""
    environment: Environment
    body: bytes | None
    until: float
    """Unix seconds: it is removed then. Infinite: it is kept however many come after it."""
    claim: str | None = None
    """The idempotency key of the run."""
    durability: Durability = "buffered"


class AgentState(Struct, frozen=True, tag=True):
    """What was kept by ``PutAgentState``, under its id or idempotency key, as bytes; None: nothing."""

    id: str | None = None
    claim: str | None = None
    environment: Environment | None = None
    """None: of either."""
    informs: bool = False
    """It informs a decision, which cannot wait: the answer may be of a moment ago, or None."""
