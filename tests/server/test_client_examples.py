"""The example clients against a real server: an answer, a stream, an error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .uvicorn_server import Site

CLIENTS = Path(__file__).parents[2] / "examples" / "clients"
PROGRAMS = {"client.py": [sys.executable, "-W", "error"], "client.sh": ["bash"], "client.mjs": ["node"]}
NEEDED = {"client.sh": "curl", "client.mjs": "node"}


def test_every_client_is_run() -> None:
    assert {path.name for path in CLIENTS.iterdir() if path.is_file()} == {*PROGRAMS}


def run(name: str, url: str, key: str) -> subprocess.CompletedProcess[str]:
    """Run a client, or skip the test where it cannot run."""
    needed = NEEDED.get(name)
    if needed is not None and shutil.which(needed) is None:
        pytest.skip(f"{needed} is not installed")
    environment = {**os.environ, "ROUTEWRIGHT_URL": url, "ROUTEWRIGHT_KEY": key}
    program = [*PROGRAMS[name], str(CLIENTS / name)]
    return subprocess.run(program, env=environment, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_client_gets_an_answer_a_stream_and_an_error(name: str) -> None:
    site = Site()
    with site.served() as url:
        done = run(name, url, site.key(environment="sandbox"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("canned answer") >= 2
    assert "budget" in done.stdout if name != "client.sh" else '"code":"validation_failed"' in done.stdout


@pytest.mark.parametrize("name", ["client.py", "client.mjs"])
def test_a_client_repeats_what_the_server_says_of_a_wrong_key(name: str) -> None:
    with Site().served() as url:
        done = run(name, url, "sk_test_wrong")
    assert done.returncode == 1
    assert "authentication_failed: the API key is unknown or revoked" in done.stderr
