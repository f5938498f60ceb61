"""The specification, table by table and row by row, against a real server over real sockets."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, NamedTuple

import httpx2
import msgspec
import pytest

from routewright import MemoryStorage, Model, Policy, RateLimits, Router
from routewright.backends.clock import SystemClock
from routewright.errors import ProviderFault, StorageUnavailable
from routewright.testing import ScriptedProvider
from routewright.testing.provider import Pause, Turn
from routewright.wire import Delta, Finish, PolicyGuardrail, Pricing, ToolDelta, UpstreamCall, Usage
from tests.tables import table

from .uvicorn_server import HELLO, Site, bearer

CRANKY, STEADY = "maker/cranky", "other/steady"
PRICES = Pricing(input_usd=1.0, output_usd=2.0)
MODELS = [
    Model(id=CRANKY, quality=0.9, pricing_per_1m=PRICES, context_window=8_000, modalities=("text", "tool", "image")),
    Model(id=STEADY, quality=0.5, pricing_per_1m=PRICES, context_window=8_000, modalities=("text", "tool")),
]
POLICIES = [
    Policy(name="careful", created_at="2026-11-01T00:00:00Z", goal="stability", models=[STEADY]),
    Policy(name="clean", guardrails=[PolicyGuardrail(deny=["forbidden"], action="block")]),
]
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


def reply(call: UpstreamCall) -> Turn:
    """What the last message asks for."""
    said = call.messages[-1].content
    text = said if isinstance(said, str) else "parts"
    if text == "hang":
        return [Pause(60.0)]
    if text.startswith("fault "):
        kind, _, who = text.removeprefix("fault ").partition(" of ")
        if who in ("", call.model.id):
            return ProviderFault(kind)
    if call.tools and call.tool_choice == "required":
        return [ToolDelta(0, '{"city": "Oslo"}', "call_1", "weather"), Usage(9, 5), Finish("tool_calls")]
    return [Delta("Hello "), Delta("there."), Usage(7, 3, 2), Finish("stop")]


class Place(NamedTuple):
    """A served site."""

    url: str
    site: Site
    live: httpx2.Client
    test: httpx2.Client


class Fragile(MemoryStorage):
    """A storage that can be away."""

    away = False

    async def read(self, account: str, query: Any) -> Any:
        if self.away:
            raise StorageUnavailable("the disk is gone")
        return await super().read(account, query)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    storage = Fragile()
    providers = [ScriptedProvider(reply, models=[model], clock=SystemClock()) for model in MODELS]
    site = Site(Router(providers=providers, policies=POLICIES, storage=storage), storage=storage)
    live, test = site.key(), site.key(environment="sandbox")
    with (
        site.served() as url,
        httpx2.Client(base_url=url, headers=bearer(live), timeout=30) as one,
        httpx2.Client(base_url=url, headers=bearer(test), timeout=30) as two,
    ):
        yield Place(url, site, one, two)


def ask(text: str = "Hello", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "models": [CRANKY, STEADY], "goal": "quality", **fields}


def at(body: Any, path: str) -> Any:
    for step in path.split("."):
        body = body[int(step)] if step.isdecimal() else body[step]
    return body


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_time(value: Any) -> bool:
    return isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None


def is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


# 1: conventions


def test_1_paths_are_prefixed_with_the_version(place: Place) -> None:
    assert place.live.post("/v1/route", json=ask()).status_code == 200
    assert place.live.post("/route", json=ask()).status_code == 404
    assert place.live.post("/v2/route", json=ask()).status_code == 404


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("application/json", None),
        ('application/json; Charset="UTF-8"', None),
        ("application/json; charset=utf-8; profile=x", None),
        ("application/json; charset=latin-1", "unsupported_media_type"),
        ("application/json; profile=x; charset=latin-1", "unsupported_media_type"),
        ("application/jsonx", "unsupported_media_type"),
        ("text/plain", "unsupported_media_type"),
    ],
)
def test_1_a_request_is_json_in_utf_8_and_any_other_kind_is_415(place: Place, kind: str, code: str | None) -> None:
    answer = place.live.post("/v1/route", content=msgspec.json.encode(ask()), headers={"Content-Type": kind})
    assert (answer.status_code, answer.json().get("error", {}).get("code")) == (415 if code else 200, code)


@pytest.mark.parametrize("path", ["/v1/openai/chat", "/openai/chat/completions", "/v2/messages", "/anthropic/messages"])
def test_1_a_wrong_base_url_is_answered_with_the_right_ones(place: Place, path: str) -> None:
    answer = place.live.post(path, json={})
    assert answer.status_code == 404
    assert "/openai/v1" in answer.text
    assert "/anthropic" in answer.text


# 2.1: the route request

ACCEPTED: dict[str, Any] = {
    "messages": [{"role": role, "content": "Hi"} for role in ("system", "user", "assistant", "user")],
    "goal": "stability",
    "strategy": "latency-optimized",
    "policy_id": "careful",
    "models": [STEADY],
    "fallback": {"models": [STEADY], "maxRetries": 0},
    "budget": {"maxCostUsd": 1, "maxTokens": 9_000.0},
    "cache": True,
    "stream": False,
    "tools": [WEATHER],
    "metadata": {"team": "search", "nested": {"n": [1, None]}},
    "timeout_ms": 60_000,
    "idempotency_key": "a key of its own",
}


@pytest.mark.parametrize("field", ACCEPTED)
def test_2_1_a_field_is_accepted(place: Place, field: str) -> None:
    assert place.live.post("/v1/route", json={**HELLO, field: ACCEPTED[field]}).status_code == 200


def test_2_1_the_default_is_cost_under_balanced(place: Place) -> None:
    reason = place.live.post("/v1/route", json=HELLO).json()["routing"]["decision_reason"]
    assert reason.startswith("goal=cost strategy=balanced")


@pytest.mark.parametrize("budget", [{"maxCostUsd": 1e-9}, {"maxTokens": 2}])
def test_2_1_a_budget_is_hard(place: Place, budget: dict[str, float]) -> None:
    answer = place.live.post("/v1/route", json=ask(budget=budget))
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "router.budget_exceeded")


# 2.2: the route response

RESPONSE: dict[str, Callable[[Any], bool]] = {
    "trace_id": lambda value: re.fullmatch(r"tr_[0-9A-HJKMNP-TV-Z]{26}", value) is not None,
    "output": lambda value: value == "Hello there.",
    "routing.selected_model": lambda value: value == CRANKY,
    "routing.fallback_chain": lambda value: value == [STEADY],
    "routing.policy_version": lambda value: re.fullmatch(r"[^@]+@\d{4}-\d{2}-\d{2}(\.\d+)?", value) is not None,
    "routing.decision_reason": is_text,
    "routing.cost_usd": lambda value: 0 < value < 0.001,
    "routing.latency_ms": is_number,
    "routing.cache_hit": lambda value: value is False,
    "routing.tokens.input": lambda value: value == 7,
    "routing.tokens.output": lambda value: value == 3,
    "routing.tokens.cached": lambda value: value == 2,
    "usage.rate_limit_remaining": lambda value: 0 < value < 3_000,
    "usage.rate_limit_reset_unix": lambda value: time.time() - 5 < value < time.time() + 65,
    "primary_model": lambda value: value == CRANKY,
    "fallback_model": lambda value: value is None,
    "cache_hit": lambda value: value is False,
}


@table("field", RESPONSE)
def test_2_2_a_response_has_the_field(place: Place, field: str) -> None:
    answer = place.live.post("/v1/route", json=ask())
    assert answer.headers["content-type"] == "application/json"
    assert RESPONSE[field](at(answer.json(), field))


# 2.3: models

MODEL: dict[str, Callable[[Any], bool]] = {
    "id": lambda value: "/" in value,
    "provider": is_text,
    "context_window": lambda value: value > 1_000,
    "modalities": lambda value: "text" in value and set(value) <= {"text", "image", "tool", "audio", "file"},
    "pricing_per_1m.input_usd": is_number,
    "pricing_per_1m.output_usd": is_number,
    "availability.status": lambda value: value in ("available", "degraded", "unavailable"),
    "availability.regions": lambda value: isinstance(value, list),
}


@pytest.mark.parametrize("field", MODEL)
def test_2_3_every_model_has_the_field(place: Place, field: str) -> None:
    models = place.test.get("/v1/models").json()["models"]
    assert len(models) > 50
    assert all(MODEL[field](at(model, field)) for model in models)


def test_2_3_deprecated_at_is_a_time_or_null(place: Place) -> None:
    told = [model["deprecated_at"] for model in place.live.get("/v1/models").json()["models"]]
    assert None in told
    assert all(value is None or datetime.fromisoformat(value) for value in told)


# 2.6, 4.4: a trace


def test_2_6_a_trace_is_a_tree_of_spans(place: Place) -> None:
    body = place.live.post("/v1/route", json=ask(f"fault server of {CRANKY}", policy_id=None)).json()
    trace = place.live.get(f"/v1/traces/{body['trace_id']}").json()
    assert trace["id"] == body["trace_id"]
    assert trace["cost_usd"] == body["routing"]["cost_usd"]
    assert trace["policy_id"] is None
    spans = {span["type"]: span for span in trace["spans"]}
    assert {"model", "latency_ms", "tokens"} <= spans["model"].keys()
    assert spans["fallback"]["used"] is True
    ids = {span["id"] for span in trace["spans"]}
    assert all(span["parent_id"] is None or span["parent_id"] in ids for span in trace["spans"])


def test_2_6_a_trace_names_its_policy(place: Place) -> None:
    body = place.live.post("/v1/route", json=ask(policy_id="careful", models=[STEADY])).json()
    policy = next(each for each in place.live.get("/v1/policies").json() if each["name"] == "careful")
    assert place.live.get(f"/v1/traces/{body['trace_id']}").json()["policy_id"] == policy["id"]


def test_4_4_trc_is_another_way_to_write_it(place: Place) -> None:
    trace_id = place.live.post("/v1/route", json=ask()).json()["trace_id"]
    assert place.live.get(f"/v1/traces/trc_{trace_id[3:]}").json()["id"] == trace_id


def test_4_4_an_unknown_one_is_404(place: Place) -> None:
    answer = place.live.get("/v1/traces/tr_00000000000000000000000000")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


def test_9_another_accounts_trace_answers_as_an_unknown_one(place: Place) -> None:
    trace_id = place.live.post("/v1/route", json=ask()).json()["trace_id"]
    with httpx2.Client(base_url=place.url, headers=bearer(place.site.key("other"))) as other:
        answers = [other.get(f"/v1/traces/{each}") for each in (trace_id, f"tr_{'0' * 26}")]
    seen = [(a.status_code, a.text.replace(trace_id, "X").replace(f"tr_{'0' * 26}", "X")) for a in answers]
    seen = [(status, re.sub(r"req_\w+", "R", text)) for status, text in seen]
    assert seen[0] == seen[1]
    assert {*answers[0].headers} == {*answers[1].headers}


def test_9_a_live_key_sees_no_trace_of_the_sandbox(place: Place) -> None:
    trace_id = place.test.post("/v1/route", json=HELLO).json()["trace_id"]
    assert place.test.get(f"/v1/traces/{trace_id}").status_code == 200
    assert place.live.get(f"/v1/traces/{trace_id}").status_code == 404


# 2.7, 4.8: policies


def test_2_7_policies_are_a_bare_list_with_ids_and_times(place: Place) -> None:
    policies = place.live.get("/v1/policies").json()
    assert isinstance(policies, list)  # 4.8: not wrapped
    assert {each["name"] for each in policies} == {"careful", "clean"}
    for each in policies:
        assert re.fullmatch(r"pol_[0-9A-Z]{26}", each["id"])
        assert is_time(each["created_at"])


def test_2_7_policies_hide_their_guardrails(place: Place) -> None:
    assert "forbidden" not in place.live.get("/v1/policies").text


# 2.8, 4.5: lists of traces


def test_2_8_a_list_has_data_cursor_and_has_more(place: Place) -> None:
    page = place.live.get("/v1/traces").json()
    assert page.keys() == {"data", "next_cursor", "has_more"}


def test_4_5_pages_follow_one_another(place: Place) -> None:
    for _ in range(3):
        place.live.post("/v1/route", json=ask(metadata={"row": "pages"}))
    asked = {"filter": "metadata.row=pages", "limit": "2"}
    first = place.live.get("/v1/traces", params=asked).json()
    second = place.live.get("/v1/traces", params={**asked, "cursor": first["next_cursor"]}).json()
    assert (len(first["data"]), first["has_more"]) == (2, True)
    assert (len(second["data"]), second["has_more"], second["next_cursor"]) == (1, False, None)
    assert len({each["id"] for each in first["data"] + second["data"]}) == 3


def test_4_5_from_and_to_are_a_window(place: Place) -> None:
    trace_id = place.live.post("/v1/route", json=ask()).json()["trace_id"]
    created = place.live.get(f"/v1/traces/{trace_id}").json()["created_at"]
    after = place.live.get("/v1/traces", params={"from": created}).json()["data"]
    before = place.live.get("/v1/traces", params={"to": created}).json()["data"]
    assert trace_id in [each["id"] for each in after]
    assert trace_id not in [each["id"] for each in before]


# 4.1: route


def test_4_1_a_request_rescued_by_a_fallback_is_200(place: Place) -> None:
    assert place.live.post("/v1/route", json=ask(f"fault server of {CRANKY}")).status_code == 200


def test_4_1_a_repeated_key_returns_the_original_result(place: Place) -> None:
    answers = [place.live.post("/v1/route", json=ask(), headers={"Idempotency-Key": "k1"}) for _ in range(2)]
    assert answers[0].content == answers[1].content
    in_body = place.live.post("/v1/route", json=ask(idempotency_key="k1"))  # 2.1: of the same effect
    assert in_body.json()["trace_id"] == answers[0].json()["trace_id"]


def test_4_1_a_key_with_another_body_is_409(place: Place) -> None:
    place.live.post("/v1/route", json=ask("one"), headers={"Idempotency-Key": "k2"})
    answer = place.live.post("/v1/route", json=ask("two"), headers={"Idempotency-Key": "k2"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "idempotency_key_reused_with_different_body")


@pytest.mark.parametrize(("key", "status"), [("k" * 64, 200), ("k" * 65, 400), ("é" * 33, 400)])
def test_4_1_a_key_has_at_most_64_bytes(place: Place, key: str, status: int) -> None:
    answer = place.live.post("/v1/route", json=ask(), headers={b"Idempotency-Key": key.encode()})
    assert answer.status_code == status


def test_4_1_a_stream_consists_of_events(place: Place) -> None:
    answer = place.live.post("/v1/route", json=ask(stream=True))
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = [block.split("\n") for block in answer.text.strip().split("\n\n")]
    names = [lines[0].removeprefix("event: ") for lines in events]
    assert names == ["route.started", "output.delta", "output.delta", "route.completed"]
    assert [lines[1] for lines in events] == [f"id: {number}" for number in range(1, 5)]
    assert all(len(lines) == 3 and lines[2].startswith("data: {") for lines in events)


# 4.2, 4.6, 4.7


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/models", {"models"}),
        ("/v1/analytics/usage", {"data", "totals"}),
        ("/v1/analytics/cache", {"hit_rate", "hits", "misses", "saved_usd", "ttl_distribution"}),
        ("/v1/analytics/fallback", {"triggered", "rate", "reasons", "passed_by", "candidates"}),
        ("/v1/analytics/latency", {"data"}),
    ],
)
def test_4_6_and_4_7_reports_have_their_fields(place: Place, path: str, fields: set[str]) -> None:
    answer = place.live.get(path)
    assert answer.status_code == 200
    assert fields <= answer.json().keys()


@pytest.mark.parametrize("group_by", ["model", "tenant", "workflow"])
@pytest.mark.parametrize("bucket", ["hour", "day", "week", "month"])
def test_4_6_usage_by_time_and_group(place: Place, group_by: str, bucket: str) -> None:
    metadata = {"tenant": "t1", "workflow": "w1"}
    place.live.post("/v1/route", json=ask(metadata=metadata))
    report = place.live.get("/v1/analytics/usage", params={"group_by": group_by, "bucket": bucket}).json()
    expected = {"model": CRANKY, "tenant": "t1", "workflow": "w1"}[group_by]
    row = next(each for each in report["data"] if each["group"] == expected)
    assert row["requests"] >= 1
    assert {"bucket_start", "group", "requests", "errors", "cost_usd", "tokens"} <= row.keys()


# 5: authentication

ENDPOINTS = [
    ("POST", "/v1/route"),
    ("POST", "/v1/decide"),
    ("GET", "/v1/models"),
    ("GET", "/v1/traces"),
    ("GET", "/v1/traces/tr_1"),
    ("GET", "/v1/analytics/usage"),
    ("GET", "/v1/analytics/cache"),
    ("GET", "/v1/analytics/fallback"),
    ("GET", "/v1/analytics/latency"),
    ("GET", "/v1/policies"),
]


@table(("method", "path"), ENDPOINTS)
@table("header", [None, "", "Bearer", "Bearer sk_live_wrong", "Basic eDp4", f"Bearer sk_live_{'A' * 33}"])
def test_5_3_without_a_valid_key_all_are_401(place: Place, method: str, path: str, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    answer = httpx2.request(method, place.url + path, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "authentication_failed")
    assert answer.headers["www-authenticate"] == "Bearer"


def test_5_2_a_test_key_gets_canned_output_and_is_never_billed(place: Place) -> None:
    body = place.test.post("/v1/route", json=HELLO).json()
    assert "canned" in body["output"]
    standing = place.site.console.blocking.standing("acme")
    before = standing.month.spent_nanos
    place.test.post("/v1/route", json=HELLO)
    assert place.site.console.blocking.standing("acme").month.spent_nanos == before


@table(("environment", "kind"), [("production", "sandbox"), ("sandbox", "production")])
def test_5_2_each_address_accepts_its_own_keys(environment: Any, kind: Any) -> None:
    site = Site(environment=environment)
    with site.client(site.key(environment=kind)) as client:
        answer = client.get("/v1/models")
    assert answer.status_code == 401
    assert f"to the {kind} address" in answer.json()["error"]["message"]


# 7: errors


def test_7_an_error_has_all_fields_of_the_envelope(place: Place) -> None:
    answer = place.live.post("/v1/route", json=ask("fault server", budget={"maxCostUsd": 0.01}))
    error = answer.json()["error"]
    assert error.keys() == {"code", "message", "type", "request_id", "trace_id", "detail"}
    assert re.fullmatch(r"req_[0-9A-Z]{26}", error["request_id"])
    assert answer.headers["x-request-id"] == error["request_id"]
    assert place.live.get(f"/v1/traces/{error['trace_id']}").json()["error"] == "router.upstream_failed"


class Row(NamedTuple):
    status: int
    code: str
    type: str
    request: dict[str, Any]


STATUSES = {
    "200": Row(200, "", "", ask()),
    "400": Row(400, "validation_failed", "validation_error", ask(goal="speed")),
    "403 policy": Row(403, "blocked_by_policy", "permission_error", ask("forbidden", policy_id="clean")),
    "403 provider": Row(403, "content_refused", "permission_error", ask("fault refused")),
    "422 budget": Row(422, "router.budget_exceeded", "constraint_error", ask(budget={"maxCostUsd": 1e-9})),
    "422": Row(422, "router.no_candidates", "constraint_error", ask("x" * 90_000)),
    "504": Row(504, "RouterTimeoutError", "timeout_error", ask("hang", timeout_ms=200)),
    "502": Row(502, "router.upstream_failed", "upstream_error", ask("fault server")),
}


@table("stream", [False, True])
@table("row", STATUSES)
def test_7_a_failure_before_the_content_has_its_status(place: Place, row: str, stream: bool) -> None:
    status, code, kind, request = STATUSES[row]
    answer = place.live.post("/v1/route", json={**request, "stream": stream})
    assert answer.status_code == status
    if code:
        assert answer.headers["content-type"] == "application/json"
        assert (answer.json()["error"]["code"], answer.json()["error"]["type"]) == (code, kind)


def test_7_402_means_insufficient_balance(place: Place) -> None:
    key = place.site.key("poor", account_prepaid=True)
    answer = httpx2.post(f"{place.url}/v1/route", headers=bearer(key), json=ask())
    assert (answer.status_code, answer.json()["error"]["code"]) == (402, "insufficient_balance")
    assert "x-ratelimit-remaining" in answer.headers  # it counts


def test_7_the_detail_of_a_refused_budget(place: Place) -> None:
    detail = place.live.post("/v1/route", json=ask(budget={"maxCostUsd": 1e-9})).json()["error"]["detail"]
    assert {each["model"] for each in detail["rejected_candidates"]} >= {CRANKY, STEADY}
    assert all("estimated_cost_usd" in each for each in detail["rejected_candidates"])
    assert is_text(detail["suggestion"])


def test_7_500_hides_what_is_wrong_with_the_storage(place: Place) -> None:
    storage: Any = place.site.storage
    storage.away = True
    try:
        answer = httpx2.get(f"{place.url}/v1/analytics/usage", headers=place.live.headers)
    finally:
        storage.away = False
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "storage_unavailable")
    assert "disk" not in answer.text  # what is wrong with it is for the operator


def test_7_405_names_the_allowed_methods(place: Place) -> None:
    answer = place.live.get("/v1/route")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert answer.json()["error"]["code"] == "method_not_allowed"


# 8: limits


@pytest.mark.parametrize(("plan", "requests"), [("free", 60), ("pro", 600), ("team", 3_000)])
def test_8_the_headers_state_the_limit_of_the_plan(place: Place, plan: str, requests: int) -> None:
    key = place.site.key(f"of-{plan}", account_plan=plan)
    answer = httpx2.post(f"{place.url}/v1/route", headers=bearer(key), json=ask())
    assert answer.headers["x-ratelimit-limit"] == str(requests)
    assert answer.headers["x-ratelimit-remaining"] == str(requests - 1)
    assert answer.headers["x-ratelimit-resource"] in ("requests", "tokens")
    assert time.time() - 5 < int(answer.headers["x-ratelimit-reset"]) < time.time() + 65
    assert "retry-after" not in answer.headers  # only on 429


@pytest.mark.parametrize("stream", [False, True])
def test_8_429_has_retry_after(place: Place, stream: bool) -> None:
    key = place.site.key(f"small-{stream}", limits=RateLimits(requests_per_min=1))
    answers = [httpx2.post(f"{place.url}/v1/route", headers=bearer(key), json=ask(stream=stream)) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert answers[0].headers["x-ratelimit-limit"] == "1"
    assert answers[1].json()["error"]["code"] == "RATE_LIMITED"
    assert 0 < int(answers[1].headers["retry-after"]) <= 60
    assert answers[1].headers["x-ratelimit-remaining"] == "0"


@pytest.mark.parametrize("path", ["/v1/decide", "/anthropic/v1/messages/count_tokens"])
def test_8_decide_and_count_tokens_count_as_requests(place: Place, path: str) -> None:
    key = place.site.key(f"asks {path}", limits=RateLimits(requests_per_min=2, tokens_per_min=1_000_000))
    body = HELLO if path == "/v1/decide" else {**HELLO, "model": "auto", "max_tokens": 9}
    answers = [httpx2.post(f"{place.url}{path}", headers=bearer(key), json=body) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].headers["x-ratelimit-remaining"] == "1"
