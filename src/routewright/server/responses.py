"""The API for clients of OpenAI's Responses API (contract 14). Nothing is stored: each request has the whole chat.

A body becomes a route request, the answer a response or its events. Code shared with chat completions is in
``openai``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import ClassVar, cast, get_args

import msgspec
from msgspec.structs import replace

from routewright import wire
from routewright.errors import RouterError
from routewright.wire import FunctionCall, JsonObject, Message, Part, Role, RouteResponse, ToolCall, Verbosity
from routewright.wire.json_scan import decode
from routewright.wire.json_stream import complete_object
from routewright.wire.problems import shown

from .client_tools import Origin, arguments_of, input_of, note_of, origin_of
from .endpoints import Service
from .errors import fit
from .exchange import Exchange
from .fields import Fields, wrong
from .openai import LISTED_AT, OpenAICall, created_at, error_of, usage_of
from .vendor_call import Block, CallFrames, answer, encode_event
from .vendor_requests import EFFORTS, PLACES, Words, content_of

PATH = "/openai/v1/responses"
WORDS = Words(
    {
        **PLACES,
        "messages": "input",
        "params.extra.openai": "",
        "params.reasoning": "reasoning.effort",
        "params.response_format": "text.format",
        "params.response_format.json_schema": "text.format",
        "params.verbosity": "text.verbosity",
        "tool_choice.function": "tool_choice",
    },
    LISTED_AT,
)
_encode = msgspec.json.encode


async def responses(service: Service, exchange: Exchange) -> None:
    """Answer with a response, complete or streamed."""
    await answer(service, exchange, ResponseCall(), PATH, ResponseFrames)


_STATELESS = "nothing is stored here; send the whole chat as 'input'"
_INCLUDED = ("reasoning.encrypted_content",)
"""Values of ``include`` that are always included."""
_ROLES = ("user", "assistant", "system", "developer")
_NOTES = re.compile(r"\w+_(call|output|request|response|tools|update)|program")
"""Items of tools that this API does not have: they become text."""
_ECHOED = ("metadata", "parallel_tool_calls", "service_tier", "temperature", "tool_choice", "top_p", "user")


class ResponseCall(OpenAICall):
    """One call of the Responses API."""

    names = WORDS
    refusals: ClassVar = {
        "previous_response_id": ("names a stored response", _STATELESS),
        "conversation": ("names a stored conversation", _STATELESS),
        "prompt": ("names a stored prompt", "send its text as 'instructions' and 'input'"),
        "background": ("asks for an answer to be fetched later", "leave it out, or send 'stream': true"),
    }
    passthrough = frozenset("prompt_cache_key prompt_cache_retention safety_identifier user".split())
    no_effect: ClassVar[dict[str, tuple[object, ...]]] = {
        "background": (False,),
        "store": (False,),
        "top_logprobs": (0,),
        "truncation": ("disabled",),
    }
    unsupported = frozenset(("store", "top_logprobs"))
    parts: ClassVar[dict[str, str]] = {
        "input_text": "text",
        "input_image": "image_url",
        "input_file": "file",
        "input_audio": "input_audio",
        "output_text": "text",
        "refusal": "refusal",
    }
    nests = False
    echo: JsonObject
    """Fields of the request that the response repeats."""

    def answer_of(self, response: RouteResponse) -> JsonObject:
        """An answer as a response."""
        return response_of(response, self.echo, self.origins)

    def messages(self, fields: Fields) -> list[Message]:
        """The messages."""
        messages = self._read_input(fields)
        self.turns = [path for path, _ in messages]
        return [message for _, message in messages]

    def dials(self, fields: Fields) -> JsonObject:
        """Fields of ``Params``. Sets ``echo``."""
        text = fields.inner("text")
        reasoning = fields.inner("reasoning")
        effort = reasoning.may_be("effort", EFFORTS)
        reasoning.forget("summary", "generate_summary")  # readable reasoning is always sent
        if any(name not in _INCLUDED for name in fields.get("include", list) or ()):
            self.ignored.add("include")
        fields.inner("stream_options")
        tree = fields.sent
        defaults = {"description": None, "parameters": None, "strict": None}
        shape = tree.get("text") or {}
        reasons = tree.get("reasoning") or {}
        self.echo = {  # with the API's defaults
            **dict.fromkeys(("previous_response_id", "temperature", "top_p")),
            "background": False,
            "instructions": tree.get("instructions"),
            "max_output_tokens": tree.get("max_output_tokens"),
            "metadata": {},
            "parallel_tool_calls": True,
            "reasoning": {"effort": reasons.get("effort"), "summary": reasons.get("summary")},
            "service_tier": "default",
            "store": False,
            "text": {"format": shape.get("format") or {"type": "text"}, "verbosity": shape.get("verbosity")},
            "tool_choice": "auto",
            "tools": [{**defaults, **tool} for tool in tree.get("tools") or ()],
            "truncation": "disabled",
            **{name: tree[name] for name in _ECHOED if tree.get(name) is not None},
        }
        return {
            "max_output_tokens": fields.get("max_output_tokens", float),
            "response_format": _form(text.inner("format")),
            "reasoning": effort and EFFORTS[effort],
            "verbosity": text.may_be("verbosity", get_args(Verbosity)),
        }

    def _read_input(self, fields: Fields) -> list[tuple[str, Message]]:
        """``instructions`` and ``input`` as messages, each with its path."""
        instructions = fields.get("instructions", str)
        raw = fields.content("input")
        messages = [("instructions", Message("system", instructions))] if instructions else []
        if raw is None:
            raise wrong("input", "is missing", "send a text, or an array of items")
        if isinstance(raw, str):
            return [*messages, ("input", Message("user", raw))]
        for item in raw:
            if (turn := self._item(item)) is None:
                continue
            last = messages[-1][1] if messages else None
            is_new = last is None or last.role != "assistant" or (last.content is not None and turn.tool_calls is None)
            if turn.role != "assistant" or is_new or last is None:
                messages.append((item.path, turn))
                continue
            # consecutive reasoning, text and calls of the assistant become one message
            if last.tool_calls is not None:
                last.tool_calls.extend(turn.tool_calls or ())
            if last.reasoning is not None and turn.reasoning is not None:
                last.reasoning.items.extend(turn.reasoning.items)
            joined = replace(
                last,
                content=last.content if turn.content is None else turn.content,
                tool_calls=last.tool_calls or turn.tool_calls,
                reasoning=last.reasoning or turn.reasoning,
            )
            messages[-1] = messages[-1][0], joined
        # a message of reasoning alone is not sent
        messages = [entry for entry in messages if entry[1].content is not None or entry[1].tool_calls]
        if not messages:
            raise wrong("input", "must hold at least one message", "send a text, or an array of items")
        return messages

    def _item(self, item: Fields) -> Message | None:
        """One item as a message, or as a part of an assistant's message."""
        kind = item.get("type", str) or "message"
        item.forget("id", "status", "phase")
        if kind in ("additional_tools", "tool_search_output"):
            self.late_tools = [*self.late_tools, *item.objects("tools")]
        is_hosted = item.take("execution") == "server"
        match kind:
            case "additional_tools":
                item.forget("role")
                return None
            case "message":
                role = cast("Role", item.one_of("role", _ROLES))
                if (content := item.content("content")) is None:
                    raise item.wrong("content", "is missing", "send a text, or an array of parts")
                return Message(role, self._content(content) or ([] if content == [] and role != "assistant" else None))
            case "function_call" | "custom_tool_call" | "tool_search_call" if not is_hosted:
                id = item.text("call_id")
                name = origin_of(item, kind.removesuffix("_call")).function
                is_custom = kind == "custom_tool_call"
                arguments = _encode({"input": item.need("input", str)}).decode() if is_custom else arguments_of(item)
                return Message("assistant", tool_calls=[ToolCall(id, FunctionCall(name, arguments))])
            case "function_call_output" | "custom_tool_call_output":
                output = self._content(item.content("output") or "")
                return Message("tool", output or "", tool_call_id=item.text("call_id"))
            case "tool_search_output" if not is_hosted:
                return Message("tool", "The tools that match can be called now.", tool_call_id=item.text("call_id"))
            case "reasoning":
                item.forget("summary", "content")
                opaque = item.get("encrypted_content", str)
                thought = wire.Reasoning.unpack(opaque)
                if thought is None and opaque is not None:  # packed by somebody else
                    self.ignored.add("encrypted_content")
                return None if thought is None else Message("assistant", reasoning=thought)
            case "item_reference":
                raise item.wrong("type", "is 'item_reference', a stored item", _STATELESS)
            case _ if "compaction" in kind:
                hint = "send the messages that it stands for, or begin a new chat"
                raise item.wrong("type", f"is {shown(kind)}, which only OpenAI can read", hint)
            case _ if _NOTES.fullmatch(kind):
                return Message("assistant", note_of(kind, item).text)
        hint = "supported: 'message', 'reasoning', calls of functions and custom tools, and their outputs"
        raise item.wrong("type", f"is {shown(kind)}, which is not supported", hint)

    def _content(self, content: str | list[Fields]) -> str | list[Part] | None:
        return content if isinstance(content, str) else content_of([self.part(part) for part in content])


def _form(form: Fields) -> JsonObject | None:
    if not form:
        return None
    kind = form.one_of("type", ("text", "json_object", "json_schema"))
    if kind != "json_schema":
        return {"type": kind}
    options = {"strict": form.get("strict", bool), "description": form.get("description", str)}
    schema = {"name": form.text("name"), "schema": form.need("schema", dict)}
    return {"type": kind, kind: schema | {name: value for name, value in options.items() if value is not None}}


# Answers: lists of items, one for each block

_CUT = ("length", "budget")
"""Finish reasons of incomplete answers."""
_KINDS = {"thought": "rs", "text": "msg", "function": "fc", "custom": "ctc", "tool_search": "tsc"}
"""Prefixes of item ids."""


def response_of(response: RouteResponse, echo: JsonObject, origins: Mapping[str, Origin] | None = None) -> JsonObject:
    """An answer as a response. ``origins``: the client's tools by the names of their functions."""
    thought, calls = response.reasoning, response.tool_calls or ()
    blocks = [] if thought is None else [Block("thought", thought=thought)]
    if response.output or not calls:
        blocks.append(Block("text", pieces=[response.output]))
    for call in calls:
        arguments = call.function.arguments
        block = Block("call", None, [complete_object(arguments)], call.id, call.function.name)
        block.origin = (origins or {}).get(block.name) or Origin("function", block.name)
        block.arguments.add(arguments)
        blocks.append(block)
    return _complete_response(response, blocks, echo)


def _complete_response(response: RouteResponse, blocks: list[Block], echo: JsonObject) -> JsonObject:
    is_cut = response.finish_reason in _CUT
    return {
        **_response_start(response.trace_id, response.routing.selected_model, echo),
        "status": "incomplete" if is_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "output": [_item(response.trace_id, block, number) for number, block in enumerate(blocks)],
        "usage": usage_of(response.routing.tokens, "input", "output"),
    }


def _response_start(trace_id: str, model: str, echo: JsonObject) -> JsonObject:
    """A response in progress."""
    return {
        **echo,
        "id": f"resp_{trace_id.partition('_')[2]}",
        "object": "response",
        "created_at": created_at(trace_id),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "model": model,
        "output": [],
        "usage": None,
    }


def _id(trace_id: str, block: Block, number: int) -> str:
    kind = block.origin.kind if block.kind == "call" else block.kind
    return f"{_KINDS[kind]}_{trace_id.partition('_')[2]}{number}"


def _item(trace_id: str, block: Block, number: int) -> JsonObject:
    item: JsonObject = {"id": _id(trace_id, block, number), "status": "completed"}
    match block.kind:
        case "thought":
            thought = block.thought
            summary = [{"type": "summary_text", "text": thought.text}] if thought.text else []
            opaque = {"encrypted_content": thought.pack()} if thought.items else {}
            return {"type": "reasoning", **item, "summary": summary, **opaque}
        case "text":
            return {"type": "message", **item, "role": "assistant", "content": [_part(block.text)]}
        case "call":
            origin = block.origin
            item["call_id"] = block.id
            names = {"name": origin.name} | ({"namespace": origin.namespace} if origin.namespace else {})
            if origin.kind == "custom":
                return {"type": "custom_tool_call", **item, **names, "input": input_of(block.arguments.text)}
            if origin.kind == "function":
                return {"type": "function_call", **item, **names, "arguments": block.text}
            arguments = decode(complete_object(block.arguments.text))
            return {"type": "tool_search_call", **item, "execution": "client", "arguments": arguments}


def _part(text: str) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


_ERROR_CODES = {429: "rate_limit_exceeded", 400: "invalid_prompt"}
"""OpenAI's error codes by status; any other is ``server_error``."""


class ResponseFrames(CallFrames):
    """The events of one call, as the Responses API sends them."""

    _vendor_call: ResponseCall
    _number = 0
    """Number of sent events."""

    def _begin_answer(self) -> Iterator[bytes]:
        response = _response_start(self.trace_id, self.model, self._vendor_call.echo)
        yield self._event("response.created", response=response)
        yield self._event("response.in_progress", response=response)

    def _begin_empty(self) -> Iterator[bytes]:
        return self._open(Block("text"))

    def _begin_block(self, block: Block) -> Iterator[bytes]:
        opening = self._item(block) | {"status": "in_progress"}
        blank = {"text": "content", "thought": "summary"}.get(block.kind)
        summary = opening.get("summary", ())
        if blank is not None:
            opening[blank] = []
        yield self._event("response.output_item.added", output_index=block.index, item=opening)
        if block.kind == "text":
            yield self._item_event(block, "response.content_part.added", content_index=0, part=_part(""))
        for part in summary:
            name = "response.reasoning_summary"
            yield self._item_event(block, f"{name}_part.added", summary_index=0, part={**part, "text": ""})
            yield self._item_event(block, f"{name}_text.delta", summary_index=0, delta=part["text"])
            yield self._item_event(block, f"{name}_text.done", summary_index=0, text=part["text"])
            yield self._item_event(block, f"{name}_part.done", summary_index=0, part=part)

    def _extend_block(self, block: Block, piece: str) -> bytes:
        if block.kind == "text":
            return self._item_event(block, "response.output_text.delta", content_index=0, delta=piece, logprobs=[])
        if block.origin.kind != "function":
            return b""
        return self._item_event(block, "response.function_call_arguments.delta", delta=piece)

    def _end_block(self, block: Block) -> Iterator[bytes]:
        text = block.text
        origin = block.origin
        if block.kind == "text":
            yield self._item_event(block, "response.output_text.done", content_index=0, text=text, logprobs=[])
            yield self._item_event(block, "response.content_part.done", content_index=0, part=_part(text))
        elif block.kind == "call" and origin.kind == "function":
            yield self._item_event(block, "response.function_call_arguments.done", arguments=text, name=origin.name)
        elif origin.kind == "custom":  # whole: only now is it certain that the model wrote arguments
            text = input_of(block.arguments.text)
            yield self._item_event(block, "response.custom_tool_call_input.delta", delta=text)
            yield self._item_event(block, "response.custom_tool_call_input.done", input=text)
        yield self._event("response.output_item.done", output_index=block.index, item=self._item(block))

    def _end_answer(self, response: RouteResponse) -> Iterator[bytes]:
        body = _complete_response(response, self.blocks, self._vendor_call.echo)
        yield self._event(f"response.{body['status']}", response=body)

    def _encode_error(self, error: RouterError) -> bytes:
        body = error_of(error)
        flat = {name: body[name] for name in ("code", "message", "param")}
        response = _response_start(self.trace_id, self.model, self._vendor_call.echo) | {
            "status": "failed",
            "output": [self._item(block) for block in self.blocks],
            "error": {"code": _ERROR_CODES.get(error.status, "server_error"), "message": body["message"]},
        }
        return fit(self._event("error", **flat, error=body) + self._event("response.failed", response=response))

    def _item_event(self, block: Block, kind: str, /, **data: object) -> bytes:
        """An event of an item."""
        id = _id(self.trace_id, block, block.index or 0)
        return self._event(kind, item_id=id, output_index=block.index, **data)

    def _item(self, block: Block) -> JsonObject:
        return _item(self.trace_id, block, block.index or 0)

    def _event(self, kind: str, /, **data: object) -> bytes:
        body = _encode({"type": kind, "sequence_number": self._number, **data})
        self._number += 1
        return encode_event(kind, body)
