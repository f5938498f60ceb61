"""Prometheus metrics: all documented ones are exported, and callers cannot add labels."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from routewright import Caller, DenyList, ProviderFault, Router, Settings, Trace
from routewright.backends.storage.memory import MemoryStorage
from routewright.errors import UpstreamFailed
from routewright.server import create_app
from routewright.server import metrics as metrics_of_a_router
from routewright.server.errors import Refusal, refuse
from routewright.server.metrics import FIGURES, Metrics
from routewright.testing import FakeClock
from routewright.wire import Delta, FallbackDict, Finish, ModelSpan, RateLimits, Usage
from tests.engine.scripted_router import House, said
from tests.tables import table

from .asgi_request import ask
from .uvicorn_server import HELLO, Site, bearer

pytestmark = pytest.mark.anyio

MODELS = ["google/gemini-3.8-flash", "openai/gpt-4.1"]
Labels = frozenset[tuple[str, str]]


def samples(text: str) -> dict[tuple[str, Labels], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def told(metrics: Metrics) -> dict[tuple[str, Labels], float]:
    return samples(metrics.render().decode())


def of(found: dict[tuple[str, Labels], float], name: str, **labels: str) -> float | None:
    return found.get((f"routewright_{name}", frozenset(labels.items())))


@pytest.fixture
def site() -> Iterator[tuple[Site, Metrics]]:
    storage = MemoryStorage()
    made = Site(Router.sandbox(storage=storage), storage=storage)
    metrics = Metrics(made.router)
    made.app = create_app(made.router, made.console, observers=[metrics])
    yield made, metrics
    metrics.close()


def test_requests_are_counted_by_template_method_and_status(site: tuple[Site, Metrics]) -> None:
    made, metrics = site
    with made.client(made.key(environment="sandbox")) as client:
        for _ in range(2):
            trace_id = client.post("/v1/route", json=HELLO).json()["trace_id"]
            client.get(f"/v1/traces/{trace_id}")
        client.get("/v1/models", headers={"Authorization": "Bearer nobody"})
    found = told(metrics)
    assert of(found, "http_requests_total", endpoint="/v1/route", method="POST", status="200") == 2
    assert of(found, "http_requests_total", endpoint="/v1/traces/{trace_id}", method="GET", status="200") == 2
    assert of(found, "http_requests_total", endpoint="/v1/models", method="GET", status="401") == 1
    assert of(found, "http_request_duration_seconds_count", endpoint="/v1/route") == 2
    assert 0 < (of(found, "http_request_duration_seconds_sum", endpoint="/v1/route") or 0) < 10


async def test_a_disconnected_client_is_a_499(site: tuple[Site, Metrics]) -> None:
    made, metrics = site
    key = made.key(environment="sandbox")
    await ask(made.app, "/v1/route", "POST", body=HELLO, headers=dict(lower(key)), leaves=True)
    assert of(told(metrics), "http_requests_total", endpoint="/v1/route", method="POST", status="499") == 1


def lower(key: str) -> list[tuple[str, str]]:
    return [(name.lower(), value) for name, value in bearer(key).items()]


async def test_unknown_paths_share_one_label_and_methods_are_those_of_http(site: tuple[Site, Metrics]) -> None:
    made, metrics = site
    for number in range(50):
        await ask(made.app, f"/CANARY/{number}", f"CANARY{number}")
        await ask(made.app, f"/v1/traces/a/CANARY-{number}", query=b"CANARY=1")
        await ask(made.app, "/v1/models", f"CANARY{number}")
    text = metrics.render().decode()
    assert "CANARY" not in text
    requests = {labels: count for (name, labels), count in samples(text).items() if name.endswith("requests_total")}
    assert sorted(requests.values()) == [50, 50, 50]
    assert all(("endpoint", "none") in labels for labels in requests)


def test_calls_attempts_and_fallbacks_are_counted() -> None:
    router = Router.sandbox(faults={MODELS[0]: "server"})
    metrics = Metrics(router)
    fallback: FallbackDict = {"models": MODELS[1:], "maxRetries": 0}
    answer = router.blocking.route("Hello", models=MODELS, goal="quality", fallback=fallback)
    with pytest.raises(UpstreamFailed):
        router.blocking.route("Hello", models=MODELS[:1], fallback={"models": [], "maxRetries": 0})
    router.blocking.flush()
    found, here, second = told(metrics), {"environment": "sandbox"}, MODELS[1]
    assert of(found, "calls_total", model=second, status="completed", **here) == 1
    assert of(found, "calls_total", model="none", status="failed", **here) == 1
    assert of(found, "call_duration_seconds_count", **here) == 2
    assert of(found, "attempts_total", model=MODELS[0], outcome="server", **here) == 2
    assert of(found, "attempts_total", model=second, outcome="ok", **here) == 1
    assert of(found, "fallbacks_total", reason="upstream_5xx", **here) == 1
    assert of(found, "tokens_total", model=second, kind="output", **here) == answer.trace.tokens.output
    assert of(found, "cost_usd_total", model=second, **here) == pytest.approx(answer.routing.cost_usd)
    assert of(found, "time_to_first_token_seconds_count", model=second) == 1


async def test_rescues_and_refused_keys_are_counted_by_provider() -> None:
    answer = said(Delta("Blue."), Usage(10, 5), Finish("stop"))
    house = House(lambda call: ProviderFault("auth", status=401), lambda call: answer)
    metrics = Metrics(house.router)
    for _ in range(3):
        await house.router.route("hi", goal="quality", fallback={"maxRetries": 0})
    found = told(metrics)
    assert of(found, "rescued_total", **{"from": "good"}, kind="auth") == 1
    assert [of(found, "key_refused", provider=name) for name in ("good", "spare")] == [1, 0]
    assert of(found, "circuit_open", model="good/one") == 1


def test_refusals_over_http_are_counted_once_each(site: tuple[Site, Metrics]) -> None:
    made, metrics = site
    key = made.key(environment="sandbox", scopes=["route"], limits=RateLimits(requests_per_min=3))
    poor = made.key("poor", environment="sandbox", account_prepaid=True)
    with made.client(key) as client:
        client.get("/v1/traces")
        client.get("/v1/models", headers={"Authorization": "Bearer nobody"})
        client.post("/v1/route", content=b"{", headers={"Content-Type": "application/json"})
        client.post("/v1/route", json={**HELLO, "budget": {"maxCostUsd": 1e-9}})
        assert [client.post("/v1/route", json=HELLO).status_code for _ in range(4)] == [200, 200, 429, 429]
        client.post("/v1/route", json={**HELLO, "stream": True})
        client.post("/v1/route", json=HELLO, headers=bearer(poor))
    found = told(metrics)
    refusals = {dict(labels)["code"]: n for (name, labels), n in found.items() if name == "routewright_refusals_total"}
    assert refusals == {
        "permission_denied": 1, "authentication_failed": 1, "invalid_json": 1, "router.budget_exceeded": 1,
        "RATE_LIMITED": 3,
    }  # fmt: skip


async def test_gauges_are_read_when_rendered() -> None:
    router = Router.sandbox(settings=Settings(clock=(clock := FakeClock())))
    metrics, fleet = Metrics(router), router._parts.fleet("sandbox")
    for _ in range(5):
        fleet.record_fault(0)
    model = fleet.pool.ids[0]
    found = told(metrics)
    assert of(found, "circuit_open", model=model) == 1
    assert of(found, "key_refused", provider="sandbox") == 0
    await clock.advance(20.0)
    assert of(told(metrics), "circuit_open", model=model) == 0
    assert [of(found, name) for name in ("traces_waiting", "hooks_waiting")] == [0, 0]
    assert [of(found, f"{name}_total") for name in ("traces_lost", "hooks_failed")] == [0, 0]


@table("refusal", Refusal)
def test_a_refused_connection_is_counted(refusal: Refusal) -> None:
    metrics = Metrics(Router.sandbox())
    metrics.on_refusal(refuse(refusal, None, []))
    reason, status = refusal.name.lower(), str(refusal.kind.status)
    assert of(told(metrics), "http_refusals_total", reason=reason, status=status) == 1


def hostile(trace: Trace) -> Trace:
    return replace(
        trace,
        account='CANARY"} 1\nfake_metric 1',
        key_id="CANARY-key",
        metadata={"CANARY": "CANARY"},
        policy_version="CANARY@2026-01-01",
        traceparent="CANARY",
        error="CANARY",
    )


def test_no_account_key_or_metadata_is_a_label() -> None:
    router = Router.sandbox().as_caller(Caller('CANARY"} 1 fake_metric 1'))
    metrics = Metrics(router)
    with router.tags(CANARY="CANARY"):
        trace = router.blocking.route("CANARY").trace
    router.blocking.flush()
    metrics.tell(hostile(trace))
    text = metrics.render().decode()
    assert (
        of(samples(text), "calls_total", model=trace.selected_model or "", status="completed", environment="sandbox")
        == 2
    )
    assert "CANARY" not in text
    assert "fake_metric" not in text


def test_the_number_of_labels_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_of_a_router, "MOST_MODELS", 40)
    router = Router.sandbox()
    metrics, trace = Metrics(router), router.blocking.route("Hello").trace
    (model,) = [span for span in trace.spans if isinstance(span, ModelSpan)]
    for number in range(100):
        name = f"made-up/{number}"
        span = replace(model, model=name, error=f"made up {number}")
        metrics.tell(replace(trace, selected_model=name, spans=[span]))
    found = told(metrics)
    for name in ("calls_total", "attempts_total"):
        labels = [dict(labels) for (each, labels) in found if each == f"routewright_{name}"]
        assert len({each["model"] for each in labels}) <= 40 + 2
        assert {each.get("outcome", "other") for each in labels} <= {"other", "ok"}


def test_every_metric_of_the_table_is_exported(site: tuple[Site, Metrics]) -> None:
    _, metrics = site
    told_of = {family.name: family.type for family in text_string_to_metric_families(metrics.render().decode())}
    assert {name: kind for name, kind in told_of.items() if not name.endswith("_created")} == {
        figure.name.removesuffix("_total"): figure.kind for figure in FIGURES.values()
    }
    private = {"account", "key", "key_id", "metadata", "trace_id", "path", "client"}
    assert all(private.isdisjoint(figure.labels) for figure in FIGURES.values())


def test_a_failing_observer_is_logged_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    made = Site()
    seen: list[int] = []
    made.app = create_app(
        made.router,
        made.console,
        observers=[lambda exchange: 1 / 0, lambda exchange: seen.append(exchange.final_status)],
    )
    with made.client(made.key(environment="sandbox")) as client:
        for _ in range(3):
            assert client.post("/v1/route", json=HELLO).status_code == 200
    assert seen == [200] * 3
    assert caplog.text.count("an observer of requests failed (logged once)") == 1


def test_a_process_renders_the_metrics_of_all(tmp_path: Path) -> None:
    code = """
import os, anyio
from routewright import Router
from routewright.server import create_app
from routewright.server.metrics import Metrics
from tests.server.asgi_request import ask
is_child = os.fork() == 0
metrics = Metrics(router := Router.sandbox())
app = create_app(router, observers=[metrics])
for _ in range(2 if is_child else 1):
    router.blocking.route("Hello")
    anyio.run(ask, app, "/nowhere")
router.blocking.flush()
metrics.render()
if not is_child:
    os.wait()
    print(metrics.render().decode())
"""
    environ = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ)
    figures = samples(run.stdout)
    assert of(figures, "call_duration_seconds_count", environment="sandbox") == 3, "what an ended one counted stays"
    assert of(figures, "http_requests_total", endpoint="none", method="GET", status="404") == 3
    assert of(figures, "refusals_total", code="not_found") == 3
    assert of(figures, "traces_waiting") == of(figures, "key_refused", provider="sandbox") == 0
    assert len({file.stem.rpartition("_")[2] for file in tmp_path.glob("gauge_live*.db")}) == 1, "its state does not"


def test_guardrail_hits_are_counted() -> None:
    router = Router.sandbox(guardrails=[DenyList(["Hello"], action="redact")])
    metrics = Metrics(router)
    router.blocking.route("Hello Hello")
    router.blocking.flush()
    assert of(told(metrics), "guardrail_hits_total", stage="input", action="redact") == 2
