"""The least that answers over HTTP: raw ASGI on loopback, in a process of its own.

    python -m benchmarks.least_app http://127.0.0.1:8001/short

The word is the base of an upstream's address, or ``in-process``: there is none.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from .serve import IN_PROCESS, serve

ANSWER = {
    "trace_id": "tr_0",
    "output": "Hello there, this is a canned answer.",
    "routing": {"selected_model": "m", "fallback_chain": ["n", "o", "p"], "cost_usd": 0.0001, "latency_ms": 0.1},
    "usage": {"rate_limit_remaining": 1, "rate_limit_reset_unix": 1},
}
EVENTS = [
    b"event: route.%s\ndata: %s\n\n" % (name, msgspec.json.encode(ANSWER))
    for name in (b"started", b"output", b"completed")
]

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Least:
    """Raw ASGI: reads JSON, writes as much JSON, and checks nothing. In front of an upstream it passes on what that
    says, by aiohttp."""

    def __init__(self, models: str) -> None:
        self._url = None if models == IN_PROCESS else f"{models}/chat/completions"
        self._session: Any = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        asked = msgspec.json.decode(body) if body else {}
        if self._url is not None:
            await self._pass_on(self._url, asked, send)
        elif asked.get("stream"):
            await _begin_stream(send)
            await send({"type": "http.response.body", "body": b"".join(EVENTS)})
        else:
            await _whole(send, msgspec.json.encode(ANSWER))

    async def _pass_on(self, url: str, asked: dict[str, Any], send: Send) -> None:
        if self._session is None:
            import aiohttp  # which takes as much memory as all the rest

            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        sent = msgspec.json.encode({"model": "m", **asked})
        async with self._session.post(url, data=sent, headers={"content-type": "application/json"}) as answer:
            if not asked.get("stream"):
                await _whole(send, msgspec.json.encode({**ANSWER, "said": msgspec.json.decode(await answer.read())}))
                return
            await _begin_stream(send)
            async for piece in answer.content.iter_any():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": EVENTS[-1]})


async def _whole(send: Send, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _begin_stream(send: Send) -> None:
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


if __name__ == "__main__":
    serve(Least(sys.argv[1]), {})
