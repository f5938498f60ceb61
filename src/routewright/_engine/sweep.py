"""Removes what is past its time, now and then, for as long as a Router lives."""

from __future__ import annotations

import asyncio
import logging

from routewright.errors import RouterError
from routewright.loop import is_cancelled
from routewright.protocols import Clock, Storage
from routewright.wire import SYSTEM_ACCOUNT, CurrentRetention, SetRetention

EVERY_S = 600.0
DAY_S = 24 * 3600

_log = logging.getLogger(__name__)


async def sweep(storage: Storage, told: SetRetention | None, clock: Clock) -> None:
    """Tell a storage how long to keep traces, if that was ``told``, and let it remove what is older. Never ends,
    whatever the storage raises; that is logged when it begins, since nobody sees otherwise that old traces stay."""
    said = fails = False
    while True:
        try:
            if told is not None:
                await storage.apply(SYSTEM_ACCOUNT, [told])
                told = None
            if not said:
                _say(await storage.read(SYSTEM_ACCOUNT, CurrentRetention()))
                said = True
            await storage.sweep(clock.time())
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            slip = not isinstance(error, RouterError)  # of the storage: who wrote it has to see where
            level, kind = logging.DEBUG if fails else logging.WARNING, type(error).__name__
            _log.log(level, "what is past its time is not removed: %s: %s", kind, error, exc_info=slip)
            fails = True
        else:
            fails = False
        await clock.sleep(EVERY_S)


def _say(kept: SetRetention) -> None:
    production, sandbox = map(_time, (kept.production_s, kept.sandbox_s))
    _log.info("traces are kept %s, those of the sandbox %s; settings.retention says else", production, sandbox)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "for ever"
    return f"for {seconds / DAY_S:g} day{'' if seconds == DAY_S else 's'}"
