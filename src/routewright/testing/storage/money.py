"""What the suites about money store: an account, its keys, and calls that are reserved for and settled."""

from __future__ import annotations

from typing import Any

import pytest

from routewright.errors import PreconditionFailed
from routewright.protocols import Storage
from routewright.wire import (
    SYSTEM_ACCOUNT,
    Account,
    AddCredit,
    KeepLease,
    Key,
    LedgerRow,
    LedgerRows,
    PutAccount,
    PutKey,
    Reserve,
    RunLimit,
    Settle,
    Standing,
    Stands,
    StoredEvent,
    Write,
    Written,
)

AT = "2026-11-21T09:30:00.000Z"
NEXT_MONTH = "2026-12-01T00:00:00.000Z"
LEASE_S = 30.0
RUN = RunLimit("r", 1_000)
EVENTS = ("evt_1", "evt_2", "evt_3")
"""Ids for what a settlement leads to."""
BIG = 2**62
MONTH = "month:2026-11"
PURSES = ("run:r", "key:k", "key:k:2026-11", "account", MONTH)
"""All that a call of a key in a run is paid from, the innermost first."""


def make_account(**given: Any) -> Account:
    """An account, ``acme`` unless it says else."""
    return Account(**{"name": "acme", "created_at": AT} | given)


def make_key(**given: Any) -> Key:
    """A key, ``k`` of ``acme`` unless it says else."""
    facts = {"id": "k", "account": "acme", "environment": "production", "name": "mine", "prefix": "sk_live_abcd"}
    return Key(**facts | {"digest": "00", "created_at": AT} | given)


def make_row(call: str = "c", attempt: int = 1, charge: int = 0, cost: int | None = None, **given: Any) -> LedgerRow:
    """A row that costs what it charges, unless it says else."""
    paid = charge if cost is None else cost
    facts: dict[str, Any] = {"at": AT, "model": "a/one", "provider": "a", "charge_nanos": charge, "cost_nanos": paid}
    return LedgerRow(request_id=call, attempt=attempt, **facts | given)


def reservation(call: str, nanos: int, **given: Any) -> Reserve:
    """So much for a call, of the owner ``own`` at the beginning of the clock."""
    facts: dict[str, Any] = {"owner": "own", "lease_s": LEASE_S, "clock_s": 0.0, "at": AT}
    return Reserve(id=call, nanos=nanos, **facts | given)


def make_event(number: int = 1, created_at: str = AT, account: str = "acme", **given: Any) -> StoredEvent:
    """An event whose id grows with ``number``."""
    facts: dict[str, Any] = {"type": "router.error_burst", "data": {"requests": number}, "environment": "production"}
    return StoredEvent(id=f"evt_{number:026}", created_at=created_at, account=account, **facts | given)


class Till:
    """One account of a storage, and what is asked of it most."""

    def __init__(self, storage: Storage, account: str = "acme") -> None:
        self.storage = storage
        self.account = account

    async def open(self, *keys: Key, credit: int | None = None, **terms: Any) -> Till:
        """Set the account up, with its keys and its balance."""
        writes: list[Write] = [PutAccount(make_account(name=self.account, **terms)), *map(PutKey, keys)]
        if credit is not None:
            writes.append(AddCredit("cr", credit, AT))
        await self.storage.apply(self.account, writes)
        return self

    async def open_full(self) -> Till:
        """Set it up with a key and a limit of 1,000 at every level."""
        key = make_key(account=self.account, digest=f"of {self.account}", budget_nanos=1_000, monthly_nanos=1_000)
        return await self.open(key, credit=1_000, prepaid=True, monthly_nanos=1_000)

    async def put(self, write: Write) -> Written:
        """Apply one write."""
        (written,) = await self.storage.apply(self.account, [write])
        return written

    async def reserve(self, call: str, nanos: int, **given: Any) -> Written:
        """Reserve so much."""
        return await self.put(reservation(call, nanos, **given))

    async def refused(self, call: str, nanos: int, **given: Any) -> dict[str, Any]:
        """What a reservation is refused with."""
        with pytest.raises(PreconditionFailed) as full:
            await self.reserve(call, nanos, **given)
        assert full.value.index == 0
        assert full.value.detail is not None
        return full.value.detail

    async def settle(self, call: str, *rows: LedgerRow, **given: Any) -> Written:
        """Settle a call."""
        return await self.put(Settle(id=call, rows=rows, **{"at": AT} | given))

    async def keep(self, owner: str, clock_s: float, lease_s: float = LEASE_S) -> None:
        """Let an owner's lease begin anew."""
        await self.storage.apply(SYSTEM_ACCOUNT, [KeepLease(owner, lease_s, clock_s)])

    async def standing(self, at: str = AT, key_id: str | None = "k", run: RunLimit | None = RUN) -> Standing:
        """How it stands."""
        return await self.storage.read(self.account, Stands(at, key_id, run))

    async def purses(self, at: str = AT, **given: Any) -> dict[str, tuple[int, int]]:
        """What is spent and reserved, by purse."""
        purses = (await self.standing(at, **given)).purses
        return {purse.name: (purse.spent_nanos, purse.reserved_nanos) for purse in purses}

    async def rows(self, **given: Any) -> list[LedgerRow]:
        """All rows, newest first."""
        return await self.storage.scan(self.account, LedgerRows(**given), after=None, limit=1_000)

    async def kinds(self) -> list[str]:
        """Kinds of the rows that are no credit, by name."""
        rows = sorted(await self.rows(), key=lambda row: (row.request_id, row.attempt))
        return [row.kind for row in rows if row.kind != "credit"]
