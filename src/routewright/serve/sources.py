"""Where does a value of the configuration come from? A flag, else the environment, else the file, else its default."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, NamedTuple

from routewright._core.request.problems import did_you_mean
from routewright.config import shaped
from routewright.document import Document, read
from routewright.errors import Problem, ValidationFailed

from .configuration import SECRETS, VARIABLES, ServeFile, keys_of

CONFIG = "ROUTEWRIGHT_CONFIG"
"""The variable that names the file where ``--config`` does not."""
OTHERS = {CONFIG, "ROUTEWRIGHT_SECRET", "ROUTEWRIGHT_SECRET_BEFORE", "ROUTEWRIGHT_KEY", "ROUTEWRIGHT_URL"}
"""Variables of ours that say nothing of this. The last two are for clients, in our examples."""
_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


class Sources(NamedTuple):
    """What is said, and by whom."""

    file: ServeFile
    document: Document | None
    said_by: Mapping[str, str]
    """The flag or variable behind a key, by its path; the others are from the document, or defaults."""
    flags: Mapping[str, str]
    """How each key is called on the command line, by its path."""
    unknown: tuple[str, ...]
    """Variables that look like ours and are none, with what they may mean."""

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Let problems inside, told by the paths of keys, name what was written where."""
        with _named(self.said_by, self.document, self.flags):
            yield


def gather(
    flags: Mapping[str, Any], names: Mapping[str, str], environ: Mapping[str, str], config: str | None
) -> Sources:
    """Read all. ``flags``: values by the paths of their keys; ``names``: how all flags are called. Raises
    ``ValidationFailed`` naming the flag, the variable, or file, line and key."""
    path = config or environ.get(CONFIG)
    document = read(path) if path else None
    content: dict[str, Any] = {}
    if document is not None:
        with document.naming():
            shaped(document.content, ServeFile)
        content = deepcopy(document.content)
    said_by: dict[str, str] = {}
    for variable, key in VARIABLES.items():
        text = environ.get(variable, "")
        if text and not _is_of_kubernetes(variable, text):
            _put(content, key, _value(key, text))
            said_by[key] = variable
    for key, value in flags.items():
        _put(content, key, value)
        said_by[key] = names[key]
    with _named(said_by, document, names):
        file = shaped(content, ServeFile)
    return Sources(file, document, said_by, names, _unknown(environ))


def _put(content: dict[str, Any], path: str, value: Any) -> None:
    *tables, key = path.split(".")
    for table in tables:
        content = content.setdefault(table, {})
    content[key] = value


@contextmanager
def _named(said_by: Mapping[str, str], document: Document | None, flags: Mapping[str, str]) -> Iterator[None]:
    try:
        yield
    except ValidationFailed as error:
        found = [_placed(each, said_by, document, flags) for each in error.problems]
    else:
        return
    raise ValidationFailed.of(*found)


def _placed(
    problem: Problem, said_by: Mapping[str, str], document: Document | None, flags: Mapping[str, str]
) -> Problem:
    key = problem.path.partition("[")[0]
    if key in SECRETS:
        problem = problem._replace(problem=problem.problem.partition(", got ")[0])
    if key in said_by:
        return problem._replace(path=said_by[key])
    if document is not None and _holds(document.content, key):
        return problem._replace(path=f"{document.path}: {problem.path}")
    return problem._replace(path=flags.get(key, problem.path))


def _holds(content: Any, key: str) -> bool:
    for part in key.split("."):
        if not isinstance(content, dict) or part not in content:
            return False
        content = content[part]
    return True


def _is_of_kubernetes(variable: str, text: str) -> bool:
    """Kubernetes sets this one for a service called ``routewright``, and means something else by it."""
    return variable == "ROUTEWRIGHT_PORT" and text.startswith(("tcp://", "udp://"))


def _unknown(environ: Mapping[str, str]) -> tuple[str, ...]:
    known = {*VARIABLES, *OTHERS}
    strange = sorted(name for name in environ if name.startswith("ROUTEWRIGHT_") and name not in known)
    hints = {name: did_you_mean(name, known) for name in strange}
    return tuple(f"{name} says nothing here; {hint}" for name, hint in hints.items() if hint)


def _value(path: str, text: str) -> Any:
    """What a text means for a key. What it cannot mean is left as it is, and refused with all else."""
    kinds = str(_FIELDS[path])
    for kind, read_as in _READ.items():
        if kind in kinds:
            try:
                return read_as(text)
            except ValueError:
                pass
    return text


def _switch(text: str) -> bool:
    try:
        return _WORDS[text.lower()]
    except KeyError:
        raise ValueError(text) from None


_FIELDS = {path: field.annotation for path, field in keys_of(ServeFile)}
_READ: dict[str, Callable[[str], Any]] = {
    "tuple": lambda text: [each.strip() for each in text.split(",")],
    "bool": _switch,
    "int": int,
    "float": float,
}
"""How a text is read, by the kind of value."""
