"""What is a field of the route request called here? Errors name what the client wrote."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import copy
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from routewright.errors import Problem, RouterError, ValidationFailed

E = TypeVar("E", bound=RouterError)

_TURN = re.compile(r"messages\[(\d+)\]")
_NAME = re.compile(r"(?<![\w./-])(?<!did you mean ')(?<!policy ')(?<!key ')[a-z_]+(?:\.\w+|\[\d+\])*")
"""What may be a field of ours, but for one that is meant in the place of another beside it, or a value, and for the
names of policies and keys."""


class Words(Struct, frozen=True):
    """What the places of one route request are called where its client wrote them."""

    places: Mapping[str, str]
    """Theirs by ours. Of several that a place begins with the longest holds, and what follows it stays."""
    listed_at: str
    """Where a client finds the models that it may name."""
    turns: Sequence[str] | None = None
    """Where each message was written; what is inside has no like there. None: they stand as they were sent."""

    def having(self, places: Mapping[str, str], turns: Sequence[str] | None = None) -> Words:
        """The words of a request that says more of where its fields were written."""
        return replace(self, places={**self.places, **places}, turns=turns)

    def path(self, path: str) -> str:
        """The place of a fault."""
        turn = _TURN.match(path)
        if turn is not None and self.turns is not None and int(turn[1]) < len(self.turns):
            return self.turns[int(turn[1])]
        head = path
        while head:
            if head in self.places:
                return (self.places[head] + path[len(head) :]).removeprefix(".")
            head = head[: max(head.rfind("."), head.rfind("["), 0)]
        return path

    def text(self, text: str) -> str:
        """A message, or what to do: fields are what has a dot or an underscore, or stands in quotes."""
        return _NAME.sub(self._named, text.replace("Router.models()", self.listed_at))

    def problem(self, problem: Problem) -> Problem:
        """One fault. What is wrong is said with the value, which is the client's own."""
        return Problem(self.path(problem.path), problem.problem, self.text(problem.hint))

    def error(self, error: E) -> E:
        """A copy of an error in these words."""
        told = copy(error)
        if isinstance(told, ValidationFailed) and told.problems:
            told.problems = [self.problem(each) for each in told.problems]
            told.message = "\n".join(map(str, told.problems))
            told.detail = told.detail | {"problems": [each._asdict() for each in told.problems]}
            return told
        told.message = self.text(told.message)
        suggestion = told.detail.get("suggestion")
        if isinstance(suggestion, str):
            told.detail = told.detail | {"suggestion": self.text(suggestion)}
        return told

    def _named(self, found: re.Match[str]) -> str:
        name = found[0]
        is_quoted = found.string[found.start() - 1 : found.end() + 1] == f"'{name}'"
        return self.path(name) if is_quoted or "." in name or "_" in name else name
