"""What calls ask of the accounts in PostgreSQL, and the queues in which they wait for what others hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Literal

from routewright._core.accounts.state import FreedName, Wait
from routewright.backends.storage.tables.traces import TraceRows
from routewright.loop import Reply, Signal
from routewright.protocols import Facts
from routewright.wire import Ask, Grant, StoredEvent

MOST_AT_ONCE = 64
"""Calls in one tick, so that other processes need not wait long."""
LOOK_S = 0.05
"""How often to look whether another process has freed what somebody waits for here."""


class Asking(Reply[Any]):
    """An ask on its way, which may have to wait for what others hold.

    One that ``looks`` takes nothing, and is answered with a ``Left``; one that ``widens`` never waits, and is answered
    with None where there is no room.
    """

    __slots__ = ("answered", "ask", "is_done", "kind", "number", "until", "waits")
    answered: Signal
    """Set where no thread gives the reply."""

    def __init__(self, ask: Ask, kind: Literal["admits", "widens", "looks"] = "admits", *, inline: bool) -> None:
        super().__init__(awaited=not inline)
        self.ask = ask
        self.kind = kind
        self.is_done = False
        """It has its answer, which is not given yet."""
        if inline:
            self.answered = Signal()
        self.waits: Wait | None = None
        self.until = inf
        """When it gives up, monotonic."""
        self.number = 0
        """Its place among those that wait."""

    @property
    def account(self) -> str:
        """Whose limits and money it asks for."""
        return self.ask.caller.account

    def answer(self, found: Any) -> None:
        """Have an answer, or an error to raise."""
        self.is_done = True
        if isinstance(found, Exception):
            self.error = found
        else:
            self.result = found


class Ending(Reply[Sequence[StoredEvent]]):
    """A call that has ended. Without facts it is released, and used so many ``tokens``."""

    __slots__ = ("account", "call", "facts", "grant", "tokens", "trace")

    def __init__(
        self,
        account: str,
        call: str,
        grant: Grant | None,
        facts: Facts | None = None,
        trace: TraceRows | None = None,
        tokens: int | None = 0,
        *,
        awaited: bool = False,
    ) -> None:
        super().__init__(awaited=awaited)
        self.account = account
        self.call = call
        self.grant = grant
        self.facts = facts
        self.trace = trace
        self.tokens = tokens

    @property
    def is_plain(self) -> bool:
        """True if ``tick`` can end it."""
        return self.facts is None or (self.grant is not None and not self.facts.events)


class Work(Reply[Any]):
    """Something else to do: before a tick, or after it if it ``comes_last``."""

    __slots__ = ("comes_last", "do")

    def __init__(self, do: Callable[[], Any], *, awaited: bool, comes_last: bool = False) -> None:
        super().__init__(awaited=awaited)
        self.do = do
        self.comes_last = comes_last


class Queues:
    """Asks that wait, first come, first served, for each purse and idempotency key. One thread at a time."""

    def __init__(self) -> None:
        self._queues: dict[FreedName, deque[Asking]] = {}
        self._freed: dict[str, None] = {}
        """Accounts in which something was freed that somebody may wait for."""
        self._number = 0
        self._looked_at = -inf

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    @property
    def is_ready(self) -> bool:
        """True if something was freed since those who wait were tried."""
        return bool(self._freed) and bool(self._queues)

    @property
    def gives_up_at(self) -> float:
        """When the first of them gives up."""
        return min((each.until for queue in self._queues.values() for each in queue), default=inf)

    def free(self, account: str) -> None:
        """Something was freed in an account."""
        if self._queues:
            self._freed[account] = None

    def look(self) -> None:
        """Try the first of each queue at once: others may have freed something."""
        self._looked_at = -inf

    def tried(self, now: float) -> list[Asking]:
        """Those that may be answered now: all of an account in which something was freed, the first of each queue now
        and then, and those whose time is over."""
        looks = now >= self._looked_at + LOOK_S
        found: dict[int, Asking] = {}
        for queue in self._queues.values():
            for place, each in enumerate(queue):
                if each.account in self._freed or (looks and not place) or each.until <= now:
                    found[each.number] = each
        if looks:
            self._looked_at = now
        self._freed.clear()
        return [found[number] for number in sorted(found)][:MOST_AT_ONCE]

    def wait(self, asking: Asking, waits: Wait, now: float) -> None:
        """Let an ask wait at the end of a queue, or stay where it is."""
        if asking.waits is None or asking.waits.on != waits.on:
            self.leave(asking)
            if asking.number == 0:
                self._number += 1
                asking.number, asking.until = self._number, now + asking.ask.waits_s
            self._queues.setdefault(waits.on, deque()).append(asking)
        asking.waits = waits

    def leave(self, asking: Asking) -> None:
        """Take an ask out of its queue, if it is in one."""
        waits, asking.waits = asking.waits, None
        queue = None if waits is None else self._queues.get(waits.on)
        if waits is not None and queue is not None and asking in queue:
            queue.remove(asking)
            if not queue:
                del self._queues[waits.on]
            self.free(asking.account)  # who comes next may have been waiting for it alone

    def behind(self, account: str, tried: Sequence[Asking]) -> list[str]:
        """Purses for which others wait that are not ``tried`` just now: who comes later stands behind them."""
        return [
            name[1]
            for name, queue in self._queues.items()
            if isinstance(name, tuple) and name[0] == account and any(each not in tried for each in queue)
        ]
