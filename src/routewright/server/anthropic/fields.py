"""Takes a JSON object apart field by field. What is wrong is told by its place; what nobody asks for is ignored, and
named.

Words of a prompt are never repeated, so an error shows the value of a few fields only, and the kind of all others.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

from routewright._core.request.json_scan import joined
from routewright._core.request.problems import shown
from routewright.errors import Problem, ValidationFailed
from routewright.server.door import Ignored

T = TypeVar("T")

_KINDS: dict[type, str] = {
    str: "a string",
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "an array",
    dict: "an object",
    type(None): "null",
}
_SHOWN = frozenset(("model", "max_tokens", "temperature", "top_p", "stream"))
"""What holds no words of a prompt."""


class Fields:
    """An object of a request, and where it stands. A field that is null is not there."""

    def __init__(self, value: object, path: str, ignored: Ignored) -> None:
        if not isinstance(value, dict):
            raise misfit(path, dict, value)
        self.path = path
        self.ignored = ignored
        self._left: dict[str, Any] = {name: each for name, each in value.items() if each is not None}

    def get(self, name: str, kind: type[T]) -> T | None:
        """Take a field that may be missing. A number is asked for as ``float``."""
        value: Any = self._left.pop(name, None)
        if value is None or type(value) is kind or (kind is float and type(value) is int):
            return cast("T | None", value)
        raise misfit(self.at(name), kind, value)

    def need(self, name: str, kind: type[T], hint: str = "") -> T:
        """Take a field that has to be there."""
        value = self.get(name, kind)
        if value is None:
            raise wrong(self.at(name), "is missing", hint)
        return value

    def either(self, name: str) -> str | list[Any] | None:
        """Take a text, or an array of blocks."""
        value = self._left.pop(name, None)
        if value is None or isinstance(value, str | list):
            return value
        raise wrong(self.at(name), f"must be a string or an array of blocks, got {_kind(value)}")

    def inner(self, name: str) -> Fields | None:
        """Take an object, to be taken apart in turn."""
        value = self.get(name, dict)
        return None if value is None else Fields(value, self.at(name), self.ignored)

    def each(self, name: str) -> list[Fields]:
        """Take an array of objects."""
        path = self.at(name)
        return [Fields(each, f"{path}[{at}]", self.ignored) for at, each in enumerate(self.get(name, list) or ())]

    def at(self, name: str) -> str:
        """Where a field stands."""
        return joined(self.path, name)

    def forget(self) -> None:
        """Leave out all that is left, without naming it."""
        self._left.clear()

    def end(self) -> None:
        """Name what was not taken."""
        for name in self._left:
            self.ignored.add(name)


def blocks(value: list[Any], path: str, ignored: Ignored) -> list[tuple[str, Fields]]:
    """The blocks of a content, each with its type."""
    found = [Fields(each, f"{path}[{at}]", ignored) for at, each in enumerate(value)]
    return [(each.need("type", str), each) for each in found]


def wrong(path: str, problem: str, hint: str = "") -> ValidationFailed:
    """The error of a field."""
    return ValidationFailed.of(Problem(path, problem, hint))


def misfit(path: str, kind: type, value: object) -> ValidationFailed:
    """The error of a value of another kind."""
    told = shown(value) if path in _SHOWN else _kind(value)
    return wrong(path, f"must be {_KINDS[kind]}, got {told}")


def _kind(value: object) -> str:
    return _KINDS[type(value)]
