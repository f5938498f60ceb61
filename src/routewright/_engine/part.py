"""Parts that calls can do without, such as a response cache or an embedder: they get a share of a call's time, and rest
after several failures."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import Struct

from routewright._core.attempts.faults import place_of
from routewright._core.outage import Outage
from routewright.protocols import Clock

from .context import CancelWatch

WAIT_SHARE = 0.5
"""The most of a call's time to spend waiting for a part, or for another call with the same request."""
FAULTS, REST_S = 3, 10.0
"""After ``FAULTS`` failures in a row a part is not called for ``REST_S`` seconds."""

_log = logging.getLogger(__name__)


class Part(Struct, eq=False):
    """A part that may fail or hang. After several failures in a row it is not called for a while."""

    name: str
    patience_s: float
    is_starting: Callable[[], bool] = bool
    faults: int = 0
    rests_until: float = 0.0
    outage: Outage | None = None

    async def ask(self, clock: Clock, operation: Coroutine[Any, Any, Any], deadline: float) -> Any:
        """The part's result; None if it fails, takes too long, or rests. It gets at most ``WAIT_SHARE`` of the time
        until the call's ``deadline``. Running out of that share is no failure, nor is a time-out while it starts."""
        now, watch = clock.monotonic(), CancelWatch.here()
        if now < self.rests_until:
            operation.close()
            return None
        patience_s = min(self.patience_s, WAIT_SHARE * max(0.0, deadline - now))
        try:
            with clock.deadline(now + patience_s) as limit:
                result = await operation
            if limit.expired and (patience_s < self.patience_s or self.is_starting()):
                return None
            if limit.expired:
                raise TimeoutError(f"no result within {self.patience_s} s")
        except BaseException as error:
            if watch.must_propagate(error):
                raise
            self.faults += 1
            if self.faults >= FAULTS:
                self.rests_until = now + REST_S
                self.outage = self.outage or Outage(_log.warning, f"the {self.name} works again")
                text = f"the {self.name} failed {FAULTS} times in a row and is tried every {REST_S:g} s"
                self.outage.begin(now, f"{text}: {place_of(error)}")
            return None
        self.faults = 0
        if self.outage is not None:
            self.outage.end(now)
        return result
