"""A model for agents of Google's Agent Development Kit that calls a Router."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Unpack

import msgspec
from pydantic import Field, PrivateAttr, TypeAdapter

from routewright import Answer, Router, RouterError, ValidationFailed, wire
from routewright.errors import require_extra
from routewright.wire import JsonObject

from .options import CallOptions, arguments_of, check_options, facts_of, merge_options, part_of

with require_extra("google-adk", __name__):
    from google.adk.models import BaseLlm, LlmRequest, LlmResponse
    from google.adk.models.interactions_utils import extract_system_instruction
    from google.genai import errors, types

DIRECT = ("temperature", "top_p", "max_output_tokens", "seed")
SUPPORTED = {
    *DIRECT, "response_json_schema", "response_schema", "service_tier", "stop_sequences", "system_instruction", "tools",
    "automatic_function_calling", "http_options", "labels", "response_mime_type", "thinking_config", "tool_config",
}  # fmt: skip
"""Fields of a config. Others are refused, since the answer would not be what they ask for."""
REASONS = {None: "STOP", "stop": "STOP", "tool_calls": "STOP", "length": "MAX_TOKENS", "budget": "MAX_TOKENS"}
CHOICES = {"ANY": "required", "NONE": "none"}


class RouterLlm(BaseLlm):  # type: ignore[misc]
    """Calls a Router wherever an agent takes a model.

        agent = Agent(name="helper", model=RouterLlm(router, goal="quality", budget={"maxCostUsd": 0.05}))

    ``model`` is ``auto``, ``auto:quality``, ``policy:house`` or the id of a model. Options of one call are
    ``routewright`` in ``http_options.extra_body``, as of a ``RunConfig``; ``labels`` are metadata. A response has its
    cost and trace id in ``custom_metadata["routewright"]``. Raises ``ClientError`` and ``ServerError`` of
    ``google.genai.errors`` with the status of the ``RouterError``, which is their cause."""

    router: Router = Field(exclude=True, repr=False)
    _options: CallOptions = PrivateAttr()

    def __init__(self, router: Router, model: str = "auto", **options: Unpack[CallOptions]) -> None:
        check_options(router, model, options)
        super().__init__(router=router, model=model)
        self._options = options

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse]:
        """Call the Router. A stream yields text and thoughts in pieces, then the whole response."""
        self._maybe_append_user_content(llm_request)
        shows_thoughts = getattr(llm_request.config.thinking_config, "include_thoughts", None) is not False
        try:
            messages = [*_messages(llm_request)]
            options = self._merge(llm_request, messages)
            if stream:
                async with self.router.stream(messages, **options) as events:
                    events.expect_text()
                    async for event in events:
                        if isinstance(event, wire.OutputDelta):
                            yield _partial(types.Part(text=event.data.text))
                        elif isinstance(event, wire.ReasoningDelta) and shows_thoughts and event.data.text:
                            yield _partial(types.Part(text=event.data.text, thought=True))
                answer = events.result
            else:
                answer = await self.router.route(messages, **options)
        except RouterError as error:
            kind = errors.ClientError if error.status < 500 else errors.ServerError
            body = {"message": error.message, "status": error.code, "trace_id": error.trace_id}
            raise kind(error.status, {"error": body}) from error
        yield _response(answer, shows_thoughts)

    def _merge(self, request: LlmRequest, messages: list[wire.Message]) -> CallOptions:
        config = request.config
        http = config.http_options or types.HttpOptions()
        body = {**(http.extra_body or {})}
        own = body.pop("routewright", None) or {}
        for name in config.model_fields_set - SUPPORTED | body.keys():
            if body.get(name, getattr(config, name, None)) is not None:
                raise ValidationFailed.at(f"config.{name}", "is not supported", "leave it out")
        options = {"timeout_ms": http.timeout, "metadata": config.labels, "params": _params(config), **_tools(config)}
        options = {name: value for name, value in options.items() if value}
        return merge_options(request.model or self.model, messages, self._options, options, own)


def _messages(request: LlmRequest) -> Iterator[wire.Message]:
    if request.config.system_instruction is not None:
        yield wire.Message("system", extract_system_instruction(request.config))  # the Router refuses None
    for turn, content in enumerate(request.contents):
        parts = list[wire.Part]()
        calls = list[wire.ToolCall]()
        reasoning: wire.Reasoning | None = None
        for index, part in enumerate(content.parts or ()):
            if part.thought_signature:
                reasoning = wire.Reasoning.unpack(part.thought_signature.decode("latin-1")) or reasoning
            if part.thought:
                continue
            if call := part.function_call:
                function = wire.FunctionCall(call.name, _json(call.args or {}))
                calls.append(wire.ToolCall(call.id or f"call_{turn}_{len(calls)}", function))
            elif result := part.function_response:  # the results of calls without ids follow in the order of the calls
                id = result.id or f"call_{turn - 1}_{index}"
                yield wire.Message("tool", _json(result.response or {}), tool_call_id=id)
                parts += map(_file, result.parts or ())
            elif part.inline_data or part.file_data:
                parts.append(_file(part))
            elif part.text:
                parts.append(wire.TextPart(part.text))
        if parts or calls or reasoning:
            plain = parts[0].text if len(parts) == 1 and isinstance(parts[0], wire.TextPart) else parts
            role: wire.Role = "assistant" if content.role in ("model", "assistant") else "user"
            yield wire.Message(role, plain or (None if calls else ""), calls or None, reasoning=reasoning)


def _file(part: types.Part | types.FunctionResponsePart) -> wire.Part:
    file = part.inline_data or part.file_data
    return part_of(file.mime_type, getattr(file, "data", None), getattr(file, "file_uri", None), file.display_name)


def _params(config: types.GenerateContentConfig) -> JsonObject:
    params: JsonObject = {name: getattr(config, name) for name in DIRECT} | {"stop": config.stop_sequences}
    schema = config.response_schema or config.response_json_schema
    if config.response_mime_type not in (None, "text/plain", "application/json"):
        raise ValidationFailed.at("config.response_mime_type", "is not supported", "use 'application/json'")
    if schema is not None:
        form = {"name": "response", "schema": _json_schema(schema)}
        params["response_format"] = {"type": "json_schema", "json_schema": form}
    elif config.response_mime_type == "application/json":
        params["response_format"] = {"type": "json_object"}
    if (tier := config.service_tier) is not None:
        params["service_tier"] = tier.value if tier.value in ("flex", "priority") else "default"
    if (thinking := config.thinking_config) is not None:
        budget = thinking.thinking_budget
        level = thinking.thinking_level and thinking.thinking_level.value.lower()
        params["reasoning"] = "none" if budget == 0 else {"max_tokens": budget} if (budget or 0) > 0 else level
    return {name: value for name, value in params.items() if value is not None}


def _json_schema(schema: types.SchemaUnion) -> JsonObject:
    if isinstance(schema, dict) and str(schema.get("type")).isupper():
        schema = types.Schema.model_validate(schema)
    if isinstance(schema, types.Schema):
        schema = schema.json_schema.model_dump(by_alias=True, exclude_none=True, mode="json")
    return schema if isinstance(schema, dict) else TypeAdapter(schema).json_schema()


def _tools(config: types.GenerateContentConfig) -> JsonObject:
    calling = config.tool_config and config.tool_config.function_calling_config
    names = calling and calling.allowed_function_names
    tools = list[wire.Tool]()
    for tool in config.tools or ():
        if not isinstance(tool, types.Tool) or {name for name, value in tool if value} != {"function_declarations"}:
            raise ValidationFailed.at("config.tools", f"has {tool!r}, which only Gemini runs", "use functions")
        for function in tool.function_declarations:
            schema = _json_schema(function.parameters_json_schema or function.parameters or {"type": "object"})
            if not names or function.name in names:
                tools.append(wire.Tool(function=wire.FunctionSpec(function.name, function.description, schema)))
    return {"tools": tools, "tool_choice": config.tools and calling and CHOICES.get(calling.mode)}


def _json(value: object) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=str).decode()
    except (UnicodeEncodeError, RecursionError) as error:
        raise ValidationFailed.at("contents", f"cannot be read: {error}", "send values that JSON can hold") from error


def _partial(part: types.Part) -> LlmResponse:
    return LlmResponse(content=types.Content(role="model", parts=[part]), partial=True)


def _response(answer: Answer, shows_thoughts: bool) -> LlmResponse:
    parts = list[types.Part]()
    malformed = list[str]()
    if reasoning := answer.reasoning:
        text = reasoning.text if shows_thoughts else None
        parts.append(types.Part(text=text, thought=True, thought_signature=reasoning.pack().encode()))
    if answer.output:
        parts.append(types.Part(text=answer.output))
    for call in answer.tool_calls or ():
        name = call.function.name
        arguments = arguments_of(call)
        if isinstance(arguments, str):
            malformed.append(f"the arguments of {name} are no JSON object")
        else:
            parts.append(types.Part(function_call=types.FunctionCall(id=call.id, name=name, args=arguments)))
    reason = "MALFORMED_FUNCTION_CALL" if malformed else REASONS.get(answer.finish_reason, "OTHER")
    tokens = answer.routing.tokens
    usage = types.GenerateContentResponseUsageMetadata(
        prompt_token_count=tokens.input,
        cached_content_token_count=tokens.cached,
        candidates_token_count=tokens.output - tokens.reasoning,
        thoughts_token_count=tokens.reasoning or None,
        total_token_count=tokens.input + tokens.output,
    )
    return LlmResponse(
        content=types.Content(role="model", parts=parts),
        model_version=answer.routing.selected_model,
        partial=False,
        finish_reason=reason,
        error_code=None if reason == "STOP" else reason,
        error_message="; ".join(malformed) or None,
        custom_metadata={"routewright": facts_of(answer)},
        usage_metadata=usage,
    )
