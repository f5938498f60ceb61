"""A server and a provider of one vendor. A file about one protocol has a ``vendor`` of its own, others run for all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from routewright.backends.providers.http import HttpProvider

from .openai_server import OpenAIServer
from .vendors import KEY, VENDORS, Vendor


@pytest.fixture(params=VENDORS, ids=str)
def vendor(request: pytest.FixtureRequest) -> Vendor:
    assert isinstance(request.param, Vendor)
    return request.param


@pytest.fixture
def server(vendor: Vendor) -> Iterator[OpenAIServer]:
    with vendor.serve() as running:
        yield running
    assert running.problems == []


@pytest.fixture
async def provider(vendor: Vendor, server: OpenAIServer, anyio_backend: str) -> AsyncIterator[HttpProvider]:
    made = vendor.make(KEY, base_url=server.url)
    yield made
    await made.aclose()
