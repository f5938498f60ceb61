"""How long attempts may take, how often they are repeated, and when a model is left alone for a while (contract 4)."""

from __future__ import annotations

from math import inf

from msgspec import Struct

from routewright._core.request.problems import shown
from routewright.errors import Problem, ValidationFailed


class ExecutionLimits(Struct, frozen=True, kw_only=True):
    """Limits of carrying a request out. Times in seconds. They are the contract's; tests against real servers take
    shorter ones.

    router = Router(settings=Settings(execution=ExecutionLimits(first_token_s=2.0, idle_s=3.0)))
    """

    first_token_s: float = 10.0
    """The least time that a model has until its first token; where it usually takes longer, four times that."""
    idle_s: float = 10.0
    """The longest silence within a stream."""
    slow_s: float = 30.0
    """A stream is left that has been so slow for so long ..."""
    slow_share: float = 0.1
    """... as to bring less than this share of what its model usually does. Only while another model can take over."""
    least_s: float = 0.05
    """A retry or fallback that would have less time than this is not begun; of a ``timeout_ms`` below five seconds,
    less than a hundredth of it."""
    retry_after_s: float = 5.0
    """The longest Retry-After that is waited out; a longer one moves on."""
    backoff_s: float = 0.1
    """The shortest pause before the same model is tried again; the longest first one is three times that."""
    longest_backoff_s: float = 2.0
    """The longest pause; without chance they grow to it."""
    retry_share: float = 0.2
    """Second tries of a model, and hedges, over the last ten seconds: at most this share of the requests ..."""
    retries_per_s: float = 10.0
    """... and so many a second besides."""
    open_after: int = 5
    """Faults in a row after which a model is called no more for a while (its circuit opens)."""
    open_s: float = 10.0
    """For how long, at first. Then one call probes it."""
    longest_open_s: float = 15.0
    """For how long at most, when probe after probe fails; a Retry-After may make it longer, up to five minutes."""

    def __post_init__(self) -> None:
        problems = [
            Problem(f"ExecutionLimits.{name}", f"is {shown(value)}", hint)
            for name in self.__struct_fields__
            if (hint := _hint(name, value := getattr(self, name)))
        ]
        if problems:
            raise ValidationFailed.of(*problems)


def _hint(name: str, value: object) -> str:
    """What a limit has to be; empty where it is that."""
    if name == "open_after":
        return "" if type(value) is int and value >= 1 else "take a whole number of at least 1"
    number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < inf
    return "" if number else "take a finite number, 0 or more"
