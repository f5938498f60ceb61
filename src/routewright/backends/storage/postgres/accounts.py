"""``Accounts`` in PostgreSQL: limits, budgets and idempotency keys shared by all machines of a database."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from routewright.backends.storage.tables.books.ledger import KNOWN_S
from routewright.backends.storage.tables.traces import rows_of_draft
from routewright.errors import RouterError, StorageUnavailable
from routewright.protocols import Clock, Facts
from routewright.wire import Ask, Caller, Grant, Left, Replay, RunLimit, Short, StoredEvent

from .request_queue import Ending, PendingAsk
from .upkeep import BackgroundWork
from .writer import Writer


class PostgresAccounts:
    """Holds of limits, budgets and idempotency keys. A forked child starts without any."""

    def __init__(self, writer: Writer, keeper: BackgroundWork, clock: Clock, *, inline: bool) -> None:
        self._writer = writer
        self._keeper = keeper
        self._clock = clock
        self._inline = inline

    async def admit(self, ask: Ask) -> Grant | Replay | Short:
        """As ``protocols.Accounts`` says."""
        asking = PendingAsk(ask, inline=self._inline)
        try:
            found: Grant | Replay | Short = await self._asked(asking)
            return await self._writer.replay(ask) if isinstance(found, Replay) else found
        except BaseException as error:
            if not isinstance(error, RouterError):  # cancelled: return what it was or will be granted
                self._writer.leave(asking)
            raise

    async def _asked(self, asking: PendingAsk) -> Any:
        self._writer.put(asking)
        return await (asking.polled(self._clock, self._writer.look_again) if self._inline else asking.wait())

    async def settle(self, grant: Grant | None, facts: Facts) -> Sequence[StoredEvent]:
        """As ``protocols.Accounts`` says."""
        account = facts.caller.account
        trace = None
        if facts.trace is not None:
            trace = rows_of_draft(account, facts.trace)
            self._keeper.wrote()
        ending = Ending(account, facts.id, grant, facts, trace, awaited=not self._inline)
        self._writer.put(ending)
        if not self._inline:
            return await ending.wait()
        if ending.error is not None:
            raise ending.error
        return ending.result or ()

    async def widen(self, grant: Grant, nanos: int) -> bool:
        """As ``protocols.Accounts`` says."""
        asking = self._writer.widening(grant, nanos)
        widened = asking is not None and await self._asked(asking) is not None
        if widened:
            grant.nanos = nanos
        return widened

    def release(self, grant: Grant, tokens: int | None = 0) -> None:
        """As ``protocols.Accounts`` says."""
        with suppress(StorageUnavailable):  # its lease ends
            self._writer.put(Ending(grant.caller.account, grant.id, grant, tokens=tokens))

    def left(self, caller: Caller, run: RunLimit | None = None) -> Left | None:
        """As ``protocols.Accounts`` says."""
        found = self._writer.known.get((caller, run))
        if found is None or self._clock.monotonic() - found[1] > KNOWN_S:
            return None
        return found[0]

    async def look(self, caller: Caller, run: RunLimit | None = None) -> Left:
        """As ``protocols.Accounts`` says."""
        ask = Ask(id="", caller=caller, at=self._clock.time(), lasts_s=0.0, run=run)
        left: Left = await self._asked(PendingAsk(ask, "looks", inline=self._inline))
        return left
