"""What a caller is told of a call that did not succeed."""

from __future__ import annotations

from collections.abc import Sequence

from routewright._core.attempt import Attempt
from routewright._core.call import Call
from routewright._core.machine import End
from routewright.errors import BlockedByPolicy, ContentRefused, RouterError, RouterTimeoutError, UpstreamFailed
from routewright.wire import FaultKind

from .progress import Progress

_LATER = "try again later"
_BEGUN = "part of the answer had been read; read events, with on_partial 'restart', to have it begun again"
_REMEDIES = {
    FaultKind.AUTH: "check the provider's key",
    FaultKind.CONTEXT_OVERFLOW: "shorten the input, or widen 'models'",
    FaultKind.MODEL_NOT_FOUND: "check the model's provider_model_id, and whether the key may use it",
    FaultKind.INVALID_OUTPUT: "ask for a simpler output_type, say what its fields mean, or let better models answer",
    FaultKind.REQUEST: "the provider takes no such request: check what the model can do, and the provider's base_url",
}
"""What to do about faults that trying again does not mend."""


def failure(call: Call, progress: Progress) -> RouterError:
    """The error of a call that did not succeed."""
    attempts = [
        {
            "model": attempt.model,
            "attempt": attempt.number,
            "error": str(attempt.fault),
            "message": attempt.fault_text,
            "latency_ms": round((attempt.ended_at - attempt.started_at) * 1000, 3),
        }
        for attempt in call.attempts
    ]
    tried = ", then ".join(f"{entry['model']} ({entry['message']})" for entry in attempts) or "nothing"
    kind, said = _told(call, progress, tried)
    return kind(said, detail={"attempts": attempts}, trace_id=call.id)


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
            who = [attempt.model for attempt in call.attempts]
            if len(set(who)) > 1:
                return ContentRefused, f"the content was refused: {tried}"
            return ContentRefused, f"{who[-1]} refused the content; other providers were not asked"
        case _:
            return (
                UpstreamFailed,
                f"every attempt failed: {tried}; {_BEGUN if progress.broke_off else _remedy(call.attempts)}",
            )


def _remedy(attempts: Sequence[Attempt]) -> str:
    """What may help, where all attempts failed alike."""
    first, *others = {attempt.fault for attempt in attempts} or {None}
    return _REMEDIES.get(first, _LATER) if first is not None and not others else _LATER
