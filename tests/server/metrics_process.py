"""A process with a Router and its metrics, which executes commands from standard input line by line."""

from __future__ import annotations

import sys

import anyio

from routewright import Router
from routewright.server import create_admin, create_app
from routewright.server.metrics import Metrics

from .asgi_request import ask


def main() -> None:
    router = Router.sandbox()
    metrics = Metrics(router)
    app, admin = create_app(router, observers=[metrics]), create_admin(router, metrics=metrics)
    for line in sys.stdin:
        match line.strip():
            case "call":
                router.blocking.route("Hello")
                router.blocking.flush()
                anyio.run(ask, app, "/v1/nothing")
                metrics.refresh()
                print("called", flush=True)
            case "render":
                told = anyio.run(ask, admin, "/metrics")
                print(told.body.decode(), end="", flush=True)
                print("# end", flush=True)


if __name__ == "__main__":
    main()
