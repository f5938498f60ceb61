"""Calls an ASGI application without a socket: a scope in, messages out."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import anyio


class Told(NamedTuple):
    """What an application answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def ask(
    app: Any,
    path: str,
    method: str = "GET",
    *,
    body: Any = None,
    headers: dict[str, str] | None = None,
    query: bytes = b"",
    leaves: bool = False,
    **scope: Any,
) -> Told:
    """The answer. ``leaves``: the client does so before its body has come."""
    sent = [] if body is None else [(b"content-type", b"application/json")]
    sent += [(name.encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]
    come: list[dict[str, Any]] = [] if leaves else [{"type": "http.request", "body": json.dumps(body or {}).encode()}]
    come.append({"type": "http.disconnect"})
    given: list[Any] = []

    async def receive() -> Any:
        if len(come) == 1 and not leaves:
            await anyio.sleep_forever()
        return come.pop(0)

    async def send(message: Any) -> None:
        given.append(message)

    whole = {"type": "http", "method": method, "path": path, "headers": sent, "query_string": query, **scope}
    await app(whole, receive, send)
    head, *pieces = given
    named = {name.decode(): value.decode() for name, value in head["headers"]}
    return Told(head["status"], named, b"".join(piece["body"] for piece in pieces))
