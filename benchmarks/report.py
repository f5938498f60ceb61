"""The figures of a run as a table, and the conditions they were taken under."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from .load import Load
from .measure import Figure, Unit

Who = Literal[
    "floor",
    "full scan",
    "provider",
    "litellm",
    "pydantic-ai",
    "openai-agents",
    "tiktoken",
    "standardwebhooks",
    "svix",
    "limits",
    "litellm's proxy",
    "Portkey",
    "Switchyard",
    "faiss",
    "usearch",
    "gptcache",
    "routewright",
]
"""``floor`` is the cheapest way, ``full scan`` the plain one; both are hand-written loops. ``provider``: one of
ours, read with no Router in front of it."""
OURS = {"floor", "full scan", "provider", "routewright"}
WHO: tuple[Who, ...] = get_args(Who)
PEER_PACKAGES = (
    "litellm",
    "pydantic-ai-slim",
    "openai-agents",
    "limits",
    "standardwebhooks",
    "svix",
    "faiss-cpu",
    "usearch",
    "gptcache",
    "nemo-switchyard",
    "Portkey",
)
HIGHER_IS_BETTER: tuple[Unit, ...] = ("per s", "per core-s")


class Question(NamedTuple):
    """One row of the table. ``target`` is in words, p50 before p99."""

    what: str
    target: str = ""


class Report:
    """Collects figures."""

    def __init__(self) -> None:
        self._figures: dict[Question, dict[Who, Figure]] = {}
        self._loads: dict[Question, dict[Who, Load]] = {}

    def add(self, question: Question, who: Who, figure: Figure) -> None:
        """Keep a figure."""
        self._figures.setdefault(question, {})[who] = figure

    def add_load(self, question: Question, who: Who, load: Load) -> None:
        """Keep what a server or a store did under load."""
        self._loads.setdefault(question, {})[who] = load

    def load_lines(self) -> list[str]:
        """A Markdown table with a line for everybody who was loaded. Nothing: nobody was."""
        figures = ["calls/s", "p50 / p99 µs", "CPU µs", "per core-second", "× floor"]
        head = ["under load", "who", *figures, "target"]
        rows = [_line(_load_cells(question, who, loads)) for question, loads in self._loads.items() for who in loads]
        return [_line(head), _line(["---"] * len(head)), *rows] if rows else []

    def lines(self) -> list[str]:
        """A Markdown table with a column for everybody who was measured."""
        columns = [who for who in WHO if any(who in row for row in self._figures.values())]
        head = ["what", "unit", *columns, "× floor", "target"]
        rows = [self._row(question, columns) for question in self._figures]
        return [_line(head), _line(["---"] * len(head)), *map(_line, rows)] if rows else []

    def page_lines(self) -> list[str]:
        """The Markdown table of ``docs/explanation/performance.md``: what has an aim, beside the floor and the best
        peer. Of what was loaded, how many calls a core-second takes."""
        rows = [["what", "unit", "floor", "best peer", "routewright", "× floor", "aim"], ["---"] * 7]
        measured = {question: figures for question, figures in self._figures.items() if question.target}
        for question, loads in self._loads.items():
            if question.target:
                measured[question] = {who: Figure("per core-s", load.per_core_s) for who, load in loads.items()}
        rows += [_page_row(question, figures) for question, figures in measured.items()]
        return [_line(row) for row in rows]

    def _row(self, question: Question, columns: list[Who]) -> list[str]:
        figures = self._figures[question]
        cells = [_cell(figures.get(who)) for who in columns]
        unit = next(iter(figures.values())).unit
        return [question.what, unit, *cells, _ratio(figures), question.target]


def _page_row(question: Question, figures: dict[Who, Figure]) -> list[str]:
    unit = next(iter(figures.values())).unit
    better = max if unit in HIGHER_IS_BETTER else min
    best = better((who for who in figures if who not in OURS), key=lambda who: figures[who].p50, default=None)
    cells = {who: _cell(figure._replace(mean=None)) for who, figure in figures.items()}
    floor = cells.get("floor") or cells.get("full scan", "")
    peer = "" if best is None else f"{best} {cells[best]}"
    return [question.what, unit, floor, peer, cells.get("routewright", ""), _ratio(figures), question.target]


def write_page(page: Path, conditions: list[str], table: list[str]) -> None:
    """Replace what an earlier run measured."""
    before, _, rest = page.read_text("utf-8").partition("<!-- measured -->\n")
    measured = "\n".join(["```text", *conditions, "```", "", *table, ""])
    page.write_text(f"{before}<!-- measured -->\n{measured}<!-- end -->{rest.partition('<!-- end -->')[2]}", "utf-8")


def conditions(*, use_uvloop: bool, brief: bool, peers: Path | None) -> list[str]:
    """What has to be known to compare two runs. ``peers``: the folder with their environments, where they are
    measured."""
    loop = f"uvloop {version('uvloop')}" if use_uvloop else "asyncio's own"
    if not use_uvloop and find_spec("uvloop"):
        loop += " (uvloop is installed: --uvloop)"
    load = " ".join(f"{average:.2f}" for average in os.getloadavg())
    return [
        f"date     {datetime.now(UTC):%Y-%m-%d}",
        f"python   {platform.python_implementation()} {platform.python_version()}, {sys.platform}",
        f"cpu      {_cpu()}, {len(os.sched_getaffinity(0))} of {os.cpu_count()} cores",
        f"loop     {loop} under {asyncio.__name__}",
        f"load     {load} at the end; niceness {os.nice(0)}",
        f"effort   {'brief: it runs, and these figures mean nothing' if brief else 'full'}",
        f"versions {', '.join(f'{name} {version(name)}' for name in ('routewright', 'msgspec', 'anyio', 'numpy'))}",
        *([] if peers is None else [f"peers    {', '.join(peer_versions(peers))}"]),
    ]


def peer_versions(folder: Path) -> list[str]:
    """The names and versions of the peers whose environments are there."""
    paths = [str(path) for path in folder.glob("*/lib/python*/site-packages")]
    installed = {package.name: package.version for package in distributions(path=paths)}
    gateway = folder / "portkey/node_modules/@portkey-ai/gateway/package.json"
    if gateway.exists():
        installed["Portkey"] = json.loads(gateway.read_text("utf-8"))["version"]
    return [f"{name} {installed[name]}" for name in PEER_PACKAGES if name in installed]


def _cpu() -> str:
    known = Path("/proc/cpuinfo")
    if known.exists():
        for line in known.read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _cell(figure: Figure | None) -> str:
    if figure is None:
        return ""
    cell = _number(figure.p50)
    if figure.p99 is not None:
        cell += f" / {_number(figure.p99)}"
    return cell if figure.mean is None else f"{cell} ({_number(figure.mean)})"


def _load_cells(question: Question, who: Who, loads: dict[Who, Load]) -> list[str]:
    load, floor = loads[who], loads.get("floor")
    speed = [f"{load.per_s:,.0f}", f"{_number(load.p50_us)} / {_number(load.p99_us)}"]
    cost = [_number(load.cpu_us), f"{load.per_core_s:,.0f}"]
    ratio = "" if floor is None or who == "floor" else f"{load.cpu_us / floor.cpu_us:.1f}"
    target = question.target if who == "routewright" else ""
    return [question.what, who, *speed, *cost, ratio, target]


def _ratio(figures: dict[Who, Figure]) -> str:
    ours, floor = figures.get("routewright"), figures.get("floor") or figures.get("full scan")
    if ours is None or floor is None:
        return ""
    ratio = ours.p50 / floor.p50
    return f"{ratio:.1f}" if ratio >= 2 else f"{ratio:.2f}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
