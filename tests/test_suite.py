"""What the suite says of itself: the files that it treats differently are there, and contracts stand alone."""

from __future__ import annotations

import re

import pytest

from .conftest import REAL_TIME, ROOT, SEAMS


@pytest.mark.parametrize("pattern", [*SEAMS, *REAL_TIME])
def test_every_file_that_is_run_differently_is_there(pattern: str) -> None:
    assert [*ROOT.glob(pattern)], "it was renamed: change tests/conftest.py"


def test_contracts_can_be_copied_without_the_other_tests() -> None:
    for path in ROOT.glob("contracts/**/*.py"):
        assert not re.search(r"^\s*(from|import) (tests\b|\.\.)", path.read_text("utf-8"), re.MULTILINE), path
