"""The promises of a coordination, one a test: rate limits, slots, and news. A test's name is the promise."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from math import ceil
from random import Random

import anyio
import anyio.to_thread
import pytest
from anyio.lowlevel import checkpoint

from routewright.errors import ValidationFailed
from routewright.fork import Guard
from routewright.protocols import Coordination
from routewright.testing.clock import FakeClock
from routewright.testing.threads import Meet, run_in_threads
from routewright.wire import Denied, Heard, Notice, Resource, Take, Taken, WindowState

from .walk import Walk

ME, OTHER = "me", "another"
FIRST, SECOND = Notice("revoked", "key_1"), Notice("policies", "")
CANCELLED_AFTER = 20
"""A take is cancelled after each of so many turns of other tasks."""
EACH = 20
"""How often each of them is tried: on trio the order of tasks is chance."""
THREADS, ROUNDS, LIMIT, MOST = 8, 40, 100, 3
PATIENCE_S = 20.0


def requests(name: str, limit: int, amount: int = 1) -> Take:
    """Some requests of one window."""
    return Take(name, "requests", limit, amount)


def tokens(name: str, limit: int, amount: int) -> Take:
    """Some tokens of one window."""
    return Take(name, "tokens", limit, amount)


def slots(name: str, limit: int, amount: int = 1) -> Take:
    """Some slots."""
    return Take(name, "slots", limit, amount)


class Subject:
    """The coordination under test, with its clock."""

    def __init__(self, coordination: Coordination, clock: FakeClock) -> None:
        self.coordination = coordination
        self.clock = clock
        self.end, self.renew, self.announce = coordination.end, coordination.renew, coordination.announce
        self.advance = clock.advance

    async def taken(self, *takes: Take, owner: str = ME) -> Taken:
        """Take, which must succeed."""
        result = await self.coordination.take(takes, owner)
        assert isinstance(result, Taken), f"{takes} were refused: {result}"
        assert len(result.states) == len(takes), "one state for each take"
        return result

    async def denied(self, *takes: Take, owner: str = ME) -> Denied:
        """Take, which must be refused."""
        result = await self.coordination.take(takes, owner)
        assert isinstance(result, Denied), f"{takes} were admitted: {result}"
        assert len(result.states) == len(takes), "one state for each take"
        return result

    async def remaining(self, *takes: Take, owner: str = ME) -> list[int]:
        """Take, which must succeed, and say what is left of each limit."""
        return [state.remaining for state in (await self.taken(*takes, owner=owner)).states]

    async def heard(self, after: int | None) -> tuple[Notice, ...]:
        """The news since then."""
        return (await self.coordination.hear(after)).notices

    async def last(self) -> int:
        """From where on to listen."""
        return (await self.coordination.hear(None)).last


@pytest.mark.anyio
class CoordinationContract:
    """Inherit it and override ``make``. Each test makes a coordination of its own, uses it in one event loop, one of
    them in threads besides, and closes it.

    class TestMyCoordination(CoordinationContract):
        def make(self, clock):
            return MyCoordination(clock=clock)

    Time is the clock's that ``make`` is given; ``lease_s`` says how long a lease is. The tests run with anyio's plug-in
    of pytest, which comes with anyio, on asyncio, and on trio where it is installed.
    """

    lease_s = 30.0
    """How long its leases are."""

    def make(self, clock: FakeClock) -> Coordination:
        """Make one in which nothing is taken, and which goes by ``clock``."""
        raise NotImplementedError("override make(clock) to return a coordination of yours that goes by that clock")

    @pytest.fixture
    async def subject(self) -> AsyncIterator[Subject]:
        """A coordination in which nothing is taken, closed afterwards."""
        clock = FakeClock()
        coordination = self.make(clock)
        yield Subject(coordination, clock)
        await coordination.aclose()

    # No window of a minute holds more than its limit, and nobody is refused who fits

    async def test_a_limit_admits_as_many_as_it_says_and_no_more(self, subject: Subject) -> None:
        for left in (2, 1, 0):
            assert (await subject.taken(requests("a", 3))).states == (WindowState("requests", 3, left, 60.0),)
        refused = await subject.denied(requests("a", 3))
        assert refused.states == (WindowState("requests", 3, 0, 60.0),)
        assert (refused.by, refused.retry_after_s) == (0, 60.0)

    async def test_a_window_slides_and_is_open_at_its_beginning(self, subject: Subject) -> None:
        await subject.advance(0.7)
        await subject.taken(requests("a", 2))
        await subject.advance(45.0)
        await subject.taken(requests("a", 2))
        await subject.advance(15.0 - 1e-9)
        await subject.denied(requests("a", 2))
        await subject.advance(2e-9)
        await subject.taken(requests("a", 2))
        assert (await subject.denied(requests("a", 2))).retry_after_s == pytest.approx(45.0)

    @pytest.mark.parametrize("resource", ["requests", "tokens"])
    async def test_a_caller_who_waits_as_long_as_told_is_admitted(self, subject: Subject, resource: Resource) -> None:
        take = Take("a", resource, 7, 2)
        for turn in range(40):
            while isinstance(refused := await subject.coordination.take([take], ME), Taken):
                await subject.advance(0.1 + turn / 7)
            seconds = refused.retry_after_s if turn % 2 else ceil(refused.retry_after_s)
            await subject.advance(seconds)
            await subject.taken(take)

    async def test_the_wait_is_for_as_many_to_leave_as_stand_in_the_way(self, subject: Subject) -> None:
        for _ in range(5):
            await subject.taken(tokens("a", 100, 20))
            await subject.advance(1.0)
        assert (await subject.denied(tokens("a", 100, 50))).retry_after_s == 57.0
        assert (await subject.denied(tokens("a", 40, 20))).retry_after_s == 58.0

    async def test_more_than_the_whole_limit_is_admitted_alone(self, subject: Subject) -> None:
        await subject.taken(tokens("a", 100, 1))
        assert (await subject.denied(tokens("a", 100, 500))).retry_after_s == 60.0
        await subject.advance(60.0)
        assert await subject.remaining(tokens("a", 100, 500)) == [0]
        await subject.advance(59.0)
        assert (await subject.denied(tokens("a", 100, 1))).retry_after_s == 1.0
        await subject.advance(1.0)
        await subject.taken(tokens("a", 100, 1))

    async def test_a_limit_of_zero_admits_nothing_and_an_amount_of_zero_always_fits(self, subject: Subject) -> None:
        for resource in ("requests", "tokens", "slots"):
            assert (await subject.denied(Take("a", resource, 0))).retry_after_s == 60.0
        await subject.taken(tokens("a", 10, 10))
        assert await subject.remaining(tokens("a", 10, 0), tokens("a", 0, 0)) == [0, 0]

    async def test_limits_are_told_apart_by_name_and_by_what_they_count(self, subject: Subject) -> None:
        for name in ("account:a", "key:a", "key:A", "key:a ", "", "'; --"):
            for resource in ("requests", "tokens", "slots"):
                await subject.taken(Take(name, resource, 1))
                await subject.denied(Take(name, resource, 1))

    # Tokens are taken as an estimate and corrected at the end, at the time at which they were taken

    async def test_unused_tokens_are_given_back_to_each_window(self, subject: Subject) -> None:
        step = await subject.taken(tokens("a", 100, 80), tokens("b", 50, 40))
        await subject.denied(tokens("a", 100, 60))
        await subject.end(step, 45)
        assert await subject.remaining(tokens("a", 100, 55), tokens("b", 50, 5)) == [0, 0]

    async def test_a_correction_leaves_the_window_with_what_it_corrects(self, subject: Subject) -> None:
        step = await subject.taken(tokens("a", 100, 80))
        await subject.advance(50.0)
        await subject.end(step, 100)
        assert (await subject.denied(tokens("a", 100, 1))).retry_after_s == 10.0
        await subject.advance(10.0)
        assert await subject.remaining(tokens("a", 100, 1)) == [99]

    @pytest.mark.parametrize("estimate", [0, 10])
    async def test_more_than_was_estimated_counts_even_beyond_the_limit(self, subject: Subject, estimate: int) -> None:
        step = await subject.taken(tokens("a", 100, estimate))
        await subject.end(step, 150)
        refused = await subject.denied(tokens("a", 200, 51))
        assert refused.states[0].remaining == 50
        assert (await subject.denied(tokens("a", 100, 1))).states[0].remaining == 0

    async def test_tokens_that_have_left_their_window_are_not_corrected(self, subject: Subject) -> None:
        step = await subject.taken(tokens("a", 100, 10))
        await subject.advance(60.0)
        await subject.taken(tokens("a", 100, 10))
        await subject.end(step, 90)
        assert await subject.remaining(tokens("a", 100, 90)) == [0]

    async def test_a_step_ends_once_and_gives_back_no_requests(self, subject: Subject) -> None:
        for name, first, left in (("a", None, 40), ("b", 50, 50)):
            step = await subject.taken(tokens(name, 100, 60), requests(name, 1))
            await subject.end(step, first)
            await subject.end(step, 0)
            assert (await subject.denied(tokens(name, 100, left + 1))).states[0].remaining == left
            await subject.denied(requests(name, 1))

    async def test_negative_amounts_are_refused(self, subject: Subject) -> None:
        with pytest.raises(ValidationFailed):
            await subject.coordination.take([requests("a", 1), tokens("b", 5, -1)], ME)
        step = await subject.taken(requests("a", 1), tokens("b", 5, 5))
        with pytest.raises(ValidationFailed):
            await subject.end(step, -1)

    # Slots are their owner's while his lease runs

    async def test_slots_are_taken_until_they_are_given_back_once(self, subject: Subject) -> None:
        steps = [await subject.taken(slots("a", 2), owner=owner) for owner in (ME, OTHER)]
        refused = await subject.denied(slots("a", 2))
        assert (refused.retry_after_s, refused.states) == (1.0, (WindowState("slots", 2, 0, 0.0),))
        for _ in range(2):
            await subject.end(steps[0])
        assert (await subject.taken(slots("a", 2))).states == (WindowState("slots", 2, 0, 0.0),)
        await subject.denied(slots("a", 2))
        step = await subject.taken(slots("b", 2, 3))  # more than all of them: alone
        await subject.denied(slots("b", 2))
        await subject.end(step)
        await subject.taken(slots("b", 2))
        await subject.denied(slots("b", 2, 3))

    async def test_a_slot_is_free_when_its_owners_lease_is_over(self, subject: Subject) -> None:
        await subject.taken(slots("a", 2))
        await subject.advance(self.lease_s / 4)
        await subject.taken(slots("a", 2), owner=OTHER)
        await subject.advance(self.lease_s / 4 * 3 - 0.001)
        await subject.denied(slots("a", 2), owner=OTHER)
        await subject.advance(0.001)
        assert await subject.remaining(slots("a", 2), owner=OTHER) == [0]

    async def test_renewing_keeps_all_slots_of_one_owner_for_as_long_as_it_goes_on(self, subject: Subject) -> None:
        await subject.renew("somebody without slots")
        for name in ("a", "b"):
            await subject.taken(slots(name, 2))
        await subject.taken(slots("a", 2), owner=OTHER)
        for _ in range(10):
            await subject.advance(self.lease_s * 0.9)
            await subject.renew(ME)
        assert await subject.remaining(slots("a", 2), owner=OTHER) == [0]
        await subject.denied(slots("b", 1), owner=OTHER)

    async def test_taking_a_slot_renews_the_lease(self, subject: Subject) -> None:
        await subject.taken(slots("a", 1))
        await subject.advance(self.lease_s - 1.0)
        await subject.taken(slots("b", 1))
        await subject.advance(self.lease_s - 1.0)
        await subject.denied(slots("a", 1), owner=OTHER)
        await subject.advance(1.0)
        await subject.taken(slots("a", 1), owner=OTHER)

    async def test_lost_slots_are_not_renewed_and_their_end_frees_nobody_elses(self, subject: Subject) -> None:
        lost = await subject.taken(slots("a", 1), tokens("a", 10, 10))
        await subject.advance(self.lease_s)
        await subject.renew(ME)
        await subject.taken(slots("a", 1), owner=OTHER)
        await subject.end(lost, 3)
        await subject.denied(slots("a", 1))

    async def test_a_take_that_is_cancelled_has_taken_nothing(self, subject: Subject) -> None:
        takes, found = [slots("a", 1_000), requests("b", 1_000)], list[Taken | Denied]()

        async def take() -> None:
            found.append(await subject.coordination.take(takes, ME))

        for steps in [*range(CANCELLED_AFTER)] * EACH:
            async with anyio.create_task_group() as group:
                group.start_soon(take)
                for _ in range(steps):
                    await checkpoint()
                group.cancel_scope.cancel()
        assert await subject.remaining(*takes) == [999 - len(found)] * 2, "only what was answered is taken"

    # A step takes of all its limits or of none

    async def test_a_step_that_one_limit_refuses_takes_of_none(self, subject: Subject) -> None:
        others = [requests("account", 2), tokens("account", 10, 10), slots("account", 1)]
        for full in (requests("key", 1), tokens("key", 5, 5), slots("key", 1)):
            await subject.taken(full)
            assert (await subject.denied(*others, full)).by == 3
            assert (await subject.denied(full, *others)).by == 0
        assert await subject.remaining(*others) == [1, 0, 0]

    async def test_a_step_takes_of_each_limit(self, subject: Subject) -> None:
        takes = [Take(name, resource, 9, 2) for name in ("a", "b") for resource in ("requests", "tokens", "slots")]
        step = await subject.taken(*takes)
        assert step.states == 2 * (
            WindowState("requests", 9, 7, 60.0),
            WindowState("tokens", 9, 7, 60.0),
            WindowState("slots", 9, 7, 0.0),
        )
        await subject.end(step, 5)
        assert await subject.remaining(*takes) == [5, 2, 7] * 2

    async def test_of_several_limits_that_refuse_the_longest_wait_is_named(self, subject: Subject) -> None:
        await subject.taken(requests("a", 1))
        await subject.advance(30.0)
        await subject.taken(requests("b", 1), slots("c", 1))
        await subject.advance(5.0)
        refused = await subject.denied(requests("a", 1), requests("b", 1), slots("c", 1), requests("d", 1))
        assert (refused.by, refused.retry_after_s) == (1, 55.0)
        assert [state.remaining for state in refused.states] == [0, 0, 0, 1]

    async def test_a_limit_that_is_named_twice_holds_all_the_same(self, subject: Subject) -> None:
        assert (await subject.denied(requests("a", 1), requests("a", 1))).retry_after_s > 0
        await subject.taken(requests("a", 2), requests("a", 2))
        await subject.denied(requests("a", 2))

    async def test_each_step_has_an_id_of_its_own_and_may_take_nothing(self, subject: Subject) -> None:
        await subject.end(await subject.taken())
        ids = [(await subject.taken(requests("a", 100))).id for _ in range(50)]
        assert len(set(ids)) == 50

    # All who listen hear all news, once and in order

    async def test_the_first_question_is_answered_at_once_with_where_to_listen(self, subject: Subject) -> None:
        await subject.announce(FIRST)
        asked = subject.clock.monotonic()
        heard = await subject.coordination.hear(None)
        assert (heard.notices, subject.clock.monotonic()) == ((), asked)
        await subject.announce(SECOND)
        assert await subject.heard(heard.last) == (SECOND,)

    async def test_news_are_heard_in_order_and_once(self, subject: Subject) -> None:
        start = await subject.last()
        for notice in (FIRST, FIRST, SECOND):
            await subject.announce(notice)
        heard = await subject.coordination.hear(start)
        assert heard.notices == (FIRST, FIRST, SECOND)
        await subject.announce(SECOND)
        assert await subject.heard(heard.last) == (SECOND,)

    async def test_all_who_wait_are_woken(self, subject: Subject) -> None:
        start, heard = await subject.last(), list[Heard]()

        async def listen() -> None:
            heard.append(await subject.coordination.hear(start))

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(listen)
            await subject.clock.sleep(1.0)
            said_at = subject.clock.monotonic()
            await subject.announce(FIRST)
        assert [each.notices for each in heard] == [(FIRST,)] * 3
        assert subject.clock.monotonic() - said_at < 1.0

    async def test_a_wait_in_vain_ends_and_one_that_is_cancelled_misses_nothing(self, subject: Subject) -> None:
        start, asked = await subject.last(), subject.clock.monotonic()
        heard = await subject.coordination.hear(start)
        waited_s = subject.clock.monotonic() - asked
        assert heard.notices == ()
        assert 0 < waited_s < 30.0
        with subject.clock.deadline(subject.clock.monotonic() + waited_s / 2) as deadline:
            await subject.heard(start)
        assert deadline.expired
        await subject.announce(FIRST)
        assert [await subject.heard(after) for after in (start, heard.last)] == [(FIRST,)] * 2

    # All of it at once

    async def test_threads_with_loops_of_their_own_get_no_more_than_there_is(
        self, subject: Subject, anyio_backend_name: str
    ) -> None:
        guard, admitted, held, most_held = Guard(), 0, 0, 0

        def count(new: int, change: int) -> None:
            nonlocal admitted, held, most_held
            with guard.lock:
                admitted, held = admitted + new, held + change
                most_held = max(most_held, held)

        async def take_part(number: int, meet: Meet) -> None:
            takes = [requests("all", LIMIT), tokens(f"key:{number}", 10**6, 7), slots("all", MOST)]
            for _ in range(ROUNDS):
                meet()
                result = await subject.coordination.take(takes, f"owner:{number}")
                if isinstance(result, Taken):
                    count(1, 1)
                    await checkpoint()
                    count(0, -1)
                    await subject.end(result, 3)

        together = partial(run_in_threads, many=THREADS, backend=anyio_backend_name, patience_s=PATIENCE_S)
        await anyio.to_thread.run_sync(together, take_part)
        assert 0 < most_held <= MOST
        assert admitted <= LIMIT
        for left in reversed(range(LIMIT - admitted)):
            assert await subject.remaining(requests("all", LIMIT)) == [left]
        await subject.denied(requests("all", LIMIT))
        assert await subject.remaining(slots("all", MOST)) == [MOST - 1]

    @pytest.mark.parametrize("seed", range(5))
    async def test_a_random_walk_goes_as_the_model_says(self, subject: Subject, seed: int) -> None:
        await Walk(subject.coordination, subject.clock, Random(seed), self.lease_s).go(300)
