"""The API for OpenAI's clients: chat completions and models (contract 14).

A body becomes a route request, the answer a completion or its chunks. Vendor-specific fields are passed to the vendor.
Fields without a meaning here are ignored and listed in a header; fields that would change the meaning are refused."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, cast, get_args

import msgspec
from msgspec.structs import replace

from routewright import wire
from routewright.catalogue import AUTO, chooses
from routewright.errors import RouterError, ValidationFailed
from routewright.wire import JsonObject
from routewright.wire.conversion import convert_value
from routewright.wire.ids import milliseconds_of
from routewright.wire.json_stream import complete_object
from routewright.wire.problems import did_you_mean, listed, shown

from .client_tools import PARAMETERS, arguments_of, input_of, origin_of
from .endpoints import Service, released
from .errors import fit
from .exchange import Exchange
from .fields import Fields, wrong
from .vendor_call import Block, CallFrames, VendorCall, answer, model_at, reason_of
from .vendor_requests import EFFORTS, PLACES, ModelNotFound, Words, join_thoughts, mark_of

PATH = "/openai/v1/chat/completions"
VENDOR = "openai"
LISTED_AT = "GET /openai/v1/models"
WORDS = Words({**PLACES, "params.reasoning": "reasoning_effort"}, LISTED_AT)
_encode = msgspec.json.encode


async def completions(service: Service, exchange: Exchange) -> None:
    """Answer a chat, complete or in chunks."""
    await answer(service, exchange, ChatCall(), PATH, ChunkFrames)


async def models(service: Service, exchange: Exchange) -> None:
    """The callable models, and the names that leave the choice to the router."""
    caller = await service.auth.caller(exchange, "models:read")
    all_models = service.router.models(caller=caller)
    callable_now = [model_of(model) for model in all_models if model.availability.status != "unavailable"]
    await exchange.json({"object": "list", "data": [*CHOSEN.values(), *callable_now]})


async def model(service: Service, exchange: Exchange) -> None:
    """One model, by any of its names."""
    if (entry := CHOSEN.get(exchange.parameter)) is None:
        entry = model_of(await model_at(service, exchange, ChatCall()))
    else:
        await service.auth.caller(exchange, "models:read")
    await exchange.json(entry)


# Requests of both APIs of OpenAI

_COUNTS = ("X-RateLimit-Limit", "X-RateLimit-Remaining")
_MODES = ("auto", "none", "required")
_OTHER_TONGUES = frozenset(("anthropic", "google"))
"""Providers that refuse OpenAI's fields."""
_SWITCHES = {
    "web_search": 'web_search = "disabled" in config.toml',
    "image_generation": "image_generation = false below [features] in config.toml",
}
"""What turns off tools that Codex sends."""


class OpenAICall(VendorCall):
    """One call of chat completions or responses."""

    vendor = VENDOR
    passthrough: ClassVar[frozenset[str]]
    """Fields that are passed unchanged to OpenAI's models, and to hosts with the same protocol."""
    unsupported: ClassVar[frozenset[str]]
    """Ignored fields: they ask for things that answers here do not have."""
    parts: ClassVar[Mapping[str, str]]
    """Types of a message's parts, with their names in chat completions."""
    nests: ClassVar[bool]
    """True if the fields of a typed object are in an inner object named like the type."""
    late_tools: Sequence[Fields] = ()
    """Tools that are declared within the chat."""

    @property
    def provider(self) -> str | None:
        """Provider of the named model, or None if none is named."""
        return None if chooses(self.model) else self.directory.names.get(self.model, self.model).partition("/")[0]

    def limits(self, limit_headers: Mapping[str, str], now: float) -> dict[str, str]:
        """The limit of our headers, of requests or tokens, in OpenAI's headers."""
        resource, reset = limit_headers.get("X-RateLimit-Resource"), limit_headers.get("X-RateLimit-Reset")
        if resource is None or reset is None:
            return {}
        headers = {f"{name}-{resource.title()}": limit_headers[name] for name in _COUNTS}
        return headers | {f"X-RateLimit-Reset-{resource.title()}": f"{max(0, int(reset) - int(now))}s"}

    @abstractmethod
    def messages(self, fields: Fields) -> list[wire.Message]:
        """The messages."""

    @abstractmethod
    def dials(self, fields: Fields) -> JsonObject:
        """Fields of ``Params`` with different names in the two APIs."""

    def read(self, fields: Fields) -> wire.RouteRequest:
        """Make a request from the fields of a body."""
        messages = self.messages(fields)
        tools = [*self.tools(fields.objects("tools"))]
        names = {tool.function_spec.name for tool in tools}
        late = {tool.function_spec.name: tool for tool in self.tools(self.late_tools)}
        choice, tools = self.choice(fields, [*tools, *(tool for name, tool in late.items() if name not in names)])
        metadata = fields.get("metadata", dict)
        stream = fields.get("stream", bool)
        params = {
            **self.dials(fields),
            "temperature": fields.get("temperature", float),
            "top_p": fields.get("top_p", float),
            "parallel_tool_calls": fields.get("parallel_tool_calls", bool),
        }
        tier = fields.get("service_tier", str)
        if tier is not None and tier not in get_args(wire.ServiceTier):  # of OpenAI's contracts
            self.ignored.add("service_tier")
            tier = None
        # Of the rest, the provider gets the fields that callers may send it: for an unnamed model, OpenAI's own.
        provider = self.provider or VENDOR
        allowed = frozenset(() if provider in _OTHER_TONGUES else self.directory.extra(provider))
        passed = allowed - self.unsupported if self.provider else allowed & self.passthrough
        extra = {name: fields.take(name) for name in fields.sent if name in passed and fields.peek(name) is not None}
        self.places[f"params.extra.{provider}"] = ""
        self.ignored.extra = {provider: extra}
        return wire.RouteRequest(
            messages=messages,
            tools=tools or None,
            tool_choice=choice,
            metadata=metadata,
            stream=stream or False,
            params=wire.Params(
                **params, service_tier=cast("wire.ServiceTier | None", tier), extra={provider: extra} if extra else None
            ),
        )

    def inside(self, fields: Fields, kind: str) -> Fields:
        """The fields of a typed object."""
        return fields.object(kind) if self.nests else fields

    def part(self, part: Fields) -> wire.Part:
        """One part of a message."""
        kind = self.parts[part.one_of("type", self.parts)]
        mark = mark_of(part)
        if kind in ("text", "refusal"):
            part.forget("annotations", "logprobs")
            return wire.TextPart(part.need(kind, str, "it must be a string"), mark)
        if kind == "input_audio":
            inner = part.object(kind)
            data = inner.need("data", str)
            format = inner.one_of("format", ("wav", "mp3"))
            return wire.AudioPart(wire.InputAudio(data, cast('Literal["wav", "mp3"]', format)), mark)
        inner = self.inside(part, kind)
        if inner.get("file_id", str) is not None:
            hint = "send the file itself as file_data, data:application/pdf;base64,..."
            raise inner.wrong("file_id", "names a stored file, but no files are stored here", hint)
        if kind == "file":
            name = "file_data" if inner.peek("file_url") is None else "file_url"
            data = inner.need(name, str, "send the file itself as file_data")
            return wire.FilePart(wire.FileData(data, inner.get("filename", str)), mark)
        url = inner.need("url" if self.nests else kind, str)
        detail = inner.may_be("detail", ("auto", "low", "high", "original"))
        if detail == "original":  # only OpenAI has it
            self.ignored.add("detail")
            detail = None
        return wire.ImagePart(wire.ImageUrl(url, cast('Literal["auto", "low", "high"] | None', detail)), mark)

    def tools(self, declarations: Iterable[Fields], namespace: str | None = None) -> Iterator[wire.Tool]:
        """The client's tools as functions. Tools that OpenAI runs are refused, since other vendors' models cannot use
        them, but not its tool search: models get all tools at once."""
        for fields in declarations:
            kind = fields.get("type", str) or "function"
            if kind == "namespace":
                yield from self.tools(fields.objects("tools"), fields.text("name"))
            elif kind == "tool_search" and fields.get("execution", str) != "client":
                self.ignored.add(kind)
            elif kind in ("function", "custom", "tool_search"):
                yield self._tool(fields, kind, namespace)
            else:
                own = f"Codex: {_SWITCHES[kind]}" if kind in _SWITCHES else "or declare your own of type 'function'"
                problem = f"is {shown(kind)}, a tool that only OpenAI runs or its models know"
                raise fields.wrong("type", problem, f"leave it out; {own}")

    def _tool(self, fields: Fields, kind: str, namespace: str | None) -> wire.Tool:
        mark = mark_of(fields)
        inner = fields.inner(kind)
        source = inner or fields
        origin = origin_of(source, kind)._replace(namespace=namespace)
        if kind != "function" or namespace:
            self.origins[origin.function] = origin
        description = source.get("description", str)
        parameters = source.get("parameters", dict)
        if kind == "custom":
            parameters = PARAMETERS
            form = source.inner("format")
            if grammar := (form.inner("grammar") or form).get("definition", str):
                description = f"{description or ''}\n\nThe input must match this grammar:\n{grammar}".strip()
            form.rest()
        spec = wire.FunctionSpec(origin.function, description, parameters, source.get("strict", bool))
        if inner:
            return wire.Tool(function=spec, cache_control=mark)
        return wire.Tool(**msgspec.structs.asdict(spec), cache_control=mark)

    def choice(
        self, fields: Fields, tools: list[wire.Tool]
    ) -> tuple[str | wire.NamedToolChoice | None, list[wire.Tool]]:
        """``tool_choice``, and the tools that it allows."""
        if not isinstance(fields.peek("tool_choice"), dict):
            mode = fields.get("tool_choice", str) if self.nests else fields.may_be("tool_choice", _MODES)
            return (None if mode == "auto" and not tools else mode), tools
        choice = fields.object("tool_choice")
        kind = choice.one_of("type", ("function", "custom", "allowed_tools"))
        inner = self.inside(choice, kind)
        if kind != "allowed_tools":
            return wire.NamedToolChoice(wire.FunctionName(origin_of(inner, kind).function)), tools
        mode = inner.one_of("mode", _MODES[::2])
        allowed = []
        declared = {tool.function_spec.name: tool for tool in tools}
        for reference in inner.objects("tools"):
            kind = reference.get("type", str) or "function"
            function = self.inside(reference, kind)
            name = origin_of(function, kind).function
            if name not in declared:
                alternatives = f"declared: {listed([*declared])}" if declared else "there are no tools"
                problem = f"names the tool {shown(name)}, which is not declared ({alternatives})"
                raise function.wrong("name", problem, did_you_mean(name, declared) or "declare it in 'tools'")
            allowed.append(declared[name])
        return mode, allowed


_ROLES = (*get_args(wire.Role), "function")
_STOPS: Any = str | list[str] | None
_TEXTS = ("reasoning_content", "reasoning")
"""Fields in which clients send reasoning back as text; ``reasoning_details`` has it as we sent it."""


class ChatCall(OpenAICall):
    """One call of chat completions."""

    names = WORDS
    refusals: ClassVar = {
        "functions": ("is no longer supported", "send 'tools' instead"),
        "function_call": ("is no longer supported", "send 'tool_choice' instead"),
    }
    passthrough = frozenset(
        "frequency_penalty logit_bias presence_penalty prompt_cache_key prompt_cache_retention safety_identifier "
        "user".split()
    )
    no_effect: ClassVar[dict[str, tuple[object, ...]]] = {
        "frequency_penalty": (0,),
        "logit_bias": ({},),
        "logprobs": (False,),
        "modalities": (["text"],),
        "presence_penalty": (0,),
        "store": (False,),
        "top_logprobs": (0,),
    }
    unsupported = frozenset(
        "audio logprobs modalities moderation prediction store top_logprobs web_search_options".split()
    )
    parts: ClassVar[dict[str, str]] = {name: name for name in ("text", "image_url", "input_audio", "file", "refusal")}
    nests = True
    wants_usage = False
    """A stream ends with its usage."""

    def answer_of(self, response: wire.RouteResponse) -> JsonObject:
        """An answer as a chat completion."""
        return completion_of(response, [name for name, origin in self.origins.items() if origin.kind == "custom"])

    def messages(self, fields: Fields) -> list[wire.Message]:
        """The messages."""
        return [self._message(item) for item in fields.objects("messages")]

    def dials(self, fields: Fields) -> JsonObject:
        """Fields of ``Params``. Refuses several answers and two different caps, and sets ``wants_usage``."""
        n = fields.take("n")
        options = fields.inner("stream_options")
        if n is not None and (n != 1 or n is True):
            raise wrong("n", f"must be 1, got {shown(n)}", "send one request for each answer")
        self.wants_usage = options.get("include_usage", bool) is True
        if options.peek("include_obfuscation") is False:
            options.forget("include_obfuscation")
        if options and not fields.sent.get("stream"):
            self.ignored.add("stream_options")
        effort = fields.may_be("reasoning_effort", EFFORTS)
        cap, older = fields.get("max_completion_tokens", float), fields.get("max_tokens", float)
        self.places["params.max_output_tokens"] = "max_completion_tokens" if older is None else "max_tokens"
        if None not in (cap, older) and cap != older:
            problem = f"is {shown(cap)}, but max_tokens is {shown(older)}"
            raise wrong("max_completion_tokens", problem, "send only 'max_completion_tokens'")
        return {
            "max_output_tokens": cap if older is None else older,
            "stop": convert_value(fields.take("stop"), _STOPS, "stop"),
            "seed": fields.get("seed", float),
            "response_format": fields.get("response_format", dict),
            "reasoning": effort and EFFORTS[effort],
            "verbosity": fields.may_be("verbosity", get_args(wire.Verbosity)),
        }

    def _message(self, item: Fields) -> wire.Message:
        """One message. Raises ``ValidationFailed`` for the old function calls."""
        role = item.one_of("role", _ROLES)
        if role == "function":
            hint = "send role 'tool' with the tool_call_id of the call"
            raise item.wrong("role", "is 'function', which is no longer supported", hint)
        if item.peek("function_call") is not None:
            raise item.wrong("function_call", "is no longer supported", "send it in tool_calls, with an id")
        raw = item.content("content")
        if raw is None and isinstance(item.peek("refusal"), str):  # the text of a refusal
            raw = item.get("refusal", str)
        content = [self.part(part) for part in raw] if isinstance(raw, list) else raw
        calls: list[wire.ToolCall] = []
        for call in item.objects("tool_calls"):
            kind = call.may_be("type", ("function", "custom")) or "function"
            id = call.need("id", str)
            inner = call.object(kind)
            arguments = arguments_of(inner) if kind == "function" else _encode({"input": inner.take("input")}).decode()
            calls.append(wire.ToolCall(id, wire.FunctionCall(inner.need("name", str), arguments)))
        if not content and role in ("assistant", "tool"):
            content = None if calls else ""
        return wire.Message(
            cast("wire.Role", role),
            content,
            tool_calls=calls or None,
            tool_call_id=item.get("tool_call_id", str),
            name=item.get("name", str),
            reasoning=self._thought(item) if role == "assistant" else None,
        )

    def _thought(self, item: Fields) -> wire.Reasoning | None:
        """The model's reasoning. ``reasoning_details`` may be ours or somebody else's. Plain text is only sent back to
        hosts that need nothing else, so it belongs to the named model."""
        details = item.take("reasoning_details")
        provider = self.provider
        packs = [entry.get("data") for entry in details if isinstance(entry, dict)] if isinstance(details, list) else []
        thoughts = [thought for thought in map(wire.Reasoning.unpack, packs) if thought is not None]
        texts = {name: text for name in _TEXTS if (text := item.take(name)) is not None}
        if thoughts:
            return join_thoughts(thoughts)
        if details:
            self.ignored.add("reasoning_details")
        for name, text in texts.items():
            if isinstance(text, str) and provider and provider not in (VENDOR, *_OTHER_TONGUES):
                return wire.Reasoning(provider, [{name: text}], text)
            if text:
                self.ignored.add(name)
        return None


_REASONS: dict[str | None, str] = {"length": "length", "budget": "length", "tool_calls": "tool_calls", None: "stop"}


def completion_of(response: wire.RouteResponse, customs: Container[str] = ()) -> JsonObject:
    """An answer as a chat completion. ``customs``: names of custom tools."""
    calls = [_call_of(call.id, call.function, call.function.name in customs) for call in response.tool_calls or ()]
    message: JsonObject = {
        "role": "assistant",
        "content": None if calls and not response.output else response.output,
        "refusal": None,  # refusals are errors here
    }
    if calls:
        message["tool_calls"] = calls
    if response.reasoning is not None:
        message |= _reasoning_fields(response.reasoning)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason_of(response, _REASONS)}
    completion = _chat_object("chat.completion", response.trace_id, response.routing.selected_model, [choice])
    return {**completion, "usage": usage_of(response.routing.tokens)}


def _call_of(id: str, call: wire.FunctionCall, is_custom: bool) -> JsonObject:
    if is_custom:
        return {"id": id, "type": "custom", "custom": {"name": call.name, "input": input_of(call.arguments)}}
    return {"id": id, "type": "function", "function": replace(call, arguments=complete_object(call.arguments))}


def _chat_object(kind: str, trace_id: str, model: str, choices: list[JsonObject]) -> JsonObject:
    id = f"chatcmpl-{trace_id.removeprefix('tr_')}"
    return {"id": id, "object": kind, "created": created_at(trace_id), "model": model, "choices": choices}


def _reasoning_fields(reasoning: wire.Reasoning, index: int = 0) -> JsonObject:
    """Reasoning as text, for clients of DeepSeek and others, and as details, which OpenRouter's clients send back."""
    details = {"type": "reasoning.encrypted", "format": "routewright", "index": index, "data": reasoning.pack()}
    return {
        **({"reasoning_content": reasoning.text} if reasoning.text else {}),
        **({"reasoning_details": [details]} if reasoning.items else {}),
    }


def usage_of(tokens: wire.Tokens, prompt: str = "prompt", completion: str = "completion") -> JsonObject:
    """Token counts. ``prompt`` and ``completion``: the API's words for input and output."""
    return {
        f"{prompt}_tokens": tokens.input,
        f"{completion}_tokens": tokens.output,
        "total_tokens": tokens.input + tokens.output,
        f"{prompt}_tokens_details": {"cached_tokens": tokens.cached, "cache_write_tokens": tokens.written},
        f"{completion}_tokens_details": {"reasoning_tokens": tokens.reasoning},
    }


def created_at(trace_id: str) -> int:
    """Start of the call in Unix seconds; of a replayed answer, of the original call."""
    return milliseconds_of(trace_id) // 1000


def model_of(model: wire.Model) -> JsonObject:
    """A model as OpenAI lists it."""
    return _listing(model.id, model.provider, released(model.released_at), model.deprecated_at)


def _listing(id: str, owned_by: str, created: int = 0, shutdown_date: str | None = None) -> JsonObject:
    return {"id": id, "object": "model", "created": created, "owned_by": owned_by, "shutdown_date": shutdown_date}


CHOSEN = {name: _listing(name, "routewright") for name in (AUTO, *(f"{AUTO}:{goal}" for goal in get_args(wire.Goal)))}
"""Names that leave the choice to the router."""


DONE = b"data: [DONE]\n\n"


class ChunkFrames(CallFrames):
    """The chunks of one call."""

    _vendor_call: ChatCall

    def _encode_error(self, error: RouterError) -> bytes:
        return b"data: %s\n\n" % envelope(error)

    def _begin_empty(self) -> Iterator[bytes]:
        yield self._chunk({"role": "assistant", "content": ""})

    def _begin_block(self, block: Block) -> Iterator[bytes]:
        if block.index == 0:
            yield self._chunk({"role": "assistant", "content": None if block.kind == "call" else ""})
        if block.kind == "thought":
            yield self._chunk(_reasoning_fields(block.thought, block.number))
        elif block.kind == "call" and block.origin.kind != "custom":
            function = {"name": block.name, "arguments": ""}
            yield self._call_chunk(block, {"id": block.id, "type": "function", "function": function})

    def _extend_block(self, block: Block, piece: str) -> bytes:
        if block.kind == "text":
            return self._chunk({"content": piece})
        return b"" if block.origin.kind == "custom" else self._call_chunk(block, {"function": {"arguments": piece}})

    def _end_block(self, block: Block) -> Iterator[bytes]:
        if block.origin.kind == "custom":  # whole: only now is it certain that the model wrote arguments
            call = wire.FunctionCall(block.name, block.arguments.text)
            yield self._call_chunk(block, _call_of(block.id, call, True))

    def _end_answer(self, response: wire.RouteResponse) -> Iterator[bytes]:
        yield self._chunk({}, reason_of(response, _REASONS))
        if self._vendor_call.wants_usage:
            yield self._frame([], usage_of(response.routing.tokens))
        yield DONE

    def _call_chunk(self, block: Block, call: JsonObject) -> bytes:
        return self._chunk({"tool_calls": [{"index": block.number, **call}]})

    def _chunk(self, delta: JsonObject, finish_reason: str | None = None) -> bytes:
        return self._frame([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}], None)

    def _frame(self, choices: list[JsonObject], usage: JsonObject | None) -> bytes:
        chunk = _chat_object("chat.completion.chunk", self.trace_id, self.model, choices)
        if self._vendor_call.wants_usage:  # null in all chunks but the last
            chunk["usage"] = usage
        return b"data: %s\n\n" % _encode(chunk)


TYPES = {
    "billing_error": "insufficient_quota",
    **dict.fromkeys(("internal_error", "upstream_error", "timeout_error"), "server_error"),
    **{f"{kind}_error": "invalid_request_error" for kind in ("validation", "request", "conflict", "constraint")},
}
"""OpenAI's error types by ours; others are the same."""


def envelope(error: RouterError) -> bytes:
    """The body of an error response, and the last chunk of a failed stream, with API keys masked."""
    return fit(_encode({"error": error_of(error)}))


def error_of(error: RouterError) -> JsonObject:
    """An error in OpenAI's format."""
    body = wire.error_envelope(error).error
    problems = error.problems if isinstance(error, ValidationFailed) else ()
    optional = {"request_id": body.request_id, "trace_id": body.trace_id, "detail": body.detail}
    return {
        "message": body.message,
        "type": TYPES.get(body.type, body.type),
        "param": problems[0].path or None if problems else "model" if isinstance(error, ModelNotFound) else None,
        "code": body.code,
        **{name: value for name, value in optional.items() if value is not None},
    }
