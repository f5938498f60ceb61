"""Classifies what a provider raised, or failed to say, into a ``Fault``."""

from __future__ import annotations

from typing import NamedTuple

from routewright._core.structured_output import Repair, Unfit, expectations, repair_of
from routewright.errors import ProviderFault
from routewright.wire import FaultKind


class Fault(NamedTuple):
    """Why an attempt failed."""

    kind: FaultKind
    text: str
    answered: bool = False
    """The provider had begun to answer."""
    retry_after: float | None = None
    retry: bool | None = None
    """Whether the provider said that another try may help; None: as the kind says."""
    repair: Repair | None = None
    """How to ask the same model to repair its answer."""
    public: str = ""
    """``text`` without addresses, where it names any."""
    hint: str = ""
    cause: BaseException | None = None


CUT_SHORT = Fault(FaultKind.TRUNCATED, "truncated: the answer ended without its end")
TOO_SLOW = Fault(FaultKind.TIMEOUT, "timeout: the answer came far slower than usual", answered=True)
WITH_GUARDRAILS = Fault(FaultKind.TIMEOUT, "timeout: the answer was with a guardrail", answered=True)
FILTERED = Fault(FaultKind.REFUSED, "refused: the provider's moderation refused the content")

_CUT = {
    "length": "invalid_output: the answer was cut before its end; allow more params.max_output_tokens",
    "budget": "invalid_output: the answer was cut by the budget before its end; allow more of it",
}


def misfit(answer: str, unfit: Unfit, finish_reason: str | None) -> Fault:
    if finish_reason in _CUT:
        return Fault(FaultKind.INVALID_OUTPUT, _CUT[finish_reason], answered=True)
    said = f"invalid_output: {expectations(unfit)}"
    return Fault(FaultKind.INVALID_OUTPUT, said, answered=True, repair=repair_of(answer, unfit))


def no_answer(seconds: float) -> Fault:
    """The time was over before anything of a whole answer came."""
    return Fault(FaultKind.TIMEOUT, f"timeout: no answer within {lasting(seconds)}")


def silence(seconds: float, *, begun: bool) -> Fault:
    """The time was over after so long a silence."""
    where = "in the middle of the answer" if begun else "before the first token"
    return Fault(FaultKind.TIMEOUT, f"timeout: {lasting(seconds)} of silence {where}")


def lasting(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.{0 if seconds >= 0.01 else 1}f} ms"


def fault_of(error: BaseException) -> Fault | None:
    """The fault that a ``ProviderFault`` names; None for any other exception, and for one that cannot be read."""
    if not isinstance(error, ProviderFault):
        return None
    try:
        said, public, hint = str(error), getattr(error, "public", ""), getattr(error, "hint", "")
        if public and error.message:
            public = said.replace(error.message, public)
        told = Fault(_kind(error.kind), said, bool(error.answered), _seconds(error.retry_after))
        retry = getattr(error, "retry", None)
        retry = retry if isinstance(retry, bool) else None
        return told._replace(retry=retry, public=str(public), hint=str(hint), cause=error.__cause__)
    except Exception:  # a subclass may have left out the constructor, or fail at being shown
        return None


def _seconds(value: object) -> float | None:
    """A retry-after as it was given, where it is a number with sense in it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if value >= 0 else None


def _kind(kind: str) -> FaultKind:
    try:
        return FaultKind(kind)
    except ValueError:  # a provider's own word
        return FaultKind.SERVER
