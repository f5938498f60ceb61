"""Compiles a host's regular expressions to patterns, and refuses those that could be slow.

Python's ``re`` tries every way to match, so one careless expression lets one text stop a server: ``(a+)+b`` takes
seconds for 30 characters. Only expressions that match in one way are taken: no character can belong to a repeat or to
what follows it, and no repeat is inside another. Their repeats can then be possessive without changing a match, so the
time grows with the text alone, and a stream knows what to hold back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import chain, combinations
from re import _parser  # type: ignore[attr-defined]  # what ``re`` itself parses with
from typing import Any, NamedTuple

import numpy as np

from routewright._core.request.rules import check_text
from routewright._core.routing.logarithms import BoolArray
from routewright.errors import Problem
from routewright.wire.json_scan import joined
from routewright.wire.problems import Problems, shown

from .detectors import Pattern, Piece, either, glance, many, maybe, one, run

MOST_CHARS = 256
"""Longest match of a custom pattern."""
PLANES = 0x20000
"""The characters that a pattern can name: the first two planes of Unicode, which have all categories of ``re``."""
_END = ""
"""Among what can follow: the end of the match."""
_CATEGORIES = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w", "NOT_DIGIT": r"\D", "NOT_SPACE": r"\S", "NOT_WORD": r"\W"}
_REFUSED = {
    "MIN_REPEAT": "a lazy repeat; write a greedy one over fewer characters",
    "POSSESSIVE_REPEAT": "a possessive repeat; write a plain one",
    "ATOMIC_GROUP": "an atomic group; write a plain one",
    **dict.fromkeys(("ASSERT", "ASSERT_NOT"), "a look-around; only \\b at the start and the end is supported"),
    "AT": "an anchor; only \\b at the start and the end is supported",
    "GROUPREF": "a back-reference; write out what it repeats",
    "GROUPREF_EXISTS": "a condition; write alternatives",
}
_Argument = Any  # of an item in what ``re`` parsed: codes, or items, as its kind says
_Item = tuple[object, _Argument]


class Node(NamedTuple):
    """A part of an expression."""

    piece: Piece
    first: tuple[str, ...]
    """Classes of the characters that it can start with."""
    last: tuple[str, ...]
    """Classes of those that it can end with."""
    may_be_empty: bool = False


def custom_pattern(rule: str, expression: str) -> Pattern:
    """Compile an expression. Raises ``ValueError`` with the reason if it is not taken."""
    try:
        pattern = _compile(rule, expression)
        _ = pattern.begun, pattern.expression  # they would be compiled at first use
    except RecursionError:
        raise ValueError("is too deeply nested; write it with fewer groups") from None
    return pattern


def _compile(rule: str, expression: str) -> Pattern:
    try:
        parsed = _parser.parse(expression)
    except (re.error, OverflowError) as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    shortest, longest = parsed.getwidth()
    if parsed.state.flags & ~re.UNICODE.value:
        raise ValueError("has flags, such as (?i); write out what they mean, for example [Aa]")
    items = [*parsed]
    look_behind = r"\b" if _is_boundary(items[:1]) else ""
    ending = _is_boundary(items[1:][-1:])
    items = items[len(look_behind) // 2 : len(items) - ending]
    if shortest == 0:
        raise ValueError("matches an empty text; make a part of it required")
    node = _sequence(items, (r"\W",) if ending else (_END,), repeated=False)
    if longest > MOST_CHARS:
        raise ValueError(f"can match more than {MOST_CHARS} characters; bound its repeats, for example {{1,40}}")
    piece = node.piece
    if ending:
        if _overlap(node.last, (r"\W",)):
            raise ValueError(r"can end in a character that is not a word's before its last \b; leave out that \b")
        piece = Piece(rf"{piece.whole}\b", run(piece, glance()).begun, piece.longest + 1)
    is_listed = not any(class_.startswith("^") for class_ in node.first)
    return Pattern(rule, piece, look_behind, anchor="".join(node.first) if is_listed else r"\s\S")


def check_custom(path: str, custom: object, problems: Problems) -> None:
    """Report expressions that are not taken."""
    if not isinstance(custom, Mapping) or not custom:
        hint = 'for example {"ticket": r"TICKET-\\d{4,8}"}'
        problems.append(Problem(path, f"must map names to expressions, got {shown(custom)}", hint))
        return
    for name, expression in custom.items():
        if not isinstance(name, str) or not isinstance(expression, str):
            hint = "write the name and the expression as strings"
            problems.append(Problem(path, f"has {shown(name)}: {shown(expression)}", hint))
            continue
        check_text(path, name, problems)
        try:
            custom_pattern(name, expression)
        except ValueError as error:
            problem, *hints = str(error).split("; ", 1)
            hint = hints[0] if hints else "see the documentation of Python's re"
            problems.append(Problem(joined(path, name), problem, hint))


def _is_boundary(items: list[_Item]) -> bool:
    return [(str(kind), str(value)) for kind, value in items] == [("AT", "AT_BOUNDARY")]


def _sequence(items: list[_Item], follow: tuple[str, ...], *, repeated: bool) -> Node:
    """A sequence. ``follow``: classes of what can come after it; ``repeated``: it is inside a repeat."""
    nodes = list[Node]()
    for item in reversed(items):
        node = _node(*item, follow=follow, repeated=repeated)
        follow = (*node.first, *follow) if node.may_be_empty else node.first
        nodes.insert(0, node)
    if not nodes:
        raise ValueError("has an empty alternative or group; use ? after what may be missing")
    required = [place for place, node in enumerate(nodes) if not node.may_be_empty]
    starts = nodes[: required[0] + 1] if required else nodes
    ends = nodes[required[-1] :] if required else nodes
    return Node(
        run(*[node.piece for node in nodes]),
        tuple(chain.from_iterable(node.first for node in starts)),
        tuple(chain.from_iterable(node.last for node in ends)),
        not required,
    )


def _node(kind: object, value: _Argument, *, follow: tuple[str, ...], repeated: bool) -> Node:
    match str(kind):
        case "LITERAL" | "NOT_LITERAL" | "IN" | "ANY":
            class_ = _class(str(kind), value)
            return Node(one(class_), (class_,), (class_,))
        case "SUBPATTERN":
            if value[1] or value[2]:  # flags that the group adds or removes
                raise ValueError("has flags, such as (?i); write out what they mean, for example [Aa]")
            return _sequence([*value[3]], follow, repeated=repeated)
        case "BRANCH":
            branches = [_sequence([*branch], follow, repeated=repeated) for branch in value[1] if [*branch]]
            if any(branch.may_be_empty for branch in branches):
                raise ValueError("has an alternative that may be empty; use ? after the group instead")
            if any(_overlap(one.first, other.first) for one, other in combinations(branches, 2)):
                raise ValueError("has alternatives that start alike, which is ambiguous; write what they share once")
            node = Node(
                either(*(branch.piece for branch in branches)),
                tuple(chain.from_iterable(branch.first for branch in branches)),
                tuple(chain.from_iterable(branch.last for branch in branches)),
            )
            # ``re`` parses EMPL|EMP as EMP with L or nothing after it. In EMP|EMPL nothing comes first: L is only taken
            # if something that follows needs it
            if _END in follow and any(not [*branch] for branch in value[1][:-1]):
                raise ValueError("has an alternative that begins with an earlier one; put the longer one first")
            return node if len(branches) == len(value[1]) else _optional(node, follow)
        case "MAX_REPEAT":
            return _repeat(*value, follow=follow, repeated=repeated)
    raise ValueError(f"has {_REFUSED.get(str(kind), f'{kind}, which is not supported')}")


def _repeat(minimum: int, maximum: int, items: Any, *, follow: tuple[str, ...], repeated: bool) -> Node:
    if maximum > 1 and repeated:
        raise ValueError("has a repeat inside a repeat; write one of them out")
    inside = _sequence([*items], follow, repeated=repeated or maximum > 1)
    if maximum > 1:  # it may follow itself
        _sequence([*items], (*inside.first, *follow), repeated=True)
    if inside.may_be_empty:
        raise ValueError("repeats what may be empty; make a part of it required")
    if maximum == 1:
        return _optional(inside, follow) if minimum == 0 else inside
    if minimum < maximum:
        _check_apart(inside, follow)
    node = inside._replace(piece=many(inside.piece, max(minimum, 1), maximum))
    return node if minimum > 0 else node._replace(piece=maybe(node.piece), may_be_empty=True)


def _optional(node: Node, follow: tuple[str, ...]) -> Node:
    _check_apart(node, follow)
    return node._replace(piece=maybe(node.piece), may_be_empty=True)


def _check_apart(node: Node, follow: tuple[str, ...]) -> None:
    if _overlap(node.first, [class_ for class_ in follow if class_ != _END]):
        hint = "write it so that what follows cannot begin with a character of the repeat"
        raise ValueError(f"has a repeat that may take what follows it, which is ambiguous; {hint}")


def _class(kind: str, value: _Argument) -> str:
    """A class of characters, as inside brackets."""
    if kind == "ANY":
        return r"^\n"
    members = value if kind == "IN" else [("LITERAL", value)]
    codes = (code for item, detail in members for code in {"LITERAL": (detail,), "RANGE": detail}.get(str(item), ()))
    if max(codes, default=0) >= PLANES:
        raise ValueError("has a character above U+1FFFF, which is not supported; leave it out")
    written = ["^"] if kind == "NOT_LITERAL" else []
    for item, detail in members:
        match str(item):
            case "NEGATE":
                written.append("^")
            case "RANGE":
                written.append("-".join(re.escape(chr(code)) for code in detail))
            case "CATEGORY":
                written.append(_CATEGORIES[str(detail).removeprefix("CATEGORY_")])
            case _:
                written.append(re.escape(chr(detail)))
    return "".join(written)


def _overlap(first: Iterable[str], second: Iterable[str]) -> bool:
    return any(bool((_members(one) & _members(other)).any()) for one in first for other in second)


@lru_cache(256)
def _members(class_: str) -> BoolArray:
    """The characters of a class: those of the first two planes of Unicode, and one for all others."""
    chars = "".join(map(chr, range(PLANES + 1)))
    members = np.zeros(len(chars), dtype=np.bool_)
    members[[*map(ord, re.findall(f"[{class_}]", chars))]] = True
    return members
