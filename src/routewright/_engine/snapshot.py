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
RETRY_S = 60.0
"""After so long one that was refused is tried again. Its traces cannot be replayed without it."""


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
        self._refused: dict[str, float] = {}
        """When each was refused last."""

    async def keep(self, snapshots: Iterable[Snapshot]) -> None:
        """Put those that are due. Raises ``StorageUnavailable``; what is refused is told to ``trouble`` once, and
        fails no trace."""
        now = self._clock.time()
        named = {snapshot.id: snapshot for snapshot in snapshots}
        new = [
            PutSnapshot(each, at=now, durability=self._durability) for each in named.values() if self._due(each, now)
        ]
        if new:
            self._forget_some()
            await self._try(new)

    def _due(self, snapshot: Snapshot, now: float) -> bool:
        kept_s, refused_s = (now - times.get(snapshot.id, -inf) for times in (self._kept, self._refused))
        return kept_s > KEPT_S and refused_s > RETRY_S

    async def _try(self, writes: Sequence[PutSnapshot]) -> None:
        """Put all; where they are refused, one by one, to find those that are to blame."""
        try:
            await self._put(writes)
        except StorageUnavailable:
            raise
        except Exception as error:
            if len(writes) == 1:
                self._refuse(writes[0], error)
                return
            for write in writes:
                await self._try([write])
            return
        for write in writes:
            self._kept[write.snapshot.id] = write.at
            self._refused.pop(write.snapshot.id, None)

    def _refuse(self, write: PutSnapshot, error: Exception) -> None:
        first = write.snapshot.id not in self._refused
        self._refused[write.snapshot.id] = write.at
        if first:
            self._trouble(error)

    def _forget_some(self) -> None:
        for times in (self._kept, self._refused):
            if len(times) > REMEMBERED:
                times.clear()
