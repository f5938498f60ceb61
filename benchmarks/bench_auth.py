"""How long does it take to tell a caller by a key that is known, and by one that has to be looked up?"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from random import Random

import pytest

from routewright import Console, MemoryStorage, SqliteStorage
from routewright._core.accounts.keys import SHOWN, Pepper, new_key
from routewright._core.crypto import derive
from routewright._setup.authentication import PURPOSE
from routewright.protocols import Storage
from routewright.wire import Account, Caller, Key, PutAccount, PutKey

from .conftest import Timed, TimedAsync
from .data import SEED
from .report import Question

ACCOUNTS, KEYS = 100, 100
"""So many, and of each so many."""
SECRET = "0123456789abcdef" * 2
AT = "2026-11-22T12:00:00.000Z"

KNOWN = Question("Console.authenticate, 10,000 keys, all known")
MEMORY = Question("Console.authenticate, looked up in memory")
SQLITE = Question("Console.authenticate, looked up in SQLite")


def keys() -> Iterator[tuple[str, Key]]:
    """The texts of keys, and what is kept of them."""
    chance = Random(SEED + 8)
    pepper = Pepper(derive(SECRET.encode(), PURPOSE))
    for number in range(ACCOUNTS * KEYS):
        text, account = new_key("production", chance.randbytes(24)), f"account {number % ACCOUNTS}"
        digest, prefix = pepper.digest(text), text[:SHOWN]
        yield text, Key(
            id=f"key_{number}", account=account, environment="production", name="x", prefix=prefix, digest=digest,
            created_at=AT,
        )  # fmt: skip


async def filled(storage: Storage) -> list[str]:
    """A storage with all of them; the headers that send them."""
    made = list(keys())
    for number in range(ACCOUNTS):
        account = Account(name=f"account {number}", created_at=AT)
        writes = [PutKey(key) for _, key in made if key.account == account.name]
        await storage.apply(account.name, [PutAccount(account), *writes])
    return [f"Bearer {text}" for text, _ in made]


class TestKnown:
    def test_floor(self, timed: Timed) -> None:
        pepper, made = derive(SECRET.encode(), PURPOSE), list(keys())
        callers = {hmac.digest(pepper, text.encode(), "sha256"): Caller(key.account) for text, key in made}
        headers = cycle([f"Bearer {text}" for text, _ in made])
        timed(KNOWN, "floor", lambda header: callers[hmac.digest(pepper, header[7:].encode(), "sha256")], headers)

    def test_routewright(self, loop: asyncio.Runner, timed_async: TimedAsync, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("routewright._setup.authentication.RECHECK_S", 1e9)  # else most are of an earlier round
        storage = MemoryStorage()
        headers = loop.run(filled(storage))
        console = Console(storage, secret=SECRET, recheck_s=1e9)
        for header in headers:
            loop.run(console.authenticate(header, "production"))
        timed_async(KNOWN, "routewright", lambda header: console.authenticate(header, "production"), cycle(headers))


class TestLookedUp:
    def test_memory(self, loop: asyncio.Runner, timed_async: TimedAsync) -> None:
        self._measure(MEMORY, MemoryStorage(), loop, timed_async)

    def test_sqlite(self, loop: asyncio.Runner, timed_async: TimedAsync, tmp_path: Path) -> None:
        storage = SqliteStorage(tmp_path / "traces.db")
        self._measure(SQLITE, storage, loop, timed_async)
        loop.run(storage.aclose())

    def _measure(self, asked: Question, storage: Storage, loop: asyncio.Runner, timed_async: TimedAsync) -> None:
        headers = loop.run(filled(storage))
        console = Console(storage, secret=SECRET, recheck_s=0)
        timed_async(asked, "routewright", lambda header: console.authenticate(header, "production"), cycle(headers))
