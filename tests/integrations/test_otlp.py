"""Calls that are exported by OTLP to a collector, as the variables of OpenTelemetry say."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from routewright import ValidationFailed
from routewright.serve.parts import exporter
from tests.upstream import Answer, Request, Upstream

PROGRAM = """
import json, os, sys
from routewright import Router
from routewright.serve.parts import export
for environ in json.loads(sys.argv[1]):
    before = dict(os.environ)
    os.environ.update(environ)
    router = Router.sandbox()
    stop = export(router)
    router.blocking.route("CANARY prompt", models=["openai/gpt-5.4"])
    router.blocking.close()
    stop()
    os.environ.clear()
    os.environ.update(before)
"""
"""Makes one call with each set of variables."""
NAMED = {
    "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Basic%20abc,x-team=support",
    "OTEL_SERVICE_NAME": "shop",
    "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test,service.version=7",
}


REQUESTS: dict[str, Any] = {"traces": ExportTraceServiceRequest, "metrics": ExportMetricsServiceRequest}
Heard = list[dict[str, Any]]


def tell(heard: Heard, signal: str, headers: Mapping[str, str], message: Any) -> None:
    heard.append({"signal": signal, "headers": dict(headers), "body": MessageToDict(message)})


@contextmanager
def collect_http(heard: Heard) -> Iterator[str]:
    def read(request: Request) -> Answer:
        signal = request.path.rpartition("/")[2]
        is_packed = request.headers.get("content-encoding") == "gzip"
        message = REQUESTS[signal]()
        message.ParseFromString(gzip.decompress(request.raw) if is_packed else request.raw)
        tell(heard, signal, request.headers, message)
        return Answer(headers={"content-type": "application/x-protobuf"})

    with Upstream(read) as server:
        yield server.root


@contextmanager
def collect_grpc(heard: Heard) -> Iterator[str]:
    import grpc  # type: ignore[import-untyped]
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as traces

    class Traces(traces.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            tell(heard, "traces", dict(context.invocation_metadata()), request)
            return ExportTraceServiceResponse()

    class Metrics(metrics.MetricsServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            tell(heard, "metrics", dict(context.invocation_metadata()), request)
            return ExportMetricsServiceResponse()

    server = grpc.server(ThreadPoolExecutor(2))
    traces.add_TraceServiceServicer_to_server(Traces(), server)  # type: ignore[no-untyped-call]
    metrics.add_MetricsServiceServicer_to_server(Metrics(), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"http://127.0.0.1:{port}"
    server.stop(None).wait()


def exported(kind: str, *environs: dict[str, str]) -> Heard:
    """What a collector received from one call for each set of variables."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    clean["OTEL_EXPORTER_OTLP_PROTOCOL"] = {"http": "http/protobuf", "grpc": "grpc"}[kind]
    heard: Heard = []
    with {"http": collect_http, "grpc": collect_grpc}[kind](heard) as url:
        clean["OTEL_EXPORTER_OTLP_ENDPOINT"] = url
        command = [sys.executable, "-c", PROGRAM, json.dumps(environs)]
        ran = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=50)
        assert (ran.returncode, ran.stderr) == (0, "")
    return heard


def attributes(told: dict[str, Any]) -> dict[str, Any]:
    return {each["key"]: next(iter(each["value"].values())) for each in told["attributes"]}


def spans(heard: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    scopes = [
        scope
        for each in heard
        if each["signal"] == "traces"
        for resource in each["body"]["resourceSpans"]
        for scope in resource["scopeSpans"]
    ]
    return {span["name"]: attributes(span) for scope in scopes for span in scope["spans"]}


def service_of(message: dict[str, Any]) -> str:
    (part,) = message["body"]["resourceSpans" if message["signal"] == "traces" else "resourceMetrics"]
    return str(attributes(part["resource"])["service.name"])


def check_named(heard: list[dict[str, Any]]) -> None:
    """Check what was exported with the variables of ``NAMED``."""
    assert {each["signal"] for each in heard} == {"traces", "metrics"}
    for each in heard:
        assert each["headers"]["authorization"] == "Basic abc"
        assert each["headers"]["x-team"] == "support"
        (part,) = each["body"]["resourceSpans" if each["signal"] == "traces" else "resourceMetrics"]
        resource = attributes(part["resource"])
        assert (resource["service.name"], resource["service.version"]) == ("shop", "7")
        assert resource["deployment.environment.name"] == "test"
    told = spans(heard)
    assert set(told) == {"routewright.route", "routewright.decide", "chat gpt-5.4"}
    assert told["chat gpt-5.4"]["gen_ai.provider.name"] == "sandbox"
    assert int(told["chat gpt-5.4"]["gen_ai.usage.output_tokens"]) > 0
    assert "CANARY" not in json.dumps(heard)


def test_http_exports_follow_the_standard_variables() -> None:
    unnamed, disabled = {"OTEL_METRICS_EXPORTER": "none"}, {"OTEL_SDK_DISABLED": "true", "OTEL_SERVICE_NAME": "off"}
    heard = exported("http", NAMED, unnamed, disabled)
    check_named([each for each in heard if service_of(each) == "shop"])
    others = [(each["signal"], service_of(each)) for each in heard if service_of(each) != "shop"]
    assert others == [("traces", "routewright")], "a disabled SDK sends nothing"


def test_grpc_exports_follow_the_standard_variables() -> None:
    pytest.importorskip("grpc")
    check_named(exported("grpc", NAMED))


def test_a_signal_is_switched_off_by_its_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    assert exporter("metrics") is None
    assert exporter("traces") is not None


def test_an_unknown_protocol_is_refused_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json")
    with pytest.raises(ValidationFailed) as refused:
        exporter("traces")
    assert str(refused.value) == ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL: is 'http/json'; one of http/protobuf, grpc")
    assert exporter("metrics") is not None


def test_a_protocol_without_its_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    with pytest.raises(ValidationFailed, match="run: pip install opentelemetry-exporter-otlp-proto-grpc"):
        exporter("traces")
