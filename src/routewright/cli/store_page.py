"""What a person is shown of a store: its state, and how long it keeps traces."""

from __future__ import annotations

from pathlib import Path

from routewright.backends.storage.sqlite.upkeep import Check
from routewright.settings import Retention

from .blocks import Block, Line, facts

_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def check_page(path: Path, found: Check) -> list[Block]:
    """The state of a store, and what is wrong with it."""
    named = {
        "store": str(path),
        "version": str(found.version),
        "traces": f"{found.traces:,}",
        "size": _size(found.bytes),
    }
    verdict = Line("damaged: restore a backup", "bad") if found.problems else Line("sound", "good")
    return [facts(named), Line(), *(Line(problem, "bad") for problem in found.problems), verdict]


def retention_page(retention: Retention, removed: int | None) -> list[Block]:
    """How long traces are kept, and how much was removed; None: that was not the question."""
    named = {
        "production": _time(retention.production_days),
        "sandbox": _time(retention.sandbox_days),
        "removed": "" if removed is None else f"{removed:,} traces and snapshots that were past their time",
    }
    return [facts(named)]


def _time(days: float | None) -> str:
    if days is None:
        return "for ever"
    return f"{days:g} day{'' if days == 1 else 's'}"


def _size(count: float) -> str:
    for unit in _UNITS:
        if count < 1000 or unit == _UNITS[-1]:
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
