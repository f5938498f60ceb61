"""The documentation is true: its blocks run, its output is real, its tables follow from the code, its links lead on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs._blocks import ROOT, pages, run
from docs._generate import with_parts

PAGES = [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in pages()]

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?!https?://|mailto:)([^)\s]*)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs_and_prints_what_the_page_shows(page: Path) -> None:
    for found in run(page):
        assert found.agrees, f"the page shows\n{found.shown}\nbut this was printed (python docs/_generate.py)\n{found.printed}"


@pytest.mark.parametrize("page", PAGES)
def test_generated_parts_are_what_the_code_says(page: Path) -> None:
    text = page.read_text("utf-8")
    assert with_parts(text) == text, "run python docs/_generate.py"


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in _LINK.findall(_FENCED.sub("", page.read_text("utf-8"))):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} leads nowhere"
        assert not anchor or anchor in _anchors(target), f"{link}: no such heading"


def _anchors(page: Path) -> set[str]:
    headings = _HEADING.findall(_FENCED.sub("", page.read_text("utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
