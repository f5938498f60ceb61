"""Reads a file that somebody wrote, TOML or JSON, strictly; what it should say is asked elsewhere."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ._core.problem import shown
from ._core.scan import scan
from .errors import Problem, ValidationFailed

MAX_FILE_BYTES = 16 << 20
_KEY_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![\w-])(?:{_KEY_PART}[ \t]*+\.[ \t]*+){{64}}")
"""A dotted key of TOML so long that parsing it takes time by its square."""


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Put a file's name before the places of what is refused inside."""
    try:
        yield
    except ValidationFailed as error:
        problems = [each._replace(path=_named(path, each.path)) for each in error.problems]
        raise ValidationFailed.of(*problems) from None


def _named(path: str | Path, place: str) -> str:
    if place.startswith(str(path)):
        return place  # named where it was read
    return f"{path}: {place}" if place else str(path)


def path_of(given: object) -> Path:
    """The path that somebody gave. Raises ``ValidationFailed`` for what is none."""
    if not isinstance(given, str | os.PathLike):
        raise ValidationFailed.of(Problem("path", f"{shown(given)} is not the path of a file", "pass 'models.toml'"))
    return Path(given)


def content_of(path: Path) -> object:
    """What the file says, whatever it should."""
    text = _text(path)
    try:
        return _json(text) if path.suffix.lower() == ".json" else _toml(text)
    except RecursionError:
        raise _refusal("nests too deep to be read", "flatten it") from None
    except tomllib.TOMLDecodeError as error:
        raise _refusal(f"is not TOML: {error}", "write TOML, or JSON in a .json file") from error
    except ValueError:  # of more digits than Python converts
        raise _refusal("holds too long a number", "write fewer digits") from None


def _json(text: str) -> object:
    try:
        scan(text.encode())
    except ValidationFailed as error:  # which speaks of what is sent
        said = [(each.path, each.problem.removeprefix("the body "), each.hint) for each in error.problems]
        problems = [Problem(where, what, hint.replace("send", "write")) for where, what, hint in said]
        raise ValidationFailed.of(*problems) from None
    return json.loads(text)


def _toml(text: str) -> object:
    if _LONG_KEY.search(text):
        raise _refusal("holds a key of more than 64 parts", "flatten it")
    return tomllib.loads(text)


def _text(path: Path) -> str:
    content = _bytes(path)
    if len(content) > MAX_FILE_BYTES:
        raise _refusal(f"is larger than {MAX_FILE_BYTES >> 20} MiB", "split it")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _refusal(f"is not UTF-8 text (byte {error.start})", "convert it") from error


def _bytes(path: Path) -> bytes:
    """The file, or a little more of it than is taken."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # the latter where no path can be such
        reason = error.strerror if isinstance(error, OSError) else error
        raise _refusal(f"cannot be read: {reason}", "check the path") from error


def _refusal(problem: str, hint: str) -> ValidationFailed:
    """Of the file as a whole."""
    return ValidationFailed.of(Problem("", problem, hint))
