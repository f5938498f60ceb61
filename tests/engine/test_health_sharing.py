"""Processes of a store share what attempts taught, in the same form and at the same time."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

from routewright import BudgetExceeded, Catalogue, Router, Settings, SqliteStorage
from routewright._core.attempts.statistics import EPOCH_S, Entry
from routewright._core.routing.board import Board
from routewright.errors import StorageUnavailable, UnsupportedWrite
from routewright.protocols import Storage
from routewright.testing import FakeClock, ScriptedProvider
from routewright.wire import AddLearned, Delta, Finish, LearnedSince, UpstreamCall, Usage, Write, Written
from tests.backends.processes import running

from .scripted_router import GOOD, to_close

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("closing")]
LONG = [Delta("a long answer"), Usage(40, 3_000), Finish("stop")]
KNOWN_S = 2 * EPOCH_S
"""After this long what an attempt taught is known to all."""


def tell(call: UpstreamCall) -> Any:
    return LONG


def desk(storage: Storage, clock: FakeClock) -> Router:
    provider = ScriptedProvider(tell, models=[GOOD], clock=clock)
    catalogue = Catalogue([GOOD], as_of="2026-11-20")
    return Router(providers=[provider], catalogue=catalogue, storage=storage, settings=Settings(clock=clock))


def desks(path: Path, count: int) -> tuple[list[Router], FakeClock]:
    """Routers that share a store, as processes do."""
    clock = FakeClock()
    made = [desk(SqliteStorage(path, clock=clock), clock) for _ in range(count)]
    to_close.extend(made)
    return made, clock


def board(router: Router) -> Board:
    return router._parts.fleet("production").board()


def admits(router: Router, tokens: int) -> bool:
    try:
        router.decide("Hello", budget={"maxTokens": tokens})
    except BudgetExceeded:
        return False
    return True


def edge(router: Router) -> int:
    """The least budget that admits the request."""
    return bisect_left(range(100_000), True, key=lambda tokens: admits(router, tokens))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


async def test_four_workers_decide_alike_once_one_of_them_has_learned(path: Path) -> None:
    workers, clock = desks(path, 4)
    before = edge(workers[0])
    for _ in range(30):
        await workers[0].route("Hello")
    assert [edge(each) for each in workers] == [before] * 4, "nobody is ahead of the others"
    await clock.advance(KNOWN_S)
    after = edge(workers[0])
    assert after > 2 * before
    assert {admits(workers[number % 4], after) for number in range(200)} == {True}
    assert {admits(workers[number % 4], after - 1) for number in range(200)} == {False}
    assert len({board(each).health for each in workers}) == 1


async def test_a_process_applies_its_own_observations_no_sooner_than_others(path: Path) -> None:
    """In no moment do two of them differ, whoever is asked first."""
    workers, clock = desks(path, 2)
    seen = set()
    for step in range(60):
        if step % 5 == 0:
            await workers[step % 2].route("Hello")
        await clock.advance(0.13)
        names = {board(each).health for each in (workers if step % 3 else reversed(workers))}
        assert len(names) == 1
        seen |= names
    assert len(seen) > 2, "they learned meanwhile"


async def test_a_restart_forgets_nothing(path: Path) -> None:
    clock = FakeClock()
    async with desk(SqliteStorage(path, clock=clock), clock) as router:
        for _ in range(30):
            await router.route("Hello")
    await clock.advance(KNOWN_S)
    async with desk(SqliteStorage(path, clock=clock), clock) as router:
        again = board(router).forecast
        assert again.output_p90[0] > 2 * again.pool.output_p90[0]


async def test_circuits_are_not_shared_and_leave_nothing_in_the_store(path: Path) -> None:
    workers, clock = desks(path, 2)
    one, other = workers
    fleet = one._parts.fleet("production")
    fleet.record_fault(0, credential=True)
    assert 0 in board(one).forecast.open
    assert 0 not in board(other).forecast.open
    await clock.advance(60.0)
    assert fleet.admits(0, clock.monotonic()) is None
    now = clock.monotonic()
    fleet.record_answer(Entry(0, now, 1.0, 0.5, Usage(40, 100), False, None, False), probe=True)
    await clock.advance(KNOWN_S)
    assert board(one).health == board(other).health


async def test_a_forked_child_leaves_earlier_observations_to_its_parent(path: Path) -> None:
    fleet = desk(SqliteStorage(path), FakeClock())._parts.fleet("production")
    fleet.record_fault(0)
    fleet.renew()
    assert fleet._take() == {}


class Counted(SqliteStorage):
    """A storage that counts how often it is asked, and may be away."""

    error: Exception | None = None

    def __init__(self, path: Path, clock: FakeClock) -> None:
        super().__init__(path, clock=clock)
        self.reads = self.adds = 0

    async def read(self, account: str, query: Any) -> Any:
        if isinstance(query, LearnedSince):
            self.reads += 1
            if self.error is not None:
                raise self.error
        return await super().read(account, query)

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        if isinstance(writes[0], AddLearned):
            self.adds += 1
            if self.error is not None:
                raise self.error
        return await super().apply(account, writes)


async def test_a_process_reads_the_store_once_per_epoch_and_only_if_it_decides(path: Path) -> None:
    clock = FakeClock()
    storage = Counted(path, clock)
    async with desk(storage, clock) as router:
        for _ in range(40):
            await router.route("Hello")
            await clock.advance(EPOCH_S / 10)
        busy = storage.reads, storage.adds
        assert all(3 <= count <= 6 for count in busy)
        await clock.advance(600.0)
        assert storage.adds <= busy[1] + 1, "what it learned last"
        assert storage.reads == busy[0]


async def test_while_the_storage_is_unavailable_old_health_applies_and_news_is_shared_later(path: Path) -> None:
    clock = FakeClock()
    storage = Counted(path, clock)
    other = desk(SqliteStorage(path, clock=clock), clock)
    async with desk(storage, clock) as router, other:
        await router.route("Hello")
        await clock.advance(KNOWN_S)
        before = board(router).health
        storage.error = StorageUnavailable("the disk is full")
        for _ in range(30):
            await router.route("Hello")
            await clock.advance(0.1)
        await clock.advance(KNOWN_S)
        assert board(router).health == before
        storage.error = None
        await router.route("Hello")
        await clock.advance(KNOWN_S)
        assert board(router).health == board(other).health != before
        assert board(other).forecast.output_p90[0] > 2 * board(other).forecast.pool.output_p90[0]


@pytest.fixture
def there(path: Path) -> None:
    path.touch()


class Waiting(Counted):
    """A storage in a file whose answers have to be awaited."""

    async def read(self, account: str, query: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        return await super().read(account, query)


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize("kind", [Counted, Waiting])
async def test_with_a_storage_that_cannot_share_health_a_process_learns_alone(path: Path, kind: type[Counted]) -> None:
    clock = FakeClock()
    storage = kind(path, clock)
    if kind is Counted:
        storage.error = UnsupportedWrite("what?")
    async with desk(storage, clock) as router:
        for _ in range(30):
            await router.route("Hello")
        await clock.advance(EPOCH_S)
        forecast = board(router).forecast
        assert forecast.output_p90[0] > 2 * forecast.pool.output_p90[0]
        await clock.advance(10.0)
        assert storage.adds == 0


WORKER = """
    from bisect import bisect_left
    from routewright import BudgetExceeded, CallableProvider, Catalogue, Model, Pricing, Router
    from routewright.wire import Delta, Finish, Usage
    path = sys.argv[1]
    model = Model(id="good/one", quality=0.9, pricing_per_1m=Pricing(1.0, 4.0), context_window=100_000)

    async def tell(call):
        yield Delta("a long answer")
        yield Usage(40, 3_000)
        yield Finish("stop")

    def admits(router, tokens):
        try:
            router.decide("Hello", budget={"maxTokens": tokens})
        except BudgetExceeded:
            return False
        return True

    async def main():
        provider = CallableProvider(tell, models=[model])
        storage = SqliteStorage(path)
        async with Router(providers=[provider], catalogue=Catalogue([model]), storage=storage) as router:
            say("ready")
            while order := await anyio.to_thread.run_sync(heard):
                word, _, number = order.partition(" ")
                if word == "route":
                    for _ in range(int(number)):
                        await router.route("Hello")
                    say("done")
                elif word == "edge":
                    say(bisect_left(range(100_000), True, key=lambda tokens: admits(router, tokens)))
                else:
                    say(" ".join(str(admits(router, int(number))) for _ in range(50)))

    anyio.run(main)
"""


def test_a_request_at_the_edge_of_a_budget_has_one_verdict_in_four_processes(path: Path) -> None:
    with ExitStack() as stack:
        workers = [stack.enter_context(running(WORKER, path)) for _ in range(4)]
        assert [each.heard() for each in workers] == ["ready"] * 4
        first = told(workers[:1], "edge")
        told(workers[:1], "route 40")
        while told(workers[:1], "edge") == first:
            time.sleep(0.1)  # until what was taught comes in
        edges, after, verdicts = first, [""], []
        while edges != after:  # it moves while more comes in, and as that fades
            time.sleep(0.1)
            (number,) = edges = told(workers[:1], "edge")
            verdicts = [told(workers, f"ask {tokens}") for tokens in (number, int(number) - 1)]
            after = told(workers[:1], "edge")
        assert [{*" ".join(said).split()} for said in verdicts] == [{"True"}, {"False"}]
        workers[1].kill()
        again = stack.enter_context(running(WORKER, path))
        assert again.heard() == "ready"
        assert int(told([again], "edge")[0]) > int(first[0])


def told(workers: Sequence[Any], order: str) -> list[str]:
    for each in workers:
        each.tell(order)
    return [each.heard() for each in workers]
