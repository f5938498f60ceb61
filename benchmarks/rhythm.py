"""The weight of routewright in code lines, and its rhythm beside packages that people enjoy to read.

python -m benchmarks.rhythm [PACKAGE ...]

A code line is not blank, not comment and not docstring, so that nobody saves by saying less.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, median

PACKAGES = "routewright", "httpcore._async", "h11", "hishel", "anyio"
PARTS = {
    "server": "server serve",
    "serve": "server serve",
    "cli": "cli",
    "testing": "testing",
    "integrations": "integrations",
}
"""Folders that are weighed apart from the library."""
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def main(packages: Sequence[str]) -> None:
    """Print the code lines of routewright by part, then a row for each package that is installed."""
    print_weight()
    print()
    print("| package | files | lines | file median / p90 | functions | median / mean / p90 | lines of code in a body |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name in packages:
        folder = folder_of(name)
        if folder is None:
            print(f"| {name} | not installed |")
            continue
        texts = [path.read_text("utf-8") for path in sorted(folder.rglob("*.py")) if "test" not in path.parts[-1]]
        files = sorted(text.count("\n") for text in texts)
        measured = [sizes for text in texts for sizes in functions(text)]
        lines = sorted(whole for whole, _ in measured)
        bodies = [body for _, body in measured]
        print(
            f"| {name} | {len(files)} | {sum(files):,} | {median(files):.0f} / {at(files, 0.9)} | {len(lines):,} "
            f"| {median(lines):.0f} / {mean(lines):.1f} / {at(lines, 0.9)} | {mean(bodies):.1f} |"
        )


def print_weight() -> None:
    """Print the code lines and files of each part of routewright, and the lines of its SQL and tests."""
    folder = folder_of("routewright")
    assert folder is not None, "routewright is not installed"
    weight, files = Counter[str](), Counter[str]()
    for path in folder.rglob("*.py"):
        part = PARTS.get(path.relative_to(folder).parts[0], "the library")
        weight[part] += len(code_lines(path.read_text("utf-8")))
        files[part] += 1
    print("| part | code lines | files |\n|---|--:|--:|")
    for part in ("the library", *dict.fromkeys(PARTS.values())):
        print(f"| {part} | {weight[part]:,} | {files[part]} |")
    print(f"| together | {weight.total():,} | {files.total()} |")
    print(f"| SQL | {sum(count_lines(path) for path in folder.rglob('*.sql')):,} | |")
    tests = folder.parents[1] / "tests"
    all_lines = sum(count_lines(path) for path in folder.rglob("*.py"))
    test_lines = sum(count_lines(path) for path in tests.rglob("*.py") if "contracts" not in path.parts)
    print(f"\n{test_lines:,} lines of tests (without contracts), {test_lines / all_lines:.2f} for one of {all_lines:,}")


def folder_of(package: str) -> Path | None:
    """Folder of an installed package."""
    spec = find_spec(package)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def count_lines(path: Path) -> int:
    """All lines of a file."""
    return path.read_text("utf-8").count("\n")


def code_lines(text: str) -> set[int]:
    """Numbers of the lines with code. A string that stands alone is a docstring, below a field too."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    code = {line for token in tokens if token.type not in NO_CODE for line in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            code.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return code


def functions(text: str) -> Iterator[tuple[int, int]]:
    """The lines of each function, and the code lines of its body."""
    code = code_lines(text)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, Function):
            own = {line for part in node.body for line in range(part.lineno, (part.end_lineno or 0) + 1)}
            yield (node.end_lineno or 0) - node.lineno + 1, len(own & code)


def at(values: Sequence[int], share: float) -> int:
    """The value below which a share of the sorted values lies."""
    return values[min(int(len(values) * share), len(values) - 1)]


if __name__ == "__main__":
    main(sys.argv[1:] or PACKAGES)
