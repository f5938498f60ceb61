"""What the suite says of itself: the files that it treats differently are there."""

from __future__ import annotations

import pytest

from .conftest import REAL_TIME, ROOT, SEAMS


@pytest.mark.parametrize("pattern", [*SEAMS, *REAL_TIME])
def test_every_file_that_is_run_differently_is_there(pattern: str) -> None:
    assert [*ROOT.glob(pattern)], "it was renamed: change tests/conftest.py"
