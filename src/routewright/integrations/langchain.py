"""``ChatRoutewright``: a Router as a chat model of LangChain."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from operator import itemgetter
from typing import cast

import msgspec

from routewright import Answer, Router, ValidationFailed, wire
from routewright.errors import ContentRefused, RouterError, require_extra
from routewright.wire import FunctionCall, JsonObject, Message, Reasoning, ToolCall
from routewright.wire.problems import shown

from .options import CallOptions, check_options, merge_options

with require_extra("langchain", __name__):
    from langchain_core import exceptions
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
    from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
    from langchain_core.output_parsers.openai_tools import JsonOutputKeyToolsParser, PydanticToolsParser
    from langchain_core.outputs import ChatGeneration, ChatResult
    from langchain_core.outputs import ChatGenerationChunk as Chunk
    from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
    from langchain_core.utils.function_calling import convert_to_openai_function, convert_to_openai_tool
    from langchain_core.utils.pydantic import is_basemodel_subclass
    from pydantic import Field, model_validator

Turns = list[BaseMessage]
Stop = list[str] | None
Choice = JsonObject | str | bool | None
FIELDS = ("temperature", "max_tokens", "stop", "timeout", "max_retries")
PARAMS = {name: name for name in wire.Params.__struct_fields__}
PARAMS |= {"max_tokens": "max_output_tokens", "reasoning_effort": "reasoning"}
"""Settings of LangChain's models, with the ``params`` of a request that they set."""
APART = {"model", "routewright", "stream", "api_key"}
"""Settings that are no options of a call. Providers have the keys."""
PACKED = "routewright"
"""Key of the vendor's items, packed, in the ``extras`` of a block of reasoning."""
FIRST_CALL = 100
"""Index of the first tool call in chunks. LangChain joins what has the same index, and counts blocks of text from 0."""
CONDITIONS = {401: exceptions.ModelAuthenticationError, 404: exceptions.ModelNotFoundError}
CONDITIONS |= dict.fromkeys((402, 403), exceptions.ModelPermissionDeniedError)
CONDITIONS |= {429: exceptions.ModelRateLimitError, 504: exceptions.ModelTimeoutError}
"""LangChain's errors by status."""
UNRELATED = {"whitelist", "disabled", "deprecated", "provider_unavailable"}
"""Why models are left out whatever the prompt is."""


class ChatRoutewright(BaseChatModel):  # type: ignore[misc]
    """LangChain's chat model over a Router.

        model = ChatRoutewright(router=router, model="auto:quality", budget={"maxCostUsd": 0.01})
        answer = await model.ainvoke("Why is the sky blue?")
        print(answer.text, answer.response_metadata["cost_usd"])

    Options of ``Router.route`` are keywords, and those of a call are bound: ``model.bind(goal="cost")``. Both can also
    be set as ``routewright={...}``, which the object needs for ``cache``, since LangChain's cache has that name. Errors
    are of LangChain's classes, and of ours. The Router is not serialised."""

    router: Router = Field(exclude=True)
    model: str = "auto"
    """``auto``, ``auto:quality``, ``policy:<id>`` or the id of a model."""
    routewright: JsonObject = Field(default_factory=dict)
    """Options of every call."""
    temperature: float | None = None
    max_tokens: int | None = None
    stop: list[str] | None = None
    timeout: float | None = None
    """Seconds for a call, fallbacks included."""
    max_retries: int | None = None
    streaming: bool = False
    """True: ``invoke`` streams, too."""

    @model_validator(mode="before")
    @classmethod
    def _collect_options(cls, values: JsonObject) -> JsonObject:
        others = _options_of({name: values[name] for name in values.keys() - cls.model_fields})
        options = others | values.get("routewright", {})
        check_options(values.get("router"), values.get("model", "auto"), options)
        return values | {"routewright": options}

    @property
    def _llm_type(self) -> str:
        return "routewright"

    @property
    def _identifying_params(self) -> JsonObject:
        return {name: getattr(self, name) for name in ("model", "routewright", *FIELDS)}

    def _generate(self, messages: Turns, stop: Stop = None, run_manager: object = None, **kwargs: object) -> ChatResult:
        return self.router.run_blocking(partial(self._agenerate, messages, stop, **kwargs))

    async def _agenerate(
        self, messages: Turns, stop: Stop = None, run_manager: object = None, **kwargs: object
    ) -> ChatResult:
        with self._request(messages, stop, kwargs) as (turns, options):
            return _result_of(await self.router.route(turns, **options))

    def _stream(
        self, messages: Turns, stop: Stop = None, run_manager: object = None, **kwargs: object
    ) -> Iterator[Chunk]:
        chunks = self._astream(messages, stop, **kwargs)
        try:
            while (chunk := self.router.run_blocking(partial(anext, chunks, None))) is not None:
                yield chunk
        finally:
            self.router.run_blocking(chunks.aclose)

    async def _astream(
        self, messages: Turns, stop: Stop = None, run_manager: object = None, **kwargs: object
    ) -> AsyncGenerator[Chunk]:
        with self._request(messages, stop, kwargs) as (turns, options):
            async with self.router.stream(turns, **options) as stream:
                stream.expect_text()  # LangChain cannot take text back
                async for event in stream:
                    if (message := _piece_of(event)) is not None:
                        yield Chunk(message=message)
            answer = stream.result
            thoughts = [] if answer.reasoning is None else [_thought("", answer.reasoning)]
            yield Chunk(message=AIMessageChunk(content=thoughts or "", chunk_position="last", **_facts_of(answer)))

    @contextmanager
    def _request(
        self, messages: Turns, stop: Stop, settings: JsonObject
    ) -> Iterator[tuple[list[Message], CallOptions]]:
        """The request of a call. Raises our errors as LangChain's."""
        metadata = {name: tag for name, tag in (self.metadata or {}).items() if name != "lc_versions"}
        own = _options_of({"metadata": metadata or None, **{name: getattr(self, name) for name in FIELDS}})
        options = _options_of(settings if stop is None else settings | {"stop": stop})
        model = cast("str", settings.get("model", self.model))
        try:
            turns = [*map(_message_of, messages)]
            layers = own, self.routewright, options, settings.get("routewright", {})
            yield turns, merge_options(model, turns, *layers)
        except RouterError as error:
            raise _translated(error) from error

    def bind_tools(
        self, tools: Sequence[object], *, tool_choice: Choice = None, strict: bool | None = None, **kwargs: object
    ) -> Runnable:
        """Declare tools: functions, LangChain's tools, pydantic models, TypedDicts or declarations.

        ``tool_choice`` is ``auto``, ``none``, ``any`` (also ``required`` or True), a tool's name, or an object as
        OpenAI's and Anthropic's."""
        declared = [convert_to_openai_tool(tool, strict=strict) for tool in tools]
        names = [tool["function"]["name"] for tool in declared if "function" in tool]
        match tool_choice:
            case str(name) | {"function": {"name": name}} | {"name": name} if name in names:
                kwargs["tool_choice"] = {"type": "function", "function": {"name": name}}
            case True | "any" | {"type": "any"}:
                kwargs["tool_choice"] = "required"
            case str(mode) | {"type": mode}:
                kwargs["tool_choice"] = mode
        return self.bind(tools=declared, **kwargs)

    def with_structured_output(
        self, schema: JsonObject | type, *, include_raw: bool = False, strict: bool | None = None, **kwargs: object
    ) -> Runnable:
        """Answers as instances of a pydantic model, otherwise as dicts.

        ``method`` is ``json_schema`` (default), ``function_calling`` or ``json_mode``. Models that do not support it
        are left out. With ``include_raw``, as ``{"raw": message, "parsed": ..., "parsing_error": ...}``."""
        is_model = isinstance(schema, type) and is_basemodel_subclass(schema)
        method = kwargs.pop("method", "json_schema")
        kwargs["ls_structured_output_format"] = {"kwargs": {"method": method, "strict": strict}, "schema": schema}
        if method == "function_calling":
            name = convert_to_openai_tool(schema)["function"]["name"]
            model = self.bind_tools([schema], tool_choice=name, strict=strict, **kwargs)
            of_dict = JsonOutputKeyToolsParser(key_name=name, first_tool_only=True)
            parser = PydanticToolsParser(tools=[schema], first_tool_only=True) if is_model else of_dict
        elif method in ("json_schema", "json_mode"):
            function = convert_to_openai_function(schema, strict=strict)
            form: JsonObject = {"type": "json_object"}
            if method == "json_schema":
                form = {"type": method, method: {"schema": function.pop("parameters"), **function}}
            model = self.bind(response_format=form, **kwargs)
            parser = PydanticOutputParser(pydantic_object=schema) if is_model else JsonOutputParser()
        else:
            hint = "pass json_schema, function_calling or json_mode"
            raise ValidationFailed.at("method", f"is {shown(method)}", hint)
        if not include_raw:
            return model | parser
        parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
        failed = RunnablePassthrough.assign(parsed=lambda _: None)
        return RunnableMap(raw=model) | parsed.with_fallbacks([failed], exception_key="parsing_error")


def _piece_of(event: wire.RouteEvent) -> AIMessageChunk | None:
    match event:
        case wire.OutputDelta(data=data):
            return AIMessageChunk(content=data.text)
        case wire.ReasoningDelta(data=data):
            return AIMessageChunk(content=[_thought(data.text)])
        case wire.ToolCallDelta(data=data):
            call = {"args": data.arguments, "id": data.call_id or None, "name": data.name or None}
            return AIMessageChunk(content="", tool_call_chunks=[{**call, "index": FIRST_CALL + data.index}])
    return None


def _thought(text: str, reasoning: Reasoning | None = None) -> JsonObject:
    packed = None if reasoning is None else reasoning.pack()
    return {"type": "reasoning", "reasoning": text, "index": "lc_reasoning", "extras": {PACKED: packed}}


def _result_of(answer: Answer) -> ChatResult:
    calls = []
    invalid_calls = []
    for call in answer.tool_calls or ():
        fields = {"name": call.function.name, "id": call.id, "args": call.function.arguments}
        try:
            calls.append({**fields, "args": msgspec.json.decode(call.function.arguments or "{}", type=dict)})
        except msgspec.DecodeError as error:
            invalid_calls.append({**fields, "error": str(error)})
    content: list[str | JsonObject] | str = answer.output
    if (reasoning := answer.reasoning) is not None:
        content = [_thought(reasoning.text or "", reasoning), answer.output]
    message = AIMessage(content=content, tool_calls=calls, invalid_tool_calls=invalid_calls, **_facts_of(answer))
    return ChatResult(generations=[ChatGeneration(message=message)])


def _facts_of(answer: Answer) -> JsonObject:
    routing = answer.routing
    tokens = routing.tokens
    usage: JsonObject = {"input_tokens": tokens.input, "output_tokens": tokens.output}
    usage["total_tokens"] = tokens.input + tokens.output
    usage["input_token_details"] = {"cache_read": tokens.cached, "cache_creation": tokens.written}
    usage["output_token_details"] = {"reasoning": tokens.reasoning}
    facts: JsonObject = {"model_provider": "routewright", "model_name": routing.selected_model}
    facts |= {"cost_usd": routing.cost_usd, "latency_ms": routing.latency_ms, "cache_hit": routing.cache_hit}
    facts |= {"finish_reason": answer.finish_reason, "trace_id": answer.trace_id}
    return {"usage_metadata": usage, "response_metadata": facts}


def _options_of(settings: Mapping[str, object]) -> JsonObject:
    """Settings of LangChain, and options of the Router, as options of a call."""
    options: JsonObject = {name: settings[name] for name in settings.keys() - APART if settings[name] not in (None, [])}
    params = {PARAMS[name]: options.pop(name) for name in PARAMS.keys() & options}
    return options | {"params": params | options.get("params", {})} if params else options


def _message_of(message: BaseMessage) -> Message:
    kind = message.type.removesuffix("MessageChunk").lower()  # pydantic makes isinstance slow
    content = message.content
    if kind == "ai":
        calls = [(call, msgspec.json.encode(call["args"]).decode()) for call in message.tool_calls]
        calls += [(call, call["args"] or "") for call in message.invalid_tool_calls]
        turn = [ToolCall(call["id"] or "", FunctionCall(call["name"] or "", arguments)) for call, arguments in calls]
        if isinstance(content, str):
            return Message("assistant", content, turn or None, name=message.name)
        extras = [block.get("extras") or {} for block in content if isinstance(block, dict)]
        packed = next((extra[PACKED] for extra in extras if PACKED in extra), None)
        reasoning = None if packed is None else Reasoning.unpack(packed)
        return Message("assistant", str(message.text), turn or None, name=message.name, reasoning=reasoning)
    parts = cast("list[wire.Part]", content if isinstance(content, str) else [*map(_part_of, content)])
    if kind == "tool":
        return Message("tool", parts, tool_call_id=message.tool_call_id)
    role = "user" if kind == "human" else getattr(message, "role", kind)
    return Message(cast("wire.Role", role), parts, name=message.name)


def _part_of(block: str | JsonObject) -> JsonObject:
    """A block of LangChain's, OpenAI's or Anthropic's form. The Router refuses others."""
    if isinstance(block, str):
        return {"type": "text", "text": block}
    source = block.get("source") or block
    data = source.get("base64") or source.get("data")
    url = f"data:{source.get('mime_type') or source.get('media_type')};base64,{data}" if data else source.get("url")
    match block.get("type"):
        case "text" | "text-plain":
            part: JsonObject = {"type": "text", "text": block.get("text")}
        case "image":
            part = {"type": "image_url", "image_url": {"url": url}}
        case "audio":
            sound = str(block.get("mime_type")).partition("/")[2].removeprefix("x-").replace("mpeg", "mp3")
            part = {"type": "input_audio", "input_audio": {"data": data, "format": sound}}
        case "file" | "document":
            fields = (block.get("extras") or {}) | block
            part = {"type": "file", "file": {"file_data": url, "filename": fields.get("filename", block.get("title"))}}
        case _:
            return block
    return part | {"cache_control": block.get("cache_control")}


def _translated(error: RouterError) -> RouterError:
    """The same error, also of a class of LangChain's, for its retries and handlers."""
    default = exceptions.ModelAPIError if error.status >= 500 else exceptions.ModelInvalidRequestError
    kind = CONDITIONS.get(error.status, default)
    if isinstance(error, ContentRefused):
        kind = exceptions.ModelRefusalError
    elif {candidate["reason"] for candidate in error.detail.get("rejected_candidates", ())} - UNRELATED == {"context"}:
        kind = exceptions.ContextOverflowError
    translated = _class_of(type(error), kind)(error.message)  # type: ignore[arg-type]  # of mypy's: classes have hashes
    translated.__dict__.update(error.__dict__)
    return translated


@cache
def _class_of(ours: type[RouterError], theirs: type[Exception]) -> type[RouterError]:
    members = {"is_retryable": ours.retryable, "__reduce__": lambda error: (_translated, (error.__cause__,))}
    return cast("type[RouterError]", type(ours.__name__, (ours, theirs), members))
