"""The table of the models that a decision chose among."""

from __future__ import annotations

from collections.abc import Sequence

from routewright.wire import Candidate

from .blocks import Row, Table
from .figures import aligned

_HEAD = ("", "model", "score", "quality", "est. cost", "est. time", "stable")


def candidate_table(shown: Sequence[Candidate], *, chosen: str, served: str | None = None, further: int = 0) -> Table:
    """Candidates, best first. ``served``: who answered, if it was not the chosen one; ``further``: how many more."""
    costs = aligned([candidate.cost_usd for candidate in shown])
    roles = [_role(place, candidate.model, chosen, served) for place, candidate in enumerate(shown)]
    rows = [_row(*each) for each in zip(roles, shown, costs, strict=True)]
    if further:
        rows.append(Row(("", f"and {further} more", "", "", "", "", ""), "dim"))
    return Table(rows, _HEAD, frozenset({2, 3, 4, 5, 6}))


def _role(place: int, model: str, chosen: str, served: str | None) -> str:
    if model == chosen:
        return "chosen"
    if model == served:
        return "served"
    return "runner-up" if place == 1 else ""


def _row(role: str, candidate: Candidate, cost: str) -> Row:
    cells = (
        role,
        candidate.model,
        f"{candidate.score:.3f}",
        f"{candidate.quality:.2f}",
        cost if candidate.cost_usd is None else f"${cost}",
        f"{candidate.latency_s:.1f} s{' late' if candidate.late else ''}",
        f"{candidate.stability:.2f}",
    )
    return Row(cells, "good" if role == "chosen" else "plain")
