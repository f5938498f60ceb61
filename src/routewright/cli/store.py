"""The command ``store``, and the store, account and time options shared with other commands."""

from __future__ import annotations

import argparse
import os
from argparse import Namespace
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from routewright.backends.storage.sqlite.file import SUFFIXES
from routewright.backends.storage.sqlite.upkeep import backup, check, live_digests, upgrade
from routewright.catalogue import Catalogue
from routewright.console import SECRET, Console, secret_path
from routewright.errors import NotFound, StorageUnavailable, renaming
from routewright.protocols import BaseStorage, LocalStorage, Storage, options_of
from routewright.settings import Retention, SystemClock
from routewright.storage import is_postgres, open_storage, url_of
from routewright.trace import TraceStore
from routewright.wire import SYSTEM_ACCOUNT, Caller, Environment, RollupKeys
from routewright.wire.json_scan import is_unicode
from routewright.wire.timestamps import seconds_of, timestamp

from .command import ABSENT, INTERNAL, JSON, OK, Declaration, arg, number_or, refused, verb
from .show import Line, Screen, facts, fields, pick

if TYPE_CHECKING:
    from routewright.backends.storage.postgres.connections import Address

VARIABLE = "ROUTEWRIGHT_STORE"
"""The environment variable that names the store if ``--store`` is not given."""
WHEN = "a day, a time such as 2026-11-22T09:30:00Z, or an age such as 30m, 2h, 7d"

_HINT = "name a file, such as traces.db, or a database, such as postgresql://user@host/database"

T = TypeVar("T")
StoreRun = Callable[[Namespace, Screen, T], Awaitable[int | None]]
"""Runs a command on what its store was opened as."""


def _store_option(text: str) -> Declaration:
    return arg("--store URL", f"{text}: a file such as traces.db, or a postgresql:// URL (default: {VARIABLE})")


STORE = _store_option("store")
KEEPS = _store_option("store to write the trace to")
IN_STORE = (STORE, JSON)
ACCOUNT = arg("--account NAME", "account", default="default")
ENVIRONMENT = arg("--environment", "only this environment (default: both)", Environment)
WHOSE = (ACCOUNT, ENVIRONMENT)
LIMIT = arg("--limit N", "maximum number of results", int, 50)
SPAN = (arg("--since WHEN", f"at or after {WHEN}"), arg("--until WHEN", "before a time given likewise"))
_NAMED_STORE = arg("named STORE", "the same as --store", nargs="?")


def named_store(args: Namespace) -> Storage | None:
    """The store from ``--store`` or the environment. None if neither is set. Raises ``ValidationFailed``."""
    return open_named("--store", args.store, VARIABLE, open_storage, _HINT)


def open_named(option: str, text: str | None, variable: str, open_url: Callable[[str], T], hint: str) -> T | None:
    """Open the URL from an option or the environment. None if neither is set. Raises ``ValidationFailed``."""
    source, url = (option, text) if text is not None else (variable, os.environ.get(variable) or None)
    if url is None:
        return None
    problem = "is empty" if not url.strip() else "is memory:, which ends with the command"
    if not url.strip() or url.startswith("memory:"):
        raise refused(source, problem, hint)
    if not is_unicode(url):
        raise refused(source, "contains bytes that are not text", hint)
    with renaming(lambda fault: fault._replace(path=source, hint=fault.hint.replace("memory: or ", ""))):
        return open_url(url_of(url))


def existing_store(args: Namespace) -> Storage:
    """The named store, which must exist. Raises ``ValidationFailed`` and ``NotFound``."""
    storage = named_store(args)
    if storage is None:
        raise refused("--store", "is missing", f"give --store traces.db, or set {VARIABLE}")
    if isinstance(storage, LocalStorage) and not storage.path.is_file():
        hint = "'routewright serve', 'route', 'agent', 'accounts create' and 'policies draft' create one"
        raise NotFound(f"there is no store {storage.path}; {hint}")
    return storage


def new_store(args: Namespace) -> Storage:
    """The named store, which is created if it does not exist. Raises ``ValidationFailed``."""
    return named_store(args) or existing_store(args)


def store_verb(
    kind: Callable[..., AbstractAsyncContextManager[T]],
    command: str,
    *arguments: Declaration,
    more: str = "",
    store: Callable[[Namespace], Storage] = existing_store,
) -> Callable[[StoreRun[T]], StoreRun[T]]:
    """Declare a coroutine function as a command on the named store. ``kind`` opens it, with the ``--catalogue`` of a
    command that has one."""

    def declare(run: StoreRun[T]) -> StoreRun[T]:
        @verb(command, *arguments, *IN_STORE, more=more)
        @wraps(run)
        async def run_on_store(args: Namespace, screen: Screen) -> int | None:
            path = getattr(args, "catalogue", None)
            options = {} if path is None else {"catalogue": Catalogue.load(path)}
            async with kind(store(args), **options) as opened:
                return await run(args, screen, opened)

        return run

    return declare


def _check_apart(store: Path, target: str) -> None:
    """Refuse to write to a file of the store, also through a link. Raises ``ValidationFailed``."""
    for path in (store, store.resolve()):  # SQLite creates its files next to the link's target
        databases = [Path(f"{path}{end}") for end in SUFFIXES]
        if any(is_same(Path(target), file) for file in (*databases, secret_path(path))):
            problem = f"{Path(target)} belongs to the store {store}, which would be lost"
            raise refused("TARGET", problem, "name another file")


def is_same(first: Path, second: Path) -> bool:
    """True if two paths refer to the same file, even if it does not exist yet."""
    try:
        return first.samefile(second)
    except OSError:
        return os.path.realpath(first) == os.path.realpath(second)


def when(text: str | None) -> str | None:
    """Convert a relative time such as ``2h`` to a timestamp. Other text is returned as is."""
    seconds = seconds_of(text or "")
    return text if seconds is None else timestamp(max(0.0, SystemClock().time() - seconds))


def duration(text: str) -> int:
    """An argument type: the seconds of ``30m``, ``2h`` or ``7d``."""
    seconds = seconds_of(text)
    if seconds is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time as 30m, 2h or 7d")
    return seconds


@verb(
    "store create",
    arg("url URL", "database in PostgreSQL, such as postgresql://user@host/database"),
    arg("--grant-to ROLE", "role that a server uses: it may use the store, but change no table"),
    JSON,
)
def _create(args: Namespace, screen: Screen) -> None:
    """Create a store in a database of PostgreSQL, and let a role use it.

    The database, or the schema of it that ?options=-csearch_path%3DNAME names, must be empty. An existing
    store stays as it is: run it again to let another role use it."""
    address = _database("URL", args.url)
    from routewright.backends.storage.postgres.schema import create  # needs an extra

    created = create(address, args.grant_to)
    note = f"created the store {address}" if created else f"the store {address} exists already"
    record = {"store": str(address), "created": created, "granted_to": args.grant_to}
    screen.report(record, note=note if args.grant_to is None else f"{note}; {args.grant_to} may use it")


@verb("store backup", arg("target TARGET", "file to create"), *IN_STORE)
def _backup(args: Namespace, screen: Screen) -> None:
    """Back up the store as it is at one moment.

    Others may keep writing. The secret beside the store is copied to TARGET.secret: keep it as safe."""
    source = _file(args)
    target = Path(args.target)
    if not target.name or "\0" in args.target:
        raise refused("TARGET", "names no file", "name a new file, such as copy.db")
    secret = secret_path(target) if secret_path(source).is_file() else None
    for path in (target, secret):
        if path is not None and os.path.lexists(path):
            raise refused("TARGET", f"{path} exists", "name a new file")
    if not target.parent.is_dir():
        raise refused("TARGET", f"there is no folder {target.parent}", "create it first")
    _check_apart(source, args.target)
    backup(source, target)
    if secret is not None:
        try:
            content = secret_path(source).read_bytes()
            # readable by its owner only, from the start
            with os.fdopen(os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            problem = f"{secret_path(source)} to {secret}: {error.strerror}"
            raise StorageUnavailable(f"the store was copied, its secret was not: {problem}") from error
        secret_note = f"{secret}, which only you can read: keep it with the backup, and as safe"
    elif os.environ.get(SECRET):
        secret_note = f"none was copied: it is in {SECRET}"
    else:
        secret_note = "none was copied: the store has none yet"
    record = {"backup": str(target), "secret": None if secret is None else str(secret)}
    screen.report(record, facts({"backup": str(target), "secret": secret_note}))


@verb("store check", _NAMED_STORE, *IN_STORE)
def _check(args: Namespace, screen: Screen) -> int:
    """Check the whole store for damage.

    This takes some seconds per gigabyte; others may keep writing. The exit code is 1 for a damaged store, and for keys
    that are refused because they were made with another root secret than the one known here. Keys in a database are
    checked where ROUTEWRIGHT_SECRET is set."""
    source: object
    url = _store_url(args)
    if is_postgres(url):
        from routewright.backends.storage.postgres.schema import check as check_database

        source = _database("--store", url)
        audit, digests = check_database(source)
    else:
        source = _file(args)
        audit = check(source)
        digests = [] if audit.problems else live_digests(source)
    strangers = Console(existing_store(args)).strangers(digests)
    keys = {"live": len(digests), "of_another_secret": strangers}
    table = {
        **pick(audit, "version traces"),
        "live keys": len(digests),
        "not checked": "" if strangers is not None else f"the keys: {SECRET} is not set",
        "size_bytes": audit.bytes,
    }
    problems = [*audit.problems]
    if strangers:
        problems.append(
            f"{strangers:,} of {len(digests):,} live keys belong to another root secret, and are refused; "
            f"restore the secret's file from the backup, or set {SECRET}"
        )
    word = "damaged: restore a backup" if audit.problems else "sound, but its keys are refused" if problems else "sound"
    verdict = Line(word, "bad" if problems else "good")
    body = {"store": str(source), **audit._asdict(), "keys": keys}
    lines = [Line(problem, "bad") for problem in problems]
    screen.report(body, fields({"store": str(source), **table}), Line(), *lines, verdict)
    return INTERNAL if problems else OK


@verb("store upgrade", _NAMED_STORE, *IN_STORE)
def _upgrade(args: Namespace, screen: Screen) -> None:
    """Upgrade the store to the version that this routewright needs.

    A copy of an old file is left beside it: stop everything that uses it first. A database may be in use."""
    store: Address | Path
    url = _store_url(args)
    copy = None
    if is_postgres(url):
        store = _database("--store", url)
        from routewright.backends.storage.postgres.schema import upgrade as upgrade_database  # needs an extra

        changed = upgrade_database(store)
    else:
        store = _file(args)
        copy = upgrade(store)
        changed = copy is not None
    outcome = "is upgraded" if changed else "is up to date"
    record = {"store": str(store), "upgraded": changed, "backup": copy and str(copy)}
    screen.report(record, note=f"{store} {outcome}" if copy is None else f"{store} {outcome}; the old file is {copy}")


def _days(option: str, initially: int) -> Declaration:
    text = f"days to keep traces (initially {initially})"
    return arg(f"{option} N|forever", text, number_or("forever"), ABSENT)


@store_verb(TraceStore, "store retain", _days("--production-days", 30), _days("--sandbox-days", 1))
async def _retain(args: Namespace, screen: Screen, store: TraceStore) -> None:
    """Set how long traces are kept, and remove older ones.

    Without options it shows the current settings. Reports still count traces that were removed."""
    changes = {name: value for name, value in vars(args).items() if name in ("production_days", "sandbox_days")}
    removed = None
    retention: Retention = await store.retention()
    if changes:
        retention = replace(retention, **changes)
        removed = await store.retain(retention)
    terms = pick(retention, "production_days sandbox_days")
    table = {name: "for ever" if days is None else days for name, days in terms.items()}
    screen.report({**terms, "removed": removed}, fields({**table, "removed": removed}))


@verb(
    "store copy",
    arg("source FROM", "file of a store that is not in use"),
    arg("target TO", "empty database in PostgreSQL, such as postgresql://user@host/database"),
    JSON,
)
async def _copy(args: Namespace, screen: Screen) -> int:
    """Copy everything durable from a file into an empty database of PostgreSQL.

    If it is stopped, run it again: it continues where it was. Nobody can use the copy before it is complete. The exit
    code is 1 if the copy differs from the file."""
    if is_postgres(args.source):
        raise refused("FROM", "is a database in PostgreSQL, and only files are copied", "use pg_dump and pg_restore")
    source = open_named("FROM", args.source, "", open_storage, _HINT)
    target = _database("TO", args.target)
    from routewright.backends.storage.postgres.copy import copy  # needs an extra

    if not isinstance(source, LocalStorage) or not source.path.is_file():
        raise NotFound(f"there is no store {args.source}")
    try:
        await source.read(SYSTEM_ACCOUNT, RollupKeys())  # completes the roll-ups
        accounts = options_of(source, BaseStorage).accounts
        assert accounts is not None, "those that a URL names have them"
        await accounts.look(Caller(SYSTEM_ACCOUNT))  # releases what dead processes held
    finally:
        await source.aclose()
    rows, problems = copy(source.path, target, lambda text: None if args.json else screen.note(text))
    secret = f"set {SECRET} to the secret that its keys were made with"
    if secret_path(source.path).is_file():
        secret += f", which {secret_path(source.path)} holds"
    verdict = Line("the copy differs; copy again into an empty database while the file is not in use", "bad")
    if not problems:
        verdict = Line(f"copied and compared: {sum(rows.values()):,} rows. Before you use it, {secret}", "good")
    record = {"from": str(source.path), "to": str(target), "rows": rows, "problems": problems}
    screen.report(record, *(Line(problem, "bad") for problem in problems), verdict)
    return INTERNAL if problems else OK


def _database(argument: str, url: str) -> Address:
    """The address of a store in PostgreSQL. Raises ``ValidationFailed``."""
    open_named(argument, url, "", open_storage, _HINT)  # also checks that the extra is installed
    if not is_postgres(url):
        raise refused(argument, "is not a database in PostgreSQL; a file needs no such step", "write postgresql://...")
    from routewright.backends.storage.postgres.connections import Address

    return Address(url)


def _store_url(args: Namespace) -> str:
    """The store named as an argument, by ``--store`` or by the environment."""
    url = getattr(args, "named", None)
    if url is not None and args.store is not None:
        raise refused("STORE", "is given twice", "give it alone, or as --store")
    args.store = url or args.store
    args.named = None
    return args.store or os.environ.get(VARIABLE, "")


def _file(args: Namespace) -> Path:
    _store_url(args)
    storage = existing_store(args)
    if not isinstance(storage, LocalStorage):
        raise refused("--store", "is not a file on this machine", "back up databases in PostgreSQL with pg_dump")
    return storage.path
