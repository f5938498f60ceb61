"""Exports finished calls to OpenTelemetry: spans with the times of the call, and metrics of its attempts.

Neither prompts nor accounts are exported unless asked for. Names are in ``semconv.py`` alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, assert_never

import msgspec

from routewright import Router, wire
from routewright.errors import require_extra
from routewright.router import Subscription
from routewright.wire.ids import parse_traceparent, span_id_of

from .semconv import ATTRIBUTES, CACHE, CALL, DECISION, FALLBACK, GUARDRAIL, HISTOGRAMS, OPERATION, PROVIDERS

with require_extra("otel", __name__):
    from opentelemetry import metrics, trace
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.id_generator import IdGenerator
    from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

SCOPE = "routewright"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = 1_000_000
"""Nanoseconds."""
_ON_SPANS = ("SPAN_ONLY", "SPAN_AND_EVENT", "TRUE")
"""Values of the variable that put messages on spans. Events of the conventions are not sent."""
_span_id: ContextVar[int | None] = ContextVar("routewright.span_id", default=None)
"""The id for the next span."""


class OpenTelemetry:
    """Exports the calls of Routers.

        telemetry = OpenTelemetry()
        telemetry.watch(router)

    Without ``tracer_provider`` it uses the program's own; metrics need a ``meter_provider``. ``account=True`` adds
    account and key to the spans of calls, ``content=True`` prompts and answers, as far as ``Settings.capture`` keeps
    them. ``content=None``: as ``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`` says, which is no unless it is
    ``SPAN_ONLY``, ``SPAN_AND_EVENT`` or ``true``."""

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        *,
        account: bool = False,
        content: bool | None = None,
    ) -> None:
        self._provider = tracer_provider
        self._histograms: dict[str, metrics.Histogram] = {}
        if meter_provider is not None:
            meter = meter_provider.get_meter(SCOPE)
            self._histograms = {
                word: meter.create_histogram(
                    row.name, row.unit, row.help, explicit_bucket_boundaries_advisory=row.bounds
                )
                for word, row in HISTOGRAMS.items()
            }
        self._account = account
        variable = os.environ.get("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "")
        self._content = variable.upper() in _ON_SPANS if content is None else content

    @cached_property
    def _tracer(self) -> trace.Tracer:
        """Made for the first call, since a program may set its provider late. Used by this scope only, so that the
        SDK's tracer can be given an id generator."""
        provider = trace.get_tracer_provider() if self._provider is None else self._provider
        tracer = provider.get_tracer(SCOPE)
        others = getattr(tracer, "id_generator", None)
        if isinstance(others, IdGenerator) and not isinstance(others, _PresetIds):
            tracer.id_generator = _PresetIds(others)  # type: ignore[attr-defined]
        return tracer

    def watch(self, router: Router) -> Subscription:
        """Export the calls of a Router from now on. Call the result, or leave it as a context manager, to stop."""
        return router.on_trace(self.tell)

    def tell(self, call: wire.Trace) -> None:
        """Export a finished call. Spans that are no attempts become children of the call, or events of the span they
        belong to."""
        started_at = (datetime.fromisoformat(call.created_at) - _EPOCH) // timedelta(milliseconds=1) * _MS
        with _as_span(span_id_of(call.id)):
            values = _attributes(self._of_call(call))
            call_span = self._tracer.start_span(CALL, _parent(call), SpanKind.INTERNAL, values, start_time=started_at)
        context = trace.set_span_in_context(call_span, Context())
        attempts: dict[int, Span] = {}
        for span in call.spans:
            start = started_at + round(span.start_ms * _MS)
            if isinstance(span, wire.ModelSpan):
                attempts[span.id] = self._attempt(call, span, context, start)
                self._count(span)
                continue
            target = attempts.get(span.parent_id or 0, call_span)
            match span:
                case wire.DecisionSpan():
                    rejected = sum(span.rejected.values())
                    values = {"token_count": span.token_count, "rejected": rejected, "digest": span.digest}
                    self._child(DECISION, context, values, start, span.duration_ms)
                case wire.CacheSpan():
                    self._child(CACHE, context, {"hit": span.hit}, start, span.duration_ms)
                case wire.FallbackSpan():
                    values = {"from": span.from_model, "to": span.to_model, "reason": span.reason}
                    target.add_event(FALLBACK, _attributes(values), start)
                case wire.GuardrailSpan():
                    values = {"guardrail": span.name, "rule": span.rule, "stage": span.stage, "action": span.action}
                    target.add_event(GUARDRAIL, _attributes(values), start)
                case wire.StepSpan() | wire.SubTraceSpan() | wire.ToolSpan():
                    self._child(f"{span.type} {span.name}", context, {}, start, span.duration_ms)
                case _:
                    assert_never(span)
        for span in call.spans:  # last, since an ended span takes no events
            if isinstance(span, wire.ModelSpan):
                _end(attempts[span.id], started_at + round((span.start_ms + span.duration_ms) * _MS), span.error)
        _end(call_span, started_at + round(call.duration_ms * _MS), call.error)

    def _child(self, name: str, context: Context, values: Mapping[str, object], start: int, duration_ms: float) -> None:
        span = self._tracer.start_span(name, context, SpanKind.INTERNAL, _attributes(values), start_time=start)
        span.end(start + round(duration_ms * _MS))

    def _attempt(self, call: wire.Trace, span: wire.ModelSpan, context: Context, start: int) -> Span:
        tokens = span.tokens
        values = self._of_model(span) | {
            "model": span.model,
            "attempt": span.attempt,
            "status": span.status,
            "cost": span.cost_usd,
            "hedge": span.hedge or None,
            "finish": None if span.finish_reason is None else (span.finish_reason,),
            "first": None if span.ttft_ms is None else span.ttft_ms / 1000,
            "input": None if tokens is None else tokens.input,
            "output": None if tokens is None else tokens.output,
            "cached": None if tokens is None else tokens.cached,
        }
        if self._content and call.content is not None:  # on the attempt that served, otherwise on the last
            attempts = [model_span for model_span in call.spans if isinstance(model_span, wire.ModelSpan)]
            if span is ([model_span for model_span in attempts if model_span.status == "ok"] or attempts)[-1]:
                values |= _content_attributes(call.content, span)
        name = f"{OPERATION} {values['request_model']}"
        with _as_span(span_id_of(call.id, span.attempt)):
            return self._tracer.start_span(name, context, SpanKind.CLIENT, _attributes(values), start_time=start)

    def _count(self, span: wire.ModelSpan) -> None:
        figures: list[tuple[str, float, dict[str, Any]]] = [("duration", span.duration_ms / 1000, {})]
        if span.ttft_ms is not None:
            figures.append(("first", span.ttft_ms / 1000, {}))
        if span.tokens is not None:
            figures.append(("tokens", span.tokens.input, {"token_type": "input"}))
            figures.append(("tokens", span.tokens.output, {"token_type": "output"}))
        for word, figure, more in figures:
            if word in self._histograms:
                self._histograms[word].record(figure, _attributes(self._of_model(span) | more))

    def _of_call(self, call: wire.Trace) -> dict[str, Any]:
        values = {
            "trace": call.id,
            "status": call.status,
            "environment": call.environment,
            "goal": call.goal or None,
            "strategy": call.strategy or None,
            "policy": call.policy_version or None,
            "model": call.selected_model,
            "fallback": call.fallback_used,
            "cost": call.cost_usd,
            "error": call.error,
        }
        return {**values, "account": call.account, "key": call.key_id} if self._account else values

    def _of_model(self, span: wire.ModelSpan) -> dict[str, Any]:
        model = span.model.partition("/")[2] or span.model
        return {
            "operation": OPERATION,
            "provider": PROVIDERS.get(span.provider, span.provider),
            "request_model": model,
            "response_model": model if span.status == "ok" else None,
            "error": None if span.error is None else str(span.error),
        }


def _attributes(values: Mapping[str, object]) -> dict[str, Any]:
    """Rename attributes; drops unknown values."""
    return {ATTRIBUTES[word].name: value for word, value in values.items() if value is not None}


class _PresetIds(IdGenerator):
    """Generates the id that was sent to providers for their span, and random ids for others."""

    def __init__(self, others: IdGenerator) -> None:
        self._others = others

    def generate_span_id(self) -> int:
        return _span_id.get() or self._others.generate_span_id()

    def generate_trace_id(self) -> int:
        return self._others.generate_trace_id()

    def is_trace_id_random(self) -> bool:
        return self._others.is_trace_id_random()


@contextmanager
def _as_span(span_id: str) -> Iterator[None]:
    before = _span_id.set(int(span_id, 16))
    try:
        yield
    finally:
        _span_id.reset(before)


def _parent(call: wire.Trace) -> Context:
    """The call's ``traceparent``. Without one the call starts a new trace, even if a span is active."""
    parent = None if call.traceparent is None else parse_traceparent(call.traceparent)
    if parent is None:
        return Context()
    flags = TraceFlags(parent.flags)
    context = SpanContext(int(parent.trace_id, 16), int(parent.span_id, 16), is_remote=True, trace_flags=flags)
    return trace.set_span_in_context(NonRecordingSpan(context), Context())


def _content_attributes(content: wire.Content, span: wire.ModelSpan) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if content.messages is not None:
        messages = [{"role": turn.role, "parts": _parts(msgspec.to_builtins(turn))} for turn in content.messages]
        values["prompt"] = msgspec.json.encode(messages).decode()
    if content.output is not None or content.tool_calls:
        reply = {"content": content.output or None, "tool_calls": msgspec.to_builtins(content.tool_calls)}
        answer = {"role": "assistant", "parts": _parts(reply), "finish_reason": span.finish_reason or ""}
        values["answer"] = msgspec.json.encode([answer]).decode()
    return values


def _parts(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Texts and tool calls. Of other parts only the kind is exported."""
    if message.get("role") == "tool":
        response = message.get("content")
        return [{"type": "tool_call_response", "id": message.get("tool_call_id"), "response": response}]
    content = message.get("content") or []
    parts: Sequence[Mapping[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    texts = [
        {"type": "text", "content": part["text"]} if part.get("type") == "text" else {"type": part.get("type")}
        for part in parts
    ]
    calls = [(call.get("id"), call["function"]) for call in message.get("tool_calls") or ()]
    return texts + [
        {"type": "tool_call", "id": id, "name": spec["name"], "arguments": spec["arguments"]} for id, spec in calls
    ]


def _end(span: Span, end_ns: int, error: str | None) -> None:
    if error is not None:
        span.set_status(Status(StatusCode.ERROR, error))
    span.end(end_ns)
