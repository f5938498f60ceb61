"""Where time and chance come from."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self


class Deadline(Protocol):
    """A time limit for what is awaited inside. It belongs to the task that enters it.

    When the time comes, the task is cancelled where it waits, again and again until it leaves. Leaving swallows this
    cancellation and sets ``expired``. Where nested ones have both run out, the outer one expires. A body that ends in
    another way, with a result or an error of its own, ends so, and ``expired`` stays False. So it does where somebody
    else cancels the task too: a cancellation from elsewhere passes through.
    """

    @property
    def expired(self) -> bool:
        """True once it was left because its time ran out."""
        ...

    def move(self, at: float) -> None:
        """Put the time off, or forward, while inside. One that has run out stays so."""
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

    def deadline(self, at: float, *, shield: bool = False, scoped: bool = False) -> Deadline:
        """Make one that runs out at ``at`` on the ``monotonic`` scale; infinity never does.

        With ``shield`` the scopes and deadlines around it cannot cancel it: for clean-up that must finish, but not
        take forever. A deadline may cancel natively, which anyio's shields inside it do not keep out; with ``scoped``
        it is a cancel scope, which they do.
        """
        ...


class Rng(Protocol):
    """The seeded source of chance."""

    def random(self) -> float:
        """A float in [0, 1)."""
        ...

    def getrandbits(self, k: int, /) -> int:
        """An integer of ``k`` random bits."""
        ...
