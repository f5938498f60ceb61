"""Where time and chance come from."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self


class Deadline(Protocol):
    """A cancel scope with a time. Enter it, await inside; ``expired`` says afterwards whether the time ran out in it.

    A cancellation from elsewhere passes through and leaves ``expired`` False.
    """

    @property
    def expired(self) -> bool:
        """True once the scope was left because its time ran out."""
        ...

    def move(self, at: float) -> None:
        """Put the time off, or forward, while inside."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...


class Clock(Protocol):
    """Where time comes from. Every wait and every time-out goes through it, so that a fake one can drive them all."""

    @property
    def virtual(self) -> bool:
        """True where time stands still unless an event loop moves it: background work then runs in the caller's loop,
        since no thread can wait for such a clock."""
        ...

    def time(self) -> float:
        """Unix seconds, for what is shown and stored."""
        ...

    def monotonic(self) -> float:
        """Seconds that never run backwards, for durations and deadlines."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait. Zero or less still lets other tasks run."""
        ...

    def deadline(self, at: float, *, shield: bool = False) -> Deadline:
        """Make a scope that is cancelled at ``at`` on the ``monotonic`` scale; infinity never is. With ``shield`` the
        scopes around it cannot cancel it: for clean-up that must finish, but not take forever."""
        ...


class Rng(Protocol):
    """The seeded source of chance."""

    def random(self) -> float:
        """A float in [0, 1)."""
        ...

    def getrandbits(self, k: int, /) -> int:
        """An integer of ``k`` random bits."""
        ...
