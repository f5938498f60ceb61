"""The documentation as a site: it builds without a warning, leads nowhere out of itself, and lists its pages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from docs._blocks import ROOT, pages

pytest.importorskip("mkdocs", reason="the group docs is not installed")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "-f", "docs/mkdocs.yml", "--strict", "-d", str(folder)]
    result = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return folder


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)="([^"]*)"', page.read_text("utf-8"))
        assert not [url for url in loaded if re.match(r"\w+:|//", url)], page


def test_llms_txt_lists_every_page_with_a_sentence(site: Path) -> None:
    text = (site / "llms.txt").read_text("utf-8")
    listed = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): \S", text, re.MULTILINE)
    assert len(listed) == len(set(listed)) == len(pages())
    assert all((site / page).is_file() for page in listed)
    assert re.match(r"# \S+\n\n> \S", text)
