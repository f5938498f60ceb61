"""Messages as Anthropic sends them back: content blocks, whole or in server-sent events, to chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from routewright._core.sse import SseEvent
from routewright.errors import ProviderFault
from routewright.wire import Chunk, Delta, Finish, ToolDelta, Usage

from .counts import count_of
from .faults import CUT, decoded, ended, fault_in_answer, malformed, written
from .tool_calls import Function, Piece, ToolCalls

_DECODER = msgspec.json.Decoder(dict[str, Any])

_Fields = dict[str, Any]


class _Tool:
    """A tool call that is under way."""

    __slots__ = ("index", "input", "written")

    def __init__(self, index: int, input: Any) -> None:
        self.index = index
        self.input = input
        """What it began with; an empty object where pieces follow."""
        self.written = False
        """A piece that says something has come."""


class Counts:
    """Token counts, as far as they are known. Those of a later event are totals, too, and take their place."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._thought = 0
        self._told: Usage | None = None

    def add(self, usage: Any) -> Usage | None:
        """Take what was reported; give the usage where it is known and other than before."""
        if not isinstance(usage, dict):
            return None
        for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens"):
            count = count_of(usage.get(name))
            if count or (count == 0 and (name == "output_tokens" or name not in self._counts)):
                self._counts[name] = count  # some hosts count the input at one end only, and say 0 at the other
        details = usage.get("output_tokens_details")
        self._thought = (
            count_of(details.get("thinking_tokens")) if isinstance(details, dict) else None
        ) or self._thought
        told, self._told = self._told, self._usage()
        return None if told == self._told else self._told

    def _usage(self) -> Usage | None:
        fresh, made = self._counts.get("input_tokens"), self._counts.get("output_tokens")
        if fresh is None or made is None:
            return None
        cached = self._counts.get("cache_read_input_tokens", 0)
        written = self._counts.get("cache_creation_input_tokens", 0)
        return Usage(fresh + cached + written, made, cached, min(self._thought, made), written)


class Blocks:
    """Puts one answer together (``answer.Reader``). Thought, signatures, citations and pings are signs of life."""

    def __init__(self, provider: str, *, may_be_silent: bool = False) -> None:
        """``may_be_silent``: the model has been told what its tools gave, and may have nothing to add."""
        self._provider = provider
        self._may_be_silent = may_be_silent
        self._counts = Counts()
        self._calls = ToolCalls()
        self._tools: dict[int, _Tool] = {}
        """By the index of their block, while it is open."""
        self._begun = 0
        self._spoke = False
        self._reason: str | None = None
        """Once it is known, only usage can follow."""

    def add(self, event: SseEvent) -> Iterator[Chunk]:
        """Give what an event says (``answer.Reader``)."""
        if event.event == "error":
            raise fault_in_answer(self._provider, event.data)
        fields = decoded(_DECODER, self._provider, event.data, "not an object")
        if fields.get("error"):
            raise fault_in_answer(self._provider, event.data)
        said = False
        for chunk in self._take(fields):
            said = True
            yield chunk
        if not said:
            yield Delta("")

    def end(self) -> Finish:
        """Raises if the answer is none, or not whole. That nothing follows a reason but the end mark is Anthropic's
        contract, so a stream that was cut between the two is whole."""
        if self._reason is None:
            raise ProviderFault("truncated", f"{self._provider} ended the answer without a stop reason", status=200)
        reason = ended(self._provider, self._reason)
        is_empty = not self._spoke and not self._calls and reason not in CUT
        if is_empty and self._reason != "stop_sequence" and not self._may_be_silent:
            raise malformed(self._provider, "neither text nor tool calls")
        return Finish(reason)

    def read(self, document: bytes) -> Iterator[Chunk]:
        """Give what a whole answer says (``answer.Reader``), its usage first."""
        message = decoded(_DECODER, self._provider, document, "not an object")
        yield from self._count(message.get("usage"))
        if message.get("error"):
            raise fault_in_answer(self._provider, written(document))
        content = message.get("content")
        if not isinstance(content, list):
            raise malformed(self._provider, "no content", document)
        for index, block in enumerate(content):
            yield from self._start(index, self._fields(block))
            yield from self._stop(index)
        self._reason = self._text(message.get("stop_reason")) or None
        if self._reason is None and not self._spoke and not self._calls:
            raise malformed(self._provider, "neither text nor tool calls", document)
        yield self.end()

    def _take(self, event: _Fields) -> Iterator[Chunk]:
        match event.get("type"):
            case "message_stop":
                yield self.end()
            case "message_start":
                yield from self._count(self._fields(event.get("message")).get("usage"))
            case "message_delta":
                yield from self._count(event.get("usage"))
                self._reason = self._reason or self._text(self._fields(event.get("delta")).get("stop_reason")) or None
            case _ if self._reason is not None:
                pass
            case "content_block_start":
                yield from self._start(event.get("index"), self._fields(event.get("content_block")))
            case "content_block_delta":
                yield from self._continue(event.get("index"), self._fields(event.get("delta")))
            case "content_block_stop":
                yield from self._stop(event.get("index"))

    def _count(self, reported: Any) -> Iterator[Usage]:
        usage = self._counts.add(reported)
        if usage is not None:
            yield usage

    def _start(self, index: Any, block: _Fields) -> Iterator[Chunk]:
        if block.get("type") == "text":
            yield from self._say(block.get("text"))
        elif block.get("type") == "tool_use":
            tool = self._tools[self._place(index)] = _Tool(self._begun, block.get("input"))
            self._begun += 1
            name, id = self._text(block.get("name")), self._text(block.get("id"))
            yield self._calls.add(Piece(tool.index, id, Function(name)))

    def _continue(self, index: Any, piece: _Fields) -> Iterator[Chunk]:
        if piece.get("type") == "text_delta":
            yield from self._say(piece.get("text"))
        elif piece.get("type") == "input_json_delta":
            tool, text = self._tools.get(self._place(index)), self._text(piece.get("partial_json"))
            if tool is not None and text:
                tool.written = True
                yield self._add(tool, text)

    def _stop(self, index: Any) -> Iterator[Chunk]:
        """A call of which no piece has come has what its block began with; most often that is no arguments."""
        tool = self._tools.pop(self._place(index), None)
        if tool is not None and not tool.written:
            yield self._add(tool, msgspec.json.encode(tool.input or {}).decode())

    def _add(self, tool: _Tool, arguments: str) -> ToolDelta:
        return self._calls.add(Piece(tool.index, None, Function(None, arguments)))

    def _say(self, text: Any) -> Iterator[Delta]:
        self._spoke = True
        if said := self._text(text):
            yield Delta(said)

    def _fields(self, value: Any) -> _Fields:
        if isinstance(value, dict):
            return value
        raise malformed(self._provider, "something else in the place of an object")

    def _place(self, index: Any) -> int:
        if isinstance(index, int):
            return index
        raise malformed(self._provider, "something else in the place of an index")

    def _text(self, value: Any) -> str:
        if value is None or isinstance(value, str):
            return value or ""
        raise malformed(self._provider, "something else in the place of text")
