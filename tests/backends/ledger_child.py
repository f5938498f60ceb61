"""Spends money of one account in a file, as other processes do: what tests of several processes start, and kill.

    python -m tests.backends.ledger_child '{"path": "traces.db", "role": "spend", ...}'

Writes ``ready``, begins when it is told ``go``, and writes a line for each call that was settled and, at its end, for
each purse that refused one. What it is to do is
said in ``Orders``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Literal

import anyio
import anyio.to_thread
import msgspec

from routewright.backends.storage.sqlite import SqliteStorage
from routewright.errors import PreconditionFailed
from routewright.testing.storage.samples import AT, make_row, reservation
from routewright.wire import SYSTEM_ACCOUNT, ClaimKey, Durability, EndClaim, KeepLease, RunLimit, Settle

WORST = (3_000_000, 4_000_000, 5_000_000)
"""What calls of ``spend`` reserve, in nano-dollars."""
NESTED = 1_000
"""The most that a call of ``nest`` reserves."""
KEYS = ("k0", "k1", "k2")
RUN_LIMIT = 20 * NESTED
"""Of each run, which is that of a few calls of each task."""
OF_RUN = 4
PAUSE_S = 0.002


class Orders(msgspec.Struct):
    """What a process is to do."""

    path: str
    role: Literal["spend", "nest", "work"]
    """``spend``: calls that all wait for room. ``nest``: calls in runs and of keys, that do not. ``work``: calls with
    idempotency keys, one after another, for as long as it lives."""
    seed: int
    tasks: int
    calls: int = 1
    """Of each task."""
    first: int = 0
    """Its number."""
    lease_s: float = 30.0
    durability: Durability = "committed"


class Child:
    """Does it."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._chance = Random(orders.seed)
        self._storage = SqliteStorage(orders.path, busy_s=60.0)
        self._owner = f"own_{orders.seed}_{os.getpid()}"
        self._without_room: set[str] = set()

    async def run(self) -> None:
        """Wait for the word, and do it."""
        os.write(1, b"ready\n")
        await anyio.to_thread.run_sync(sys.stdin.readline)
        role: Callable[[str], Awaitable[None]] = getattr(self, self._orders.role)
        async with anyio.create_task_group() as group:
            group.start_soon(self._renew, group.cancel_scope)
            async with anyio.create_task_group() as workers:
                for task in range(self._orders.tasks):
                    workers.start_soon(self._repeat, role, f"{self._orders.seed}-{task}")
            group.cancel_scope.cancel()
        for purse in self._without_room:
            os.write(1, f"full {purse}\n".encode())
        await self._storage.aclose()

    async def _repeat(self, role: Callable[[str], Awaitable[None]], name: str) -> None:
        for number in range(self._orders.first, self._orders.first + self._orders.calls):
            await role(f"{name}-{number}")

    async def _renew(self, _: object) -> None:
        while True:
            await anyio.sleep(self._orders.lease_s / 3)
            keep = KeepLease(self._owner, self._orders.lease_s, time.monotonic())
            await self._storage.apply(SYSTEM_ACCOUNT, [keep])

    async def spend(self, call: str) -> None:
        """One call that waits for others' reservations, and is refused only where it can never be paid."""
        worst = self._chance.choice(WORST)
        while (refused := await self._refused(call, worst)) is not None:
            if not refused["waits"]:
                os.write(1, f"refused {worst}\n".encode())
                return
            await anyio.sleep(PAUSE_S)
        await anyio.sleep(self._chance.random() * PAUSE_S)
        charge = self._chance.randint(worst // 2, worst)
        await self._settle(call, make_row(call, charge=charge))
        os.write(1, f"paid {charge}\n".encode())

    async def nest(self, call: str) -> None:
        """One of many calls of a run and a key, with one or two tries."""
        number, key = int(call.rpartition("-")[2]), self._chance.choice((None, *KEYS))
        run = (
            RunLimit(f"{call.partition('-')[0]}-{number // OF_RUN}", RUN_LIMIT) if self._chance.random() < 0.7 else None
        )
        worst = self._chance.randint(0, NESTED)
        if await self._refused(call, worst, key_id=key, run=run) is not None:
            return
        if self._chance.random() < 0.2 and await self._refused(call, 2 * worst, key_id=key, run=run) is None:
            worst *= 2
        paid = self._chance.randint(0, worst)
        rows = [make_row(call, 1, charge=0, cost=worst - paid), make_row(call, 2, charge=paid)]
        await self._settle(call, *(rows if self._chance.random() < 0.9 else []))

    async def work(self, call: str) -> None:
        """A call with an idempotency key, which another may have begun that is gone by now."""
        key = call.partition("-")[2]
        claim = ClaimKey(
            key=key, environment="production", fingerprint=key, call=call, owner=self._owner,
            lease_s=self._orders.lease_s, clock_s=time.monotonic(), at=time.time(),
        )  # fmt: skip
        (claimed,) = await self._storage.apply("acme", [claim])
        if not claimed.created or await self._refused(call, 10) is not None:
            return
        end = EndClaim(key=key, environment="production", call=call, result=call.encode(), until=time.time() + 1e6)
        settle = Settle(id=call, at=AT, rows=(make_row(call, charge=7, note=key),))
        await self._storage.apply("acme", [settle, end])
        os.write(1, f"{call} {key}\n".encode())

    async def _refused(self, call: str, nanos: int, **given: Any) -> dict[str, Any] | None:
        """Reserve. What it was refused with, if it was."""
        lease: dict[str, Any] = {"owner": self._owner, "lease_s": self._orders.lease_s, "clock_s": time.monotonic()}
        try:
            await self._storage.apply("acme", [reservation(call, nanos, **lease, **given)])
        except PreconditionFailed as full:
            detail = full.detail or {}
            self._without_room.add(detail["name"])
            return detail
        return None

    async def _settle(self, call: str, *rows: Any) -> None:
        await self._storage.apply("acme", [Settle(id=call, at=AT, rows=rows, durability=self._orders.durability)])


if __name__ == "__main__":
    anyio.run(Child(msgspec.json.decode(sys.argv[1], type=Orders)).run)
