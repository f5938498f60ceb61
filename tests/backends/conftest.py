"""Fixtures: a server and a provider per vendor, and a host environment outside the code sandboxes."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from routewright.backends.providers.http import HttpProvider

from .sandbox_escapes import SECRET, Outside

if TYPE_CHECKING:  # the vendors' SDKs take seconds to import, and most tests here need none of them
    from tests.upstream import Upstream

    from .vendors import Vendor


@pytest.fixture(params=["openai", "responses", "anthropic", "google"])
def vendor(request: pytest.FixtureRequest) -> Vendor:
    from .vendors import VENDORS

    return next(each for each in VENDORS if str(each) == request.param)


@pytest.fixture
def server(vendor: Vendor) -> Iterator[Upstream]:
    with vendor.serve() as running:
        yield running
    assert running.problems == []


@pytest.fixture
async def provider(vendor: Vendor, server: Upstream, anyio_backend: str) -> AsyncIterator[HttpProvider]:
    from .vendors import KEY

    made = vendor.make(KEY, base_url=server.url)
    yield made
    await made.aclose()


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Outside]:
    """What the programs of a code sandbox must not touch."""
    monkeypatch.setenv("ROUTEWRIGHT_CANARY", SECRET)
    for name in ("world", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    made = Outside(tmp_path / "world")
    yield made
    made.close()
