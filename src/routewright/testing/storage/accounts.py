"""Accounts and their keys, idempotency keys, events, and what all of these writes have in common."""

from __future__ import annotations

from random import Random
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from routewright._core.books import INCIDENTS, WEEK_S
from routewright._core.idempotency import KEPT_S
from routewright._core.moment import timestamp
from routewright.errors import PreconditionFailed, UnsupportedWrite
from routewright.protocols import Storage
from routewright.wire import (
    SYSTEM_ACCOUNT,
    Accounts,
    AddCredit,
    ClaimByKey,
    ClaimKey,
    DeleteResults,
    DeleteTraces,
    EndClaim,
    Environment,
    Events,
    Incident,
    Incidents,
    KeepLease,
    Key,
    KeyByDigest,
    KeyClaim,
    Keys,
    LedgerRows,
    LedgerSums,
    PutAccount,
    PutEvent,
    PutIncident,
    PutKey,
    PutTrace,
    RateLimits,
    Reserve,
    RevokeKey,
    Settle,
    Stands,
    StoredEvent,
    Term,
    Trace,
    TraceById,
    TraceItems,
    Traces,
    Write,
    Written,
)

from .basics import Suite
from .samples import (
    ALIKE,
    AT,
    DAY_S,
    EVENTS,
    LEASE_S,
    NOW,
    ODD_TEXTS,
    RUN,
    Till,
    all_pages,
    claim,
    end,
    make_account,
    make_event,
    make_key,
    make_row,
    make_trace,
    newest_first,
    reservation,
)

REVOKED_AT = "2026-11-21T09:30:00.000Z"
A_DAY_BEFORE = "2026-11-20T09:30:00.000Z"
JUST_BEFORE = "2026-11-20T09:29:59.999Z"
LATER = "2026-11-30T00:00:00.000Z"
COMPROMISED, SOUND = Term("compromised", "=", True), Term("compromised", "=", False)
RESULT = end().result
INCIDENT = Incident(id="inc_1", title="slow", severity="minor", started_at=AT)
BOTH: tuple[Environment, ...] = ("production", "sandbox")


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


class AccountsAndKeys(Suite):
    """Accounts and their keys: found by what only their owners know, and revoked for ever."""

    async def test_an_account_is_what_was_put_last(self, storage: Storage) -> None:
        limits = RateLimits(requests_per_min=2**53)
        full = make_account(plan="enterprise", limits=limits, prepaid=True, monthly_nanos=2**62)
        for account, is_new in ((make_account(), True), (full, False)):
            (written,) = await storage.apply("acme", [PutAccount(account)])
            assert written.created is is_new
            assert (await Till(storage).standing(key_id=None, run=None)).account == account
            assert await storage.read(SYSTEM_ACCOUNT, Accounts()) == [account]

    async def test_accounts_are_listed_by_name_and_only_to_the_system(self, storage: Storage) -> None:
        names = sorted((*ALIKE, "é", "z"))
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

    async def test_a_key_is_found_by_any_of_its_present_digests_and_by_the_system_alone(self, storage: Storage) -> None:
        others = make_key(account="other", digest="01")
        await storage.apply("acme", [PutKey(make_key())])
        await storage.apply("other", [PutKey(others)])
        assert await _by_digest(storage, "ff", "01", "00") == others
        assert await _by_digest(storage, "ff") is None
        assert await _by_digest(storage) is None
        assert await storage.read("acme", KeyByDigest(("00",))) is None
        (written,) = await storage.apply("acme", [PutKey(make_key(digest="02"))])
        assert not written.created
        assert await _by_digest(storage, "00") is None
        assert await _by_digest(storage, "02") == make_key(digest="02")
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

    async def test_accounts_and_keys_are_held_to_what_they_expect_of_what_is_there(self, storage: Storage) -> None:
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
        await storage.apply("acme", [RevokeKey("k", REVOKED_AT)])
        with pytest.raises(PreconditionFailed):
            await storage.apply("acme", [PutKey(replace(mine_too, name="new"), expect=mine_too)])
        assert await storage.read(SYSTEM_ACCOUNT, Accounts()) == [mine]
        assert await storage.read("acme", Keys()) == [replace(mine_too, revoked_at=REVOKED_AT)]

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

    async def test_a_key_is_revoked_once_and_for_ever_if_it_is_there(self, storage: Storage) -> None:
        await storage.apply("acme", [PutKey(make_key())])
        for account, key_id in (("acme", "none"), ("other", "k")):
            written = await Till(storage, account).put(RevokeKey(key_id, REVOKED_AT))
            assert (written.created, written.count) == (False, 0)
        assert await storage.read("acme", Keys()) == [make_key()]
        told = [await Till(storage).put(RevokeKey("k", at)) for at in (REVOKED_AT, LATER)]
        assert [(written.created, written.count) for written in told] == [(True, 1), (False, 1)]
        await storage.apply("acme", [PutKey(make_key(name="again", digest="01"))])
        await storage.apply("acme", [PutKey(make_key(name="again", digest="01", revoked_at=LATER))])
        revoked = make_key(name="again", digest="01", revoked_at=REVOKED_AT)
        assert await storage.read("acme", Keys()) == [revoked]
        assert await _by_digest(storage, "01") == revoked
        assert (await Till(storage).standing()).key == revoked

    @pytest.mark.parametrize("revoked_first", [True, False])
    async def test_calls_of_a_revoked_key_are_compromised_from_a_day_before_on(
        self, storage: Storage, revoked_first: bool
    ) -> None:
        early, on_time, late, own = (
            make_trace(number, created_at=at, account="acme", key_id="k")
            for number, at in enumerate((JUST_BEFORE, A_DAY_BEFORE, LATER, JUST_BEFORE))
        )
        own = replace(own, compromised=True)  # as it says of itself
        sound = [early, replace(late, id="of no key", key_id=None), replace(late, id="of another key", key_id="k2")]
        compromised, theirs = [on_time, late, own], replace(late, account="other")
        await storage.apply("acme", [PutKey(make_key()), PutKey(make_key(id="k2", digest="02"))])
        await storage.apply("other", [PutKey(make_key(account="other", digest="03")), PutTrace(theirs)])
        batches: list[list[Any]] = [[RevokeKey("k", REVOKED_AT)], [PutTrace(trace) for trace in (*compromised, *sound)]]
        for batch in batches if revoked_first else reversed(batches):
            await storage.apply("acme", batch)
        await _assert_seen(storage, [replace(trace, compromised=True) for trace in compromised], sound)
        assert await storage.read("other", TraceById(theirs.id)) == theirs
        (written,) = await storage.apply("acme", [DeleteTraces(terms=(COMPROMISED,))])
        assert written.count == len(compromised)
        await _assert_seen(storage, [], sound)


class Claims(Suite):
    """One key, one call, one result: an idempotency key is one call's at a time, and its result is kept for a day."""

    async def test_of_many_calls_at_once_one_gets_a_key(self, storage: Storage) -> None:
        won: list[str] = []

        async def ask(call: str) -> None:
            if (await _put(storage, claim(call))).created:
                won.append(call)

        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(ask, f"c{number}")
        found = await _holder(storage)
        assert found is not None
        assert won == [found.call]

    async def test_one_call_has_a_key_and_its_result_is_kept_for_exactly_a_day(self, storage: Storage) -> None:
        assert await _holder(storage) is None
        assert (await _put(storage, claim("c"))).created
        assert not (await _put(storage, claim("d", owner="other"))).created
        assert await _holder(storage) == KeyClaim("of c", "c", None)
        written = await _put(storage, end("c"))
        assert (written.created, written.count) == (False, 1)
        for at, clock_s in ((NOW, 0.0), (NOW + KEPT_S - 0.001, 1e6)):
            assert await _holder(storage, at=at, clock_s=clock_s) == KeyClaim("of c", "c", RESULT)
            assert not (await _put(storage, claim("d", at=at, clock_s=clock_s))).created
        assert await _holder(storage, at=NOW + KEPT_S) is None
        assert (await _put(storage, claim("d", at=NOW + KEPT_S))).created
        assert await _holder(storage) == KeyClaim("of d", "d", None)

    async def test_a_key_is_taken_over_when_the_lease_of_its_owner_is_over(self, storage: Storage) -> None:
        await _put(storage, claim("c"))
        assert not (await _put(storage, claim("d", owner="heir", clock_s=29.999))).created
        for clock_s in (20.0, 40.0):
            await storage.apply(SYSTEM_ACCOUNT, [KeepLease("own", LEASE_S, clock_s)])
        assert not (await _put(storage, claim("d", owner="heir", clock_s=69.999))).created
        assert await _holder(storage, clock_s=70.0) is None
        assert (await _put(storage, claim("d", owner="heir", clock_s=70.0))).created
        assert await _holder(storage, clock_s=71.0) == KeyClaim("of d", "d", None)

    async def test_a_key_is_free_when_the_clock_began_anew(self, storage: Storage) -> None:
        await _put(storage, claim("c", clock_s=10_000.0))
        assert await _holder(storage, clock_s=9_990.0) == KeyClaim("of c", "c", None), "it was read a while ago"
        assert await _holder(storage, clock_s=5.0) is None
        assert (await _put(storage, claim("d", owner="other", clock_s=5.0))).created

    @pytest.mark.parametrize("ended", [False, True])
    async def test_a_call_that_lost_its_key_fails_with_all_of_its_batch(self, storage: Storage, ended: bool) -> None:
        till = await Till(storage).open()
        await till.reserve("c", 10, owner="dead")
        await _put(storage, claim("c", owner="dead"))
        await _put(storage, claim("d", owner="heir", clock_s=31.0))
        if ended:
            await _put(storage, end("d", b"of d"))
        before = await till.purses(), await till.rows(), await _holder(storage, clock_s=31.0)
        settle = Settle(id="c", at=AT, rows=(make_row(charge=7),))
        for result in (end("c"), end("c", fingerprint="of c")):
            with pytest.raises(PreconditionFailed) as failed:
                await storage.apply("acme", [AddCredit("x", 1, AT), settle, result])
            assert failed.value.index == 2
        assert (await _put(storage, end("c", None))).count == 0, "it has nothing to give back"
        assert (await till.purses(), await till.rows(), await _holder(storage, clock_s=31.0)) == before

    async def test_a_call_whose_key_nobody_took_over_may_end_late(self, storage: Storage) -> None:
        await _put(storage, claim("c"))
        await storage.apply(SYSTEM_ACCOUNT, [KeepLease("other", LEASE_S, 31.0)])
        await storage.sweep(NOW)
        assert await _holder(storage, clock_s=31.0) is None
        await _put(storage, end("c"))
        assert await _holder(storage, clock_s=31.0) == KeyClaim("of c", "c", RESULT)

    @pytest.mark.parametrize("left", ["given back", "never there"])
    async def test_a_result_is_put_back_where_nobody_has_the_key_any_more(self, storage: Storage, left: str) -> None:
        till = await Till(storage).open()
        await till.reserve("c", 10, owner="dead")
        if left == "given back":
            await _put(storage, claim("c", owner="dead"))
            await _put(storage, claim("d", owner="heir", clock_s=31.0))
            await _put(storage, end("d", None))
        settle, ends = Settle(id="c", at=AT, rows=(make_row(charge=7),)), end("c", fingerprint="of c")
        results = await storage.apply("acme", [settle, ends])
        assert [result.created for result in results] == [True, True]
        assert (await till.purses())["account"] == (7, 0)
        assert await _holder(storage, clock_s=31.0) == KeyClaim("of c", "c", RESULT)
        assert not (await _put(storage, claim("e", clock_s=31.0))).created
        assert await _put(storage, end("c", b"again", fingerprint="of c")) == Written(created=False)
        assert await _holder(storage, at=NOW + KEPT_S - 0.001) == KeyClaim("of c", "c", RESULT)
        assert (await _put(storage, claim("e", at=NOW + KEPT_S))).created

    async def test_neither_a_failure_nor_a_result_without_a_fingerprint_is_put_back(self, storage: Storage) -> None:
        with pytest.raises(PreconditionFailed):
            await _put(storage, end("c"))
        for failure in (end("c", None), end("c", None, fingerprint="of c")):
            assert await _put(storage, failure) == Written(created=False, count=0)
        assert (await _put(storage, claim("d"))).created

    async def test_of_two_results_for_a_key_of_nobody_only_one_is_put_back(self, storage: Storage) -> None:
        ends = [end(call, call.encode(), fingerprint=f"of {call}") for call in ("c", "d")]
        with pytest.raises(PreconditionFailed) as failed:
            await storage.apply("acme", ends)
        assert failed.value.index == 1
        assert await _holder(storage) is None
        await storage.apply("acme", [ends[0], ends[0]])
        with pytest.raises(PreconditionFailed):
            await _put(storage, ends[1])
        assert await _holder(storage) == KeyClaim("of c", "c", b"c")

    async def test_a_failure_gives_the_key_back_and_what_is_said_twice_changes_nothing(self, storage: Storage) -> None:
        await _put(storage, claim("failed"))
        assert (await _put(storage, end("failed", None))).count == 1
        assert await _holder(storage) is None
        assert [(await _put(storage, claim("c"))).created for _ in range(2)] == [True, True]
        for _ in range(2):
            await _put(storage, end("c"))
            await _put(storage, end("c", None))
        assert await _holder(storage) == KeyClaim("of c", "c", RESULT)
        assert not (await _put(storage, claim("c"))).created, "it has ended"

    async def test_each_account_environment_and_key_has_a_claim_of_its_own(self, storage: Storage) -> None:
        keys = (*(text for text in ODD_TEXTS if len(text.encode()) <= 64), "k" * 64)
        names = [(account, environment, key) for account in ("acme", "o'ther") for environment in BOTH for key in keys]
        for number, (account, environment, key) in enumerate(names):
            put = claim(f"c{number}", environment=environment, key=key)
            assert [result.created for result in await storage.apply(account, [put])] == [True]
            if number % 2:
                last = end(f"c{number}", str(number).encode(), environment=environment, key=key)
                await storage.apply(account, [last])
        for number, (account, environment, key) in enumerate(names):
            found = await storage.read(account, ClaimByKey(key, environment, 0.0, NOW))
            result = str(number).encode() if number % 2 else None
            assert found == KeyClaim(f"of c{number}", f"c{number}", result)

    @pytest.mark.parametrize("environment", ["production", "sandbox", None])
    async def test_results_are_deleted_and_running_calls_are_not(
        self, storage: Storage, environment: Environment | None
    ) -> None:
        names = [(account, each, key) for account in ("acme", "other") for each in BOTH for key in ("a", "b", "runs")]
        for account, each, key in names:
            await storage.apply(account, [claim(key, key=key, environment=each)])
            if key != "runs":
                await storage.apply(account, [end(key, key=key, environment=each)])
        gone = BOTH if environment is None else (environment,)
        for count in (2 * len(gone), 0):
            (written,) = await storage.apply("acme", [DeleteResults(environment)])
            assert written.count == count
        for account, each, key in names:
            found = await storage.read(account, ClaimByKey(key, each, 0.0, NOW))
            assert (found is None) == (account == "acme" and each in gone and key != "runs")

    async def test_a_sweep_takes_results_that_are_past_their_time_and_says_how_many(self, storage: Storage) -> None:
        for number in range(1_200):
            key = f"i{number}"
            until = NOW if number < 1_100 else NOW + 0.001
            await storage.apply("acme", [claim(key, key=key)])
            await storage.apply("acme", [end(key, key=key, until=until, durability="buffered")])
        await storage.apply("acme", [claim("runs", key="runs", at=NOW - 2 * KEPT_S)])
        assert await storage.sweep(NOW) == 1_100
        assert await storage.sweep(NOW) == 0
        found = [await storage.read("acme", ClaimByKey(key, "production", 0.0, NOW)) for key in ("i1100", "runs")]
        assert None not in found


class Happenings(Suite):
    """Events are kept once, incidents as they were put last."""

    async def test_an_event_is_kept_once_as_it_was(self, storage: Storage) -> None:
        data = {"metadata": {"team": ODD_TEXTS[5], "n": 2**53, "none": None, "deep": [1.5, {}]}}
        event = make_event(data=data, environment="sandbox")
        written = [await _put(storage, PutEvent(each)) for each in (event, replace(event, data={}))]
        assert written == [Written(created=True, events=(event,)), Written(created=False)]
        assert await _kept(storage) == [event]

    async def test_what_is_told_once_is_told_again_only_after_a_quiet_time(self, storage: Storage) -> None:
        asked = [
            (100.0, 300.0, True), (100.0, 300.0, False), (399.999, 300.0, False), (400.0, 300.0, True),
            (699.0, 300.0, False), (50.0, 300.0, False), (700.0, 301.0, False), (403.0, 3.0, True), (403.0, 0.0, True),
        ]  # fmt: skip
        for number, (at, quiet_s, told) in enumerate(asked):
            written = await _put(storage, PutEvent(make_event(number), once="burst", quiet_s=quiet_s, at=at))
            assert written == (Written(created=True, events=(make_event(number),)) if told else Written(created=False))
        assert await _kept(storage) == [make_event(number) for number in (8, 7, 3, 0)]

    async def test_each_account_and_each_once_is_quiet_for_itself(self, storage: Storage) -> None:
        for account in ("acme", "other", SYSTEM_ACCOUNT):
            for number, once in enumerate((*ODD_TEXTS, None, None)):
                event = make_event(number, account=account)
                (written,) = await storage.apply(account, [PutEvent(event, once=once, quiet_s=1e9, at=1.0)])
                assert written.created
        assert len(await _kept(storage)) == len(ODD_TEXTS) + 2

    async def test_pages_visit_each_event_once_newest_first(self, storage: Storage) -> None:
        numbers = list(range(50))
        Random(1).shuffle(numbers)
        await storage.apply("acme", [PutEvent(make_event(number)) for number in numbers])
        await storage.apply("other", [PutEvent(make_event(99, account="other"))])
        expected = [make_event(number) for number in reversed(range(50))]
        for limit in (1, 7, 50, 100):
            assert await _kept(storage, limit) == expected
        assert await storage.scan("acme", Events(), after=None, limit=0) == []

    async def test_events_are_kept_for_a_week(self, storage: Storage) -> None:
        for account in ("acme", SYSTEM_ACCOUNT):
            for number, age_s in enumerate((WEEK_S + 0.001, WEEK_S, 0.0)):
                event = make_event(number, timestamp(NOW - age_s), account)
                await storage.apply(account, [PutEvent(event)])
        assert await storage.sweep(NOW) == 2
        for account in ("acme", SYSTEM_ACCOUNT):
            left = await storage.scan(account, Events(), after=None, limit=9)
            assert [event.id for event in left] == [make_event(2).id, make_event(1).id]
        assert await storage.sweep(NOW) == 0

    async def test_a_sweep_forgets_no_event_that_is_not_to_be_told_again_yet(self, storage: Storage) -> None:
        long_s = 40 * DAY_S
        await _put(storage, PutEvent(make_event(1), once="month", quiet_s=long_s, at=NOW))
        await storage.sweep(NOW + 30 * DAY_S)
        for at, told in ((NOW + long_s - 1.0, False), (NOW + long_s, True)):
            put = PutEvent(make_event(2), once="month", quiet_s=long_s, at=at)
            assert (await _put(storage, put)).created is told

    async def test_an_incident_is_what_was_put_last_and_the_newest_come_first(self, storage: Storage) -> None:
        incidents = [
            replace(INCIDENT, id=f"inc_{-number % 13}_{number}", started_at=timestamp(NOW + number))
            for number in range(INCIDENTS + 5)
        ]
        for incident in Random(2).sample(incidents, len(incidents)):
            (written,) = await storage.apply(SYSTEM_ACCOUNT, [PutIncident(incident)])
            assert written.created
        incidents[7] = replace(incidents[7], resolved_at=timestamp(NOW), status_url="https://status.example/7")
        (written,) = await storage.apply(SYSTEM_ACCOUNT, [PutIncident(incidents[7], expect="present")])
        assert not written.created
        assert await storage.read(SYSTEM_ACCOUNT, Incidents()) == incidents[:4:-1]
        assert await storage.read("acme", Incidents()) == []
        with pytest.raises(PreconditionFailed):
            await storage.apply(SYSTEM_ACCOUNT, [PutIncident(incidents[7], expect="absent")])


class Bookkeeping(Suite):
    """All of these writes: said twice is said once, applied together or not at all, and one account's."""

    async def test_each_write_said_twice_is_said_once(self, storage: Storage) -> None:
        system: list[Write] = [PutIncident(INCIDENT), KeepLease("own", 30.0, 5.0)]
        for account, writes in (("acme", writes_of("acme")), (SYSTEM_ACCOUNT, system)):
            for write in writes:
                await storage.apply(account, [write])
                before = await seen(storage, "acme")
                await storage.apply(account, [write])
                assert await seen(storage, "acme") == before, type(write).__name__
        assert await storage.read(SYSTEM_ACCOUNT, Incidents()) == [INCIDENT]

    async def test_a_batch_of_all_kinds_is_applied_whole_or_not_at_all(self, storage: Storage) -> None:
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
        (written,) = await storage.apply("acme", [write for write in some if isinstance(write, PutEvent)])
        assert written.created, "it was not told yet"

    @pytest.mark.parametrize(
        ("account", "wrong"),
        [
            ("acme", [AddCredit("cr", 1, AT), reservation("c", 1)]),
            ("acme", [KeepLease("own", 30.0, 0.0)]),
            ("acme", [PutIncident(INCIDENT)]),
            *((name, [write]) for name in ("other", SYSTEM_ACCOUNT) for write in writes_of("acme")[:2]),
        ],
    )
    async def test_a_misplaced_write_is_refused_with_its_batch(
        self, storage: Storage, account: str, wrong: list[Write]
    ) -> None:
        before = await seen(storage, account)
        with pytest.raises(UnsupportedWrite):
            await storage.apply(account, wrong)
        assert await seen(storage, account) == before
        for query in (Accounts(), Incidents(), KeyByDigest(("of acme",))):
            assert not await storage.read(SYSTEM_ACCOUNT, query)

    async def test_the_books_of_names_that_look_alike_are_those_of_different_accounts(self, storage: Storage) -> None:
        for account in ALIKE:
            for write in writes_of(account):
                await storage.apply(account, [write])
        sample = await seen(storage, ALIKE[0])
        for account in ALIKE:
            found = await seen(storage, account)
            assert found["standing"].account.name == account
            assert found["keys"][0].digest == f"of {account}"
            assert [event.account for event in found["events"]] == [account, account]
            for name in ("rows", "sums", "claim"):
                assert found[name] == sample[name]
        assert len(await storage.read(SYSTEM_ACCOUNT, Accounts())) == len(ALIKE)

    @pytest.mark.parametrize("other", ["other", SYSTEM_ACCOUNT])
    async def test_what_is_anothers_looks_like_what_is_not_there(self, storage: Storage, other: str) -> None:
        nothing = await seen(storage, other)
        for write in writes_of("acme"):
            await storage.apply("acme", [write])
        assert await seen(storage, other) == nothing
        assert (nothing["standing"].account, nothing["standing"].key) == (None, None)

    async def test_no_account_changes_what_is_anothers_by_its_ids(self, storage: Storage) -> None:
        for write in writes_of("acme"):
            await storage.apply("acme", [write])
        before = await seen(storage, "acme")
        others: list[Write] = [
            AddCredit("cr", 7, AT),
            reservation("runs", 2, key_id="k", run=RUN),
            Settle(id="runs", at=AT, rows=(make_row("runs", charge=5),), key_id="k", run=RUN),
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


async def _by_digest(storage: Storage, *digests: str) -> Key | None:
    return await storage.read(SYSTEM_ACCOUNT, KeyByDigest(digests))


async def _assert_seen(storage: Storage, compromised: list[Trace], sound: list[Trace]) -> None:
    """One by one, in pages, and by a filter, of the account ``acme``."""
    every = [*compromised, *sound]
    for trace in every:
        assert await storage.read("acme", TraceById(trace.id)) == trace
    asked = {(): every, (COMPROMISED,): compromised, (SOUND,): sound, (Term("compromised", "!=", True),): sound}
    for terms, expected in asked.items():
        newest = newest_first(expected)
        assert await storage.scan("acme", Traces(terms=terms), after=None, limit=99) == newest
        items = await storage.scan("acme", TraceItems(terms=terms), after=None, limit=99)
        assert items == [trace.item for trace in newest]


async def _put(storage: Storage, write: ClaimKey | EndClaim | PutEvent) -> Written:
    return await Till(storage).put(write)


async def _holder(storage: Storage, *, at: float = NOW, clock_s: float = 0.0) -> KeyClaim | None:
    return await storage.read("acme", ClaimByKey("i", "production", clock_s, at))


async def _kept(storage: Storage, limit: int = 100) -> list[StoredEvent]:
    """All events of ``acme``, page by page."""
    return await all_pages(storage, "acme", Events(), lambda event: event.id, limit)
