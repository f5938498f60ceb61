"""Requests to the page as a browser sends them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import msgspec

from routewright import Console, Router, Settings
from routewright.testing import FakeClock
from routewright.ui import create_ui
from routewright.wire import NewKey

Application = Callable[[Any, Any, Any], Awaitable[None]]

HOST = "127.0.0.1:9000"


class Browser:
    """Sends requests as a browser at the page would, with its cookie and token."""

    def __init__(self, app: Application) -> None:
        self.app = app
        self.cookie = ""
        self.token = ""
        self.scope: dict[str, Any] = {}
        """Parts of the scope that the server sets."""
        self.before_body: Callable[[], Awaitable[object]] | None = None
        """What happens before the body of a request arrives."""

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, dict[str, str]]:
        sent = {"host": HOST, "content-type": "application/json", "cookie": self.cookie, "x-session-token": self.token}
        if method != "GET":
            sent["origin"] = f"http://{HOST}"
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        address, _, query = path.partition("?")
        scope = {
            "type": "http",
            **self.scope,
            "method": method,
            "path": address,
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in sent.items() if value],
        }
        messages: list[Any] = []

        raw = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        requests = [{"type": "http.request", "body": raw}]

        async def receive() -> Any:
            if not requests:
                await anyio.sleep_forever()
            if self.before_body is not None:
                await self.before_body()
            return requests.pop()

        async def send(message: Any) -> None:
            messages.append(message)

        await self.app(scope, receive, send)
        answer = b"".join(message.get("body", b"") for message in messages)
        answered = {name.decode(): value.decode() for name, value in messages[0]["headers"]}
        self.cookie = answered.get("set-cookie", self.cookie).partition(";")[0]
        is_json = answer[:1] in (b"{", b"[")
        return messages[0]["status"], msgspec.json.decode(answer) if is_json else answer, answered

    async def status(self, method: str, path: str, body: Any = None, **headers: str) -> int:
        return (await self.ask(method, path, body, **headers))[0]

    async def sign_in(self, **credentials: str) -> int:
        status, session, _ = await self.ask("POST", "/session", credentials)
        self.token = session.get("token", "")
        return status


def page(console: Console, clock: FakeClock, **options: Any) -> Browser:
    router = Router(providers=[], storage=console._storage, settings=Settings(clock=clock))
    return Browser(create_ui(router, console, **options))


async def operator_key(console: Console, *scopes: Any, name: str = "ada") -> NewKey:
    return await console.create_key("_system", name=name, scopes=scopes or ("console:write",))
