"""What providers say was used, as files: JSON or CSV, whichever it is by its content."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

from ._core.usage_export import read_export
from .document import json_document, path_of, text_of
from .errors import Problem, ValidationFailed
from .wire import UsageExport

_SEPARATORS = ",;\t"
_ROW = re.compile(r"\[(\d+)\]\.?(.*)")


def read_usage_export(given: str | Path) -> UsageExport:
    """Read a provider's usage export: a page of OpenAI's or Anthropic's usage or cost API, or several in an array;
    Anthropic's or OpenRouter's CSV; or a table with the columns ``date, model, requests, input_tokens, output_tokens,
    cached_tokens, cost_usd``, of which some may be missing.

    Raises ``ValidationFailed`` naming file, line and key.
    """
    path = path_of(given)
    text = text_of(path)
    if text.lstrip()[:1] in ("{", "["):
        document = json_document(path, text)
        with document.naming():
            return read_export(document.content)
    return _read_table(path, text)


def _read_table(path: Path, text: str) -> UsageExport:
    rows = list(_rows(path, text))
    try:
        return read_export([fields for _, fields in rows])
    except ValidationFailed as error:
        found = error.problems
    raise ValidationFailed.of(*(_placed(path, [line for line, _ in rows], each) for each in found))


def _rows(path: Path, text: str) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a table below its head, each with its line."""
    head = text.partition("\n")[0]
    reader = csv.reader(StringIO(text, newline=""), strict=True, delimiter=max(_SEPARATORS, key=head.count))
    try:
        keys = [key.strip() for key in next(reader, [])]
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(keys):
                problem = f"has {len(cells)} cells, where the head has {len(keys)}"
                raise ValidationFailed.of(Problem(f"{path}:{reader.line_num}", problem, "export it anew"))
            yield reader.line_num, dict(zip(keys, (cell.strip() for cell in cells), strict=True))
    except csv.Error as error:
        found = Problem(f"{path}:{reader.line_num}", f"is neither JSON nor CSV: {error}", "give it as it was exported")
        raise ValidationFailed.of(found) from error


def _placed(path: Path, lines: list[int], found: Problem) -> Problem:
    """With the line of the row in the place of its number."""
    row = _ROW.fullmatch(found.path)
    if row is None:
        return found._replace(path=f"{path}:1: {found.path}" if found.path else f"{path}:1")
    line = f"{path}:{lines[int(row[1])]}"
    return found._replace(path=f"{line}: {row[2]}" if row[2] else line)
