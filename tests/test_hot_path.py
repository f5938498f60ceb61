"""How many Python functions, in how many of our files, does a warm call enter? The limits only go down.

    python -m tests.test_hot_path            every row with its target
    python -m tests.test_hot_path plain      the functions that this row enters, in order

A frame is a function entered or resumed, whether it is ours, the standard library's or the provider's, in any thread.
Each row is counted in a process of its own, where nothing else has run.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path as FilePath
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from benchmarks.accounts import WIDE
from benchmarks.doubles import MODELS, TEXT

from routewright import (
    CallableProvider,
    Catalogue,
    Console,
    MemoryStorage,
    Router,
    SqliteStorage,
    UpstreamCall,
)
from routewright.protocols import Storage
from routewright.server import App, create_app
from routewright.wire import Caller

from .frames import Call, Entered, Profile
from .server.asgi_client import scope_of


class Path(NamedTuple):
    """What a row enters today, and the frames (and files) that it is to come down to."""

    frames: int
    files: int
    target: str = "-"
    slack: int = 2
    """Frames more or less that depend on timing: whether an alarm is moved, and how threads take turns."""


LIMITS = {
    "plain": Path(54, 19, target="55 in 18"),
    "named": Path(113, 35),
    "streamed": Path(72, 23, target="85 in 20"),
    "limited": Path(105, 30, target="105"),
    "everything in memory": Path(151, 35),
    "everything in SQLite": Path(379, 51, target="380", slack=45),
    "http": Path(85, 29),
    "http with a key": Path(133, 42, target="165"),
}
MEASURED_ON = (3, 11)
"""Python 3.12 inlines comprehensions, and each version has its own asyncio."""
WARM_UP, CALLS, CALLS_WITH_THREADS = 300, 5, 20
AT_PACE = 60
"""The last calls of the warm-up are profiled as well: the pace that models show decides when their alarms are set."""
PAUSE_S = 0.002
"""Before each of these calls: a second id in the same millisecond takes fewer frames than the first."""
USD = 1e6


async def answer(call: UpstreamCall) -> str:
    return TEXT


@asynccontextmanager
async def opened(name: str, folder: FilePath) -> AsyncIterator[tuple[Call, Call]]:
    """The call of a row, and the ``flush`` of its router."""
    storage: Storage = SqliteStorage(folder / "store.db") if name.endswith("SQLite") else MemoryStorage()
    provider = CallableProvider(answer, models=MODELS)
    console = Console(storage, secret="a secret that is long enough for one")
    router = Router(providers=[provider], catalogue=Catalogue(()), storage=storage)
    async with console, router:
        yield await call_of(name, router, console), router.flush


async def call_of(name: str, router: Router, console: Console) -> Call:
    match name:
        case "plain":
            return partial(router.route, "hi")
        case "named":
            return partial(router.route, "Prove it", models=[MODELS[0].id])
        case "streamed":
            return partial(read, router)
        case "http":
            return partial(ask, create_app(router, authenticate=lambda scope: Caller()), {})
        case "http with a key":
            return partial(ask, create_app(router, console), {"authorization": await new_key(console, budgets=False)})
    caller = await console.authenticate(await new_key(console, budgets=True))
    if name == "limited":
        return partial(router.route, "hi", caller=caller)
    return partial(pay, router, caller, count())


async def new_key(console: Console, *, budgets: bool) -> str:
    """The header of a key with windows and slots, as its account has; with ``budgets`` each has two."""
    usd = USD if budgets else None
    await console.create_account("acme", plan="enterprise", limits=WIDE, prepaid=budgets, monthly_limit_usd=usd)
    await console.credit("acme", USD)
    new = await console.create_key("acme", name="path", limits=WIDE, budget_usd=usd, monthly_limit_usd=usd)
    return f"Bearer {new.secret.reveal()}"


async def read(router: Router) -> None:
    async for _ in router.stream("hi"):
        pass


async def pay(router: Router, caller: Caller, numbers: count[int]) -> None:
    """With a fifth budget, the request's own, and an answer that is kept under its key."""
    await router.route("hi", caller=caller, idempotency_key=f"key {next(numbers)}", budget={"maxCostUsd": 1.0})


async def ask(app: App, headers: dict[str, str]) -> None:
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b'{"messages":[{"role":"user","content":"hi"}]}', "more_body": False}

    async def send(message: Any) -> None:
        statuses.append(message.get("status", 200))

    await app(scope_of(headers=headers), receive, send)
    assert set(statuses) == {200}


async def entered_by(name: str) -> list[Entered]:
    """What a warm call of the row enters: of several calls, the one with the fewest frames."""
    calls = CALLS_WITH_THREADS if name.endswith("SQLite") else CALLS
    found = []
    with TemporaryDirectory() as folder, Profile(__file__, but=answer) as profile:
        async with opened(name, FilePath(folder)) as (call, flush):
            for _ in range(WARM_UP - AT_PACE):
                await call()
            await flush()
            gc.collect()
            gc.disable()  # what it finalizes would be counted
            for _ in range(AT_PACE + calls):
                time.sleep(PAUSE_S)  # noqa: ASYNC251  # a timer of the loop would be on the path
                found.append(await profile.of(call, flush))
            gc.enable()
    return min(found[-calls:], key=len)


def count_here(name: str) -> tuple[int, int]:
    """Frames, and files of ours."""
    entered = asyncio.run(entered_by(name))
    return len(entered), len({each.code.co_filename for each in entered if each.is_ours})


def counted(names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """The same by row, each in a process of its own: a fork of one that has imported all this and done nothing."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from tests import test_hot_path; test_hot_path.print_each(sys.argv[1:])",
            *names,
        ],
        cwd=FilePath(__file__).parents[1],
        env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONASYNCIODEBUG": "", "PYTHONDEVMODE": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    return {name: (frames, files) for name, (frames, files) in zip(names, figures, strict=True)}


def print_each(names: Sequence[str]) -> None:
    for name in names:
        child = os.fork()
        if not child:
            print(*count_here(name), flush=True)
            os._exit(0)
        os.waitpid(child, 0)


def judge(name: str, limit: Path, frames: int, files: int) -> str:
    """What is wrong with the figures of a row; empty if they are within the limit, and not 3 % + 2 below it."""
    found = f"{name}: {frames} frames in {files} files"
    if frames > limit.frames + limit.slack or files > limit.files:
        return f"{found}, the limit is {limit.frames} in {limit.files}"
    if frames < limit.frames * 0.97 - 2 - limit.slack or files < limit.files * 0.97 - 2:
        return f"{found}: lower LIMITS[{name!r}] to {min(frames, limit.frames)}, {files}"
    return ""


@pytest.fixture(scope="module")
def figures() -> dict[str, tuple[int, int]]:
    return counted([*LIMITS])


@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer adds frames")
@pytest.mark.skipif(sys.version_info[:2] != MEASURED_ON, reason="the limits are those of another Python")
@pytest.mark.xdist_group("path")
@pytest.mark.parametrize("name", LIMITS)
def test_a_warm_call_enters_as_many_functions_and_files_as_its_limit_says(
    name: str, figures: dict[str, tuple[int, int]]
) -> None:
    assert not judge(name, LIMITS[name], *figures[name])


def main(names: Sequence[str]) -> None:
    for name in names:
        print(*asyncio.run(entered_by(name)), sep="\n")
    for name, (frames, files) in counted(names or [*LIMITS]).items():
        print(f"{name:22}{frames:6} frames in {files:3} files, target {LIMITS[name].target}")


if __name__ == "__main__":
    main(sys.argv[1:])
