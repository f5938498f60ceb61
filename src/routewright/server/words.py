"""What is a field of the route request called here? Errors name what the client wrote."""

from __future__ import annotations

import re
from copy import copy
from typing import Any, TypeVar

from msgspec import Struct

from routewright.errors import Problem, RouterError, ValidationFailed
from routewright.server.door import FIELD

E = TypeVar("E", bound=RouterError)

_HEAD = re.compile(r"[^.\[]*")
_WISHES = ("goal", "strategy", "fallback", "budget", "cache", "timeout_ms")
_IN_TEXT = re.compile(
    r"(?<![\w.])(?:(?P<cap>params\.max_output_tokens)|params\.|(?P<wish>(?:budget|fallback)\.|timeout_ms)"
    r"|(?P<list>(?<=to )models(?! of)|(?<=set )models(?= to)|(?<=')models(?=')))"
)
"""Fields of the route request that messages speak of."""


class Words(Struct, frozen=True):
    """What the fields of one route request are called where its client wrote them."""

    cap: str = "max_completion_tokens"
    models: str = f"{FIELD}.models"
    policy: str = f"{FIELD}.policy_id"
    metadata: str = "metadata"
    listed_at: str = "GET /openai/v1/models"
    """Where a client finds the models that it may name."""

    def path(self, path: str) -> str:
        """The place of a fault."""
        head = _HEAD.match(path)[0]  # type: ignore[index]  # it matches the empty string
        rest = path[len(head) :]
        match head:
            case "params":
                return self.cap if rest == ".max_output_tokens" else rest.removeprefix(".")
            case "models":
                return "model" if self.models == "model" else self.models + rest
            case "policy_id":
                return self.policy
            case "metadata":
                return self.metadata + rest
            case "idempotency_key":
                return "Idempotency-Key"
            case _:
                return f"{FIELD}.{path}" if head in _WISHES else path

    def text(self, text: str) -> str:
        """A message, or what to do."""
        return _IN_TEXT.sub(self._word, text.replace("Router.models()", self.listed_at))

    def problem(self, problem: Problem) -> Problem:
        """One fault."""
        return Problem(self.path(problem.path), problem.problem, self.text(problem.hint))

    def error(self, error: E) -> E:
        """A copy of an error in these words."""
        told = copy(error)
        if isinstance(told, ValidationFailed) and told.problems:
            told.problems = [self.problem(each) for each in told.problems]
            told.message = "\n".join(map(str, told.problems))
            told.detail = told.detail | {"problems": [each._asdict() for each in told.problems]}
        else:
            told.message = self.text(told.message)
            told.detail = told.detail | self._advice(told.detail)
        return told

    def _word(self, found: re.Match[str]) -> str:
        if found["cap"]:
            return self.cap
        if found["list"]:
            return f"{FIELD}.models"
        return f"{FIELD}.{found['wish']}" if found["wish"] else ""

    def _advice(self, detail: dict[str, Any]) -> dict[str, str]:
        suggestion = detail.get("suggestion")
        return {"suggestion": self.text(suggestion)} if isinstance(suggestion, str) else {}
