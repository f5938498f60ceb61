"""Paints blocks with rich, for terminals. Text is never read as markup: every cell is a ``Text``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from .blocks import GAP, Block, Line, Style, Table, least_width, printable, texts

_STYLES: dict[Style, str] = {"plain": "", "title": "bold", "good": "green", "bad": "red", "dim": "dim"}


def paint(blocks: Iterable[Block], stream: TextIO, width: int, stand_ins: Mapping[int, str]) -> None:
    """Write blocks to a terminal of so many columns. ``stand_ins``: what to write for what it has no characters for."""
    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    for block in blocks:
        if isinstance(block, Line):
            console.width = width
            console.print(Text(printable(block.text).translate(stand_ins), style=_STYLES[block.style]), soft_wrap=True)
            continue
        rows = texts(block, width)
        console.width = max(width, least_width(block, rows))
        console.print(_grid(block, [tuple(cell.translate(stand_ins) for cell in row) for row in rows]))


def _grid(table: Table, rows: Sequence[tuple[str, ...]]) -> Grid:
    grid = Grid(box=None, pad_edge=False, padding=(0, GAP, 0, 0), show_header=bool(table.head), header_style="dim")
    columns = len(table.rows[0].cells)
    for place, head in enumerate(table.head or ("",) * columns):
        label = "" if table.head or place else "dim"
        wraps = table.prose and place == columns - 1
        grid.add_column(
            head, justify="right" if place in table.right else "left", no_wrap=not wraps, overflow="fold", style=label
        )  # fmt: skip
    for row, cells in zip(table.rows, rows, strict=True):
        grid.add_row(*map(Text, cells), style=_STYLES[row.style])
    return grid
