"""Tables of what vendors answer instead of an answer, and the kind of fault that it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from routewright.backends.providers.faults import fault_in_answer, fault_of_answer, retry_after, seconds_until
from routewright.backends.providers.openai import Completion
from routewright.errors import ProviderFault
from tests.tables import table

from .provider_calls import call, came_from, kind_of, read_streamed
from .vendors import KEY, VENDORS

BY_NAME = {str(vendor): vendor for vendor in VENDORS}
ERRORS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data/vendor_errors.jsonl").read_text("utf-8").splitlines()
]
"""Bodies as vendors write them, above all those that differ in a word."""


@table("api", BY_NAME)
def test_an_error_is_classified_by_its_vendors_fields(api: str) -> None:
    vendor, wrong = BY_NAME[api], list[Any]()
    provider = vendor.make(KEY)
    for row in ERRORS:
        status, body = row["status"], json.dumps(row["body"])
        if row["api"] == api:
            with pytest.raises(ProviderFault) as caught:
                provider.read(provider.request(call()), status, {}, body.encode())
            fault = caught.value
            kinds = {fault.kind}
            if status == 200:
                kinds |= {kind_of(read_streamed, vendor.reader(), f"data: {body}\n\n".encode())}
            whose = fault.message.startswith(f"{api} answered {status}") or status == 200
            if (kinds, fault.retry_after, whose) != ({row["kind"]}, None, True):
                wrong.append((row, kinds, fault))
    assert not wrong


def test_input_repeated_in_an_error_does_not_change_its_kind() -> None:
    echoed = [{"type": "string_type", "loc": ["body", "stop"], "msg": "Input should be a list", "input": "moderation"}]
    for body in ({"detail": echoed}, {"message": {"detail": echoed}}, {"error": {"message": echoed}}):
        assert fault_of_answer("x", 422, {}, json.dumps(body)).kind == "request"


def test_a_code_or_word_in_a_200_counts_like_a_status() -> None:
    rows: list[tuple[Any, str]] = [
        ({"code": 429}, "rate_limited"),
        ({"code": "503"}, "server"),
        ({"code": 404, "message": "no such model"}, "model_not_found"),
        ({"code": 7, "message": "context window exceeded"}, "context_overflow"),
        ({"code": 7}, "malformed"),
        ({"status": "PERMISSION_DENIED"}, "auth"),
        ({"status": "UNAUTHENTICATED"}, "auth"),
        ({"status": "RESOURCE_EXHAUSTED"}, "rate_limited"),
        ({"status": "INTERNAL"}, "server"),
        ({"status": "UNAVAILABLE"}, "server"),
        ({"status": "DEADLINE_EXCEEDED"}, "server"),
        ({"status": "INVALID_ARGUMENT"}, "malformed"),
    ]
    assert [(error, fault_in_answer("x", json.dumps({"error": error})).kind) for error, _ in rows] == rows
    assert fault_in_answer("x", "[]").kind == "malformed"
    zero = {"base_resp": {"status_code": 0, "status_msg": ""}}  # MiniMax's word for no error
    good = {"choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}]} | zero
    assert came_from(Completion("x"), json.dumps(good).encode())[1] is None


def test_message_of_a_fault_shows_the_code_without_the_text() -> None:
    for field in ("code", "type", "status"):
        for word, shown in (("bad_thing", "bad_thing"), ("my secret; with spaces", ""), ("400", "")):
            body = json.dumps({"error": {"message": "you said 'my secret'", field: word}})
            assert fault_of_answer("x", 400, {}, body).message == f"x answered 400 {shown}".rstrip()
        odd = json.dumps({"error": {"message": "my secret", field: "my secret;"}})
        assert fault_in_answer("x", odd).message == "x answered 200 with an error"
    for error, shown in (
        ({"status": "RESOURCE_EXHAUSTED"}, "google answered 429 resource_exhausted"),
        ({"status": "SOMETHING_ELSE"}, "google answered 429"),
        ({"details": [{"reason": "API_KEY_INVALID"}]}, "google answered 429 api_key_invalid"),
    ):
        assert fault_of_answer("google", 429, {}, json.dumps({"error": {"code": 429, **error}})).message == shown


@table("details", [None, 1, "x", {"reason": []}, [None, [], 1, {"reason": 5}]])
def test_details_of_any_shape_are_read(details: Any) -> None:
    fault = fault_of_answer("x", 429, {}, json.dumps({"error": {"code": 429, "details": details}}))
    assert (fault.kind, fault.retry_after) == ("rate_limited", None)


def test_a_deeply_nested_error_is_a_fault() -> None:
    for depth in range(100, 1_000, 60):
        deep = "[" * depth + "]" * depth
        for error in (deep, f'{{"message": {deep}}}', f'{{"code": {deep}, "details": {deep}}}'):
            assert fault_in_answer("x", f'{{"error": {error}}}').kind == "malformed"
            assert fault_of_answer("x", 500, {}, f'{{"error": {error}}}').kind == "server"


# --- when to ask again

SOON = "Sat, 21 Nov 2026 10:00:30 GMT"
NOW = {"date": "Sat, 21 Nov 2026 10:00:00 GMT"}
RETRY_AFTER: list[tuple[dict[str, str], float | None]] = [
    ({}, None),
    ({"retry-after": "0"}, 0.0),
    ({"retry-after": "1.5"}, 1.5),
    ({"retry-after": "9", "retry-after-ms": "250"}, 0.25),
    ({"retry-after": "9", "retry-after-ms": "x"}, 9.0),
    ({"retry-after": "1e9"}, 86_400.0),
    *(({"retry-after": word}, None) for word in ("-5", "nan", "inf", "soon", "")),
    ({"retry-after": SOON, **NOW}, 30.0),
    ({"retry-after": "Sat, 21 Nov 2026 09:00:00 GMT", **NOW}, 0.0),
    ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
    ({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}, 86_400.0),
]


def test_retry_after_is_seconds_or_nothing() -> None:
    assert [(headers, retry_after(headers)) for headers, _ in RETRY_AFTER] == RETRY_AFTER


def test_the_retry_delay_of_google_is_read_from_the_details() -> None:
    delays: list[tuple[Any, float | None]] = [
        ("34s", 34.0), ("34.074824224s", 34.074824224), ("0s", 0.0), ("999999999s", 86_400.0), ("-1s", None),
        ("nans", None), ("infs", None), ("34", None), ("s", None), ("", None), (34, None), (None, None),
    ]  # fmt: skip
    quota = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaMetric": "requests"}]}
    for delay, seconds in delays:
        info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}
        body = json.dumps({"error": {"code": 429, "details": ["x", {}, quota, info]}})
        assert fault_of_answer("x", 429, {}, body).retry_after == seconds
        assert fault_in_answer("x", body).retry_after == seconds
        assert fault_of_answer("x", 429, {"retry-after": "7"}, body).retry_after == 7.0


def test_the_reset_of_a_limit_is_read_in_each_vendors_form() -> None:
    forms: dict[str, float | None] = {
        "1s": 1.0, "20ms": 0.02, "6m0s": 360.0, "2m59.56s": 179.56, "1h0m5s": 3605.0, "7.5": 7.5,
        "2026-11-21T10:00:09Z": 9.0, "2026-11-21T09:00:00Z": 0.0, "": None, "soon": None, "-3s": None,
    }  # fmt: skip
    for value, seconds in forms.items():
        assert seconds_until({"reset": value, **NOW}, "reset") == pytest.approx(seconds), value
