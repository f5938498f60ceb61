"""Every example is a program that runs offline."""

from __future__ import annotations

import asyncio
import inspect
import socket
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from routewright.backends.providers.hosts import ENDPOINTS

FRAMEWORKS = {"google_adk": "google.adk"}
"""Examples that run only where a module is installed, as by ``tests/integrations/test_google_adk.py``."""
EXAMPLES = [
    path
    for path in sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
    if path.stem not in FRAMEWORKS or find_spec(FRAMEWORKS[path.stem])
]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*address: Any) -> None:
        raise AssertionError(f"an example reaches for the network: {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    for host in ENDPOINTS.values():
        for variable in (*host.key_variables, host.url_variable or ""):
            monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_offline_and_prints_something(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(load(path))
    assert capsys.readouterr().out.strip()


def test_an_example_is_short() -> None:
    folder = Path(__file__).parent.parent / "examples"
    programs = [path for path in folder.rglob("*") if path.suffix in (".py", ".mjs", ".sh")]
    assert len(programs) > 30
    assert not [path.name for path in programs if len(path.read_text("utf-8").splitlines()) > 60]


def load(path: Path) -> ModuleType:
    spec = spec_from_file_location(f"examples.{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(module: ModuleType) -> None:
    if inspect.iscoroutinefunction(module.main):
        asyncio.run(module.main())
    else:
        module.main()
