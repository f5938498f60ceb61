"""The command ``analytics``: ``usage``, ``cache``, ``fallback`` and ``latency``."""

from __future__ import annotations

from typing import Any

import anyio

from .analytics_page import cache_page, fallback_page, latency_page, usage_page
from .blocks import Block
from .options import Arguments
from .place import opened_traces
from .screen import Screen
from .wording import arguments_named


def run_analytics(args: Arguments, screen: Screen) -> None:
    """Show a report. Raises ``RouterError``."""
    with arguments_named():
        report, page = anyio.run(_report, args)
    if args.json:
        screen.json(report)
    else:
        screen.show(*page)


async def _report(args: Arguments) -> tuple[object, list[Block]]:
    """The report that is asked for, and its page."""
    asked: dict[str, Any] = {
        "start_date": args.start_date,
        "end_date": args.end_date,
        "account": args.account,
        "environment": args.environment,
    }
    async with opened_traces(args) as store:
        match args.topic:
            case "usage":
                usage = await store.usage(**asked, group_by=args.group_by, bucket=args.bucket)
                return usage, usage_page(usage)
            case "cache":
                cache = await store.cache_report(**asked)
                return cache, cache_page(cache)
            case "fallback":
                fallback = await store.fallback_report(**asked)
                return fallback, fallback_page(fallback)
            case _:
                latency = await store.latency_report(**asked)
                return latency, latency_page(latency)
