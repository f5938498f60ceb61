"""The command ``status``: what is wrong, as a store and a running server know it."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from http.client import HTTPException
from urllib.request import ProxyHandler, build_opener

import anyio.to_thread
import msgspec

from routewright.console import Console
from routewright.errors import NotFound
from routewright.protocols import Storage
from routewright.router import Router
from routewright.trace import TraceStore
from routewright.wire import DEFAULT_ACCOUNT, JsonObject, RouterStatus

from .command import INTERNAL, OK, arg, refused, verb
from .show import Block, Line, Screen, fields, listing, pick, with_count
from .store import IN_STORE, existing_store, named_store, when

ANSWER_S = 5.0
MOST = 200
"""The most failed calls, and deliveries, that are counted of an account."""
MOST_BYTES = 16 * 1024 * 1024
"""The longest answer that is read of a server."""
_PASSED = "today went past {}: its key is refused or its circuit was open; see the log, or --url"


@verb("status", arg("--url URL", "admin address of a running server, as http://127.0.0.1:9100"), *IN_STORE)
async def _status(args: Namespace, screen: Screen) -> int:
    """Show what is wrong: with vendors, keys, storage and webhooks.

    A store knows what all processes wrote to it: today's fallbacks in production, the calls that failed within the last
    hour, deliveries. With --url a server adds what only it knows: refused keys, open circuits, refused requests. The
    exit code is 1 if the server has a problem; a store alone is only shown."""
    server = None if args.url is None else await anyio.to_thread.run_sync(_ask, args.url)
    store = None
    if server is None or named_store(args) is not None:
        store = await _read(existing_store(args))
    blocks: list[Block] = [] if store is None else [fields(store), Line()]
    problems = [] if server is None else server.problems
    if server is None and store is not None:
        for model, count in store["passed_by"].items():
            blocks.append(Line(f"{with_count(count, 'call')} {_PASSED.format(model)}", "bad"))
    if server is not None:
        providers = msgspec.to_builtins(server.providers)
        counts = {"refused": Counter(server.refusals), "webhooks": server.deliveries, "traces": server.traces}
        blocks += [listing(providers, "name models keys keys_refused circuits_open last_fault.kind"), Line()]
        blocks += [fields(counts), Line(), *(Line(problem, "bad") for problem in problems)]
        blocks += [] if problems else [Line("nothing is wrong", "good")]
    screen.report({"store": store, "server": server}, *blocks)
    return INTERNAL if problems else OK


def _ask(url: str) -> RouterStatus:
    """The status of a running server. Raises ``NotFound``."""
    if not url.startswith(("http://", "https://")):
        raise refused("--url", "is no http address", "give that of --admin-port, as http://127.0.0.1:9100")
    try:
        with build_opener(ProxyHandler({})).open(f"{url.rstrip('/')}/status", timeout=ANSWER_S) as answer:
            return msgspec.json.decode(answer.read(MOST_BYTES), type=RouterStatus)
    except (OSError, ValueError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise NotFound(f"no status at {url}: {reason}; give its --admin-host and --admin-port") from error


async def _read(storage: Storage) -> JsonObject:
    """What the store knows of all accounts."""
    failed = Counter[str]()
    fallbacks = Counter[str]()
    passed_by = Counter[str]()
    deliveries = Counter[str]()
    reserved_nanos = 0
    traces = TraceStore(storage)
    today = (when("0m") or "")[:10]
    async with Console(storage) as console:
        accounts = [account.name for account in await console.accounts()]
        for name in {DEFAULT_ACCOUNT, *accounts}:
            report = await traces.fallback_report(today, today, account=name)
            fallbacks.update(report.reasons)
            passed_by.update(report.passed_by)
            page = await traces.query(
                filter="status=failed", since=when("1h"), limit=MOST, account=name, environment="production"
            )
            failed.update(item.error or "" for item in page.data)
            deliveries.update(delivery.state for delivery in await console.deliveries(name, limit=MOST))
            if name in accounts:
                reserved_nanos += (await console.standing(name)).month.reserved_nanos
        status = Router(providers=[], storage=storage).status().storage
    counts = {"failed": failed, "fallbacks": fallbacks, "passed_by": passed_by, "deliveries": deliveries}
    money = {"accounts": len(accounts), "reserved_usd": reserved_nanos / 1e9}
    return {**pick(status, "kind database_bytes disk_free_bytes"), **money, **counts}
