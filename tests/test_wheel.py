"""The distributions: what is in them, and that a wheel works in an empty environment, alone and with each extra."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest
from docs._blocks import blocks

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


def run(*command: object, cwd: Path | None = None) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_each_extra_has_a_module() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert MODULES.keys() == extras.keys()


def test_the_versions_of_python_are_those_that_ci_runs() -> None:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["classifiers"]
    versions = re.findall(r"Python :: (3\.\d+)", " ".join(classifiers))
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    assert f"python: {json.dumps(versions)}" in workflow


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    [file] = folder.iterdir()
    return file


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    """A wheel that is made from the source distribution alone."""
    with tarfile.open(sdist) as archive:
        archive.extractall(sdist.parent, filter="data")
    folder = sdist.parent / "wheel"
    run(
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "-t",
        "wheel",
        "-d",
        folder,
        cwd=sdist.with_suffix("").with_suffix(""),
    )
    [file] = folder.iterdir()
    return file


def test_the_distributions_hold_the_package_and_nothing_else(sdist: Path, wheel: Path) -> None:
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", "src", "tests/contracts", cwd=ROOT)
    sourced = {path for path in listed.splitlines() if (ROOT / path).exists()}
    package = {path for path in sourced if path.startswith("src/")}
    with tarfile.open(sdist) as archive:
        sources = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    assert sources - sourced == {"PKG-INFO", "README.md", "pyproject.toml", ".gitignore"}
    assert sourced <= sources
    with ZipFile(wheel) as files:
        names = {name for name in files.namelist() if ".dist-info/" not in name}
        [metadata] = (message_from_bytes(files.read(name)) for name in files.namelist() if name.endswith("/METADATA"))
    assert names == {path.removeprefix("src/") for path in package}
    assert not {name for name in names if name.endswith(".pth")}
    assert metadata["License-Expression"] == "MIT"
    notices = {path for path in package if Path(path).name.startswith(("LICENSE", "NOTICE"))}
    assert {*metadata.get_all("License-File", [])} == notices


def test_the_index_accepts_the_distributions(sdist: Path, wheel: Path) -> None:
    assert run(sys.executable, "-m", "twine", "--no-color", "check", "--strict", sdist, wheel).count("PASSED") == 2


def make_environment(folder: Path, python: str, *packages: object) -> Path:
    run(python, "-m", "venv", folder)
    run(folder / "bin" / "python", "-m", "pip", "install", "-q", *packages)
    return folder / "bin"


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("minor", [11, 12, 13, 14])
def test_a_wheel_runs_the_lines_of_the_readme(wheel: Path, minor: int, tmp_path: Path) -> None:
    python = find_python(minor)
    if python is None:
        pytest.skip(f"Python 3.{minor} is not installed")
    programs = make_environment(tmp_path / "environment", python, f"{wheel}[cli]")
    texts = [block.text for block in blocks((ROOT / "README.md").read_text("utf-8"))]
    [command] = (text for text in texts if " route --sandbox" in text and "pip install" in text)
    run("sh", "-c", f"cd '{tmp_path}' && '{programs}'/{command.rpartition('.venv/bin/')[2]}")
    program = next(text for text in texts if "async with Router()" in text).replace("Router()", "Router.sandbox()")
    assert "canned answer" in run(programs / "python", "-W", "error", "-I", "-c", program)


def find_python(minor: int) -> str | None:
    """An interpreter on the path, or of pyenv. Its shims exist for versions that are switched off, too."""
    name = f"python3.{minor}"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions").glob(f"3.{minor}.*/bin/{name}")
    for path in (shutil.which(name), *map(str, pyenv)):
        if path and subprocess.run([path, "--version"], capture_output=True).returncode == 0:
            return path
    return None


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("extra", [None, *MODULES])
def test_a_wheel_with_one_extra_works_alone(wheel: Path, extra: str | None, tmp_path: Path) -> None:
    python = make_environment(tmp_path, sys.executable, f"{wheel}[{extra}]" if extra else wheel) / "python"
    program = f"import {MODULES[extra]}\n{FIRST_CALL}" if extra else FIRST_CALL
    assert "/" in run(python, "-W", "error", "-I", "-c", program)
