"""Traces: what a call did, without its text (spec 2.6, contract 9). Encoded, every field is there, empty ones too."""

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
    """What all spans share. Times are milliseconds from the start of the trace."""

    id: int
    """1, 2 ... in the order of their beginnings."""
    parent_id: int | None = None
    """The span that it belongs to, as a guardrail's to the answer that it checked."""
    name: str
    """What it is about: the model, the guardrail, or the kind of span."""
    start_ms: float
    """From the start of the trace."""
    duration_ms: float = 0.0
    status: SpanStatus = "ok"
    """``ok``, ``error`` or ``cancelled``."""

    @property
    def type(self) -> str:
        """What kind of span it is, as on the wire."""
        return str(self.__struct_config__.tag)


class DecisionSpan(_Span, frozen=True, tag="decision"):
    """The choice: the best few, and how many each constraint rejected."""

    candidates: list[Candidate]
    """The best few, best first."""
    rejected: dict[str, int]
    """Models by the reason that kept them out."""
    digest: str
    """Of the decision: taken again, it is the same."""
    token_count: Literal["bounds", "estimated", "exact"] = "bounds"
    """What is known of the input's tokens, in the vocabulary of the chosen model."""
    reading: Reading | None = None
    """What was read in the prompt, where that could change the choice."""
    instead_of: str | None = None
    """The model that would have been chosen without it, if it is another."""


class CacheSpan(_Span, frozen=True, tag="cache"):
    """A look-up in the response cache."""

    hit: bool
    mode: Literal["exact", "semantic"] | None = None
    """How the entry was found; of a miss, how one was looked for."""
    similarity: float | None = None
    """Of the entry's question and this one, 0 to 1; of a miss, that of the nearest entry."""
    age_s: float | None = None
    """Of the entry."""
    saved_usd: float | None = None
    """What its answer had cost."""
    entry_trace_id: str | None = None
    """The call that made it."""
    compared: list[str] = []
    """Guards that found something to compare in the two questions, and no difference."""
    refused_by: str | None = None
    """The guard that found a difference between the nearest entry's question and this one."""
    risk: float | None = None
    """Estimated chance that the entry's answer is wrong here, at its upper confidence bound."""
    max_error: float | None = None
    """The bound that was asked for."""
    explored: bool = False
    """It would have been a hit, and was answered live to check the bound."""
    features: list[float] = []
    """What the risk was estimated from: how the entry and its neighbours are like the question."""
    namespace: str | None = None
    key: str | None = None
    """Digest of the request, by which its entry can be removed."""


class ModelSpan(_Span, frozen=True, tag="model"):
    """One attempt at one model."""

    model: str
    provider: str
    attempt: int
    """1, 2 ... over all models of the call."""
    latency_ms: float
    """Of the whole attempt. Of an answer of the sandbox it is what the model usually takes."""
    ttft_ms: float | None = None
    """Until the first that came of its answer."""
    tokens: Tokens | None = None
    """What it used, as the provider said or as estimated."""
    usage_estimated: bool = False
    """The provider sent no usage: tokens and cost were estimated from the text."""
    cost_usd: float = 0.0
    """At this model's prices."""
    cost_range_usd: tuple[float, float] | None = None
    """The least and the most that it can have cost, where usage was estimated."""
    finish_reason: str | None = None
    """Why its answer ended, in the vendor's word where nobody knows it; None of one that did not."""
    error: str | None = None
    """The kind of fault that it ended in."""
    repair: bool = False
    """The model was shown its last answer, which did not fit the ``output_type``, and what is wrong with it."""
    hedge: bool = False
    """It ran beside an attempt that showed no life. Of the two the slower one was left: its status is ``cancelled``."""
    probe: bool = False
    """The model had been left alone for its faults; this was to show whether it is well again."""
    saved_usd: float | UnsetType = UNSET
    """What the vendor's cache saved: ``tokens.cached`` at the full price, less what they cost. Left out if nothing."""


class FallbackSpan(_Span, frozen=True, tag="fallback"):
    """A move to the next model of the chain."""

    used: bool
    """The model that it led to brought the answer."""
    from_model: str
    to_model: str
    reason: str
    """``upstream_5xx``, ``timeout``, ``budget`` or ``safety``."""


class GuardrailSpan(_Span, frozen=True, tag="guardrail"):
    """What a rule of a guardrail, whose name the span has, found; never the text itself."""

    rule: str
    """Which of its rules found something."""
    stage: Stage
    """``input`` or ``output``."""
    action: GuardrailAction
    """``redact`` or ``block``."""
    count: int = 1
    """How often."""


class StepSpan(_Span, frozen=True, tag="step"):
    """One step of an agent run, whose action is its name."""

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
    """Its time was over, and what it does could not be stopped."""


Span = DecisionSpan | CacheSpan | ModelSpan | FallbackSpan | GuardrailSpan | StepSpan | SubTraceSpan | ToolSpan


class Content(Struct, frozen=True, kw_only=True):
    """What was said in a call, as the redactor left it. In a trace only where ``Settings.capture`` is set."""

    messages: list[Message] | None = None
    """The prompt, behind the guardrails; None: it is not captured."""
    output: str | None = None
    """The answer; None: there was none, or it is not captured."""
    tool_calls: list[ToolCall] | None = None


class TraceItem(Struct, frozen=True, kw_only=True):
    """A trace as lists show it: without its spans."""

    id: str
    kind: TraceKind = "route"
    status: TraceStatus
    created_at: str
    """RFC 3339, UTC, milliseconds: ``2026-11-22T09:30:00.000Z``. In this one form texts stand in the order of time."""
    duration_ms: float
    environment: Environment
    account: str
    key_id: str | None = None
    policy_id: str | None = None
    policy_version: str = ""
    """Of this and the next two: empty where no Router chose the model."""
    goal: str = ""
    strategy: str = ""
    selected_model: str | None = None
    """The model that served the request; None: none did, though a call that was left may have cost something."""
    fallback_used: bool = False
    cache_hit: bool = False
    cost_usd: float = 0.0
    cost_range_usd: tuple[float, float] | None = None
    """The least and the most that it can have cost, where usage was estimated."""
    charged_usd: float = 0.0
    tokens: Tokens = Tokens()
    """Of the answer that was given. What other attempts used is in their spans."""
    metadata: dict[str, Any] = {}
    error: str | None = None
    """The error's code."""
    compromised: bool = False
    decision_input: DecisionInput | None = None
    traceparent: str | None = None
    """Where it was called from, in the trace of a whole system (W3C Trace Context); None: nobody said."""
    children: list[str] = []
    """Ids of sub-traces."""

    @property
    def model(self) -> str | None:
        """The model that filters and usage take it for: ``selected_model``, else of a whole trace the last that was
        tried."""
        return self.selected_model

    @property
    def provider(self) -> str | None:
        """The provider part of ``model``."""
        model = self.model
        return None if model is None else model.partition("/")[0]

    @property
    def key(self) -> str:
        """Where it stands among the traces of its account: newest first is by falling keys."""
        return f"{self.created_at}{self.id}"


class Trace(TraceItem, frozen=True, kw_only=True):
    """One call from its request to its answer. Prompt and answer are in it only where their capture is turned on."""

    spans: list[Span] = []
    content: Content | None = None

    @property
    def model(self) -> str | None:
        """The model that served, else the last that was tried."""
        if self.selected_model is not None:
            return self.selected_model
        return next((span.model for span in reversed(self.spans) if isinstance(span, ModelSpan)), None)

    @property
    def item(self) -> TraceItem:
        """The trace without its spans."""
        return TraceItem(**{name: getattr(self, name) for name in TraceItem.__struct_fields__})

    def _repr_html_(self) -> str:
        """What notebooks show."""
        from routewright.contrib.notebook import trace_html  # which nothing else needs

        return trace_html(self)

    def copy(self) -> Trace:
        """The same trace, of which nothing that can be changed is shared with this one."""
        return copied(self)


class Counted(Struct, frozen=True, kw_only=True, gc=False):
    """What the analytics count of a trace (``counted_of``)."""

    environment: Environment
    created_at: str
    is_error: bool
    model: str
    """The one that served, else the last that was tried; empty: none."""
    cost_nanos: int
    charged_nanos: int
    tokens: Tokens
    metadata: Mapping[str, Any]
    was_tried: bool
    """A model was called."""
    ended: Sequence[tuple[str, bool]]
    """Each attempt that was not cancelled: its model, and whether that answered. Of an agent run its status, and
    whether that is ``completed``."""
    fallback: str | None = None
    """Why, if a fallback served it."""
    latency: tuple[str, str, float] | None = None
    """If a model answered: which, by what strategy, after how many milliseconds."""
    kind: TraceKind = "route"
    """An agent run is counted as a run only: its model calls are counted by themselves."""
    lookups: Sequence[tuple[float | None, int]] = []
    """Each look into the cache: the age of what was found in seconds, None if nothing was, and nano-dollars saved."""


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
