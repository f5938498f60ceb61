"""Paints blocks with rich, for terminals. Text is never read as markup: every cell is a ``Text``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TextIO

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from .blocks import GAP, Block, Line, Style, Table, printable, width_of

_STYLES: dict[Style, str] = {"plain": "", "title": "bold", "good": "green", "bad": "red", "dim": "dim"}


def paint(blocks: Iterable[Block], stream: TextIO) -> None:
    """Write blocks to a terminal, as wide as it is."""
    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    width = console.width
    for block in blocks:
        console.width = max(width, _least_width(block))
        console.print(_line(block) if isinstance(block, Line) else _grid(block))


def _least_width(block: Block) -> int:
    """A row of a plain table is a line, since ids that are cut in two cannot be copied."""
    return 0 if isinstance(block, Line) or block.prose else width_of(block)


def _line(line: Line) -> Text:
    return Text(printable(line.text), style=_STYLES[line.style])


def _grid(table: Table) -> Grid:
    grid = Grid(box=None, pad_edge=False, padding=(0, GAP, 0, 0), show_header=bool(table.head), header_style="dim")
    for place, head in enumerate(table.head or ("",) * len(table.rows[0].cells)):
        number = place in table.right
        label = "" if table.head or place else "dim"
        grid.add_column(
            head, justify="right" if number else "left", no_wrap=number, overflow="fold", style=label
        )  # fmt: skip
    for row in table.rows:
        grid.add_row(*(Text(printable(cell)) for cell in row.cells), style=_STYLES[row.style])
    return grid
