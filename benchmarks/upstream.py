"""A server on loopback that speaks chat completions, in a process of its own, so that its work is in nobody's figures.

    python -m benchmarks.upstream      # prints its port

What it does stands at the front of the path: ``/v1`` answers at once, a stream in one burst, and ``/short`` with
a short one; ``/down`` says 503; ``/together-1000`` begins each stream and goes on with all of them, in turns, once so
many have begun.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from .floors import content_length

PIECES = 200
"""Of a stream."""
SHORT_PIECES = 5
TOGETHER_PIECES = 20
WORD = " word"
ROOT = Path(__file__).parent.parent


class Upstream(NamedTuple):
    """A server that runs."""

    port: int

    def url(self, does: str = "v1") -> str:
        """The base of its addresses."""
        return f"http://127.0.0.1:{self.port}/{does}"


@contextmanager
def upstream(before: Sequence[str] = ()) -> Iterator[Upstream]:
    """Run one. ``before`` goes in front of its command."""
    command = [*before, sys.executable, "-m", "benchmarks.upstream"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as running:
        assert running.stdout is not None, "it is piped"
        try:
            yield Upstream(int(running.stdout.readline()))
        finally:
            running.terminate()


def pieces(count: int) -> list[bytes]:
    """The events of a stream with so many pieces of text."""
    texts = [_event(delta={"content": WORD}) for _ in range(count)]
    usage = {"choices": [], "usage": {"prompt_tokens": 42, "completion_tokens": count, "total_tokens": 42 + count}}
    return [*texts, _event(delta={}, finish_reason="stop"), _data(json.dumps(usage)), _data("[DONE]")]


def _event(**choice: Any) -> bytes:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return _data(json.dumps(head | {"choices": [{"index": 0, **choice}]}))


def _data(text: str) -> bytes:
    return f"data: {text}\n\n".encode()


def _http(status: str, document: Any) -> bytes:
    body = json.dumps(document).encode()
    return f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
DOWN = _http("503 Service Unavailable", {"error": {"message": "overloaded", "type": "server_error"}})
WHOLE = _http(
    "200 OK",
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello there."}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 42, "completion_tokens": 9, "total_tokens": 51},
    },
)
CHUNKS = [_chunk(piece) for piece in pieces(PIECES)]
BURST = STREAM_HEAD + b"".join(CHUNKS) + LAST_CHUNK
SHORT = STREAM_HEAD + b"".join(map(_chunk, pieces(SHORT_PIECES))) + LAST_CHUNK
TOGETHER = [_chunk(piece) for piece in pieces(TOGETHER_PIECES)] + [LAST_CHUNK]


class _Connection(asyncio.Protocol):
    def __init__(self, waiting: list[asyncio.Transport], tasks: set[asyncio.Task[None]]) -> None:
        self._received = bytearray()
        self._waiting = waiting
        self._tasks = tasks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if found and len(body) >= content_length(bytes(head)):
            self._received.clear()
            self._answer(head.split(b" ", 2)[1].split(b"/")[1].decode(), streams=b'"stream":true' in body)

    def _answer(self, does: str, *, streams: bool) -> None:
        if does == "down":
            self._transport.write(DOWN)
        elif not streams:
            self._transport.write(WHOLE)
        elif does == "short":
            self._transport.write(SHORT)
        elif does.startswith("together-"):
            self._wait_for(int(does.removeprefix("together-")))
        else:
            self._transport.write(BURST)

    def _wait_for(self, count: int) -> None:
        self._transport.write(STREAM_HEAD + TOGETHER[0])
        self._waiting.append(self._transport)
        if len(self._waiting) == count:
            self._start(_send_in_turns(list(self._waiting)))
            self._waiting.clear()

    def _start(self, sending: Any) -> None:
        task = asyncio.get_running_loop().create_task(sending)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _send_in_turns(transports: list[asyncio.Transport]) -> None:
    for chunk in TOGETHER[1:]:
        for transport in transports:
            transport.write(chunk)
        await asyncio.sleep(0)


async def main() -> None:
    """Serve until terminated, or until whoever started it is gone."""
    loop = asyncio.get_running_loop()
    waiting: list[asyncio.Transport] = []
    tasks: set[asyncio.Task[None]] = set()
    server = await loop.create_server(lambda: _Connection(waiting, tasks), "127.0.0.1", 0, backlog=2_048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
