"""Puts the API into a program that has addresses and users of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from routewright import Caller, Router
from routewright.errors import AuthenticationFailed
from routewright.server import create_app

Scope = MutableMapping[str, Any]
USERS = {b"ann": Caller("sales"), b"bob": Caller("support")}


def who_calls(scope: Scope) -> Caller:
    """Whoever the program's own log-in has found out; here it is said in a header."""
    user = dict(scope["headers"]).get(b"x-user", b"")
    if user not in USERS:
        raise AuthenticationFailed("log in first")
    return USERS[user]


router = Router.sandbox()
api = create_app(router, authenticate=who_calls)


async def app(scope: Scope, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
    """The program: below ``/llm`` is the API. With FastAPI or Starlette it is ``app.mount("/llm", api)``."""
    if scope["path"].startswith("/llm/"):
        await api({**scope, "root_path": "/llm"}, receive, send)
        return
    await send({"type": "http.response.start", "status": 404, "headers": []})
    await send({"type": "http.response.body", "body": b"nothing here"})


async def main() -> None:
    """Ask as two users, in place of a server."""
    for user in ("ann", "bob", "eve"):
        status, answer = await ask(user, {"messages": [{"role": "user", "content": "Why is the sky blue?"}]})
        print(user, status, answer.get("output") or answer["error"]["message"])
    print(len((await router.traces.query(account="sales")).data), "call of sales")


async def ask(user: str, body: dict[str, Any]) -> tuple[int, Any]:
    """What a server does: one request into the application, and its answer out."""
    headers = [(b"x-user", user.encode()), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/llm/v1/route", "query_string": b"", "headers": headers}
    sent: list[Any] = []
    requests = [{"type": "http.request", "body": json.dumps(body).encode()}]

    async def receive() -> Any:
        return requests.pop() if requests else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])


if __name__ == "__main__":
    asyncio.run(main())
