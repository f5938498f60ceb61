"""A server of your own in front of a Router: an ASGI application that uses nothing but public names."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from routewright import Console, MemoryStorage, Router, RouterError
from routewright.errors import BodyTooLarge
from routewright.router import Prepared
from routewright.wire import error_envelope

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
MOST_BYTES = 1 << 20


class Server:
    """Answers ``POST /ask`` with text: all at once, or as it comes where the request says ``"stream": true``."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self.console = Console(router.storage, clock=router.clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = dict(scope["headers"])
        request_id = self.router.new_id("req_")
        try:
            prepared = await self.prepare(headers, receive)
            if prepared.request.stream:
                await self.stream(prepared, send)
            else:
                answer = await prepared.run()
                await respond(send, 200, answer.output.encode(), answer.headers)
        except RouterError as error:
            error.request_id = request_id
            body = json.dumps({"error": error_envelope(error).error.code, "request": request_id}).encode()
            await respond(send, error.status, body, error.headers)

    async def prepare(self, headers: dict[bytes, bytes], receive: Receive) -> Prepared:
        """Who calls, then how long the body is, then what it says. Nothing is admitted yet."""
        caller = await self.console.authenticate(headers.get(b"authorization", b"").decode("latin-1"))
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
            if len(body) > MOST_BYTES:
                raise BodyTooLarge(f"the body is over {MOST_BYTES} bytes")
        key = headers.get(b"idempotency-key")
        return self.router.prepare(
            body,
            caller=caller,
            path="/ask",
            traceparent=headers.get(b"traceparent", b"").decode("latin-1"),
            idempotency_key=None if key is None else key.decode("latin-1"),
        )

    async def stream(self, prepared: Prepared, send: Send) -> None:
        """Send each piece as it comes. What fails before the first piece has its own status."""
        begun = False
        async with prepared.stream() as stream:
            async for text in stream.text():
                if not begun:
                    await start(send, 200, stream.headers)
                    begun = True
                await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def start(send: Send, status: int, headers: dict[str, str]) -> None:
    sent = [(b"content-type", b"text/plain; charset=utf-8")]
    sent += [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": sent})


async def respond(send: Send, status: int, body: bytes, headers: dict[str, str]) -> None:
    await start(send, status, headers)
    await send({"type": "http.response.body", "body": body})


async def main() -> None:
    """Ask it in place of a server: with a key, as a stream, wrongly, and without a key."""
    router = Router.sandbox(storage=MemoryStorage())
    server = Server(router)
    async with router, server.console as console:
        await console.create_account("acme", plan="team")
        key = (await console.create_key("acme", name="example", environment="sandbox")).secret.reveal()
        hello = {"messages": [{"role": "user", "content": "Why is the sky blue?"}]}
        print(await ask(server, key, hello))
        print(await ask(server, key, hello | {"stream": True}))
        print(await ask(server, key, {"message": "Hello"}))
        print(await ask(server, "sk_test_unknown", hello))


async def ask(server: Server, key: str, body: object) -> tuple[int, str]:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": json.dumps(body).encode()}

    async def send(message: Any) -> None:
        sent.append(message)

    await server({"type": "http", "headers": [(b"authorization", f"Bearer {key}".encode())]}, receive, send)
    return sent[0]["status"], b"".join(message["body"] for message in sent[1:]).decode()[:40]


if __name__ == "__main__":
    asyncio.run(main())
