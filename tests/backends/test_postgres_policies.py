"""Processes that change the same policies in PostgreSQL overtake each other, and lose no change."""

from __future__ import annotations

import anyio
import pytest

from routewright import Console, Policy, open_storage
from routewright.errors import PreconditionFailed
from routewright.wire import SYSTEM_ACCOUNT, Events, PolicyChanged

pytestmark = pytest.mark.anyio
PROCESSES, ROUNDS = 6, 6


async def test_racing_changes_leave_a_serial_history(postgres: str) -> None:
    published, overtaken = 0, 0

    async def change(process: int) -> None:
        nonlocal published, overtaken
        storage = open_storage(postgres)
        policies = Console(storage, secret="0123456789abcdef" * 4).policies
        for number in range(ROUNDS):
            try:
                await policies.draft(Policy(name="desk", min_quality=(process * ROUNDS + number) / 100))
                await policies.publish("desk")
                published += 1
            except PreconditionFailed:
                overtaken += 1
        await storage.aclose()

    async with anyio.create_task_group() as group:
        for process in range(PROCESSES):
            group.start_soon(change, process)
    assert overtaken, "they were in each other's way"
    storage = open_storage(postgres)
    events = await storage.scan(SYSTEM_ACCOUNT, Events(), after=None, limit=1_000)
    changes = [event.event.data for event in reversed(events)]
    await storage.aclose()
    steps = [(change.from_version, change.to_version) for change in changes if isinstance(change, PolicyChanged)]
    assert len(steps) == len({after for _, after in steps}), "no version was published twice"
    assert [before for before, _ in steps] == [None, *(after for _, after in steps[:-1])], "each follows the last"
    assert 0 < len(steps) <= published
