"""What remains of a call: its error if it failed, its events, and the facts of its settlement.

Functions of a ``Call`` and of how it ended. Ids and times are passed in. ``Call.end`` hands out the rest: the texts of
the answer and the snapshots of the decision."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, Protocol

from routewright import wire
from routewright.errors import BlockedByPolicy, ContentRefused, RouterError, RouterTimeoutError, UpstreamFailed
from routewright.protocols import Facts
from routewright.wire import FaultKind
from routewright.wire.timestamps import timestamp

from .attempts.machine import Attempts, End
from .attempts.record import Attempt
from .call import Call
from .routing.budget import Amount

_BEGUN = "part of the answer had been read, and cannot be taken back; try again"
_REMEDIES = {
    FaultKind.AUTH: "check the provider's key",
    FaultKind.CONTEXT_OVERFLOW: "shorten the input, or widen 'models'",
    FaultKind.MODEL_NOT_FOUND: "check the model's provider_model_id, and whether the key may use it",
    FaultKind.INVALID_OUTPUT: "ask for a simpler output_type, say what its fields mean, or let better models answer",
    FaultKind.REQUEST: "the provider rejects such requests; check what the model can do, and the provider's base_url",
}
"""What to do about faults that a retry does not fix."""


class Admitted(Protocol):
    """What a call holds of limits and money (``_engine/admission.py``)."""

    grant: wire.Grant | None
    claim: wire.Claim | None
    run: wire.RunLimit | None
    tags: wire.Tags
    left: wire.Left | None
    """Terms and money of its caller, as far as known."""

    @property
    def event_id(self) -> Callable[[int], str]:
        """``Facts.event_id``."""

    def release(self) -> None:
        """Release what it still holds."""


class LookedUp(Protocol):
    """Its look-up in the response cache (``_engine/cache.py``)."""

    evicted: wire.CacheEvicted | None

    def ended(self, call: Call, output: str, tool_calls: list[wire.ToolCall] | None) -> None:
        """Keep the answer."""


class Ending(Protocol):
    """How the execution of a call ended."""

    cause: BaseException | None
    """The exception behind the last attempt's fault, if there is one."""

    @property
    def quotes(self) -> Mapping[int, str]:
        """The vendors' messages by the attempt's number. They may repeat the prompt, so no answer holds them."""

    @property
    def machine(self) -> Attempts:
        """Its ``end`` is None if the call was left before its end."""

    @property
    def error(self) -> RouterError | None:
        """The error if it was no provider's fault."""

    @property
    def data(self) -> object:
        """The answer parsed as the requested type."""

    @property
    def admission(self) -> Admitted | None:
        """The admission with what the call holds."""

    @property
    def lookup(self) -> LookedUp | None:
        """Its look-up."""

    @property
    def used(self) -> Amount:
        """Upper bound for the budget used."""

    @property
    def broke_off(self) -> bool:
        """True if it failed because a delivered part of the answer could not be taken back."""

    def settle_rest(self) -> None:
        """Price what a dropped call has produced so far."""


def build_failure(call: Call, ending: Ending) -> tuple[RouterError, str]:
    """The error of a failed call, and for the log its message with the addresses of upstreams, if the error leaves them
    out: callers with a key do not see them."""
    error = _error_of(call, ending, [attempt.fault_text for attempt in call.attempts])
    if not any(attempt.fault_public for attempt in call.attempts):
        return error, ""
    public = _error_of(call, ending, [attempt.fault_public or attempt.fault_text for attempt in call.attempts])
    if call.caller.key_id is not None:
        return public, error.message
    error.outside = public.message, public.detail
    return error, ""


def raise_failure(error: RouterError) -> NoReturn:
    """Raise the error that ended a call, without a reference cycle."""
    try:
        raise error
    finally:
        del error  # else the traceback's frame refers to the error


def _error_of(call: Call, ending: Ending, texts: Sequence[str]) -> RouterError:
    """The error with a description of each attempt's fault."""
    kind, message = _explain_end(call, ending, _list_failures(call.attempts, texts))
    entries = [
        {
            "model": attempt.model,
            "attempt": attempt.number,
            "error": str(attempt.fault),
            "message": text,
            "latency_ms": round((attempt.ended_at - attempt.started_at) * 1000, 3),
        }
        for attempt, text in zip(call.attempts, texts, strict=True)
    ]
    return kind(message, detail={"attempts": entries}, trace_id=call.id)


def _list_failures(attempts: Sequence[Attempt], texts: Sequence[str]) -> str:
    """The models that failed and why, in order. Models that failed alike at one address are listed together."""
    groups: list[tuple[list[str], str]] = []
    last: Attempt | None = None
    for attempt, text in zip(attempts, texts, strict=True):
        if last is None or not attempt.fault_public or attempt.fault_text != last.fault_text:
            groups.append(([attempt.model], text))
            last = attempt
        elif attempt.model not in groups[-1][0]:
            groups[-1][0].append(attempt.model)
    return ", then ".join(f"{', '.join(models)} ({text})" for models, text in groups) or "nothing"


def _explain_end(call: Call, ending: Ending, failures: str) -> tuple[type[RouterError], str]:
    models = {attempt.model for attempt in call.attempts}
    match ending.machine.end:
        case End.TIMED_OUT:
            late = f"no answer within timeout_ms={call.timeout_ms}"
            return RouterTimeoutError, f"{late}; tried {failures}; allow more time or a faster model"
        case End.BLOCKED:
            return BlockedByPolicy, f"a guardrail blocked every answer: {failures}"
        case End.REFUSED if len(models) > 1:
            return ContentRefused, f"the content was refused: {failures}"
        case End.REFUSED:
            return ContentRefused, f"{models.pop()} refused the content; other providers were not asked"
    hints = {attempt.hint or _REMEDIES.get(attempt.fault or FaultKind.SERVER) for attempt in call.attempts}
    remedy = _BEGUN if ending.broke_off else (hints.pop() if len(hints) == 1 else None) or "try again later"
    return UpstreamFailed, f"every attempt failed: {failures}; {remedy}"


def event_of(data: wire.PushedEvent, caller: wire.Caller, id: str, at: float) -> wire.Event:
    """The event to emit for what happened ``at`` (Unix seconds)."""
    return wire.Event(
        id=id,
        type=data.type,
        created_at=timestamp(at),
        data=data,
        account=caller.account,
        environment=caller.environment,
    )


def facts_of(call: Call, hold: Admitted, used_nanos: int, result: bytes | None) -> Facts:
    """The outcome of an admitted call, for its settlement. ``used_nanos``: the most that it can have cost. ``result``:
    the answer to keep under its idempotency key."""
    account = None if hold.left is None else hold.left.account
    tokens: int | None = 0
    for attempt in call.attempts:
        usage = attempt.usage
        if usage is None and attempt.unsure is not None and attempt.cost_range_nanos(call.bounds):
            tokens = None  # unknown, so the estimate stays counted
        elif usage is not None and tokens is not None:
            tokens += usage.input + usage.output
    rows = call.ledger_rows
    return Facts(
        id=call.id,
        caller=call.caller,
        created_at=rows[0].at if rows else call.created,
        trace=call,
        rows=rows,
        tokens=tokens,
        run=hold.run,
        tags=hold.tags,
        run_nanos=None if hold.run is None else used_nanos,
        claim=hold.claim,
        result=result,
        event_id=hold.event_id if account is not None and account.monthly_nanos else None,
    )
