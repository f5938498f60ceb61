"""What tests of ``Console`` build on: one over memory or a file on virtual time, and a storage that can be watched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from routewright import Console, MemoryStorage
from routewright.errors import AuthenticationFailed, StorageUnavailable
from routewright.protocols import Accounts, Storage
from routewright.wire import Environment, NewKey, Write, Written

START = datetime(2026, 11, 22, 12, tzinfo=UTC)


class Watched:
    """A storage that counts what it is asked, and can be away, all of it or for writes."""

    def __init__(self, kept: Storage | None = None) -> None:
        self.kept: Any = MemoryStorage() if kept is None else kept
        self.accounts: Accounts | None = getattr(self.kept, "accounts", None)
        self.asked: Counter[str] = Counter()
        self.is_away = False
        self.is_read_only = False

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        self._pass(*writes)
        if self.is_read_only:
            raise StorageUnavailable("nothing can be written")
        done: list[Written] = await self.kept.apply(account, writes)
        return done

    async def read(self, account: str, query: Any) -> Any:
        self._pass(query)
        return await self.kept.read(account, query)

    async def scan(self, account: str, query: Any, *, after: str | None, limit: int) -> Any:
        self._pass(query)
        return await self.kept.scan(account, query, after=after, limit=limit)

    async def sweep(self, now: float) -> int:
        swept: int = await self.kept.sweep(now)
        return swept

    async def aclose(self) -> None:
        await self.kept.aclose()

    def _pass(self, *things: object) -> None:
        self.asked.update(type(each).__name__ for each in things)
        if self.is_away:
            raise StorageUnavailable("the storage is away")


def bearer(new: NewKey) -> str:
    """The header that sends a key."""
    return f"Bearer {new.secret.reveal()}"


async def holds(console: Console, new: NewKey, environment: Environment | None = None) -> bool:
    """Whether a key is taken."""
    try:
        caller = await console.authenticate(bearer(new), environment)
    except AuthenticationFailed:
        return False
    assert caller.key_id == new.key.id
    return True
