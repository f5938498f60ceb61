"""No account ever sees another: not by a query, a scan, a deletion or a roll-up, whatever they are called."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from routewright._core.moment import timestamp
from routewright.protocols import Storage
from routewright.wire import (
    SYSTEM_ACCOUNT,
    DeleteTraces,
    FeedbackByTrace,
    PutFeedback,
    PutTrace,
    RollupKeys,
    SetRetention,
    SnapshotById,
    Term,
    TraceById,
    TraceItems,
    Traces,
)

from .retention import FOR_EVER, NOW
from .rollups import answers, expected_answers
from .samples import LONG_NAMES, ODD_NAMES, ROLLUP_KEYS, make_trace, plain
from .suite import Suite
from .walk import walk

ALIKE = (
    "acme",
    "Acme",
    "acme ",
    " acme",
    "acm",
    "acme2",
    "acme%",
    "acm_",
    "acmé",
    "acme\u0301",
    "a'cme",
    "*",
    "default",
)


class Isolation(Suite):
    """Accounts."""

    async def test_names_that_look_alike_are_those_of_different_accounts(self, storage: Storage) -> None:
        accounts = (*ALIKE, *ODD_NAMES, *LONG_NAMES)
        puts = {
            account: PutTrace(plain(make_trace(1, account=account, duration_ms=1.0 + place)), rollup_keys=ROLLUP_KEYS)
            for place, account in enumerate(accounts)
        }
        for account, put in puts.items():
            await storage.apply(account, [put, PutFeedback(put.trace.id, 1.0, account, 0.0, expect="present")])
        for account, put in puts.items():
            assert await storage.read(account, TraceById(put.trace.id)) == put.trace
            assert await storage.scan(account, Traces(), after=None, limit=100) == [put.trace]
            said = await storage.read(account, FeedbackByTrace(put.trace.id))
            assert said is not None
            assert said.comment == account
            assert await answers(storage, account) == expected_answers([put])

    async def test_an_account_without_traces_sees_nothing_of_those_with_some(self, storage: Storage) -> None:
        trace = make_trace(1, account="one", metadata={"tenant": "acme", "team": "search"})
        said = PutFeedback(trace.id, 1.0, None, 0.0)
        await storage.apply("one", [PutTrace(trace, rollup_keys=ROLLUP_KEYS), said])
        terms = (), (Term("metadata.team", "=", "search"),), (Term("metadata.team", "!=", "x"),)
        for other in ("two", SYSTEM_ACCOUNT):
            assert await storage.read(other, TraceById(trace.id)) is None
            assert await storage.read(other, TraceById(trace.id, "production")) is None
            assert await storage.read(other, FeedbackByTrace(trace.id)) is None
            assert await storage.read(other, RollupKeys()) == []
            assert await answers(storage, other) == expected_answers([])
            for asked in terms:
                assert await storage.scan(other, Traces(terms=asked), after=None, limit=5) == []
                assert await storage.scan(other, TraceItems(terms=asked), after="9999", limit=5) == []
        assert await storage.read("two", SnapshotById("hea_1")) is None

    async def test_no_account_changes_anothers_traces_by_their_ids(self, storage: Storage) -> None:
        one, two = (make_trace(1, account=account) for account in ("one", "two"))
        await storage.apply("one", [PutTrace(one), PutFeedback(one.id, 1.0, "mine", 0.0)])
        (written,) = await storage.apply("two", [PutTrace(two, expect="absent")])
        assert written.created
        await storage.apply("two", [PutFeedback(one.id, 0.0, "not mine", 0.0)])
        for which in (DeleteTraces(id=one.id), DeleteTraces(), DeleteTraces(environment="production")):
            await storage.apply("two", [which])
        assert await storage.read("one", TraceById(one.id)) == one
        said = await storage.read("one", FeedbackByTrace(one.id))
        assert said is not None
        assert said.comment == "mine"
        assert await answers(storage, "one") == expected_answers([PutTrace(one)])

    async def test_a_sweep_takes_from_each_account_only_what_is_old_in_it(self, storage: Storage) -> None:
        await storage.apply(SYSTEM_ACCOUNT, [SetRetention(production_s=100.0, sandbox_s=1.0)])
        old, new = (plain(make_trace(1, created_at=timestamp(NOW - age_s))) for age_s in (200.0, 50.0))
        await storage.apply("one", [PutTrace(old)])
        await storage.apply("two", [PutTrace(new)])
        assert await storage.sweep(NOW) == 1
        assert await storage.read("one", TraceById(old.id)) is None
        assert await storage.read("two", TraceById(new.id)) == new

    @pytest.mark.parametrize("seed", range(4))
    async def test_a_random_walk_of_two_accounts_finds_in_each_what_was_put_there(
        self, storage: Storage, seed: int
    ) -> None:
        accounts = [("one", "two"), ("acme", "acme%"), ("a'; --", "a"), ("one", SYSTEM_ACCOUNT)][seed]
        await storage.apply(SYSTEM_ACCOUNT, [FOR_EVER])
        rng: Any = Random(seed)
        await walk(storage, rng, steps=150, accounts=accounts)
