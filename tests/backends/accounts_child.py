"""Processes that spend one account's money in a shared store, for tests that start, stop and kill them.

    python -m tests.backends.accounts_child '{"path": "traces.db", "told": "told", ...}'

For each input line such as ``spend 7`` it forks a process with that role and seed, and prints its process id. Imports
are done before the fork. Each process writes every result it receives to ``told/7`` at once, one ``Told`` per line.
When standard input ends, the parent and its children exit.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, cast

import anyio
import msgspec
from msgspec.structs import replace

from routewright._core.accounts.ledger import key_of
from routewright.backends.clock import SystemClock
from routewright.backends.storage.postgres import PostgresStorage
from routewright.backends.storage.sqlite import SqliteStorage, log, writer
from routewright.backends.storage.sqlite import background as keeper
from routewright.errors import (
    AuthenticationFailed,
    IdempotencyKeyReused,
    RateLimited,
    RouterTimeoutError,
    StorageUnavailable,
)
from routewright.wire import (
    Ask,
    Caller,
    Claim,
    Grant,
    LedgerRows,
    Replay,
    RunLimit,
    Short,
    Stands,
    Trace,
    TraceItems,
    UsageCounts,
)
from tests.contracts.storage.samples import Draft, all_pages, make_facts, make_row, make_trace

PR_SET_PDEATHSIG = 1
TIMES = 20.0
"""The clock of the log runs so many times as fast as the machine's, so that windows of a minute slide."""
LEASE_S = 10.0
"""Half a second of the machine's."""
AT = "2026-11-21T09:30:00.000Z"
AT_S = 1_795_253_400.0
DAY = AT[:10]
KEYS = (None, "free", "budget", "monthly", "slow")
RUN_LIMIT = 3_000_000
SAME_S = 0.03
"""Calls that share an idempotency key begin within this time."""


class Orders(msgspec.Struct):
    """What the processes are to do."""

    path: str
    told: str
    tasks: int = 12


class Told(msgspec.Struct, array_like=True):
    """What a process was answered."""

    what: str
    """``admitted``, ``settled``, ``replayed`` or ``refused``."""
    call: str
    key: str = ""
    charge: int = 0
    result: str = ""
    """What was replayed; what it was refused for."""
    began: float = 0.0
    ended: float = 0.0
    """Between these times, by the clock of the log, it was admitted."""


class Fast(SystemClock):
    """The machine's monotonic clock, which all processes share, but faster."""

    @staticmethod
    def monotonic() -> float:
        return time.monotonic() * TIMES


def hurry() -> None:
    """Do in the background all the time what is else done now and then: copies, pruning, moving the log."""
    log.FOLD_S = 1.0
    keeper.EVERY_S = 0.02
    keeper.LOG_BYTES = 200_000
    keeper.AGAIN_S = 0.05
    writer.IDLE_S = 0.05
    writer.LOOK_S = 0.01


class VoidDraft(Draft):
    """A trace that may turn out to charge nothing."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self._whole = trace

    def void(self, is_void: bool) -> None:
        whole = self._whole
        super().__init__(replace(whole, charged_usd=0.0) if is_void else whole)
        self.is_void = is_void


class Child:
    """One process."""

    def __init__(self, orders: Orders, role: str, seed: int) -> None:
        self._orders, self._role = orders, role
        self._chance = Random(seed)
        self._seed = seed
        self._clock: SystemClock = Fast()
        self._storage: SqliteStorage | PostgresStorage
        if orders.path.startswith("postgresql:"):
            self._clock = SystemClock()
            self._storage = PostgresStorage(orders.path, lease_s=LEASE_S / TIMES)
        else:
            self._storage = SqliteStorage(orders.path, clock=self._clock, lease_s=LEASE_S, busy_s=30.0)
        self._made = 0
        self._out = os.open(Path(orders.told) / str(seed), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def run(self) -> None:
        async with anyio.create_task_group() as group:
            match self._role:
                case "spend":
                    for _ in range(self._orders.tasks):
                        group.start_soon(self._spend)
                case "idle":
                    group.start_soon(self._idle)
                case "read":
                    group.start_soon(self._read)

    def _tell(self, *what: Any) -> None:
        os.write(self._out, msgspec.json.encode(Told(*what)) + b"\n")

    async def _spend(self) -> None:
        while True:
            await self._call()

    async def _idle(self) -> None:
        """Know the state, hold nothing for several leases, and then ask for a lot at once."""
        while True:
            async with anyio.create_task_group() as group:
                for _ in range(self._orders.tasks):
                    group.start_soon(self._call)
            await anyio.sleep(3 * LEASE_S / TIMES)

    async def _read(self) -> None:
        """Export, report and look, as operators do."""
        while True:
            with suppress(StorageUnavailable):  # a process was stopped while it held the lock; the database was killed
                await all_pages(self._storage, "acme", LedgerRows(), key_of, limit=500)
                for item in await self._storage.scan("acme", TraceItems(), after=None, limit=50):
                    assert item.account == "acme"
                await self._storage.read("acme", UsageCounts(first=DAY, last=DAY, environment=None, group_by="model"))
                await self._storage.read("acme", Stands(AT, "budget", RunLimit("r0", RUN_LIMIT)))
            await anyio.sleep(0.01)

    def _ask(self) -> Ask:
        chance = self._chance
        self._made += 1
        call = f"tr_{self._seed}-{self._made}"
        key = call if chance.random() < 0.6 else f"same-{int(time.monotonic() / SAME_S)}"
        run = RunLimit(f"r{int(time.monotonic() * 2)}", RUN_LIMIT) if chance.random() < 0.3 else None
        return Ask(
            id=call,
            caller=Caller("acme", key_id=chance.choice(KEYS)),
            at=AT_S,
            lasts_s=600.0,
            tokens=chance.randrange(10, 60),
            nanos=chance.randrange(10_000, 400_000),
            waits_s=chance.choice((0.0, 0.0, 0.0, 4.0)),
            claim=Claim(key, "of it"),
            run=run,
            slot=run is None,
        )

    async def _call(self) -> None:
        ask = self._ask()
        assert ask.claim is not None
        key, began = ask.claim.key, self._clock.monotonic()
        try:
            found = await self._storage.accounts.admit(ask)
        except RateLimited as error:
            self._tell("refused", ask.id, key, 0, str((error.detail or {})["limit_of"]))
            await anyio.sleep(0.005)
            return
        except RouterTimeoutError:
            self._tell("refused", ask.id, key, 0, "idempotency key")
            return
        except StorageUnavailable:  # a process was stopped while it held the lock
            self._tell("refused", ask.id, key, 0, "lock")
            await anyio.sleep(0.005)
            return
        except (AuthenticationFailed, IdempotencyKeyReused) as error:
            raise AssertionError from error
        if isinstance(found, Replay):
            self._tell("replayed", ask.id, key, 0, found.result.decode())
        elif isinstance(found, Short):
            self._tell("refused", ask.id, key, 0, found.purse.level)
            await anyio.sleep(0.005)
        else:
            self._tell("admitted", ask.id, key, 0, "", began, self._clock.monotonic())
            await self._go_on(ask, found)

    async def _go_on(self, ask: Ask, grant: Grant) -> None:
        chance, accounts = self._chance, self._storage.accounts
        await anyio.sleep(chance.random() * 0.01)
        if chance.random() < 0.1:
            with suppress(StorageUnavailable):
                await accounts.widen(grant, ask.nanos * 2)
        if chance.random() < 0.05:
            accounts.release(grant)
            return
        parts = sorted(chance.randrange(grant.nanos + 1) for _ in range(chance.choice((1, 1, 2))))
        rows = [make_row(ask.id, place, charge=charge) for place, charge in enumerate(parts[:1], start=1)]
        rows += [make_row(ask.id, 2, charge=parts[1] - parts[0])] if len(parts) > 1 else []
        charge = sum(row.charge_nanos for row in rows)
        usd = charge / 1e9
        trace = make_trace(
            0, id=ask.id, account="acme", created_at=AT, selected_model="a/one", cost_usd=usd, charged_usd=usd,
            decision_input=None,
        )  # fmt: skip
        facts = make_facts(
            ask.id, *rows, caller=ask.caller, tokens=ask.tokens // 2, run=ask.run, claim=ask.claim,
            result=ask.id.encode(), trace=VoidDraft(trace),
        )  # fmt: skip
        while True:
            try:
                await accounts.settle(grant, facts)
                break
            except StorageUnavailable:  # the database was killed: a Router says it again, too
                await anyio.sleep(0.02)
        self._tell("settled", ask.id, cast(Claim, ask.claim).key, charge)


def forked(orders: Orders, role: str, seed: int) -> int:
    """Start a process."""
    pid = os.fork()
    if pid:
        return pid
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # it never outlives the test
        anyio.run(Child(orders, role, seed).run)
    except BaseException:
        with (Path(orders.told) / f"{seed}.error").open("w") as file:
            traceback.print_exc(file=file)
    os._exit(1)


def main() -> None:
    """Fork what is asked for."""
    orders = msgspec.json.decode(sys.argv[1], type=Orders)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    hurry()
    with suppress(BrokenPipeError):
        for line in sys.stdin:
            role, _, seed = line.partition(" ")
            print(forked(orders, role, int(seed)), flush=True)


if __name__ == "__main__":
    main()
