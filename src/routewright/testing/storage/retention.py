"""How long traces are kept: what ``sweep`` removes, and what it leaves."""

from __future__ import annotations

import pytest

from routewright._core.moment import timestamp
from routewright.protocols import Storage
from routewright.wire import (
    SYSTEM_ACCOUNT,
    CurrentRetention,
    Environment,
    FeedbackByTrace,
    PutFeedback,
    PutTrace,
    SetRetention,
    TraceItems,
)

from .rollups import answers, expected_answers
from .samples import ROLLUP_KEYS, all_items, make_trace, plain
from .suite import Suite

NOW = 1_795_478_400.0  # 2026-11-24T00:00:00Z
HOUR_S = 3_600.0
DAY_S = 24 * HOUR_S
FOR_EVER = SetRetention()


def put(number: int, age_s: float, environment: Environment = "production", account: str = "default") -> PutTrace:
    """A trace that is so old at ``NOW``."""
    trace = make_trace(number, created_at=timestamp(NOW - age_s), environment=environment, account=account)
    return PutTrace(plain(trace), rollup_keys=ROLLUP_KEYS)


class Aging(Suite):
    """Retention."""

    async def test_what_was_said_last_holds(self, storage: Storage) -> None:
        for said in (SetRetention(production_s=30 * DAY_S, sandbox_s=None), SetRetention(sandbox_s=0.5), FOR_EVER):
            (written,) = await storage.apply(SYSTEM_ACCOUNT, [said])
            assert not written.created
            assert await storage.read(SYSTEM_ACCOUNT, CurrentRetention()) == said

    @pytest.mark.parametrize(
        ("retention", "left"),
        [
            (SetRetention(production_s=2 * DAY_S, sandbox_s=HOUR_S), [0, 1, 3]),
            (SetRetention(production_s=HOUR_S, sandbox_s=2 * DAY_S), [0, 3, 4]),
            (SetRetention(production_s=None, sandbox_s=HOUR_S), [0, 1, 2, 3]),
            (SetRetention(production_s=HOUR_S, sandbox_s=None), [0, 3, 4, 5]),
            (SetRetention(production_s=0.0, sandbox_s=0.0), []),
            (FOR_EVER, [0, 1, 2, 3, 4, 5]),
        ],
        ids=str,
    )
    async def test_each_environment_has_an_age_of_its_own(
        self, storage: Storage, retention: SetRetention, left: list[int]
    ) -> None:
        ages = (0.5 * HOUR_S, DAY_S, 3 * DAY_S)
        puts = [put(number, age, "production") for number, age in enumerate(ages)]
        puts += [put(number, age, "sandbox") for number, age in enumerate(ages, start=3)]
        await storage.apply("default", puts)
        await storage.apply(SYSTEM_ACCOUNT, [retention])
        assert await storage.sweep(NOW) == len(puts) - len(left)
        assert await _numbers(storage) == left
        assert await storage.sweep(NOW) == 0

    async def test_a_trace_goes_when_it_is_older_than_that_not_before(self, storage: Storage) -> None:
        await storage.apply(SYSTEM_ACCOUNT, [SetRetention(production_s=DAY_S)])
        await storage.apply("default", [put(1, DAY_S), put(2, DAY_S + 0.001), put(3, DAY_S - 0.001)])
        assert await storage.sweep(NOW) == 1
        assert await _numbers(storage) == [1, 3]

    async def test_what_is_past_its_time_goes_from_every_account(self, storage: Storage) -> None:
        await storage.apply(SYSTEM_ACCOUNT, [SetRetention(production_s=DAY_S, sandbox_s=DAY_S)])
        accounts = ("one", "two", "three's", SYSTEM_ACCOUNT)
        for account in accounts:
            await storage.apply(account, [put(1, 3 * DAY_S, account=account), put(2, HOUR_S, account=account)])
        assert await storage.sweep(NOW) == len(accounts)
        assert [await _numbers(storage, account) for account in accounts] == [[2]] * len(accounts)

    async def test_removed_traces_stay_in_the_roll_ups_and_take_their_feedback_along(self, storage: Storage) -> None:
        puts = [put(1, 3 * DAY_S), put(2, 3 * DAY_S, "sandbox"), put(3, HOUR_S)]
        said = [PutFeedback(each.trace.id, 1.0, None, 0.0) for each in puts]
        await storage.apply(SYSTEM_ACCOUNT, [SetRetention(production_s=DAY_S, sandbox_s=DAY_S)])
        await storage.apply("default", [*puts, *said])
        assert await storage.sweep(NOW) == 2
        assert await answers(storage, "default") == expected_answers(puts)
        kept = [await storage.read("default", FeedbackByTrace(each.trace.id)) is not None for each in puts]
        assert kept == [False, False, True]

    async def test_more_traces_than_a_transaction_may_hold_go_too(self, storage: Storage) -> None:
        await storage.apply(SYSTEM_ACCOUNT, [SetRetention(production_s=DAY_S)])
        await storage.apply("default", [put(number, 3 * DAY_S) for number in range(1_200)])
        assert await storage.sweep(NOW) == 1_200
        assert await _numbers(storage) == []

    async def test_nothing_is_past_its_time_before_time_began(self, storage: Storage) -> None:
        await storage.apply(SYSTEM_ACCOUNT, [SetRetention(production_s=DAY_S, sandbox_s=DAY_S)])
        await storage.apply("default", [put(1, 0.0), put(2, 0.0, "sandbox")])
        assert await storage.sweep(0.0) == 0


async def _numbers(storage: Storage, account: str = "default") -> list[int]:
    return sorted(int(item.id.removeprefix("tr_")) for item in await all_items(storage, TraceItems(), account))
