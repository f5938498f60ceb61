"""The rhythm of packages: lines of functions and files, beside those that people enjoy to read.

python -m benchmarks.rhythm [PACKAGE ...]
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, median

PACKAGES = "routewright", "httpcore._async", "h11", "hishel", "anyio"
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def main(packages: Sequence[str]) -> None:
    """Print a row for each package that is installed."""
    print("| package | files | lines | file median / p90 | functions | median / mean / p90 | lines of code in a body |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name in packages:
        spec = find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            print(f"| {name} | not installed |")
            continue
        folder = Path(spec.submodule_search_locations[0])
        texts = [path.read_text("utf-8") for path in sorted(folder.rglob("*.py")) if "test" not in path.parts[-1]]
        files = sorted(text.count("\n") for text in texts)
        measured = [each for text in texts for each in functions(text)]
        lines, bodies = sorted(whole for whole, _ in measured), [body for _, body in measured]
        print(
            f"| {name} | {len(files)} | {sum(files):,} | {median(files):.0f} / {at(files, 0.9)} | {len(lines):,} "
            f"| {median(lines):.0f} / {mean(lines):.1f} / {at(lines, 0.9)} | {mean(bodies):.1f} |"
        )


def functions(text: str) -> Iterator[tuple[int, int]]:
    """The lines of each function, and the lines of code in its body: no docstring, comment or blank line."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    code = {line for token in tokens if token.type not in NO_CODE for line in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, Function):
            body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
            own = {line for each in body for line in range(each.lineno, (each.end_lineno or 0) + 1)}
            yield (node.end_lineno or 0) - node.lineno + 1, len(own & code)


def at(values: Sequence[int], share: float) -> int:
    """The value below which a share of them lies; they are sorted."""
    return values[min(int(len(values) * share), len(values) - 1)]


if __name__ == "__main__":
    main(sys.argv[1:] or PACKAGES)
