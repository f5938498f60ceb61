"""List what the library says to people: errors, hints, log lines and help texts, read from the source.

``python -m tests.messages [PATH ...]`` prints one line for each: file, line, kind, text."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SRC = Path(__file__).parent.parent / "src" / "routewright"
LOG = {"debug", "info", "warning", "error", "exception", "log"}
SQL = re.compile(
    r"\s*(?:SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|WITH|PRAGMA|FROM|WHERE|AND|OR|ON|SET|ORDER|VALUES|GRANT)\b"
)
NOT_PROSE = re.compile(r"[\\|<>=\[\]]{2,}|^\s*[-\w]+\s*=|\bPRIMARY KEY\b|^[ .,:;{}()/%-]*$")
WORD = re.compile(r"(?<!\S)[('\"]?[A-Za-z][A-Za-z'-]*")


class Message(NamedTuple):
    """A text of at least three words. ``{...}`` stands for a value."""

    path: Path
    line: int
    kind: str
    """``error``, ``log``, ``help``, or ``text``: a constant, a hint or a part that is put into one of them."""
    text: str


def messages(paths: list[Path]) -> Iterator[Message]:
    """The messages of all Python files under ``paths``, in order."""
    for path in sorted(file for root in paths for file in ([root] if root.is_file() else root.rglob("*.py"))):
        yield from messages_of(path)


def messages_of(path: Path) -> list[Message]:
    """The messages of one file: every prose string that is no docstring and no SQL."""
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    texts: list[Message] = []
    kinds: dict[int, str] = {}
    for node in nodes:
        for part in parts_of_calls(node):
            kinds.setdefault(id(part[1]), part[0])
    skipped = {id(part) for node in nodes for part in silent(node)}
    for node in nodes:
        if id(node) not in skipped and isinstance(node, ast.Constant | ast.JoinedStr):
            text = rendered(node)
            if len(WORD.findall(text)) >= 3 and not SQL.match(text) and not NOT_PROSE.search(text):
                texts.append(Message(path, node.lineno, kinds.get(id(node), "text"), " ".join(text.split())))
    return sorted(texts, key=lambda message: message.line)


def parts_of_calls(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Whatever lies within a ``raise``, a call of a logger, or a ``help``, with its kind."""
    if isinstance(node, ast.Raise) and node.exc is not None:
        yield from (("error", part) for part in ast.walk(node.exc))
    elif isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        owner = (
            node.func.value.id if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name) else ""
        )
        if name in LOG and owner == "_log":
            yield from (("log", part) for part in ast.walk(node))
        for word in node.keywords:
            if word.arg in ("help", "does", "description", "hint"):
                yield from (("error" if word.arg == "hint" else "help", part) for part in ast.walk(word.value))


def silent(node: ast.AST) -> Iterator[ast.AST]:
    """Docstrings, texts below fields, and the parts of f-strings, which are shown with the whole."""
    body = getattr(node, "body", None)
    for statement in body if isinstance(body, list) else []:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            yield statement.value
    if isinstance(node, ast.JoinedStr):
        yield from (part for part in node.values if isinstance(part, ast.Constant))


def rendered(node: ast.Constant | ast.JoinedStr) -> str:
    """The text of a string, with ``{...}`` for values."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return "".join(rendered(part) if isinstance(part, ast.Constant) else "{...}" for part in node.values)


if __name__ == "__main__":
    for message in messages([Path(name) for name in sys.argv[1:]] or [SRC]):
        print(f"{os.path.relpath(message.path)}:{message.line}: {message.kind}: {message.text}")
