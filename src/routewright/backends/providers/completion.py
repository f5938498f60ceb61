"""Chat completions as they come back: JSON, whole or in server-sent events, to chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from routewright._core.sse import SseEvent
from routewright.errors import ProviderFault
from routewright.wire import Chunk, Delta, Finish, Usage

from .counts import count_of
from .faults import CUT, decoded, ended, fault_in_answer, malformed, written
from .tool_calls import Piece, ToolCalls

_DONE = "[DONE]"
_WRITTEN = ("cache_write_tokens", "cache_creation_input_tokens", "cache_creation_tokens")
"""What was written to the vendor's cache, a part of the prompt's tokens: the words of OpenAI and OpenRouter, of Alibaba
and of proxies in front of Anthropic."""


class _Part(msgspec.Struct):
    content: str | list[dict[str, Any]] | None = None
    refusal: str | None = None
    tool_calls: list[Piece] | None = None
    reasoning: Any = None
    reasoning_content: Any = None
    reasoning_details: Any = None

    @property
    def thinks(self) -> bool:
        """There is thought in it, in any host's word for that."""
        parts = self.content if isinstance(self.content, list) else ()
        told = self.reasoning or self.reasoning_content or self.reasoning_details
        return bool(told) or any(part.get("type") == "thinking" for part in parts)


class _Choice(msgspec.Struct):
    index: int | None = None
    delta: _Part | None = None
    message: _Part | None = None
    finish_reason: str | None = None
    native_finish_reason: Any = None
    """OpenRouter's own: the word of whoever it asked."""
    usage: Any = None


class _Groq(msgspec.Struct):
    usage: Any = None
    error: Any = None


class _BaseResp(msgspec.Struct):
    status_code: int = 0


class _Document(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None
    x_groq: _Groq | None = None
    """Groq's own, in the first and last event of a stream."""
    base_resp: _BaseResp | None = None
    """MiniMax's own: an error where its code is not 0."""

    @property
    def failed(self) -> bool:
        """It tells of an error."""
        return bool(
            self.error
            or (self.x_groq is not None and self.x_groq.error)
            or (self.base_resp is not None and self.base_resp.status_code)
        )


_decoder = msgspec.json.Decoder(_Document)


class Completion:
    """Puts one answer together (``answer.Reader``): what ends it is kept for last."""

    def __init__(self, provider: str) -> None:
        self.started = False
        """There was a choice in it."""
        self.reason: str | None = None
        """Once it is known, only usage can follow."""
        self._provider = provider
        self._spoke = False
        """There was text, if only an empty one."""
        self._said = False
        self._thought = False
        self._tools = ToolCalls()

    def add(self, event: SseEvent) -> Iterator[Chunk]:
        """Give what an event says (``answer.Reader``)."""
        if event.data.startswith(_DONE):
            yield self.end()
            return
        if event.event == "error":
            raise self.error(event.data)
        yield from self.take(event.data)

    def read(self, document: bytes) -> Iterator[Chunk]:
        """Give what a whole answer says (``answer.Reader``)."""
        yield from self.take(document)
        if not self.started:
            raise malformed(self._provider, "no choices", document)
        yield self.end()

    def take(self, document: bytes | str) -> Iterator[Chunk]:
        """Give what a document says, usage last; an empty ``Delta`` where it says nothing, as a sign of life. A fault
        is raised after the usage that came with it."""
        completion = decoded(_decoder, self._provider, document, "not a chat completion")
        usage, said, fault = read_usage(completion.usage), False, None
        if usage is None and completion.x_groq is not None:
            usage = read_usage(completion.x_groq.usage)
        try:
            if completion.failed:
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
            raise ProviderFault("truncated", f"{self._provider} ended the answer without a finish reason", status=200)
        if self._tools and self.reason == "stop":
            self.reason = "tool_calls"  # a host's word where one tool was demanded
        spoke = self._said if self._thought else self._spoke  # an empty text beside thought is a host's filler
        if not spoke and not self._tools and self.reason not in CUT:
            raise malformed(self._provider, "neither content nor tool calls")
        return Finish(self.reason)

    def error(self, document: bytes | str) -> ProviderFault:
        """The fault that a document tells of."""
        return fault_in_answer(self._provider, written(document))

    def _add_choice(self, choice: _Choice) -> Iterator[Chunk]:
        if choice.index:  # one was asked for
            return
        self.started = True
        if self.reason is not None:
            return
        part = choice.delta or choice.message or _Part()
        if part.refusal:
            raise ProviderFault("refused", f"{self._provider} refused to answer", status=200)
        text = _text(part.content)
        self._spoke = self._spoke or text is not None
        if text:
            self._said = True
            yield Delta(text)
        elif part.thinks:
            self._thought = True
        for call in part.tool_calls or ():
            yield self._tools.add(call)
        if choice.finish_reason:
            self._finish(choice.finish_reason, choice.native_finish_reason)

    def _finish(self, reason: str, native: Any) -> None:
        self.reason = ended(self._provider, reason)
        if isinstance(native, str) and ended(self._provider, native) == "content_filter":
            self.reason = "content_filter"


def read_usage(usage: Any) -> Usage | None:
    """Token counts as they were reported; None unless input and output are both sound."""
    if not isinstance(usage, dict):
        return None
    given, made = count_of(usage.get("prompt_tokens")), count_of(usage.get("completion_tokens"))
    if given is None or made is None:
        return None
    cached = _detail(usage, "prompt_tokens_details", "cached_tokens")
    cached = cached or count_of(usage.get("prompt_cache_hit_tokens")) or count_of(usage.get("cached_tokens")) or 0
    written = (
        _detail(usage, "prompt_tokens_details", *_WRITTEN) or count_of(usage.get("cache_creation_input_tokens")) or 0
    )
    reasoning = _detail(usage, "completion_tokens_details", "reasoning_tokens")
    if reasoning and count_of(usage.get("total_tokens")) == given + made + reasoning:
        made += reasoning  # xAI counts them beside the others, OpenAI among them
    if "num_search_queries" in usage:  # Perplexity bills what it read and thought beside the others
        reasoning = count_of(usage.get("reasoning_tokens")) or 0
        given, made = given + (count_of(usage.get("citation_tokens")) or 0), made + reasoning
    cached = min(cached, given)
    return Usage(given, made, cached, min(reasoning, made), min(written, given - cached))


def _detail(usage: dict[str, Any], group: str, *names: str) -> int:
    """The first count of a group that is one and not 0."""
    details = usage.get(group)
    counts = (count_of(details.get(name)) for name in names) if isinstance(details, dict) else ()
    return next(filter(None, counts), 0)


def _text(content: str | list[dict[str, Any]] | None) -> str | None:
    """What was said, if only an empty text; None if nothing was, as by parts none of which is a text."""
    if not isinstance(content, list):
        return content
    given = (part.get("text") for part in content if part.get("type") == "text")
    texts = [text for text in given if isinstance(text, str)]
    return "".join(texts) if texts else None
