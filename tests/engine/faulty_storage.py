"""A storage wrapper that delays, fails, hangs or returns invalid values, as a test configures it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from typing import Any, NamedTuple

from routewright.errors import StorageUnavailable
from routewright.protocols import Clock, Facts
from routewright.wire import Ask, Caller, Grant, Left, RunLimit, Write

NOTHING: Any = object()
"""To be returned by ``before`` for None."""


class Look(NamedTuple):
    """A question how a caller stands."""

    caller: Caller


class Widen(NamedTuple):
    """More is to be reserved for a call."""

    grant: Grant
    nanos: int


class Behind:
    """Not immediate. Each write, query, ``Ask``, ``Facts``, ``Look`` and ``Widen`` meets ``before``, which may raise,
    wait, or return what is to be given in the place of the answer."""

    def __init__(self, kept: Any, clock: Clock) -> None:
        self.kept = kept
        self.clock = clock
        self.accounts = AccountsBehind(self)
        self.before: Callable[[Any], Any] = lambda thing: None
        self.away: tuple[type, ...] = ()
        """These kinds raise ``StorageUnavailable``."""
        self.still: tuple[type, ...] = ()
        """These kinds are not answered as long as they stand here."""
        self.takes_s = 0.0
        self.asked: list[Any] = []
        self.forgets = False
        """It has nothing in memory."""

    def refuse(self, *kinds: type, error: BaseException | None = None, times: int = 10_000) -> list[BaseException]:
        """Raise an error for these kinds, so often. Returns those that are left."""
        left = [error or ValueError("odd")] * times

        def refuse(thing: Any) -> None:
            if isinstance(thing, kinds) and left:
                raise left.pop()

        self.before = refuse
        return left

    def of(self, kind: type) -> list[Any]:
        """What was asked of a kind."""
        return [each for each in self.asked if isinstance(each, kind)]

    async def meet(self, *things: Any) -> Any:
        for thing in things:
            self.asked.append(thing)
            if isinstance(thing, self.away):
                raise StorageUnavailable("away")
            while isinstance(thing, self.still):
                await self.clock.sleep(1.0)
            if self.takes_s:
                await self.clock.sleep(self.takes_s)
            found = self.before(thing)
            found = await found if isawaitable(found) else found
            if found is not None:
                return found
        return None

    async def apply(self, account: str, writes: Sequence[Write]) -> Any:
        found = await self.meet(*writes)
        return await self.kept.apply(account, writes) if found is None else _given(found)

    async def read(self, account: str, query: Any) -> Any:
        found = await self.meet(query)
        return await self.kept.read(account, query) if found is None else _given(found)

    async def scan(self, account: str, query: Any, *, after: str | None, limit: int) -> Any:
        return await self.kept.scan(account, query, after=after, limit=limit)

    async def sweep(self, now: float) -> int:
        return int(await self.kept.sweep(now))

    async def aclose(self) -> None:
        """Others may use what is behind it."""


class AccountsBehind:
    """Those of a storage."""

    def __init__(self, storage: Behind) -> None:
        self._storage = storage
        self._kept = storage.kept.accounts

    async def _do(self, thing: Any, do: Callable[[], Awaitable[Any]]) -> Any:
        found = await self._storage.meet(thing)
        return await do() if found is None else _given(found)

    async def admit(self, ask: Ask) -> Any:
        return await self._do(ask, lambda: self._kept.admit(ask))

    async def settle(self, grant: Grant | None, facts: Facts) -> Any:
        return await self._do(facts, lambda: self._kept.settle(grant, facts))

    async def widen(self, grant: Grant, nanos: int) -> Any:
        return await self._do(Widen(grant, nanos), lambda: self._kept.widen(grant, nanos))

    async def look(self, caller: Caller, run: RunLimit | None = None) -> Any:
        return await self._do(Look(caller), lambda: self._kept.look(caller, run))

    def release(self, grant: Grant, tokens: int | None = 0) -> None:
        self._kept.release(grant, tokens)

    def left(self, caller: Caller, run: RunLimit | None = None) -> Left | None:
        found: Left | None = None if self._storage.forgets else self._kept.left(caller, run)
        return found

    def spent_shares(self, caller: Caller) -> Any:
        return self._kept.spent_shares(caller)


def _given(found: Any) -> Any:
    return None if found is NOTHING else found
