"""Which store is meant: the one of ``--store``, else of the environment. What only reads does not make one."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from routewright._core.request.json_scan import is_unicode
from routewright.console import Console
from routewright.coordination import limits_path
from routewright.errors import NotFound, Problem, ValidationFailed
from routewright.ledger import Ledger
from routewright.protocols import LocalStorage, Storage
from routewright.root_secret import secret_path
from routewright.storage import SCHEMES, open_storage
from routewright.trace import TraceStore

from .options import Arguments
from .store_options import VARIABLE

_ENDS = ("-wal", "-shm", "-journal")
"""What SQLite adds to the name of a store for the files beside it."""
_HINT = "name a file, as traces.db, or its URL, sqlite:///traces.db"
_IN_MEMORY = "memory: or "
"""What a hint offers that is of no use here."""


def named_store(args: Arguments) -> Storage | None:
    """The store that the command line or the environment names; None: neither does. Raises ``ValidationFailed``."""
    if args.store is not None:
        return _storage("--store", args.store)
    said = os.environ.get(VARIABLE)
    return _storage(VARIABLE, said) if said else None


def existing_store(args: Arguments) -> Storage:
    """The store that is named, which has to be there. Raises ``ValidationFailed`` and ``NotFound``."""
    storage = named_store(args)
    if storage is None:
        raise ValidationFailed.of(Problem("--store", "is missing", f"give --store traces.db, or set {VARIABLE}"))
    if isinstance(storage, LocalStorage) and not storage.path.is_file():
        begins = "'routewright route' and 'routewright accounts create' begin one"
        raise NotFound(f"there is no store {storage.path}; {begins}")
    return storage


def store_file(args: Arguments) -> Path:
    """The file of the store that is named. Raises ``ValidationFailed`` and ``NotFound``."""
    storage = existing_store(args)
    if not isinstance(storage, LocalStorage):
        raise ValidationFailed.of(Problem("--store", "is not in a file of this machine", _HINT))
    return storage.path


def check_apart(said_by: str, target: Path, store: Storage) -> None:
    """Refuse to write to a file that a store consists of, whatever it is called. Raises ``ValidationFailed``."""
    if isinstance(store, LocalStorage) and any(_is_same(target, own) for own in _own_files(store.path)):
        problem = f"{target} belongs to the store {store.path}, which would be lost"
        raise ValidationFailed.of(Problem(said_by, problem, "name another file"))


@asynccontextmanager
async def opened_traces(args: Arguments) -> AsyncIterator[TraceStore]:
    """The traces of the store that is named."""
    store = TraceStore(existing_store(args))
    try:
        yield store
    finally:
        await store.aclose()


@asynccontextmanager
async def opened_ledger(args: Arguments) -> AsyncIterator[Ledger]:
    """The ledger of the store that is named."""
    ledger = Ledger(existing_store(args))
    try:
        yield ledger
    finally:
        await ledger.aclose()


@asynccontextmanager
async def opened_console(args: Arguments, *, begins: bool = False) -> AsyncIterator[Console]:
    """The accounts and keys of the store that is named. ``begins``: it need not be there yet."""
    async with Console((named_store(args) if begins else None) or existing_store(args)) as console:
        yield console


def _own_files(store: Path) -> Iterator[Path]:
    for path in (store, store.resolve()):  # SQLite puts its files beside what a link leads to
        beside = secret_path(path), limits_path(path)
        yield from (
            path,
            *beside,
            *(each.with_name(each.name + end) for each in (path, limits_path(path)) for end in _ENDS),
        )


def _is_same(first: Path, second: Path) -> bool:
    try:
        return first.samefile(second)
    except OSError:  # one is not there
        return os.path.realpath(first) == os.path.realpath(second)


def _storage(said_by: str, said: str) -> Storage:
    is_url = "://" in said or said.startswith(tuple(f"{scheme}:" for scheme in SCHEMES))
    if not said.strip() or said.startswith("memory:"):
        problem = "is empty" if not said.strip() else "is memory:, which ends with the command"
        raise ValidationFailed.of(Problem(said_by, problem, _HINT))
    if not is_unicode(said):
        raise ValidationFailed.of(Problem(said_by, "holds bytes that are no text", _HINT))
    try:
        return open_storage(said if is_url else f"sqlite:///{said}")
    except ValidationFailed as error:
        found = [each._replace(path=said_by, hint=each.hint.replace(_IN_MEMORY, "")) for each in error.problems]
        raise ValidationFailed.of(*found) from error
