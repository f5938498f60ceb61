"""The Router's lifecycle: several loops, threads, forks, notebooks, closed twice or never. Nothing leaks."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import anyio
import anyio.lowlevel
import pytest
import trio

from routewright import CallableProvider, MemoryStorage, Model, Router
from routewright.testing import ScriptedProvider
from routewright.wire import UpstreamCall

from .scripted_router import traces_in


async def ask(router: Router) -> str:
    return (await router.route("hi")).output


def test_one_router_serves_loop_after_loop_of_both_kinds() -> None:
    router = Router.sandbox({"hi": "hello"})
    assert [asyncio.run(ask(router)) for _ in range(3)] == ["hello"] * 3
    assert [trio.run(ask, router) for _ in range(3)] == ["hello"] * 3


def test_one_router_serves_loops_in_threads_at_the_same_time() -> None:
    router = Router.sandbox({"hi": "hello"})
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda n: anyio.run(ask, router, backend="trio" if n % 2 else "asyncio"), range(32))
        assert list(answers) == ["hello"] * 32


def test_the_blocking_door_works_in_plain_code_threads_and_running_loops() -> None:
    router = Router.sandbox({"hi": "hello"})
    assert router.blocking.route("hi").output == "hello"

    async def inside() -> str:
        assert (await router.route("hi")).output == "hello"  # a cell of a notebook with await, and one without
        return router.blocking.route("hi").output

    assert asyncio.run(inside()) == "hello"
    assert trio.run(inside) == "hello"
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: router.blocking.route("hi").output, range(32))) == ["hello"] * 32
    with router.blocking.stream("hi") as stream:
        assert "".join(stream.text()) == "hello"
    assert stream.result.output == "hello"
    trace = router.blocking.trace(stream.result.trace_id)
    assert trace.status == "completed"
    router.blocking.feedback(trace.id, 1.0)
    router.blocking.close()
    router.blocking.close()


def test_breaking_out_of_a_loop_over_text_ends_the_call() -> None:
    left = threading.Event()

    async def speak(call: UpstreamCall) -> AsyncIterator[str]:
        try:
            for word in ("one ", "two ", "three "):
                yield word
                await anyio.lowlevel.checkpoint()
        finally:
            left.set()

    storage = MemoryStorage()
    router = Router(providers=[CallableProvider(speak, models=[Model(id="a/one")])], storage=storage)
    for text in (stream := router.blocking.stream("hi")).text():
        assert text == "one "
        break
    assert left.is_set()
    assert [trace.status for trace in asyncio.run(traces_in(storage))] == ["cancelled"]
    stream.close()

    stream = router.blocking.stream("hi")
    assert [event.event for event in islice(stream, 1)] == ["route.started"]
    assert "".join(stream.text()) == "one two three "  # events may be left and gone on with
    assert stream.result.output == "one two three "

    for _ in router.blocking.stream("hi").text():
        router.blocking.close()
        break


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_closing_inside_a_loop_leaves_a_provider_that_blocks(backend: str) -> None:
    go_on = threading.Event()

    class Stuck(ScriptedProvider):
        async def aclose(self) -> None:
            go_on.wait(30)

    router = Router(providers=[Stuck(["hello"], models=[Model(id="a/one")])])

    async def inside() -> float:
        assert router.blocking.route("hi").output == "hello"
        began = time.monotonic()
        router.blocking.close()
        return time.monotonic() - began

    try:
        assert anyio.run(inside, backend=backend) < 10
        (aside,) = [thread for thread in threading.enumerate() if thread.name == "routewright-aside"]
        assert aside.daemon
    finally:
        go_on.set()


PATIENCE = """
import asyncio
# debugging would tell of a busy machine
asyncio.BaseEventLoop.slow_callback_duration = property(lambda loop: 60.0, lambda loop, seconds: None)
"""


def run_script(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", PATIENCE + code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


def test_routers_that_are_never_closed_or_at_the_exit_leak_nothing() -> None:
    code = """
import atexit
from routewright import CallableProvider, Model, Router
import anyio
class Mine(CallableProvider):
    async def aclose(self):
        print("closed")
mine = Router(providers=[Mine(lambda call: "mine", models=[Model(id="a/one")])])
atexit.register(mine.blocking.close)
print(mine.blocking.route("hi").output)
router = Router.sandbox({"hi": "hello"})
async def main():
    await router.route("hi")
anyio.run(main)
print(router.blocking.route("hi").output)
"""
    assert run_script(code).split() == ["mine", "hello", "closed"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_after_a_fork_parent_and_child_have_their_own_ids() -> None:
    code = """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)
from routewright import Router
router = Router.sandbox({"hi": "hello"})
first = router.blocking.route("hi")
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    answers = [router.blocking.route("hi") for _ in range(20)]
    os.write(writing, "\\n".join(answer.trace_id for answer in answers).encode())
    os._exit(0 if all(answer.output == "hello" for answer in answers) else 1)
mine = [router.blocking.route("hi").trace_id for _ in range(20)]
assert os.waitpid(child, 0)[1] == 0
theirs = os.read(reading, 10_000).decode().split()
assert len({*mine, *theirs, first.trace_id}) == 41
print("ok")
"""
    assert run_script(code) == "ok"


def test_a_dropped_router_is_collected_with_its_thread() -> None:
    code = """
import anyio, gc, threading, time, weakref
from routewright import Caller, MemoryStorage, RateLimits, Router
from routewright.wire import Account
from routewright.wire import PutAccount
storage = MemoryStorage()
terms = Account(name="acme", created_at="2026-11-01T00:00:00.000Z", limits=RateLimits(concurrency=1))
anyio.run(storage.apply, "acme", [PutAccount(terms)])
for options in ({}, {"caller": Caller("acme"), "idempotency_key": "k"}):
    router = Router.sandbox({"hi": "hello"}, storage=storage)
    router.blocking.route("hi", **options)
    assert threading.active_count() == 2
    gone = weakref.ref(router)
    del router
    deadline = time.monotonic() + 5
    while threading.active_count() > 1 and time.monotonic() < deadline:
        gc.collect()
    print(gone() is None, threading.active_count())
"""
    assert run_script(code) == "True 1\nTrue 1"
