"""Which event loop runs here, and how is something done in one from elsewhere?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio


def this_loop() -> object | None:
    """The running asyncio loop or the token of the running trio; None outside of both."""
    try:
        if anyio.get_cancelled_exc_class() is asyncio.CancelledError:
            return asyncio.get_running_loop()
        import trio  # an extra: only there when it runs

        return trio.lowlevel.current_trio_token()
    except RuntimeError:  # also where a context that came from another thread names a kind of loop
        return None


def is_closed(loop: object) -> bool:
    """Nothing runs in it any more. A run of trio ends with its tasks, so only asyncio leaves some behind."""
    return isinstance(loop, asyncio.AbstractEventLoop) and loop.is_closed()


def from_elsewhere(action: Callable[[], object]) -> Callable[[], object]:
    """The same action, to be done in this loop and asked for in any thread. Raises ``RuntimeError`` if it is gone."""
    loop: Any = this_loop()
    if isinstance(loop, asyncio.AbstractEventLoop):
        return partial(loop.call_soon_threadsafe, action)
    return partial(loop.run_sync_soon, action)
