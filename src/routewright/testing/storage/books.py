"""What all writes about accounts and money have in common: said twice is said once, and they are one account's."""

from __future__ import annotations

from typing import Any

import pytest

from routewright.errors import PreconditionFailed, UnsupportedWrite
from routewright.protocols import Storage
from routewright.wire import (
    SYSTEM_ACCOUNT,
    Accounts,
    AddCredit,
    ClaimByKey,
    DeleteResults,
    Events,
    Incident,
    Incidents,
    KeepLease,
    Keys,
    LedgerRows,
    LedgerSums,
    PutAccount,
    PutEvent,
    PutIncident,
    PutKey,
    Reserve,
    RevokeKey,
    Settle,
    Stands,
    Write,
)

from .claims import NOW, claim, end
from .isolation import ALIKE
from .money import AT, EVENTS, RUN, Till, make_account, make_event, make_key, make_row, reservation
from .samples import LONG_NAMES, ODD_NAMES
from .suite import Suite

INCIDENT = Incident(id="inc_1", title="slow", severity="minor", started_at=AT)


def writes_of(account: str) -> list[Write]:
    """One of each kind, each of which finds what it needs."""
    row = make_row(charge=60, key_id="k")
    return [
        PutAccount(make_account(name=account, prepaid=True, monthly_nanos=100)),
        PutKey(make_key(account=account, digest=f"of {account}", budget_nanos=1_000)),
        AddCredit("cr", 500, AT),
        reservation("c", 90, key_id="k", run=RUN),
        claim("c"),
        Settle(id="c", at=AT, rows=(row,), key_id="k", run=RUN, event_ids=EVENTS),
        end("c"),
        reservation("runs", 30, key_id="k", run=RUN),
        PutEvent(make_event(account=account), once="x", quiet_s=9.0, at=NOW),
        RevokeKey("k", AT),
    ]


class Bookkeeping(Suite):
    """All of them."""

    async def test_each_write_said_twice_is_said_once(self, storage: Storage) -> None:
        for write in writes_of("acme"):
            await storage.apply("acme", [write])
            before = await seen(storage, "acme")
            await storage.apply("acme", [write])
            assert await seen(storage, "acme") == before, type(write).__name__

    async def test_each_write_of_the_system_said_twice_is_said_once(self, storage: Storage) -> None:
        for write in (PutIncident(INCIDENT), KeepLease("own", 30.0, 5.0)):
            for _ in range(2):
                await storage.apply(SYSTEM_ACCOUNT, [write])
        assert await storage.read(SYSTEM_ACCOUNT, Incidents()) == [INCIDENT]

    async def test_what_is_not_alone_in_its_batch_is_applied_with_all_of_it_or_not_at_all(
        self, storage: Storage
    ) -> None:
        till = await Till(storage).open_full()
        await till.reserve("c", 90, key_id="k")
        await till.put(claim("c"))
        before = await seen(storage, "acme")
        some = [write for write in writes_of("acme") if not isinstance(write, Reserve | RevokeKey)]
        nobody = make_key(id="none", digest="x")
        for wrong in (PutAccount(make_account(), expect="absent"), PutKey(nobody, expect="present")):
            with pytest.raises(PreconditionFailed) as failed:
                await storage.apply("acme", [*some, RevokeKey("k", AT), DeleteResults(), wrong])
            assert failed.value.index == len(some) + 2
            assert await seen(storage, "acme") == before

    async def test_a_reservation_is_the_one_write_of_its_batch(self, storage: Storage) -> None:
        with pytest.raises(UnsupportedWrite):
            await storage.apply("acme", [AddCredit("cr", 1, AT), reservation("c", 1)])
        assert await storage.scan("acme", LedgerRows(), after=None, limit=9) == []

    async def test_a_lease_is_said_by_the_system_alone(self, storage: Storage) -> None:
        with pytest.raises(UnsupportedWrite):
            await storage.apply("acme", [KeepLease("own", 30.0, 0.0)])

    async def test_the_books_of_names_that_look_alike_are_those_of_different_accounts(self, storage: Storage) -> None:
        accounts = (*ALIKE, *ODD_NAMES, *LONG_NAMES)
        for account in accounts:
            for write in writes_of(account):
                await storage.apply(account, [write])
        sample = await seen(storage, accounts[0])
        for account in accounts:
            found = await seen(storage, account)
            assert found["standing"].account.name == account
            assert found["keys"][0].digest == f"of {account}"
            assert [event.account for event in found["events"]] == [account, account]
            assert {name: found[name] for name in ("rows", "sums", "claim")} == {
                name: sample[name] for name in ("rows", "sums", "claim")
            }
        assert len(await storage.read(SYSTEM_ACCOUNT, Accounts())) == len(accounts)

    @pytest.mark.parametrize("other", ["other", SYSTEM_ACCOUNT])
    async def test_what_is_anothers_looks_like_what_is_not_there(self, storage: Storage, other: str) -> None:
        nothing = await seen(storage, other)
        for write in writes_of("acme"):
            await storage.apply("acme", [write])
        assert await seen(storage, other) == nothing
        assert nothing["standing"].account is None
        assert nothing["standing"].key is None

    async def test_no_account_changes_what_is_anothers_by_its_ids(self, storage: Storage) -> None:
        for write in writes_of("acme"):
            await storage.apply("acme", [write])
        before = await seen(storage, "acme")
        settled = Settle(id="runs", at=AT, rows=(make_row("runs", charge=5),), key_id="k", run=RUN)
        others: list[Write] = [
            AddCredit("cr", 7, AT),
            reservation("runs", 2, key_id="k", run=RUN),
            settled,
            end("c", None),
            DeleteResults(),
            RevokeKey("k", AT),
            PutEvent(make_event(account="other")),
        ]
        for write in others:
            await storage.apply("other", [write])
        with pytest.raises(PreconditionFailed):
            await storage.apply("other", [end("c")])
        assert await seen(storage, "acme") == before


async def seen(storage: Storage, account: str) -> dict[str, Any]:
    """All that an account can read of these things."""
    return {
        "standing": await storage.read(account, Stands(AT, "k", RUN)),
        "keys": await storage.read(account, Keys()),
        "rows": await storage.scan(account, LedgerRows(), after=None, limit=99),
        "sums": await storage.read(account, LedgerSums("2026-11-01", "2026-11-30")),
        "claim": await storage.read(account, ClaimByKey("i", "production", 0.0, NOW)),
        "events": await storage.scan(account, Events(), after=None, limit=99),
    }
