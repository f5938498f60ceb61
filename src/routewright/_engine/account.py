"""On what terms is a caller served? What is known of accounts and keys, never older than two seconds."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

import anyio.lowlevel

from routewright._core.account import is_live, is_made, stray_key, unknown_key
from routewright._core.moment import timestamp
from routewright.errors import InternalError, RouterError, UnsupportedWrite
from routewright.loop import is_cancelled
from routewright.protocols import Clock, Coordination, Storage
from routewright.wire import ACCOUNT_TOPIC, DEFAULT_ACCOUNT, Caller, Heard, RunLimit, Standing, Stands

KNOWN_S = 2.0
"""So old what is known may be (reliability: a revoked key is refused in less than five seconds)."""
OPEN_S = 0.25
"""So long who had no account waits to hear whether there is one by now; then that is taken to be so still."""
MOST_KNOWN = 10_000
MOST_ASKED = 100
LEAST_S = 0.01
"""Between two questions for news."""
NO_LIMITS = Standing(None, None, ())

_log = logging.getLogger(__name__)


Later = Callable[[Callable[[], Awaitable[object]]], None]


class _Known(NamedTuple):
    standing: Standing
    until: float
    """On the monotonic scale."""


class Accounts:
    """Remembers how callers stand. To be used from any thread: what two of them learn at once is the same."""

    def __init__(self, storage: Storage, clock: Clock, later: weakref.WeakMethod[Later]) -> None:
        """``later`` has something done in the background; whoever does it must not be held by what runs there."""
        self._storage = storage
        self._clock = clock
        self._later = later
        self._asking: set[tuple[str, str | None]] = set()
        self._known: OrderedDict[tuple[str, str | None], _Known] = OrderedDict()
        self._open = False
        """The storage keeps no accounts, so that nobody is limited."""
        self._keeps = False
        """It has said how somebody stands, so that it keeps some."""

    def recent(self, caller: Caller) -> Standing | None:
        """How a caller stands, if that was asked not long ago. The default account is nobody's, and has no limits."""
        key_id = caller.key_id
        if (self._open and not is_made(key_id or "")) or (caller.account == DEFAULT_ACCOUNT and key_id is None):
            return NO_LIMITS
        known = self._known.get((caller.account, caller.key_id))
        return None if known is None or known.until <= self._clock.monotonic() else known.standing

    async def standing(self, caller: Caller, run: RunLimit | None = None) -> Standing:
        """How a caller stands now. Raises ``AuthenticationFailed`` for one whose key was revoked, or was made by a
        Console elsewhere, and ``StorageUnavailable``. Any other key that is not there is the host's own, and has no
        limits here."""
        if run is not None or not self._was_open(caller):
            return await self._asked(caller, run)
        asked_at = self._clock.monotonic()
        with suppress(InternalError), self._clock.deadline(asked_at + OPEN_S):
            return await self._asked(caller, None)
        self._remember(caller, _Known(NO_LIMITS, self._clock.monotonic() + KNOWN_S))
        self._ask_behind(caller)
        return NO_LIMITS

    def _ask_behind(self, caller: Caller) -> None:
        """Ask once more without waiting: a storage that is slow is to be believed when it has answered."""
        name = caller.account, caller.key_id
        if name in self._asking or len(self._asking) >= MOST_ASKED:
            return

        async def ask() -> None:
            try:
                with suppress(RouterError):
                    await self._asked(caller, None)
            finally:
                self._asking.discard(name)

        later = self._later()
        if later is not None:
            self._asking.add(name)
            later(ask)

    async def _asked(self, caller: Caller, run: RunLimit | None) -> Standing:
        asked_at = self._clock.monotonic()
        query = Stands(timestamp(self._clock.time()), caller.key_id, run)
        try:
            found: Standing = await self._storage.read(caller.account, query)
            self._keeps = True
        except UnsupportedWrite:
            if self._keeps:
                raise
            self._open = True
            found = NO_LIMITS
        if found.key is None and caller.key_id is not None and is_made(caller.key_id):
            raise stray_key(caller.key_id)
        if found.key is not None and not is_live(found.key):
            self.forget(caller.account)
            raise unknown_key()
        if run is None:
            self._remember(caller, _Known(found, asked_at + KNOWN_S))
        return found

    def _was_open(self, caller: Caller) -> bool:
        """Whether nobody had set an account up when that was last asked, however long ago: who keeps no accounts is not
        to suffer from a storage that is away, or stands still."""
        known = self._known.get((caller.account, caller.key_id))
        return known is not None and known.standing.account is None and known.standing.key is None

    def forget(self, account: str) -> None:
        """Ask anew, since something has changed."""
        for name in [name for name in list(self._known) if name[0] == account]:
            self._known.pop(name, None)

    async def listen(self, coordination: Coordination) -> None:
        """Forget what is known of accounts that are said to have changed. Never ends."""
        last: int | None = None
        while True:
            asked_at, before = self._clock.monotonic(), last
            try:
                last = self._take_in(await coordination.hear(last))
            except (Exception, asyncio.CancelledError) as error:  # what is known is forgotten by itself, before long
                if isinstance(error, asyncio.CancelledError) and is_cancelled():
                    raise
                _log.debug("changes of accounts do not arrive for now: %s", type(error).__name__)
                await self._clock.sleep(KNOWN_S)
            if last == before and self._clock.monotonic() - asked_at < LEAST_S:
                await self._clock.sleep(LEAST_S)  # it did not wait for news
            await anyio.lowlevel.checkpoint()

    def _take_in(self, heard: Heard) -> int:
        """Forget what has changed. Gives from where on to ask."""
        for notice in heard.notices:
            if notice.topic == ACCOUNT_TOPIC:
                self.forget(notice.said)
        return heard.last

    def _remember(self, caller: Caller, known: _Known) -> None:
        self._known[caller.account, caller.key_id] = known
        if len(self._known) > MOST_KNOWN:
            with suppress(KeyError):  # another thread took the last
                self._known.popitem(last=False)
