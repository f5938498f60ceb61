"""The contract suite for storages passes for the one that the documentation shows, and hides no test."""

from __future__ import annotations

import subprocess
import sys

import pytest
from msgspec.structs import fields

from routewright.errors import UnsupportedWrite
from routewright.protocols import Storage
from routewright.wire import Decisions
from tests.contracts.storage.dict_storage import DictStorage
from tests.contracts.storage.samples import full_trace
from tests.contracts.storage.suites import AccountsContract, BooksContract, StorageContract

pytestmark = pytest.mark.anyio
suite = StorageContract()
CONTRACTS = StorageContract, BooksContract, AccountsContract


class TestDictStorage(StorageContract):
    """The storage that the documentation tells to start from."""

    def make(self) -> Storage:
        return DictStorage()

    async def test_decisions_come_oldest_first_with_what_a_simulation_needs(self, storage: Storage) -> None:
        with pytest.raises(UnsupportedWrite, match="Decisions"):  # nobody can simulate over it
            await storage.scan("default", Decisions(), after=None, limit=1)


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
