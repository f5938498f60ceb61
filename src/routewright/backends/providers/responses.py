"""OpenAI's Responses API, of OpenAI, Azure and compatible hosts.

Nothing is stored: a request has the whole chat, with the encrypted reasoning of earlier turns. The protocol has no
fields for names of speakers, stop sequences, seeds and sound. ``openai`` chooses between it and chat completions.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from routewright import wire
from routewright._core.sse import SseEvent
from routewright.errors import ProviderFault
from routewright.wire.thoughts import in_places, placed

from .answer import DONE, Function, Piece, Reader
from .endpoint import wire_name
from .faults import CUT, dicts_of, fault_in_answer, reason_of, text_of
from .halves import encode
from .hosts import Host
from .reasoning import at, effort_of, merge, thinking_of, tier_of, with_extra
from .usage import read_usage

LEAST_CAP = 16
"""Smallest output cap that the API accepts."""
INCLUDE = "include"
SUMMARY = "summary"


# --- requests


def response_body(call: wire.UpstreamCall, host: Host) -> wire.JsonObject:
    """The JSON body of a call, whose choice of a tool by name is an object. Raises ``ProviderFault("request")`` without
    text of the prompt if it is not expressible."""
    cap = call.max_output_tokens
    if cap is not None and cap < LEAST_CAP:  # a larger one could cost more than was admitted
        raise _fault_of(f"needs an output cap of at least {LEAST_CAP} tokens, got {cap}")
    missing = host.list_missing(call.model, "responses")
    unsupported = call.model.unsupported or ()  # else the model does it anyway
    params = call.params
    takes_marks = "cache_control" not in missing
    items = [item for message in call.messages for item in _encode_message(message, host, takes_marks=takes_marks)]
    body: wire.JsonObject = {"model": wire_name(call.model), "input": items, "store": False, **host.extra_body}
    if any(part["type"] == "input_file" for item in items for part in dicts_of(item.get("content"))):
        body |= host.file_body
    form = params.response_format or {}
    if "json_schema" in form:
        form = {"type": "json_schema", "strict": False, **form["json_schema"]}
    text = {"format": form or None, "verbosity": None if "verbosity" in missing else params.verbosity}
    values: wire.JsonObject = {
        "max_output_tokens": cap,
        "stream": call.stream or None,
        "temperature": None if "temperature" in unsupported else params.temperature,
        "top_p": None if "top_p" in unsupported else params.top_p,
        "text": {name: value for name, value in text.items() if value} or None,
        "service_tier": None if params.service_tier in missing else host.tiers.get(params.service_tier or ""),
    }
    if call.tools:
        choice = call.tool_choice
        by_name = isinstance(choice, wire.NamedToolChoice) and {"type": "function", "name": choice.function.name}
        values["tools"] = [_encode_tool(tool.function_spec) for tool in call.tools]
        values["tool_choice"] = by_name or choice
        values["parallel_tool_calls"] = None if "parallel_tool_calls" in missing else params.parallel_tool_calls
    body |= {name: value for name, value in values.items() if value is not None}
    return with_extra(merge(body, _encode_effort(call, host)), call, host.name)


def _encode_effort(call: wire.UpstreamCall, host: Host) -> wire.JsonObject:
    effort = effort_of(call)
    thinking = {} if effort is None else thinking_of(host.thinking, call.model).fields(effort, call.max_output_tokens)
    word = thinking.pop("reasoning_effort", None)
    fields = thinking if word is None else merge(thinking, at("reasoning.effort", word))
    if "encrypted" not in host.responses or not call.model.reasoning:
        return fields
    summary = {} if effort == "none" else at(f"reasoning.{SUMMARY}", "auto")
    return {INCLUDE: ["reasoning.encrypted_content"]} | merge(fields, summary)


def _encode_message(message: wire.Message, host: Host, *, takes_marks: bool) -> Iterator[wire.JsonObject]:
    """The items of a message. ``takes_marks``: the model supports cache marks."""
    if message.role == "assistant":
        yield from _encode_turn(message, host)
        return
    content: str | list[wire.JsonObject] = message.content if isinstance(message.content, str) else ""
    if isinstance(message.content, list):
        content = [_encode_part(part, host, takes_marks=takes_marks) for part in message.content]
    if message.role == "tool":
        yield {"type": "function_call_output", "call_id": message.tool_call_id, "output": content}
    else:
        yield {"type": "message", "role": message.role, "content": content}


def _encode_turn(message: wire.Message, host: Host) -> Iterator[wire.JsonObject]:
    # The vendor refuses an item of reasoning without the text or call that it led to, and a model that does not get it
    # back with the results of its calls thinks again, or worse. So reasoning waits for what follows it, and is left out
    # if nothing does. Calls are sent without the ids of their items, by which the vendor would look for stored
    # reasoning. See test_reasoning_goes_back_in_its_place.
    content = message.content or ""
    text = content if isinstance(content, str) else "".join(map(wire.text_of, content))
    calls = message.tool_calls or []
    thought = message.reasoning
    items = thought.items if thought is not None and thought.provider == host.name else []
    waiting: list[wire.JsonObject] = []
    phase: wire.JsonObject = {}
    for piece, calls_before, item in in_places(items, text, calls):
        followers = [{"type": "message", "role": "assistant", "content": piece, **phase}] if piece else []
        followers += map(_encode_call, calls_before)
        if followers:
            yield from waiting
            yield from followers
            waiting.clear()
        if item.get("type") == "message":
            phase = {"phase": item["phase"]} if isinstance(item.get("phase"), str) else {}
        elif (again := _encode_thought(item, host)) is not None:
            waiting.append(again)
    if not text and not calls:
        yield {"type": "message", "role": "assistant", "content": ""}


def _encode_call(call: wire.ToolCall) -> wire.JsonObject:
    function = call.function
    return {"type": "function_call", "call_id": call.id, "name": function.name, "arguments": function.arguments}


def _encode_thought(item: wire.JsonObject, host: Host) -> wire.JsonObject | None:
    """An item of reasoning to send back; None for another item, and for one that the host could only look up."""
    sealed = item.get("encrypted_content")
    content = dicts_of(item.get("content"))
    if item.get("type") != "reasoning" or not (isinstance(sealed, str) or (content and not host.responses)):
        return None
    fields: wire.JsonObject = {"type": "reasoning", "summary": dicts_of(item.get("summary"))}
    fields |= {"id": item["id"]} if isinstance(item.get("id"), str) else {}
    return fields | ({"encrypted_content": sealed} if isinstance(sealed, str) else {"content": content})


def _encode_part(part: wire.Part, host: Host, *, takes_marks: bool) -> wire.JsonObject:
    mark = {"prompt_cache_breakpoint": {"mode": "explicit"}} if part.cache_control is not None and takes_marks else {}
    match part:
        case wire.TextPart():
            return {"type": "input_text", "text": part.text} | mark
        case wire.ImagePart():
            image = part.image_url
            return {"type": "input_image", "image_url": image.url, "detail": image.detail or "auto"} | mark
        case wire.FilePart() if host.files:
            data = part.file.file_data
            if data[:5].lower() != "data:":
                return {"type": "input_file", "file_url": data} | mark
            return {"type": "input_file", "filename": part.file.filename or "document.pdf", "file_data": data} | mark
    raise _fault_of(f"does not support {'documents' if isinstance(part, wire.FilePart) else 'sound'} of {host.name}")


def _encode_tool(spec: wire.FunctionSpec) -> wire.JsonObject:
    """A tool. ``strict`` is always sent, since the API's default is true."""
    fields: wire.JsonObject = {"type": "function", "name": spec.name, "strict": bool(spec.strict)}
    fields["parameters"] = {"type": "object", "properties": {}} if spec.parameters is None else spec.parameters
    return fields if spec.description is None else fields | {"description": spec.description}


def _fault_of(problem: str) -> ProviderFault:
    return ProviderFault(wire.FaultKind.REQUEST, f"the Responses API {problem}")


# --- answers

_ENDS = ("response.completed", "response.incomplete", "response.failed", "response.cancelled", "response.done")
_STATUSES = ("completed", "incomplete", "failed", "cancelled", "in_progress", "queued")
_KINDS = {
    "response.output_text": "message",
    "response.function_call_arguments": "function_call",
    "response.reasoning_summary_text": "reasoning",
    "response.reasoning_text": "reasoning",
}
"""The kind of item that an event with a piece is about."""
_THOUGHT_FIELDS = ("type", "id", "summary", "encrypted_content", "content")

_decoder = msgspec.json.Decoder(wire.JsonObject)


class _Item(msgspec.Struct):
    """A message, function call or reasoning of the answer."""

    kind: str
    place: tuple[int, int]
    """The numbers of characters and calls before it."""
    id: str | None = None
    pieces: list[str] = []
    part: object = None
    """The part of a summary that the last piece belongs to."""
    number: int | None = None
    """Of a function call whose name is known."""
    is_closed: bool = False


class ResponseItems(Reader):
    """Reads one answer. Texts and calls are passed on as they arrive; what only a later event has, then."""

    # Three events may carry a text: its pieces, the end of its item, and the end of the answer, which has all items
    # again. The vendor sends them all, and others only some: pieces with an empty end, an end without pieces, a first
    # piece that is called the whole, ids that change with every event, one index for all items. A reader of one kind
    # loses the answers of some hosts, and a reader of all kinds repeats them. So an item keeps what came of it, and a
    # later event adds only what goes on from there; events are matched to items by kind and index, and by id if an
    # index was used twice. test_any_shape_of_a_stream_gives_the_answer_once proves it.

    holder = "output"
    ending = "status"

    def __init__(self, provider: str) -> None:
        super().__init__(provider)
        self._name = ""
        """The event's name outside its data."""
        self._items: dict[str, list[_Item]] = {"message": [], "function_call": [], "reasoning": []}
        self._known: dict[tuple[str, int | str | None], _Item] = {}
        """The latest item of a kind and index, id, or id of a call."""
        self._shared: set[tuple[str, int | str | None]] = set()
        """Kinds and indices of several items."""
        self._texts: list[str] = []
        self._chars = self._calls = 0
        self._refused = False

    def add(self, event: SseEvent) -> None:
        """Decode an event. The first one with the whole response ends the answer."""
        self._name = event.event
        super().add(event)
        is_over = self._reason is not None or (self._refused and self._started)
        if is_over and not event.data.startswith(DONE):
            self.end()

    def end(self) -> None:
        """Add the end."""
        if self._refused:
            raise ProviderFault("refused", f"{self._provider} refused to answer", status=200)
        self._thought = bool(self._items["reasoning"])
        super().end()

    def take(self, document: bytes | str) -> None:
        """Decode an event or a whole response."""
        event = self._decode(_decoder, document, "not an object")
        kind = self._string(event.get("type")) or self._name
        if kind in _ENDS or not kind.startswith(("response.", "error")):
            whole = event["response"] if isinstance(event.get("response"), dict) else event
            self._tier = tier_of(whole.get("service_tier")) or self._tier
            self._take(read_usage(whole.get("usage")), self._finish, whole, kind.removeprefix("response."))
            return
        if event.get("error") or kind == "error":
            raise fault_in_answer(self._provider, text_of(document))
        self._take(None, self._read, kind, event)

    def _read(self, name: str, event: wire.JsonObject) -> None:
        stem = name.rpartition(".")[0]
        index = number if isinstance(number := event.get("output_index"), int) else None
        if name in ("response.refusal.delta", "response.refusal.done"):
            self._refused = True  # the usage follows
        elif name in ("response.output_item.added", "response.output_item.done"):
            body = self._object(event.get("item"))
            kind = self._string(body.get("type"))
            if kind not in self._items:
                return
            if name.endswith("added"):
                self._open(kind, index, body)
            else:
                self._close(self._find(kind, index, body.get("id"), body), body)
        elif stem in _KINDS:
            item = self._find(_KINDS[stem], index, event.get("item_id"))
            if name.endswith("delta"):
                self._extend(item, self._string(event.get("delta")), event.get("summary_index"))
            elif name.endswith("done") and item.kind != "reasoning":
                self._complete(item, self._string(event.get("text")) or self._arguments(event))

    # items

    def _open(self, kind: str, index: int | None, body: wire.JsonObject) -> None:
        """Begin an item, unless its pieces came before."""
        item = self._known.get((kind, index))
        id = self._string(body.get("id")) or None
        if item is not None and (id is None or item.id != id):
            self._shared.add((kind, index))
            item = None
        item = item or self._create(kind, index, id)
        if kind == "function_call":
            self._begin(item, body)

    def _create(self, kind: str, index: int | None, id: str | None) -> _Item:
        item = _Item(kind, (self._chars, self._calls), id)
        self._items[kind].append(item)
        self._known.update({(kind, index): item, (kind, id): item})
        return item

    def _find(self, kind: str, index: int | None, id: object, body: wire.JsonObject | None = None) -> _Item:
        """The item that an event is about; a new one if it was not announced. ``body``: the whole item."""
        item = self._known.get((kind, index))
        id = id if isinstance(id, str) and id else None
        if item is None or body or (kind, index) in self._shared or (item.is_closed and id):
            named = self._known.get((kind, str(body and body.get("call_id")))) or self._known.get((kind, id or ""))
            item = named or (None if item is None or item.is_closed else item)
        return item or self._create(kind, index, id)

    def _begin(self, item: _Item, body: wire.JsonObject) -> None:
        """Begin a function call once its name is known."""
        name = self._string(body.get("name"))
        if item.number is None and name:
            id = self._string(body.get("call_id")) or self._string(body.get("id")) or f"call_{self._calls}"
            item.number = self._calls
            self._calls += 1
            self._pieces += 1
            self._known[item.kind, id] = item
            self.chunks.append(self._tools.begin(Piece(item.number, id, Function(name, "".join(item.pieces)))))

    def _extend(self, item: _Item, piece: str, part: object = None) -> None:
        """Add a piece of an item."""
        if not piece:
            return
        if item.kind == "message":
            self._pieces += 1
            self._chars += len(piece)
            self._texts.append(piece)
            self.chunks.append(wire.Delta(piece))
        elif item.kind == "reasoning":
            piece = f"\n\n{piece}" if item.pieces and part != item.part else piece
            item.part = part
            self.chunks.append(wire.Thought(piece))
        elif item.number is not None:
            self.chunks.append(wire.ToolDelta(item.number, piece))
        item.pieces.append(piece)

    def _complete(self, item: _Item, whole: str) -> None:
        """Add what a whole item has in addition to its pieces."""
        before = "".join(item.pieces)
        if whole.startswith(before):
            self._extend(item, whole[len(before) :], item.part)

    def _close(self, item: _Item, body: wire.JsonObject) -> None:
        """Add what a whole item has in addition to what came of it, and pass on what the vendor wants back: reasoning,
        and whether a text is a comment between calls or the answer."""
        fields = {name: body[name] for name in _THOUGHT_FIELDS if name in body}
        if item.kind == "message":
            self._complete(item, self._text_of(body))
            fields = {"type": "message", "phase": body.get("phase")}
        elif item.kind == "function_call":
            fields.clear()
            self._begin(item, body)
            self._complete(item, self._arguments(body))
        else:
            parts = dicts_of(body.get("summary")) + dicts_of(body.get("content"))
            self._complete(item, "\n\n".join(self._string(part.get("text")) for part in parts))
        is_wanted = fields.get("phase") or fields.get("encrypted_content") or fields.get("content")
        if is_wanted and not item.is_closed:
            self.chunks.append(wire.Thought(item=placed(fields, *item.place)))
        item.is_closed = True

    def _text_of(self, body: wire.JsonObject) -> str:
        """The text of a message. Notes a refusal."""
        parts = dicts_of(body.get("content"))
        self._refused = self._refused or any(part.get("type") == "refusal" for part in parts)
        texts = [self._string(part.get("text")) for part in parts if part.get("type") in ("output_text", "text")]
        self._blank = self._blank or bool(texts)
        return "".join(texts)

    # the end

    def _finish(self, response: wire.JsonObject, kind: str) -> None:
        """Read a whole response. ``kind``: its event, if any."""
        output = dicts_of(response.get("output"))
        status = response.get("status")
        status = status if status in _STATUSES else kind
        if response.get("error"):
            raise fault_in_answer(self._provider, encode({"error": response["error"]}))
        self._started = self._started or status in _STATUSES or bool(output)
        self._add_items(output)
        details = response.get("incomplete_details")
        word = self._string(details.get("reason")) if isinstance(details, dict) else ""
        if self._refused or not self._started:
            return
        reason = "stop" if status == "completed" and not word else reason_of(self._provider, word or status)
        if reason not in ("stop", *CUT):
            raise ProviderFault("truncated", f"{self._provider} ended an incomplete answer", status=200)
        self._reason = reason

    def _add_items(self, output: list[wire.JsonObject]) -> None:
        """Add what the items of a whole response have in addition to those of the stream, matched by their order."""
        streamed = {kind: iter([*items]) for kind, items in self._items.items()}
        left = "".join(self._texts)
        chars = calls = 0
        for body in output:
            kind = self._string(body.get("type"))
            if kind not in self._items:
                continue
            item = next(streamed[kind], None) or self._create(kind, None, None)
            item = self._known.get((kind, self._string(body.get("call_id")))) or item
            item.place = chars, calls
            calls += kind == "function_call"
            if kind == "message":
                text = self._text_of(body)
                chars += len(text)
                common = text[: len(left)]  # its pieces may have come as those of another item
                item.pieces = [common if left.startswith(common) else text]
                left = left.removeprefix(common)
            self._close(item, body)

    # values

    def _arguments(self, body: wire.JsonObject) -> str:
        value = body.get("arguments")
        return encode(value) if isinstance(value, dict) else self._string(value)
