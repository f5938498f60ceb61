"""Which snapshots are to be put beside the traces that name them: each once, and again before it could be swept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from math import inf

from routewright.errors import StorageUnavailable
from routewright.protocols import Clock
from routewright.wire import Durability, PutSnapshot, Snapshot

REMEMBERED = 1_000
KEPT_S = 6 * 3600.0
"""After so long a snapshot is put again, since those that no trace names for a day are swept."""


class Snapshots:
    """Puts snapshots by ``put``. One call of ``keep`` at a time."""

    def __init__(
        self,
        put: Callable[[Sequence[PutSnapshot]], Awaitable[object]],
        trouble: Callable[[Exception], object],
        clock: Clock,
        durability: Durability,
    ) -> None:
        self._put = put
        self._trouble = trouble
        self._clock = clock
        self._durability: Durability = durability
        self._kept: dict[str, float] = {}
        """When each was put last."""

    async def keep(self, snapshots: Iterable[Snapshot]) -> None:
        """Put those that are due. Raises ``StorageUnavailable``; what is refused is told to ``trouble``."""
        now = self._clock.time()
        named = {snapshot.id: snapshot for snapshot in snapshots}
        new = [snapshot for snapshot in named.values() if now - self._kept.get(snapshot.id, -inf) > KEPT_S]
        if not new:
            return
        try:
            await self._put([PutSnapshot(snapshot, at=now, durability=self._durability) for snapshot in new])
        except StorageUnavailable:
            raise
        except Exception as error:
            self._trouble(error)  # a trace without them is still a trace; it cannot be replayed
        if len(self._kept) > REMEMBERED:
            self._kept.clear()
        self._kept.update((snapshot.id, now) for snapshot in new)
