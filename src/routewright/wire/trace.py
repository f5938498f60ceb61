"""Traces: what a call did, without its text (spec 2.6, contract 9). All fields are encoded, even empty ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from .account import Environment
from .decision import Candidate, DecisionInput, Reading
from .plain import Struct
from .policy import GuardrailAction, Stage
from .request import Message, ToolCall
from .response import Tokens

TraceKind = Literal["route", "agent"]
TraceStatus = Literal["running", "completed", "partial", "failed", "budget_exceeded", "cancelled"]
FAILED: Collection[TraceStatus] = ("failed", "budget_exceeded")  # how a request ends in an error
SpanStatus = Literal["ok", "error", "cancelled"]
_T = TypeVar("_T", bound=msgspec.Struct)


class _Span(Struct, frozen=True, kw_only=True, tag_field="type"):
    """Common fields of spans. Times are milliseconds from the start of the trace."""

    id: int
    """1, 2 ... in order of start."""
    parent_id: int | None = None
    """The parent span, such as the attempt whose answer a guardrail checked."""
    name: str
    """The model, the guardrail, or the kind of span."""
    start_ms: float
    """From the start of the trace."""
    duration_ms: float = 0.0
    status: SpanStatus = "ok"
    """``ok``, ``error`` or ``cancelled``."""

    @property
    def type(self) -> str:
        """The kind of span, as on the wire."""
        return str(self.__struct_config__.tag)


class DecisionSpan(_Span, frozen=True, tag="decision"):
    """The decision: the best candidates, and how many models each constraint rejected."""

    candidates: list[Candidate]
    """The best candidates, best first."""
    rejected: dict[str, int]
    """Number of rejected models by reason."""
    digest: str
    """Digest of the decision. A replay gives the same digest."""
    token_count: Literal["bounds", "estimated", "exact"] = "bounds"
    """Input tokens, in the vocabulary of the chosen model."""
    reading: Reading | None = None
    """The prediction from the prompt, if it could change the choice."""
    instead_of: str | None = None
    """The model chosen without the prediction, if it differs."""


class CacheSpan(_Span, frozen=True, tag="cache"):
    """A look-up in the response cache."""

    hit: bool
    mode: Literal["exact", "semantic"] | None = None
    """How the entry was searched for."""
    similarity: float | None = None
    """Similarity of the entry's question to this one, 0 to 1. For a miss: of the nearest entry."""
    age_s: float | None = None
    """Of the entry."""
    saved_usd: float | None = None
    """Original cost of the entry's answer."""
    entry_trace_id: str | None = None
    """The call that stored the entry."""
    compared: list[str] = []
    """Guards that applied to the two questions and found no difference."""
    refused_by: str | None = None
    """The guard that found a difference between the nearest entry's question and this one."""
    risk: float | None = None
    """Estimated chance that the entry's answer is wrong here, at its upper confidence bound."""
    max_error: float | None = None
    """The requested bound."""
    explored: bool = False
    """A hit that was answered live to check the bound."""
    features: list[float] = []
    """Inputs of the risk estimate: similarity of the entry and its neighbours to the question."""
    namespace: str | None = None
    key: str | None = None
    """Digest of the request, to remove its entry with."""


class ModelSpan(_Span, frozen=True, tag="model"):
    """One attempt at one model."""

    model: str
    provider: str
    attempt: int
    """1, 2 ... over all models of the call."""
    latency_ms: float
    """Duration of the attempt. In the sandbox: the model's usual time."""
    ttft_ms: float | None = None
    """Time to the first output."""
    tokens: Tokens | None = None
    """Usage, as reported by the provider or estimated."""
    usage_estimated: bool = False
    """Tokens and cost were estimated from the text, since the provider sent no usage."""
    cost_usd: float = 0.0
    """At this model's prices."""
    cost_range_usd: tuple[float, float] | None = None
    """The least and the most that it can have cost, where usage was estimated."""
    finish_reason: str | None = None
    """Why the answer ended; an unknown reason in the vendor's word. None: it did not end."""
    error: str | None = None
    """The kind of fault, if it failed."""
    repair: bool = False
    """A repair: the model was sent its last answer, which did not match ``output_type``, with the errors."""
    hedge: bool = False
    """It ran beside a silent attempt. The slower of the two has the status ``cancelled``."""
    probe: bool = False
    """It probed whether a model with an open circuit works again."""
    saved_usd: float | UnsetType = UNSET
    """What the vendor's cache saved: ``tokens.cached`` at the full price, less what they cost. Left out if nothing."""


class FallbackSpan(_Span, frozen=True, tag="fallback"):
    """A move to the next model of the chain."""

    used: bool
    """The model it moved to answered."""
    from_model: str
    to_model: str
    reason: str
    """``upstream_5xx``, ``timeout``, ``budget`` or ``safety``."""


class GuardrailSpan(_Span, frozen=True, tag="guardrail"):
    """A finding of a guardrail's rule, without the text. ``name`` is the guardrail."""

    rule: str
    """The rule."""
    stage: Stage
    """``input`` or ``output``."""
    action: GuardrailAction
    """``redact`` or ``block``."""
    count: int = 1
    """Number of matches."""


class StepSpan(_Span, frozen=True, tag="step"):
    """One step of an agent run. ``name`` is its action."""

    number: int


class SubTraceSpan(_Span, frozen=True, tag="sub_trace"):
    """A call with a trace of its own, such as the model call of an agent's step."""

    trace_id: str
    model: str | None = None
    cost_usd: float = 0.0
    tokens: Tokens | None = None


class ToolSpan(_Span, frozen=True, tag="tool"):
    """A tool that an agent ran."""

    tool: str
    input: dict[str, Any]
    """The size of the arguments: ``{"bytes": 42}``."""
    output: dict[str, Any]
    """The size of the result or error."""
    still_running: bool = False
    """It ran out of time and could not be stopped."""


Span = DecisionSpan | CacheSpan | ModelSpan | FallbackSpan | GuardrailSpan | StepSpan | SubTraceSpan | ToolSpan


class Content(Struct, frozen=True, kw_only=True):
    """Prompt and answer of a call, redacted. In a trace only with ``Settings.capture``."""

    messages: list[Message] | None = None
    """The prompt after guardrails. None: not captured."""
    output: str | None = None
    """The answer. None: no answer, or not captured."""
    tool_calls: list[ToolCall] | None = None


class TraceItem(Struct, frozen=True, kw_only=True):
    """A trace without spans, as in lists."""

    id: str
    kind: TraceKind = "route"
    status: TraceStatus
    created_at: str
    """RFC 3339, UTC, milliseconds: ``2026-11-22T09:30:00.000Z``. Sorts in order of time."""
    duration_ms: float
    environment: Environment
    account: str
    key_id: str | None = None
    policy_id: str | None = None
    policy_version: str = ""
    """This field and the next two are empty if no Router chose the model."""
    goal: str = ""
    strategy: str = ""
    selected_model: str | None = None
    """The model that served the request. None: no answer; a cancelled call may still have a cost."""
    fallback_used: bool = False
    cache_hit: bool = False
    cost_usd: float = 0.0
    cost_range_usd: tuple[float, float] | None = None
    """The least and the most that it can have cost, where usage was estimated."""
    charged_usd: float = 0.0
    tokens: Tokens = Tokens()
    """Tokens of the answer. Those of other attempts are in their spans."""
    metadata: dict[str, Any] = {}
    error: str | None = None
    """The error's code."""
    compromised: bool = False
    decision_input: DecisionInput | None = None
    traceparent: str | None = None
    """The caller's W3C Trace Context, if it sent one."""
    children: list[str] = []
    """Ids of sub-traces."""

    @property
    def model(self) -> str | None:
        """The model for filters and usage: ``selected_model``; in a trace with spans, else the last one tried."""
        return self.selected_model

    @property
    def provider(self) -> str | None:
        """The provider part of ``model``."""
        model = self.model
        return None if model is None else model.partition("/")[0]

    @property
    def key(self) -> str:
        """Sort key among the traces of its account; newest first is descending."""
        return f"{self.created_at}{self.id}"


class Trace(TraceItem, frozen=True, kw_only=True):
    """A call from request to answer. Prompt and answer are included only if captured."""

    spans: list[Span] = []
    content: Content | None = None

    @property
    def model(self) -> str | None:
        """The model that served, else the last one tried."""
        if self.selected_model is not None:
            return self.selected_model
        return next((span.model for span in reversed(self.spans) if isinstance(span, ModelSpan)), None)

    @property
    def item(self) -> TraceItem:
        """The trace without its spans."""
        return TraceItem(**{name: getattr(self, name) for name in TraceItem.__struct_fields__})

    def _repr_html_(self) -> str:
        """HTML for notebooks."""
        from routewright.contrib.notebook import trace_html  # which nothing else needs

        return trace_html(self)

    def copy(self) -> Trace:
        """A copy that shares nothing mutable with this trace."""
        return copied(self)


class Counted(Struct, frozen=True, kw_only=True, gc=False):
    """What analytics count from a trace (``counted_of``)."""

    environment: Environment
    created_at: str
    is_error: bool
    model: str
    """The model that served, else the last one tried; empty: none."""
    cost_nanos: int
    charged_nanos: int
    tokens: Tokens
    metadata: Mapping[str, Any]
    was_tried: bool
    """A model was called."""
    ended: Sequence[tuple[str, bool]]
    """Per attempt that was not cancelled: its model, and whether it answered. For an agent run: its status, and
    whether that is ``completed``."""
    fallback: str | None = None
    """Reason of the fallback, if one served it."""
    latency: tuple[str, str, float] | None = None
    """Model, strategy and milliseconds, if a model answered."""
    kind: TraceKind = "route"
    """Agent runs count only as runs; their model calls are counted separately."""
    lookups: Sequence[tuple[float | None, int]] = []
    """Per cache look-up: age of the hit in seconds (None: a miss) and nano-dollars saved."""


def copied(value: _T) -> _T:
    """The same struct, whose lists and dicts are its own."""
    mine: _T = _own(value)
    return mine


def _own(value: Any) -> Any:
    match value:
        case list():
            return [_own(item) for item in value]
        case dict():
            return {key: _own(item) for key, item in value.items()}
        case msgspec.Struct():
            fields = {name: getattr(value, name) for name in value.__struct_fields__}
            return replace(
                value, **{name: _own(held) for name, held in fields.items() if isinstance(held, list | dict | Content)}
            )
    return value
