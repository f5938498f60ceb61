"""The command ``store``: ``backup``, ``check``, ``upgrade`` and ``retain``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
from msgspec.structs import replace

from routewright.authentication import strangers
from routewright.backends.storage.sqlite.upkeep import backup, check, live_digests, upgrade
from routewright.errors import Problem, StorageUnavailable, ValidationFailed
from routewright.root_secret import VARIABLE as SECRET
from routewright.root_secret import RootSecret, secret_path
from routewright.settings import Retention

from .blocks import Line, facts
from .exits import INTERNAL, OK
from .options import Arguments
from .place import check_apart, existing_store, opened_traces, store_file
from .screen import Screen
from .store_page import Keys, check_page, retention_page
from .wording import arguments_named


def run_store(args: Arguments, screen: Screen) -> int:
    """Do what the command line says, and give the exit code. Raises ``RouterError``."""
    with arguments_named():
        return _TOPICS[args.topic](args, screen)


def _backup(args: Arguments, screen: Screen) -> int:
    source, target = store_file(args), Path(args.target)
    secret = secret_path(target) if target.name and secret_path(source).is_file() else None
    _check_free(target, secret)
    check_apart("TARGET", target, existing_store(args))
    backup(source, target)
    if secret is not None:
        _copy_secret(secret_path(source), secret)
    if args.json:
        screen.json({"backup": str(target), "secret": None if secret is None else str(secret)})
        return OK
    screen.show(facts({"backup": str(target), "secret": _secret_says(secret)}))
    return OK


def _check_free(target: Path, secret: Path | None) -> None:
    """Refuse what names no file, and what exists, before anything is copied."""
    if not target.name or "\0" in str(target):
        raise ValidationFailed.of(Problem("TARGET", "names no file", "name a new file, as copy.db"))
    for path in (target, secret):
        if path is not None and os.path.lexists(path):
            raise ValidationFailed.of(Problem("TARGET", f"{path} exists", "name a new file"))
    if not target.parent.is_dir():
        raise ValidationFailed.of(Problem("TARGET", f"there is no folder {target.parent}", "make it first"))


def _copy_secret(source: Path, target: Path) -> None:
    """Copy the secret beside a store; only its owner can read the copy, from its first byte on."""
    try:
        content = source.read_bytes()
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        problem = f"the store was copied, its secret was not: {source} to {target}: {error.strerror}"
        raise StorageUnavailable(problem) from error


def _secret_says(copy: Path | None) -> str:
    if copy is not None:
        return f"{copy}, which only you can read: keep it with the backup, and as safe"
    if os.environ.get(SECRET):
        return f"none was copied: it stands in {SECRET}"
    return "none was copied: the store has none yet"


def _check(args: Arguments, screen: Screen) -> int:
    path = _file(args)
    found = check(path)
    digests = live_digests(path) if found.is_readable else []
    keys = Keys(len(digests), strangers(digests, RootSecret(existing_store(args), os.environ)))
    if args.json:
        screen.json({"store": str(path), **found._asdict(), "keys": keys._asdict()})
    else:
        screen.show(*check_page(path, found, keys))
    return INTERNAL if found.problems else OK


def _upgrade(args: Arguments, screen: Screen) -> int:
    path = _file(args)
    kept = upgrade(path)
    if args.json:
        screen.json({"store": str(path), "upgraded": kept is not None, "backup": None if kept is None else str(kept)})
    elif kept is None:
        screen.say(Line(f"{path} is of the present version: there is nothing to do", "dim"))
    else:
        screen.say(Line(f"{path} was upgraded; as it was before, it is {kept}", "dim"))
    return OK


def _retain(args: Arguments, screen: Screen) -> int:
    given = {name: getattr(args, name) for name in ("production_days", "sandbox_days") if name in args}
    retention, removed = anyio.run(_retained, args, given)
    if args.json:
        said = {name: getattr(retention, name) for name in ("production_days", "sandbox_days")}
        screen.json({**said, "removed": removed})
    else:
        screen.show(*retention_page(retention, removed))
    return OK


async def _retained(args: Arguments, given: dict[str, Any]) -> tuple[Retention, int | None]:
    """How long traces are kept from now on, and how much was removed; None: nothing was said."""
    async with opened_traces(args) as store:
        retention = await store.retention()
        if not given:
            return retention, None
        retention = replace(retention, **given)
        return retention, await store.retain(retention)


def _file(args: Arguments) -> Path:
    """The store that is named, behind the command or as an option."""
    if args.named is not None and args.store is not None:
        raise ValidationFailed.of(Problem("STORE", "is given twice", "give it alone, or as --store"))
    args.store = args.named or args.store
    return store_file(args)


_TOPICS = {"backup": _backup, "check": _check, "upgrade": _upgrade, "retain": _retain}
