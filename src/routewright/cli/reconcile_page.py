"""What a person is shown of a provider's bill beside the ledger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from routewright._core.money import nanos_of
from routewright.contrib.invoices import Compared, ReconciledModel, Reconciliation, UnmatchedName

from .blocks import Block, Line, Row, Style, Table, facts
from .figures import exact

_COUNTS = {"requests": "requests", "input_tokens": "tokens in", "output_tokens": "out", "cached_tokens": "cached"}
"""Figures besides the cost, and how their columns are called."""
_STYLES: dict[str, Style] = {"drifts": "bad", "explained": "dim"}
NAMED = 10
"""Days, or models, that are named in one line."""


def reconcile_page(found: Reconciliation) -> list[Block]:
    """The figures of all models, the largest drift first, and what only one side has."""
    named = {
        "export": f"{found.shape}, from {found.first} to {found.last}, in days of UTC",
        "compared with": f"calls of {', '.join(found.providers) or 'nobody'}, over all accounts, in the same days",
        "tolerance": f"{found.tolerance * 100:g}%",
    }
    return [facts(named), Line(), _models(found), *_unmatched(found.unmatched), *_notes(found), Line(), _end(found)]


def _models(found: Reconciliation) -> Table:
    counts = [name for name in _COUNTS if getattr(found.total, name).theirs is not None]
    rows = [Row(_cells(each, counts), _STYLES.get(each.agreement, "plain")) for each in found.models]
    rows.append(Row(_cells(found.total, counts), "title"))
    what = "tokens" if found.total.cost_usd.theirs is None else "$"
    head = ("model", f"bill, {what}", f"ledger, {what}", "drift", "", *(_COUNTS[name] for name in counts), "")
    return Table(rows, head, frozenset(range(1, len(head) - 1)))


def _cells(model: ReconciledModel, counts: Sequence[str]) -> tuple[str, ...]:
    by_cost = model.cost_usd.theirs is not None
    figure, written = (model.cost_usd, _money) if by_cost else (_all_tokens(model), _count)
    return (
        model.model or "all together",
        written(figure.theirs or 0),
        written(figure.ours),
        _signed(written(figure.drift or 0)),
        _percent(figure),
        *(_off(getattr(model, name)) for name in counts),
        _said(model),
    )


def _all_tokens(model: ReconciledModel) -> Compared:
    """Input and output together; where the export tells neither, the requests."""
    given, made = model.input_tokens, model.output_tokens
    if given.theirs is None and made.theirs is None:
        return model.requests
    theirs, ours = (given.theirs or 0) + (made.theirs or 0), given.ours + made.ours
    return Compared(theirs, ours, theirs - ours, 100 * (theirs - ours) / theirs if theirs else None)


def _money(dollars: float) -> str:
    return exact(nanos_of(dollars)).replace("$", "")


def _count(count: float) -> str:
    return f"{count:,.0f}"


def _signed(text: str) -> str:
    return text if text.startswith("-") or text == "0" else f"+{text}"


def _percent(figure: Compared) -> str:
    return "" if figure.percent is None or not figure.drift else f"{figure.percent:+.2f}%"


def _off(figure: Compared) -> str:
    """By how much a count is off."""
    return _percent(figure) or (_signed(_count(figure.drift)) if figure.drift else "=")


def _said(model: ReconciledModel) -> str:
    if model.agreement == "explained":
        return f"explained: ours is {_money(model.least_usd)} to {_money(model.most_usd)}"
    return "drifts" if model.agreement == "drifts" else ""


def _unmatched(names: Sequence[UnmatchedName]) -> Iterator[Block]:
    if names:
        counts = [name for name in _COUNTS if getattr(names[0], name) is not None]
        costs = ("bill, $",) if names[0].cost_usd is not None else ()
        rows = [Row(_unmatched_cells(each, counts)) for each in names]
        head = ("no model that is known", *costs, *(_COUNTS[name] for name in counts))
        yield Line()
        yield Table(rows, head, frozenset(range(1, len(head))))


def _unmatched_cells(each: UnmatchedName, counts: Sequence[str]) -> tuple[str, ...]:
    costs = () if each.cost_usd is None else (_money(each.cost_usd),)
    return (each.name or "(none is named)", *costs, *(f"{getattr(each, name):,}" for name in counts))


def _notes(found: Reconciliation) -> Iterator[Block]:
    said = {
        "only in the bill": _some(found.only_theirs),
        "only in the ledger": _some(found.only_ours),
        "days only in the bill": _some(found.days_only_theirs),
        "days only in the ledger": _some(found.days_only_ours),
        "not certain": _lost(found.expired_most_usd),
        "the export": "is not whole: it says that there is more" if found.partial else "",
    }
    if any(said.values()):
        yield Line()
        yield facts(said)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def _lost(most_usd: float) -> str:
    return f"up to ${_money(most_usd)} of calls whose process ended before they did" if most_usd else ""


def _end(found: Reconciliation) -> Line:
    return Line("they agree", "good") if found.agrees else Line("they do not agree", "bad")
