"""The command ``ledger``: what was booked, row by row."""

from __future__ import annotations

from argparse import Namespace
from contextlib import aclosing
from typing import Any

import msgspec

from routewright.ledger import Ledger
from routewright.wire import LedgerRow
from routewright.wire.json_scan import quoted

from .command import arg, refused, verb
from .show import Screen, Style, listing, pick
from .store import ACCOUNT, IN_STORE, LIMIT, SPAN, STORE, existing_store, when

_ROWS = """at request_id attempt kind model tokens.input tokens.output cost_nanos charge_nanos credit_nanos
    overrun_nanos cost_range_nanos note"""
_STYLES: dict[str, Style] = {"credit": "good", "expired": "bad", "correction": "dim"}
_WHICH = (arg("--trace ID", "only rows of this call", dest="trace_id"), *SPAN, ACCOUNT)


def _filters_of(args: Namespace) -> dict[str, Any]:
    return {**pick(args, "trace_id account"), "since": when(args.since), "until": when(args.until)}


@verb("ledger rows", *_WHICH, LIMIT, *IN_STORE)
async def _rows(args: Namespace, screen: Screen) -> None:
    """List the rows of the ledger, newest first."""
    if args.limit < 1:
        raise refused("limit", f"must be at least 1, got {args.limit}", "for example 20")
    booked: list[LedgerRow] = []
    async with Ledger(existing_store(args)) as ledger, aclosing(ledger.rows(**_filters_of(args))) as rows:
        async for row in rows:
            booked.append(row)
            if len(booked) > args.limit:
                break
    has_more = len(booked) > args.limit
    note = "" if booked else f"there is no such row for the account {quoted(args.account)}"
    if has_more:
        note = "there are older rows; raise --limit, or select with --since and --until"
    booked = booked[: args.limit]
    screen.report(
        {"rows": booked, "has_more": has_more},
        listing(msgspec.to_builtins(booked), _ROWS, lambda row: _STYLES.get(row["kind"], "plain")),
        note=note,
    )


@verb("ledger export", *_WHICH, STORE)
async def _export(args: Namespace, screen: Screen) -> None:
    """Write the rows of the ledger, each as one line of JSON, newest first."""
    async with Ledger(existing_store(args)) as ledger, aclosing(ledger.rows(**_filters_of(args))) as rows:
        await screen.export(rows)
