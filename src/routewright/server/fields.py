"""Reads the JSON of a vendor's request field by field, so that errors name the client's field."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar, cast

from routewright.errors import ValidationFailed
from routewright.wire import JsonObject
from routewright.wire.account import holds_key
from routewright.wire.json_scan import joined
from routewright.wire.problems import example, no_choice, shown

T = TypeVar("T")

MOST_IGNORED = 50
LONGEST_IGNORED = 64
"""Limits on the header that lists ignored fields."""

KINDS: dict[type, str] = {
    str: "a string",
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "an array",
    dict: "an object",
    type(None): "null",
}
_MISSING: JsonObject = {}
"""Value of a missing object."""
_SHOWN = frozenset("model max_tokens max_completion_tokens max_output_tokens temperature top_p seed stream".split())
"""Fields whose values errors may show, since they contain no prompt."""


wrong = ValidationFailed.at
"""The error of one field."""


class Ignored(set[str]):
    """Names of ignored fields: the first 50 without long ones, never values."""

    extra: Mapping[str, Mapping[str, Any]] | None = None
    """Fields for the models of one provider (``Params.extra``), ignored if another one serves."""

    def add(self, name: str) -> None:
        """Add a name."""
        if len(self) < MOST_IGNORED and len(name) <= LONGEST_IGNORED and not holds_key(name):
            super().add(name)

    def headers(self, model: str = "", more: Collection[str] = ()) -> dict[str, str]:
        """The header that lists them. ``model``: the serving model; ``more``: fields that its vendor ignores."""
        names = {*self, *more}
        for provider, fields in (self.extra or {}).items():
            if provider != model.partition("/")[0]:
                names.update(fields)
        header = ", ".join(sorted(name for name in names if name.isascii() and name.isidentifier()))
        return {"X-Routewright-Ignored": header} if header else {}


class Fields:
    """A JSON object. Null means missing. Fields that are never taken are ignored and listed."""

    def __init__(self, value: object, path: str, ignored: Ignored, outer: list[JsonObject] | None = None) -> None:
        """``outer``: remaining fields of the objects read before."""
        if not isinstance(value, dict):
            raise _misfit(path, dict, value)
        self.sent = value
        """The original object."""
        self.path = path
        self.ignored = ignored
        self._remaining: JsonObject = {name: member for name, member in value.items() if member is not None}
        self._all = [] if outer is None else outer
        self._all.append(self._remaining)

    def get(self, name: str, kind: type[T]) -> T | None:
        """Take an optional field. Numbers are read as ``float``."""
        value: Any = self._remaining.pop(name, None)
        if value is None or type(value) is kind or (kind is float and type(value) is int):
            return cast("T | None", value)
        raise _misfit(self.at(name), kind, value)

    def need(self, name: str, kind: type[T], hint: str = "send it") -> T:
        """Take a required field."""
        if (value := self.get(name, kind)) is None:
            raise self.wrong(name, "is missing", hint)
        return value

    def take(self, name: str) -> Any:
        """Take an optional field of any type."""
        return self._remaining.pop(name, None)

    def text(self, name: str) -> str:
        """Take a required string that is not empty."""
        text = self.need(name, str)
        if not text:
            raise self.wrong(name, "must not be empty", "fill it in")
        return text

    def one_of(self, name: str, words: Collection[str]) -> str:
        """Take a required word."""
        word = self.need(name, str, f"one of {', '.join(words)}")
        if word not in words:
            raise ValidationFailed.of(no_choice(self.at(name), word, [*words]))
        return word

    def may_be(self, name: str, words: Collection[str]) -> str | None:
        """Take an optional word."""
        return self.one_of(name, words) if name in self._remaining else None

    def peek(self, name: str) -> Any:
        """Read a field without taking it."""
        return self._remaining.get(name)

    def content(self, name: str) -> str | list[Fields] | None:
        """Take an optional string or array of objects."""
        value = self._remaining.get(name)
        if isinstance(value, list):
            return self.objects(name)
        if value is None or isinstance(value, str):
            return self.get(name, str)
        raise self.wrong(name, f"must be a string or an array of blocks, got {KINDS[type(value)]}", "'Hello'")

    def inner(self, name: str) -> Fields:
        """Take an optional object. A missing one is empty and false."""
        return self.object(name) if name in self._remaining else Fields(_MISSING, self.at(name), self.ignored)

    def __bool__(self) -> bool:
        return self.sent is not _MISSING

    def object(self, name: str) -> Fields:
        """Take a required object."""
        return Fields(self.need(name, dict, "it must be an object"), self.at(name), self.ignored, self._all)

    def objects(self, name: str) -> list[Fields]:
        """Take an optional array of objects."""
        values = self.get(name, list)
        if not values:
            return []
        path = self.at(name)
        return [Fields(value, f"{path}[{index}]", self.ignored, self._all) for index, value in enumerate(values)]

    def at(self, name: str) -> str:
        """The path to a field."""
        return joined(self.path, name)

    def wrong(self, name: str, problem: str, hint: str) -> ValidationFailed:
        """The error of a field."""
        return wrong(self.at(name), problem, hint)

    def forget(self, *names: str) -> None:
        """Ignore fields without listing them."""
        for name in names:
            self._remaining.pop(name, None)

    def rest(self) -> JsonObject:
        """Take the remaining fields."""
        rest = {**self._remaining}
        self._remaining.clear()
        return rest

    def end(self) -> None:
        """Ignore the remaining fields here and in all inner objects."""
        for remaining in self._all:
            for name in remaining:
                self.ignored.add(name)


def _misfit(path: str, kind: type, value: object) -> ValidationFailed:
    """The error of a value of the wrong type. Prompts are not repeated."""
    got = shown(value) if path in _SHOWN else KINDS[type(value)]
    return wrong(path, f"must be {KINDS[kind]}, got {got}", example(path) or "send one, or leave it out")
