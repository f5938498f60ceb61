"""The body of ``POST /v1/messages`` as a route request: what is honoured, and what is ignored and named."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from routewright._core.model_name import model_called, named
from routewright._core.problem import did_you_mean, shown
from routewright._core.scan import scan
from routewright._engine.fleet import Fleet
from routewright.errors import Problem, ValidationFailed
from routewright.server.door import AUTO, FIELD, Ignored, Wishes, check_placed, wished, wishes_of
from routewright.wire import Params, RouteRequest

from .content import messages_of, system_of
from .fields import Fields, wrong
from .tools import choice_of, form_of, tools_of

VENDOR = "anthropic"
_decode = msgspec.json.Decoder().decode
_MOST_TOKENS = 2**53 - 1
_RENAMED = {
    "params.max_output_tokens": "max_tokens",
    "params.stop": "stop_sequences",
    "params.response_format.json_schema.schema": "output_config.format.schema",
    "params.response_format": "output_config.format",
    "params.": "",
    "tool_choice.function.name": "tool_choice.name",
    "idempotency_key": "Idempotency-Key",
    **{name: f"{FIELD}.{name}" for name in Wishes.__struct_fields__ if name != "metadata"},
}
"""What a place of the route request is here, by what it begins with; the first that fits holds."""


class Reading:
    """Reads one body: ``decode`` makes the request, the rest says what it was made of."""

    def __init__(self, fleet: Fleet, *, capped: bool) -> None:
        """``capped``: the answer's length has to be limited, as it is where there is to be an answer."""
        self.model = AUTO
        """As it was asked for; a name without doubt is the id that it means."""
        self.ignored = Ignored()
        self._is_made = False
        self._fleet = fleet
        self._capped = capped

    def decode(self, body: bytes) -> RouteRequest:
        """Raises ``InvalidJson`` and ``ValidationFailed``, which names fields as the Messages API does."""
        scan(body)
        tree = _tree(body)
        fields = Fields(tree, "", self.ignored)
        check_placed(tree)
        self.model = self._id_of(fields.need("model", str, "an id, or 'auto'"))
        wishes = wishes_of(fields.get(FIELD, dict))
        request = self._request(fields, wishes)
        fields.end()
        made = wished(request, self.model, VENDOR, replace(wishes, metadata=None), self._fleet.pool.row)
        self._is_made = True
        return made

    def renamed(self, error: ValidationFailed) -> ValidationFailed:
        """The error of a rule of the route request, in the words of this body."""
        if not self._is_made:
            return error
        problems = [problem._replace(path=self._place(problem.path)) for problem in error.problems]
        return type(error).of(*problems) if problems else error

    def _request(self, fields: Fields, wishes: Wishes) -> RouteRequest:
        tools = tools_of(fields.each("tools"))
        system = system_of(fields.either("system"), self.ignored)
        turns = fields.each("messages")
        if not turns:
            raise wrong("messages", "must hold at least one message")
        return RouteRequest(
            messages=[*system, *messages_of(turns)],
            tools=tools or None,
            tool_choice=choice_of(fields.inner("tool_choice"), tools),
            params=self._params(fields),
            metadata=_metadata(fields.inner("metadata"), wishes),
            stream=fields.get("stream", bool) or False,
        )

    def _params(self, fields: Fields) -> Params:
        return Params(
            temperature=fields.get("temperature", float),
            top_p=fields.get("top_p", float),
            max_output_tokens=self._cap(fields),
            stop=_stops(fields.get("stop_sequences", list)),
            response_format=form_of(fields.inner("output_config"), fields.inner("output_format")),
        )

    def _cap(self, fields: Fields) -> float | None:
        cap = fields.get("max_tokens", float)
        if cap is None and self._capped:
            raise wrong("max_tokens", "is missing", "say how many tokens the answer may have at most")
        if cap is not None and not (1 <= cap <= _MOST_TOKENS and cap % 1 == 0):
            raise wrong("max_tokens", f"must be a whole number of at least 1, got {shown(cap)}")
        return cap

    def _id_of(self, model: str) -> str:
        """The model that is meant: also by a name with a date, as this vendor's clients know them."""
        kind, colon, _ = model.partition(":")
        if model == AUTO or (colon and kind in (AUTO, "policy")):
            return model
        aliases, pool = self._fleet.aliases, self._fleet.pool
        for name in (f"{VENDOR}/{model}", model):
            if name in pool.row or name in aliases:
                return name
        meant = model_called(model, [map(named, pool.models)], VENDOR, {})
        if meant is not None:
            return meant
        hint = did_you_mean(model, [*pool.row, *aliases]) or "GET /v1/models lists the known ids, 'auto' chooses one"
        raise wrong("model", f"is {shown(model)}, which is no known model", hint)

    def _place(self, path: str) -> str:
        if path.startswith("policy_id") and self.model.startswith("policy:"):
            return "model"
        for theirs, ours in _RENAMED.items():
            if path.startswith(theirs):
                return ours + path.removeprefix(theirs)
        return path


def _tree(body: bytes) -> Any:
    try:
        return _decode(body)
    except msgspec.DecodeError:
        pass  # what was raised may hold words of the body
    raise ValidationFailed.of(Problem("", "a number is out of range", "send one that a double can hold"))


def _metadata(fields: Fields | None, wishes: Wishes) -> dict[str, Any] | None:
    """What Anthropic takes, and what only we do."""
    user = None if fields is None else fields.get("user_id", str)
    if fields is not None:
        fields.end()
    told = {} if user is None else {"user_id": user}
    return told | (wishes.metadata or {}) or None


def _stops(given: list[Any] | None) -> list[str] | None:
    for at, each in enumerate(given or ()):
        if not isinstance(each, str) or not each:
            raise wrong(f"stop_sequences[{at}]", "must be a string that is not empty")
    return given or None
