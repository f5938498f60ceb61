"""Providers that answer at once, storages and books that keep nothing: what is measured is all that a figure says."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from routewright import Catalogue, Model, Router, Settings, UpstreamCall
from routewright._core.accounts.settlement import Expired
from routewright._core.idempotency import KeptResult
from routewright.protocols import Provider, Storage, TraceDraft
from routewright.wire import Account, Chunk, Delta, Finish, Key, Query, Scan, Snapshot, Usage, Write, Written

from . import data

MODELS = data.models(50)
TEXT = "Hello there, this is a canned answer."

Messages = list[dict[str, Any]]


class Instant:
    """A provider that has its answer ready. ``turns``: how often it lets other tasks run first."""

    name = "instant"

    def __init__(self, turns: int = 0) -> None:
        self._turns = turns

    def models(self) -> Sequence[Model]:
        return MODELS

    def open(self, call: UpstreamCall) -> Canned:
        return Canned(self._turns)

    async def aclose(self) -> None: ...


class Canned:
    """One call of it."""

    __slots__ = ("_chunks", "_turns")

    def __init__(self, turns: int) -> None:
        self._turns = turns
        self._chunks: Iterator[Chunk] = iter((Delta(TEXT), Usage(42, 9), Finish("stop")))

    async def __aenter__(self) -> Self:
        for _ in range(self._turns):
            await asyncio.sleep(0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        for chunk in self._chunks:
            return chunk
        raise StopAsyncIteration


class DropsAll:
    """A storage that keeps nothing."""

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        return [Written(True)] * len(writes)

    async def read(self, account: str, query: Query) -> Any: ...

    async def scan(self, account: str, query: Scan, *, after: str | None, limit: int) -> Any:
        return []

    async def sweep(self, now: float) -> int:
        return 0

    async def aclose(self) -> None: ...


class DropsAtOnce(DropsAll):
    """One that never waits, so that traces need no queue in front of it."""

    def keep(self, account: str, draft: TraceDraft, snapshots: Sequence[Snapshot]) -> None: ...


class Terms:
    """Books in which all accounts and keys have the same terms, and credit without end. They keep nothing."""

    def __init__(self, account: Account, key: Key) -> None:
        self._account = account
        self._key = key

    def account(self, name: str) -> Account:
        return self._account

    def key(self, account: str, key_id: str) -> Key:
        return self._key

    def sums(self, account: str, purse: str) -> tuple[int, int]:
        return 0, 10**15

    def read_result(self, account: str, claim: bytes, now: float) -> KeptResult | None:
        return None

    def attempts(self, account: str, call: str) -> set[int]:
        return set()

    def unbook(self, account: str, call: str) -> Expired | None:
        return None

    def read_threshold(self, account: str, name: str) -> int:
        return 0

    def put_threshold(self, account: str, name: str, threshold: int) -> None: ...


def router_over(provider: Provider, storage: Storage, settings: Settings | None = None) -> Router:
    return Router(providers=[provider], catalogue=Catalogue(()), storage=storage, settings=settings)
