"""All coordinations keep what every coordination must keep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from routewright import MemoryCoordination, SqliteCoordination
from routewright._engine.standby import StandbyCoordination
from routewright.errors import StorageUnavailable
from routewright.testing import FakeClock
from routewright.testing.coordination import CoordinationContract
from routewright.wire import Denied, Take, Taken


class TestMemoryCoordination(CoordinationContract):
    def make(self, clock: FakeClock) -> MemoryCoordination:
        return MemoryCoordination(clock=clock, lease_s=self.lease_s)


class TestSqliteCoordination(CoordinationContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "limits.db"

    def make(self, clock: FakeClock) -> SqliteCoordination:
        return SqliteCoordination(self.path, clock=clock, lease_s=self.lease_s)


class TestStandbyCoordination(CoordinationContract):
    """While the shared one is well."""

    def make(self, clock: FakeClock) -> StandbyCoordination:
        shared, local = (MemoryCoordination(clock=clock, lease_s=self.lease_s) for _ in range(2))
        return StandbyCoordination(shared, local, clock, workers=4)


class Away(MemoryCoordination):
    async def take(self, takes: Sequence[Take], owner: str) -> Taken | Denied:
        raise StorageUnavailable("away")

    async def renew(self, owner: str) -> None:
        raise StorageUnavailable("away")


class TestStandbyCoordinationAlone(CoordinationContract):
    """While it is away from one who has every limit for himself."""

    def make(self, clock: FakeClock) -> StandbyCoordination:
        local = MemoryCoordination(clock=clock, lease_s=self.lease_s)
        return StandbyCoordination(Away(clock=clock), local, clock, workers=1)
