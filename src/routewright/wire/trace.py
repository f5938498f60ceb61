"""Traces: what a call did, without its text (spec 2.6, contract 9). Empty fields are encoded too."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from .account import Environment
from .decision import Candidate, DecisionInput
from .plain import Struct, preformatted
from .policy import GuardrailAction, Stage
from .request import Message, ToolCall
from .response import Tokens

TraceKind = Literal["route", "agent"]
TraceStatus = Literal["running", "completed", "partial", "failed", "budget_exceeded", "cancelled"]
FAILED: Collection[TraceStatus] = ("failed", "budget_exceeded")  # the request ended in an error
SpanStatus = Literal["ok", "error", "cancelled"]
_T = TypeVar("_T", bound=msgspec.Struct)


class _Span(Struct, frozen=True, kw_only=True, tag_field="type"):
    """Fields of every span."""

    id: int
    """1, 2 ... by start time."""
    parent_id: int | None = None
    """Enclosing span; for a guardrail, the span of the answer that it checked."""
    name: str
    """The model, the guardrail, or the kind of span."""
    start_ms: float
    """Milliseconds from the start of the trace."""
    duration_ms: float = 0.0
    status: SpanStatus = "ok"
    """``ok``, ``error`` or ``cancelled``."""

    @property
    def type(self) -> str:
        """Kind of span, as on the wire."""
        return str(self.__struct_config__.tag)


class ShadowDecision(Struct, frozen=True, kw_only=True):
    """What the shadow of a policy (``Policy.shadow``) decided for the same request. It calls no model."""

    policy: str
    """The shadow's version, or the name of a draft."""
    model: str | None = None
    """None: no model fits."""
    cost_usd: float | None = None
    """Expected cost of the request."""
    reason: str | None = None
    """Why no model fits."""


class DecisionSpan(_Span, frozen=True, tag="decision"):
    """The decision: the best candidates, and the number of rejections by reason."""

    candidates: list[Candidate]
    """The best candidates, best first."""
    rejected: dict[str, int]
    """Number of rejected models by reason."""
    digest: str
    """Digest of the decision; a replay has the same digest."""
    token_count: Literal["bounds", "estimated", "exact"] = "bounds"
    """How precisely input tokens are known in the chosen model's vocabulary."""
    passed_by: str | None = None
    """The model that would have been called first, but for its open circuit: its calls failed, or its key was
    refused."""
    shadow: ShadowDecision | UnsetType = UNSET
    """What the policy's shadow decided. Left out if it has none."""


class CacheSpan(_Span, frozen=True, tag="cache"):
    """A look-up in the response cache."""

    hit: bool
    mode: Literal["exact", "semantic"] | None = None
    """How the entry was found; for a miss, how it was looked up."""
    similarity: float | None = None
    """Similarity of the entry's question to this one, 0 to 1; for a miss, that of the nearest entry."""
    age_s: float | None = None
    """Age of the entry in seconds."""
    saved_usd: float | None = None
    """Original cost of the cached answer."""
    entry_trace_id: str | None = None
    """Trace of the call that created the entry."""
    compared: list[str] = []
    """Guards that compared something in the two questions and found no difference."""
    refused_by: str | None = None
    """The guard that found a difference from the nearest entry's question."""
    risk: float | None = None
    """Upper confidence bound of the probability that the cached answer is wrong for this request."""
    max_error: float | None = None
    """The requested limit on wrong answers."""
    explored: bool = False
    """True: the call was a hit but was answered live, to check the error rate."""
    features: list[float] = []
    """Inputs of the risk estimate: similarity of the entry and its neighbours to the question."""
    namespace: str | None = None
    key: str | None = None
    """Digest of the request; its entry can be removed by this key."""


class ModelSpan(_Span, frozen=True, tag="model"):
    """One attempt at one model."""

    model: str
    provider: str
    attempt: int
    """1, 2 ... across all models of the call."""
    latency_ms: float
    """Duration of the attempt. In the sandbox, the model's usual latency."""
    ttft_ms: float | None = None
    """Time until the first part of the answer."""
    tokens: Tokens | None = None
    """Tokens used, reported by the provider or estimated."""
    usage_estimated: bool = False
    """True: the provider sent no usage, so tokens and cost are estimated from the text."""
    cost_usd: float = 0.0
    """Cost at this model's prices."""
    cost_range_usd: tuple[float, float] | None = None
    """Lowest and highest possible cost, if usage was estimated."""
    finish_reason: str | None = None
    """Why the answer ended; unknown reasons are kept in the vendor's words. None: it did not finish."""
    error: str | None = None
    """Kind of fault, if the attempt failed."""
    repair: bool = False
    """True: a retry that shows the model its previous answer and why it does not match ``output_type``."""
    hedge: bool = False
    """True: it ran in parallel with an attempt that was slow to respond. The slower of the two is ``cancelled``."""
    probe: bool = False
    """True: a probe of a model whose circuit was open."""
    saved_usd: float | UnsetType = UNSET
    """Saved by the vendor's cache: ``tokens.cached`` at the full price minus their cost. Left out if zero."""


class FallbackSpan(_Span, frozen=True, tag="fallback"):
    """A switch to the next model of the chain."""

    used: bool
    """True: ``to_model`` gave the final answer."""
    from_model: str
    to_model: str
    reason: str
    """``upstream_5xx``, ``timeout``, ``budget`` or ``safety``."""
    fault: str | None = None
    """What was wrong with ``from_model``: a kind of fault, or ``hedge`` if it was slower; if it was not called,
    ``circuit_open`` or ``budget``. None in traces of earlier versions."""


class GuardrailSpan(_Span, frozen=True, tag="guardrail"):
    """A match of a guardrail rule, never the matched text. The span's name is the guardrail's."""

    rule: str
    """The rule that matched."""
    stage: Stage
    """``input`` or ``output``."""
    action: GuardrailAction
    """``redact`` or ``block``."""
    count: int = 1
    """Number of matches."""


class StepSpan(_Span, frozen=True, tag="step"):
    """One step of an agent run. The span's name is the step's action."""

    number: int


class SubTraceSpan(_Span, frozen=True, tag="sub_trace"):
    """A call with its own trace, such as the model call of an agent step."""

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
    """True: the tool timed out and could not be stopped."""


Span = DecisionSpan | CacheSpan | ModelSpan | FallbackSpan | GuardrailSpan | StepSpan | SubTraceSpan | ToolSpan


class Content(Struct, frozen=True, kw_only=True):
    """Prompt and answer of a call, after redaction. Present only with ``Settings.capture``."""

    messages: list[Message] | None = None
    """The prompt after the guardrails. None: not captured."""
    output: str | None = None
    """The answer. None: there was none, or it is not captured."""
    tool_calls: list[ToolCall] | None = None


class TraceItem(Struct, frozen=True, kw_only=True):
    """A trace without its spans, as lists show it."""

    id: str
    kind: TraceKind = "route"
    status: TraceStatus
    created_at: str
    """RFC 3339, UTC, milliseconds: ``2026-11-22T09:30:00.000Z``. These strings sort by time."""
    duration_ms: float
    environment: Environment
    account: str
    key_id: str | None = None
    policy_id: str | None = None
    policy_version: str = ""
    """Like ``goal`` and ``strategy``, empty if no Router chose the model."""
    goal: str = ""
    strategy: str = ""
    selected_model: str | None = None
    """The model that served the request; of a ``cancelled`` call, the one that was answering. None: none did."""
    fallback_used: bool = False
    cache_hit: bool = False
    cost_usd: float = 0.0
    cost_range_usd: tuple[float, float] | None = None
    """Lowest and highest possible cost, if usage was estimated."""
    charged_usd: float = 0.0
    tokens: Tokens = Tokens()
    """Tokens of the final answer. Those of other attempts are in their spans."""
    metadata: dict[str, Any] = {}
    error: str | None = None
    """Error code."""
    compromised: bool = False
    decision_input: DecisionInput | None = None
    traceparent: str | None = None
    """W3C Trace Context of the caller, if given."""
    children: list[str] = []
    """Ids of sub-traces."""

    @property
    def model(self) -> str | None:
        """The model used by filters and usage: ``selected_model``; a ``Trace`` without one has its last attempt's."""
        return self.selected_model

    @property
    def provider(self) -> str | None:
        """The provider part of ``model``."""
        model = self.model
        return None if model is None else model.partition("/")[0]

    @property
    def key(self) -> str:
        """Sort key among the account's traces; descending order is newest first."""
        return f"{self.created_at}{self.id}"


class Trace(TraceItem, frozen=True, kw_only=True):
    """One call from request to answer. It contains prompt and answer only if capture is turned on."""

    spans: list[Span] = []
    content: Content | None = None

    @property
    def model(self) -> str | None:
        """The model that served the request, else the last one tried."""
        if self.selected_model is not None:
            return self.selected_model
        return next((span.model for span in reversed(self.spans) if isinstance(span, ModelSpan)), None)

    @property
    def item(self) -> TraceItem:
        """The trace without its spans."""
        return TraceItem(**{name: getattr(self, name) for name in TraceItem.__struct_fields__})

    def _repr_html_(self) -> str:
        """What notebooks show: all but the content, since they store what they show."""
        return preformatted(replace(self, content=None).to_json(indent=2))

    def copy(self) -> Trace:
        """A copy that shares no list or dict with this trace."""
        return copied(self)


class Counted(Struct, frozen=True, kw_only=True, gc=False):
    """What analytics count of one trace (see ``counted_of``)."""

    environment: Environment
    created_at: str
    is_error: bool
    model: str
    """The model that served, else the last one tried; empty if none."""
    cost_nanos: int
    charged_nanos: int
    tokens: Tokens
    metadata: Mapping[str, Any]
    was_tried: bool
    """A model was called."""
    ended: Sequence[tuple[str, bool]]
    """Model and success of each attempt that was not cancelled. For an agent run: its status, and whether that is
    ``completed``."""
    fallback: str | None = None
    """What was wrong with the first model (``FallbackSpan.fault``), if a fallback served the request."""
    passed_by: str | None = None
    """The model that it would have called first, but for its open circuit."""
    latency: tuple[str, str, float] | None = None
    """Model, strategy and milliseconds, if a model answered."""
    kind: TraceKind = "route"
    """An agent run counts only as a run; its model calls are counted separately."""
    lookups: Sequence[tuple[float | None, int]] = []
    """Cache look-ups: age of the hit in seconds (None: a miss), and nano-dollars saved."""
    policy_version: str = ""
    """Empty without a policy."""
    shadow: str = ""
    """``same``, or the models of the policy and its shadow: ``openai/x -> anthropic/y``. Empty without a shadow."""


def copied(value: _T) -> _T:
    """A copy that shares no list or dict with ``value``."""
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
