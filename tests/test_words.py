"""The words of the source: nouns for values, one thing in a statement, one voice in what people read."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from .messages import SRC, messages

pytestmark = pytest.mark.xdist_group("words")

PARTICIPLES = "found given told said asked laid kept made".split()
DICTATED = {"connection_made", "MODEL_NOT_FOUND"}
"""Names that a library or a vendor dictates."""
MOST = {"participles": 274, "each": 381, "Any": 413}
"""How often words may stand in the source: participles as verbs, "each" before a noun, lines with ``Any`` (imports
aside). Lower a figure when it has fallen; do not raise one."""
PAIRS = 145
"""Assignments of two values to two names in one statement."""


@cache
def files() -> tuple[Path, ...]:
    return tuple(sorted(SRC.rglob("*.py")))


def count(word: str) -> int:
    return sum(len(re.findall(rf"\b(?:{word})\b", path.read_text())) for path in files())


def lines_with_any() -> int:
    lines = (line for path in files() for line in path.read_text().splitlines())
    return sum(1 for line in lines if re.search(r"\bAny\b", line) and "import" not in line)


def test_counts_do_not_grow() -> None:
    counts = {"participles": count("|".join(PARTICIPLES)), "each": count("each"), "Any": lines_with_any()}
    assert not {word: (number, MOST[word]) for word, number in counts.items() if number > MOST[word]}


def test_no_name_is_a_participle() -> None:
    words = {*PARTICIPLES, "each"}
    wrong = []
    for path in files():
        with tokenize.open(path) as source:
            for token in tokenize.generate_tokens(source.readline):
                parts = set(token.string.lower().split("_")) if token.type == tokenize.NAME else set()
                if parts & words and token.string not in DICTATED:
                    wrong.append(f"{path.relative_to(SRC)}:{token.start[0]}: {token.string}")
    assert not wrong


def test_no_assignment_names_three_things() -> None:
    assert not [place for place, names, _ in assignments() if names > 2]


def test_pairs_in_one_assignment_do_not_grow() -> None:
    """``low, high = bounds`` is one thing; ``a, b = f(), g()`` seldom is."""
    assert sum(1 for _, names, is_tuple in assignments() if names == 2 and is_tuple) <= PAIRS


@cache  # parsing all of the source takes a second
def assignments() -> list[tuple[str, int, bool]]:
    """Every assignment: where, to how many names, and whether a tuple is written out on its right side."""
    return [entry for path in files() for entry in assignments_in(path)]


def assignments_in(path: Path) -> Iterator[tuple[str, int, bool]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Assign):
            place = f"{path.relative_to(SRC)}:{node.lineno}"
            yield place, len(node.targets), False
            for target in (target for target in node.targets if isinstance(target, ast.Tuple | ast.List)):
                yield place, len(target.elts), isinstance(node.value, ast.Tuple)


def test_messages_are_in_one_voice() -> None:
    """Lower case at the start and no full stop at the end, since they stand behind a path; "; " before what to do."""
    wrong = [
        f"{message.path.name}:{message.line}: {message.text}"
        for message in messages([SRC])
        if message.kind in ("error", "log")
        and "testing" not in message.path.parts
        and not re.match(NAME, message.text)
        and re.search(rf"^[A-Z][a-z]+ |(?<!\.)\.$|: (?:{IMPERATIVES}) ", message.text)
    ]
    assert not wrong


IMPERATIVES = "use|try|call|start|send|pass|set|raise|define|renew"
NAME = re.compile(r"PostgreSQL|[A-Z]\w*[A-Z.(]|Standard Webhooks|Redis|Azure|OpenAI|Gemini|Claude|Number out of range$")
"""A message may begin with the name of a class, a function or a product. The last one is msgspec's own."""
