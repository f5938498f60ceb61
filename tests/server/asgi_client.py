"""Sends one scripted request to the application without a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import anyio
import msgspec

Message = MutableMapping[str, Any]


class Client:
    """Both ends of ASGI. Sends the body in pieces, takes what comes, leaves when it is told to."""

    def __init__(self, *pieces: bytes, ends: bool = True) -> None:
        """``ends``: the body is whole with the last piece; else the client never goes on."""
        self.sent: list[Message] = []
        self.reads = True
        """False: it takes nothing, as one whose network is stuck."""
        self.breaks_after: int | None = None
        """So many messages it takes; None: all."""
        self._pieces = list(pieces) or [b""]
        self._ends = ends
        self._gone = anyio.Event()
        self._reading = anyio.Event()
        self._changed = anyio.Event()

    def leave(self) -> None:
        self._gone.set()

    def read_on(self) -> None:
        self.reads = True
        self._reading.set()

    async def receive(self) -> Message:
        if self._pieces:
            piece = self._pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(self._pieces) or not self._ends}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self.breaks_after is not None and len(self.sent) >= self.breaks_after:
            raise BrokenPipeError
        while not self.reads:
            self._reading = anyio.Event()
            await self._reading.wait()
        self.sent.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._gone.set()  # as uvicorn says it
        self._changed.set()
        self._changed = anyio.Event()

    async def until(self, true: Callable[[Client], bool]) -> None:
        """Wait for what it is sent."""
        while not true(self):
            await self._changed.wait()

    @property
    def status(self) -> int | None:
        return self.sent[0]["status"] if self.sent else None

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode("latin-1") for name, value in self.sent[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])

    @property
    def is_whole(self) -> bool:
        return len(self.sent) > 1 and not self.sent[-1].get("more_body", False)

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


def scope_of(
    method: str = "POST",
    path: str = "/v1/route",
    *,
    query: str = "",
    headers: dict[str, str] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """What a server says of a request."""
    told = {"content-type": "application/json", **(headers or {})}
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in told.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        **more,
    }


App = Callable[[Any, Any, Any], Awaitable[None]]


async def ask(app: App, scope: dict[str, Any], body: Any = b"") -> Client:
    """One request to its end."""
    client = Client(body if isinstance(body, bytes) else msgspec.json.encode(body))
    await app(scope, client.receive, client.send)
    return client
