"""Writes a decision as a table that a person reads: chosen, runner-up, the chain, who was rejected and why."""

from __future__ import annotations

from routewright.wire import Candidate
from routewright.wire.figures import usd_short

from .decision import Decision

SHOWN = 6
"""Candidates in the table."""
NAMED = 3
"""Models named for each reason of rejection."""

_HEAD = ("", "model", "score", "quality", "cost", "latency", "stability")


def explain(decision: Decision) -> str:
    """The table of one decision, some twenty lines of plain text."""
    lines = [decision.reason, ""]
    shown = decision.candidates[:SHOWN]
    rows = [_HEAD, *(_row(decision, candidate) for candidate in shown)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines += ["  ".join(_aligned(row, widths)).rstrip() for row in rows]
    further = len(decision.candidates) - len(shown)
    if further > 0:
        lines.append(f"  and {further} more that fit")
    lines += ["", f"fallbacks: {', then '.join(decision.chain) or 'none'}"]
    if decision.output_cap is not None:
        after = "" if decision.fallback_affordable else "; the budget pays for no fallback after it"
        lines.append(f"output cap: {decision.output_cap} tokens{after}")
    lines += _rejections(decision)
    return "\n".join(lines)


def _row(decision: Decision, candidate: Candidate) -> tuple[str, ...]:
    if candidate.model == decision.model:
        role = "chosen"
    elif candidate == decision.front[1]:
        role = "runner-up"
    elif candidate.model in decision.chain:
        role = f"fallback {decision.chain.index(candidate.model) + 1}"
    else:
        role = ""
    cost = "unknown" if candidate.cost_usd is None else usd_short(candidate.cost_usd)
    late = " late" if candidate.late else ""
    return (
        role,
        candidate.model,
        f"{candidate.score:.3f}",
        f"{candidate.quality:.2f}",
        cost,
        f"{candidate.latency_s:.1f} s{late}",
        f"{candidate.stability:.2f}",
    )


def _aligned(row: tuple[str, ...], widths: list[int]) -> list[str]:
    left = [row[column].ljust(widths[column]) for column in (0, 1)]
    return left + [row[column].rjust(widths[column]) for column in range(2, len(row))]


def _rejections(decision: Decision) -> list[str]:
    if not decision.rejected:
        return ["rejected: none"]
    by_reason: dict[str, list[str]] = {}
    for rejection in decision.rejected:
        by_reason.setdefault(rejection.reason, []).append(rejection.model)
    lines = [f"rejected: {len(decision.rejected)}"]
    for reason in decision.rejected_counts:
        models = by_reason[reason]
        more = f" and {len(models) - NAMED} more" if len(models) > NAMED else ""
        lines.append(f"  {reason}: {', '.join(models[:NAMED])}{more}")
    return lines
