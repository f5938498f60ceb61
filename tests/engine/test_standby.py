"""What is shared goes away and comes back: limits hold by parts, nobody waits for long, and no slot is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from math import inf
from typing import Any, Literal

import anyio
import pytest

from routewright import MemoryCoordination
from routewright._engine.standby import AGAIN_S, PROBE_S, SAY_EVERY_S, TIMEOUT_S, StandbyCoordination, TakenTwice
from routewright.errors import StorageCorrupt, StorageUnavailable
from routewright.testing import FakeClock
from routewright.wire import Denied, Heard, Notice, Take, Taken, WindowState
from tests.limits import one

pytestmark = pytest.mark.anyio

ME, WORKERS = "me", 4
SLOT = [Take("a", "slots", 8)]


class Shared(MemoryCoordination):
    """One that can be made to refuse, to hang, or to take its time."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.clock = clock
        self.state: Literal["well", "away", "hanging"] = "well"
        self.slow_s = 0.0
        self.asked = 0
        self.closed = False

    async def take(self, takes: Sequence[Take], owner: str) -> Taken | Denied:
        await self._reach()
        return await super().take(takes, owner)

    async def end(self, taken: Taken, tokens: int | None = None) -> None:
        await self._reach()
        await super().end(taken, tokens)

    async def renew(self, owner: str) -> None:
        await self._reach()
        await super().renew(owner)

    async def announce(self, notice: Notice) -> None:
        await self._reach()
        await super().announce(notice)

    async def hear(self, after: int | None) -> Heard:
        await self._reach()
        return await super().hear(after)

    async def aclose(self) -> None:
        self.closed = True

    async def _reach(self) -> None:
        self.asked += 1
        if self.state == "away":
            raise StorageUnavailable("the store is away")
        if self.state == "hanging":
            await self.clock.sleep(inf)
        if self.slow_s:
            await self.clock.sleep(self.slow_s)


class House:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.shared = Shared(self.clock)
        self.local = MemoryCoordination(clock=self.clock)
        self.standby = StandbyCoordination(self.shared, self.local, self.clock, WORKERS)

    async def taken(self, takes: Sequence[Take]) -> Taken:
        result = await self.standby.take(takes, ME)
        assert isinstance(result, Taken), result
        return result

    async def denied(self, takes: Sequence[Take]) -> Denied:
        result = await self.standby.take(takes, ME)
        assert isinstance(result, Denied), result
        return result

    async def waited(self, takes: Sequence[Take]) -> float:
        """How long a take took."""
        began = self.clock.monotonic()
        await self.standby.take(takes, ME)
        return self.clock.monotonic() - began

    async def recover(self) -> None:
        self.shared.state, self.shared.slow_s = "well", 0.0
        await self.clock.advance(AGAIN_S)
        await self.taken(one("recovers", 10**6))
        assert not self.standby.degraded

    async def shared_slots(self) -> int:
        """How many are taken there."""
        state = self.shared.state
        self.shared.state = "well"
        result = await MemoryCoordination.take(self.shared, [Take("a", "slots", 100, 0)], "another")
        self.shared.state = state
        return 100 - result.states[0].remaining


@pytest.fixture
def house() -> House:
    return House()


@pytest.mark.parametrize("state", ["away", "hanging"])
async def test_while_it_is_away_each_worker_goes_on_with_its_part(
    house: House, state: Literal["away", "hanging"]
) -> None:
    house.shared.state = state
    for left in (1, 0):
        step = await house.taken(one("a", 9))
        assert (step.states[0].limit, step.states[0].remaining) == (2, left)
    assert (await house.denied(one("a", 9))).retry_after_s == pytest.approx(60.0, abs=TIMEOUT_S)
    assert house.standby.degraded
    assert house.standby.degraded_takes == 3


async def test_a_part_is_at_least_one_of_what_is_more_than_nothing(house: House) -> None:
    house.shared.state = "away"
    for takes in (one("a", 1), one("b", 3), [Take("a", "slots", 2)]):
        await house.taken(takes)
        await house.denied(takes)
    await house.denied(one("c", 0))


async def test_a_part_is_not_whole_that_was_taken_before(house: House) -> None:
    first = await house.taken([*one("a", 8), Take("a", "tokens", 80, 30), Take("a", "slots", 8)])
    house.shared.state = "away"
    assert (await house.taken(one("a", 8))).states[0].remaining == 0
    assert (await house.denied([Take("a", "tokens", 80, 1)])).states[0].remaining == 0
    await house.standby.end(first, 12)
    assert (await house.taken([Take("a", "tokens", 80, 1)])).states[0].remaining == 7
    assert (await house.taken(SLOT)).states[0].remaining == 1


async def test_what_the_shared_one_refuses_is_refused_and_counted_nowhere(house: House) -> None:
    await MemoryCoordination.take(house.shared, one("a", 4), "another")
    for _ in range(3):
        await house.taken(one("a", 4))
    await house.denied(one("a", 4))
    assert house.standby.degraded_takes == 0
    house.shared.state = "away"
    assert (await house.denied(one("a", 12))).states[0].remaining == 0
    assert (await house.taken(one("a", 16))).states[0].remaining == 0


async def test_an_error_that_stays_is_a_fault_too(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse() -> None:
        raise StorageCorrupt("another kind of file")

    monkeypatch.setattr(house.shared, "_reach", refuse)
    await house.taken(one("a", 9))
    assert house.standby.degraded


HIDDEN = "redis://:password@host"
WELL = (WindowState("requests", 9, 8, 60.0),)
ODD: list[object] = [
    ConnectionError(HIDDEN),
    ZeroDivisionError(HIDDEN),
    asyncio.CancelledError(HIDDEN),
    ExceptionGroup(HIDDEN, [ValueError(HIDDEN)]),
]
GARBAGE: list[object] = [None, 5, HIDDEN, Take, Heard((), 1)]


class Strange:
    """One whose methods raise, or give, all the same thing; some before they are awaited."""

    def __init__(self, gives: object, *, at_once: bool) -> None:
        self._gives = gives
        self._at_once = at_once

    def _do(self, *given: object) -> Any:
        if self._at_once and isinstance(self._gives, BaseException):
            raise self._gives
        return self._later()

    async def _later(self) -> Any:
        if isinstance(self._gives, BaseException):
            raise self._gives
        return self._gives

    take = end = renew = announce = hear = _do

    async def aclose(self) -> None:
        pass


def strange(house: House, gives: object, *, at_once: bool = False) -> StandbyCoordination:
    shared: Any = Strange(gives, at_once=at_once)
    return StandbyCoordination(shared, house.local, house.clock, WORKERS)


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("gives", ODD, ids=lambda each: type(each).__name__)
async def test_whatever_it_raises_it_is_away_and_its_words_stay_there(
    house: House, gives: object, at_once: bool, caplog: pytest.LogCaptureFixture
) -> None:
    standby = strange(house, gives, at_once=at_once)
    step = await standby.take([*one("a", 9), *SLOT], ME)
    assert isinstance(step, Taken)
    assert (standby.degraded, standby.degraded_takes, step.states[0].limit) == (True, 1, 2)
    await standby.end(step)
    await standby.end(TakenTwice(step.id, step.states, step, step))
    await standby.renew(ME)
    for news in (standby.announce(Notice("revoked", "key_1")), standby.hear(None)):
        with pytest.raises(StorageUnavailable, match=type(gives).__name__) as caught:
            await news
        assert HIDDEN not in str(caught.value)
    assert type(gives).__name__ in caplog.text
    assert HIDDEN not in caplog.text


@pytest.mark.parametrize("gives", GARBAGE, ids=repr)
async def test_what_is_no_answer_is_none(house: House, gives: object, caplog: pytest.LogCaptureFixture) -> None:
    standby = strange(house, gives)
    step = await standby.take(one("a", 9), ME)
    assert isinstance(step, Taken)
    assert (standby.degraded, standby.degraded_takes, step.states[0].limit) == (True, 1, 2)
    assert HIDDEN not in caplog.text


@pytest.mark.parametrize("gives", [None, 5, HIDDEN, Taken(1, WELL)], ids=repr)
async def test_what_are_no_news_is_none(house: House, gives: object) -> None:
    with pytest.raises(StorageUnavailable, match="in the place of an answer") as caught:
        await strange(house, gives).hear(None)
    assert HIDDEN not in str(caught.value)


async def test_a_caller_who_is_cancelled_is_not_taken_for_a_fault(house: House) -> None:
    house.shared.state = "hanging"
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(house.standby.take, one("a", 9), ME)
            group.start_soon(house.standby.renew, ME)
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
    assert scope.cancelled_caught
    assert not house.standby.degraded


# Time


async def test_it_is_waited_for_once_and_then_not_at_all(house: House) -> None:
    house.shared.state = "hanging"
    assert await house.waited(one("a", 99)) == pytest.approx(TIMEOUT_S)
    for _ in range(10):
        assert await house.waited(one("a", 99)) == 0.0
    assert house.shared.asked == 1


async def test_of_many_one_looks_whether_it_is_back_and_not_for_long(house: House) -> None:
    house.shared.state = "hanging"
    await house.taken(one("a", 10**6))
    waits = list[float]()

    async def take() -> None:
        waits.append(await house.waited(one("a", 10**6)))

    for _ in range(3):
        await house.clock.advance(AGAIN_S)
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(take)
        assert [wait for wait in waits if wait] == [pytest.approx(PROBE_S)]
        waits.clear()
    assert house.shared.asked == 1 + 3


@pytest.mark.parametrize("away_s", [0.1, 3.0, 61.0, 600.0])
async def test_it_is_used_again_within_five_seconds_of_its_return(house: House, away_s: float) -> None:
    house.shared.state = "hanging"
    for _ in range(int(away_s / 0.1)):
        await house.standby.take(one("a", 10**6), ME)
        await house.clock.advance(0.1)
    house.shared.state = "well"
    returned, asked = house.clock.monotonic(), house.shared.asked
    while house.standby.degraded:
        await house.standby.take(one("a", 10**6), ME)
        await house.clock.advance(0.1)
    assert house.clock.monotonic() - returned < 5.0
    assert house.shared.asked == asked + 1
    assert (await house.taken(one("a", 10**6))).states[0].limit == 10**6


async def test_one_that_is_slow_is_used_until_it_is_too_slow(house: House) -> None:
    house.shared.slow_s = TIMEOUT_S - 0.01
    await house.taken(one("a", 9))
    assert not house.standby.degraded
    house.shared.slow_s = TIMEOUT_S + 0.01
    await house.taken(one("a", 9))
    assert house.standby.degraded


async def test_an_answer_to_what_was_asked_before_it_failed_does_not_say_that_it_is_back(house: House) -> None:
    house.shared.slow_s = 0.2

    async def late() -> None:
        assert (await house.taken(one("a", 100))).states[0].limit == 100

    async with anyio.create_task_group() as group:
        group.start_soon(late)
        await house.clock.sleep(0.1)
        house.shared.state, house.shared.slow_s = "away", 0.0
        await house.taken(one("b", 9))
    assert house.standby.degraded


# Ends


async def test_what_ends_while_it_is_away_is_ended_there_when_it_is_back(house: House) -> None:
    steps = [await house.taken([*SLOT, Take("a", "tokens", 100, 20)]) for _ in range(5)]
    house.shared.state = "hanging"
    await house.taken(one("a", 99))
    for step in steps[1:]:
        began = house.clock.monotonic()
        await house.standby.end(step, 5)
        assert house.clock.monotonic() == began, "nobody waits for it"
    assert await house.shared_slots() == 5
    await house.recover()
    await house.standby.end(steps[0], 5)
    assert await house.shared_slots() == 0
    assert (await house.taken([Take("a", "tokens", 100, 75)])).states[0].remaining == 0


async def test_it_is_told_of_ends_when_the_owner_is_renewed(house: House) -> None:
    step = await house.taken(SLOT)
    house.shared.state = "away"
    await house.standby.end(step)
    assert house.standby.degraded
    await house.recover()
    assert await house.shared_slots() == 1
    await house.standby.renew(ME)
    assert await house.shared_slots() == 0


async def test_slots_are_renewed_on_both_sides(house: House) -> None:
    await house.taken(SLOT)
    for _ in range(4):
        await house.clock.advance(20.0)
        await house.standby.renew(ME)
    assert await house.shared_slots() == 1
    house.shared.state = "away"
    assert (await house.taken(SLOT)).states[0].remaining == 0, "of a part of two"


async def test_a_renewal_for_which_nobody_waits_has_until_the_next(house: House) -> None:
    await house.taken(SLOT)
    for _ in range(4):
        await house.clock.advance(15.0)
        house.shared.slow_s = 9.9
        await house.standby.renew(ME)
        house.shared.slow_s = 0.0
    assert await house.shared_slots() == 1
    house.shared.state = "hanging"
    began = house.clock.monotonic()
    await house.standby.renew(ME)
    assert house.clock.monotonic() - began == pytest.approx(10.0)
    assert house.standby.degraded


async def test_slots_are_renewed_there_while_it_is_thought_to_be_away(house: House) -> None:
    await house.taken(SLOT)
    house.shared.state = "away"
    await house.taken(one("a", 9))
    house.shared.state = "well"
    await house.clock.advance(20.0)
    await house.standby.renew(ME)
    await house.clock.advance(20.0)
    assert await house.shared_slots() == 1


async def test_what_was_taken_of_one_is_not_given_back_to_the_other(house: House) -> None:
    house.shared.state = "away"
    step = await house.taken(SLOT)
    await house.recover()
    other = await house.taken(SLOT)
    await house.standby.end(step)
    assert await house.shared_slots() == 1
    await house.standby.end(other)
    assert await house.shared_slots() == 0


async def test_an_end_whose_caller_is_cancelled_is_told_later(house: House) -> None:
    step = await house.taken(SLOT)
    house.shared.slow_s = 0.2
    with house.clock.deadline(house.clock.monotonic() + 0.1) as deadline:
        await house.standby.end(step)
    assert deadline.expired
    assert not house.standby.degraded
    house.shared.slow_s = 0.0
    assert await house.shared_slots() == 1
    await house.standby.end(await house.taken(SLOT))
    assert await house.shared_slots() == 0


async def test_a_take_whose_caller_is_cancelled_leaves_nothing(house: House) -> None:
    house.shared.slow_s = 0.2
    with house.clock.deadline(house.clock.monotonic() + 0.1) as deadline:
        await house.standby.take(SLOT, ME)
    assert deadline.expired
    assert not house.standby.degraded
    assert await house.shared_slots() == 0


async def test_one_that_is_cancelled_while_it_is_counted_is_given_back(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(takes: Sequence[Take], owner: str) -> Taken:
        await house.clock.sleep(inf)
        raise AssertionError

    monkeypatch.setattr(house.local, "take", hang)
    with house.clock.deadline(house.clock.monotonic() + 0.1):
        await house.standby.take(SLOT, ME)
    assert await house.shared_slots() == 1
    await house.standby.renew(ME)
    assert await house.shared_slots() == 0


# News, and the log


async def test_news_go_through_and_nothing_stands_in_for_them(house: House) -> None:
    start = await house.standby.hear(None)
    await house.standby.announce(Notice("revoked", "key_1"))
    assert (await house.standby.hear(start.last)).notices == (Notice("revoked", "key_1"),)
    house.shared.state = "away"
    with pytest.raises(StorageUnavailable, match="the news could not be spread: StorageUnavailable"):
        await house.standby.announce(Notice("revoked", "key_1"))
    with pytest.raises(StorageUnavailable):
        await house.standby.hear(start.last)
    house.shared.state = "hanging"
    began = house.clock.monotonic()
    with pytest.raises(StorageUnavailable, match=r"no answer within 0\.25 s"):
        await house.standby.announce(Notice("revoked", "key_1"))
    assert house.clock.monotonic() - began == pytest.approx(TIMEOUT_S)


async def test_a_line_is_logged_for_each_change_and_one_a_minute_at_most(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "routewright")
    gone = (
        "limits are not shared for now, and this worker goes on with one part in 4 of every limit: StorageUnavailable"
    )
    back = "limits are shared again"

    async def go_on(seconds: float, state: Literal["well", "away"]) -> None:
        house.shared.state = state
        for _ in range(int(seconds)):
            await house.standby.take(one("a", 10**6), ME)
            await house.clock.advance(1.0)

    await go_on(5, "well")
    assert caplog.messages == []
    await go_on(2 * SAY_EVERY_S, "away")
    assert caplog.messages == [gone]
    await go_on(5, "well")
    assert caplog.messages == [gone, back]
    for _ in range(5):
        await go_on(4, "away")
        await go_on(4, "well")
    assert caplog.messages == [gone, back]
    await go_on(SAY_EVERY_S, "away")
    assert caplog.messages == [gone, back, gone]
    await go_on(3, "well")
    assert caplog.messages == [gone, back, gone]
    await go_on(SAY_EVERY_S, "well")
    assert caplog.messages == [gone, back, gone, back]


async def test_both_are_closed(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = list[str]()

    async def close() -> None:
        closed.append("local")

    monkeypatch.setattr(house.local, "aclose", close)
    await house.standby.aclose()
    assert house.shared.closed
    assert closed == ["local"]
