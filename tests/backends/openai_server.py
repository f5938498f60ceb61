"""A real HTTP server on loopback that speaks chat completions and is scripted by tests.

It runs in a thread with its own loop, so it serves clients on asyncio and trio and in other processes.
Every request is checked against the types of the official ``openai`` package.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, get_args, get_type_hints

from openai.types.chat.completion_create_params import CompletionCreateParams
from pydantic import ConfigDict, TypeAdapter
from typing_extensions import is_typeddict

PATIENCE_S = 10.0


@dataclass
class Request:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


class Gate:
    """Holds an answer back until the test opens it."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()
        self._waiting: list[Callable[[], object]] = []

    def open(self) -> None:
        self._open.set()
        for wake in self._waiting:
            wake()

    async def wait(self) -> None:
        loop = asyncio.get_running_loop()
        opened = asyncio.Event()
        self._waiting.append(lambda: loop.call_soon_threadsafe(opened.set))
        self.reached.set()
        if not self._open.is_set():
            await opened.wait()


class Cut:
    """Breaks the connection off."""


@dataclass
class Answer:
    """An answer: pieces of the body, each written separately, with gates between them."""

    pieces: Sequence[bytes | Gate | Cut]
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    chunked: bool = False
    raw: bool = False
    """The pieces are the whole answer, status line and all."""


def whole(message: dict[str, Any] | str = "hello", *, finish: str | None = "stop", **more: Any) -> Answer:
    """A plain completion; ``more`` is merged into the document."""
    said = {"role": "assistant", "content": message} if isinstance(message, str) else message
    document = {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": said, "finish_reason": finish}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
    }
    return of_json(document | more)


def of_json(document: Any, status: int = 200, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer([json.dumps(document).encode()], status, {"content-type": "application/json"} | named)


def delta(content: str | None = None, *, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """One chunk of a stream."""
    said = ({"content": content} if content is not None else {}) | more
    return {
        "id": "c1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "delta": said, "finish_reason": finish}],
    }


USAGE = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}}


def events(*parts: dict[str, Any] | str | bytes | Gate | Cut, done: bool = True) -> Answer:
    """A streamed completion: dictionaries become events, bytes are sent as they are."""
    pieces: list[bytes | Gate | Cut] = []
    for part in parts:
        text = json.dumps(part, ensure_ascii=False) if isinstance(part, dict) else part
        pieces.append(f"data: {text}\n\n".encode() if isinstance(text, str) else text)
    if done:
        pieces.append(b"data: [DONE]\n\n")
    return Answer(pieces, headers={"content-type": "text/event-stream"}, chunked=True)


class OpenAIServer:
    """Answers each request with the next of ``answers``, or with what ``answer`` makes of it."""

    def __init__(
        self, answer: Callable[[Request], Answer] = lambda request: whole(), tls: ssl.SSLContext | None = None
    ) -> None:
        self.answer = answer
        self._tls = tls
        self.answers: list[Answer] = []
        self.requests: list[Request] = []
        self.problems: list[str] = []
        """What the official types do not allow in the requests."""
        self.opened = 0
        self.connected = 0
        self._changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="openai-server", daemon=True)
        self._started = threading.Event()
        self.port = 0

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(PATIENCE_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)

    def wait_connected(self, count: int) -> bool:
        """Wait until that many connections are open."""
        with self._changed:
            return self._changed.wait_for(lambda: self.connected == count, PATIENCE_S)

    def note_connection(self, change: int) -> None:
        with self._changed:
            self.opened += max(change, 0)
            self.connected += change
            self._changed.notify_all()

    def next_answer(self, request: Request) -> Answer:
        self.requests.append(request)
        self.problems += self.problems_in(request)
        return self.answers.pop(0) if self.answers else self.answer(request)

    def problems_in(self, request: Request) -> list[str]:
        """What the official types do not allow in a request; another protocol's are held to its own."""
        return problems_of(request.body) if request.path.endswith("/chat/completions") else []

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        connections: set[_Connection] = set()
        serving = self._loop.create_server(lambda: _Connection(self, connections), "127.0.0.1", 0, ssl=self._tls)
        server = self._loop.run_until_complete(serving)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        self._loop.run_forever()
        server.close()
        for connection in connections:
            connection.transport.abort()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()


class _Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, server: OpenAIServer, connections: set[_Connection]) -> None:
        self._server = server
        self._connections = connections
        self._received = bytearray()
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._connections.add(self)
        self._server.note_connection(+1)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()
        self._connections.discard(self)
        self._server.note_connection(-1)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._received[:1].isalpha():
            self.transport.abort()  # a TLS handshake
        elif request := self._take_request():
            answer = self._server.next_answer(request)
            self._task = asyncio.get_running_loop().create_task(self._send(answer))

    def _take_request(self) -> Request | None:
        head, found, rest = bytes(self._received).partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", 0))
        if not found or len(rest) < length:
            return None
        self._received = bytearray(rest[length:])
        method, path, _ = first.split(" ")
        return Request(method, path, headers, rest[:length])

    async def _send(self, answer: Answer) -> None:
        if not answer.raw:
            self.transport.write(_head(answer))
        for piece in answer.pieces:
            await self._send_piece(piece, answer.chunked)
        if answer.chunked:
            self.transport.write(b"0\r\n\r\n")
        if answer.raw:
            self.transport.close()

    async def _send_piece(self, piece: bytes | Gate | Cut, chunked: bool) -> None:
        if isinstance(piece, Gate):
            await piece.wait()
        elif isinstance(piece, Cut):
            self.transport.abort()
            raise asyncio.CancelledError
        else:
            self.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            await asyncio.sleep(0)


def _head(answer: Answer) -> bytes:
    headers = dict(answer.headers)
    if answer.chunked:
        headers["transfer-encoding"] = "chunked"
    else:
        length = sum(len(piece) for piece in answer.pieces if isinstance(piece, bytes))
        headers.setdefault("content-length", str(length))
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {answer.status} Status\r\n{lines}\r\n".encode("latin-1")


def echo(request: Request) -> Answer:
    """Echo the last message, plain or streamed as requested."""
    text = request.body["messages"][-1]["content"]
    if not request.body.get("stream"):
        return whole(text)
    return events(delta("", role="assistant"), *(delta(letter) for letter in text), delta(finish="stop"), USAGE)


def problems_of(body: Any) -> list[str]:
    """What the official types say against a request body; unknown fields are problems."""
    try:
        _exhaust(_adapter().validate_python(body, strict=True))
    except ValueError as exc:
        return [str(exc)]
    return []


_adapters: list[TypeAdapter[Any]] = []


def _adapter() -> TypeAdapter[Any]:
    if not _adapters:
        _forbid_extra(CompletionCreateParams, set())
        _adapters.append(TypeAdapter(CompletionCreateParams))
    return _adapters[0]


def _forbid_extra(hint: Any, seen: set[Any]) -> None:
    """Let every dictionary type inside ``hint`` refuse fields that it does not name."""
    if is_typeddict(hint) and hint not in seen:
        seen.add(hint)
        hint.__pydantic_config__ = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
        for inner in get_type_hints(hint).values():
            _forbid_extra(inner, seen)
    for inner in get_args(hint):
        _forbid_extra(inner, seen)


def _exhaust(value: Any) -> None:
    """Iterables are checked only as they are iterated."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        return
    for inner in value.values() if isinstance(value, dict) else value:
        _exhaust(inner)
