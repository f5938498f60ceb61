"""The body of ``POST /v1/messages`` as a route request: what is honoured, and what is ignored and named."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from routewright._core.model_name import model_called, named
from routewright._core.request.json_scan import decode, scan
from routewright._core.request.problems import did_you_mean, shown
from routewright.errors import Problem, ValidationFailed
from routewright.router import Router
from routewright.server.door import AUTO, FIELD, PLACES, Ignored, Wishes, check_placed, places_of, wished, wishes_of
from routewright.server.words import Words
from routewright.wire import Caller, Message, Params, RouteRequest

from .content import Placed, messages_of, system_of
from .fields import Fields, wrong
from .tools import choice_of, form_of, tools_of

VENDOR = "anthropic"
_MOST_TOKENS = 2**53 - 1
_FORM = "output_config.format"
WORDS = Words(
    {
        **PLACES,
        "params.max_output_tokens": "max_tokens",
        "params.stop": "stop_sequences",
        "params.response_format": _FORM,
        "params.response_format.json_schema": _FORM,
        "tool_choice.function": "tool_choice",
    },
    "GET /v1/models",
)


class Reading:
    """Reads one body: ``decode`` makes the request, the rest says what it was made of."""

    def __init__(self, router: Router, caller: Caller, *, capped: bool) -> None:
        """``capped``: the answer's length has to be limited, as it is where there is to be an answer."""
        self.model = AUTO
        """As it was asked for; a name without doubt is the id that it means."""
        self.ignored = Ignored()
        self.words: Words | None = None
        """What fields are called; None: the route request has not been made, and errors speak of what was sent."""
        self.names = router.model_names(caller=caller)
        """Ids and aliases of models, each with the id that it means."""
        self._models = partial(router.models, caller=caller)
        self._capped = capped

    def decode(self, body: bytes) -> RouteRequest:
        """Raises ``InvalidJson`` and ``ValidationFailed``, which names fields as the Messages API does."""
        scan(body)
        tree = _tree(body)
        fields = Fields(tree, "", self.ignored)
        check_placed(tree)
        self.model = self._id_of(fields.need("model", str, "an id, or 'auto'"))
        wishes = wishes_of(fields.get(FIELD, dict), WORDS)
        turns = self._turns(fields)
        request = self._request(fields, wishes, [message for _, message in turns])
        fields.end()
        made = wished(request, self.model, VENDOR, replace(wishes, metadata=None), self.names)
        self.words = WORDS.having(self._places(tree, wishes), [place for place, _ in turns])
        return made

    def _places(self, tree: dict[str, Any], wishes: Wishes) -> dict[str, str]:
        """Where this body says what may be said in several places."""
        told = places_of(self.model)
        if wishes.metadata and tree.get("metadata") is None:
            told["metadata"] = f"{FIELD}.metadata"
        if (tree.get("output_config") or {}).get("format") is None:
            told |= dict.fromkeys(("params.response_format", "params.response_format.json_schema"), "output_format")
        return told

    def _turns(self, fields: Fields) -> list[Placed]:
        system = system_of(fields.either("system"), self.ignored)
        turns = fields.each("messages")
        if not turns:
            raise wrong("messages", "must hold at least one message")
        return [*system, *messages_of(turns)]

    def _request(self, fields: Fields, wishes: Wishes, messages: list[Message]) -> RouteRequest:
        tools = tools_of(fields.each("tools"))
        return RouteRequest(
            messages=messages,
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
        for name in (f"{VENDOR}/{model}", model):
            if name in self.names:
                return name
        meant = model_called(model, [map(named, self._models())], VENDOR, {})
        if meant is not None:
            return meant
        hint = did_you_mean(model, self.names) or "GET /v1/models lists the known ids, 'auto' chooses one"
        raise wrong("model", f"is {shown(model)}, which is no known model", hint)


def _tree(body: bytes) -> Any:
    try:
        return decode(body)
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
