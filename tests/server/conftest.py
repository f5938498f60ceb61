"""Servers that several files of tests use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .server_processes import Farm, farmed


@pytest.fixture(scope="session")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """Four server processes. Each test has an account of its own; tests that kill start others."""
    with farmed(tmp_path_factory.mktemp("farm")) as four:
        yield four
