"""The command ``ledger``: ``rows``, ``statement``, ``reconcile`` and ``correct``."""

from __future__ import annotations

from contextlib import aclosing

import anyio

from routewright.catalogue import Catalogue
from routewright.errors import NotFound, Problem, ValidationFailed
from routewright.wire import LedgerRow, Usage

from .blocks import Line
from .exits import DISAGREES, OK
from .ledger_page import corrected_page, rows_page, statement_page
from .options import Arguments
from .place import opened_ledger
from .reconcile_page import reconcile_page
from .screen import Screen
from .when import when
from .whose import hint_of
from .wording import ledger_named


def run_ledger(args: Arguments, screen: Screen) -> int:
    """Do what the command line says, and give the exit code. Raises ``RouterError``."""
    with ledger_named("--trace" if args.topic == "rows" else "ID"):
        return anyio.run(_TOPICS[args.topic], args, screen)


async def _rows(args: Arguments, screen: Screen) -> int:
    if args.limit < 1:
        raise ValidationFailed.of(Problem("limit", f"must be at least 1, got {args.limit}", ""))
    asked = {"since": when(args.since), "until": when(args.until), "trace_id": args.trace_id}
    found: list[LedgerRow] = []
    async with opened_ledger(args) as ledger, aclosing(ledger.rows(account=args.account, **asked)) as rows:
        async for row in rows:
            found.append(row)
            if len(found) > args.limit:
                break
        hint = "" if found else await hint_of(ledger, args)
    shown, has_more = found[: args.limit], len(found) > args.limit
    if args.json:
        screen.json({"rows": shown, "has_more": has_more})
    elif shown:
        screen.show(*rows_page(shown))
        if has_more:
            screen.say(Line("there are older ones; --limit shows more of them, --since and --until others", "dim"))
    else:
        screen.say(Line(f"nothing is booked there{hint}", "dim"))
    return OK


async def _statement(args: Arguments, screen: Screen) -> int:
    async with opened_ledger(args) as ledger:
        told = await ledger.statement(args.month, by="day" if args.by_day else "model", account=args.account)
        hint = "" if told.charges or told.credits or told.corrections else await hint_of(ledger, args)
    if args.json:
        screen.json(told)
        return OK
    screen.show(*statement_page(told))
    if hint:
        screen.say(Line(f"nothing is booked there{hint}", "dim"))
    return OK


async def _reconcile(args: Arguments, screen: Screen) -> int:
    catalogue = None if args.catalogue is None else Catalogue.load(args.catalogue)
    async with opened_ledger(args) as ledger:
        found = await ledger.reconcile(
            args.file or "",
            first=args.first,
            last=args.last,
            provider=args.of_provider,
            tolerance=args.tolerance,
            catalogue=catalogue,
        )
    if args.json:
        screen.json(found)
    else:
        screen.show(*reconcile_page(found))
    return OK if found.agrees else DISAGREES


async def _correct(args: Arguments, screen: Screen) -> int:
    usage, trace_id = _usage(args), args.trace_id or ""
    async with opened_ledger(args) as ledger:
        try:
            row = await ledger.correct(
                trace_id, args.attempt, cost_usd=args.cost, usage=usage, note=args.note, account=args.account
            )
        except NotFound as error:
            raise NotFound(f"{error}{await hint_of(ledger, args)}") from error
    if args.json:
        screen.json({"row": row})
    elif row is None:
        screen.say(Line("it is booked so already: there is nothing to do", "dim"))
    else:
        screen.show(*corrected_page(row))
    return OK


def _usage(args: Arguments) -> Usage | None:
    """The tokens that are told. Raises ``ValidationFailed`` where only some are."""
    told = {"--input": args.input_tokens, "--output": args.output_tokens}
    parts = (args.cached_tokens, args.reasoning_tokens, args.written_tokens)
    if all(each is None for each in told.values()) and not any(parts):
        return None
    for option, tokens in told.items():
        if tokens is None:
            raise ValidationFailed.of(Problem(option, "is missing", "tokens are given with --input and --output"))
    return Usage(args.input_tokens or 0, args.output_tokens or 0, *parts)


_TOPICS = {"rows": _rows, "statement": _statement, "reconcile": _reconcile, "correct": _correct}
