"""The page on frameworks has a section for each of them, and their tests prove the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.frameworks import ROOT, list_tests

from .upstreams import ROWS

PAGE = (ROOT / "docs/how-to/frameworks.md").read_text("utf-8")
FILES = {
    "Google ADK": "google_adk_suite.py",
    "LangChain": "test_langchain.py",
    "OpenAI Agents": "test_openai_agents.py",
    "pydantic-ai": "test_pydantic_ai.py",
}


@pytest.mark.parametrize("framework", FILES)
def test_a_framework_has_a_test_for_each_row(framework: str) -> None:
    tests = list_tests(Path(__file__).with_name(FILES[framework]))
    assert not [row for row in ROWS if f"test_{row}" not in tests]


def test_the_page_names_every_framework_that_has_an_extra_and_a_module() -> None:
    rows = re.findall(r"^\| \[.+\]\(#([\w-]+)\) \| `([\w-]+)` \|", PAGE, re.MULTILINE)
    modules = {path.stem for path in (ROOT / "src/routewright/integrations").glob("*.py")}
    others = {"__init__", "options", "otel", "sdk", "semconv"}
    assert {extra.replace("-", "_") for _, extra in rows} == modules - others
    assert [section for section, _ in rows] == [extra for _, extra in rows]
