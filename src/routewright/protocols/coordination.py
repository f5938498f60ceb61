"""What the workers of a service share while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from routewright.wire import Denied, Heard, Notice, Take, Taken


@runtime_checkable
class Coordination(Protocol):
    """Windows of rate limits, slots, and news for the other workers. Nothing of it has to outlast them.

    Safe to call from any event loop and thread. It goes by a clock of its own that never runs backwards, the same for
    all who share it. Raises ``StorageUnavailable`` where it cannot be reached, and nothing is taken then; nor by a call
    that is cancelled, whose slots nobody could give back.
    """

    async def take(self, takes: Sequence[Take], owner: str) -> Taken | Denied:
        """Take all of it or nothing, in one step. In no window of 60 seconds, open at its beginning, more than the
        limit is ever taken, but for an amount over the whole limit, which is let in alone. A limit of 0 lets nothing
        in. A slot is its ``owner``'s until it is given back, or he has neither renewed nor taken one for the length of
        a lease."""
        ...

    async def end(self, taken: Taken, tokens: int | None = None) -> None:
        """Give back the slots of what ``take`` gave, and put ``tokens`` in the place of the tokens that it took from
        each window, at the time at which it took them; None: they stay. Requests stay in any case. Twice is once."""
        ...

    async def renew(self, owner: str) -> None:
        """Keep an owner's slots for the length of another lease."""
        ...

    async def announce(self, notice: Notice) -> None:
        """Let all who listen hear of something."""
        ...

    async def hear(self, after: int | None) -> Heard:
        """News since ``after``, the ``last`` of the news before. Waits for some, and gives up with none after some
        seconds. None: at once none, and where the news are now."""
        ...

    async def aclose(self) -> None:
        """Free what it holds. Twice is once."""
        ...


@runtime_checkable
class ImmediateCoordination(Coordination, Protocol):
    """A coordination none of whose methods ever waits but ``hear``."""

    def give_back(self, taken: Taken, tokens: int | None = None) -> None:
        """Do what ``end`` does."""
        ...
