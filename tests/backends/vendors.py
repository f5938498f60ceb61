"""The four HTTP protocols and their servers, with what the shared test suite needs of each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from routewright import AnthropicProvider, GeminiProvider, OpenAIProvider
from routewright.backends.providers import gemini as google
from routewright.backends.providers import openai as chat
from routewright.backends.providers.answer import Reader
from routewright.backends.providers.anthropic import Blocks, Counts
from routewright.backends.providers.http import HttpProvider
from routewright.backends.providers.responses import ResponseItems
from routewright.backends.providers.usage import read_usage
from routewright.wire import Chunk, Delta, Finish, Model, Thought, ToolDelta, Usage
from tests.upstream import Answer, Cut, Gate, Request, Upstream, of_json

from . import anthropic_server as anthropic
from . import gemini_server as gemini
from . import openai_server as openai
from . import responses_server as responses

Piece = dict[str, Any] | bytes | Gate | Cut
USAGE = Usage(9, 3)
"""The usage that all servers report."""
TEXT = "naïve 🦜\u2028\u0085 end"
KEY = "sk-Canary/0123456789+abcdef"
PASSWORD = "Tr0ub4dor"
BAD_ADDRESSES = [
    f"htp://user:{PASSWORD}@x.example/v1",
    f"user:{PASSWORD}@x.example",
    f"https://:{PASSWORD}@x.example/v1",
    f"https://user:{PASSWORD}",
    f"https://user:{PASSWORD}#1@x.example",
    f"https://user:{PASSWORD}/1@x.example",
    f"https://[user:{PASSWORD}@x.example",
    f"https://x.example/v1?key={PASSWORD}",
    f"ftp://x.example/v1?key={PASSWORD}#@",
    f"x://user:{PASSWORD}@a://b",
]
"""Invalid addresses with a password."""


@dataclass(frozen=True, kw_only=True)
class Vendor:
    """One protocol. A stream is an opening, texts, an ending that gives the reason and the usage, and an end mark."""

    name: str
    make: Callable[..., HttpProvider]
    serve: Callable[[], Upstream]
    """Creates a server that echoes the last text."""
    base_url: str
    path: str
    """The path of a plain call to the model ``gpt-x``."""
    variables: tuple[str, ...]
    """Environment variables for the key; the first set one counts."""
    url_variable: str
    key_header: str
    key_prefix: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    """Headers besides the key."""
    models: tuple[Model, ...]
    """Models whose requests differ."""
    problems: Callable[[bytes], list[str]]
    """Returns what the official types do not allow in a body."""
    reader: Callable[[], Reader]
    whole: Callable[[str], Answer]
    calling: Answer
    """A plain answer with text and a call of ``f``."""
    usage_first: bool = False
    """The usage of a plain answer is told before its text, and a stream begins with the input's."""
    stream: Callable[..., Answer]
    opening: tuple[Piece, ...] = ()
    text: Callable[[str], Piece]
    ending: tuple[Piece, ...]
    mark: tuple[Piece, ...] = ()
    long: tuple[Piece, ...]
    """A stream of ``TEXT`` and tool calls up to its finish reason."""
    long_ending: tuple[Piece, ...]
    calls: tuple[ToolDelta, ...]
    """Of the long one."""
    thought: tuple[Thought, ...] = ()
    """Of the long one, before all else."""
    signed: tuple[Thought, ...] = ()
    """Of the end of the long one."""
    content: str
    """The field of a document with its content."""
    deep: bytes
    """The beginning of a document, up to any value."""
    usage: str
    """The field of a document with its usage."""
    counts: Callable[[Any, Any], dict[str, Any]]
    """A report of input and output tokens."""
    details: Callable[[Any], dict[str, Any]]
    """Optional fields of the report."""
    read_usage: Callable[[Any], Usage | None]

    api: str = ""
    """Tells protocols of one vendor apart."""

    def __str__(self) -> str:
        return self.api or self.name

    @property
    def begun(self) -> list[Chunk]:
        """The first chunks of a stream."""
        return [Usage(9, 1)] if self.usage_first else []

    def broken(self, *parts: str | Piece) -> Answer:
        """A stream of texts and raw pieces without its end."""
        return self.stream(*self.opening, *(self.text(part) if isinstance(part, str) else part for part in parts))

    def streamed(self, *parts: str | Piece) -> Answer:
        """A complete stream of texts and raw pieces."""
        return self.broken(*parts, *self.ending, *self.mark)

    def plain(self, text: str) -> list[Chunk]:
        """The chunks of the plain answer."""
        return [Delta(text), USAGE, Finish("stop")]

    @property
    def long_read(self) -> list[Chunk]:
        """The chunks of the long stream."""
        said = [*self.begun, *self.thought, Delta(TEXT), *self.calls, *self.signed]
        return [*said, USAGE, Finish("tool_calls")]

    def key_of(self, request: Request) -> str:
        """The key of a request."""
        return request.headers[self.key_header].removeprefix(self.key_prefix)

    def sign(self, key: str) -> dict[str, str]:
        """The authentication headers."""
        return self.headers | {self.key_header: self.key_prefix + key}


_ASKED = [
    {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": '}},
    {"index": 0, "function": {"arguments": '"🦜"}'}},
    {"index": 1, "id": "c2", "type": "function", "function": {"name": "g", "arguments": "{ }"}},
]
_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
_DONE = b"data: [DONE]\n\n"
OPENAI = Vendor(
    name="openai",
    make=OpenAIProvider,
    serve=partial(openai.OpenAIServer, openai.echo),
    base_url="https://api.openai.com/v1",
    path="/chat/completions",
    variables=("OPENAI_API_KEY",),
    url_variable="OPENAI_BASE_URL",
    key_header="authorization",
    key_prefix="Bearer ",
    models=(Model(id="openai/gpt-4.1"), Model(id="openai/o3", reasoning=True)),
    problems=lambda body: openai.problems_of(json.loads(body)),
    reader=partial(chat.Completion, "x"),
    whole=openai.whole,
    calling=openai.whole({"role": "assistant", "content": "hello", "tool_calls": [_CALL]}, finish="tool_calls"),
    stream=partial(openai.events, done=False),
    text=openai.delta,
    ending=(openai.delta(finish="stop"), openai.USAGE),
    mark=(_DONE,),
    long=(openai.delta(TEXT), *(openai.delta(tool_calls=[piece]) for piece in _ASKED)),
    long_ending=(openai.delta(finish="tool_calls"), openai.USAGE, _DONE),
    calls=(ToolDelta(0, '{"a": ', "c1", "f"), ToolDelta(0, '"🦜"}'), ToolDelta(1, "{ }", "c2", "g")),
    content="choices",
    deep=b'{"usage": ',
    usage="usage",
    counts=lambda given, made: {"prompt_tokens": given, "completion_tokens": made},
    details=lambda count: {"prompt_tokens_details": {"cached_tokens": count}},
    read_usage=read_usage,
)

_COUNTED: dict[str, Any] = {"usage": {"input_tokens": 9, "output_tokens": 3}, "service_tier": None}
_RESPONSE = responses.whole(TEXT, responses.called("f", {"a": "🦜"}, "c1"), responses.called("g", {}, "c2"), **_COUNTED)
*_PIECES, _COMPLETED = responses.events_of(_RESPONSE, 99)


def _response(*items: Any) -> Answer:
    return of_json(responses.whole(*items, **_COUNTED))


def _make(*arguments: Any, **options: Any) -> OpenAIProvider:
    return OpenAIProvider(*arguments, api="responses", **options)


_make.__name__ = OpenAIProvider.__name__


def _echo(request: Request) -> Answer:
    text = request.body["input"][-1]["content"]
    return responses.answer_to(request, responses.whole(text, **_COUNTED))


RESPONSES = replace(
    OPENAI,
    api="responses",
    make=_make,
    serve=partial(responses.ResponsesServer, _echo),
    path="/responses",
    problems=lambda body: responses.problems_of_form(json.loads(body)),
    reader=partial(ResponseItems, "x"),
    whole=_response,
    calling=_response("hello", responses.called("f", '{"a":1}', "c1")),
    stream=responses.sse,
    text=lambda text: {"type": "response.output_text.delta", "output_index": 0, "delta": text},
    ending=({"type": "response.completed", "response": responses.whole(**_COUNTED)},),
    mark=(),
    long=tuple(_PIECES),
    long_ending=(_COMPLETED,),
    calls=(
        ToolDelta(0, "", "c1", "f"),
        ToolDelta(0, json.dumps({"a": "🦜"})),
        ToolDelta(1, "", "c2", "g"),
        ToolDelta(1, "{}"),
    ),
    content="output",
    deep=b'{"output": ',
    counts=lambda given, made: {"input_tokens": given, "output_tokens": made},
    details=lambda count: {"input_tokens_details": {"cached_tokens": count}},
    read_usage=read_usage,
)

_START, _, _OPENED, _, *_ENDING, _STOP = anthropic.events_of(anthropic.message(anthropic.said("x")))
_USED = (anthropic.used("f", {"a": "🦜"}, "c1"), anthropic.used("g", {}, "c2"))
*_LONG, _REASON, _ = anthropic.events_of(anthropic.message(anthropic.said(TEXT), *_USED, stop="tool_use"), size=99)
ANTHROPIC = Vendor(
    name="anthropic",
    make=AnthropicProvider,
    serve=anthropic.AnthropicServer,
    base_url="https://api.anthropic.com",
    path="/v1/messages",
    variables=("ANTHROPIC_API_KEY",),
    url_variable="ANTHROPIC_BASE_URL",
    key_header="x-api-key",
    headers={"anthropic-version": "2023-06-01"},
    models=tuple(Model(id=f"anthropic/{name}") for name in ("claude-haiku-4-5", "claude-opus-5-5", "glm-5")),
    problems=lambda body: anthropic.problems_of(json.loads(body)),
    reader=partial(Blocks, "x"),
    whole=lambda text: of_json(anthropic.message(anthropic.said(text))),
    calling=of_json(anthropic.message(anthropic.said("hello"), anthropic.used("f", {"a": 1}), stop="tool_use")),
    usage_first=True,
    stream=anthropic.sse,
    opening=(_START, _OPENED),
    text=lambda text: {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
    ending=tuple(_ENDING),
    mark=(_STOP,),
    long=tuple(_LONG),
    long_ending=(_REASON, _STOP),
    calls=(ToolDelta(0, "", "c1", "f"), ToolDelta(0, '{"a": "🦜"}'), ToolDelta(1, "", "c2", "g"), ToolDelta(1, "{}")),
    content="content",
    deep=b'{"a": ',
    usage="usage",
    counts=lambda given, made: {"input_tokens": given, "output_tokens": made},
    details=lambda count: {"cache_read_input_tokens": count, "output_tokens_details": count},
    read_usage=lambda reported: Counts().add(reported),
)

GEMINI = Vendor(
    name="google",
    make=GeminiProvider,
    serve=gemini.GeminiServer,
    base_url="https://generativelanguage.googleapis.com",
    path="/v1beta/models/gpt-x:generateContent",
    variables=("GOOGLE_API_KEY", "GEMINI_API_KEY"),
    url_variable="GOOGLE_GEMINI_BASE_URL",
    key_header="x-goog-api-key",
    models=tuple(Model(id=f"google/{name}") for name in ("gemini-2.5-pro", "gemini-4-argon", "gemma-4-31b-it")),
    problems=gemini.problems_of,
    reader=partial(google.GeneratedContent, "x"),
    whole=gemini.whole,
    calling=gemini.whole("hello", gemini.called("f", {"a": 1})),
    stream=gemini.events,
    text=gemini.generated,
    ending=(gemini.generated("", finish="STOP", usage=gemini.USAGE),),
    long=(
        gemini.generated({"text": "hm", "thought": True}),
        gemini.generated(TEXT, gemini.called("f", {"a": "🦜"}, "c1")),
        gemini.generated(gemini.called("g", {})),
    ),
    long_ending=(gemini.generated({"text": "", "thoughtSignature": "AAAA"}, finish="STOP", usage=gemini.USAGE),),
    calls=(ToolDelta(0, '{"a":"🦜"}', "c1", "f"), ToolDelta(1, "{}", "call_1", "g")),
    thought=(Thought("hm"),),
    signed=(Thought(item={"thoughtSignature": "AAAA", "at": [len(TEXT), 0]}),),
    content="candidates",
    deep=b'{"candidates":[{"content":{"parts":[{"functionCall":{"args":{"a":',
    usage="usageMetadata",
    counts=lambda given, made: {"promptTokenCount": given, "candidatesTokenCount": made},
    details=lambda count: {"cachedContentTokenCount": count},
    read_usage=google.read_usage,
)

VENDORS = (OPENAI, RESPONSES, ANTHROPIC, GEMINI)
