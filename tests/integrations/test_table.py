"""The page on frameworks names all of them, and its table says what their tests prove."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.frameworks import ROOT, list_tests

from .upstreams import ROWS

PAGE = (ROOT / "docs/how-to/frameworks.md").read_text("utf-8")
TABLES = [block.splitlines() for block in PAGE.split("\n\n") if block.startswith("|")]
FILES = {
    "Google ADK": "google_adk_suite.py",
    "LangChain": "test_langchain.py",
    "OpenAI Agents": "test_openai_agents.py",
    "pydantic-ai": "test_pydantic_ai.py",
}


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


@pytest.mark.parametrize("framework", FILES)
def test_a_framework_has_a_test_for_each_row(framework: str) -> None:
    tests = list_tests(Path(__file__).with_name(FILES[framework]))
    assert not [row for row in ROWS if f"test_{row}" not in tests]


def test_the_table_has_these_frameworks_and_rows() -> None:
    head, _, *rows = next(table for table in TABLES if "| plain |" in table[2])
    assert cells(head) == ["", *FILES]
    assert [cells(row) for row in rows] == [[row.replace("_", " "), *["yes"] * len(FILES)] for row in ROWS]


def test_the_page_names_every_framework_that_has_an_extra_and_a_module() -> None:
    pages = re.findall(r"^\| \[.+\]\(([\w-]+)\.md\) \| `([\w-]+)` \|", PAGE, re.MULTILINE)
    modules = {path.stem for path in (ROOT / "src/routewright/integrations").glob("*.py")}
    others = {"__init__", "options", "otel", "sdk", "semconv"}
    assert {extra.replace("-", "_") for _, extra in pages} == modules - others
    assert [page for page, _ in pages] == [extra for _, extra in pages]
