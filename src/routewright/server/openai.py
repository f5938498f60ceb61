"""The door for clients of OpenAI: chat completions and models, as its SDKs ask for and read them (contract 14).

A body becomes a route request, an answer a completion or chunks of one. Fields that have no meaning here are ignored
and named in a header; what would change the meaning is refused.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Container, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from routewright import Stream
from routewright._core.request.json_scan import decode, quoted, scan
from routewright._core.request.problems import did_you_mean, listed, problem_of, shown
from routewright._core.request.read import converted
from routewright._core.trace.ids import milliseconds_of
from routewright.errors import NotFound, Problem, RateLimited, RouterError, ValidationFailed
from routewright.wire import (
    Goal,
    Model,
    NamedToolChoice,
    OutputDelta,
    RouteCompleted,
    RouteFallback,
    RouteRequest,
    RouteResponse,
    RouteStarted,
    StreamError,
    Tokens,
    ToolCallData,
    ToolCallDelta,
    error_envelope,
)

from .endpoints import Service
from .errors import fit, told
from .exchange import Exchange
from .sse import Frame
from .vendors import (
    AUTO,
    FIELD,
    PLACES,
    Ignored,
    Words,
    check_placed,
    places_of,
    routing_headers,
    wished,
    wishes_of,
    wrong,
)

Fields = dict[str, Any]

PATH = "/openai/v1/chat/completions"
VENDOR = "openai"
WORDS = Words(PLACES, "GET /openai/v1/models")
_encode = msgspec.json.encode


# The endpoints.


async def completions(service: Service, exchange: Exchange) -> None:
    """Answer a chat, whole or in chunks."""
    caller = await service.auth.caller(exchange, "route")
    asked = Asked(service.router.model_names(caller=caller))
    try:
        prepared = await service.prepare(exchange, caller, asked.request_of, PATH)
        if prepared.request.stream:
            await service.send(exchange, prepared, ChunkFrames(exchange, prepared.stream(), asked))
            return
        response, limits = await service.answer(exchange, prepared)
        headers = routing_headers(response) | limits | limit_headers(limits, exchange.clock.time())
        await exchange.json(completion_of(response), headers | asked.ignored.headers)
    except RouterError as error:
        raise in_words(error, asked.words, exchange.clock.time()) from None


async def models(service: Service, exchange: Exchange) -> None:
    """The models that can be called now, and the names that leave the choice to the router."""
    caller = await service.auth.caller(exchange, "models:read")
    known = service.router.models(caller=caller)
    callable_now = [model_of(model) for model in known if model.availability.status != "unavailable"]
    await exchange.json({"object": "list", "data": [*CHOSEN, *callable_now]})


async def model(service: Service, exchange: Exchange) -> None:
    """One model, by any name that a request may give it."""
    caller = await service.auth.caller(exchange, "models:read")
    name = exchange.parameter
    known = {each["id"]: each for each in CHOSEN}
    known |= {each.id: model_of(each) for each in service.router.models(caller=caller)}
    names = service.router.model_names(caller=caller)
    found = known.get(name) or known.get(f"{VENDOR}/{name}") or known.get(names.get(name, ""))
    if found is None:
        hint = did_you_mean(name, known) or did_you_mean(f"{VENDOR}/{name}", known)
        hint = hint or "GET /openai/v1/models lists those that can be called"
        raise NotFound(f"there is no model {quoted(name)}; {hint}")
    await exchange.json(found)


# Requests.

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
"""Values that ask for nothing: fields that are ignored with these need not be named."""
_GIVEN_UP = {"functions": "tools", "function_call": "tool_choice"}
_PARAMS = ("temperature", "top_p", "stop", "seed", "response_format")
_CAPS = ("max_completion_tokens", "max_tokens")
_OPTIONS = frozenset(("include_usage", "include_obfuscation"))


class StreamOptions(Struct, frozen=True):
    """``stream_options``."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class AllowedTools(Struct, frozen=True):
    """``tool_choice.allowed_tools``: some of the declared tools, and whether one has to be called."""

    mode: Literal["auto", "required"]
    tools: list[NamedToolChoice]


class Asked:
    """One request. ``request_of`` is a ``Decode`` for ``Service.prepare``; the rest is known once it was called."""

    def __init__(self, known: Container[str]) -> None:
        """``known``: ids and aliases of models."""
        self.ignored = Ignored()
        self.wants_usage = False
        """A stream ends with what was used."""
        self.words: Words | None = None
        """What fields are called; None: there is no route request yet, and errors speak of what was sent."""
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
        """The fields that the route request has, too. A wrong type passes unchanged, and the decoder reports it."""
        params = {name: given.get(name) for name in _PARAMS} | {"max_output_tokens": given.get(cap)}
        messages, tools = given.get("messages"), given.get("tools")
        if type(messages) is list:
            messages = [message_of(f"messages[{place}]", each, self.ignored) for place, each in enumerate(messages)]
        if type(tools) is list:
            tools = [_with(each, _TOOL, "function", _FUNCTION, self.ignored) for each in tools]
        like = {
            "messages": messages,
            "stream": given.get("stream"),
            "tools": tools,
            "tool_choice": _with(given.get("tool_choice"), _CHOICE, "function", _NAME, self.ignored),
            "params": _present(params) or None,
            "metadata": given.get("metadata"),
        }
        try:
            return msgspec.convert(_present(like), RouteRequest)
        except msgspec.ValidationError as error:
            problem = problem_of(error, like, "")
        raise ValidationFailed.of(words.problem(problem))

    def _note(self, given: Fields) -> None:
        """Note what is ignored, and what the answer has to heed."""
        for name, value in given.items():
            if name not in HONOURED and value is not None and value not in AS_EVER.get(name, ()):
                self.ignored.add(name)
        options = given.get("stream_options")
        if options is None:
            return
        options = converted(self.ignored.keep(options, _OPTIONS), StreamOptions, "stream_options")
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
    """Refuse what the route request has no field for, and what cannot be ignored."""
    model, n = given.get("model"), given.get("n")
    if type(model) is not str:
        problem = "is missing" if model is None else f"must be a string, got {shown(model)}"
        raise wrong("model", problem, "send an id from GET /openai/v1/models, 'auto', 'auto:<goal>' or 'policy:<id>'")
    if n is not None and (n != 1 or n is True):
        raise wrong(
            "n", f"must be 1, got {shown(n)}", "leave it out, and send the request as often as you want answers"
        )
    for name, instead in _GIVEN_UP.items():
        if given.get(name) is not None:
            raise wrong(name, "has been given up", f"send {instead!r} instead")


def _cap(given: Fields) -> str:
    """Which of two fields caps the output. Raises ``ValidationFailed`` where they disagree."""
    (name, cap), (older, older_cap) = ((name, given.get(name)) for name in _CAPS)
    if older_cap is None:
        return name
    if cap is not None and cap != older_cap:
        raise wrong(name, f"is {shown(cap)}, and {older} says {shown(older_cap)}", f"send {name!r} alone")
    return older if cap is None else name


def _allowed(request: RouteRequest, choice: Fields) -> RouteRequest:
    """The request with the tools that a choice allows."""
    path = "tool_choice.allowed_tools"
    allowed = converted(choice.get("allowed_tools"), AllowedTools, path)
    declared = [tool.function_spec.name for tool in request.tools or ()]
    names = [each.function.name for each in allowed.tools]
    for place, name in enumerate(names):
        if name not in declared:
            said = f"declared: {listed(list(dict.fromkeys(declared)))}" if declared else "there are no tools"
            problem = f"names the tool {shown(name)}, which is not declared ({said})"
            raise wrong(f"{path}.tools[{place}].function.name", problem, "declare it in 'tools'")
    kept = [tool for tool in request.tools or () if tool.function_spec.name in names]
    return replace(request, tools=kept, tool_choice=allowed.mode)


def _present(fields: Fields) -> Fields:
    return {name: value for name, value in fields.items() if value is not None}


# Messages and tools, whose shapes are nearly those of the route request.

_MESSAGE = frozenset(("role", "content", "name", "tool_calls", "tool_call_id", "refusal", "function_call"))
_PARTS = {
    "text": frozenset(("type", "text")),
    "refusal": frozenset(("type", "refusal")),
    "image_url": frozenset(("type", "image_url")),
}
_NO_PARTS = {
    "input_audio": "send what is said in it as text",
    "file": "send its text, or its pages as image_url parts",
}
"""Parts that no model is sent here, and what to send in their place."""
_IMAGE_URL = frozenset(("url", "detail"))
_CALL, _CALLED = frozenset(("id", "type", "function")), frozenset(("name", "arguments"))
_TOOL = frozenset(("type", "function", "name", "description", "parameters", "strict"))
_FUNCTION = frozenset(("name", "description", "parameters", "strict"))
_CHOICE, _NAME = frozenset(("type", "function")), frozenset(("name",))


def message_of(path: str, given: Any, ignored: Ignored) -> Any:
    """One message. Raises ``ValidationFailed`` for what has been given up, and for audio and files."""
    message = ignored.keep(given, _MESSAGE)
    if type(message) is not dict:
        return message
    if message.get("role") == "function":
        hint = "send role 'tool', with the tool_call_id of the call that it answers"
        raise wrong(f"{path}.role", "is 'function', which has been given up", hint)
    if message.get("function_call") is not None:
        raise wrong(f"{path}.function_call", "has been given up", "send it as one of tool_calls, with an id")
    made: Fields = {name: each for name, each in message.items() if name not in ("refusal", "function_call")}
    refusal = message.get("refusal")
    if type(refusal) is str and made.get("content") is None:  # what a model said in refusing is what it said
        made["content"] = refusal
    elif refusal is not None:
        ignored.add("refusal")
    if type(made.get("content")) is list:
        made["content"] = [_part(f"{path}.content[{n}]", part, ignored) for n, part in enumerate(made["content"])]
    if type(made.get("tool_calls")) is list:
        made["tool_calls"] = [_with(each, _CALL, "function", _CALLED, ignored) for each in made["tool_calls"]] or None
    return made


def _part(path: str, given: Any, ignored: Ignored) -> Any:
    kind = given.get("type") if type(given) is dict else None
    if type(kind) is not str:
        return given
    if kind in _NO_PARTS:
        raise wrong(path, f"is of type {quoted(kind)}, which no model is sent here", _NO_PARTS[kind])
    if kind not in _PARTS:
        return given
    if kind == "image_url":
        part = _with(given, _PARTS[kind], "image_url", _IMAGE_URL, ignored)
        image = part.get("image_url")
        if type(image) is dict and image.get("detail") == "original":  # which only one vendor knows
            ignored.add("detail")
            part = {**part, "image_url": {name: each for name, each in image.items() if name != "detail"}}
        return part
    part = ignored.keep(given, _PARTS[kind])
    if kind == "text":
        return part
    if type(part.get("refusal")) is not str:
        raise wrong(f"{path}.refusal", "must be a string")
    return {"type": "text", "text": part["refusal"]}


def _with(given: Any, known: frozenset[str], name: str, inside: frozenset[str], ignored: Ignored) -> Any:
    """An object's known fields; of those in its field ``name`` the known ones, too."""
    outer = ignored.keep(given, known)
    inner = outer.get(name) if type(outer) is dict else None
    kept = ignored.keep(inner, inside)
    return outer if kept is inner else {**outer, name: kept}


# Answers.

FinishReason = Literal["stop", "length", "tool_calls"]
_FINISH: dict[str | None, FinishReason] = {"length": "length", "budget": "length", "tool_calls": "tool_calls"}
"""Why an answer ended, in OpenAI's words; else it stopped of itself."""
_COUNTS = ("X-RateLimit-Limit", "X-RateLimit-Remaining")


def completion_of(response: RouteResponse) -> Fields:
    """An answer as a chat completion."""
    trace_id, calls = response.trace_id, response.tool_calls
    message: Fields = {
        "role": "assistant",
        "content": None if calls and not response.output else response.output,
        "refusal": None,  # a refusal is an error here
    }
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_of(response)}
    return {
        "id": _completion_id(trace_id),
        "object": "chat.completion",
        "created": _created_at(trace_id),
        "model": response.routing.selected_model,
        "choices": [choice],
        "usage": _usage_of(response.routing.tokens),
    }


def _finish_of(response: RouteResponse) -> FinishReason:
    """Why it ended. With tool calls in it clients look for ``tool_calls``, whatever the model's host calls its end."""
    reason = _FINISH.get(response.finish_reason, "stop")
    return "tool_calls" if response.tool_calls and reason == "stop" else reason


def _usage_of(tokens: Tokens) -> Fields:
    return {
        "prompt_tokens": tokens.input,
        "completion_tokens": tokens.output,
        "total_tokens": tokens.input + tokens.output,
        "prompt_tokens_details": {"cached_tokens": tokens.cached},
    }


def _completion_id(trace_id: str) -> str:
    return f"chatcmpl-{trace_id.removeprefix('tr_')}"


def _created_at(trace_id: str) -> int:
    """When the call began, in Unix seconds: of a replayed answer, when it was made."""
    return milliseconds_of(trace_id) // 1000


def model_of(model: Model) -> Fields:
    """A model as OpenAI lists it."""
    return _listed(model.id, model.provider, _released(model.released_at), model.deprecated_at)


def _listed(id: str, owned_by: str, created: int = 0, shutdown_date: str | None = None) -> Fields:
    return {"id": id, "object": "model", "created": created, "owned_by": owned_by, "shutdown_date": shutdown_date}


CHOSEN = [_listed(name, "routewright") for name in (AUTO, *(f"{AUTO}:{goal}" for goal in get_args(Goal)))]
"""Names that leave the choice to the router."""


def _released(at: str | None) -> int:
    """The day on which a model came out, in Unix seconds; 0: not known."""
    if not at:
        return 0
    try:
        day = datetime.fromisoformat(at if len(at) > len("YYYY-MM") else f"{at}-01")
    except ValueError:
        return 0
    return int(day.replace(tzinfo=UTC).timestamp())


def limit_headers(told: Mapping[str, str], now: float) -> dict[str, str]:
    """The window that our headers describe, of requests or of tokens, as OpenAI's clients read it."""
    resource, reset = told.get("X-RateLimit-Resource"), told.get("X-RateLimit-Reset")
    if resource is None or reset is None:
        return {}
    headers = {f"{name}-{resource.title()}": told[name] for name in _COUNTS}
    return headers | {f"X-RateLimit-Reset-{resource.title()}": f"{max(0, int(reset) - int(now))}s"}


# Streams.

DONE = b"data: [DONE]\n\n"


class ChunkFrames:
    """The chunks of one call (``sse.Frames``). Nothing that was sent can be taken back, so a fault after it is an
    error."""

    def __init__(self, exchange: Exchange, stream: Stream, asked: Asked) -> None:
        self.headers = asked.ignored.headers
        stream.expect_text()
        self._exchange = exchange
        self.stream = stream
        self._asked = asked
        self._id = self._model = ""
        self._created = 0
        self._begun = False
        self._places: dict[int, int] = {}
        """Tool calls by the index that their model gave them: clients see 0, 1 and so on."""
        self._told: set[tuple[int, str]] = set()
        """What was told of each call, and is not repeated: clients join the pieces."""

    async def __aiter__(self) -> AsyncGenerator[Frame, None]:
        """Give them in order. Raises what the call ends in, if that is no answer."""
        async with self.stream as stream:
            async for event in stream:
                match event:
                    case RouteStarted(data=data):
                        self._exchange.trace_id = data.trace_id
                        self._id, self._created = _completion_id(data.trace_id), _created_at(data.trace_id)
                        self._model = data.routing.selected_model
                        limits = limit_headers(stream.headers, self._exchange.clock.time())
                        self.headers |= routing_headers(data) | limits
                    case RouteFallback(data=data):
                        self._model = self.headers["X-Routewright-Model"] = data.to_model
                    case OutputDelta(data=data):
                        yield Frame(self._begin("") + self._chunk({"content": data.text}))
                    case ToolCallDelta(data=data):
                        yield Frame(self._begin(None) + self._chunk({"tool_calls": [self._piece(data)]}))
                    case RouteCompleted(data=response):
                        yield Frame(self._end(response))
                    case StreamError():
                        stream.raise_failure()

    def last_words(self, error: Exception) -> bytes:
        """An error as a chunk, which SDKs raise. No ``[DONE]`` follows: the answer is not whole."""
        now = self._exchange.clock.time()
        error = in_words(told(error, self._exchange.request_id), self._asked.words, now)
        return b"data: %s\n\n" % envelope(error)

    def _begin(self, content: str | None) -> bytes:
        """The chunk that says who speaks, before the first one."""
        if self._begun:
            return b""
        self._begun = True
        return self._chunk({"role": "assistant", "content": content})

    def _piece(self, data: ToolCallData) -> Fields:
        place = self._places.setdefault(data.index, len(self._places))
        function = self._once(place, name=data.name) | {"arguments": data.arguments}
        return {"index": place, **self._once(place, id=data.call_id, type="function"), "function": function}

    def _once(self, place: int, **values: str) -> Fields:
        """Those of the values that a call has and was not told with."""
        new = {name: value for name, value in values.items() if value and (place, name) not in self._told}
        self._told.update((place, name) for name in new)
        return new

    def _end(self, response: RouteResponse) -> bytes:
        self._model = response.routing.selected_model
        last = self._begin("") + self._chunk({}, _finish_of(response))
        if self._asked.wants_usage:
            last += self._framed([], _usage_of(response.routing.tokens))
        return last + DONE

    def _chunk(self, delta: Fields, finish_reason: FinishReason | None = None) -> bytes:
        return self._framed([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}], None)

    def _framed(self, choices: list[Fields], usage: Fields | None) -> bytes:
        chunk: Fields = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }
        if self._asked.wants_usage:  # null in all chunks but the last
            chunk["usage"] = usage
        return b"data: %s\n\n" % _encode(chunk)


# Errors.

TYPES = {
    "validation_error": "invalid_request_error",
    "request_error": "invalid_request_error",
    "conflict_error": "invalid_request_error",
    "constraint_error": "invalid_request_error",
    "billing_error": "insufficient_quota",
    "internal_error": "server_error",
    "upstream_error": "server_error",
    "timeout_error": "server_error",
}
"""OpenAI's names for types of errors; the others are the same as ours."""


def envelope(error: RouterError) -> bytes:
    """The body of an error response, and the last chunk of a stream that failed. No API key is repeated."""
    ours = error_envelope(error).error
    problems = error.problems if isinstance(error, ValidationFailed) else ()
    more = {"request_id": ours.request_id, "trace_id": ours.trace_id, "detail": ours.detail}
    body = {
        "message": ours.message,
        "type": TYPES.get(ours.type, ours.type),
        "param": problems[0].path or None if problems else None,
        "code": ours.code,
        **_present(more),
    }
    return fit(_encode({"error": body}))


def in_words(error: RouterError, words: Words | None, now: float) -> RouterError:
    """The error in the client's own words for fields, with a header that says whether to try again: OpenAI's SDKs
    would do so after every 409 and 5xx."""
    said = error if words is None else words.error(error)
    said.headers = {**error.headers, "X-Should-Retry": "true" if error.retryable else "false"}
    if error.trace_id is not None:
        said.headers["X-Routewright-Trace-Id"] = error.trace_id
    if isinstance(error, RateLimited) and error.detail.get("limit_of") != "concurrency":
        said.headers |= limit_headers(error.headers, now)
    return said
