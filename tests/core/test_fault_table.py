"""The fault table, restated independently, and the precedence of its signals."""

from __future__ import annotations

from collections.abc import Callable

from routewright._core.attempts.faults import FAULTS, Rule, kind_of_status, kind_of_words
from routewright.wire import FaultKind
from tests.tables import table


def kinds(holds: Callable[[Rule], bool]) -> set[str]:
    return {str(kind) for kind, rule in FAULTS.items() if holds(rule)}


def test_transient_faults_are_retried_with_the_same_model() -> None:
    passing = {"connect", "local", "reset", "rate_limited", "server", "malformed", "truncated"}
    assert kinds(lambda rule: rule.retry) == passing
    assert kinds(lambda rule: rule.repair) == {"invalid_output"}


def test_every_fault_but_a_refusal_falls_back() -> None:
    assert kinds(lambda rule: not rule.fall_back) == {"refused"}


def test_faults_of_the_request_or_this_process_blame_no_provider() -> None:
    theirs = {"local", "request", "refused", "context_overflow", "invalid_output", "blocked"}
    assert kinds(lambda rule: not rule.blames) == theirs
    assert kinds(lambda rule: rule.opens_credential) == {"auth"}


def test_faults_of_an_answer_count_as_billed() -> None:
    assert kinds(lambda rule: rule.billed) == {"malformed", "truncated", "invalid_output", "blocked"}


def test_event_reasons_are_timeout_safety_or_upstream() -> None:
    assert kinds(lambda rule: rule.reason == "timeout") == {"timeout"}
    assert kinds(lambda rule: rule.reason == "safety") == {"refused", "blocked"}
    assert kinds(lambda rule: rule.reason == "upstream_5xx") == kinds(lambda rule: True) - {
        "timeout",
        "refused",
        "blocked",
    }


@table(
    ("status", "code", "text", "kind"),
    [
        (429, "insufficient_quota", "", "auth"),  # a code that says more than its status
        (429, "context_length_exceeded", "", "rate_limited"),  # a status before other codes
        (503, "model_not_found", "maximum prompt length", "server"),
        (307, "invalid_api_key", "", "malformed"),
        (400, "context_length_exceeded", "was flagged", "context_overflow"),  # a code before words
        (403, "", "Content policy", "refused"),  # words before what a status says at last
        (403, "", "", "auth"),
        (413, "", "", "context_overflow"),
        (404, "", "No such Model", "model_not_found"),
        (404, "", "no such page", "request"),
        (400, "", "the model\nyou named does not exist", "model_not_found"),
        (418, "", "", "request"),
    ],
)
def test_higher_signs_take_precedence(status: int, code: str, text: str, kind: str) -> None:
    assert kind_of_status(status, code, text) == kind


def test_vague_messages_match_no_sign() -> None:
    assert kind_of_words("", "something went wrong") is None
    assert kind_of_words("overloaded_error", "was flagged") is FaultKind.SERVER
