"""An ASGI application under uvicorn, one process, as it is run for speed. Knows nothing of ours, so that a floor's
memory is its own.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from typing import Any

import uvicorn

IN_PROCESS = "in-process"
"""Stands where the address of an upstream would."""


def serve(app: Any, headers: dict[str, str]) -> None:
    """Print ``{"port": ..., "headers": ...}``; serve until terminated, or until whoever started it is gone.

    ``headers``: that its callers need.
    """
    bound = socket.create_server(("127.0.0.1", 0), backlog=2_048)
    config = uvicorn.Config(
        app, loop="uvloop", http="httptools", lifespan="off", ws="none", log_config=None, access_log=False
    )
    server = uvicorn.Server(config)
    threading.Thread(target=_until_left, args=[server], daemon=True).start()
    print(json.dumps({"port": bound.getsockname()[1], "headers": headers}), flush=True)
    server.run(sockets=[bound])


def _until_left(server: uvicorn.Server) -> None:
    sys.stdin.read()
    server.should_exit = True
