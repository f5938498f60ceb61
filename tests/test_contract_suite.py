"""The suite for storages finds what is wrong with one: for each promise there is a storage that breaks it alone."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import pytest
from anyio.lowlevel import current_token
from docs._blocks import ROOT, blocks
from msgspec.structs import fields, replace

from routewright import MemoryStorage
from routewright.errors import PreconditionFailed, UnsupportedWrite
from routewright.protocols import Storage
from routewright.wire import (
    Decisions,
    DeleteTraces,
    FeedbackByTrace,
    PutFeedback,
    PutTrace,
    Trace,
    TraceById,
    Write,
    Written,
)
from tests.contracts.storage.samples import full_trace
from tests.contracts.storage.suites import AccountsContract, BooksContract, StorageContract

pytestmark = pytest.mark.anyio
suite = StorageContract()
CONTRACTS = StorageContract, BooksContract, AccountsContract


class TestStorageOfThePage(StorageContract):
    """The one that the documentation shows whole."""

    def make(self) -> Storage:
        storage: Storage = shown()["DictStorage"]()
        return storage

    async def test_decisions_come_oldest_first_with_what_a_simulation_needs(self, storage: Storage) -> None:
        with pytest.raises(UnsupportedWrite, match="Decisions"):  # nobody can simulate over it
            await storage.scan("default", Decisions(), after=None, limit=1)


@cache
def shown() -> dict[str, Any]:
    """What the page defines for it."""
    names: dict[str, Any] = {}
    for block in blocks((ROOT / "docs" / "how-to" / "own-storage.md").read_text("utf-8")):
        if block.text.startswith(("from datetime", "class DictStorage:")):
            exec(block.text, names)
    return names


class CutAccounts(MemoryStorage):
    """Its column for the account's name is too short."""

    def __init__(self, chars: int) -> None:
        super().__init__()
        self._chars = chars

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        return await super().apply(account[: self._chars], writes)

    async def read(self, account: str, query: Any) -> Any:
        return await super().read(account[: self._chars], query)

    async def scan(self, account: str, query: Any, *, after: str | None, limit: int) -> list[Any]:
        return await super().scan(account[: self._chars], query, after=after, limit=limit)


class CutIds(MemoryStorage):
    """Its column for the id of a trace is too short, and the trace itself is kept as it is."""

    def __init__(self, chars: int) -> None:
        super().__init__()
        self._chars = chars
        self._whole: dict[str, Trace] = {}

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        return await super().apply(account, [self._cut(write) for write in writes])

    async def read(self, account: str, query: Any) -> Any:
        match query:
            case TraceById(id):
                return self._as_given(await super().read(account, replace(query, id=id[: self._chars])))
            case FeedbackByTrace(trace_id):
                return await super().read(account, FeedbackByTrace(trace_id[: self._chars]))
        return await super().read(account, query)

    async def scan(self, account: str, query: Any, *, after: str | None, limit: int) -> list[Any]:
        found = await super().scan(account, query, after=after, limit=limit)
        return [self._as_given(each) for each in found]

    def _cut(self, write: Write) -> Write:
        match write:
            case PutTrace(trace):
                self._whole[trace.id[: self._chars]] = trace
                return replace(write, trace=replace(trace, id=trace.id[: self._chars]))
            case PutFeedback(trace_id):
                return replace(write, trace_id=trace_id[: self._chars])
            case DeleteTraces(id=str(id)):
                return replace(write, id=id[: self._chars])
        return write

    def _as_given(self, found: Any) -> Any:
        return found and replace(found, id=self._whole[found.id].id)


class Wordless(MemoryStorage):
    """It forgets what was said."""

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        left = [replace(w, trace=replace(w.trace, content=None)) if isinstance(w, PutTrace) else w for w in writes]
        return await super().apply(account, left)


class Unlocked(MemoryStorage):
    """Threads may meet in it."""

    def __init__(self) -> None:
        super().__init__()
        guard: Any = NoGuard()
        self.guard = guard

    def account_of(self, account: str) -> Any:
        time.sleep(1e-4)  # between the look and the leap
        return super().account_of(account)


class NoGuard:
    lock: AbstractContextManager[None] = nullcontext()


class OfOneLoop(MemoryStorage):
    """It can be used in the loop alone in which it was used first."""

    loop: object = None

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        here = current_token()
        if self.loop not in (None, here):
            raise RuntimeError("attached to a different loop")
        self.loop = here
        return await super().apply(account, writes)


@pytest.mark.parametrize("chars", [64, 190, 199])
async def test_a_storage_that_cuts_accounts_is_caught(chars: int) -> None:
    with pytest.raises(AssertionError):
        await suite.test_accounts_with_similar_names_are_separate(CutAccounts(chars))


@pytest.mark.parametrize("chars", [64, 99])
async def test_a_storage_that_cuts_ids_is_caught(chars: int) -> None:
    with pytest.raises((AssertionError, PreconditionFailed)):
        await suite.test_ids_that_differ_in_the_last_character_are_different_traces(CutIds(chars))


async def test_a_storage_that_cuts_only_longer_names_passes() -> None:
    await suite.test_accounts_with_similar_names_are_separate(CutAccounts(200))
    await suite.test_ids_that_differ_in_the_last_character_are_different_traces(CutIds(100))


async def test_a_storage_that_drops_content_is_caught() -> None:
    with pytest.raises(AssertionError):
        await suite.test_a_trace_comes_back_as_it_was(Wordless())


@pytest.mark.parametrize(("make", "error"), [(Unlocked, AssertionError), (OfOneLoop, RuntimeError)])
async def test_a_storage_that_threads_cannot_share_is_caught(
    make: Callable[[], Storage], error: type[Exception], anyio_backend_name: str
) -> None:
    with pytest.raises(error):
        await suite.test_threads_with_their_own_loops_lose_and_duplicate_nothing(make(), anyio_backend_name)


def test_the_sample_trace_has_every_field() -> None:
    trace = full_trace()
    for part in (trace, trace.content):
        assert part is not None
        for field in fields(part):
            assert getattr(part, field.name) not in (None, [], {}, False, 0, field.default), field.name


def test_no_contract_test_hides_another_of_its_name() -> None:
    names = [
        name
        for part in {part for contract in CONTRACTS for part in contract.__mro__}
        for name in vars(part)
        if name[:5] == "test_"
    ]
    assert len(names) == len(set(names)) > 100


def test_the_parts_of_a_storage_are_public_and_load_no_database() -> None:
    code = "from routewright.storage import *; import sys; print(*dir()); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    names, loaded = (set(line.split()) for line in done.stdout.splitlines())
    rules = "Expired Hold KeptResult Rollups Shelf State WaitQueue added expired_row next_label settle"
    assert {*rules.split(), "check_batch", "check_digests", "ids_of", "open_storage", "selects"} <= names
    assert not {"sqlite3", "aiohttp", "pydantic", "tiktoken", "routewright.router"} & loaded
