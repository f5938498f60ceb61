"""The command ``ledger``: rows, statements, reconciliation with a provider's bill, and corrections."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing

from routewright._core.account_fields import told
from routewright._core.money import nanos_of
from routewright.catalogue import Catalogue
from routewright.contrib.invoices import Compared, ReconciledModel, Reconciliation
from routewright.errors import NotFound
from routewright.ledger import Ledger
from routewright.wire import DEFAULT_ACCOUNT, LedgerRow, Statement, StatementLine, Usage

from .command import DISAGREES, OK, Parser, add, add_catalogue_file, refused
from .show import Block, Line, Row, Screen, Style, Table, exact, facts, picked
from .store import WHEN, add_store_options, existing_store, other_accounts, when

_ROWS = ("began (UTC)", "call", "", "kind", "model", "tokens in", "out", "cost", "charged", "")
_ROWS_RIGHT = frozenset({2, 5, 6, 7, 8})
_LINES = ("provider", "attempts", "tokens in", "cached", "out", "cost", "charged")
_COUNTS = {"requests": "requests", "input_tokens": "tokens in", "output_tokens": "out", "cached_tokens": "cached"}
"""Fields of a bill other than the cost, with their column headings."""
_STYLES: dict[str, Style] = {
    "credit": "good", "expired": "bad", "correction": "dim", "drifts": "bad", "explained": "dim",
}  # fmt: skip
_NAMED = 10
"""The most days or models named in one line."""


def add_ledger(command: Parser) -> None:
    """Add the subcommands of ``ledger``."""
    rows = command.command("rows", _rows)
    add(rows, "--trace ID", "those of one call", dest="trace_id")
    add(rows, "--since WHEN", f"begun then or later: {WHEN}")
    add(rows, "--until WHEN", "begun before then")
    add(rows, "--limit N", "how many (default: 50)", type=int, default=50)
    statement = command.command("statement [MONTH]", _statement)
    add(statement, "month MONTH", "as 2026-11 (default: the current one)", nargs="?")
    add(statement, "--by-day", "a line for each model and day", action="store_true")
    bill = command.command("reconcile FILE", _reconcile)
    add(bill, "path FILE", "the export")
    add(bill, "--provider NAME", "whose it is (default: as it says, else whoever serves its models)")
    add(bill, "--first YYYY-MM-DD", "the first day (default: its own)")
    add(bill, "--last YYYY-MM-DD", "the last day (default: its own)")
    add(bill, "--tolerance PERCENT", "by how much the ledger may be off (default: 1%%)", type=_share, default=0.01)
    add_catalogue_file(bill)
    correct = command.command("correct ID ATTEMPT", _correct)
    add(correct, "trace_id ID", "the trace of the call")
    add(correct, "attempt ATTEMPT", "1, 2 ... as 'routewright ledger rows' lists them", type=int)
    add(correct, "--cost USD", "what it cost", dest="cost_usd", type=float)
    for part, default, what in (
        ("input", None, "input tokens, cached and written to a cache included"),
        ("output", None, "output tokens, reasoning included"),
        ("cached", 0, "of the input, read from a cache"),
        ("written", 0, "of the input, written to a cache"),
        ("reasoning", 0, "of the output, reasoning before the answer"),
    ):
        add(correct, f"--{part} N", what, dest=f"{part}_tokens", type=int, default=default)
    add(correct, "--note TEXT", "why; kept in the ledger", default="")
    for each in (rows, statement, correct):
        add(each, "--account NAME", "whose it is (default: default)", default="default")
    add_store_options(rows, statement, bill, correct)


def _share(text: str) -> float:
    try:
        return float(text.removesuffix("%")) / 100
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no share in per cent, as 1%") from None


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


async def _statement(args: Namespace, screen: Screen) -> None:
    """Show what an account was charged in a month, and for what.

    Months are in UTC, written 2026-11. Without one it is the current month."""
    async with Ledger(existing_store(args)) as ledger:
        found = await ledger.statement(args.month, by="day" if args.by_day else "model", account=args.account)
        hint = "" if found.charges or found.credits or found.corrections else await _hint(ledger, args)
    screen.report(found, *_statement_page(found), note=f"nothing is booked there{hint}" if hint else "")


def _statement_page(found: Statement) -> Iterator[Block]:
    totals = found.totals
    corrected = f", of which corrections are {exact(totals.corrected_nanos)}" if totals.corrections else ""
    least, most = exact(totals.least_nanos), exact(totals.most_nanos)
    named = {
        "opening balance": exact(found.opening_nanos),
        "credit": exact(totals.credited_nanos) if totals.credited_nanos else "",
        "charged": f"{exact(totals.charged_nanos)}{corrected}",
        "closing balance": exact(found.closing_nanos),
        "cost": exact(totals.cost_nanos) + ("" if least == most else f" ({least} to {most})"),
        "attempts": f"{totals.attempts:,}",
    }
    yield Line(f"Statement of {found.account} for {found.month} (UTC)", "title")
    yield from (Line(), facts(named), Line())
    yield _lines(found.charges, ("model", *_LINES)) if found.charges else Line("no calls in that month", "dim")
    if found.corrections:
        yield from (Line(), _lines(found.corrections, ("correction of", "provider", "times", *_LINES[2:])))
    if found.credits:
        rows = [Row((line.day, f"{line.rows:,}", exact(line.credited_nanos))) for line in found.credits]
        yield from (Line(), Table(rows, ("day", "times", "credit"), frozenset({1, 2})))
    if found.uncertain:
        rows = [
            Row((line.model or "(calls whose process ended)", exact(line.least_nanos), exact(line.most_nanos)))
            for line in found.uncertain
        ]
        yield from (Line(), Table(rows, ("cost that is not certain", "at least", "at most"), frozenset({1, 2})))


def _lines(lines: Sequence[StatementLine], head: tuple[str, ...]) -> Table:
    rows = [
        (line.day or "", line.model, line.provider, f"{line.rows:,}", f"{line.tokens.input:,}",
         f"{line.tokens.cached:,}", f"{line.tokens.output:,}", exact(line.cost_nanos), exact(line.charged_nanos))
        for line in lines
    ]  # fmt: skip
    head = ("day", *head)
    first = 0 if lines[0].day is not None else 1  # omit the day column if it is empty
    return Table([Row(row[first:]) for row in rows], head[first:], frozenset(range(3 - first, len(head) - first)))


async def _reconcile(args: Namespace, screen: Screen) -> int:
    """Compare a provider's usage export with the ledger.

    FILE is what a provider says was used: a page of OpenAI's or Anthropic's usage or cost API, or several in an
    array; Anthropic's or OpenRouter's CSV; or a table, CSV or JSON, with the columns date, model, requests,
    input_tokens, output_tokens, cached_tokens and cost_usd, of which some may be missing.

    It is compared with the calls of all accounts on the same days, UTC on both sides. The exit code is 0 where both
    agree within the tolerance, or up to what was uncertain, and 1 where they do not. Less than a cent never counts."""
    catalogue = None if args.catalogue is None else Catalogue.load(args.catalogue)
    asked = picked(args, "first last provider tolerance")
    async with Ledger(existing_store(args)) as ledger:
        found = await ledger.reconcile(args.path, **asked, catalogue=catalogue)
    screen.report(found, *_reconcile_page(found))
    return OK if found.agrees else DISAGREES


def _reconcile_page(found: Reconciliation) -> Iterator[Block]:
    yield facts(
        {
            "export": f"{found.shape}, from {found.first} to {found.last}, in days of UTC",
            "compared with": f"calls of {', '.join(found.providers) or 'nobody'}, over all accounts, in the same days",
            "tolerance": f"{found.tolerance * 100:g}%",
        }
    )
    counts = [name for name in _COUNTS if getattr(found.total, name).theirs is not None]
    rows = [Row(_compared(each, counts), _STYLES.get(each.agreement, "plain")) for each in found.models]
    what = "tokens" if found.total.cost_usd.theirs is None else "$"
    head = ("model", f"bill, {what}", f"ledger, {what}", "drift", "", *(_COUNTS[name] for name in counts), "")
    rows.append(Row(_compared(found.total, counts), "title"))
    yield from (Line(), Table(rows, head, frozenset(range(1, len(head) - 1))))
    if found.unmatched:
        first = found.unmatched[0]
        counts = [name for name in _COUNTS if getattr(first, name) is not None]
        bill = () if first.cost_usd is None else ("bill, $",)
        head = ("no model that is known", *bill, *(_COUNTS[name] for name in counts))
        rows = []
        for each in found.unmatched:
            costs = () if each.cost_usd is None else (_money(each.cost_usd),)
            figures = (f"{getattr(each, name):,}" for name in counts)
            rows.append(Row((each.name or "(none is named)", *costs, *figures)))
        yield from (Line(), Table(rows, head, frozenset(range(1, len(head)))))
    lost = f"up to ${_money(found.expired_most_usd)} of calls whose process ended before they did"
    notes = {
        "only in the bill": _some(found.only_theirs),
        "only in the ledger": _some(found.only_ours),
        "days only in the bill": _some(found.days_only_theirs),
        "days only in the ledger": _some(found.days_only_ours),
        "not certain": lost if found.expired_most_usd else "",
        "the export": "is not whole: it says that there is more" if found.partial else "",
    }
    if any(notes.values()):
        yield from (Line(), facts(notes))
    yield from (Line(), Line("they agree", "good") if found.agrees else Line("they do not agree", "bad"))


def _compared(model: ReconciledModel, counts: Sequence[str]) -> tuple[str, ...]:
    """A model's figures on both sides: in dollars, else in tokens, else in requests."""
    figure = model.cost_usd
    written: Callable[[float], str] = _money
    if figure.theirs is None:
        figure, written = model.requests, _count
        given, made = model.input_tokens, model.output_tokens
        if given.theirs is not None or made.theirs is not None:
            theirs, ours = (given.theirs or 0) + (made.theirs or 0), given.ours + made.ours
            figure = Compared(theirs, ours, theirs - ours, 100 * (theirs - ours) / theirs if theirs else None)
    said = "drifts" if model.agreement == "drifts" else ""
    if model.agreement == "explained":
        said = f"explained: ours is {_money(model.least_usd)} to {_money(model.most_usd)}"
    figures = [written(figure.theirs or 0), written(figure.ours), _signed(written(figure.drift or 0)), _off(figure)]
    for name in counts:
        count = getattr(model, name)
        figures.append(_off(count) or (_signed(_count(count.drift)) if count.drift else "="))
    return (model.model or "all together", *figures, said)


def _money(dollars: float) -> str:
    return exact(nanos_of(dollars)).replace("$", "")


def _count(count: float) -> str:
    return f"{count:,.0f}"


def _signed(text: str) -> str:
    return text if text.startswith("-") or text == "0" else f"+{text}"


def _off(figure: Compared) -> str:
    return "" if figure.percent is None or not figure.drift else f"{figure.percent:+.2f}%"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


async def _correct(args: Namespace, screen: Screen) -> None:
    """Correct what was booked for an attempt of a call.

    Give its real cost, or its tokens, which are priced as they were then. The difference is booked, and charged
    where the call was; its trace and the analytics follow. Repeating a correction does nothing."""
    whole = {"--input": args.input_tokens, "--output": args.output_tokens}
    parts = (args.cached_tokens, args.reasoning_tokens, args.written_tokens)
    usage = None
    if any(parts) or any(tokens is not None for tokens in whole.values()):
        for option, tokens in whole.items():
            if tokens is None:
                raise refused(option, "is missing", "tokens are given with --input and --output")
        usage = Usage(args.input_tokens, args.output_tokens, *parts)
    asked = {"cost_usd": args.cost_usd, "usage": usage, "note": args.note, "account": args.account}
    async with Ledger(existing_store(args)) as ledger:
        try:
            row = await ledger.correct(args.trace_id, args.attempt, **asked)
        except NotFound as error:
            raise NotFound(f"{error}{await _hint(ledger, args)}") from error
    if row is None:
        screen.report({"row": None}, note="it is booked so already: there is nothing to do")
        return
    used = row.tokens
    named = {
        "booked": f"correction {row.attempt} of {row.request_id}",
        "model": row.model,
        "cost": f"{'+' if row.cost_nanos > 0 else ''}{exact(row.cost_nanos)}",
        "charge": f"{'+' if row.charge_nanos > 0 else ''}{exact(row.charge_nanos)}",
        "tokens": f"{used.input:+,} in, {used.output:+,} out" if used.input or used.output else "",
        "paid by": f"{row.at[: len('2026-11')]}, the month of the call",
    }
    screen.report({"row": row}, facts(named))
