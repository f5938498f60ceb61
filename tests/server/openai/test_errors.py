"""Every error class of the official SDK, raised by a real cause; and the errors on the wire."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import anyio
import openai
import pytest
from msgspec.structs import replace
from openai import OpenAI

from routewright import CallableProvider, Pricing, RateLimits
from routewright.errors import NotFound
from routewright.server.openai import envelope
from routewright.testing import ScriptedProvider
from tests.server.uvicorn_server import PATIENCE_S, Site
from tests.tables import table

from .clients import CHAT, HI, ONE, raw, sandbox, sdk, sent, site_of

PRICED = replace(ONE, pricing_per_1m=Pricing(2.0, 8.0))

ANY_SITE = Site()
ANY_KEY = ANY_SITE.key(environment="sandbox", account_plan="unlimited")


def asked(client: OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(**{"model": "auto", "messages": HI, **fields})


def caught(site: Site, kind: type[openai.APIStatusError], key: str | None = None, **fields: Any) -> Any:
    with sdk(site, key) as client, pytest.raises(kind) as found:
        asked(client, **fields)
    assert type(found.value) is kind
    assert found.value.request_id is not None
    return found.value


@table(
    ("fields", "kind", "param", "code", "said"),
    [
        (
            {"model": "gpt-4.l"}, openai.NotFoundError, "model", "model_not_found",
            "there is no model 'gpt-4.l', or you may not use it; did you mean 'openai/gpt-4.1'?",
        ),
        (
            {"max_completion_tokens": 0}, openai.BadRequestError, "max_completion_tokens", "validation_failed",
            "must be a whole number of at least 1, got 0; for example 1000",
        ),
        ({"model": "policy:none"}, openai.BadRequestError, "model", "validation_failed", ""),
        (
            {"extra_headers": {"Idempotency-Key": "k" * 65}}, openai.BadRequestError, "Idempotency-Key",
            "validation_failed", "",
        ),
    ],
)  # fmt: skip
def test_an_error_names_what_the_client_sent(
    fields: dict[str, Any], kind: type[openai.APIStatusError], param: str, code: str, said: str
) -> None:
    error = caught(Site(), kind, **fields)
    assert (error.param, error.type, error.code) == (param, "invalid_request_error", code)
    assert said in error.message


def test_a_budget_below_every_estimate_is_unprocessable() -> None:
    wishes = {"budget": {"maxCostUsd": 1e-6}}
    error = caught(
        Site(), openai.UnprocessableEntityError, model="gpt-4.1", max_tokens=900, extra_body={"routewright": wishes}
    )
    assert (error.code, error.type) == ("router.budget_exceeded", "invalid_request_error")
    assert "routewright.budget.maxCostUsd" in error.message
    assert error.body["detail"]["suggestion"] in error.message
    assert error.body["detail"]["rejected_candidates"]
    assert error.body["trace_id"] == error.response.headers["x-routewright-trace-id"]


def test_a_reused_key_with_another_body_is_a_conflict_without_retry() -> None:
    site = site_of(ScriptedProvider(["One."], models=[ONE]))
    headers = {"Idempotency-Key": "k1"}
    with sdk(site, site.key(), max_retries=2) as client:
        asked(client, extra_headers=headers)
        with pytest.raises(openai.ConflictError) as found:
            asked(client, temperature=1, extra_headers=headers)
    error: Any = found.value
    assert error.code == "idempotency_key_reused_with_different_body"
    assert error.response.headers["x-should-retry"] == "false"
    assert error.response.request.headers["x-stainless-retry-count"] == "0"


def test_a_call_that_takes_too_long_is_a_server_error() -> None:
    gate = threading.Event()
    site = site_of(CallableProvider(lambda call: str(gate.wait(PATIENCE_S)), models=[ONE]))
    error = caught(site, openai.InternalServerError, site.key(), extra_body={"routewright": {"timeout_ms": 50}})
    gate.set()
    assert (error.status_code, error.code) == (504, "RouterTimeoutError")
    assert "routewright.timeout_ms=50" in error.message


def test_content_that_is_refused_is_permission_denied() -> None:
    assert caught(sandbox(faults={"*": "refused"}), openai.PermissionDeniedError).code == "content_refused"


def test_an_account_without_balance_gets_402() -> None:
    site = site_of(ScriptedProvider([], models=[PRICED]))
    error = caught(site, openai.APIStatusError, site.key(account_prepaid=True))
    assert (error.status_code, error.code, error.type) == (402, "insufficient_balance", "insufficient_quota")


def test_a_request_over_the_limit_is_a_rate_limit_error() -> None:
    site = Site()
    key = site.key(environment="sandbox", limits=RateLimits(requests_per_min=1))
    with sdk(site, key) as client:
        asked(client)
        with pytest.raises(openai.RateLimitError) as found:
            asked(client)
    headers = found.value.response.headers
    assert (found.value.code, found.value.type) == ("RATE_LIMITED", "rate_limit_error")
    assert 50 < int(headers["retry-after"]) <= 60
    assert (headers["x-ratelimit-limit-requests"], headers["x-ratelimit-remaining-requests"]) == ("1", "0")


def test_the_sdk_retries_after_retry_after(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, go_on, slept = threading.Event(), threading.Event(), list[float]()

    def answer(call: object) -> str:
        entered.set()
        assert go_on.wait(PATIENCE_S)
        return "There."

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        go_on.set()
        first.join(PATIENCE_S)

    site = site_of(CallableProvider(answer, models=[ONE]))
    key = site.key(limits=RateLimits(concurrency=1))
    with sdk(site, key, max_retries=1) as client:
        first = threading.Thread(target=partial(asked, client))
        first.start()
        assert entered.wait(PATIENCE_S)
        monkeypatch.setattr(time, "sleep", sleep)
        told = asked(client)
    assert told.choices[0].message.content == "There."
    assert slept == [1.0]


def test_a_concurrency_limit_has_no_headers_of_the_request_limit() -> None:
    gate, entered = threading.Event(), threading.Event()

    def answer(call: object) -> str:
        entered.set()
        return str(gate.wait(PATIENCE_S))

    site = site_of(CallableProvider(answer, models=[ONE]))
    with sdk(site, site.key(limits=RateLimits(concurrency=1))) as client:
        first = threading.Thread(target=partial(asked, client))
        first.start()
        assert entered.wait(PATIENCE_S)
        with pytest.raises(openai.RateLimitError) as found:
            asked(client)
        gate.set()
        first.join(PATIENCE_S)
    assert "x-ratelimit-limit-requests" not in found.value.response.headers
    assert found.value.response.headers["retry-after"] == "1"


def test_an_error_is_openais_envelope() -> None:
    with raw(Site()) as client:
        answer = client.post("/chat/completions", json={**CHAT, "n": 2})
    assert answer.json() == {
        "error": {
            "message": "n: must be 1, got 2; send one request for each answer",
            "type": "invalid_request_error",
            "param": "n",
            "code": "validation_failed",
            "request_id": answer.headers["x-request-id"],
            "detail": {
                "problems": [
                    {
                        "path": "n",
                        "problem": "must be 1, got 2",
                        "hint": "send one request for each answer",
                    }
                ]
            },
        }
    }


def test_names_of_ignored_fields_cannot_inject_headers() -> None:
    odd = {"a\r\nSet-Cookie: x=1": 1, "b\n": 1, "c, d": 1, "é": 1, "fine": 1}
    status, headers, _ = anyio.run(sent, ANY_SITE, ANY_KEY, {**CHAT, **odd})
    assert status == 200
    assert headers[b"x-routewright-ignored"] == b"fine"
    assert b"set-cookie" not in headers


def test_errors_repeat_no_api_key() -> None:
    assert b"0123456789" not in envelope(NotFound("there is no sk_live_0123456789"))
