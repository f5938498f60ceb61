"""Who stood in a decision, as HTML: the candidates with the four terms of their scores as bars, and the rejections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .decision import Candidate, Reason
from .figures import usd_short
from .html import Html, cell, chip, column, dim, element, heading, joined, lines, more, percent, strong, table

CANDIDATES_SHOWN = 6
REASONS_SHOWN = 20
_HEAD = ("score", "quality", "cost", "latency", "stability")
_LEGEND = "Bar and number below a figure: its term of the score, 0 to 1, more is better."


def ranking(candidates: Sequence[Candidate], roles: Mapping[str, str]) -> Html:
    """The best few, best first. ``roles`` says what became of a model, by its id."""
    if not candidates:
        return Html()
    head = [column("model"), *(column(name, class_="rw-number") for name in _HEAD)]
    rows = [_row(each, roles.get(each.model, "")) for each in candidates[:CANDIDATES_SHOWN]]
    notes = (more(len(candidates) - CANDIDATES_SHOWN, "model", "that fit"), dim(_LEGEND))
    return joined([heading("Best candidates"), table("ranking", head, rows), *lines(*notes)])


def rejections(counts: Mapping[Reason, int] | Mapping[str, int]) -> Html:
    """How many models did not fit, and what kept them out."""
    chips = [chip(f"{reason} {count:,}") for reason, count in counts.items()]
    said = joined(chips[:REASONS_SHOWN], " ") or dim("none")
    return joined([heading(f"Rejected: {sum(counts.values()):,}"), *lines(said)])


def _row(candidate: Candidate, role: str) -> Html:
    cost = "unknown" if candidate.cost_usd is None else usd_short(candidate.cost_usd)
    late = " late" if candidate.late else ""
    figures = (
        f"{candidate.quality:.2f}",
        cost,
        f"{candidate.latency_s:.1f} s{late}",
        f"{candidate.stability:.2f}",
    )
    model = strong(candidate.model) if role.startswith("chosen") else candidate.model
    cells = [_figure(figure, term) for figure, term in zip(figures, candidate.terms, strict=True)]
    score = cell(strong(f"{candidate.score:.3f}"), class_="rw-number")
    return element("tr", cell(element("div", model), element("div", dim(role))), score, *cells)


def _figure(figure: str, term: float) -> Html:
    fill = element("span", class_="rw-fill", style=f"width:{percent(term, 1):.1f}%")
    bar = element("span", fill, class_="rw-term", aria_hidden="true")
    return cell(element("div", figure), element("div", bar, dim(f"{term:.2f}")), class_="rw-number")
