"""Spans and figures of calls, sent by OTLP to where ``OTEL_EXPORTER_OTLP_ENDPOINT`` and its like say."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from routewright.errors import Problem, ValidationFailed
from routewright.router import Router

if TYPE_CHECKING:
    from routewright.contrib.semconv import Version

SERVICE = "routewright"
"""What it is called where nobody says otherwise."""
_NEEDED = "opentelemetry.exporter.otlp.proto.http"


def check_installed() -> None:
    """Raises ``ValidationFailed`` where what sends them is not installed."""
    try:
        found = find_spec(_NEEDED) is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        problem = f"needs {_NEEDED}, which is not installed"
        raise ValidationFailed.of(Problem("telemetry.otel", problem, "run: pip install 'routewright[otel]'"))


def export(router: Router, semconv: Version) -> Callable[[], None]:
    """Tell of a Router's calls from now on. Call what is given back once the Router is closed: it sends what waits."""
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from routewright.contrib.otel import OpenTelemetry

    resource = Resource({"service.name": SERVICE}).merge(OTELResourceDetector().detect())
    spans = TracerProvider(resource=resource, shutdown_on_exit=False)
    spans.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    figures = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())], resource, shutdown_on_exit=False)
    OpenTelemetry(spans, figures, semconv=semconv).watch(router)

    def stop() -> None:
        spans.shutdown()
        figures.shutdown()

    return stop
