"""Time limits for a model (contract 4): for its first token, between two chunks, and for its throughput.

``machine.py`` applies these rules to each attempt, ``_engine/execute.py`` enforces them."""

from __future__ import annotations

from math import inf

from msgspec import Struct

from routewright.errors import Problem, ValidationFailed
from routewright.wire.problems import shown


class ExecutionLimits(Struct, frozen=True, kw_only=True):
    """Limits on executing a request. Times in seconds. The defaults suit most programs.

    router = Router(settings=Settings(execution=ExecutionLimits(first_token_s=2.0, idle_s=3.0)))
    """

    first_token_s: float = 10.0
    """The time allowed for the first token, or four times a model's usual time if that is longer."""
    idle_s: float = 10.0
    """The longest pause within a stream."""
    slow_s: float = 30.0
    """The period over which a stream's throughput is measured."""
    slow_share: float = 0.1
    """A stream below this share of its model's usual throughput is abandoned, if another model can take over."""
    least_s: float = 0.05
    """The least time that must be left for a retry or fallback, or 1 % of ``timeout_ms`` if that is less."""
    retry_after_s: float = 5.0
    """The longest Retry-After to wait for; after a longer one the next model is tried."""
    backoff_s: float = 0.1
    """The shortest pause before a retry of the same model; the first pause is at most three times as long."""
    longest_backoff_s: float = 2.0
    """The longest pause before a retry."""
    retry_share: float = 0.2
    """Retries and hedges allowed over the last ten seconds, as a share of the requests, plus ``retries_per_s``."""
    retries_per_s: float = 10.0
    """Retries and hedges allowed per second in addition to ``retry_share``."""
    open_after: int = 5
    """Consecutive faults after which a model's circuit opens: the model is not called for a while."""
    open_s: float = 10.0
    """Seconds a circuit stays open at first, before one call probes the model."""
    longest_open_s: float = 15.0
    """The longest time a circuit stays open after failed probes; a Retry-After may extend it to five minutes."""

    def __post_init__(self) -> None:
        problems = []
        for name in self.__struct_fields__:
            value: object = getattr(self, name)
            if name == "open_after":
                is_valid = type(value) is int and value >= 1
                hint = "use a whole number of at least 1"
            else:
                is_valid = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < inf
                hint = "use a finite number, 0 or more"
            if not is_valid:
                problems.append(Problem(f"ExecutionLimits.{name}", f"is {shown(value)}", hint))
        if problems:
            raise ValidationFailed.of(*problems)


CHARACTERS = 4  # per token; a rough value suffices for ``slow_share``
FALLBACK_SHARE = 0.25  # share of the time left that is reserved for the next model of the chain
LEAST_SHARE = 0.01
"""The least share of ``timeout_ms`` a further attempt needs, if smaller than the limits' ``least_s``."""
LEAST_IDLE_S = 1.0
"""A shorter silence never ends an answer in favour of the next model."""


def is_too_late(at: float, deadline: float, timeout_s: float, limits: ExecutionLimits) -> bool:
    """True if there is too little time for another attempt."""
    return at > deadline - min(limits.least_s, LEAST_SHARE * timeout_s)


def idle_until(now: float, deadline: float, idle_s: float, *, may_move_on: bool) -> float:
    """The time at which a silence ends an answer. If time is short, the next model keeps its share of what is left."""
    wake_at = min(now + idle_s, deadline)
    if may_move_on:
        wake_at = min(wake_at, max(deadline - FALLBACK_SHARE * (deadline - now), now + LEAST_IDLE_S))
    return wake_at


class Pace(Struct, eq=False):
    """Measures the throughput of one stream. Only time spent waiting for the provider counts."""

    limits: ExecutionLimits
    us_per_token: int
    """The model's usual speed."""
    has_begun: bool = False
    """Content has arrived; the time before it does not count."""
    characters: int = 0
    waited_s: float = 0.0
    is_slow: bool = False
    """The last ``slow_s`` seconds were below ``slow_share`` of the usual throughput."""

    def chunk(self, characters: int, waited_s: float) -> None:
        """Record a chunk that came after ``waited_s`` of waiting. Chunks without content do not count."""
        if characters == 0:
            return
        if not self.has_begun:
            self.has_begun = True
            return
        self.characters += characters
        self.waited_s += waited_s
        if self.waited_s >= self.limits.slow_s:
            usual = CHARACTERS * self.waited_s * 1_000_000 / max(1, self.us_per_token)
            self.is_slow = self.characters < self.limits.slow_share * usual
            self.characters = 0
            self.waited_s = 0.0
