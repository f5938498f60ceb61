"""What a page consists of: lines and tables. How they are painted is another matter."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Literal, NamedTuple

Style = Literal["plain", "title", "good", "bad", "dim"]


class Line(NamedTuple):
    """One line, as long as it is: what is cut into several can be neither searched for nor copied."""

    text: str = ""
    style: Style = "plain"


class Row(NamedTuple):
    """One line of a table."""

    cells: tuple[str, ...]
    style: Style = "plain"


class Table(NamedTuple):
    """Rows under a head that may be empty."""

    rows: list[Row]
    head: tuple[str, ...] = ()
    right: frozenset[int] = frozenset()
    """Columns that are aligned to the right."""
    prose: bool = False
    """The last column is text that may wrap; else a row is a line, however long."""


Block = Line | Table

GAP = 2
"""Spaces between columns."""
_UNSEEN = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)])
_UNSEEN |= {ord("\t"): "\t", ord("\n"): "\n"}


def printable(text: str) -> str:
    """Leave out control characters: on a terminal they could move, hide or forge what stands there."""
    return text.translate(_UNSEEN)


def plain(blocks: Iterable[Block], width: int) -> str:
    """Paint blocks as text, with nothing but spaces between the columns."""
    painted = (_table(block, width) if isinstance(block, Table) else block.text for block in blocks)
    return "".join(f"{printable(text)}\n" for text in painted)


def width_of(table: Table) -> int:
    """How many characters a row takes."""
    return sum(width + GAP for width in _widths(_rows(table)))


def _rows(table: Table) -> list[tuple[str, ...]]:
    rows = [row.cells for row in table.rows]
    return [table.head, *rows] if table.head else rows


def _widths(rows: list[tuple[str, ...]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _table(table: Table, width: int) -> str:
    rows = _rows(table)
    widths = _widths(rows)
    aligned = [_aligned(cells, widths, table.right) for cells in rows]
    if not table.prose:
        return "\n".join("".join(cells).rstrip() for cells in aligned)
    return "\n".join(_wrapped("".join(cells[:-1]), cells[-1].rstrip(), width) for cells in aligned)


def _aligned(cells: tuple[str, ...], widths: list[int], right: frozenset[int]) -> list[str]:
    sized = zip(cells, widths, strict=True)
    return [f"{c.rjust(size) if place in right else c.ljust(size)}{' ' * GAP}" for place, (c, size) in enumerate(sized)]


def _wrapped(start: str, text: str, width: int) -> str:
    lines = textwrap.wrap(text, max(width - len(start), 20), break_long_words=False, break_on_hyphens=False)
    return f"\n{' ' * len(start)}".join([f"{start}{lines[0] if lines else ''}".rstrip(), *lines[1:]])
