"""Files of the tests: those that run differently are there, contracts stand alone, and names differ."""

from __future__ import annotations

import re
from collections import Counter

from tests.tables import table

from .conftest import REAL_TIME, ROOT, SEAMS, SERVERS


@table("pattern", [*SEAMS, *SERVERS, *REAL_TIME])
def test_every_file_that_is_run_differently_is_there(pattern: str) -> None:
    assert [*ROOT.glob(pattern)], "it was renamed: change tests/conftest.py"


def test_contracts_can_be_copied_without_the_other_tests() -> None:
    for path in ROOT.glob("contracts/**/*.py"):
        assert not re.search(r"^\s*(from|import) (tests\b|\.\.)", path.read_text("utf-8"), re.MULTILINE), path


def test_names_of_one_folder_differ_by_more_than_their_number() -> None:
    for folder in {path.parent for path in ROOT.rglob("*.py")}:
        paths = [path for path in folder.iterdir() if path.is_dir() or path.suffix == ".py"]
        names = {path.stem.removeprefix("test_") for path in paths}
        nouns = Counter(name.removesuffix("s") for name in names)
        assert [noun for noun, count in nouns.items() if count > 1] == [], folder
