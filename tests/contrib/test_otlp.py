"""Calls that are exported by OTLP to a collector in its own process, as the variables of OpenTelemetry say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from routewright import ValidationFailed
from routewright.serve.parts import exporter

PROGRAM = """
from routewright import Router
from routewright.serve.parts import export
router = Router.sandbox()
stop = export(router, "1.44")
router.blocking.route("CANARY prompt", models=["openai/gpt-4.1"])
router.blocking.close()
stop()
"""


@contextmanager
def collector(kind: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.contrib.collector", kind], stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            yield f"http://127.0.0.1:{int(child.stdout.readline())}", child
        finally:
            child.terminate()


def exported(kind: str, **environ: str) -> list[dict[str, Any]]:
    """What the collector heard of one call."""
    clean = {name: each for name, each in os.environ.items() if not name.startswith("OTEL_")}
    with collector(kind) as (url, child):
        given = {"OTEL_EXPORTER_OTLP_ENDPOINT": url} | environ
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=clean | given, capture_output=True, text=True, timeout=50
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        child.terminate()
        assert child.stdout is not None
        return [json.loads(line) for line in child.stdout]


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


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_spans_and_metrics_reach_a_collector_by_the_standard_variables(kind: str) -> None:
    if kind == "grpc":
        pytest.importorskip("grpc")
    heard = exported(
        kind,
        OTEL_EXPORTER_OTLP_PROTOCOL={"http": "http/protobuf", "grpc": "grpc"}[kind],
        OTEL_EXPORTER_OTLP_HEADERS="authorization=Basic%20abc,x-team=support",
        OTEL_SERVICE_NAME="shop",
        OTEL_RESOURCE_ATTRIBUTES="deployment.environment.name=test,service.version=7",
    )
    assert {each["signal"] for each in heard} == {"traces", "metrics"}
    for each in heard:
        assert each["headers"]["authorization"] == "Basic abc"
        assert each["headers"]["x-team"] == "support"
        (part,) = each["body"]["resourceSpans" if each["signal"] == "traces" else "resourceMetrics"]
        resource = attributes(part["resource"])
        assert (resource["service.name"], resource["service.version"]) == ("shop", "7")
        assert resource["deployment.environment.name"] == "test"
    told = spans(heard)
    assert set(told) == {"routewright.route", "routewright.decide", "chat gpt-4.1"}
    assert told["chat gpt-4.1"]["gen_ai.provider.name"] == "sandbox"
    assert int(told["chat gpt-4.1"]["gen_ai.usage.output_tokens"]) > 0
    assert "CANARY" not in json.dumps(heard)


def test_a_service_without_a_name_is_routewright() -> None:
    (first, *_) = exported("http", OTEL_METRICS_EXPORTER="none")
    assert attributes(first["body"]["resourceSpans"][0]["resource"])["service.name"] == "routewright"


def test_a_disabled_sdk_sends_nothing() -> None:
    assert exported("http", OTEL_SDK_DISABLED="true") == []


def test_a_signal_is_switched_off_by_its_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    assert exporter("metrics") is None
    assert exporter("traces") is not None


def test_a_protocol_that_is_none_is_refused_with_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json")
    with pytest.raises(ValidationFailed) as refused:
        exporter("traces")
    assert str(refused.value) == ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL: is 'http/json'; one of http/protobuf, grpc")
    assert exporter("metrics") is not None


def test_a_protocol_whose_package_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    with pytest.raises(ValidationFailed, match="run: pip install opentelemetry-exporter-otlp-proto-grpc"):
        exporter("traces")
