"""Builds the error of a failed call."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from routewright._core.attempt import Attempt
from routewright._core.attempts.machine import End
from routewright._core.call import Call
from routewright.errors import BlockedByPolicy, ContentRefused, RouterError, RouterTimeoutError, UpstreamFailed
from routewright.wire import FaultKind

from .progress import Progress

_log = logging.getLogger(__name__)
_LATER = "try again later"
_BEGUN = "part of the answer had been read; read events, with on_partial 'restart', to have it begun again"
_REMEDIES = {
    FaultKind.AUTH: "check the provider's key",
    FaultKind.CONTEXT_OVERFLOW: "shorten the input, or widen 'models'",
    FaultKind.MODEL_NOT_FOUND: "check the model's provider_model_id, and whether the key may use it",
    FaultKind.INVALID_OUTPUT: "ask for a simpler output_type, say what its fields mean, or let better models answer",
    FaultKind.REQUEST: "the provider takes no such request: check what the model can do, and the provider's base_url",
}
"""What to do about faults that a retry does not fix."""


def failure(call: Call, progress: Progress) -> RouterError:
    """The error of a failed call. Callers with a key do not see addresses of upstreams; the log does."""
    attempts = call.attempts
    texts = [attempt.fault_text for attempt in attempts]
    kind, said = _told(call, progress, _tried(attempts, texts))
    detail, outside = _detail(attempts, texts), None
    if any(attempt.fault_public for attempt in attempts):
        texts = [attempt.fault_public or attempt.fault_text for attempt in attempts]
        outside = _told(call, progress, _tried(attempts, texts))[1], _detail(attempts, texts)
        if call.caller.key_id is not None:
            _log.warning("call %s: %s", call.id, said)
            (said, detail), outside = outside, None
    error = kind(said, detail=detail, trace_id=call.id)
    error.outside = outside
    if progress.cause is not None:
        error.__cause__, progress.cause = progress.cause, None
    return error


def _detail(attempts: Sequence[Attempt], texts: Sequence[str]) -> dict[str, Any]:
    entries = [
        {
            "model": attempt.model,
            "attempt": attempt.number,
            "error": str(attempt.fault),
            "message": text,
            "latency_ms": round((attempt.ended_at - attempt.started_at) * 1000, 3),
        }
        for attempt, text in zip(attempts, texts, strict=True)
    ]
    return {"attempts": entries}


def _tried(attempts: Sequence[Attempt], texts: Sequence[str]) -> str:
    """The models that failed and why, in order. Models that failed alike at one address are listed together."""
    told: list[tuple[list[str], Attempt, str]] = []
    for attempt, text in zip(attempts, texts, strict=True):
        if told and attempt.fault_public and told[-1][1].fault_text == attempt.fault_text:
            if attempt.model not in told[-1][0]:
                told[-1][0].append(attempt.model)
        else:
            told.append(([attempt.model], attempt, text))
    return ", then ".join(f"{', '.join(models)} ({text})" for models, _, text in told) or "nothing"


def _told(call: Call, progress: Progress, tried: str) -> tuple[type[RouterError], str]:
    match progress.end:
        case End.TIMED_OUT:
            timeout_ms = call.given.timeout_ms
            said = f"no answer within timeout_ms={timeout_ms}; tried {tried}; allow more time or a faster model"
            return RouterTimeoutError, said
        case End.BLOCKED:
            said = f"a guardrail blocked every answer: {tried}"
            return BlockedByPolicy, said
        case End.REFUSED:
            models = {attempt.model for attempt in call.attempts}
            if len(models) > 1:
                return ContentRefused, f"the content was refused: {tried}"
            return ContentRefused, f"{models.pop()} refused the content; other providers were not asked"
        case _:
            return (
                UpstreamFailed,
                f"every attempt failed: {tried}; {_BEGUN if progress.broke_off else _remedy(call.attempts)}",
            )


def _remedy(attempts: Sequence[Attempt]) -> str:
    hints = {attempt.hint or _REMEDIES.get(attempt.fault or FaultKind.SERVER) for attempt in attempts}
    return (hints.pop() if len(hints) == 1 else None) or _LATER
