"""Mounts the HTTP API in a Starlette or FastAPI program that has users of its own."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from routewright import Caller, Router
from routewright.errors import AuthenticationFailed
from routewright.server import create_app

USERS = {b"ann": Caller("sales"), b"bob": Caller("support")}


def who_calls(scope: MutableMapping[str, Any]) -> Caller:
    """The account of the program's own user, whom a header names here."""
    user = dict(scope["headers"]).get(b"x-user", b"")
    if user not in USERS:
        raise AuthenticationFailed("log in first")
    return USERS[user]


router = Router.sandbox()
api = create_app(router, authenticate=who_calls)


app = Starlette(routes=[Mount("/llm", api)])


def main() -> None:
    client = TestClient(app)  # in place of a server
    for user in ("ann", "bob", "eve"):
        body = {"messages": [{"role": "user", "content": "Why is the sky blue?"}]}
        response = client.post("/llm/v1/route", json=body, headers={"X-User": user})
        answer = response.json()
        print(user, response.status_code, answer.get("output") or answer["error"]["message"])
    print(len(router.blocking.traces.query(account="sales").data), "call of sales")


if __name__ == "__main__":
    main()
