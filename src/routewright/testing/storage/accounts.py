"""Accounts and their keys: found by what only their owners know, and revoked for ever."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from routewright.errors import PreconditionFailed, UnsupportedWrite
from routewright.protocols import Storage
from routewright.wire import (
    SYSTEM_ACCOUNT,
    Accounts,
    DeleteTraces,
    Key,
    KeyByDigest,
    Keys,
    PutAccount,
    PutKey,
    PutTrace,
    RateLimits,
    RevokeKey,
    Term,
    Trace,
    TraceById,
    TraceItems,
    Traces,
    Write,
)

from .money import Till, make_account, make_key
from .samples import LONG_NAMES, ODD_NAMES, make_trace
from .suite import Suite

REVOKED_AT = "2026-11-21T09:30:00.000Z"
A_DAY_BEFORE = "2026-11-20T09:30:00.000Z"
JUST_BEFORE = "2026-11-20T09:29:59.999Z"
LATER = "2026-11-30T00:00:00.000Z"
COMPROMISED, SOUND = Term("compromised", "=", True), Term("compromised", "=", False)


class AccountsAndKeys(Suite):
    """Who is served."""

    async def test_what_was_said_last_of_an_account_holds(self, storage: Storage) -> None:
        full = make_account(
            plan="enterprise", limits=RateLimits(requests_per_min=2**53), prepaid=True, monthly_nanos=2**62
        )
        for account, is_new in ((make_account(), True), (full, False)):
            (written,) = await storage.apply("acme", [PutAccount(account)])
            assert written.created is is_new
            assert (await Till(storage).standing(key_id=None, run=None)).account == account
            assert await storage.read(SYSTEM_ACCOUNT, Accounts()) == [account]

    async def test_accounts_are_listed_by_name_and_only_to_the_system(self, storage: Storage) -> None:
        names = sorted((*ODD_NAMES, *LONG_NAMES, "acme", "Acme", "é", "z"))
        for name in reversed(names):
            await storage.apply(name, [PutAccount(make_account(name=name))])
        found = await storage.read(SYSTEM_ACCOUNT, Accounts())
        assert [account.name for account in found] == names
        assert await storage.read("acme", Accounts()) == []

    async def test_every_key_comes_back_as_it_was_oldest_first(self, storage: Storage) -> None:
        full = make_key(
            id="a", digest="01", environment="sandbox", scopes=("route", "traces:read"), budget_nanos=2**62,
            monthly_nanos=0, limits=RateLimits(concurrency=1), name="it's \0 é 😀",
        )  # fmt: skip
        old = make_key(id="z", digest="02", created_at=A_DAY_BEFORE, name="n" * 200, scopes=())
        for key in (make_key(), full, old):
            (written,) = await storage.apply("acme", [PutKey(key)])
            assert written.created
        assert await storage.read("acme", Keys()) == [old, full, make_key()]
        for key in (make_key(), full, old):
            assert (await Till(storage).standing(key_id=key.id)).key == key
            assert await storage.read(SYSTEM_ACCOUNT, KeyByDigest((key.digest,))) == key

    async def test_a_key_is_found_by_any_of_its_digests_and_by_the_system_alone(self, storage: Storage) -> None:
        await storage.apply("acme", [PutKey(make_key())])
        await storage.apply("other", [PutKey(make_key(account="other", digest="01"))])
        assert await _by_digest(storage, "ff", "01", "00") == make_key(account="other", digest="01")
        assert await _by_digest(storage, "ff") is None
        assert await _by_digest(storage) is None
        assert await storage.read("acme", KeyByDigest(("00",))) is None

    async def test_a_key_that_gets_another_digest_is_no_longer_found_by_the_old_one(self, storage: Storage) -> None:
        await storage.apply("acme", [PutKey(make_key())])
        (written,) = await storage.apply("acme", [PutKey(make_key(digest="01"))])
        assert not written.created
        assert await _by_digest(storage, "00") is None
        assert await _by_digest(storage, "01") == make_key(digest="01")
        await storage.apply("other", [PutKey(make_key(account="other"))])
        assert await _by_digest(storage, "00") == make_key(account="other")

    async def test_no_two_keys_have_one_digest(self, storage: Storage) -> None:
        await storage.apply("acme", [PutKey(make_key())])
        for account, key_id in (("acme", "k2"), ("other", "k")):
            wanted = PutKey(make_key(id=key_id, account=account))
            batch: list[Write] = [PutKey(make_key(id="k3", account=account, digest="03")), wanted]
            with pytest.raises(PreconditionFailed) as failed:
                await storage.apply(account, batch)
            assert failed.value.index == 1
        with pytest.raises(PreconditionFailed):
            await storage.apply("acme", [PutKey(make_key(id=name, digest="04")) for name in ("k4", "k5")])
        assert await storage.read("acme", Keys()) == [make_key()]
        assert await storage.read("other", Keys()) == []

    async def test_they_are_said_only_under_the_account_that_they_are_about(self, storage: Storage) -> None:
        for account in ("other", SYSTEM_ACCOUNT):
            for write in (PutAccount(make_account()), PutKey(make_key())):
                with pytest.raises(UnsupportedWrite):
                    await storage.apply(account, [write])
        assert await storage.read(SYSTEM_ACCOUNT, Accounts()) == []
        assert await _by_digest(storage, "00") is None

    async def test_each_expects_what_is_there_or_was_put_before_it(self, storage: Storage) -> None:
        for account in ("acme", "other"):
            there, key = make_account(name=account), make_key(account=account, digest=account)
            puts: list[Write] = [PutAccount(there, expect="absent"), PutKey(key, expect="absent")]
            again: list[Write] = [PutAccount(there, expect="present"), PutKey(key, expect="present")]
            for write in again:
                with pytest.raises(PreconditionFailed):
                    await storage.apply(account, [write])
            results = await storage.apply(account, [*puts, *again])
            assert [result.created for result in results] == [True, True, False, False]
            for write in puts:
                with pytest.raises(PreconditionFailed):
                    await storage.apply(account, [write])

    async def test_what_has_changed_since_it_was_read_is_not_overwritten(self, storage: Storage) -> None:
        read, key = make_account(limits=RateLimits(concurrency=1)), make_key(scopes=("route",), budget_nanos=2**62)
        await storage.apply("acme", [PutAccount(read), PutKey(key)])
        mine, mine_too = replace(read, plan="pro"), replace(key, budget_nanos=5)
        theirs, theirs_too = replace(read, monthly_nanos=1), replace(key, scopes=("models:read",))
        nobody = make_key(id="none", digest="x")
        await storage.apply("acme", [PutAccount(theirs, expect=read), PutKey(theirs_too, expect=key)])
        late: list[Write] = [PutAccount(mine, expect=read), PutKey(mine_too, expect=key), PutKey(nobody, expect=nobody)]
        for write in late:
            with pytest.raises(PreconditionFailed) as failed:
                await storage.apply("acme", [PutKey(make_key(id="k2", digest="02")), write])
            assert failed.value.index == 1
        assert await storage.read(SYSTEM_ACCOUNT, Accounts()) == [theirs]
        assert await storage.read("acme", Keys()) == [theirs_too]
        again: list[Write] = [PutAccount(mine, expect=theirs), PutKey(mine_too, expect=theirs_too)]
        assert [written.created for written in await storage.apply("acme", again)] == [False, False]
        assert await storage.read(SYSTEM_ACCOUNT, Accounts()) == [mine]
        assert await storage.read("acme", Keys()) == [mine_too]

    async def test_as_it_was_read_means_before_the_batch(self, storage: Storage) -> None:
        read, key = make_account(), make_key()
        for account, fresh in ((read, key), (replace(read, plan="pro"), replace(key, name="new"))):
            with pytest.raises(PreconditionFailed):
                await storage.apply("acme", [PutAccount(account), PutAccount(read, expect=account)])
            with pytest.raises(PreconditionFailed):
                await storage.apply("acme", [PutKey(fresh), PutKey(key, expect=fresh)])
            await storage.apply("acme", [PutAccount(read), PutKey(key)])
        renamed = replace(key, name="newer")
        await storage.apply("acme", [RevokeKey("k", REVOKED_AT), PutKey(renamed, expect=key)])
        assert await storage.read("acme", Keys()) == [replace(renamed, revoked_at=REVOKED_AT)]

    async def test_a_key_that_was_revoked_since_it_was_read_is_not_overwritten(self, storage: Storage) -> None:
        await storage.apply("acme", [PutKey(make_key())])
        await storage.apply("acme", [RevokeKey("k", REVOKED_AT)])
        with pytest.raises(PreconditionFailed):
            await storage.apply("acme", [PutKey(make_key(name="new"), expect=make_key())])
        assert await storage.read("acme", Keys()) == [make_key(revoked_at=REVOKED_AT)]


class Revoking(Suite):
    """Keys that may be in other hands."""

    async def test_a_key_is_revoked_once_and_for_ever(self, storage: Storage) -> None:
        await storage.apply("acme", [PutKey(make_key())])
        told = [await Till(storage).put(RevokeKey("k", at)) for at in (REVOKED_AT, LATER)]
        assert [(written.created, written.count) for written in told] == [(True, 1), (False, 1)]
        await storage.apply("acme", [PutKey(make_key(name="again", digest="01"))])
        await storage.apply("acme", [PutKey(make_key(name="again", digest="01", revoked_at=LATER))])
        revoked = make_key(name="again", digest="01", revoked_at=REVOKED_AT)
        assert await storage.read("acme", Keys()) == [revoked]
        assert await _by_digest(storage, "01") == revoked
        assert (await Till(storage).standing()).key == revoked

    async def test_a_key_that_is_not_there_is_not_revoked(self, storage: Storage) -> None:
        await storage.apply("acme", [PutKey(make_key())])
        for account, key_id in (("acme", "none"), ("other", "k")):
            written = await Till(storage, account).put(RevokeKey(key_id, REVOKED_AT))
            assert (written.created, written.count) == (False, 0)
        assert await storage.read("acme", Keys()) == [make_key()]

    @pytest.mark.parametrize("revoked_first", [True, False])
    async def test_its_calls_from_a_day_before_on_are_compromised_also_those_put_later(
        self, storage: Storage, revoked_first: bool
    ) -> None:
        traces = [_trace(number, created_at) for number, created_at in enumerate((JUST_BEFORE, A_DAY_BEFORE, LATER))]
        traces += [_trace(8, LATER, key_id=None), _trace(9, LATER, key_id="k2")]
        puts = [PutTrace(trace) for trace in traces]
        await storage.apply("acme", [PutKey(make_key()), PutKey(make_key(id="k2", digest="02"))])
        batches: list[list[Any]] = [[RevokeKey("k", REVOKED_AT)], puts]
        for batch in batches if revoked_first else reversed(batches):
            await storage.apply("acme", batch)
        compromised = [replace(trace, compromised=True) for trace in traces[1:3]]
        await _assert_seen(storage, compromised, [traces[0], *traces[3:]])

    async def test_a_trace_that_says_of_itself_that_it_is_compromised_is_so_whatever_its_key(
        self, storage: Storage
    ) -> None:
        own = replace(_trace(1, JUST_BEFORE), compromised=True)
        await storage.apply("acme", [PutKey(make_key()), PutTrace(own), PutTrace(_trace(2, JUST_BEFORE))])
        await _assert_seen(storage, [own], [_trace(2, JUST_BEFORE)])
        await storage.apply("acme", [RevokeKey("k", REVOKED_AT)])
        await _assert_seen(storage, [own], [_trace(2, JUST_BEFORE)])

    async def test_the_same_key_id_in_another_account_compromises_nothing(self, storage: Storage) -> None:
        for place, account in enumerate(("acme", "other")):
            put = PutTrace(replace(_trace(1, LATER), account=account))
            await storage.apply(account, [PutKey(make_key(account=account, digest=f"0{place}")), put])
        await storage.apply("other", [RevokeKey("k", REVOKED_AT)])
        await _assert_seen(storage, [], [_trace(1, LATER)])

    async def test_what_is_compromised_can_be_deleted_by_that(self, storage: Storage) -> None:
        await storage.apply("acme", [PutKey(make_key()), *(PutTrace(_trace(n, LATER)) for n in range(3))])
        await storage.apply("acme", [PutTrace(_trace(7, JUST_BEFORE)), RevokeKey("k", REVOKED_AT)])
        (written,) = await storage.apply("acme", [DeleteTraces(terms=(COMPROMISED,))])
        assert written.count == 3
        await _assert_seen(storage, [], [_trace(7, JUST_BEFORE)])


def _trace(number: int, created_at: str, key_id: str | None = "k") -> Trace:
    return make_trace(number, created_at=created_at, key_id=key_id, account="acme")


async def _by_digest(storage: Storage, *digests: str) -> Key | None:
    return await storage.read(SYSTEM_ACCOUNT, KeyByDigest(digests))


async def _assert_seen(storage: Storage, compromised: list[Trace], sound: list[Trace]) -> None:
    """One by one, in pages, and by a filter, of the account ``acme``."""
    every = [*compromised, *sound]
    for trace in every:
        assert await storage.read("acme", TraceById(trace.id)) == trace
    asked = {(): every, (COMPROMISED,): compromised, (SOUND,): sound, (Term("compromised", "!=", True),): sound}
    for terms, expected in asked.items():
        newest = sorted(expected, key=lambda trace: trace.key, reverse=True)
        assert await storage.scan("acme", Traces(terms=terms), after=None, limit=99) == newest
        items = await storage.scan("acme", TraceItems(terms=terms), after=None, limit=99)
        assert items == [trace.item for trace in newest]
