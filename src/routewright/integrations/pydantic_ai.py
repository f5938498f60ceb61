"""A model of pydantic-ai that answers every request through a Router.

Of a history it sends texts, files, tool calls with their results, and the thoughts that models of the Router wrote.
What other models wrote for themselves, such as their thoughts, built-in tools and compactions, is left out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import TypeAlias, Unpack

from msgspec.structs import replace

from routewright import Answer, Message, Router, RouteRequest, Stream, Tool, wire
from routewright.errors import RouterError, require_extra

from .options import EFFORTS, CallOptions, check_options, facts_of, is_overflow, merge_options, part_of

with require_extra("pydantic-ai", __name__):
    from pydantic_ai import exceptions, models
    from pydantic_ai import messages as parts
    from pydantic_ai.profiles import ModelProfile
    from pydantic_ai.settings import ModelSettings, ToolChoice, ToolOrOutput
    from pydantic_ai.usage import RequestUsage

Chat: TypeAlias = list[parts.ModelMessage]
Settings: TypeAlias = ModelSettings | None
Parameters: TypeAlias = models.ModelRequestParameters

SYSTEM = "routewright"
"""``provider_name`` of responses."""
PROFILE = ModelProfile(supports_json_schema_output=True, supports_thinking=True, supports_video_input=False)
PROFILE["supported_document_media_types"] = frozenset(("application/pdf", "text/plain", "text/csv", "text/html"))
PARAMS = {name: name for name in ("temperature", "top_p", "seed", "parallel_tool_calls", "service_tier")}
PARAMS |= {"max_tokens": "max_output_tokens", "stop_sequences": "stop"}
"""Settings of the framework, with the parameters that they set."""
FINISH_REASONS = {"stop": "stop", "length": "length", "budget": "length", "tool_calls": "tool_call"}
CATEGORIES = {402: exceptions.ModelQuotaExceededError, 429: exceptions.ModelRateLimitError}
"""Kinds of errors by status. Others are ``ModelServerError`` from 500 on, ``ModelRequestRejectedError`` below."""


class RouterModelSettings(ModelSettings, total=False):  # type: ignore[misc, call-arg]
    """Settings of a model, an agent, a run or a request."""

    routewright: CallOptions
    """Options of ``Router.route``. They override those of the ``RouterModel``; ``metadata`` and ``params`` join."""


@dataclass(init=False)
class RouterModel(models.Model):  # type: ignore[misc]
    """Answers the requests of agents through a Router.

        agent = Agent(RouterModel(router, "auto:quality", metadata={"team": "support"}))

    ``model`` is ``auto``, ``auto:<goal>``, ``policy:<id>`` or the id of a model; responses name the model that
    answered. ``options`` are those of ``Router.route``. A ``timeout`` in the settings includes fallbacks. Raises the
    errors of pydantic-ai; ``__cause__`` is the Router's."""

    system = SYSTEM
    unsupported_settings = frozenset(("extra_headers", "extra_body"))
    # a tool's files go into a user turn, where the framework frames them
    _relocates_tool_files = True

    router: Router
    options: CallOptions
    model_name: str = "auto"

    def __init__(
        self, router: Router, model: str = "auto", *, settings: Settings = None, **options: Unpack[CallOptions]
    ) -> None:
        check_options(router, model, options)
        self.router = router
        self.options = options
        self.model_name = model
        super().__init__(settings=settings, profile=PROFILE)

    async def request(
        self, messages: Chat, model_settings: Settings, model_request_parameters: Parameters
    ) -> parts.ModelResponse:
        """Answer a request."""
        with translated(self.model_name):
            settings, parameters = self.prepare_request(model_settings, model_request_parameters)
            request, options = await self._read(messages, settings, parameters)
            answer = await self.router.route(request, **options)
        response = answer.response
        content = [] if response.reasoning is None else [thinking_part(response.reasoning)]
        if response.output:
            content.append(parts.TextPart(response.output))
        for call in response.tool_calls or ():
            content.append(parts.ToolCallPart(call.function.name, call.function.arguments, call.id))
        return parts.ModelResponse(content, provider_name=SYSTEM, **fields_of(answer))

    @asynccontextmanager
    async def request_stream(
        self, messages: Chat, model_settings: Settings, model_request_parameters: Parameters, run_context: object = None
    ) -> AsyncGenerator[models.StreamedResponse]:
        """Answer a request piece by piece. A fault after the first text or tool call raises."""
        with translated(self.model_name):
            settings, parameters = self.prepare_request(model_settings, model_request_parameters)
            request, options = await self._read(messages, settings, parameters)
            stream = self.router.stream(request, **options)
            stream.expect_text()
            await stream.start()
        async with stream:
            yield RouterStreamedResponse(parameters, stream, self.model_name, datetime.now(UTC))

    async def _read(
        self, messages: Chat, model_settings: Settings, parameters: Parameters
    ) -> tuple[RouteRequest, CallOptions]:
        if not self.router.is_sandbox:
            models.check_allow_model_requests()
        settings = {name: value for name, value in (model_settings or {}).items() if value is not None}
        params = {PARAMS[name]: value for name, value in settings.items() if name in PARAMS}
        if parameters.thinking is not None:
            params["reasoning"] = EFFORTS.get(parameters.thinking, parameters.thinking)
        if parameters.output_mode == "native":
            output = parameters.output_object
            form = {"name": output.name or "answer", "schema": output.json_schema, "strict": bool(output.strict)}
            params["response_format"] = {"type": "json_schema", "json_schema": form}
        own: wire.JsonObject = {name: settings[name] for name in ("timeout", "max_retries") if name in settings}
        if params:
            own["params"] = params
        choice, names = tool_choice_of(settings.get("tool_choice"), parameters)
        tools = [tool for name, tool in parameters.declared_tool_defs.items() if name in names]
        specs = [wire.FunctionSpec(t.name, t.description, t.parameters_json_schema, t.strict) for t in tools]
        if tools or choice != "auto":
            own |= {"tools": [Tool(function=spec) for spec in specs], "tool_choice": choice}
        turns = await self._turns(messages, parameters)
        options = merge_options(self.model_name, turns, self.options, own, settings.get("routewright", {}))
        return RouteRequest(turns), options  # the Router reads it faster than a list

    async def _turns(self, messages: Chat, parameters: Parameters) -> list[Message]:
        turns: list[Message] = []
        for message in messages:
            if isinstance(message, parts.ModelResponse):
                turns += assistant_turns(message)
                continue
            files: list[parts.UserContent] = []
            for part in message.parts:
                match part:
                    case parts.UserPromptPart():
                        turns.append(Message("user", await self._content(part.content)))
                    case parts.ToolReturnPart():
                        text, own_files = part.model_response_str_and_user_content()
                        turns.append(Message("tool", text, tool_call_id=part.tool_call_id))
                        files += own_files
                    case parts.SystemPromptPart():
                        turns.append(Message("system", part.content))
                    case parts.CompactionPart():
                        turns.append(Message("user", f"Summary of the conversation so far:\n\n{part.content}"))
                    case _:
                        raise exceptions.UserError(
                            f"{part.part_kind} cannot be sent; call model.prepare_messages first"
                        )
            if files:
                turns.append(Message("user", await self._content(files)))
        at = next((index for index, turn in enumerate(turns) if turn.role != "system"), len(turns))
        instructions = self._get_instruction_parts(messages, parameters) or ()
        turns[at:at] = [Message("system", part.content) for part in instructions]
        return turns

    async def _content(self, items: str | Iterable[parts.UserContent]) -> str | list[wire.Part]:
        if isinstance(items, str):
            return items
        content: list[wire.Part] = []
        for item in items:
            if not isinstance(item, parts.CachePoint):
                content.append(await self._part(item))
            elif content:
                content[-1] = replace(content[-1], cache_control=wire.CacheControl("ephemeral", item.ttl))
        return content

    async def _part(self, item: parts.UserContent) -> wire.Part:
        match item:
            case str(text) | parts.TextContent(content=text):
                return wire.TextPart(text)
            case parts.ImageUrl(force_download=False):
                return part_of("image/*", None, item.url, detail=(item.vendor_metadata or {}).get("detail"))
            case parts.DocumentUrl(force_download=False, media_type="application/pdf"):
                return part_of(item.media_type, None, item.url)
            case parts.ImageUrl() | parts.AudioUrl() | parts.DocumentUrl():
                raw = await models.download_item(item, "bytes")
                item = parts.BinaryContent(
                    raw["data"], media_type=raw["data_type"], vendor_metadata=item.vendor_metadata
                )
        if not isinstance(item, parts.BinaryContent):
            raise exceptions.UserError(f"{type(item).__name__} cannot be sent; send a BinaryContent")
        detail = (item.vendor_metadata or {}).get("detail")
        part = part_of(item.media_type, item.data, name=f"{item.identifier}.pdf", detail=detail)
        if isinstance(part, wire.TextPart):
            names = {"media_type": item.media_type, "identifier": item.identifier}
            return wire.TextPart(self._format_inlined_text_file(part.text, **names))
        return part


@dataclass
class RouterStreamedResponse(models.StreamedResponse):  # type: ignore[misc]
    """A response that arrives piece by piece."""

    stream: Stream
    model_name: str = ""
    timestamp: datetime = datetime.min
    provider_name = SYSTEM
    provider_url = None

    async def _get_event_iterator(self) -> AsyncIterator[parts.ModelResponseStreamEvent]:
        manager = self._parts_manager
        async for event in self.stream:
            pieces: Iterable[parts.ModelResponseStreamEvent] = ()
            match event:
                case wire.OutputDelta():
                    pieces = manager.handle_text_delta(vendor_part_id=None, content=event.data.text)
                case wire.ToolCallDelta(data=call):
                    id = call.call_id or None
                    pieces = manager.handle_tool_call_delta_events(
                        vendor_part_id=call.index, tool_name=call.name or None, args=call.arguments, tool_call_id=id
                    )
                case wire.ReasoningDelta(data=thought):
                    part = thinking_part(wire.Reasoning(thought.provider, thought.items, thought.text))
                    pieces = [manager.handle_part(vendor_part_id=None, part=part)]
                case wire.RouteStarted():
                    self.provider_response_id = event.data.trace_id
                    self.model_name = event.data.routing.selected_model
                case wire.RouteFallback():
                    self.model_name = event.data.to_model
                case wire.RouteCompleted():
                    fields = fields_of(self.stream.result)
                    self._usage = fields.pop("usage")
                    for name, value in fields.items():
                        setattr(self, name, value)
                case wire.StreamError():
                    with translated(self.model_name, in_stream=True):
                        self.stream.raise_failure()
            for piece in pieces:
                yield piece

    async def close_stream(self) -> None:
        """End the call."""
        await self.stream.aclose()


@contextmanager
def translated(model_name: str, *, in_stream: bool = False) -> Iterator[None]:
    """Raise errors of the Router as those of pydantic-ai. Their ``body`` has the code, the message and the trace id."""
    try:
        yield
    except RouterError as error:
        if error.code in ("blocked_by_policy", "content_refused"):
            raise exceptions.ContentFilterError(error.message) from error
        category = exceptions.ModelServerError if error.status >= 500 else exceptions.ModelRequestRejectedError
        category = exceptions.ModelContextWindowExceededError if is_overflow(error) else category
        category = CATEGORIES.get(error.status, category)
        # the detail may list every model of the catalogue, and the framework shows the body in the message
        body = {name: value for name, value in error.body["error"].items() if name != "detail"}
        facts = {"body": body, "headers": error.headers, "provider_error_code": error.code}
        raise exceptions.ModelHTTPError.for_category(
            category, status_code=error.status, model_name=model_name, in_stream=in_stream, **facts
        ) from error


def tool_choice_of(setting: ToolChoice, parameters: Parameters) -> tuple[str, Collection[str]]:
    """The ``tool_choice``, ``required`` where a text would be no answer, and the names of the tools to declare."""
    outputs = {tool.name for tool in parameters.output_tools}
    choice = "auto" if parameters.allow_text_output else "required"
    match setting:
        case ToolOrOutput():
            return choice, outputs.union(setting.function_tools)
        case "none" | []:
            return (choice, outputs) if outputs else ("none", parameters.declared_tool_defs)
        case list():
            return "required", setting
    return "required" if setting == "required" else choice, parameters.declared_tool_defs


def assistant_turns(response: parts.ModelResponse) -> Iterator[Message]:
    """The turn of a model; none if it is empty."""
    signatures = (part.signature for part in response.parts if isinstance(part, parts.ThinkingPart))
    thoughts = [*filter(None, map(wire.Reasoning.unpack, signatures))]
    items = [item for thought in thoughts for item in thought.items]
    calls: list[wire.ToolCall] = []
    for part in response.tool_calls:
        arguments = part.args if isinstance(part.args, str) else part.args_as_json_str()
        calls.append(wire.ToolCall(part.tool_call_id, wire.FunctionCall(part.tool_name, arguments)))
    if calls or response.text:
        reasoning = wire.Reasoning(thoughts[0].provider, items) if items else None
        yield Message("assistant", response.text or None, calls or None, reasoning=reasoning)


def thinking_part(reasoning: wire.Reasoning) -> parts.ThinkingPart:
    """A thought, whose ``signature`` is what its vendor expects back."""
    return parts.ThinkingPart(reasoning.text or "", signature=reasoning.pack(), provider_name=SYSTEM)


def fields_of(answer: Answer) -> dict[str, object]:
    """Fields of a ``ModelResponse``."""
    response = answer.response
    routing = response.routing
    tokens = routing.tokens
    # a replayed answer costs nothing again; str, since the framework adds decimals
    cost = Decimal(0) if answer.replayed else Decimal(str(routing.cost_usd))
    read = {"input_tokens": tokens.input, "cache_read_tokens": tokens.cached, "cache_write_tokens": tokens.written}
    usage = RequestUsage(**read, output_tokens=tokens.output, output_reasoning_tokens=tokens.reasoning, cost=cost)
    return {
        "usage": usage,
        "model_name": routing.selected_model,
        "provider_response_id": response.trace_id,
        "finish_reason": FINISH_REASONS.get(response.finish_reason or ""),
        "provider_details": facts_of(answer),
    }
