"""Markdown tables, and blocks of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

WIDTH = 100


def merged(rows: Iterable[Sequence[str]], column: int = 0) -> list[list[str]]:
    """Rows of a table, with neighbours that differ in this column alone as one."""
    lines: list[list[str]] = []
    for row in rows:
        cells = [*row]
        if lines and all(place == column or cell == cells[place] for place, cell in enumerate(lines[-1])):
            lines[-1][column] += f", {cells[column]}"
        else:
            lines.append(cells)
    return lines


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table. Fields in a row that have one type and one meaning share a line."""
    lines = [head, ["---"] * len(head), *(merged(rows) if head[0] == "field" else rows)]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def json_block(value: Any) -> str:
    """A fenced block of JSON."""
    return f"```json\n{_written(value, 0)}\n```\n"


def _written(value: Any, depth: int) -> str:
    """JSON, with what fits a line in one."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) + 2 * depth <= WIDTH or not isinstance(value, dict | list) or not value:
        return line
    inner = "  " * (depth + 1)
    if isinstance(value, list):
        items = [_written(each, depth + 1) for each in value]
        return f"[\n{inner}" + f",\n{inner}".join(items) + f"\n{'  ' * depth}]"
    items = [f"{json.dumps(name)}: {_written(each, depth + 1)}" for name, each in value.items()]
    return f"{{\n{inner}" + f",\n{inner}".join(_packed(items, WIDTH - 2 * depth)) + f"\n{'  ' * depth}}}"


def _packed(items: list[str], width: int) -> list[str]:
    """Neighbours in one line, as long as they fit; what takes several lines stays alone."""
    lines: list[str] = []
    for each in items:
        fits = lines and "\n" not in lines[-1] + each and len(lines[-1]) + len(each) + 2 <= width
        lines[-1:] = [f"{lines[-1]}, {each}"] if fits else [*lines[-1:], each]
    return lines
