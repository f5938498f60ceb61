"""What all parts of the suite share: a storage of its own for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from routewright.protocols import Storage


@pytest.mark.anyio
class Suite:
    """Tests of a storage."""

    def make(self) -> Storage:
        """Make an empty storage."""
        raise NotImplementedError("override make() to return an empty storage of yours")

    @pytest.fixture
    async def storage(self) -> AsyncIterator[Storage]:
        """An empty storage, closed afterwards."""
        storage = self.make()
        yield storage
        await storage.aclose()
