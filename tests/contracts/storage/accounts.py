"""Contract of accounts, keys, agent states, events and incidents, and of all these writes together."""

from __future__ import annotations

from math import inf
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from routewright._core.accounts.ledger import INCIDENTS, WEEK_S
from routewright.errors import PreconditionFailed, UnsupportedWrite
from routewright.protocols import Storage
from routewright.wire import (
    SYSTEM_ACCOUNT,
    AddCredit,
    AgentState,
    AllAccounts,
    DeleteResults,
    DeleteTraces,
    Events,
    Incident,
    Incidents,
    Key,
    KeyByDigest,
    Keys,
    LedgerRows,
    LedgerSums,
    PutAccount,
    PutAgentState,
    PutEvent,
    PutIncident,
    PutKey,
    PutTrace,
    RateLimits,
    RevokeKey,
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
from routewright.wire.timestamps import timestamp

from .samples import (
    ALIKE,
    AT,
    NOW,
    ODD_TEXTS,
    RUN,
    Till,
    all_pages,
    make_account,
    make_event,
    make_key,
    make_trace,
    newest_first,
)
from .traces import Suite

REVOKED_AT = "2026-11-21T09:30:00.000Z"
A_DAY_BEFORE = "2026-11-20T09:30:00.000Z"
JUST_BEFORE = "2026-11-20T09:29:59.999Z"
LATER = "2026-11-30T00:00:00.000Z"
COMPROMISED, SOUND = Term("compromised", "=", True), Term("compromised", "=", False)
INCIDENT = Incident(id="inc_1", title="slow", severity="minor", started_at=AT)


def writes_of(account: str) -> list[Write]:
    """One write of each kind, with its preconditions met in order."""
    return [
        PutAccount(make_account(name=account, prepaid=True, monthly_nanos=100)),
        PutKey(make_key(account=account, digest=f"of {account}", budget_nanos=1_000)),
        AddCredit("cr", 500, AT),
        PutEvent(make_event(account=account), once="x", quiet_s=9.0, at=NOW),
        RevokeKey("k", AT),
    ]


class AccountsAndKeys(Suite):
    """Accounts and keys: found by digest, and revoked for good."""

    async def test_an_account_is_replaced_by_the_last_put(self, storage: Storage) -> None:
        limits = RateLimits(requests_per_min=2**53)
        full = make_account(plan="enterprise", limits=limits, prepaid=True, monthly_nanos=2**62)
        for account, is_new in ((make_account(), True), (full, False)):
            (written,) = await storage.apply("acme", [PutAccount(account)])
            assert written.created is is_new
            assert (await Till(storage).standing(key=None, run=None)).account == account
            assert await storage.read(SYSTEM_ACCOUNT, AllAccounts()) == [account]

    async def test_accounts_are_listed_by_name_to_the_system_only(self, storage: Storage) -> None:
        names = sorted((*ALIKE, "é", "z"))
        for name in reversed(names):
            await storage.apply(name, [PutAccount(make_account(name=name))])
        found = await storage.read(SYSTEM_ACCOUNT, AllAccounts())
        assert [account.name for account in found] == names
        assert await storage.read("acme", AllAccounts()) == []

    async def test_every_key_comes_back_unchanged_oldest_first(self, storage: Storage) -> None:
        full = make_key(
            id="a", digest="01", environment="sandbox", scopes=("route", "traces:read"), budget_nanos=2**62,
            models=("openai/*", "a \x00 b"), policies=("support",),
            monthly_nanos=0, limits=RateLimits(concurrency=1), name="it's \0 é 😀",
        )  # fmt: skip
        old = make_key(id="z", digest="02", created_at=A_DAY_BEFORE, name="n" * 200, scopes=())
        for key in (make_key(), full, old):
            (written,) = await storage.apply("acme", [PutKey(key)])
            assert written.created
        assert await storage.read("acme", Keys()) == [old, full, make_key()]
        for key in (make_key(), full, old):
            assert (await Till(storage).standing(key=key.id)).key == key
            assert await storage.read(SYSTEM_ACCOUNT, KeyByDigest((key.digest,))) == key

    async def test_a_key_is_found_by_its_current_digest_and_by_the_system_only(self, storage: Storage) -> None:
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

    async def test_no_two_keys_have_the_same_digest(self, storage: Storage) -> None:
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

    async def test_accounts_and_keys_are_written_only_if_their_expectations_hold(self, storage: Storage) -> None:
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

    async def test_a_write_expecting_an_older_version_is_refused(self, storage: Storage) -> None:
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
        assert await storage.read(SYSTEM_ACCOUNT, AllAccounts()) == [theirs]
        assert await storage.read("acme", Keys()) == [theirs_too]
        again: list[Write] = [PutAccount(mine, expect=theirs), PutKey(mine_too, expect=theirs_too)]
        assert [written.created for written in await storage.apply("acme", again)] == [False, False]
        await storage.apply("acme", [RevokeKey("k", REVOKED_AT)])
        with pytest.raises(PreconditionFailed):
            await storage.apply("acme", [PutKey(replace(mine_too, name="new"), expect=mine_too)])
        assert await storage.read(SYSTEM_ACCOUNT, AllAccounts()) == [mine]
        assert await storage.read("acme", Keys()) == [replace(mine_too, revoked_at=REVOKED_AT)]

    async def test_a_key_is_revoked_once_and_stays_revoked(self, storage: Storage) -> None:
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

    async def test_the_system_has_keys_and_no_account(self, storage: Storage) -> None:
        key = make_key(account=SYSTEM_ACCOUNT, scopes=("console:read", "console:write"))
        await storage.apply(SYSTEM_ACCOUNT, [PutKey(key, expect="absent")])
        await storage.apply("acme", [PutAccount(make_account()), PutKey(make_key(digest="01"))])
        with pytest.raises(PreconditionFailed):
            await storage.apply("acme", [PutKey(make_key(id="k2"))])
        assert await storage.read(SYSTEM_ACCOUNT, Keys()) == [key]
        assert await _by_digest(storage, "00") == key
        assert await storage.read("acme", Keys()) == [make_key(digest="01")]
        assert await storage.read(SYSTEM_ACCOUNT, AllAccounts()) == [make_account()]
        renamed = replace(key, name="ada", digest="02")
        await storage.apply(SYSTEM_ACCOUNT, [PutKey(renamed, expect=key)])
        standing = await storage.read(SYSTEM_ACCOUNT, Stands(AT, "k"))
        assert (standing.account, standing.key) == (None, renamed)
        (written,) = await storage.apply(SYSTEM_ACCOUNT, [RevokeKey("k", REVOKED_AT)])
        assert (written.created, written.count) == (True, 1)
        assert await _by_digest(storage, "02") == replace(renamed, revoked_at=REVOKED_AT)
        assert await storage.read("acme", Keys()) == [make_key(digest="01")]

    @pytest.mark.parametrize("revoked_first", [True, False])
    async def test_traces_of_a_revoked_key_are_compromised_from_a_day_before(
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


class AgentStates(Suite):
    """States of agent runs and conversations are kept until they expire, per account and environment."""

    async def _state(self, storage: Storage, account: str = "acme", **asked: Any) -> bytes | None:
        return await storage.read(account, AgentState(**asked))

    async def test_a_state_is_found_by_its_id_and_its_key_until_it_is_removed(self, storage: Storage) -> None:
        assert (await _put(storage, PutAgentState("tr_1", "production", b"one", 100.0, "key"))).created
        assert not (await _put(storage, PutAgentState("tr_1", "production", b"two", 100.0, "key"))).created
        await _put(storage, PutAgentState("tr_1", "sandbox", b"canned", 100.0))
        assert await self._state(storage, id="tr_1", environment="production") == b"two"
        assert await self._state(storage, claim="key") == b"two"
        assert await self._state(storage, id="tr_1", environment="production", informs=True) in (b"two", None)
        assert await self._state(storage, id="tr_1", environment="sandbox") == b"canned"
        for asked in ({"id": "tr_2"}, {"claim": "other"}, {"claim": "key", "environment": "sandbox"}):
            assert await self._state(storage, **asked) is None
        assert await self._state(storage, "other", id="tr_1") is None
        await _put(storage, PutAgentState("tr_1", "production", None, 0.0))
        assert await self._state(storage, claim="key") is None
        assert await self._state(storage, id="tr_1") == b"canned"

    async def test_states_go_when_they_expire_or_results_are_deleted(self, storage: Storage) -> None:
        for number in range(3):
            await _put(storage, PutAgentState(f"tr_{number}", "production", b"x", 100.0 + number))
        await _put(storage, PutAgentState("tr_3", "sandbox", b"x", inf))
        await storage.sweep(101.0)
        there = [await self._state(storage, id=f"tr_{number}") for number in range(4)]
        assert there == [None, None, b"x", b"x"]
        await _put(storage, DeleteResults("production"))
        assert [await self._state(storage, id=f"tr_{number}") for number in (2, 3)] == [None, b"x"]


class Happenings(Suite):
    """Events are kept once; incidents can be replaced."""

    async def test_an_event_is_stored_once_unchanged(self, storage: Storage) -> None:
        data = {"metadata": {"team": ODD_TEXTS[5], "n": 2**53, "none": None, "deep": [1.5, {}]}}
        event = make_event(data=data, environment="sandbox")
        written = [await _put(storage, PutEvent(each)) for each in (event, replace(event, data={}))]
        assert written == [Written(created=True, events=(event,)), Written(created=False)]
        assert await _kept(storage) == [event]

    async def test_an_event_with_a_quiet_time_is_repeated_only_after_it(self, storage: Storage) -> None:
        asked = [
            (100.0, 300.0, True), (100.0, 300.0, False), (399.999, 300.0, False), (400.0, 300.0, True),
            (699.0, 300.0, False), (50.0, 300.0, False), (700.0, 301.0, False), (403.0, 3.0, True), (403.0, 0.0, True),
        ]  # fmt: skip
        for number, (at, quiet_s, told) in enumerate(asked):
            written = await _put(storage, PutEvent(make_event(number), once="burst", quiet_s=quiet_s, at=at))
            assert written == (Written(created=True, events=(make_event(number),)) if told else Written(created=False))
        assert await _kept(storage) == [make_event(number) for number in (8, 7, 3, 0)]

    async def test_a_revoked_key_that_is_changed_stays_revoked(self, storage: Storage) -> None:
        await storage.apply("acme", [PutAccount(make_account()), PutKey(make_key())])
        await storage.apply("acme", [RevokeKey("k", REVOKED_AT), PutKey(make_key(name="new"))])
        assert [key.revoked_at for key in await storage.read("acme", Keys())] == [REVOKED_AT]

    async def test_quiet_times_are_separate_by_account_and_name(self, storage: Storage) -> None:
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

    async def test_incidents_are_replaced_by_id_and_listed_newest_first(self, storage: Storage) -> None:
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
    """All of these writes are idempotent, atomic in batches, and isolated by account."""

    async def test_a_repeated_write_changes_nothing(self, storage: Storage) -> None:
        for account, writes in (("acme", writes_of("acme")), (SYSTEM_ACCOUNT, [PutIncident(INCIDENT)])):
            for write in writes:
                await storage.apply(account, [write])
                before = await seen(storage, "acme")
                await storage.apply(account, [write])
                assert await seen(storage, "acme") == before, type(write).__name__
        assert await storage.read(SYSTEM_ACCOUNT, Incidents()) == [INCIDENT]

    async def test_a_batch_of_all_kinds_is_atomic(self, storage: Storage) -> None:
        await Till(storage).open_full()
        before = await seen(storage, "acme")
        some = [write for write in writes_of("acme") if not isinstance(write, RevokeKey)]
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
        for query in (AllAccounts(), Incidents(), KeyByDigest(("of acme",))):
            assert not await storage.read(SYSTEM_ACCOUNT, query)

    async def test_books_of_accounts_with_similar_names_are_separate(self, storage: Storage) -> None:
        nothing = [await seen(storage, nobody) for nobody in ("nobody", SYSTEM_ACCOUNT)]
        for account in ALIKE:
            for write in writes_of(account):
                await storage.apply(account, [write])
        assert [await seen(storage, nobody) for nobody in ("nobody", SYSTEM_ACCOUNT)] == nothing
        assert (nothing[0]["standing"].account, nothing[0]["standing"].key) == (None, None)
        sample = await seen(storage, ALIKE[0])
        for account in ALIKE:
            found = await seen(storage, account)
            assert found["standing"].account.name == account
            assert found["keys"][0].digest == f"of {account}"
            assert [event.account for event in found["events"]] == [account]
            for name in ("rows", "sums"):
                assert found[name] == sample[name]
        assert len(await storage.read(SYSTEM_ACCOUNT, AllAccounts())) == len(ALIKE)


async def seen(storage: Storage, account: str) -> dict[str, Any]:
    """Everything that an account can read of these things."""
    return {
        "standing": await storage.read(account, Stands(AT, "k", RUN)),
        "keys": await storage.read(account, Keys()),
        "rows": await storage.scan(account, LedgerRows(), after=None, limit=99),
        "sums": await storage.read(account, LedgerSums("2026-11-01", "2026-11-30")),
        "events": await storage.scan(account, Events(), after=None, limit=99),
    }


async def _by_digest(storage: Storage, *digests: str) -> Key | None:
    return await storage.read(SYSTEM_ACCOUNT, KeyByDigest(digests))


async def _assert_seen(storage: Storage, compromised: list[Trace], sound: list[Trace]) -> None:
    """Check traces of ``acme`` one by one, in pages, and by filter."""
    every = [*compromised, *sound]
    for trace in every:
        assert await storage.read("acme", TraceById(trace.id)) == trace
    asked = {(): every, (COMPROMISED,): compromised, (SOUND,): sound, (Term("compromised", "!=", True),): sound}
    for terms, expected in asked.items():
        newest = newest_first(expected)
        assert await storage.scan("acme", Traces(terms=terms), after=None, limit=99) == newest
        items = await storage.scan("acme", TraceItems(terms=terms), after=None, limit=99)
        assert items == [trace.item for trace in newest]


async def _put(storage: Storage, write: Write) -> Written:
    return await Till(storage).put(write)


async def _kept(storage: Storage, limit: int = 100) -> list[StoredEvent]:
    """All events of ``acme``, page by page."""
    return await all_pages(storage, "acme", Events(), lambda event: event.id, limit)
