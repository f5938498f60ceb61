"""``ChatRoutewright``: a Router as a chat model of LangChain."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from typing import ClassVar, cast

import msgspec

from routewright import Answer, Router, ValidationFailed, wire
from routewright.errors import ContentRefused, RouterError, require_extra
from routewright.wire import FunctionCall, JsonObject, Message, Reasoning, ToolCall

from .options import EFFORTS, CallOptions, arguments_of, check_options, facts_of, is_overflow, merge_options, part_of

with require_extra("langchain", __name__):
    from langchain_core import exceptions
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
    from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
    from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
    from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
    from langchain_core.utils.function_calling import convert_to_openai_function, convert_to_openai_tool
    from langchain_core.utils.pydantic import is_basemodel_subclass
    from pydantic import Field, model_validator

Turns = list[BaseMessage]
Choice = JsonObject | str | bool | None
FIELDS = ("temperature", "max_tokens")
PARAMS = {name: name for name in wire.Params.__struct_fields__}
PARAMS |= {"max_tokens": "max_output_tokens", "reasoning_effort": "reasoning"}
"""Settings of LangChain's models, with the ``params`` of a request that they set."""
APART = {"model", "routewright", "run_manager", "stream", "api_key"}
"""Settings that are no options of a call. Providers have the keys."""
TYPES = {"image": "image/", "audio": "audio/", "file": "application/pdf", "document": "application/pdf"}
"""What the URL of a block is of that names no media type."""
PACKED = "routewright"
"""Key of the vendor's items, packed, in the ``extras`` of a block of reasoning."""
FIRST_CALL = 100
"""Index of the first tool call in chunks. LangChain joins what has the same index, and counts blocks of text from 0."""
ENDS = ("", "]", "}", '"]', '"}', '""]', '""}')
"""Texts of which one makes arguments invalid, wherever they were cut: LangChain completes them otherwise."""
KINDS = {401: exceptions.ModelAuthenticationError, 404: exceptions.ModelNotFoundError}
KINDS |= dict.fromkeys((402, 403), exceptions.ModelPermissionDeniedError)
KINDS |= {429: exceptions.ModelRateLimitError, 504: exceptions.ModelTimeoutError}
"""LangChain's errors by status."""


class ChatRoutewright(BaseChatModel):  # type: ignore[misc]
    """LangChain's chat model over a Router.

        model = ChatRoutewright(router=router, model="auto:quality", budget={"maxCostUsd": 0.01})
        answer = await model.ainvoke("Why is the sky blue?")
        print(answer.text, answer.response_metadata["cost_usd"])

    Options of ``Router.route`` are keywords, and those of a call are bound: ``model.bind(goal="cost")``. Both can also
    be set as ``routewright={...}``, which the object needs for ``cache``, since LangChain's cache has that name. Errors
    are of LangChain's classes; their cause is the ``RouterError``. The Router is not serialised."""

    _llm_type: ClassVar[str] = "routewright"
    router: Router = Field(exclude=True)
    model: str = "auto"
    """``auto``, ``auto:quality``, ``policy:<id>`` or the id of a model."""
    routewright: JsonObject = Field(default_factory=dict)
    """Options of every call."""
    temperature: float | None = None
    max_tokens: int | None = None
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
    def _identifying_params(self) -> JsonObject:
        caller = self.router.caller  # whose answers LangChain's cache keeps apart
        own = {name: getattr(self, name) for name in ("model", "routewright", *FIELDS)}
        return own | {"account": caller.account, "environment": caller.environment}

    def invoke(self, input: object, config: object = None, **settings: object) -> AIMessage:
        """Answer, blocking the thread."""
        return super().invoke(input, config, **_pack(settings))

    async def ainvoke(self, input: object, config: object = None, **settings: object) -> AIMessage:
        """Answer."""
        return await super().ainvoke(input, config, **_pack(settings))

    def _generate(self, messages: Turns, **settings: object) -> ChatResult:
        return self.router.run_blocking(partial(self._agenerate, messages, **settings))

    async def _agenerate(self, messages: Turns, **settings: object) -> ChatResult:
        with self._request(messages, settings) as (turns, options):
            return _result_of(await self.router.route(turns, **options))

    def _stream(self, messages: Turns, **settings: object) -> Iterator[ChatGenerationChunk]:
        chunks = self._astream(messages, **settings)
        try:
            while (chunk := self.router.run_blocking(partial(anext, chunks, None))) is not None:
                yield chunk
        finally:
            self.router.run_blocking(chunks.aclose)

    async def _astream(self, messages: Turns, **settings: object) -> AsyncGenerator[ChatGenerationChunk]:
        with self._request(messages, settings) as (turns, options):
            async with self.router.stream(turns, **options) as stream:
                stream.expect_text()  # LangChain cannot take text back
                indexes: set[int] = set()
                async for event in stream:
                    match event:
                        case wire.OutputDelta(data=data):
                            yield _chunk(data.text)
                        case wire.ReasoningDelta(data=data):
                            yield _chunk([_thought(data.text)])
                        case wire.ToolCallDelta(data=data):
                            indexes.add(data.index)
                            yield _call_chunk(data.index, data.arguments, data.call_id, data.name)
            answer = stream.result
            for index, call in zip(sorted(indexes), answer.tool_calls or (), strict=False):
                if isinstance(arguments_of(call), str):
                    text = call.function.arguments
                    yield _call_chunk(
                        index, next(end for end in ENDS if not _call_chunk(0, text + end).message.tool_calls)
                    )
            thoughts = [] if answer.reasoning is None else [_thought("", answer.reasoning)]
            yield _chunk(thoughts or "", chunk_position="last", **_facts_of(answer))

    @contextmanager
    def _request(self, messages: Turns, settings: JsonObject) -> Iterator[tuple[list[Message], CallOptions]]:
        """The request of a call. Raises our errors as LangChain's."""
        metadata = {name: tag for name, tag in (self.metadata or {}).items() if name != "lc_versions"}
        own = _options_of({"metadata": metadata or None, **{name: getattr(self, name) for name in FIELDS}})
        model = cast("str", settings.get("model", self.model))
        try:
            turns = _turns_of(messages)
            layers = own, self.routewright, _options_of(settings), settings.get("routewright", {})
            yield turns, merge_options(model, turns, *layers)
        except RouterError as error:
            raise _kind_of(error)(error.message) from error

    def bind_tools(
        self, tools: Sequence[object], *, tool_choice: Choice = None, strict: bool | None = None, **kwargs: object
    ) -> Runnable:
        """Declare tools: functions, LangChain's tools, pydantic models, TypedDicts or declarations.

        ``tool_choice`` is ``auto``, ``none``, ``any`` (also ``required`` or True), a tool's name, or an object as
        OpenAI's."""
        declared = [convert_to_openai_tool(tool, strict=strict) for tool in tools]
        if tool_choice:
            kwargs["tool_choice"] = "required" if tool_choice in (True, "any") else tool_choice
        return self.bind(tools=declared, **kwargs)

    def with_structured_output(
        self, schema: JsonObject | type, *, include_raw: bool = False, strict: bool | None = None, **kwargs: object
    ) -> Runnable:
        """Answers as instances of a pydantic model, otherwise as dicts.

        ``method`` is ``json_schema`` (default), ``function_calling`` or ``json_mode``. Models that do not support it
        are left out. With ``include_raw``, as ``{"raw": message, "parsed": ..., "parsing_error": ...}``."""
        method = str(kwargs.pop("method", "json_schema"))
        if method == "function_calling":
            return super().with_structured_output(schema, include_raw=include_raw, **kwargs)
        form: JsonObject = {"type": "json_object"}
        if method != "json_mode":  # the Router refuses unknown ones
            function = convert_to_openai_function(schema, strict=strict)
            form = {"type": method, method: {"schema": function.pop("parameters"), **function}}
        kwargs["ls_structured_output_format"] = {"kwargs": {"method": method, "strict": strict}, "schema": schema}
        model = self.bind(response_format=form, **kwargs)
        is_model = isinstance(schema, type) and is_basemodel_subclass(schema)
        parser = PydanticOutputParser(pydantic_object=schema) if is_model else JsonOutputParser()
        if not include_raw:
            return model | parser
        parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
        failed = RunnablePassthrough.assign(parsed=lambda _: None)
        return RunnableMap(raw=model) | parsed.with_fallbacks([failed], exception_key="parsing_error")


def _chunk(content: str | list[JsonObject] = "", **fields: object) -> ChatGenerationChunk:
    return ChatGenerationChunk(message=AIMessageChunk(content=content, **fields))


def _thought(text: str, reasoning: Reasoning | None = None) -> JsonObject:
    extras = {PACKED: reasoning and reasoning.pack()}
    return {"type": "reasoning", "reasoning": text, "index": "lc_reasoning", "extras": extras}


def _call_chunk(index: int, arguments: str, id: str = "", name: str = "") -> ChatGenerationChunk:
    piece = {"index": FIRST_CALL + index, "args": arguments, "id": id or None, "name": name or None}
    return _chunk(tool_call_chunks=[piece])


def _result_of(answer: Answer) -> ChatResult:
    calls = []
    invalid_calls = []
    for call in answer.tool_calls or ():
        fields = {"name": call.function.name, "id": call.id, "args": call.function.arguments}
        arguments = arguments_of(call)
        if isinstance(arguments, str):
            invalid_calls.append({**fields, "error": arguments})
        else:
            calls.append({**fields, "args": arguments})
    content: list[str | JsonObject] | str = answer.output
    if (reasoning := answer.reasoning) is not None:
        content = [_thought(reasoning.text or "", reasoning), answer.output]
    message = AIMessage(content=content, tool_calls=calls, invalid_tool_calls=invalid_calls, **_facts_of(answer))
    return ChatResult(generations=[ChatGeneration(message=message)])


def _facts_of(answer: Answer) -> JsonObject:
    tokens = answer.routing.tokens
    usage: JsonObject = {"input_tokens": tokens.input, "output_tokens": tokens.output}
    usage["total_tokens"] = tokens.input + tokens.output
    usage["input_token_details"] = {"cache_read": tokens.cached, "cache_creation": tokens.written}
    usage["output_token_details"] = {"reasoning": tokens.reasoning}
    facts = {"model_provider": "routewright", "model_name": answer.routing.selected_model, **facts_of(answer)}
    return {"usage_metadata": usage, "response_metadata": facts}


def _pack(settings: JsonObject) -> JsonObject:
    """The settings with those named as parameters of LangChain's ``generate`` among the Router's options."""
    options = {name: settings.pop(name) for name in ("metadata", "tags") if name in settings}
    return settings | {"routewright": options | settings.get("routewright", {})} if options else settings


def _options_of(settings: Mapping[str, object]) -> JsonObject:
    """Settings of LangChain, and options of the Router, as options of a call."""
    options: JsonObject = {name: settings[name] for name in settings.keys() - APART if settings[name] not in (None, [])}
    if "reasoning_effort" in options:
        options["reasoning_effort"] = EFFORTS.get(options["reasoning_effort"], options["reasoning_effort"])
    params = {PARAMS[name]: options.pop(name) for name in PARAMS.keys() & options}
    return options | {"params": params | options.get("params", {})} if params else options


def _turns_of(messages: Turns) -> list[Message]:
    try:
        return [*map(_message_of, messages)]
    except (AttributeError, TypeError, ValueError, RecursionError) as error:  # contents and arguments are unchecked
        raise ValidationFailed.at("messages", f"cannot be read: {error}", "use blocks of LangChain's form") from error


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
        reasoning = Reasoning.unpack(packed)
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
    kind = block.get("type")
    source = block.get("source") or block
    data = source.get("base64") or source.get("data")
    part: JsonObject = {"type": "text", "text": data if data and source.get("type") == "text" else block.get("text")}
    if part["text"] is None:
        url = source.get("url")
        if kind not in TYPES or not (data or url):
            return block
        mime_type = source.get("mime_type") or source.get("media_type") or (url and TYPES[kind])
        fields = (block.get("extras") or {}) | block
        part = msgspec.to_builtins(part_of(mime_type, data, url, fields.get("filename", block.get("title"))))
    return part | {"cache_control": block.get("cache_control")}


def _kind_of(error: RouterError) -> type[Exception]:
    default = exceptions.ModelAPIError if error.status >= 500 else exceptions.ModelInvalidRequestError
    kind: type[Exception] = KINDS.get(error.status, default)
    if isinstance(error, ContentRefused):
        kind = exceptions.ModelRefusalError
    elif is_overflow(error):
        kind = exceptions.ContextOverflowError
    return kind
