"""Threads of one kind of work: no more than so many are busy, whoever leaves."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import anyio
import anyio.to_thread
import pytest

from routewright._runtime.loop import Abandoned, Reply, Threads, at_once, check_wanted, give

pytestmark = pytest.mark.anyio


class Work:
    """Waits for a word."""

    def __init__(self) -> None:
        self.begun, self.go_on, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.abandoned = False

    def __call__(self) -> str:
        self.begun.set()
        assert self.go_on.wait(20)
        try:
            check_wanted()
        except Abandoned:
            self.abandoned = True
            raise
        finally:
            self.ended.set()
        return "done"


@pytest.fixture
def works() -> Iterator[tuple[Work, Work]]:
    made = Work(), Work()
    yield made
    for work in made:
        work.go_on.set()


async def until(event: threading.Event) -> None:
    assert await anyio.to_thread.run_sync(event.wait, 20)


async def test_work_keeps_its_thread_after_its_caller_was_cancelled(works: tuple[Work, Work]) -> None:
    threads, (first, second) = Threads("tests", 1), works
    second.go_on.set()
    async with anyio.create_task_group() as group:
        async with anyio.create_task_group() as caller:
            caller.start_soon(threads.run, first)
            await until(first.begun)
            caller.cancel_scope.cancel()
        group.start_soon(threads.run, second)
        await anyio.wait_all_tasks_blocked()
        assert not second.begun.is_set()
        first.go_on.set()
        await until(second.ended)
    assert first.abandoned
    assert not second.abandoned


async def test_a_cancelled_waiter_gets_no_thread(works: tuple[Work, Work]) -> None:
    threads, (first, second) = Threads("tests", 1), works
    async with anyio.create_task_group() as group:
        group.start_soon(threads.run, first)
        await until(first.begun)
        async with anyio.create_task_group() as caller:
            caller.start_soon(threads.run, second)
            await anyio.wait_all_tasks_blocked()
            caller.cancel_scope.cancel()
        first.go_on.set()
    assert await threads.run(str, 1) == "1"
    assert not second.begun.is_set()


async def test_a_cancelled_caller_takes_no_thread() -> None:
    threads = Threads("tests", 1)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await threads.run(str, 1)
    assert await threads.run(str, 2) == "2"


async def test_errors_of_work_are_raised_and_free_the_thread() -> None:
    threads = Threads("tests", 1)
    for _ in range(2):
        with pytest.raises(ValueError, match="invalid literal"):
            await threads.run(int, "x")


@pytest.mark.parametrize("awaited", [True, False])
def test_a_reply_outside_of_a_loop_is_not_there_until_it_is_given(awaited: bool) -> None:
    reply = Reply[str](awaited=awaited)
    with pytest.raises(RuntimeError, match="event loop"):
        reply.wait().send(None)
    reply.result = "done"
    assert give([reply]) == []
    assert at_once(reply.wait()) == "done"
