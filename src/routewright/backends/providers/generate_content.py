"""Content as Gemini generates it: JSON, whole or in server-sent events, to chunks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from routewright._core.sse import SseEvent
from routewright.errors import ProviderFault
from routewright.wire import Chunk, Delta, FaultKind, Finish, ToolDelta, Usage

from .counts import count_of
from .faults import CUT, decoded, ended, fault_in_answer, malformed, written
from .tool_calls import Function, Piece, ToolCalls

_UNEXPLAINED = ("OTHER", "IMAGE_OTHER")
"""Finish reasons of an answer that broke off, and Google does not say why."""
_UNSPECIFIED = ("FINISH_REASON_UNSPECIFIED", "BLOCKED_REASON_UNSPECIFIED")
_WORD = re.compile(r"[A-Z][A-Z_]{0,63}")


class _Call(msgspec.Struct):
    id: str | None = None
    name: str | None = None
    args: dict[str, Any] | None = None


class _Part(msgspec.Struct, rename="camel"):
    text: str | None = None
    thought: bool | None = None
    function_call: _Call | None = None


class _Content(msgspec.Struct):
    parts: list[_Part] | None = None


class _Candidate(msgspec.Struct, rename="camel"):
    index: int | None = None
    content: _Content | None = None
    finish_reason: str | None = None


class _Feedback(msgspec.Struct, rename="camel"):
    block_reason: str | None = None


class _Document(msgspec.Struct, rename="camel"):
    candidates: list[_Candidate] | None = None
    prompt_feedback: _Feedback | None = None
    usage_metadata: Any = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Document)


class GeneratedContent:
    """Puts one answer together (``answer.Reader``). A stream ends with its connection: the last reason counts."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._started = False
        """There was a candidate in it."""
        self._reason: str | None = None
        self._spoke = False
        self._tools = ToolCalls()
        self._usage: Usage | None = None

    def add(self, event: SseEvent) -> Iterator[Chunk]:
        """Give what an event says (``answer.Reader``)."""
        if event.event == "error":
            raise fault_in_answer(self._provider, event.data)
        yield from self._take(event.data)

    def read(self, document: bytes) -> Iterator[Chunk]:
        """Give what a whole answer says (``answer.Reader``)."""
        yield from self._take(document)
        if not self._started:
            raise malformed(self._provider, "no candidates", document)
        yield self.end()

    def end(self) -> Finish:
        """Raises if the answer is none, or not whole."""
        if self._reason is None:
            raise self._fault(FaultKind.TRUNCATED, "ended the answer without a finish reason")
        if self._tools and self._reason == "stop":
            return Finish("tool_calls")
        if not self._spoke and not self._tools and self._reason not in CUT:
            raise malformed(self._provider, "neither text nor function calls")
        return Finish(self._reason)

    def _take(self, document: bytes | str) -> Iterator[Chunk]:
        """Give what a document says, usage last; an empty ``Delta`` where it says nothing, as a sign of life. A fault
        is raised after the usage that came with it."""
        content = decoded(_decoder, self._provider, document, "no generated content")
        said, fault = False, None
        try:
            for chunk in self._said(content, document):
                said = True
                yield chunk
        except ProviderFault as raised:
            fault = raised
        usage = read_usage(content.usage_metadata)
        if usage is not None and usage != self._usage:
            self._usage = usage
            yield usage
        elif not said and fault is None:
            yield Delta("")
        if fault is not None:
            raise fault

    def _said(self, content: _Document, document: bytes | str) -> Iterator[Chunk]:
        if content.error:
            raise fault_in_answer(self._provider, written(document))
        blocked = content.prompt_feedback and content.prompt_feedback.block_reason
        if blocked and not content.candidates:
            raise self._fault(FaultKind.REFUSED, f"refused the prompt{_shown(blocked)}")
        for candidate in content.candidates or ():
            if not candidate.index:  # one was asked for
                yield from self._add(candidate)

    def _add(self, candidate: _Candidate) -> Iterator[Chunk]:
        self._started = True
        parts = candidate.content.parts if candidate.content else None
        for part in parts or ():
            if part.function_call is not None:
                yield self._call(part.function_call)
            elif part.text and not part.thought:
                self._spoke = True
                yield Delta(part.text)
        if candidate.finish_reason:
            self._finish(candidate.finish_reason)

    def _call(self, call: _Call) -> ToolDelta:
        if not call.name:
            raise malformed(self._provider, "a function call without a name")
        return self._tools.add(Piece(id=call.id, function=Function(call.name, call.args or {})))

    def _finish(self, reason: str) -> None:
        if reason in _UNEXPLAINED:
            raise self._fault(FaultKind.TRUNCATED, f"broke off with {reason!r}")
        self._reason = ended(self._provider, reason)

    def _fault(self, kind: FaultKind, what: str) -> ProviderFault:
        return ProviderFault(kind, f"{self._provider} {what}", status=200)


def read_usage(usage: Any) -> Usage | None:
    """Token counts as they were reported; None unless all that are there are sound, the prompt's among them."""
    if not isinstance(usage, dict) or usage.get("promptTokenCount") is None:
        return None
    prompt, results = _count(usage, "promptTokenCount"), _count(usage, "toolUsePromptTokenCount")
    text, thoughts = _count(usage, "candidatesTokenCount"), _count(usage, "thoughtsTokenCount")
    if prompt is None or results is None or text is None or thoughts is None:
        return None
    cached = _count(usage, "cachedContentTokenCount") or 0
    return Usage(prompt + results, text + thoughts, min(cached, prompt), thoughts)


def _count(usage: dict[str, Any], name: str) -> int | None:
    """A count, 0 where it is left out; None for what is none."""
    value = usage.get(name)
    return 0 if value is None else count_of(value)


def _shown(reason: str) -> str:
    """A reason, if it is one of Google's words and not text."""
    return f": {reason.lower()}" if _WORD.fullmatch(reason) and reason not in _UNSPECIFIED else ""
