"""Traces are deleted after their retention time, and a warning is logged if that fails."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from routewright import MemoryStorage, Retention, Router, Settings, SqliteStorage
from routewright._engine.retention import EVERY_S
from routewright.errors import StorageUnavailable
from routewright.protocols import Storage
from routewright.testing import FakeClock
from routewright.wire import PutTrace
from tests.contracts.storage.samples import make_trace

from .scripted_router import to_close, traces_in

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("closing")]

OLD = make_trace(1, created_at="2025-12-01T00:00:00.000Z")


class Sweeps(MemoryStorage):
    """Raises what a test says instead of sweeping."""

    def __init__(self) -> None:
        super().__init__()
        self.error: BaseException | None = None
        self.swept = 0

    async def sweep(self, now: float) -> int:
        self.swept += 1
        if self.error is not None:
            raise self.error
        return await super().sweep(now)


async def begun(storage: Storage, clock: FakeClock, retention: Retention | None = None) -> Router:
    router = Router.sandbox(storage=storage, settings=Settings(clock=clock, retention=retention))
    to_close.append(router)
    await router.route("hi")
    await clock.advance(1.0)
    return router


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("retention", "said"),
    [
        (None, "keeping traces for 30 days, those of the sandbox for 1 day (change with Settings.retention)"),
        (Retention(), "keeping traces for 30 days, those of the sandbox for 1 day ("),
        (Retention(production_days=None, sandbox_days=0.5), "keeping traces for ever, those of the sandbox for 0.5 d"),
    ],
)
async def test_the_retention_is_logged_once_at_the_start(
    retention: Retention | None, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock(autojump=False)
    with caplog.at_level("INFO", logger="routewright"):
        await begun(SqliteStorage(tmp_path / "traces.db", clock=clock), clock, retention)
        await clock.advance(3 * EVERY_S)
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert line.startswith(said)


FAULTS = [StorageUnavailable("away"), RuntimeError("a slip"), asyncio.CancelledError("by itself")]


@pytest.mark.parametrize("error", FAULTS)
async def test_a_storage_that_fails_does_not_end_the_sweeping(error: BaseException) -> None:
    clock, storage = FakeClock(autojump=False), Sweeps()
    await storage.apply("default", [PutTrace(OLD)])
    storage.error = error
    await begun(storage, clock, Retention(production_days=1))
    await clock.advance(2 * EVERY_S)
    assert storage.swept == 3
    assert OLD.id in [trace.id for trace in await traces_in(storage)]
    storage.error = None
    await clock.advance(EVERY_S)
    assert OLD.id not in [trace.id for trace in await traces_in(storage)]


@pytest.mark.parametrize("error", FAULTS)
async def test_a_warning_is_logged_when_sweeps_begin_to_fail_and_again_after_one_that_did_not(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    clock, storage = FakeClock(autojump=False), Sweeps()
    await begun(storage, clock, Retention())
    assert warnings(caplog) == []
    for times in (1, 2):
        storage.error = error
        await clock.advance(5 * EVERY_S)
        said = f"the retention sweep failed: {type(error).__name__}: {error}"
        assert warnings(caplog) == [said] * times
        storage.error = None
        await clock.advance(EVERY_S)


async def test_a_failed_change_of_the_retention_is_tried_again(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    clock, folder = FakeClock(autojump=False), tmp_path / "missing"
    storage = SqliteStorage(folder / "traces.db", clock=clock)
    await begun(storage, clock, Retention(production_days=1))
    assert any(line.startswith("the retention sweep failed: Storage") for line in warnings(caplog))
    folder.mkdir()
    await storage.apply("default", [PutTrace(OLD)])
    await clock.advance(EVERY_S)
    assert OLD.id not in [trace.id for trace in await traces_in(storage)]
