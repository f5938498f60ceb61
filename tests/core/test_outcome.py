"""What a call leaves behind: the error of a failed call, and the facts of its settlement."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from routewright._core.attempts.machine import End
from routewright._core.attempts.record import Attempt
from routewright._core.outcome import build_failure, facts_of
from routewright.errors import BlockedByPolicy, ContentRefused, RouterError, RouterTimeoutError, UpstreamFailed
from routewright.wire import Caller, FaultKind, RunLimit, TokenBounds, Usage

ADDRESS = "connect: no connection to 10.0.0.7"
PUBLIC = "connect: no connection"


def attempt(model: str, text: str = "server: down", *, public: str = "", hint: str = "") -> Attempt:
    leg: Any = SimpleNamespace(id=model, provider=model.partition("/")[0], prices=())
    failed = Attempt(1, leg, None, started_at=1.0, ended_at=1.5)
    failed.fault, failed.fault_text = FaultKind.SERVER, text
    failed.fault_public, failed.hint = public, hint
    return failed


def call(*attempts: Attempt, key_id: str | None = None) -> Any:
    return SimpleNamespace(
        id="tr_1",
        attempts=attempts,
        caller=Caller("acme", key_id=key_id),
        timeout_ms=2000,
        bounds=TokenBounds(0, 0, 0),
        created="2026-11-28T00:00:00.000Z",
        ledger_rows=[],
    )


def ended(end: End, *, broke_off: bool = False) -> Any:
    return SimpleNamespace(machine=SimpleNamespace(end=end), broke_off=broke_off)


@pytest.mark.parametrize(
    ("end", "models", "kind", "message"),
    [
        (End.TIMED_OUT, "a", RouterTimeoutError, "no answer within timeout_ms=2000; tried m/a (server: down); allow"),
        (End.BLOCKED, "ab", BlockedByPolicy, "a guardrail blocked every answer: m/a (server: down), then m/b ("),
        (End.REFUSED, "a", ContentRefused, "m/a refused the content; other providers were not asked"),
        (End.REFUSED, "ab", ContentRefused, "the content was refused: m/a (server: down), then m/b (server: down)"),
        (End.FAILED, "a", UpstreamFailed, "every attempt failed: m/a (server: down); try again later"),
        (End.TIMED_OUT, "", RouterTimeoutError, "no answer within timeout_ms=2000; tried nothing; "),
    ],
)
def test_each_end_of_a_call_has_its_error(end: End, models: str, kind: type[RouterError], message: str) -> None:
    error, hidden = build_failure(call(*[attempt(f"m/{name}") for name in models]), ended(end))
    assert type(error) is kind
    assert error.message.startswith(message)
    assert (error.trace_id, hidden, error.outside) == ("tr_1", "", None)
    assert [entry["latency_ms"] for entry in error.detail["attempts"]] == [500.0] * len(models)


def test_the_remedy_is_given_if_all_attempts_have_the_same() -> None:
    first, second = attempt("m/a", hint="pay the bill"), attempt("m/b", hint="pay the bill")
    assert build_failure(call(first, second), ended(End.FAILED))[0].message.endswith("; pay the bill")
    second.hint = "wait"
    assert build_failure(call(first, second), ended(End.FAILED))[0].message.endswith("; try again later")
    broken = build_failure(call(first, second), ended(End.FAILED, broke_off=True))[0]
    assert "part of the answer had been read" in broken.message


def test_models_that_failed_alike_at_one_address_are_listed_together() -> None:
    models = [attempt(f"gpu/{name}", ADDRESS, public=PUBLIC) for name in "aab"]
    error, _ = build_failure(call(*models, attempt("m/c")), ended(End.FAILED))
    assert error.message.startswith(f"every attempt failed: gpu/a, gpu/b ({ADDRESS}), then m/c (server: down); ")


def test_only_callers_without_a_key_see_addresses() -> None:
    failed = attempt("gpu/a", ADDRESS, public=PUBLIC)
    error, hidden = build_failure(call(failed), ended(End.FAILED))
    assert ADDRESS in error.message
    assert error.outside is not None
    assert ADDRESS not in str(error.outside)
    assert hidden == ""
    error, hidden = build_failure(call(failed, key_id="key_1"), ended(End.FAILED))
    assert ADDRESS not in f"{error.message} {error.detail}"
    assert error.outside is None
    assert ADDRESS in hidden


def test_tokens_are_unknown_if_those_of_one_attempt_may_have_been_used() -> None:
    answered, unsure = attempt("m/a"), attempt("m/b")
    answered.usage = Usage(100, 20)
    hold: Any = SimpleNamespace(tags=(), claim=None, left=None, run=RunLimit("run_1", 50), event_id=str)
    facts = facts_of(call(answered, unsure), hold, 7, b"answer")
    assert (facts.tokens, facts.run_nanos, facts.result) == (120, 7, b"answer")
    unsure.doubt()
    unsure.cost_range_nanos = lambda bounds: (0, 9)  # type: ignore[method-assign]
    hold.run = None
    facts = facts_of(call(unsure, answered), hold, 7, None)
    assert (facts.tokens, facts.run_nanos) == (None, None)
