"""What a person is shown of a store: its state, and how long it keeps traces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from routewright.backends.storage.sqlite.upkeep import Check
from routewright.root_secret import VARIABLE as SECRET
from routewright.settings import Retention

from .blocks import Block, Line, facts

_UNITS = ("bytes", "kB", "MB", "GB", "TB")


class Keys(NamedTuple):
    """Those of a store that were not revoked."""

    live: int
    of_another_secret: int
    """So many of them are refused."""


def check_page(path: Path, found: Check, keys: Keys) -> list[Block]:
    """The state of a store, and what is wrong with it."""
    named = {
        "store": str(path),
        "version": str(found.version),
        "traces": f"{found.traces:,}",
        "keys": f"{keys.live:,} live" if keys.live else "",
        "size": _size(found.bytes),
    }
    verdict = Line("damaged: restore a backup", "bad") if found.problems else Line("sound", "good")
    problems = [*found.problems, *_refused(keys)]
    return [facts(named), Line(), *(Line(problem, "bad") for problem in problems), verdict]


def retention_page(retention: Retention, removed: int | None) -> list[Block]:
    """How long traces are kept, and how much was removed; None: that was not the question."""
    named = {
        "production": _time(retention.production_days),
        "sandbox": _time(retention.sandbox_days),
        "removed": "" if removed is None else f"{removed:,} traces and snapshots that were past their time",
    }
    return [facts(named)]


def _refused(keys: Keys) -> Iterator[str]:
    if keys.of_another_secret:
        yield (
            f"{keys.of_another_secret:,} of {keys.live:,} live keys were made with another root secret than is known "
            f"here, and are refused: put the file of its backup back, or set {SECRET}"
        )


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
