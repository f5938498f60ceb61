"""What every test shares: both event loops, how hard hypothesis tries, and the flag for the full counts."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from .recorded import at_noon, few, record

patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("default", patient, max_examples=60, derandomize=bool(os.environ.get("CI")))
settings.register_profile("full", patient, max_examples=10_000)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the proofs at their full counts")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("full" if config.getoption("--full") else "default")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full"):
        for item in items:
            item.add_marker(pytest.mark.timeout(3_600))


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--full"))


@pytest.fixture
def noon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A command is run at noon, in a folder of its own, with nothing on standard input."""
    at_noon(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))


@pytest.fixture
def recorded(tmp_path: Path, noon: None) -> Path:
    """The file ``traces.db`` with a few traces of the last days."""
    return record(tmp_path / "traces.db", few())


@pytest.fixture
def store(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same file, which the environment names."""
    monkeypatch.setenv("ROUTEWRIGHT_STORE", "traces.db")
    return recorded
