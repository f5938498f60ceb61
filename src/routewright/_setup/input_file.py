"""Reads TOML and JSON files strictly. Their content is validated elsewhere."""

from __future__ import annotations

import json
import os
import re
import tomllib
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from routewright.errors import ValidationFailed, renaming
from routewright.wire.json_scan import scan
from routewright.wire.problems import shown

MAX_FILE_BYTES = 16 << 20
_NO_TOML = "put texts, and keys with a slash, in quotes; JSON goes into a .json file"
_LINE = re.compile(r"\bline (\d+)")


class Document(NamedTuple):
    """The content of a file."""

    path: Path
    content: Any
    """Not validated."""

    def naming(self) -> AbstractContextManager[None]:
        """Prefix the paths of problems raised in the block with the file's name."""
        path = self.path
        return renaming(lambda problem: problem._replace(path=f"{path}: {problem.path}" if problem.path else str(path)))


def read(name: object) -> Document:
    """Read TOML, or JSON if the name ends in ``.json``. Raises ``ValidationFailed`` naming the file."""
    path = path_of(name)
    text = text_of(path)
    if path.suffix.lower() == ".json":
        return json_document(path, text)
    try:
        return Document(path, tomllib.loads(text))
    except RecursionError:
        raise _refusal(path, "nests too deep to be read", "flatten it") from None
    except tomllib.TOMLDecodeError as error:
        raise _refusal(path, f"is not TOML: {error}", _NO_TOML, _line_of(str(error))) from error
    except ValueError:  # Python converts no number of more than 4,300 digits
        raise _refusal(path, "holds a number with too many digits", "write fewer digits") from None


def json_document(path: Path, text: str) -> Document:
    """The content of a JSON file. Raises ``ValidationFailed`` naming the file."""
    try:
        scan(text.encode())
        content = json.loads(text)
    except RecursionError:
        raise _refusal(path, "nests too deep to be read", "flatten it") from None
    except ValidationFailed as error:  # worded for request bodies
        problem = error.problems[0]
    except ValueError:
        raise _refusal(path, "holds a number with too many digits", "write fewer digits") from None
    else:
        if isinstance(content, dict):
            content.pop("$schema", None)  # is for editors
        return Document(path, content)
    message = problem.problem.removeprefix("the body ")
    raise _refusal(path, message, problem.hint.replace("send", "write"), _line_of(message), problem.path)


def path_of(name: object) -> Path:
    """The given path. Raises ``ValidationFailed`` for anything else."""
    if not isinstance(name, str | os.PathLike):
        raise ValidationFailed.at("path", f"{shown(name)} is not the path of a file", "pass 'models.toml'")
    return Path(name)


def text_of(path: Path) -> str:
    """The text of a file. Raises ``ValidationFailed``."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: not a possible path
        reason = error.strerror if isinstance(error, OSError) else error
        raise _refusal(path, f"cannot be read: {reason}", "check the path") from error
    if len(content) > MAX_FILE_BYTES:
        raise _refusal(path, f"is larger than {MAX_FILE_BYTES >> 20} MiB", "split it")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _refusal(path, f"is not UTF-8 text (byte {error.start})", "convert it", line) from error


def _line_of(text: str) -> int | None:
    match = _LINE.search(text)
    return None if match is None else int(match[1])


def _refusal(path: Path, problem: str, hint: str, line: int | None = None, key: str = "") -> ValidationFailed:
    """A problem of a file, with the line if the parser reports it."""
    position = str(path) if line is None else f"{path}:{line}"
    return ValidationFailed.at(f"{position}: {key}" if key else position, problem, hint)
