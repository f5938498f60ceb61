"""The Router as a model of the OpenAI Agents SDK, and as its provider of models.

Items, tools and events are converted by the SDK's own converters for chat completions; settings, reasoning, usage and
errors are converted here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Unpack

from msgspec import to_builtins

from routewright import Answer, Router, Stream, wire
from routewright.catalogue import undated
from routewright.errors import ContentRefused, RouterError, require_extra
from routewright.wire import JsonObject, Reasoning

from .options import EFFORTS, CallOptions, check_options, merge_options

with require_extra("openai-agents", __name__):
    import agents
    import httpx2
    import openai
    from agents.items import TResponseInputItem, TResponseOutputItem, TResponseStreamEvent
    from agents.models import get_default_model_settings
    from agents.models.chatcmpl_converter import Converter
    from agents.models.chatcmpl_stream_handler import ChatCmplStreamHandler
    from agents.models.fake_id import FAKE_RESPONSES_ID
    from openai.types.chat import ChatCompletionChunk, ChatCompletionMessage
    from openai.types.responses import Response, ResponseReasoningItem, ResponseUsage

_PARAMS = ("temperature", "top_p", "parallel_tool_calls", "verbosity")
"""Settings that are our parameters."""
_EXTRA = ("seed", "stop", "service_tier")
"""Parameters that have no setting, so that users send them as extra arguments."""
_NO_DATA = ("temperature", "top_p", "parallel_tool_calls", "max_output_tokens", "seed", "reasoning")
_UNSUPPORTED = ("frequency_penalty", "presence_penalty", "top_logprobs")
_ERRORS = {kind.status_code: kind for kind in openai.APIStatusError.__subclasses__() if hasattr(kind, "status_code")}


class RouterModel(agents.Model):  # type: ignore[misc]
    """A model of the Agents SDK that sends its calls through a Router.

        agent = Agent("Assistant", model=RouterModel(router, "auto:quality", budget={"maxCostUsd": 0.01}))

    ``model`` is an id, ``auto``, ``auto:<goal>`` or ``policy:<id>``; ``options`` are those of ``Router.route``, and for
    one agent or run ``ModelSettings(extra_args={"routewright": {...}})``. Errors are those of the openai package, with
    the ``RouterError`` as their cause; ``ModelRefusalError`` if a provider's moderation refuses the content."""

    implicit = agents.ModelSettings()
    """Settings that the SDK adds by itself, although they are meant for another model."""

    def __init__(self, router: Router, model: str = "auto", **options: Unpack[CallOptions]) -> None:
        check_options(router, model, options)
        self.router = router
        self.model = model
        self.options = options

    async def get_response(self, *call: object, **keywords: object) -> agents.ModelResponse:
        """Answer a call with the arguments of ``Model.get_response``. Raises ``openai.APIStatusError``, and
        ``UserError`` for what is not supported."""
        with self._call(*call, **keywords) as (messages, options, span):  # type: ignore[arg-type]
            answer = await self.router.route(messages, **options)
            output, usage = _result(answer, span)
        return agents.ModelResponse(output, agents.Usage(requests=1, **usage), answer.trace_id)

    async def stream_response(self, *call: object, **keywords: object) -> AsyncIterator[TResponseStreamEvent]:
        """Answer a call piece by piece. A fault after the first piece is an error. Raises as ``get_response``."""
        with self._call(*call, **keywords) as (messages, options, span):  # type: ignore[arg-type]
            async with self.router.stream(messages, **options) as stream:
                stream.expect_text()
                fields: JsonObject = {"object": "response", "output": [], "tools": [], "tool_choice": "auto"}
                fields |= {"id": FAKE_RESPONSES_ID, "created_at": stream.clock.time(), "model": self.model}
                response = Response(parallel_tool_calls=True, **fields)
                async for event in ChatCmplStreamHandler.handle_stream(response, _chunks(stream, response)):
                    if event.type == "response.completed":
                        event.response.output, usage = _result(stream.result, span)
                        event.response.usage = ResponseUsage(**usage)
                        event.response.model = stream.result.routing.selected_model
                    yield event

    def get_retry_advice(self, request: agents.ModelRetryAdviceRequest) -> agents.ModelRetryAdvice | None:
        """Whether another call may succeed, after the Router's own retries and fallbacks."""
        error = request.error.__cause__
        return agents.ModelRetryAdvice(error.retryable, reason=str(error)) if isinstance(error, RouterError) else None

    @contextmanager
    def _call(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],
        model_settings: agents.ModelSettings,
        tools: list[agents.Tool],
        output_schema: agents.AgentOutputSchemaBase | None,
        handoffs: list[agents.Handoff],
        tracing: agents.ModelTracing,
        **stored: object,
    ) -> Iterator[tuple[list[JsonObject], CallOptions, agents.Span]]:
        """The messages, options and span of a call. Raises errors of the Router as those of the openai package."""
        with agents.generation_span(model=self.model, disabled=tracing.is_disabled()) as span:
            messages = _messages(system_instructions, input)
            options, own = _options(model_settings, self.implicit, output_schema, stored)
            if tools or handoffs:
                handoff_tools = map(Converter.convert_handoff_tool, handoffs)
                options["tools"] = [*map(Converter.tool_to_openai, tools), *handoff_tools]
            params = options.get("params", {})
            if tracing.include_data():
                span.span_data.input = to_builtins(messages)
            else:  # stop texts and schemas are data, too
                params = {name: params[name] for name in _NO_DATA if name in params}
            span.span_data.model_config = params
            try:
                yield messages, merge_options(self.model, messages, self.options, options, own), span
            except RouterError as error:
                is_refusal = isinstance(error, ContentRefused)
                failure = agents.ModelRefusalError(error.message) if is_refusal else _api_error(error)
                text = str(failure) if tracing.include_data() else "Error details are redacted."
                span.set_error({"message": type(failure).__name__, "data": {"error": text}})
                raise failure from error


class RouterProvider(agents.ModelProvider):  # type: ignore[misc]
    """Resolves the models that agents name, all to the same Router: a name without a vendor is OpenAI's, unless it is
    an alias; agents without a model get ``auto``.

    await Runner.run(agent, "Hello", run_config=RunConfig(model_provider=RouterProvider(router)))"""

    def __init__(self, router: Router, **options: Unpack[CallOptions]) -> None:
        check_options(router, "auto", options)
        self.router = router
        self.options = options

    def get_model(self, model_name: str | None) -> RouterModel:
        """A model with the provider's options."""
        if model_name is None:
            model = RouterModel(self.router, **self.options)
            model.implicit = get_default_model_settings()
            return model
        names = self.router.model_names(caller=self.options.get("caller"))
        guesses = model_name, f"openai/{model_name}", f"openai/{undated(model_name)}"
        known = next((name for name in guesses if name in names), model_name)
        return RouterModel(self.router, known, **self.options)


def _options(
    settings: agents.ModelSettings,
    implicit: agents.ModelSettings,
    schema: agents.AgentOutputSchemaBase | None,
    stored: JsonObject,
) -> tuple[JsonObject, JsonObject]:
    """Options from settings, and those under ``routewright``."""
    extra = {**(settings.extra_body or {}), **(settings.extra_args or {})}
    own = extra.pop("routewright", None) or {}
    reasoning = None if settings.reasoning == implicit.reasoning else settings.reasoning
    unsupported = [name for name in stored if stored[name] is not None]
    unsupported += [name for name in _UNSUPPORTED if getattr(settings, name)]
    unsupported += [f"reasoning.{name}" for name in ("mode", "context") if getattr(reasoning, name, None)]
    unsupported += [name for name in extra if name not in _EXTRA]
    if unsupported:
        hint = "leave it out, or send a vendor's own field as params.extra in extra_args['routewright']"
        raise agents.UserError(f"RouterModel does not support {', '.join(unsupported)}; {hint}")
    values = {name: getattr(settings, name) for name in _PARAMS}
    params = extra | {name: value for name, value in values.items() if value not in (None, getattr(implicit, name))}
    if settings.max_tokens is not None:
        params["max_output_tokens"] = settings.max_tokens
    if reasoning is not None and reasoning.effort is not None:
        params["reasoning"] = EFFORTS.get(reasoning.effort, reasoning.effort)
    if schema is not None and not schema.is_plain_text():
        params["response_format"] = Converter.convert_response_format(schema)
    options: JsonObject = {"params": params, "metadata": settings.metadata, "timeout": settings.timeout}
    if settings.tool_choice is not None:
        options["tool_choice"] = Converter.convert_tool_choice(settings.tool_choice)
    return {name: value for name, value in options.items() if value}, own


def _messages(instructions: str | None, sent: str | list[TResponseInputItem]) -> list[JsonObject]:
    # The SDK's converter drops reasoning. Ours precedes the turn that it belongs to, so the items are converted in
    # groups that begin with it. That of others cannot be read, and is left out.
    groups: list[tuple[Reasoning | None, list[TResponseInputItem]]] = [(None, [])]
    for item in [{"role": "user", "content": sent}] if isinstance(sent, str) else sent:
        if item.get("type") != "reasoning":
            groups[-1][1].append(item)
        elif (reasoning := Reasoning.unpack(item.get("encrypted_content"))) is not None:
            groups.append((reasoning, []))
    messages: list[JsonObject] = [{"role": "system", "content": instructions}] if instructions else []
    for reasoning, group in groups:
        turns = Converter.items_to_messages(group, preserve_tool_output_all_content=True)
        for turn in turns:
            if refusal := turn.pop("refusal", None):
                turn["content"] = turn.get("content") or refusal
        if reasoning is not None and turns and turns[0]["role"] == "assistant":
            turns[0]["reasoning"] = reasoning
        messages += turns
    return messages


def _result(answer: Answer, span: agents.Span) -> tuple[list[TResponseOutputItem], JsonObject]:
    """The items and the usage of an answer, which are recorded. Raises ``ModelBehaviorError`` if the answer was cut off
    before its first word."""
    tokens = answer.routing.tokens
    usage = {
        "input_tokens": tokens.input,
        "output_tokens": tokens.output,
        "total_tokens": tokens.input + tokens.output,
        "input_tokens_details": {"cached_tokens": tokens.cached, "cache_write_tokens": tokens.written},
        "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
    }
    span.span_data.model = answer.routing.selected_model
    span.span_data.usage = usage
    if not answer.output and not answer.tool_calls and answer.finish_reason in ("length", "budget"):
        hint = "raise max_tokens or the budget"
        raise agents.ModelBehaviorError(f"the answer ended ({answer.finish_reason}) before its first word; {hint}")
    # the SDK copies it in every turn of a run, so it has no more than sums need
    source = {"model": answer.routing.selected_model, "response_id": answer.trace_id, "replayed": answer.replayed}
    source |= {"cost_usd": answer.routing.cost_usd, "cache_hit": answer.routing.cache_hit}
    calls = to_builtins(answer.tool_calls)
    message = ChatCompletionMessage(role="assistant", content=answer.output, tool_calls=calls)
    output: list[TResponseOutputItem] = Converter.message_to_output_items(message, source)
    if (reasoning := answer.reasoning) is not None:
        summary = [{"type": "summary_text", "text": reasoning.text}] if reasoning.text else []
        item = ResponseReasoningItem(type="reasoning", id=FAKE_RESPONSES_ID, summary=summary, provider_data=source)
        item.encrypted_content = reasoning.pack()
        output.insert(0, item)
    if span.span_data.input is not None:  # the trace includes data
        span.span_data.output = [item.model_dump() for item in output]
    return output, usage


async def _chunks(stream: Stream, response: Response) -> AsyncIterator[ChatCompletionChunk]:
    """A stream in the form of chat completions. Sets the response's id and model."""
    async for event in stream:
        delta: JsonObject = {}
        match event:
            case wire.RouteStarted(data=started):
                response.id = started.trace_id
                response.model = started.routing.selected_model
            case wire.OutputDelta(data=data):
                delta["content"] = data.text
            case wire.ReasoningDelta(data=data):
                delta["reasoning_content"] = data.text
            case wire.ToolCallDelta(data=data):
                function = {"name": data.name, "arguments": data.arguments}
                delta["tool_calls"] = [{"index": data.index, "id": data.call_id, "function": function}]
            case wire.StreamError():
                stream.raise_failure()
        fields = {"id": response.id, "created": 0, "model": response.model, "object": "chat.completion.chunk"}
        yield ChatCompletionChunk(choices=[{"index": 0, "delta": delta}], **fields)


def _api_error(error: RouterError) -> openai.APIStatusError:
    headers = error.headers | ({"x-request-id": error.trace_id} if error.trace_id else {})
    request = httpx2.Request("POST", "https://routewright.invalid/v1/route")
    response = httpx2.Response(error.status, headers=headers, request=request)
    kind = _ERRORS.get(error.status, openai.InternalServerError if error.status >= 500 else openai.APIStatusError)
    return kind(error.message, response=response, body=error.body["error"])
