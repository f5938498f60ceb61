"""Both clocks: real time with one timer per loop, virtual time with none."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import math
import subprocess
import sys
import threading
import time
import weakref
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routewright.backends.clock import SystemClock
from routewright.protocols import Clock
from routewright.testing.clock import START, FakeClock

Backend = tuple[str, dict[str, Any]]
BACKENDS: list[Backend] = [("asyncio", {"use_uvloop": False}), ("trio", {})]
if importlib.util.find_spec("uvloop") is not None:
    BACKENDS.append(("asyncio", {"use_uvloop": True}))


def _name(backend: Backend) -> str:
    return "uvloop" if backend[1].get("use_uvloop") else backend[0]


@pytest.fixture(params=BACKENDS, ids=_name)
def anyio_backend(request: pytest.FixtureRequest) -> Backend:
    backend: Backend = request.param
    return backend


@pytest.fixture(params=[SystemClock, FakeClock])
def clock(request: pytest.FixtureRequest) -> Clock:
    made: Clock = request.param()
    return made


@pytest.fixture
def fake() -> FakeClock:
    return FakeClock()


@pytest.fixture
def manual() -> FakeClock:
    return FakeClock(autojump=False)


class TestBoth:
    """What the protocol promises."""

    pytestmark = pytest.mark.anyio

    async def test_sleep_lasts_at_least_as_long_as_asked(self, clock: Clock) -> None:
        before = clock.monotonic()
        await clock.sleep(0.002)
        assert clock.monotonic() - before >= 0.002

    @pytest.mark.parametrize("seconds", [0, -1, -math.inf])
    async def test_sleep_zero_lets_other_tasks_run(self, clock: Clock, seconds: float) -> None:
        ran: list[str] = []

        async def other() -> None:
            ran.append("other")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(other)
            await clock.sleep(seconds)
            await clock.sleep(seconds)  # trio may run the sleeper first once, not twice
            assert ran == ["other"]

    async def test_a_passed_deadline_expires(self, clock: Clock) -> None:
        at = clock.monotonic() + 0.01
        with clock.deadline(at) as deadline:
            await anyio.sleep_forever()
        assert deadline.expired
        assert clock.monotonic() >= at

    @pytest.mark.parametrize("ago", [0.0, math.inf])
    @pytest.mark.parametrize("scoped", [False, True])
    async def test_past_deadline_cancels_at_the_first_wait_inside(self, clock: Clock, ago: float, scoped: bool) -> None:
        reached: list[str] = []
        with clock.deadline(clock.monotonic() - ago, scoped=scoped) as deadline:
            reached.append("inside")
            await anyio.lowlevel.checkpoint()
            reached.append("behind the wait")
        assert reached == ["inside"]
        assert deadline.expired

    async def test_past_deadline_does_not_expire_without_a_wait(self, clock: Clock) -> None:
        with clock.deadline(clock.monotonic() - 1) as deadline:
            pass
        assert not deadline.expired
        await anyio.lowlevel.checkpoint()

    @pytest.mark.parametrize("seconds", [math.inf, 1e12, 1e300])
    async def test_an_infinite_deadline_never_fires(self, clock: Clock, seconds: float) -> None:
        with clock.deadline(clock.monotonic() + seconds) as deadline:
            await clock.sleep(0.001)
        assert not deadline.expired

    async def test_outer_cancellation_wins_over_a_passed_deadline(self, clock: Clock) -> None:
        with anyio.CancelScope() as outer:
            with clock.deadline(clock.monotonic() - 1) as deadline:
                outer.cancel()
                await anyio.sleep_forever()
            pytest.fail("the cancellation was swallowed")
        assert not deadline.expired

    async def test_nested_deadlines_due_together_expire_the_outer(self, clock: Clock) -> None:
        at = clock.monotonic() + 0.005
        with clock.deadline(at) as outer:
            with clock.deadline(at) as inner:
                await anyio.sleep_forever()
            pytest.fail("the cancellation was swallowed")
        assert outer.expired
        assert not inner.expired

    async def test_an_error_raised_instead_of_the_cancellation_is_not_an_expiry(self, clock: Clock) -> None:
        async def fail_when_cancelled() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                raise ValueError("mine")

        deadline = clock.deadline(clock.monotonic() - 1)
        with pytest.raises(ValueError, match="mine"), deadline:
            await fail_when_cancelled()
        assert not deadline.expired

    async def test_a_shielded_deadline_still_expires(self, clock: Clock) -> None:
        with anyio.CancelScope() as outer:
            outer.cancel()
            with clock.deadline(clock.monotonic() + 0.005, shield=True) as deadline:
                await anyio.sleep_forever()
            assert deadline.expired
            await anyio.lowlevel.checkpoint()
        assert outer.cancelled_caught

    async def test_a_shield_delays_outer_cancellation_until_exit(self, clock: Clock) -> None:
        done: list[str] = []
        with anyio.CancelScope() as outer:
            outer.cancel()
            with clock.deadline(clock.monotonic() + 60, shield=True) as deadline:
                await clock.sleep(0.001)
                done.append("clean-up")
            await anyio.lowlevel.checkpoint()
            done.append("behind")
        assert (done, deadline.expired) == (["clean-up"], False)

    async def test_a_shield_delays_an_outer_deadline_until_exit(self, clock: Clock) -> None:
        done: list[str] = []
        with clock.deadline(clock.monotonic() + 0.002) as outer:
            with clock.deadline(clock.monotonic() + 60, shield=True) as inner:
                await clock.sleep(0.01)
                done.append("clean-up")
            await anyio.lowlevel.checkpoint()
            done.append("behind")
        assert done == ["clean-up"]
        assert (outer.expired, inner.expired) == (True, False)

    async def test_a_scope_inside_a_scoped_deadline_may_shield_itself(self, clock: Clock) -> None:
        done: list[str] = []
        with clock.deadline(clock.monotonic() + 0.002, scoped=True) as deadline:
            with anyio.CancelScope(shield=True):
                await clock.sleep(0.01)
                done.append("clean-up")
            await anyio.sleep_forever()
        assert done == ["clean-up"]
        assert deadline.expired


class TestSystemClock:
    def test_time_is_unix_time(self) -> None:
        assert abs(SystemClock().time() - time.time()) < 1.0
        assert abs(SystemClock().monotonic() - time.monotonic()) < 1.0

    def test_one_clock_serves_loops_in_turn_and_threads_at_once(self) -> None:
        clock = SystemClock()
        expired: list[bool] = []

        async def expire() -> None:
            with clock.deadline(clock.monotonic() + 0.002) as deadline:
                await anyio.sleep_forever()
            expired.append(deadline.expired)

        def loops_in_turn() -> None:
            for backend, options in BACKENDS:
                anyio.run(expire, backend=backend, backend_options=options)

        threads = [threading.Thread(target=loops_in_turn) for _ in range(4)]
        for thread in threads:
            thread.start()
        loops_in_turn()
        for thread in threads:
            thread.join()
        assert expired == [True] * 5 * len(BACKENDS)

    def test_a_clock_does_not_keep_the_loop(self) -> None:
        clock = SystemClock()

        async def use() -> weakref.ref[asyncio.AbstractEventLoop]:
            with clock.deadline(clock.monotonic() + 0.001):
                await anyio.sleep_forever()
            with clock.deadline(clock.monotonic() + 60):
                return weakref.ref(asyncio.get_running_loop())

        loop = asyncio.run(use())
        gc.collect()
        assert loop() is None


class TestFakeClock:
    pytestmark = pytest.mark.anyio

    async def test_five_virtual_hours_take_no_real_time(self, fake: FakeClock) -> None:
        began = time.perf_counter()
        for delay in (60, 300, 900, 3600, 13140):
            await fake.sleep(delay)
        assert fake.monotonic() == 5 * 3600
        assert fake.time() == START + 5 * 3600
        assert time.perf_counter() - began < 0.5

    async def test_time_stands_still_while_a_task_keeps_yielding(self, fake: FakeClock) -> None:
        seen: set[float] = set()

        async def keep_yielding() -> None:
            for _ in range(500):
                await anyio.lowlevel.checkpoint()
                seen.add(fake.monotonic())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fake.sleep, 5.0)
            tasks.start_soon(keep_yielding)
        assert seen == {0.0}
        assert fake.monotonic() == 5.0

    async def test_equal_times_end_in_the_order_they_began(self, fake: FakeClock) -> None:
        order: list[int] = []

        async def one(n: int) -> None:
            await fake.sleep(10.0 - fake.monotonic())
            order.append(n)
            await anyio.lowlevel.checkpoint()
            order.append(n)

        async def begin_late(n: int) -> None:
            await fake.sleep(n / 100)
            await one(n)

        async with anyio.create_task_group() as tasks:
            for n in range(50):
                tasks.start_soon(begin_late, n)
        assert order == [n for n in range(50) for _ in range(2)]

    async def test_cleanup_at_the_end_of_a_loop_can_still_wait(self, fake: FakeClock, anyio_backend: Backend) -> None:
        done: list[str] = []

        async def clean_up_when_cancelled() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                with fake.deadline(fake.monotonic() + 2, shield=True):
                    await fake.sleep(1)
                    done.append("clean")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(clean_up_when_cancelled)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        assert done == ["clean"]

    async def test_manual_time_moves_only_when_told(self, manual: FakeClock) -> None:
        woken: list[float] = []

        async def sleeper() -> None:
            await manual.sleep(5.0)
            woken.append(manual.monotonic())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sleeper)
            await manual.advance(4.0)
            assert (woken, manual.monotonic()) == ([], 4.0)
            await manual.advance(4.0)
            assert (woken, manual.monotonic()) == ([5.0], 8.0)

    async def test_advance_stops_at_each_pending_time(self, manual: FakeClock) -> None:
        times: list[float] = []

        async def tick() -> None:
            while True:
                await manual.sleep(1.0)
                times.append(manual.monotonic())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tick)
            await manual.advance(5.5)
            tasks.cancel_scope.cancel()
        assert times == [1.0, 2.0, 3.0, 4.0, 5.0]
        assert manual.monotonic() == 5.5

    async def test_jump_wakes_all_tasks_of_the_next_time(self, manual: FakeClock) -> None:
        woken: list[int] = []

        async def sleeper(n: int, seconds: float) -> None:
            await manual.sleep(seconds)
            woken.append(n)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sleeper, 1, 2.0)
            tasks.start_soon(sleeper, 2, 2.0)
            tasks.start_soon(sleeper, 3, 3.0)
            assert await manual.jump()
            assert (sorted(woken), manual.monotonic()) == ([1, 2], 2.0)
            assert await manual.jump()
            assert (len(woken), manual.monotonic()) == (3, 3.0)
        assert not await manual.jump()
        assert manual.monotonic() == 3.0

    @pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
    async def test_time_cannot_go_back_or_to_infinity(self, fake: FakeClock, seconds: float) -> None:
        with pytest.raises(ValueError, match=str(seconds)):
            await fake.advance(seconds)


@pytest.mark.parametrize("backend", BACKENDS, ids=_name)
@given(steps=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.booleans()), max_size=30))
@settings(max_examples=30, deadline=None)
def test_a_deadline_expires_exactly_if_it_is_not_after_the_wait(
    backend: Backend, steps: list[tuple[int, int, bool]]
) -> None:
    clock = FakeClock()

    async def walk() -> None:
        for limit, wait, shield in steps:
            began = clock.monotonic()
            with clock.deadline(began + limit, shield=shield) as deadline:
                await clock.sleep(wait)
            assert deadline.expired == (limit <= wait)
            assert clock.monotonic() == began + min(limit, wait)

    anyio.run(walk, backend=backend[0], backend_options=backend[1])


def test_consecutive_loops_share_the_time() -> None:
    clock = FakeClock(start=1000.0)
    for backend, options in BACKENDS:
        anyio.run(clock.sleep, 10, backend=backend, backend_options=options)
    assert clock.monotonic() == 10 * len(BACKENDS)
    assert clock.time() == 1000.0 + 10 * len(BACKENDS)


def test_the_fake_needs_trio_only_under_trio() -> None:
    code = (
        "import sys, anyio\n"
        "from routewright.testing.clock import FakeClock\n"
        "clock = FakeClock()\n"
        "anyio.run(clock.sleep, 60)\n"
        "assert clock.monotonic() == 60 and 'trio' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


@pytest.mark.anyio
async def test_moved_deadlines_fire_at_their_new_time() -> None:
    clock = FakeClock()
    for start, moved in ((5.0, 9.0), (9.0, 5.0), (5.0, math.inf)):
        begun = clock.monotonic()
        with clock.deadline(begun + start) as limit:
            limit.move(begun + moved)
            await clock.sleep(20.0)
        assert limit.expired == (moved < 20)
        assert clock.monotonic() - begun == min(moved, 20.0)


@pytest.mark.anyio
@pytest.mark.parametrize("scoped", [False, True])
async def test_real_deadlines_can_be_moved_both_ways(scoped: bool) -> None:
    clock = SystemClock()
    begun = clock.monotonic()
    with clock.deadline(begun + 60, scoped=scoped) as limit:
        limit.move(begun + 0.01)
        await anyio.sleep(30)
    assert limit.expired
    with clock.deadline(clock.monotonic() + 0.01, scoped=scoped) as limit:
        limit.move(begun + 60)
        await anyio.sleep(0.05)
    assert not limit.expired
    with clock.deadline(math.inf, scoped=scoped) as limit:
        limit.move(clock.monotonic() + 0.01)
        await anyio.sleep(30)
    assert limit.expired
