"""Chat completions as they come back: JSON, whole or in server-sent events, to chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio.lowlevel
import msgspec

from routewright._core.sse import SseParser
from routewright.errors import ProviderFault
from routewright.protocols import Response
from routewright.wire import Chunk, Delta, Finish, Usage

from .faults import Redact, conceal, fault_in_answer, start_of
from .tool_calls import Piece, ToolCalls

MAX_ANSWER_BYTES = 32 << 20
MAX_TOKENS = 100_000_000
"""A count over this is not a count."""
SLICE_BYTES = 4096
"""So much of a stream is read at once; then others have their turn, if nothing came of it."""

_DONE = "[DONE]"
_REASONS = {
    "stop": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "model_context_window_exceeded": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    "sensitive": "content_filter",
}
"""Any other reason is some host's word for a natural end."""
_WRITTEN = ("cache_write_tokens", "cache_creation_input_tokens", "cache_creation_tokens")
"""What was written to the vendor's cache, a part of the prompt's tokens: the words of OpenAI and OpenRouter, of Alibaba
and of proxies in front of Anthropic."""
_FAULT_REASONS = ("error", "network_error", "insufficient_system_resource")


class _Part(msgspec.Struct):
    content: str | list[dict[str, Any]] | None = None
    refusal: str | None = None
    tool_calls: list[Piece] | None = None


class _Choice(msgspec.Struct):
    index: int | None = None
    delta: _Part | None = None
    message: _Part | None = None
    finish_reason: str | None = None
    usage: Any = None


class _Completion(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Completion)


class WholeCompletion:
    """The chunks of an answer in one JSON document, read when they are first asked for. Of one that is none, there is
    only the usage before the fault is raised."""

    def __init__(self, provider: str, response: Response, redact: Redact) -> None:
        self._provider = provider
        self._response = response
        self._redact = redact
        self._chunks: Iterator[Chunk] | None = None

    def __aiter__(self) -> WholeCompletion:
        return self

    async def __anext__(self) -> Chunk:
        try:
            if self._chunks is None:
                self._chunks = read_whole(self._provider, await self._response.read(MAX_ANSWER_BYTES))
            for chunk in self._chunks:
                return chunk
        except ProviderFault as fault:
            fault.answered = True
            conceal(fault, self._redact)
            raise
        raise StopAsyncIteration


class StreamedCompletion:
    """The chunks of an answer in server-sent events. What came before a fault is given before it is raised."""

    def __init__(self, provider: str, response: Response, redact: Redact) -> None:
        self._body = response.chunks()
        self._redact = redact
        self._parser = SseParser()
        self._answer = Answer(provider)
        self._chunks: Iterator[Chunk | None] = iter(())
        self._ended = False

    def __aiter__(self) -> StreamedCompletion:
        return self

    async def __anext__(self) -> Chunk:
        try:
            while True:
                for chunk in self._chunks:
                    if chunk is not None:
                        return chunk
                    await anyio.lowlevel.checkpoint()
                if self._ended:
                    break
                self._chunks = self._read(await anext(self._body, b""))
        except ProviderFault as fault:
            fault.answered = self._ended = True
            conceal(fault, self._redact)
            raise
        await self._drain()
        raise StopAsyncIteration

    def _read(self, data: bytes) -> Iterator[Chunk | None]:
        """Give what a piece of the body says, as far as it is asked for; None after a slice that says nothing."""
        for at in range(0, len(data), SLICE_BYTES):
            said = False
            for event in self._parser.feed(data[at : at + SLICE_BYTES]):
                if event.data == _DONE:
                    yield self._end()
                    return
                if event.event == "error":
                    raise self._answer.error(event.data)
                said = True
                yield from self._answer.add(event.data)
            if not said:
                yield None
        if not data:
            yield self._end()

    def _end(self) -> Finish:
        self._ended = True
        return self._answer.end()

    async def _drain(self) -> None:
        """Read on to the end of the body: only then the connection can be used again."""
        try:
            async for _ in self._body:
                pass
        except ProviderFault:  # the answer was complete
            pass


def read_whole(provider: str, body: bytes) -> Iterator[Chunk]:
    """Give what a document says; of one that is no answer the usage alone, before the fault is raised."""
    answer, chunks, fault = Answer(provider), list[Chunk](), None
    try:
        chunks.extend(answer.add(body))
        if not answer.started:
            raise answer.malformed("no choices", body)
        answer.reason = answer.reason or "stop"  # the document is whole, whether it says so or not
        chunks.append(answer.end())
    except ProviderFault as raised:
        fault = raised
        chunks = [chunk for chunk in chunks if isinstance(chunk, Usage)]
    yield from chunks
    if fault is not None:
        raise fault


class Answer:
    """Puts one answer together: what a document or event adds comes out as chunks, what ends it is kept for last."""

    def __init__(self, provider: str) -> None:
        self.started = False
        """There was a choice in it."""
        self.reason: str | None = None
        """Once it is known, only usage can follow."""
        self._provider = provider
        self._spoke = False
        self._tools = ToolCalls()

    def add(self, document: bytes | str) -> Iterator[Chunk]:
        """Give what a document says, usage last; an empty ``Delta`` where it says nothing, as a sign of life. A fault
        is raised after the usage that came with it."""
        completion = self._decode(document)
        usage, said, fault = read_usage(completion.usage), False, None
        try:
            if completion.error:
                raise self.error(document)
            for choice in completion.choices or ():
                usage = read_usage(choice.usage) or usage
                for chunk in self._add_choice(choice):
                    said = True
                    yield chunk
        except ProviderFault as raised:
            fault = raised
        if usage is not None:
            yield usage
        elif not said and fault is None:
            yield Delta("")
        if fault is not None:
            raise fault

    def end(self) -> Finish:
        """Raises if the answer is none, or not whole."""
        if self.reason is None:
            raise ProviderFault("truncated", f"{self._provider} ended the stream without a finish reason", status=200)
        if self._tools and self.reason == "stop":
            self.reason = "tool_calls"  # a host's word where one tool was demanded
        if not self._spoke and not self._tools and self.reason in ("stop", "tool_calls"):
            raise self.malformed("neither content nor tool calls")
        return Finish(self.reason)

    def malformed(self, what: str, document: bytes | str = "") -> ProviderFault:
        """The fault of an answer that is none."""
        message = f"{self._provider} sent an answer with {what}"
        return ProviderFault("malformed", message, status=200, body=start_of(_written(document)))

    def error(self, document: bytes | str) -> ProviderFault:
        """The fault that a document tells of."""
        return fault_in_answer(self._provider, _written(document))

    def _decode(self, document: bytes | str) -> _Completion:
        try:
            return _decoder.decode(document)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            pass  # what was raised may hold the text
        raise self.malformed("broken JSON, or not a chat completion", document)

    def _add_choice(self, choice: _Choice) -> Iterator[Chunk]:
        if choice.index:  # one was asked for
            return
        self.started = True
        if self.reason is not None:
            return
        part = choice.delta or choice.message or _Part()
        if part.refusal:
            raise ProviderFault("refused", f"{self._provider} refused to answer", status=200)
        if part.content is not None:
            self._spoke = True
            if text := _text(part.content):
                yield Delta(text)
        for call in part.tool_calls or ():
            yield self._tools.add(call)
        if choice.finish_reason:
            self._finish(choice.finish_reason)

    def _finish(self, reason: str) -> None:
        if reason in _FAULT_REASONS:
            raise ProviderFault("server", f"{self._provider} broke off with {reason!r}", status=200)
        self.reason = _REASONS.get(reason, "stop")


def read_usage(usage: Any) -> Usage | None:
    """Token counts as they were reported; None unless input and output are both sound."""
    if not isinstance(usage, dict):
        return None
    given, made = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    if given is None or made is None:
        return None
    cached = _detail(usage, "prompt_tokens_details", "cached_tokens")
    cached = cached or _count(usage.get("prompt_cache_hit_tokens")) or _count(usage.get("cached_tokens")) or 0
    written = (
        _detail(usage, "prompt_tokens_details", *_WRITTEN) or _count(usage.get("cache_creation_input_tokens")) or 0
    )
    reasoning = _detail(usage, "completion_tokens_details", "reasoning_tokens")
    if reasoning and _count(usage.get("total_tokens")) == given + made + reasoning:
        made += reasoning  # xAI counts them beside the others, OpenAI among them
    cached = min(cached, given)
    return Usage(given, made, cached, min(reasoning, made), min(written, given - cached))


def _detail(usage: dict[str, Any], group: str, *names: str) -> int:
    """The first count of a group that is one and not 0."""
    details = usage.get(group)
    counts = (_count(details.get(name)) for name in names) if isinstance(details, dict) else ()
    return next(filter(None, counts), 0)


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else None


def _text(content: str | list[dict[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    texts = (part.get("text") for part in content if part.get("type") == "text")
    return "".join(text for text in texts if isinstance(text, str))


def _written(document: bytes | str) -> str:
    return document.decode("utf-8", "replace") if isinstance(document, bytes) else document
