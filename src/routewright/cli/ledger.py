"""The command ``ledger``: what was booked, row by row."""

from __future__ import annotations

from argparse import Namespace
from contextlib import aclosing

from routewright._core.account_fields import told
from routewright.errors import NotFound
from routewright.ledger import Ledger
from routewright.wire import DEFAULT_ACCOUNT, LedgerRow

from .command import Parser, add, refused
from .show import Row, Screen, Style, Table, exact
from .store import WHEN, add_store_options, existing_store, other_accounts, when

_ROWS = ("began (UTC)", "call", "", "kind", "model", "tokens in", "out", "cost", "charged", "")
_ROWS_RIGHT = frozenset({2, 5, 6, 7, 8})
_STYLES: dict[str, Style] = {"credit": "good", "expired": "bad", "correction": "dim"}


def add_ledger(command: Parser) -> None:
    """Add the subcommands of ``ledger``."""
    rows = command.command("rows", _rows)
    add(rows, "--trace ID", "those of one call", dest="trace_id")
    add(rows, "--since WHEN", f"begun then or later: {WHEN}")
    add(rows, "--until WHEN", "begun before then")
    add(rows, "--limit N", "how many (default: 50)", type=int, default=50)
    add(rows, "--account NAME", "whose it is (default: default)", default="default")
    add_store_options(rows)


async def _hint(ledger: Ledger, args: Namespace) -> str:
    """A hint that lists the other accounts, if this one has no rows. Raises ``NotFound`` if the account was also never
    set up, except for the default account."""
    async with aclosing(ledger.rows(account=args.account)) as rows:
        async for _ in rows:
            return ""
    others = await other_accounts(args)
    if others is not None and args.account != DEFAULT_ACCOUNT:
        raise NotFound(f"no account {told(args.account)}, and nothing is booked there{others}")
    return others or ""


async def _rows(args: Namespace, screen: Screen) -> None:
    """List what was booked, newest first."""
    if args.limit < 1:
        raise refused("limit", f"must be at least 1, got {args.limit}", "for example 20")
    asked = {"since": when(args.since), "until": when(args.until), "trace_id": args.trace_id}
    found: list[LedgerRow] = []
    async with Ledger(existing_store(args)) as ledger, aclosing(ledger.rows(account=args.account, **asked)) as rows:
        async for row in rows:
            found.append(row)
            if len(found) > args.limit:
                break
        hint = "" if found else await _hint(ledger, args)
    shown, has_more = found[: args.limit], len(found) > args.limit
    note = "there are older ones; --limit shows more of them, --since and --until others" if has_more else ""
    if not found:
        note = f"nothing is booked there{hint}"
    lines = []
    for row in shown:
        used = (f"{row.tokens.input:,}", f"{row.tokens.output:,}", exact(row.cost_nanos), exact(row.charge_nanos))
        if row.kind in ("credit", "expired"):
            used = ("", "", "", "")
        notes = [exact(row.credit_nanos)] if row.kind == "credit" else []
        if row.cost_range_nanos is not None and row.kind != "correction":
            notes.append("cost {} to {}".format(*map(exact, row.cost_range_nanos)))
        if row.overrun_nanos:
            notes.append(f"{exact(row.overrun_nanos)} more than was reserved")
        notes += [row.note] if row.note else []
        began = row.at[: len("2026-11-22T12:00:00")].replace("T", " ")
        cells = (began, row.request_id, str(row.attempt), row.kind, row.model, *used, ", ".join(notes))
        lines.append(Row(cells, _STYLES.get(row.kind, "plain")))
    screen.report({"rows": shown, "has_more": has_more}, Table(lines, _ROWS, _ROWS_RIGHT), note=note)
