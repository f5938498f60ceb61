"""Gateways that others make, each as a server of one process in front of an upstream. Knows the standard library alone.

    python -m benchmarks.peers.gateways litellm http://127.0.0.1:8001/v1 FOLDER FILE

prints ``{"port": ..., "headers": ...}``, and becomes the gateway: litellm's proxy, Portkey's (``FILE`` is what node is
to run) or Switchyard's server. Each knows one model, keeps nothing, and tries nothing twice. ``FOLDER`` takes what it
reads.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from threading import Event

MODEL = "gpt-4o-mini"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port: int = bound.getsockname()[1]
        return port


def tell(port: int, headers: dict[str, str]) -> None:
    """Say where it will be. What the gateway itself prints goes nowhere: nobody reads on."""
    print(json.dumps({"port": port, "headers": headers}), flush=True)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)


def litellm(upstream: str, folder: Path, file: str) -> None:
    key = f"sk-{secrets.token_hex(24)}"  # it does not start with a weak one
    config = {
        "model_list": [
            {
                "model_name": MODEL,
                "litellm_params": {"model": f"openai/{MODEL}", "api_base": upstream, "api_key": "none"},
            }
        ],
        "general_settings": {"master_key": key},
        "litellm_settings": {"num_retries": 0, "telemetry": False},
    }
    settings = folder / "config.yaml"
    settings.write_text(json.dumps(config))  # which is YAML, too
    port = free_port()
    tell(port, {"authorization": f"Bearer {key}"})
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION"}
    proxy = str(Path(sys.executable).with_name("litellm"))
    address = ["--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    os.execve(proxy, [proxy, "--config", str(settings), *address], {**os.environ, **quiet})


def portkey(upstream: str, folder: Path, file: str) -> None:
    port = free_port()
    tell(
        port,
        {"authorization": "Bearer none", "x-portkey-provider": "openai", "x-portkey-custom-host": upstream},
    )
    allowed = {"NODE_ENV": "production", "TRUSTED_CUSTOM_HOSTS": "localhost,127.0.0.1"}
    os.execvpe("node", ["node", file, f"--port={port}", "--headless"], {**os.environ, **allowed})


SWITCHYARD = """
schema_version = 1
[llm_clients.loopback]
format = "openai_chat"
base_url = "{upstream}"
max_retries = 0
[targets.only]
id = "{model}"
llm_client = "loopback"
[routes.only]
id = "{model}"
type = "passthrough"
target = "only"
"""


def switchyard(upstream: str, folder: Path, file: str) -> None:
    os.environ["RUST_LOG"] = "off"
    settings = folder / "routes.toml"
    settings.write_text(SWITCHYARD.format(upstream=upstream, model=MODEL))
    server = import_module("switchyard_rust.server").Server  # installed in its own environment only
    port = free_port()
    tell(port, {})
    with server(str(settings), port):
        Event().wait()


GATEWAYS: dict[str, Callable[[str, Path, str], None]] = {
    "litellm": litellm,
    "portkey": portkey,
    "switchyard": switchyard,
}


if __name__ == "__main__":
    GATEWAYS[sys.argv[1]](sys.argv[2], Path(sys.argv[3]), sys.argv[4])
