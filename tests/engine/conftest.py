"""What tests of the engine ask for by name."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from .scripted_router import to_close


@pytest.fixture
async def closing(anyio_backend: str) -> AsyncIterator[None]:
    """Close the routers that a test lists in ``to_close``."""
    yield
    while to_close:
        await to_close.pop().aclose()
