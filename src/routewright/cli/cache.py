"""The command ``cache``: counts and removes answers in a response cache."""

from __future__ import annotations

from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import msgspec

from routewright.errors import NotFound
from routewright.protocols import Cache
from routewright.router import Router
from routewright.storage import open_cache
from routewright.wire import Caller, Environment
from routewright.wire.json_scan import quoted
from routewright.wire.timestamps import timestamp

from .command import JSON, YES, arg, flag, group, refused, unconfirmed, verb
from .route import pair
from .show import Screen, fields, pick, with_count
from .store import ACCOUNT, ENVIRONMENT, duration, open_named

VARIABLE = "ROUTEWRIGHT_CACHE"
_WHICH = "trace_id namespace metadata older_than_s".split()
"""Options that are passed on to ``router.cache.invalidate``."""
CACHE = arg("--cache URL", f"the cache: a file such as cache.db (default: {VARIABLE})")
_WHERE = (CACHE, ACCOUNT, JSON)


def _tag(text: str) -> tuple[str, str | float | bool]:
    key, value = pair(text)
    with suppress(msgspec.DecodeError):
        return key, msgspec.json.decode(value, type=str | int | float | bool)
    return key, value


def named_cache(args: Namespace) -> Cache | None:
    """The cache from ``--cache`` or the environment, which must exist. None if neither is set. Raises
    ``ValidationFailed`` and ``NotFound``."""

    def open_existing(url: str) -> Cache:
        cache = open_cache(url)
        path = Path(url.removeprefix("sqlite:///"))
        if url.startswith("sqlite:") and not path.is_file():
            raise NotFound(f"there is no cache {path}; 'routewright serve --cache {path}' creates it")
        return cache

    return open_named("--cache", args.cache, VARIABLE, open_existing, "name a file, such as cache.db")


def _existing_cache(args: Namespace) -> Cache:
    cache = named_cache(args)
    if cache is None:
        raise refused("--cache", "is missing", f"give --cache cache.db, or set {VARIABLE}")
    return cache


@verb("cache stats", *_WHERE)
async def _stats(args: Namespace, screen: Screen) -> None:
    """Count the cached answers of an account.

    How often answers came from the cache is in 'routewright analytics cache'."""
    async with Router(cache=_existing_cache(args)) as router:
        stats = await router.as_caller(Caller(args.account)).cache.stats()
    figures = pick(stats, "entries size_bytes partitions") | {
        "oldest_at": None if stats.oldest_at is None else timestamp(stats.oldest_at),
        "saves_usd": stats.saves_nanos / 1e9,
    }
    note = "" if stats.entries else f"the account {quoted(args.account)} has no cached answer"
    screen.report({"account": args.account, **figures}, *([] if note else [fields(figures)]), note=note)


@verb(
    "cache invalidate",
    group(
        "selection; answers must match all of it",
        arg("--trace ID", "the entry of the call with this trace", dest="trace_id"),
        arg("--namespace NAME", "entries of this namespace"),
        arg("--metadata KEY=VALUE", "entries with this metadata; unquoted 5 and true are number and boolean", _tag),
        arg("--older-than TIME", "entries older than this: 30m, 2h, 7d", duration, dest="older_than_s"),
        flag("--everything", "all answers of the account"),
        ENVIRONMENT,
    ),
    YES,
    *_WHERE,
)
async def _invalidate(args: Namespace, screen: Screen) -> None:
    """Remove answers from the cache permanently.

    Answers must match all options to be removed. Nothing is removed without --yes. Running servers stop serving them
    immediately."""
    selection: dict[str, Any] = {name: value for name in _WHICH if (value := getattr(args, name)) is not None}
    if bool(selection) == args.everything:
        problem = "cannot be combined with other selectors" if selection else "nothing is selected"
        hint = "give --trace, --namespace, --metadata or --older-than, or --everything alone"
        raise refused("--everything", problem, hint)
    environments = get_args(Environment) if args.environment is None else (args.environment,)
    async with Router(cache=_existing_cache(args)) as router:
        if not args.yes:
            raise unconfirmed(f"answers of the account {args.account} would be removed")
        views = [router.as_caller(Caller(args.account, environment)).cache for environment in environments]
        removed = sum([await view.invalidate(**selection, everything=args.everything) for view in views])
    screen.report({"removed": removed}, note=f"{with_count(removed, 'answer')} removed")
