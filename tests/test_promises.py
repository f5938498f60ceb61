"""``docs/contributing.md`` names a proof that runs for each promise."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.tables import table

TESTS = Path(__file__).parent
SRC = TESTS.parent / "src" / "routewright"
PAGE = TESTS.parent / "docs" / "contributing.md"
PROMISES = [f"P{number}" for number in range(1, 17)]
SECTIONS = (
    "1 2.1 2.2 2.3 2.4 2.5 2.6 2.7 2.8 2.9 2.10 3 4.1 4.2 4.3 4.4 4.5 4.6 4.7 4.8 5 6.1 6.2 6.3 6.4 6.5 6.6 7 8 9"
).split()
MOST_PROOFS = 4
"""Of one row: a reader opens no more."""

_ROW = re.compile(r"^\| (P\d+) \| .+ \| (.+) \|$", re.MULTILINE)
_PROOF = re.compile(r"`([\w/]+\.py)::(test_\w+)`")
_TEST = re.compile(r"\btest_\w+(?!\w|\.py|/)")
_FILE = re.compile(r"\btests/[\w/]+\.py")
_PROMISE = re.compile(r"\bP\d+(?=:)")
_SECTION = re.compile(r"\bspec (\d+(?:\.\d+)?)")


class Row(NamedTuple):
    """A promise, and the cell that names its proofs."""

    name: str
    cell: str


ROWS = [Row(*cells) for cells in _ROW.findall(PAGE.read_text("utf-8"))]


@cache
def functions_of(path: Path) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions that pytest collects from a file."""
    tree = ast.parse(path.read_text("utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name.startswith("Test")]
    nodes = [node for body in (tree.body, *(node.body for node in classes)) for node in body]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {function.name: function for function in functions if function.name.startswith("test_")}


def comments() -> Iterator[tuple[str, str]]:
    """All comments of the source, each with its place."""
    for path in sorted(SRC.rglob("*.py")):
        with path.open("rb") as file:
            for token in tokenize.tokenize(file.readline):
                if token.type == tokenize.COMMENT:
                    yield f"{path.relative_to(SRC)}:{token.start[0]}", token.string


def test_every_promise_has_one_row() -> None:
    assert [row.name for row in ROWS] == PROMISES


@table("row", ROWS, ids=[row.name for row in ROWS])
def test_the_proofs_of_a_row_run(row: Row) -> None:
    proofs = _PROOF.findall(row.cell)
    assert row.cell == ", ".join(f"`{file}::{name}`" for file, name in proofs), "a cell names proofs alone"
    assert 0 < len(proofs) <= MOST_PROOFS
    for file, name in proofs:
        assert Path(file).name.startswith("test_"), f"pytest collects nothing from {file}"
        assert (TESTS / file).is_file(), f"there is no {file}"
        assert name in functions_of(TESTS / file), f"{file} has no {name}"
        marks = {ast.unparse(mark) for mark in functions_of(TESTS / file)[name].decorator_list}
        assert not marks & {"pytest.mark.full", "pytest.mark.skip", "pytest.mark.xfail"}, f"{name} does not run in CI"


def test_what_comments_cite_is_there() -> None:
    names = {name for path in TESTS.rglob("*.py") for name in re.findall(r"def (test_\w+)", path.read_text("utf-8"))}
    for place, comment in comments():
        unknown = {*_TEST.findall(comment)} - names
        unknown |= {*_PROMISE.findall(comment)} - {*PROMISES}
        unknown |= {f"spec {section}" for section in _SECTION.findall(comment) if not is_section(section)}
        assert not unknown, f"{place} cites what is not there: {unknown}"


def is_section(number: str) -> bool:
    """Also true of a chapter, as ``spec 4``, and of an item, as ``spec 5.4``."""
    return any(f"{number}.".startswith(f"{section}.") or section.startswith(f"{number}.") for section in SECTIONS)


def test_test_files_that_the_source_names_exist() -> None:
    for path in SRC.rglob("*.py"):
        missing = [file for file in _FILE.findall(path.read_text("utf-8")) if not (TESTS.parent / file).is_file()]
        assert not missing, f"{path.relative_to(SRC)} names {missing}"


def test_cited_chapters_of_the_contract_have_a_row() -> None:
    rows = {*re.findall(r"^\| (\d+) \| [^|]+ \|$", PAGE.read_text("utf-8"), re.MULTILINE)}
    for path in SRC.rglob("*.py"):
        cited = {*re.findall(r"[Cc]ontract (\d+)", path.read_text("utf-8"))}
        assert cited <= rows, f"{path.relative_to(SRC)} cites a chapter without a row"
