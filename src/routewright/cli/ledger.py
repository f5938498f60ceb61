"""The command ``ledger``: what was booked, row by row or added up."""

from __future__ import annotations

from argparse import Namespace
from contextlib import aclosing
from typing import Any

import msgspec

from routewright._core.account_fields import told
from routewright._core.accounts.ledger import grouped
from routewright.errors import NotFound
from routewright.ledger import Ledger
from routewright.wire import DEFAULT_ACCOUNT, LedgerRow

from .command import arg, refused, verb
from .show import Screen, Style, listing, picked
from .store import ACCOUNT, IN_STORE, LIMIT, OUTPUT, SPAN, STORE, check_apart, existing_store, other_accounts, when

_ROWS = """at request_id attempt kind model tokens.input tokens.output cost_nanos charge_nanos credit_nanos
    overrun_nanos cost_range_nanos note"""
_TOTALS = """kind provider model rows tokens.input tokens.cached tokens.output cost_nanos charge_nanos credit_nanos"""
_STYLES: dict[str, Style] = {"credit": "good", "expired": "bad", "correction": "dim"}
_WHICH = (arg("--trace ID", "those of one call", dest="trace_id"), *SPAN, ACCOUNT)


def _asked(args: Namespace) -> dict[str, Any]:
    return {**picked(args, "trace_id account"), "since": when(args.since), "until": when(args.until)}


async def _lack(ledger: Ledger, args: Namespace) -> str:
    """Says that this account has no rows, and lists the others. Raises ``NotFound`` if the account was also never set
    up, except for the default account."""
    async with aclosing(ledger.rows(account=args.account)) as rows:
        async for _ in rows:
            return "nothing is booked there"
    others = await other_accounts(args)
    if others is not None and args.account != DEFAULT_ACCOUNT:
        raise NotFound(f"no account {told(args.account)}, and nothing is booked there{others}")
    return f"nothing is booked there{others or ''}"


@verb("ledger rows", *_WHICH, LIMIT, *IN_STORE)
async def _rows(args: Namespace, screen: Screen) -> None:
    """List what was booked, newest first."""
    if args.limit < 1:
        raise refused("limit", f"must be at least 1, got {args.limit}", "for example 20")
    booked: list[LedgerRow] = []
    async with Ledger(existing_store(args)) as ledger, aclosing(ledger.rows(**_asked(args))) as rows:
        async for row in rows:
            booked.append(row)
            if len(booked) > args.limit:
                break
        note = "" if booked else await _lack(ledger, args)
    has_more = len(booked) > args.limit
    if has_more:
        note = "there are older ones; --limit shows more of them, --since and --until others"
    booked = booked[: args.limit]
    screen.report(
        {"rows": booked, "has_more": has_more},
        listing(msgspec.to_builtins(booked), _ROWS, lambda row: _STYLES.get(row["kind"], "plain")),
        note=note,
    )


@verb(
    "ledger totals",
    arg("--first YYYY-MM-DD", "the first day, in UTC (default: six days before the last)"),
    arg("--last YYYY-MM-DD", "the last day (default: today)"),
    ACCOUNT,
    *IN_STORE,
)
async def _totals(args: Namespace, screen: Screen) -> None:
    """Add up what was booked, by kind and model."""
    async with Ledger(existing_store(args)) as ledger:
        days = await ledger.sums(**picked(args, "first last account"))
        lack = "" if days else await _lack(ledger, args)
    sums = grouped(days, lambda day: (day.kind, day.provider, day.model))
    totals = [msgspec.to_builtins(each) for _, each in sorted(sums.items())]
    screen.report({"days": days}, listing(totals, _TOTALS, lambda row: _STYLES.get(row["kind"], "plain")), note=lack)


@verb("ledger export", *_WHICH, OUTPUT, STORE)
async def _export(args: Namespace, screen: Screen) -> None:
    """Write what was booked, each row as one line of JSON, newest first."""
    check_apart(args)
    async with Ledger(existing_store(args)) as ledger, aclosing(ledger.rows(**_asked(args))) as rows:
        await screen.export(rows, args.output, "row")
