"""What a page consists of: lines and tables. How they are painted is another matter."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from routewright._core.account import without_keys

from .bars import Bar, drawn

Style = Literal["plain", "title", "good", "bad", "dim"]
Cell = str | Bar


class Line(NamedTuple):
    """One line, as long as it is: what is cut into several can be neither searched for nor copied."""

    text: str = ""
    style: Style = "plain"


class Row(NamedTuple):
    """One line of a table."""

    cells: tuple[Cell, ...]
    style: Style = "plain"


class Table(NamedTuple):
    """Rows under a head that may be empty. Bars share what room the other columns leave."""

    rows: list[Row]
    head: tuple[str, ...] = ()
    right: frozenset[int] = frozenset()
    """Columns that are aligned to the right."""
    prose: bool = False
    """The last column is text that may wrap; else a row is a line, however long."""


Block = Line | Table

GAP = 2
"""Spaces between columns."""
LEAST_PROSE = 20
"""Characters that a column of prose is given in any case."""
_MOST_PROSE = 36
"""Beyond these it wraps, rather than that bars are shorter."""
_LEAST_BAR, _MOST_BAR = 12, 40
DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Characters that say in which direction others are written: a text may read as another one by them."""
_UNSEEN = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0), *DIRECTIONS])
_UNSEEN |= {ord("\t"): "\t", ord("\n"): "\n"}


def facts(named: Mapping[str, str]) -> Table:
    """A table of names and what is to be said of each; what is empty is left out."""
    return Table([Row((name, value)) for name, value in named.items() if value], prose=True)


def keyless(block: Block) -> Block:
    """The same without API keys, one of which may have been given in a wrong place."""
    if isinstance(block, Line):
        return block._replace(text=without_keys(block.text))
    return block._replace(rows=[row._replace(cells=tuple(map(_keyless, row.cells))) for row in block.rows])


def _keyless(cell: Cell) -> Cell:
    return without_keys(cell) if isinstance(cell, str) else cell


def printable(text: str) -> str:
    """Leave out control characters: on a terminal they could move, hide, turn round or forge what stands there."""
    return text.translate(_UNSEEN)


def plain(blocks: Iterable[Block], width: int) -> str:
    """Paint blocks as text, with nothing but spaces between the columns."""
    painted = (_table(block, width) if isinstance(block, Table) else block.text for block in blocks)
    return "".join(f"{printable(text)}\n" for text in painted)


def texts(table: Table, width: int) -> list[tuple[str, ...]]:
    """The rows as text, each cell a line of its own: one that could end a line could forge the next."""
    size = _bar_width(table, width)
    return [tuple(drawn(c, size) if isinstance(c, Bar) else _one_line(c) for c in row.cells) for row in table.rows]


def least_width(table: Table, rows: Sequence[tuple[str, ...]]) -> int:
    """How many characters a row takes at least. Ids that are cut in two cannot be copied, so only prose wraps."""
    widths = _widths([table.head, *rows] if table.head else rows)
    if table.prose:
        widths[-1] = min(widths[-1], LEAST_PROSE)
    return sum(width + GAP for width in widths)


def _one_line(text: str) -> str:
    return printable(" ".join(text.splitlines()).replace("\t", " "))


def _bar_width(table: Table, width: int) -> int:
    """What bars are given of a width."""
    bars = {place for row in table.rows for place, cell in enumerate(row.cells) if isinstance(cell, Bar)}
    rows = [tuple("" if isinstance(cell, Bar) else _one_line(cell) for cell in row.cells) for row in table.rows]
    widths = _widths([table.head, *rows] if table.head else rows)
    if table.prose:
        widths[-1] = min(widths[-1], _MOST_PROSE)
    taken = sum(each + GAP for place, each in enumerate(widths) if place not in bars) + GAP * len(bars)
    return min(max((width - taken + GAP) // max(len(bars), 1), _LEAST_BAR), _MOST_BAR)


def _widths(rows: Sequence[tuple[str, ...]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _table(table: Table, width: int) -> str:
    rows = texts(table, width)
    rows = [table.head, *rows] if table.head else rows
    widths = _widths(rows)
    aligned = [_aligned(cells, widths, table.right) for cells in rows]
    if not table.prose:
        return "\n".join("".join(cells).rstrip() for cells in aligned)
    return "\n".join(_wrapped("".join(cells[:-1]), cells[-1].rstrip(), width) for cells in aligned)


def _aligned(cells: tuple[str, ...], widths: list[int], right: frozenset[int]) -> list[str]:
    sized = zip(cells, widths, strict=True)
    return [f"{c.rjust(size) if place in right else c.ljust(size)}{' ' * GAP}" for place, (c, size) in enumerate(sized)]


def _wrapped(start: str, text: str, width: int) -> str:
    room = max(width - len(start), LEAST_PROSE)
    lines = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)
    return f"\n{' ' * len(start)}".join([f"{start}{lines[0] if lines else ''}".rstrip(), *lines[1:]])
