"""What does a body of chat completions ask for? Makes a route request of it, and notes what the answer has to heed."""

from __future__ import annotations

from collections.abc import Container
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from routewright._core.request.json_scan import decode, scan
from routewright._core.request.problems import listed, problem_of, shown
from routewright._core.request.read import converted
from routewright.errors import Problem, ValidationFailed
from routewright.server.door import FIELD, PLACES, check_placed, places_of, wished, wishes_of
from routewright.server.words import Words
from routewright.wire import NamedToolChoice, RouteRequest

from .messages import Fields, Noted, choice_of, messages_of, tools_of

PATH = "/openai/v1/chat/completions"
WORDS = Words(PLACES, "GET /openai/v1/models")
VENDOR = "openai"
HONOURED = frozenset(
    "model messages max_tokens max_completion_tokens temperature top_p stop seed response_format tools tool_choice "
    "stream stream_options metadata n functions function_call routewright".split()
)
AS_EVER: Fields = {
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True,),
    "presence_penalty": (0,),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
}
"""What asks for nothing: fields that are left out with these values need not be named."""
_GIVEN_UP = {"functions": "tools", "function_call": "tool_choice"}
_PARAMS = ("temperature", "top_p", "stop", "seed", "response_format")
_CAPS = ("max_completion_tokens", "max_tokens")
_OPTIONS = frozenset(("include_usage", "include_obfuscation"))


class StreamOptions(Struct, frozen=True):
    """``stream_options``."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class AllowedTools(Struct, frozen=True):
    """``tool_choice.allowed_tools``: some of the declared tools, and whether one is to be called."""

    mode: Literal["auto", "required"]
    tools: list[NamedToolChoice]


class Asked:
    """One request. ``request_of`` is a ``Decode`` for ``Service.read``; the rest is known once it was called."""

    def __init__(self, known: Container[str]) -> None:
        """``known``: ids and aliases of models."""
        self.ignored = Noted()
        """Names of fields that were left unheeded."""
        self.wants_usage = False
        """A stream is to tell what was used."""
        self.words: Words | None = None
        """What fields are called; None: the route request has not been made, and errors speak of what was sent."""
        self._known = known

    def request_of(self, body: bytes) -> RouteRequest:
        """Make a request of a body, right in its types. Raises ``InvalidJson`` and ``ValidationFailed``."""
        scan(body)
        given = _decoded(body)
        _check(given)
        check_placed(given)
        cap = _cap(given)
        words = WORDS.having({"params.max_output_tokens": cap, **places_of(given["model"])})
        wishes = wishes_of(given.get(FIELD), words)
        self._note(given)
        choice = given.get("tool_choice")
        if type(choice) is dict and choice.get("type") == "allowed_tools":
            request = _allowed(self._shaped({**given, "tool_choice": None}, cap, words), choice)
        else:
            request = self._shaped(given, cap, words)
        told_apart = wishes.metadata and not request.metadata
        self.words = words.having({"metadata": f"{FIELD}.metadata"}) if told_apart else words
        if request.metadata and wishes.metadata:
            wishes = replace(wishes, metadata=request.metadata | wishes.metadata)
        return wished(request, given["model"], VENDOR, wishes, self._known)

    def _shaped(self, given: Fields, cap: str, words: Words) -> RouteRequest:
        """The fields that have a like in the route request."""
        params = {name: given.get(name) for name in _PARAMS} | {"max_output_tokens": given.get(cap)}
        like = {
            "messages": messages_of(given.get("messages"), self.ignored),
            "stream": given.get("stream"),
            "tools": tools_of(given.get("tools"), self.ignored),
            "tool_choice": choice_of(given.get("tool_choice"), self.ignored),
            "params": _present(params) or None,
            "metadata": given.get("metadata"),
        }
        try:
            return msgspec.convert(_present(like), RouteRequest)
        except msgspec.ValidationError as error:
            problem = problem_of(error, like, "")
        raise ValidationFailed.of(words.problem(problem))

    def _note(self, given: Fields) -> None:
        """Note what is left unheeded, and what the answer has to heed."""
        for name, value in given.items():
            if name not in HONOURED and value is not None and value not in AS_EVER.get(name, ()):
                self.ignored.add(name)
        told = given.get("stream_options")
        if told is None:
            return
        options = converted(self.ignored.keep(told, _OPTIONS), StreamOptions, "stream_options")
        self.wants_usage = options.include_usage is True
        if options.include_obfuscation:
            self.ignored.add("include_obfuscation")
        if not given.get("stream"):
            self.ignored.add("stream_options")


def _decoded(body: bytes) -> Fields:
    try:
        given: object = decode(body)
    except msgspec.ValidationError as error:  # a number that nothing can hold
        problem = problem_of(error, None, "")
    else:
        if type(given) is dict:
            return given
        problem = Problem("", f"must be an object, got {shown(given)}", "send model and messages in one JSON object")
    raise ValidationFailed.of(problem)


def _check(given: Fields) -> None:
    """Refuse what there is no like of in the route request, and no way to leave it out."""
    model, n = given.get("model"), given.get("n")
    if type(model) is not str:
        said = "is missing" if model is None else f"must be a string, got {shown(model)}"
        hint = "send an id from GET /openai/v1/models, 'auto', 'auto:<goal>' or 'policy:<id>'"
        raise ValidationFailed.of(Problem("model", said, hint))
    if n is not None and (n != 1 or n is True):
        hint = "leave it out, and send the request as often as you want answers"
        raise ValidationFailed.of(Problem("n", f"must be 1, got {shown(n)}", hint))
    for name, instead in _GIVEN_UP.items():
        if given.get(name) is not None:
            raise ValidationFailed.of(Problem(name, "has been given up", f"send {instead!r} instead"))


def _cap(given: Fields) -> str:
    """Which of two fields caps the output. Raises ``ValidationFailed`` where they disagree."""
    (name, cap), (older, older_cap) = ((name, given.get(name)) for name in _CAPS)
    if older_cap is None:
        return name
    if cap is not None and cap != older_cap:
        said = f"is {shown(cap)}, and {older} says {shown(older_cap)}"
        raise ValidationFailed.of(Problem(name, said, f"send {name!r} alone"))
    return older if cap is None else name


def _allowed(request: RouteRequest, choice: Fields) -> RouteRequest:
    """The request with the tools that a choice allows."""
    path = "tool_choice.allowed_tools"
    allowed = converted(choice.get("allowed_tools"), AllowedTools, path)
    tools = {tool.function_spec.name: tool for tool in request.tools or ()}
    for place, each in enumerate(allowed.tools):
        if each.function.name not in tools:
            declared = f"declared: {listed([*tools])}" if tools else "there are no tools"
            said = f"names the tool {shown(each.function.name)}, which is not declared ({declared})"
            raise ValidationFailed.of(Problem(f"{path}.tools[{place}].function.name", said, "declare it in 'tools'"))
    names = {each.function.name for each in allowed.tools}
    kept = [tool for tool in request.tools or () if tool.function_spec.name in names]
    return replace(request, tools=kept, tool_choice=allowed.mode)


def _present(fields: Fields) -> Fields:
    return {name: value for name, value in fields.items() if value is not None}
