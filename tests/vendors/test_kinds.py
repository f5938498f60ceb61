"""The kinds of oddities that this folder proves, each by rows named after it and its source."""

from __future__ import annotations

import re
from pathlib import Path

KINDS = {
    "A": "a finish reason that is not the last word",
    "B": "usage of zeros",
    "C": "tool arguments that are not a JSON object",
    "D": "a character cut in two",
    "E": "numbering of streamed tool calls",
    "F": "schemas that leave out what a vendor wants",
    "G": "names and lists of MCP servers",
    "H": "ids of tool calls that a vendor refuses",
    "I": "errors that are easily read wrong",
    "J": "a last event without its blank line",
    "K": "blocks that follow from fields of a vendor",
    "L": "media types with other names or parameters",
    "M": "thoughts before the JSON",
    "N": "tools of coding agents",
    "O": "what a vendor wrote about a request",
    "P": "the Responses API as an upstream",
}
LEAST = 5
"""Rows of a kind."""


def test_every_kind_has_rows_of_its_own() -> None:
    """A row's id is the letter of its kind, and where it comes from."""
    tables = [path.read_text("utf-8") for path in Path(__file__).parent.glob("test_*.py") if path.stem != "test_kinds"]
    rows = [row for table in tables for row in re.findall(r"[\"']([A-P]) \w", table)]
    assert not {kind: rows.count(kind) for kind in KINDS if rows.count(kind) < LEAST}
