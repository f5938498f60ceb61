"""Importing the package is cheap and inert."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "numpy pydantic aiohttp tiktoken cachetools httpx2 trio uvloop rich sqlite3 ssl http.client "
    "urllib.request multiprocessing concurrent.futures.process unittest email"
).split()


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_loads_nothing_heavy() -> None:
    loaded = run("import routewright, sys; print(*sys.modules)").split()
    assert [name for name in HEAVY if name in loaded] == []


@pytest.mark.parametrize("name", ["Caller", "Message", "RouteRequest", "RouterError", "Policy", "WebhookSigner"])
def test_names_that_need_no_router_load_nothing_heavy(name: str) -> None:
    loaded = run(f"from routewright import {name}; import sys; print(*sys.modules)").split()
    assert [module for module in HEAVY if module in loaded] == []


def test_the_router_is_at_hand_before_network_and_tables_are_loaded() -> None:
    loaded = run("from routewright import Router; Router(); import sys; print(*sys.modules)").split()
    for module in ("aiohttp", "pydantic", "tiktoken", "httpx2", "trio", "rich"):
        assert module not in loaded


def test_a_sandbox_decides_without_a_transport() -> None:
    loaded = run(
        "from routewright import Router; Router.sandbox().decide('Hi'); import sys; print(*sys.modules)"
    ).split()
    assert "routewright.backends.providers.features" in loaded
    assert [name for name in loaded if name.startswith("routewright.backends.transport")] == []


def test_import_and_init_touch_neither_network_nor_processes_nor_files() -> None:
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
Router()
assert threading.active_count() == 1
print(touched)
"""
    assert run(code) == "[]"


def test_a_hundred_routers_start_no_thread() -> None:
    code = """
import threading
from routewright import Router
routers = [Router() for _ in range(100)]
print(threading.active_count())
"""
    assert run(code) == "1"


def test_a_supervisor_of_workers_does_not_load_the_library() -> None:
    code = (
        "import routewright.cli.serve, routewright.cli.command, routewright.serve.supervisor, sys; print(*sys.modules)"
    )
    loaded = run(code).split()
    assert [name for name in ("anyio", "numpy", "pydantic", "httptools", "routewright.router") if name in loaded] == []


def test_a_worker_loads_no_command_line() -> None:
    assert "argparse" not in run("import routewright.__main__, sys; print(*sys.modules)").split()
