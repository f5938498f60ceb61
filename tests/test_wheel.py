"""A wheel, installed in an empty environment with one extra alone, has what the extra is for."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = {
    "cli": "routewright.cli",
    "google-adk": "routewright.integrations.google_adk",
    "langchain": "routewright.integrations.langchain",
    "litellm": "routewright.backends.providers.litellm",
    "mcp": "routewright.backends.tools.mcp",
    "metrics": "routewright.server.metrics",
    "openai-agents": "routewright.integrations.openai_agents",
    "otel": "routewright.integrations.otel",
    "postgres": "routewright.backends.storage.postgres",
    "pydantic-ai": "routewright.integrations.pydantic_ai",
    "redis": "routewright.backends.redis",
    "sandbox": "routewright.backends.tools.monty_sandbox",
    "sdk": "routewright.integrations.sdk",
    "server": "routewright.serve",
    "trio": "routewright.backends.transport.httpx2",
    "vectors": "routewright.backends.embed",
    "webhooks": "routewright.webhook",
}
"""A module for each extra."""
FIRST_CALL = "from routewright import Router; print(Router.sandbox().blocking.route('Hello').routing.selected_model)"


def run(*command: object) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_each_extra_has_a_module() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert MODULES.keys() == extras.keys()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT)
    [file] = folder.iterdir()
    return file


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("extra", [None, *MODULES])
def test_a_wheel_with_one_extra_works_alone(wheel: Path, extra: str | None, tmp_path: Path) -> None:
    venv.create(tmp_path, symlinks=True)
    python = tmp_path / "bin" / "python"
    package = f"{wheel}[{extra}]" if extra else wheel
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", package)
    program = f"import {MODULES[extra]}\n{FIRST_CALL}" if extra else FIRST_CALL
    assert "/" in run(python, "-W", "error", "-I", "-c", program)
