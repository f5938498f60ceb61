"""One of several processes that serve one store: ``python -m tests.server.worker_child STORE CALLS LEASE_S``.

Writes its port, and a line into the file CALLS for each call that a model gets.
"""

from __future__ import annotations

import os
import socket
import sys

import uvicorn

from routewright import Console, Model, Router, SqliteStorage
from routewright.backends.clock import SystemClock
from routewright.server import create_app
from routewright.testing import ScriptedProvider
from routewright.testing.provider import Line, Pause, Turn
from routewright.wire import Delta, Finish, Pricing, UpstreamCall, Usage

from .serving import SECRET

CALL_NANOS = 1_000_000
"""What each costs."""
MODEL = Model(
    id="one/model", quality=0.5, pricing_per_1m=Pricing(input_usd=1.0, output_usd=100.0), context_window=9_000
)


def main(store: str, calls: str, lease_s: str) -> None:
    journal = os.open(calls, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def reply(call: UpstreamCall) -> Turn:
        os.write(journal, b"called\n")
        said = str(call.messages[-1].content)
        pause: list[Line] = [Pause(float(said.removeprefix("wait ")))] if said.startswith("wait ") else []
        return [Delta("Hello."), *pause, Usage(0, 10), Finish("stop")]

    provider = ScriptedProvider(reply, models=[MODEL], clock=SystemClock())
    storage = SqliteStorage(store, lease_s=float(lease_s))
    router = Router(providers=[provider], storage=storage)
    app = create_app(router, Console(storage, coordination=router.coordination, secret=SECRET))
    bound = socket.create_server(("127.0.0.1", 0), backlog=512)
    print(bound.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, ws="none")).run(sockets=[bound])


if __name__ == "__main__":
    main(*sys.argv[1:])
