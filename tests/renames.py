"""Show that a change touched names alone: ``python -m tests.renames BASE [HEAD]``.

The syntax trees of each changed file under ``src`` must be equal once identifiers, docstrings and comments are blank.
Without HEAD the working tree is compared. Renamed files are compared with what they were."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

NAMES = ("id", "arg", "attr", "asname", "rest")
DEFINITIONS = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.alias,
    ast.ExceptHandler,
    ast.MatchAs,
    ast.MatchStar,
)
LISTS_OF_NAMES = {"__slots__", "__match_args__", "__all__"}


class Blank(ast.NodeTransformer):
    """Replaces every identifier, and drops docstrings."""

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        if isinstance(node.targets[0], ast.Name) and node.targets[0].id in LISTS_OF_NAMES:
            node.value = ast.Constant(None)
        return self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for field in NAMES:
            if isinstance(getattr(node, field, None), str):
                setattr(node, field, "_")
        if isinstance(node, DEFINITIONS) and node.name is not None:
            node.name = "_"
        elif isinstance(node, ast.Global | ast.Nonlocal):
            node.names = ["_"] * len(node.names)
        elif isinstance(node, ast.MatchClass):
            node.kwd_attrs = ["_"] * len(node.kwd_attrs)
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [statement for statement in body if not is_text(statement)]  # type: ignore[attr-defined]
        return node


def is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def shape(source: str) -> str:
    """The tree of a module without names."""
    return ast.dump(Blank().visit(ast.parse(source)))


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def different(base: str, head: str | None) -> list[str]:
    """The files that changed by more than names."""
    listing = git("diff", "--name-status", "-M", base, *([head] if head else []), "--", "src/*.py")
    changes = [line.split("\t") for line in listing.splitlines()]
    return [
        paths[-1]
        for status, *paths in changes
        if status in "AD"
        or shape(git("show", f"{base}:{paths[0]}"))
        != shape(git("show", f"{head}:{paths[-1]}") if head else Path(paths[-1]).read_text())
    ]


if __name__ == "__main__":
    base, *rest = sys.argv[1:]
    sys.exit("\n".join(different(base, rest[0] if rest else None)) or None)
