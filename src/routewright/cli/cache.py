"""The command ``cache``: counts, explains and removes answers in a response cache."""

from __future__ import annotations

import textwrap
from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec.structs import replace

from routewright._core.account_fields import told
from routewright._core.timestamps import timestamp
from routewright.errors import NotFound
from routewright.protocols import Cache
from routewright.router import Router
from routewright.storage import open_cache
from routewright.wire import CacheOpts, Caller, Environment
from routewright.wire.analytics import time_short

from .command import INTERRUPTED, OK, Parser, add, add_json, refused
from .route import ASKS, add_request, pair, request_of, router_of
from .show import Block, Line, Row, Screen, Table, exact, facts, moment, percent, picked
from .store import duration, opened, size

VARIABLE = "ROUTEWRIGHT_CACHE"
_WHICH = "key partition trace_id namespace metadata older_than_s".split()
"""Options that are passed on to ``router.cache.invalidate``."""
_NEAR = ("similarity", "age", "differ", "right", "risk", "served", "question")


def add_cache(command: Parser) -> None:
    """Add the subcommands of ``cache``."""
    stats, explain = command.command("stats", _stats), command.command(f"explain {ASKS}", _explain)
    invalidate = command.command("invalidate", _invalidate)
    add_request(explain)
    options = explain.add_argument_group("the cache")
    mode = "semantic: match similar questions; exact: identical requests only"
    add(options, "--mode", mode, choices=("semantic", "exact"))
    bound = options.add_mutually_exclusive_group()
    add(bound, "--max-error SHARE", "share of requests that may get a wrong answer (default: 0.01)", type=float)
    add(bound, "--threshold SHARE", "minimum similarity; replaces --max-error", type=float)
    add(options, "--namespace NAME", "the namespace of the request")
    which = invalidate.add_argument_group("which answers; all that is given must hold")
    add(which, "--key DIGEST", "the entry with this request digest, as printed by 'cache explain'")
    add(which, "--partition DIGEST", "entries of this partition, as printed by 'cache explain'")
    add(which, "--trace ID", "the entry made by the call with this trace", dest="trace_id")
    add(which, "--namespace NAME", "entries of this namespace")
    tagged = "requests with this metadata; 5 and true are a number and a boolean unless quoted"
    add(which, "--metadata KEY=VALUE", tagged, type=_tag)
    add(which, "--older-than TIME", "entries older than this: 30m, 2h, 7d", dest="older_than_s", type=duration)
    add(which, "--everything", "all answers of the account", action="store_true")
    add(which, "--environment", "only those of this one (default: both)", choices=get_args(Environment))
    invalidate.add_argument("-y", "--yes", action="store_true", help="do not ask")
    for each in (stats, explain, invalidate):
        add(each, "--cache URL", f"a file as cache.db, or sqlite:///cache.db (default: {VARIABLE})")
        add(each, "--account NAME", "whose answers (default: default)", default="default")
        add_json(each)


def _tag(text: str) -> tuple[str, str | float | bool]:
    key, value = pair(text)
    with suppress(msgspec.DecodeError):
        return key, msgspec.json.decode(value, type=str | int | float | bool)
    return key, value


def _existing(args: Namespace) -> Cache:
    def open_existing(url: str) -> Cache:
        cache, path = open_cache(url), Path(url.removeprefix("sqlite:///"))
        if url.startswith("sqlite:") and not path.is_file():
            raise NotFound(f"there is no cache {path}; 'routewright serve --cache {path}' creates it")
        return cache

    cache = opened("--cache", args.cache, VARIABLE, open_existing, "name a file, as cache.db, or sqlite:///cache.db")
    if cache is None:
        raise refused("--cache", "is missing", f"give --cache cache.db, or set {VARIABLE}")
    return cache


async def _stats(args: Namespace, screen: Screen) -> None:
    """Count the answers that are kept of an account.

    How often answers came from the cache is in 'routewright analytics cache'."""
    cache = _existing(args)
    async with Router(cache=cache) as router:
        kept = await router.as_caller(Caller(args.account)).cache.stats()
        of_all = (await cache.stats(None, router.clock.time())).entries
    oldest_at = None if kept.oldest_at is None else timestamp(kept.oldest_at)
    counted = picked(kept, "entries size_bytes partitions") | {
        "oldest_at": oldest_at,
        "saves_usd": kept.saves_nanos / 1e9,
    }
    named = {"answers": f"{kept.entries:,}", "size": size(kept.size_bytes), "partitions": f"{kept.partitions:,}"}
    named |= {"oldest": moment(oldest_at), "had cost": exact(kept.saves_nanos)}
    others = f"; other accounts have {of_all:,}: name one with --account" if of_all else ""
    lack = "" if kept.entries else f"the account {told(args.account)} has no answer there{others}"
    screen.report({"account": args.account, **counted}, *([] if lack else [facts(named)]), note=lack)


async def _explain(args: Namespace, screen: Screen) -> None:
    """Say whether a request would be answered from the cache, and why; nothing is called.

    The request, the models and the policies must be those that it is asked with: answers are given only where all but
    the last question is the same. The prompt is the argument, a file as @FILE or --file FILE, or else what is piped in.
    """
    cache = _existing(args)
    async with router_of(args, sandbox=args.sandbox, cache=cache) as router:
        request = request_of(args, router.models())
        await cache.stats(args.account, router.clock.time())  # raises if it cannot be opened; explain() would miss
        caller = Caller(args.account, "sandbox" if args.sandbox else "production")
        given = {name: getattr(args, name, None) for name in CacheOpts.__struct_fields__}
        given = {name: value for name, value in given.items() if value is not None}
        options: bool | CacheOpts = request.cache or True  # a policy may replace True with its options
        if given:
            options = replace(request.cache if isinstance(request.cache, CacheOpts) else CacheOpts(), **given)
        found = await router.as_caller(caller).cache.explain(request, cache=options)
    rows = []
    for each in found.near:
        judged = (each.probability, each.risk, None if each.risk is None else each.serve)
        shares = ["" if share is None else percent(share) for share in judged]
        question = textwrap.shorten(each.question, 200, placeholder=" ...")
        cells = (f"{each.similarity:.3f}", time_short(each.age_s * 1000), each.refused_by or "", *shares, question)
        rows.append(Row(cells, "good" if each.serve > 0 else "plain"))
    near: list[Block] = [Line(), Table(rows, _NEAR, frozenset({0, 1, 3, 4, 5}), prose=True)] if rows else []
    where = facts({"key": found.key, "partition": found.partition})
    screen.report(found, Line(found.reason, "title"), Line(), where, *near)


async def _invalidate(args: Namespace, screen: Screen) -> int:
    """Remove answers from the cache for good.

    Answers are removed that match everything given. A person is asked first; scripts need --yes. Running servers stop
    serving them immediately."""
    which: dict[str, Any] = {name: value for name in _WHICH if (value := getattr(args, name)) is not None}
    if bool(which) == args.everything:
        problem = "cannot be combined with other selectors" if which else "nothing is selected"
        hint = "give --key, --partition, --trace, --namespace, --metadata or --older-than, or --everything alone"
        raise refused("--everything", problem, hint)
    environments = get_args(Environment) if args.environment is None else (args.environment,)
    async with Router(cache=_existing(args)) as router:
        views = [router.as_caller(Caller(args.account, each)).cache for each in environments]
        if not args.yes:
            kept = (await views[0].stats()).entries
            some = "all" if args.everything and args.environment is None else "these"
            asked = f"remove {some} of the {kept:,} answers of {args.account}?"
            if not screen.ask(asked, otherwise=f"answers of the account {args.account} would be removed"):
                screen.note("nothing is removed")
                return INTERRUPTED
        removed = sum([await view.invalidate(**which, everything=args.everything) for view in views])
    screen.report({"removed": removed}, note=f"{removed:,} answer{'' if removed == 1 else 's'} removed")
    return OK
