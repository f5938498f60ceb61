"""What a person is shown of a ledger: its rows, a statement, what was corrected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from routewright.wire import LedgerRow, Statement, StatementLine

from .blocks import Block, Line, Row, Style, Table, facts
from .figures import exact

_ROWS = ("began (UTC)", "call", "", "kind", "model", "tokens in", "out", "cost", "charged", "")
_ROWS_RIGHT = frozenset({2, 5, 6, 7, 8})
_LINES = ("model", "provider", "attempts", "tokens in", "cached", "out", "cost", "charged")
_STYLES: dict[str, Style] = {"credit": "good", "expired": "bad", "correction": "dim"}
_SECOND = len("2026-11-22T12:00:00")


def rows_page(rows: Sequence[LedgerRow]) -> list[Block]:
    """Rows, one line each."""
    return [Table([Row(_cells(row), _STYLES.get(row.kind, "plain")) for row in rows], _ROWS, _ROWS_RIGHT)]


def statement_page(told: Statement) -> list[Block]:
    """What an account was charged in a month, and for what."""
    totals = told.totals
    corrected = f", of which corrections are {exact(totals.corrected_nanos)}" if totals.corrections else ""
    named = {
        "opening balance": exact(told.opening_nanos),
        "credit": exact(totals.credited_nanos) if totals.credited_nanos else "",
        "charged": f"{exact(totals.charged_nanos)}{corrected}",
        "closing balance": exact(told.closing_nanos),
        "cost": _between(totals.cost_nanos, totals.least_nanos, totals.most_nanos),
        "attempts": f"{totals.attempts:,}",
    }
    title = Line(f"Statement of {told.account} for {told.month} (UTC)", "title")
    return [title, Line(), facts(named), *_charges(told), *_corrections(told), *_credits(told), *_uncertain(told)]


def corrected_page(row: LedgerRow) -> list[Block]:
    """What was booked to put an attempt right."""
    tokens = row.tokens
    named = {
        "booked": f"correction {row.attempt} of {row.request_id}",
        "model": row.model,
        "cost": _more(row.cost_nanos),
        "charge": _more(row.charge_nanos),
        "tokens": f"{tokens.input:+,} in, {tokens.output:+,} out" if tokens.input or tokens.output else "",
        "paid by": f"{row.at[: len('2026-11')]}, the month of the call",
    }
    return [facts(named)]


def _cells(row: LedgerRow) -> tuple[str, ...]:
    counts = ("", "") if row.kind in ("credit", "expired") else (f"{row.tokens.input:,}", f"{row.tokens.output:,}")
    money = ("", "") if row.kind in ("credit", "expired") else (exact(row.cost_nanos), exact(row.charge_nanos))
    began = row.at[:_SECOND].replace("T", " ")
    return (began, row.request_id, str(row.attempt), row.kind, row.model, *counts, *money, ", ".join(_notes(row)))


def _notes(row: LedgerRow) -> Iterator[str]:
    if row.kind == "credit":
        yield exact(row.credit_nanos)
    if row.cost_range_nanos is not None and row.kind != "correction":
        least, most = row.cost_range_nanos
        yield f"cost {exact(least)} to {exact(most)}"
    if row.overrun_nanos:
        yield f"{exact(row.overrun_nanos)} more than was reserved"
    if row.note:
        yield row.note


def _charges(told: Statement) -> Iterator[Block]:
    yield Line()
    if told.charges:
        yield _lines(told.charges, _LINES)
    else:
        yield Line("no calls in that month", "dim")


def _corrections(told: Statement) -> Iterator[Block]:
    if told.corrections:
        yield Line()
        yield _lines(told.corrections, ("correction of", "provider", "times", *_LINES[3:]))


def _lines(lines: Sequence[StatementLine], head: tuple[str, ...]) -> Table:
    by_day = lines[0].day is not None
    rows = [Row((*((line.day or "",) if by_day else ()), *_line(line))) for line in lines]
    first = 1 if by_day else 0
    return Table(rows, ("day", *head) if by_day else head, frozenset(range(first + 2, first + len(head))))


def _line(line: StatementLine) -> tuple[str, ...]:
    used = line.tokens
    counts = (f"{line.rows:,}", f"{used.input:,}", f"{used.cached:,}", f"{used.output:,}")
    return (line.model, line.provider, *counts, exact(line.cost_nanos), exact(line.charged_nanos))


def _credits(told: Statement) -> Iterator[Block]:
    if told.credits:
        yield Line()
        rows = [Row((line.day, f"{line.rows:,}", exact(line.credited_nanos))) for line in told.credits]
        yield Table(rows, ("day", "times", "credit"), frozenset({1, 2}))


def _uncertain(told: Statement) -> Iterator[Block]:
    if told.uncertain:
        yield Line()
        rows = [
            Row((line.model or "(calls whose process ended)", exact(line.least_nanos), exact(line.most_nanos)))
            for line in told.uncertain
        ]
        yield Table(rows, ("cost that is not certain", "at least", "at most"), frozenset({1, 2}))


def _between(nanos: int, least: int, most: int) -> str:
    return exact(nanos) if least == most else f"{exact(nanos)} ({exact(least)} to {exact(most)})"


def _more(nanos: int) -> str:
    return f"{exact(nanos)}" if nanos <= 0 else f"+{exact(nanos)}"
