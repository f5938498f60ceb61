"""Where in a text that somebody wrote does each thing stand? Asked once an error is there: parsers tell values alone.

The text has been parsed already, so nothing is checked here. What cannot be placed stands where that does which holds
it, at the latest in the first line.
"""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from typing import Any

Place = tuple[str | int, ...]
"""Keys and indices from the outside in."""

_STEP = re.compile(r"""\[(\d+)\]|\[('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\](?!\.\.)|\.?([^.\[\]]+)""")
_TOML = re.compile(
    r"""(?P<text>\"{3}(?:[^\\]|\\.)*?\"{3,5}|'{3}.*?'{3,5}|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
    r"""|(?P<rest>\#[^\n]*|[ \t\r]+)|(?P<mark>[\[\]{},=.\n])|(?P<word>[^\s\[\]{},=\#"'.]+)""",
    re.DOTALL,
)
_JSON = re.compile(
    r"""(?P<text>"(?:[^"\\]|\\.)*")|(?P<rest>[ \t\r]+)|(?P<mark>[\[\]{},:\n])|(?P<word>[^\s\[\]{},:"]+)""", re.DOTALL
)


def toml_lines(text: str, places: Sequence[Place]) -> list[int]:
    """The lines of places in TOML."""
    return _placed(_Toml(places), _tokens(_TOML, text))


def json_lines(text: str, places: Sequence[Place]) -> list[int]:
    """The lines of places in JSON."""
    return _placed(_Reader(places), _tokens(_JSON, text))


def python_lines(text: str, places: Sequence[Place]) -> list[int]:
    """The lines of places in what a module's name is given as a literal, else that of the last assignment."""
    module = ast.parse(text)
    return [_python_line(module, place) for place in places]


def _python_line(module: ast.Module, place: Place) -> int:
    line, node = 1, None
    for statement in module.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and _names(statement) & {*place[:1]}:
            line, node = statement.lineno, statement.value
    for step in place[1:]:
        found = None if node is None else _within(node, step)
        if found is None:
            break
        line, node = found
    return line


def _names(statement: ast.Assign | ast.AnnAssign) -> set[str | int]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _within(node: ast.expr, step: str | int) -> tuple[int, ast.expr] | None:
    """The line and the value of one step down a literal, or a call with keywords."""
    match node:
        case ast.List(elts=elements) | ast.Tuple(elts=elements) if isinstance(step, int):
            known = 0 <= step < len(elements) and not any(isinstance(each, ast.Starred) for each in elements)
            return (elements[step].lineno, elements[step]) if known else None
        case ast.Dict(keys=keys, values=values):
            pairs = [(key, value) for key, value in zip(keys, values, strict=True) if isinstance(key, ast.Constant)]
            return next(((key.lineno, value) for key, value in pairs if key.value == step), None)
        case ast.Call(keywords=given):
            return next(((each.lineno, each.value) for each in given if each.arg == step), None)
    return None


def place_of(path: str, content: object) -> Place:
    """The place that a path names, in which a thing of a list may stand by its name or id: ``policies['careful']``."""
    found: list[str | int] = []
    for index, name, key in _STEP.findall(path):
        step: str | int = int(index) if index else ast.literal_eval(name) if name else key
        if isinstance(content, list | tuple) and isinstance(step, str):
            step = next((at for at, each in enumerate(content) if _goes_by(each, step)), -1)
        found.append(step)
        content = _inside(content, step)
    return tuple(found)


def _inside(content: Any, step: str | int) -> object:
    try:
        return content[step]
    except (LookupError, TypeError):
        return None


def _goes_by(each: object, name: str) -> bool:
    if isinstance(each, dict):
        return name in (each.get("name"), each.get("id"))
    return name in (getattr(each, "name", None), getattr(each, "id", None))


Token = tuple[str, str, int]
"""Kind, text and line."""


def _tokens(pattern: re.Pattern[str], text: str) -> Iterator[Token]:
    line = 1
    for found in pattern.finditer(text):
        if found.lastgroup != "rest":
            yield str(found.lastgroup), found[0], line
        line += found[0].count("\n")


def _placed(reader: _Reader, tokens: Iterator[Token]) -> list[int]:
    for token in tokens:
        reader.read(*token)
    return [[reader.lines[way] for way in _ways(place) if way in reader.lines][-1] for place in reader.wanted]


def _ways(place: Place) -> list[Place]:
    """What leads to a place, and the place."""
    return [place[:steps] for steps in range(len(place) + 1)]


class _Open:
    """An array or object that has begun and not ended."""

    def __init__(self, place: Place, index: int | None) -> None:
        self.place = place
        self.index = index
        """Of an array's next value; None: it is an object."""
        self.parts: list[str] = []
        """What was read of a key."""
        self.value: Place | None = None if index is None else (*place, index)
        """Where the next value stands; None: a key is due."""

    def advance(self) -> None:
        """Go on behind a comma."""
        if self.index is None:
            self.parts, self.value = [], None
        else:
            self.index += 1
            self.value = (*self.place, self.index)


class _Reader:
    """Follows JSON from token to token and keeps the lines of what leads to some places."""

    def __init__(self, wanted: Sequence[Place]) -> None:
        self.wanted = wanted
        self.lines: dict[Place, int] = {(): 1}
        self._ways = {way for place in wanted for way in _ways(place)}
        self.open = [_Open((), None)]
        self.open[0].value = ()

    def read(self, kind: str, text: str, line: int) -> None:
        """Take the next token."""
        inner = self.open[-1]
        if text in ("]", "}"):
            self.open.pop()
        elif text == ",":
            inner.advance()
        elif text in ("=", ":"):
            inner.value = self._beneath(inner.place, inner.parts, line)
        elif inner.value is None and kind != "mark":
            inner.parts.append(self.key(kind, text))
        elif inner.value is not None and text not in ("\n", "."):
            self._note(inner.value, line)
            if kind == "mark":
                self.open.append(_Open(inner.value, 0 if text == "[" else None))

    def key(self, kind: str, text: str) -> str:
        """What a key's text stands for."""
        return str(json.loads(text))

    def _beneath(self, place: Place, parts: Sequence[str], line: int) -> Place:
        for part in parts:
            place = (*place, part)
            self._note(place, line)
        return place

    def _note(self, place: Place, line: int) -> None:
        """Keep the line where this leads to what is wanted, and was not there before."""
        if place in self._ways:
            self.lines.setdefault(place, line)


class _Toml(_Reader):
    """Takes a table for an object whose entries end with their lines, and the headers between them."""

    def __init__(self, wanted: Sequence[Place]) -> None:
        super().__init__(wanted)
        self.open = [_Open((), None)]
        self._brackets = 0
        self._counts: dict[Place, int] = {}
        """Tables so far of each array of tables."""

    def read(self, kind: str, text: str, line: int) -> None:
        """Take the next token."""
        table = self.open[0]
        between = len(self.open) == 1 and table.value is None
        if between and text == "[":
            self._brackets += 1
        elif between and text == "]":
            self._enter(table.parts, line)
        elif len(self.open) == 1 and text == "\n":
            table.advance()
        else:
            super().read(kind, text, line)

    def key(self, kind: str, text: str) -> str:
        """What a key's text stands for."""
        return next(iter(tomllib.loads(f"{text} = 0"))) if kind == "text" else text

    def _enter(self, parts: Sequence[str], line: int) -> None:
        """Go on in the table of a header, which lies in the last one of each array of tables on the way."""
        place: Place = ()
        for number, part in enumerate(parts, 1):
            place = self._beneath(place, [part], line)
            count = self._counts.get(place, 0)
            if self._brackets == 2 and number == len(parts):
                self._counts[place] = count = count + 1
            if count:
                place = (*place, count - 1)
                self._note(place, line)
        if parts:
            self.open[0], self._brackets = _Open(place, None), 0
