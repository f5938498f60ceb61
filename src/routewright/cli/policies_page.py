"""What a person is shown of a check of policies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from routewright._core.check import PolicyCheck

from .blocks import Block, Line, Row, Style, Table
from .figures import dollars

_HEAD = ("policy", "served by", "models that fit", "expected", "at most", "if a provider is lost")


def check_page(found: Sequence[PolicyCheck]) -> list[Block]:
    """One line a policy, and below what to know of some of them."""
    rows = [Row(_cells(each), _style(each)) for each in found]
    notes = [Line(note) for each in found for note in _notes(each)]
    return [Table(rows, _HEAD, frozenset({2, 3, 4})), *([Line(), *notes] if notes else [])]


def _cells(check: PolicyCheck) -> tuple[str, ...]:
    fits = f"{check.fitting} of {check.allowed}"
    if check.model is None:
        return (check.policy, "nobody", fits, "", "", "")
    return (check.policy, check.model, fits, _usd(check.estimated_cost_usd), _usd(check.worst_cost_usd), _loss(check))


def _loss(check: PolicyCheck) -> str:
    if check.breaks_without:
        return f"breaks without {', '.join(check.breaks_without)}"
    first = next((loss for loss in check.losses if loss.model != check.model), None)
    return "nothing changes" if first is None else f"without {first.provider}: {first.model}"


def _style(check: PolicyCheck) -> Style:
    return "plain" if check.servable and not check.breaks_without else "bad"


def _notes(check: PolicyCheck) -> Iterator[str]:
    if check.problem is not None:
        yield f"{check.policy}: {check.problem}"
    if not check.fallback_affordable:
        yield f"{check.policy}: the budget pays for no fallback after {check.model}"
    for end in check.ends:
        yield f"{check.policy}: {end.model} is served until {end.deprecated_at[:10]}"


def _usd(usd: float | None) -> str:
    return "unknown" if usd is None else dollars(usd)
