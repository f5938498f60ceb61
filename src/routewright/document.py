"""Reads a file that somebody wrote, TOML, JSON or Python, strictly; what it should say is asked elsewhere."""

from __future__ import annotations

import json
import os
import re
import tomllib
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ._core.request.json_scan import scan
from ._core.request.problems import shown
from .errors import Problem, ValidationFailed
from .lines import Place, json_lines, place_of, python_lines, toml_lines

MAX_FILE_BYTES = 16 << 20
_MANY_DOTS = re.compile(r"^(?:[^.\n]*+\.){64}", re.MULTILINE)
_KEY_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_KEYS = re.compile(
    r"""\#[^\n]*+|"{3}(?:[^"\\]|\\[\s\S]|"(?!""))*+(?:"{3})?|'{3}(?:[^']|'(?!''))*+(?:'{3})?"""
    rf"""|(?P<long>(?:{_KEY_PART}[ \t]*+\.[ \t]*+){{64}})|{_KEY_PART}|["'][^\n]*+"""
)
"""Comments, texts and keys of TOML, each passed over but once; ``long``: a dotted key so long that parsing it takes
time by its square."""
_LONG_NUMBER = re.compile(r"\d[\d_]{4300}")
"""Python converts none that is longer."""
_NO_TOML = "put texts, and keys with a slash, in quotes; JSON goes into a .json file"
_LINE = re.compile(r"\bline (\d+)")


class Document(NamedTuple):
    """A file that was read."""

    path: Path
    text: str
    content: Any
    """What it says, whatever it should."""
    lines_of: Callable[[str, Sequence[Place]], list[int]]

    def lines(self, where: Iterable[str]) -> list[int]:
        """The lines on which paths of errors stand, or what holds them. Reads the text once."""
        return self.lines_of(self.text, [place_of(each, self.content) for each in where])

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Put the file's name and the line before the places of what is refused inside."""
        try:
            yield
        except ValidationFailed as error:
            found = error.problems
        else:
            return
        lines = self.lines(each.path for each in found)
        raise ValidationFailed.of(*(_placed(self.path, line, each) for line, each in zip(lines, found, strict=True)))


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put a name before the places of what is refused inside, where there is no line: of a folder, say."""
    try:
        yield
    except ValidationFailed as error:
        found = [each._replace(path=f"{path}: {each.path}" if each.path else str(path)) for each in error.problems]
    else:
        return
    raise ValidationFailed.of(*found)


def read(given: object) -> Document:
    """Read TOML, or JSON from a file of that ending. Raises ``ValidationFailed`` naming file and line."""
    path = path_of(given)
    text = text_of(path)
    if path.suffix.lower() == ".json":
        return json_document(path, text)
    return Document(path, text, _toml(path, text), toml_lines)


def json_document(path: Path, text: str) -> Document:
    """What a file says in JSON. Raises ``ValidationFailed`` naming file and line."""
    return Document(path, text, _json(path, text), json_lines)


def read_module(given: object, name: str) -> Document:
    """Run a file of Python and take what it gives a name. Raises ``ValidationFailed`` naming file and line."""
    path = path_of(given)
    text = text_of(path)
    names = _run(path, text)
    return Document(path, text, {name: names[name]} if name in names else {}, python_lines)


def path_of(given: object) -> Path:
    """The path that somebody gave. Raises ``ValidationFailed`` for what is none."""
    if not isinstance(given, str | os.PathLike):
        raise ValidationFailed.of(Problem("path", f"{shown(given)} is not the path of a file", "pass 'models.toml'"))
    return Path(given)


def _json(path: Path, text: str) -> object:
    try:
        scan(text.encode())
        return json.loads(text)
    except ValidationFailed as error:  # which speaks of what is sent
        found = [each._replace(problem=each.problem.removeprefix("the body ")) for each in error.problems]
    except RecursionError:
        raise _too_deep(path) from None
    except ValueError:
        raise _long_number(path, text) from None
    raise ValidationFailed.of(*(_json_problem(path, text, each) for each in found))


def _json_problem(path: Path, text: str, found: Problem) -> Problem:
    said = _LINE.search(found.problem)
    line = int(said[1]) if said else json_lines(text, [place_of(found.path, None)])[0] if found.path else 1
    return _placed(path, line, found._replace(hint=found.hint.replace("send", "write")))


def _toml(path: Path, text: str) -> object:
    if found := _long_key(text):
        raise _refusal(path, _line_at(text, found.start()), "holds a key of more than 64 parts", "flatten it")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise _too_deep(path) from None
    except tomllib.TOMLDecodeError as error:
        said = _LINE.search(str(error))
        line = int(said[1]) if said else _line_at(text.rstrip(), len(text))
        raise _refusal(path, line, f"is not TOML: {error}", _NO_TOML) from error
    except ValueError:
        raise _long_number(path, text) from None


def _long_key(text: str) -> re.Match[str] | None:
    if not _MANY_DOTS.search(text):
        return None
    return next((found for found in _KEYS.finditer(text) if found["long"]), None)


def _run(path: Path, text: str) -> dict[str, object]:
    names: dict[str, object] = {"__name__": path.stem, "__file__": str(path)}
    try:
        code = compile(text, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        line = getattr(error, "lineno", None) or 1
        said = getattr(error, "msg", None) or "it cannot be compiled"
        raise _refusal(path, line, f"is not Python: {said}", "write Python, or TOML in a .toml file") from error
    try:
        exec(code, names)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # of the file's own code; its words stay in the cause
        frames = traceback.extract_tb(error.__traceback__)
        line = next((frame.lineno or 1 for frame in reversed(frames) if frame.filename == str(path)), 1)
        raise _refusal(path, line, f"failed with {type(error).__name__}", "mend it, or write TOML") from error
    return names


def text_of(path: Path) -> str:
    """What stands in a file. Raises ``ValidationFailed``."""
    content = _bytes(path)
    if len(content) > MAX_FILE_BYTES:
        raise _refusal(path, 1, f"is larger than {MAX_FILE_BYTES >> 20} MiB", "split it")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _refusal(path, line, f"is not UTF-8 text (byte {error.start})", "convert it") from error


def _bytes(path: Path) -> bytes:
    """The file, or a little more of it than is taken."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # the latter where no path can be such
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValidationFailed.of(Problem(str(path), f"cannot be read: {reason}", "check the path")) from error


def _line_at(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _too_deep(path: Path) -> ValidationFailed:
    return _refusal(path, 1, "nests too deep to be read", "flatten it")


def _long_number(path: Path, text: str) -> ValidationFailed:
    found = _LONG_NUMBER.search(text)
    line = _line_at(text, found.start() if found else 0)
    return _refusal(path, line, "holds too long a number", "write fewer digits")


def _refusal(path: Path, line: int, problem: str, hint: str) -> ValidationFailed:
    """Of the file as a whole."""
    return ValidationFailed.of(_placed(path, line, Problem("", problem, hint)))


def _placed(path: Path, line: int, found: Problem) -> Problem:
    return found._replace(path=f"{path}:{line}: {found.path}" if found.path else f"{path}:{line}")
