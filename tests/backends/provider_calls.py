"""Helpers that call a provider and inspect its answers and faults."""

from __future__ import annotations

import json
import traceback
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import anyio
import msgspec
import pytest

from routewright.backends.providers.answer import Reader, decode_body, decode_stream
from routewright.backends.providers.hosts import HOSTS
from routewright.backends.providers.openai import request_body
from routewright.errors import ProviderFault
from routewright.protocols import Provider
from routewright.wire import Chunk, Delta, Finish, Message, Model, Params, ToolDelta, UpstreamCall, Usage
from tests.upstream import Answer

JSON = {"content-type": "application/json"}
EVENTS = {"content-type": "text/event-stream; charset=utf-8"}


def call(*messages: Message | str, model: Model | str = "x/gpt-x", **rest: Any) -> UpstreamCall:
    said = [Message("user", message) if isinstance(message, str) else message for message in messages or ["hi"]]
    defaults = {"params": Params(), "tools": None, "tool_choice": None, "max_output_tokens": None, "stream": True}
    asked = Model(id=model) if isinstance(model, str) else model
    return UpstreamCall(model=asked, messages=said, **{"deadline": 60.0} | defaults | rest)


def body_for(host: str, *messages: Message | str, **rest: Any) -> dict[str, Any]:
    """The body of a call in a host's dialect."""
    decoded: dict[str, Any] = json.loads(msgspec.json.encode(request_body(call(*messages, **rest), HOSTS[host])))
    return decoded


def without_signs_of_life(chunks: Iterable[Chunk]) -> list[Chunk]:
    """All chunks except signs of life."""
    return [chunk for chunk in chunks if chunk != Delta("")]


async def chunks_of(provider: Provider, upstream: UpstreamCall) -> list[Chunk]:
    """All chunks except signs of life."""
    async with provider.open(upstream) as chunks:
        return without_signs_of_life([chunk async for chunk in chunks])


async def text_from(chunks: AsyncIterator[Chunk]) -> str:
    """The first text of a stream."""
    async for chunk in chunks:
        if isinstance(chunk, Delta) and chunk.text:
            return chunk.text
    raise AssertionError("there was none")


async def fault_of(provider: Provider, upstream: UpstreamCall | None = None) -> ProviderFault:
    with pytest.raises(ProviderFault) as caught:
        await chunks_of(provider, upstream or call())
    return caught.value


async def fault_after(provider: Provider, upstream: UpstreamCall | None = None) -> tuple[list[Chunk], ProviderFault]:
    """The chunks without signs of life, and the fault at the end."""
    came: list[Chunk] = []
    async with provider.open(upstream or call()) as chunks:
        try:
            async for chunk in chunks:
                came.append(chunk)
        except ProviderFault as fault:
            return without_signs_of_life(came), fault
    raise AssertionError(came)


def summary_of(chunks: list[Chunk]) -> tuple[str, list[tuple[str, str, Any]], Usage | None, str]:
    """An answer as a whole: text, tool calls, usage and finish reason."""
    calls: dict[int, list[str]] = {}
    for chunk in chunks:
        if isinstance(chunk, ToolDelta):
            said = calls.setdefault(chunk.index, ["", "", ""])
            calls[chunk.index] = [said[0] + chunk.id, said[1] + chunk.name, said[2] + chunk.arguments]
    assert list(calls) == list(range(len(calls)))
    usages = [chunk for chunk in chunks if isinstance(chunk, Usage)]
    (end,) = [chunk for chunk in chunks if isinstance(chunk, Finish)]
    assert chunks[-1] is end
    text = "".join(chunk.text for chunk in chunks if isinstance(chunk, Delta))
    made = [(id, name, json.loads(arguments)) for id, name, arguments in calls.values()]
    return text, made, usages[-1] if usages else None, end.reason


def outcome(read: Callable[..., Iterable[Chunk]], *given: Any) -> Any:
    """An answer as a whole, or its fault."""
    try:
        return summary_of(list(read(*given)))
    except ProviderFault as fault:
        return str(fault)


def kind_of(read: Callable[..., Iterable[Chunk]], *given: Any) -> str:
    """The kind of fault of an answer."""
    with pytest.raises(ProviderFault) as caught:
        list(read(*given))
    return caught.value.kind


def written(fault: BaseException) -> str:
    """All texts of an exception and its causes."""
    text = "".join(traceback.format_exception(fault))
    seen: BaseException | None = fault
    while seen is not None:
        text += f"{seen!r} {seen.args!r} {vars(seen)!r}"
        seen = seen.__cause__ or seen.__context__
    return text


def bytes_of(answer: Answer) -> bytes:
    """The body of an answer that has no gates."""
    return b"".join(piece for piece in answer.pieces if isinstance(piece, bytes))


class AtOnce:
    """An answer whose body never waits."""

    status = 200

    def __init__(self, *pieces: bytes) -> None:
        self.headers: dict[str, str] = {}
        self._pieces = iter(pieces)

    async def chunks(self) -> AsyncIterator[bytes]:
        for data in self._pieces:
            yield data

    async def read(self, limit: int) -> bytes:
        raise NotImplementedError


def read_streamed(reader: Reader, *pieces: bytes) -> list[Chunk]:
    """The chunks of a stream in pieces, without the signs of life."""

    async def read() -> list[Chunk]:
        return without_signs_of_life([chunk async for chunk in decode_stream(reader, AtOnce(*pieces), str)])

    return anyio.run(read)


def all_from(reader: Reader, answer: Answer | bytes) -> tuple[list[Chunk], ProviderFault | None]:
    """The chunks of an answer, and the fault at its end, if it ends in one. Bytes are a whole document."""
    came: list[Chunk] = []
    body = answer if isinstance(answer, bytes) else bytes_of(answer)

    async def read() -> None:
        async for chunk in decode_stream(reader, AtOnce(body), str):
            came.append(chunk)

    try:
        if isinstance(answer, bytes) or not answer.chunked:
            came.extend(decode_body(reader, body))
        else:
            anyio.run(read)
    except ProviderFault as fault:
        return came, fault
    return came, None


def came_from(reader: Reader, answer: Answer | bytes) -> tuple[list[Chunk], ProviderFault | None]:
    """The same without the signs of life."""
    chunks, fault = all_from(reader, answer)
    return without_signs_of_life(chunks), fault
