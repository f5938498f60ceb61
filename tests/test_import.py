"""Importing the package is cheap and inert."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

HEAVY = (
    "numpy pydantic aiohttp tiktoken cachetools httpx2 trio uvloop rich sqlite3 ssl http.client "
    "urllib.request multiprocessing concurrent.futures.process unittest email"
).split()


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_names_that_need_no_router_load_nothing_heavy() -> None:
    code = f"""
import sys
import routewright
heavy = {HEAVY}
print("routewright", *[module for module in heavy if module in sys.modules])
for name in ("Caller", "Message", "RouteRequest", "RouterError", "Policy", "WebhookSigner"):
    getattr(routewright, name)
    print(name, *[module for module in heavy if module in sys.modules])
routewright.Model(id="a/b").to_json()
print("to_json", *[module for module in heavy if module in sys.modules])
"""
    for line in run(code).splitlines():
        name, *loaded = line.split()
        assert loaded == [], f"{name} loads them"


@pytest.fixture(scope="module")
def begun() -> dict[str, Any]:
    """What a process that makes a hundred Routers loads, touches and starts."""
    code = """
import sys
touched = []
def watch(event, args):
    if event.startswith(("socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn")):
        touched.append(event)
    if event == "open" and isinstance(args[1], str) and any(mode in args[1] for mode in "wax+"):
        touched.append(f"{event} {args[0]}")
sys.dont_write_bytecode = True
sys.addaudithook(watch)
import threading
from routewright import Router
routers = [Router() for _ in range(100)]
found = {"loaded": [*sys.modules], "touched": [*touched], "threads": threading.active_count()}
import json
print(json.dumps(found))
"""
    found: dict[str, Any] = json.loads(run(code))
    return found


def test_a_router_loads_neither_network_nor_tables(begun: dict[str, Any]) -> None:
    assert {"aiohttp", "pydantic", "tiktoken", "httpx2", "trio", "rich"}.isdisjoint(begun["loaded"])


def test_import_and_init_touch_neither_network_nor_processes_nor_files(begun: dict[str, Any]) -> None:
    assert begun["touched"] == []


def test_a_hundred_routers_start_no_thread(begun: dict[str, Any]) -> None:
    assert begun["threads"] == 1


def test_a_sandbox_decides_without_a_transport() -> None:
    loaded = run(
        "from routewright import Router; Router.sandbox().decide('Hi'); import sys; print(*sys.modules)"
    ).split()
    assert "routewright.backends.providers.features" in loaded
    assert [name for name in loaded if name.startswith("routewright.backends.transport")] == []


def test_a_supervisor_of_workers_does_not_load_the_library() -> None:
    code = (
        "import routewright.cli.serve, routewright.cli.command, routewright.serve.processes, sys; print(*sys.modules)"
    )
    loaded = run(code).split()
    assert [name for name in ("anyio", "numpy", "pydantic", "httptools", "routewright.router") if name in loaded] == []


def test_a_worker_loads_no_command_line() -> None:
    assert "argparse" not in run("import routewright.__main__, sys; print(*sys.modules)").split()
