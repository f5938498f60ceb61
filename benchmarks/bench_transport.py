"""What does a call over HTTP cost by the transport alone, with a provider on it, and with the Router on that? What does
it cost to read a piece of a stream in each vendor's protocol?
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import pytest

from routewright import UpstreamCall
from routewright._core.sse import SseParser
from routewright.backends.providers.http import HttpProvider
from routewright.backends.transport.aiohttp import AiohttpTransport
from routewright.protocols import Transport

from . import data
from .conftest import TimedAsync
from .doubles import DropsAtOnce, Messages, router_over
from .loopback import chunks, openai, plain_call, upstream_call
from .measure import Effort, Figure, reading, sample
from .report import Question, Report, Who
from .upstream import PIECES, WORD, Upstream, pieces

CPU = Question("route() through OpenAIProvider to an upstream on loopback, CPU", "80 above the floor")
"""The floor is a request by ``AiohttpTransport`` alone."""


@pytest.fixture
def chats() -> Iterator[Messages]:
    return cycle(data.conversations())


@pytest.fixture
def transport(loop: asyncio.Runner) -> Iterator[Transport]:
    made = AiohttpTransport()
    yield made
    loop.run(made.aclose())


def test_plain_call(timed_async: TimedAsync, server: Upstream, transport: Transport, chats: Iterator[Messages]) -> None:
    provider = openai(server.url(), transport)
    timed_async.cpu(CPU, "floor", plain_call(transport, server.url()), chats)
    timed_async.cpu(CPU, "provider", reading(chunks(provider, stream=False)), chats)
    timed_async.cpu(CPU, "routewright", router_over(provider, DropsAtOnce()).route, chats)


def anthropic_pieces() -> list[bytes]:
    """The events of a Messages stream."""
    said = [{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": WORD}}] * PIECES
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"role": "assistant", "content": [], "usage": {"input_tokens": 42}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *said,
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": PIECES}},
        {"type": "message_stop"},
    ]
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events]


def gemini_pieces() -> list[bytes]:
    """The documents of a generateContent stream."""

    def document(**more: Any) -> dict[str, Any]:
        usage = {"promptTokenCount": 42, "candidatesTokenCount": PIECES, "totalTokenCount": 42 + PIECES}
        candidate = {"content": {"role": "model", "parts": [{"text": WORD}]}, "index": 0, **more}
        return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "m", "responseId": "r1"}

    documents = [document() for _ in range(PIECES - 1)] + [document(finishReason="STOP")]
    return [f"data: {json.dumps(each)}\r\n\r\n".encode() for each in documents]


PROTOCOLS: dict[str, tuple[str, Callable[[], list[bytes]]]] = {
    "openai": ("OpenAIProvider", lambda: pieces(PIECES)),
    "anthropic": ("AnthropicProvider", anthropic_pieces),
    "gemini": ("GeminiProvider", gemini_pieces),
}


def provider_of(name: str, provider: str) -> HttpProvider:
    module = pytest.importorskip(f"routewright.backends.providers.{name}", reason=f"{name}: there is no such provider")
    made: HttpProvider = getattr(module, provider)("none", environ={})
    return made


@pytest.mark.parametrize("name", PROTOCOLS)
def test_read_a_piece(effort: Effort, report: Report, name: str) -> None:
    """Of a stream that is there in pieces of its own, with its events parsed; the floor parses them and reads none."""
    kind, made = PROTOCOLS[name]
    provider, call, received = provider_of(name, kind), upstream_call(data.conversations()[0], stream=True), made()
    question = Question(f"reading a piece of a stream: {kind}")

    def read(received: list[bytes]) -> int:
        return read_stream(provider, call, received)

    assert read(received) >= PIECES
    ways: dict[Who, Callable[[list[bytes]], int]] = {"floor": parse, "routewright": read}
    for who, way in ways.items():
        figure = sample(way, cycle([received]), effort, loop=False)
        report.add(question, who, Figure("µs", figure.p50 / len(received)))


def parse(received: list[bytes]) -> int:
    parser = SseParser()
    return sum(1 for piece in received for _ in parser.feed(piece))


def read_stream(provider: HttpProvider, call: UpstreamCall, received: list[bytes]) -> int:
    parser, reader = SseParser(), provider._reader(call, {})
    for piece in received:
        for event in parser.feed(piece):
            reader.add(event)
    return len(reader.chunks)
