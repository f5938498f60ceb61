"""Classifies exceptions and silences of providers as ``Fault``."""

from __future__ import annotations

from routewright._core.attempts.faults import Fault, hint_of
from routewright._core.structured_output import Unfit, describe_misfits, repair_of
from routewright.errors import WROTE, ProviderFault
from routewright.wire import FaultKind
from routewright.wire.printable import one_line

CUT_SHORT = Fault(FaultKind.TRUNCATED, "truncated: the answer broke off without a finish reason")
TOO_SLOW = Fault(FaultKind.TIMEOUT, "timeout: the answer came far slower than usual", answered=True)
WITH_GUARDRAILS = Fault(FaultKind.TIMEOUT, "timeout: a guardrail was checking the answer", answered=True)
FILTERED = Fault(FaultKind.REFUSED, "refused: the provider's moderation refused the content")

_CUT = {
    "length": "invalid_output: the answer reached the output cap; raise params.max_output_tokens",
    "budget": "invalid_output: the budget cut the answer off; raise the budget",
}


def misfit(answer: str, unfit: Unfit, finish_reason: str | None) -> Fault:
    if finish_reason in _CUT:
        return Fault(FaultKind.INVALID_OUTPUT, _CUT[finish_reason], answered=True)
    text = f"invalid_output: {describe_misfits(unfit)}"
    return Fault(FaultKind.INVALID_OUTPUT, text, answered=True, repair=repair_of(answer, unfit))


def no_answer(seconds: float) -> Fault:
    """The time ran out before an answer that is not streamed."""
    return Fault(FaultKind.TIMEOUT, f"timeout: no answer within {lasting(seconds)}")


def silence(seconds: float, *, begun: bool) -> Fault:
    """The time ran out while the provider sent nothing."""
    where = "in the middle of the answer" if begun else "before the first token"
    return Fault(FaultKind.TIMEOUT, f"timeout: {lasting(seconds)} of silence {where}")


def lasting(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.{0 if seconds >= 0.01 else 1}f} ms"


def fault_of(error: BaseException, provider: str, *, answered: bool) -> Fault:
    """The fault of a ``ProviderFault``. Anything else, also a malformed one, is a bug in the provider (``Fault.bug``);
    ``answered``: it may have started to work."""
    if isinstance(error, ProviderFault) and (fault := _fault_from(error)) is not None:
        return fault
    name = type(error).__name__
    if error.__traceback__ is not None:
        error = error.with_traceback(error.__traceback__.tb_next)  # drop the frame that refers to the execution
    text, cause = f"server: {name} in the provider", None if isinstance(error, ProviderFault) else error
    bug = f"provider {provider} raised {name} instead of ProviderFault"
    return Fault(FaultKind.SERVER, text, answered=answered, hint=hint_of(error), cause=cause, bug=bug)


def _fault_from(error: ProviderFault) -> Fault | None:
    """None for a malformed one."""
    try:
        text = one_line(str(error).partition(WROTE)[0])
        public = one_line(str(error.public))
        if public and error.message:
            public = text.replace(one_line(error.message), public)
        fault = Fault(_kind(error.kind), text, bool(error.answered), _seconds(error.retry_after))
        retry = error.retry if isinstance(error.retry, bool) else None
        quote = one_line(str(error.quote))
        cause = error.with_traceback(None) if quote else error.__cause__  # the traceback refers to the execution
        return fault._replace(retry=retry, public=public, hint=one_line(str(error.hint)), quote=quote, cause=cause)
    except Exception:  # a subclass may not call the constructor, or fail in ``__str__``
        return None


def _seconds(value: object) -> float | None:
    """A valid retry-after, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if value >= 0 else None


def _kind(kind: str) -> FaultKind:
    try:
        return FaultKind(kind)
    except ValueError:  # an unknown kind
        return FaultKind.SERVER
