"""What OpenTelemetry is told of calls, under the names of each version."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from msgspec.structs import replace
from opentelemetry import trace as api
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import error_attributes, gen_ai_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from opentelemetry.trace import SpanKind, StatusCode

from routewright import Caller, Capture, DenyList, Router, Settings
from routewright.errors import UpstreamFailed
from routewright.integrations.otel import OpenTelemetry
from routewright.integrations.semconv import ATTRIBUTES, HISTOGRAMS
from routewright.wire import ModelSpan, Trace
from routewright.wire.ids import span_id_of

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HERE = f"00-{TRACE}-{SPAN}-01"
MODELS = ["google/gemini-3.8-flash", "openai/gpt-4.1"]


class Exports:
    def __init__(self, **options: Any) -> None:
        self._kept, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.telemetry = OpenTelemetry(self.provider, MeterProvider([self._reader]), **options)

    def export(self, router: Router, **request: Any) -> Trace:
        """What a call was traced as that this has heard of."""
        with self.telemetry.watch(router):
            try:
                trace = router.blocking.route("CANARY prompt", **request).trace
            except UpstreamFailed as error:
                trace = router.blocking.trace(error.trace_id or "")
            router.blocking.flush()
        return trace

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self._kept.get_finished_spans()}

    @property
    def figures(self) -> dict[str, list[Any]]:
        found = self._reader.get_metrics_data()
        assert found is not None
        (resource,) = found.resource_metrics
        (scope,) = resource.scope_metrics
        return {metric.name: list(metric.data.data_points) for metric in scope.metrics}


def faulty_router(**options: Any) -> Router:
    """Its first model answers no call."""
    return Router.sandbox(faults={MODELS[0]: "server"}, **options)


FALLS_BACK: dict[str, Any] = {"models": MODELS, "goal": "quality", "fallback": {"models": MODELS[1:], "maxRetries": 0}}


def context_of(span: ReadableSpan) -> api.SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_a_call_is_exported_as_a_tree_with_its_times() -> None:
    exports = Exports()
    trace = exports.export(faulty_router(), **FALLS_BACK)
    spans = exports.spans
    whole = spans.pop("routewright.route")
    assert {*spans} == {"routewright.decide", "chat gemini-3.8-flash", "chat gpt-4.1"}
    assert all(span.parent == context_of(whole) for span in spans.values())
    assert whole.kind is SpanKind.INTERNAL
    assert spans["chat gemini-3.8-flash"].kind is SpanKind.CLIENT
    for model in (each for each in trace.spans if isinstance(each, ModelSpan)):
        span = spans[f"chat {model.model.partition('/')[2]}"]
        assert span.start_time is not None
        assert span.end_time is not None
        assert whole.start_time is not None
        assert (span.start_time - whole.start_time) / 1e6 == pytest.approx(model.start_ms, abs=0.001)
        assert (span.end_time - span.start_time) / 1e6 == pytest.approx(model.duration_ms, abs=0.001)


def test_faults_are_errors_and_fallbacks_are_events() -> None:
    exports = Exports()
    exports.export(faulty_router(), **FALLS_BACK)
    spans = exports.spans
    failed, whole = spans["chat gemini-3.8-flash"], spans["routewright.route"]
    assert failed.status.status_code is StatusCode.ERROR
    assert attributes(failed)["error.type"] == "server"
    assert "gen_ai.response.model" not in attributes(failed)
    assert spans["chat gpt-4.1"].status.status_code is StatusCode.UNSET
    assert whole.status.status_code is StatusCode.UNSET, "it was rescued"
    (event,) = whole.events
    assert event.name == "routewright.fallback"
    assert dict(event.attributes or {}) == {
        "routewright.from_model": MODELS[0],
        "routewright.to_model": MODELS[1],
        "routewright.reason": "upstream_5xx",
    }


def test_a_failed_call_has_its_error_code() -> None:
    exports = Exports()
    exports.export(faulty_router(), models=MODELS[:1], fallback={"models": [], "maxRetries": 0})
    whole = exports.spans["routewright.route"]
    assert whole.status.status_code is StatusCode.ERROR
    assert attributes(whole)["error.type"] == "router.upstream_failed"


def test_a_guardrail_event_never_contains_the_text() -> None:
    exports = Exports()
    router = Router.sandbox(guardrails=[DenyList(["CANARY"], action="redact")])
    exports.export(router)
    (event,) = [each for each in exports.spans["routewright.route"].events if each.name == "routewright.guardrail"]
    assert dict(event.attributes or {})["routewright.stage"] == "input"
    assert dict(event.attributes or {})["routewright.action"] == "redact"


def test_names_are_those_of_the_conventions() -> None:
    exports = Exports()
    trace = exports.export(Router.sandbox(), models=MODELS[1:])
    span = attributes(exports.spans["chat gpt-4.1"])
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "sandbox",
        "gen_ai.request.model": "gpt-4.1",
        "gen_ai.response.model": "gpt-4.1",
        "gen_ai.usage.input_tokens": trace.tokens.input,
        "gen_ai.usage.output_tokens": trace.tokens.output,
        "gen_ai.response.finish_reasons": ("stop",),
    }
    assert {name: span.get(name) for name in expected} == expected
    assert {"gen_ai.usage.cache_read.input_tokens", "gen_ai.response.time_to_first_chunk"} <= {*span}


@pytest.mark.parametrize(("ours", "theirs"), [("google", "gcp.gemini"), ("xai", "x_ai"), ("vllm", "vllm")])
def test_provider_names_follow_the_conventions(ours: str, theirs: str) -> None:
    exports, trace = Exports(), Router.sandbox().blocking.route("hi", models=MODELS[1:]).trace
    spans = [replace(span, provider=ours) if isinstance(span, ModelSpan) else span for span in trace.spans]
    exports.telemetry.tell(replace(trace, spans=spans))
    assert theirs in attributes(exports.spans["chat gpt-4.1"]).values()


def test_every_name_is_in_the_conventions() -> None:
    constants = {
        value
        for module in (gen_ai_attributes, gen_ai_metrics, error_attributes)
        for value in vars(module).values()
        if isinstance(value, str)
    }
    told = {row.name for row in ATTRIBUTES.values()} | {row.name for row in HISTOGRAMS.values()}
    assert {name for name in told if not name.startswith("routewright.")} <= constants


def test_every_exported_attribute_is_in_the_table() -> None:
    exports = Exports(account=True, content=True)
    exports.export(faulty_router(settings=Settings(capture=Capture())), **FALLS_BACK)
    seen = {name for span in exports.spans.values() for name in attributes(span)}
    assert seen <= {row.name for row in ATTRIBUTES.values()}


def test_metrics_match_the_attempts() -> None:
    exports = Exports()
    trace = exports.export(faulty_router(), **FALLS_BACK)
    tokens, durations = (exports.figures[f"gen_ai.client.{what}"] for what in ("token.usage", "operation.duration"))
    assert {point.attributes["gen_ai.token.type"]: point.sum for point in tokens} == {
        "input": trace.tokens.input,
        "output": trace.tokens.output,
    }
    assert {point.attributes.get("error.type"): point.count for point in durations} == {"server": 1, None: 1}
    assert durations[0].explicit_bounds[:2] == (0.01, 0.02)


def test_parent_and_attempt_ids_match_traceparent() -> None:
    exports, router = Exports(), Router.sandbox()
    with router.traceparent(HERE):
        trace = exports.export(router)
    whole = exports.spans["routewright.route"]
    assert whole.parent is not None
    assert (f"{whole.parent.trace_id:032x}", f"{whole.parent.span_id:016x}") == (TRACE, SPAN)
    assert f"{context_of(whole).trace_id:032x}" == TRACE
    (attempt,) = [span for name, span in exports.spans.items() if name.startswith("chat ")]
    assert f"{context_of(attempt).span_id:016x}" == span_id_of(trace.id, 1)


def test_a_call_inside_a_span_is_its_child() -> None:
    exports, router = Exports(), Router.sandbox()
    with exports.provider.get_tracer("mine").start_as_current_span("request") as span:
        exports.export(router)
    parent = exports.spans["routewright.route"].parent
    assert parent is not None
    assert parent.span_id == span.get_span_context().span_id


def test_the_active_span_is_not_the_parent() -> None:
    exports, trace = Exports(), Router.sandbox().blocking.route("hi").trace
    with exports.provider.get_tracer("mine").start_as_current_span("a hook's own"):
        exports.telemetry.tell(trace)
    assert exports.spans["routewright.route"].parent is None


def test_a_trace_that_is_not_sampled_is_not_exported() -> None:
    exports, router = Exports(), Router.sandbox()
    with router.traceparent(HERE[:-1] + "0"):
        exports.export(router)
    assert exports.spans == {}


def test_other_spans_keep_random_ids() -> None:
    exports = Exports()
    for _ in range(3):
        exports.export(faulty_router(), **FALLS_BACK)
    ids = [context_of(span).span_id for span in exports._kept.get_finished_spans()]
    assert len({*ids}) == len(ids) == 12


def test_prompt_and_account_are_not_exported_by_default() -> None:
    exports = Exports()
    router = Router.sandbox(settings=Settings(capture=Capture())).as_caller(Caller("CANARY-account"))
    exports.export(router)
    assert "CANARY" not in "".join(span.to_json() for span in exports.spans.values()) + str(exports.figures)


def test_content_is_exported_if_captured_and_requested() -> None:
    for capture, told in ((Capture(), True), (None, False)):
        exports = Exports(content=True)
        exports.export(Router.sandbox(settings=Settings(capture=capture)), models=MODELS[1:])
        span = attributes(exports.spans["chat gpt-4.1"])
        assert ("CANARY prompt" in span.get("gen_ai.input.messages", "")) is told
        assert ("canned answer" in span.get("gen_ai.output.messages", "")) is told


def test_the_account_is_exported_if_requested() -> None:
    exports = Exports(account=True)
    exports.export(Router.sandbox().as_caller(Caller("acme", key_id="key_1")))
    whole = attributes(exports.spans["routewright.route"])
    assert (whole["routewright.account"], whole["routewright.key_id"]) == ("acme", "key_1")


def test_a_missing_extra_is_named_in_one_sentence() -> None:
    code = "import sys; sys.modules['opentelemetry'] = None; import routewright.integrations.otel"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert "routewright.integrations.otel needs the extra 'otel'" in last
    assert "pip install 'routewright[otel]'" in last


def test_a_router_alone_imports_neither_opentelemetry_nor_the_pages() -> None:
    code = "from routewright import Router; import sys; Router.sandbox().blocking.route('hi'); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "opentelemetry" not in loaded
    assert "routewright.integrations" not in loaded


CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


@pytest.mark.parametrize(
    ("value", "capture", "leaves"),
    [
        ("SPAN_ONLY", Capture(), {"input", "output"}),
        ("span_and_event", Capture(), {"input", "output"}),
        ("true", Capture(), {"input", "output"}),
        ("EVENT_ONLY", Capture(), set()),
        ("NO_CONTENT", Capture(), set()),
        ("false", Capture(), set()),
        ("SPAN_ONLY", Capture(prompts=False), {"output"}),
        ("SPAN_ONLY", None, set()),
    ],
)
def test_content_is_exported_if_variable_and_capture_allow_it(
    value: str, capture: Capture | None, leaves: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CAPTURE, value)
    exports = Exports()
    exports.export(Router.sandbox(settings=Settings(capture=capture)), models=MODELS[1:])
    told = attributes(exports.spans["chat gpt-4.1"])
    assert {each for each in ("input", "output") if f"gen_ai.{each}.messages" in told} == leaves


def test_the_argument_overrides_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CAPTURE, "SPAN_ONLY")
    exports = Exports(content=False)
    exports.export(Router.sandbox(settings=Settings(capture=Capture())), models=MODELS[1:])
    assert "gen_ai.input.messages" not in attributes(exports.spans["chat gpt-4.1"])
