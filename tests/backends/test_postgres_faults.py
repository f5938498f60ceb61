"""The connection to PostgreSQL, and calls while the server is slow, hangs or is down."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from functools import partial
from typing import Any

import anyio
import psycopg
import pytest

from routewright._core.accounts.holds import Wait
from routewright.backends.clock import SystemClock
from routewright.backends.storage.postgres import PostgresStorage, writer
from routewright.backends.storage.postgres.connections import AGAIN_S, PATIENCE_S, Address
from routewright.backends.storage.postgres.request_queue import LOOK_S, Ending, PendingAsk, Queues
from routewright.errors import InternalError, RateLimited, StorageUnavailable
from routewright.testing import FakeClock
from routewright.wire import (
    SYSTEM_ACCOUNT,
    Caller,
    DeleteTraces,
    KeyByDigest,
    PutTrace,
    RateLimits,
    Replay,
    RunLimit,
    TraceById,
    TraceItems,
    UsageCounts,
)
from tests.contracts.storage.samples import PURSES, Till, make_ask, make_facts, make_row, make_trace
from tests.database_servers import HOST, PgBouncer, PostgresServer, at_port, need
from tests.fault_proxy import FaultProxy

from .postgres_stores import empty_store, new_store
from .processes import run

pytestmark = pytest.mark.anyio
LEASE_S = 1.0
RECOVERS_S = 5.0


@pytest.fixture
def url(postgres_server: PostgresServer) -> str:
    return empty_store(postgres_server)


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Iterator[FaultProxy]:
    with FaultProxy(HOST, postgres_server.port) as proxy:
        yield proxy


async def soon(ask: Callable[[], Awaitable[Any]]) -> Any:
    """What is answered once the server is back, which is soon."""
    ends = time.monotonic() + RECOVERS_S
    while True:
        try:
            return await ask()
        except StorageUnavailable:
            assert time.monotonic() < ends, "it has not recovered"
            await anyio.sleep(0.05)


async def pay(till: Till, call: str) -> None:
    """Make a call."""
    await till.admit(call, 1, key="k", same=call)
    await till.settle(call, make_row(call, charge=1, key_id="k"), result=call.encode())


async def test_a_call_takes_two_round_trips_and_concurrent_calls_share_them(url: str, proxy: FaultProxy) -> None:
    async with aclosing(PostgresStorage(at_port(url, proxy.port))) as storage:
        till = await Till(storage).open_full()
        await pay(till, "first")
        before = proxy.round_trips
        for number in range(10):
            await pay(till, f"one {number}")
        assert proxy.round_trips - before <= 2 * 10
        before = proxy.round_trips
        async with anyio.create_task_group() as group:
            for number in range(200):
                group.start_soon(pay, till, f"many {number}")
        assert proxy.round_trips - before < 0.2 * 200
        assert (await till.purses(run=None))["account"] == (211, 0)


async def test_a_pooler_in_transaction_mode_is_supported(postgres_server: PostgresServer, url: str) -> None:
    need("pgbouncer")
    with PgBouncer(postgres_server, default_pool_size=2) as bouncer:
        async with aclosing(PostgresStorage(at_port(url, bouncer.port))) as storage:
            till = await Till(storage).open_full()
            async with anyio.create_task_group() as group:
                for number in range(50):
                    group.start_soon(pay, till, f"call {number}")
                for number in range(20):
                    group.start_soon(storage.apply, "acme", [PutTrace(make_trace(number, account="acme"))])
            assert await till.ask("again", key="k", same="call 7") == Replay(b"call 7")
            assert len(await storage.scan("acme", TraceItems(), after=None, limit=50)) == 20
            assert (await till.purses(run=None))["key:k"] == (50, 0)


async def test_a_stopped_server_is_waited_for_no_longer_than_documented(postgres_server: PostgresServer) -> None:
    async with aclosing(PostgresStorage(new_store(postgres_server), lease_s=LEASE_S)) as storage:
        till = await Till(storage).open_full()
        await pay(till, "before")
        await till.admit("runs", 5)
        postgres_server.pause()
        try:
            began = time.monotonic()
            for asked in (till.ask("meanwhile", 10, same="i"), storage.read(SYSTEM_ACCOUNT, KeyByDigest(("d",)))):
                with pytest.raises(StorageUnavailable):
                    await asked
            assert time.monotonic() - began < 4 * PATIENCE_S
            with anyio.move_on_after(0.2) as left:  # a call's own deadline comes first
                await till.ask("hurried", 10)
            assert left.cancelled_caught
        finally:
            postgres_server.resume()
        await soon(lambda: till.admit("after", 900, same="i"))
        await till.settle("runs", make_row("runs", charge=5))
        till.release("after")
        charged = {"key:k": (1, 0), "key:k:2026-11": (1, 0), "account": (6, 0), "month:2026-11": (6, 0)}
        with anyio.fail_after(RECOVERS_S):
            while await soon(till.purses) != dict.fromkeys(PURSES, (0, 0)) | charged:  # noqa: ASYNC110  # nothing tells
                await anyio.sleep(0.05)


async def test_an_unreachable_server_fails_at_once_and_is_found_again(url: str, proxy: FaultProxy) -> None:
    async with aclosing(PostgresStorage(at_port(url, proxy.port))) as storage:
        till = await Till(storage).open_full()
        await till.admit("runs", 100)
        proxy.refuse()
        proxy.reset()
        for _ in range(3):
            began = time.monotonic()
            for asked in (till.ask("c", 1), storage.read("acme", TraceById("tr_1")), till.settle("other")):
                with pytest.raises(StorageUnavailable):
                    await asked
            assert time.monotonic() - began < PATIENCE_S
        proxy.restore()
        await soon(lambda: till.settle("runs", make_row("runs", charge=70)))
        assert (await till.purses())["account"] == (70, 0)
        assert (await till.admit("c", 930)).nanos == 930


async def test_calls_right_after_a_restart_are_answered_at_once() -> None:
    with PostgresServer(durable=False) as server:
        async with aclosing(PostgresStorage(new_store(server))) as storage:
            till = await Till(storage).open_full()
            async with anyio.create_task_group() as group:
                for number in range(8):  # so that several connections are idle then
                    group.start_soon(storage.read, "acme", TraceById(f"tr_{number}"))
            await pay(till, "before")
            server.stop()
            server.start()
            for number in range(8):
                assert await storage.read("acme", TraceById(f"tr_{number}")) is None
            await storage.apply("acme", [PutTrace(make_trace(1, account="acme"))])
            await pay(till, "after")


async def test_a_tick_that_arrives_after_later_ones_is_refused(url: str, proxy: FaultProxy) -> None:
    async with aclosing(PostgresStorage(at_port(url, proxy.port))) as storage:
        till = await Till(storage).open_full()
        await pay(till, "before")
        proxy.delay_s["server"] = PATIENCE_S + 1
        with pytest.raises(StorageUnavailable, match="in time"):
            await till.ask("slow", 900)
        proxy.delay_s["server"] = 0.0
        await soon(lambda: till.admit("next", 900))
        till.release("next")
        proxy.wait_until_idle()
        await pay(till, "after")
        assert (await till.purses(run=None))["account"] == (2, 0)


async def test_a_locked_account_delays_others_no_longer_than_its_lock(url: str) -> None:
    async with aclosing(PostgresStorage(url)) as storage:
        till, other = await Till(storage).open_full(), Till(storage, account="other")
        await other.open(limits=RateLimits(requests_per_min=100))
        with Address(url).connect() as locker, locker.transaction():
            locker.execute("SELECT lock_accounts(ARRAY['acme'])")
            async with anyio.create_task_group() as group:
                group.start_soon(other.admit, "theirs")
                with pytest.raises(StorageUnavailable, match="another transaction has the lock"):
                    await till.ask("ours", 1)
        await till.admit("now", 1)


async def test_releases_during_an_outage_take_effect_when_the_storage_is_closed(url: str, proxy: FaultProxy) -> None:
    storage = PostgresStorage(at_port(url, proxy.port))
    till = await Till(storage).open_full()
    await till.admit("runs", 600)
    proxy.refuse()
    proxy.reset()
    till.release("runs")
    with pytest.raises(StorageUnavailable):
        await till.ask("meanwhile", 1)
    proxy.restore()
    await anyio.sleep(AGAIN_S)  # connections are refused at once so long
    await storage.aclose()
    with Address(url).connect() as connection:
        left = connection.execute("SELECT (SELECT count(*) FROM hold), (SELECT count(*) FROM owner)").fetchone()
    assert left == (0, 0)


async def test_a_request_that_arrives_as_the_thread_ends_is_answered(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "IDLE_S", 0.0005)
    async with aclosing(PostgresStorage(url)) as storage:
        with anyio.fail_after(60):
            for number in range(200):
                await storage.accounts.look(Caller("acme"))
                await anyio.sleep(number % 20 / 10_000)  # so that the next comes at about its end


async def test_a_grant_whose_reply_was_lost_is_released(url: str, proxy: FaultProxy) -> None:
    async with aclosing(PostgresStorage(at_port(url, proxy.port))) as storage:
        till = await Till(storage).open_full()
        proxy.drops = {"client"}
        with pytest.raises(StorageUnavailable):
            await till.ask("unheard", 1_000)
        proxy.restore()
        await soon(lambda: till.admit("next", 1_000))


async def test_the_next_sweep_frees_the_holds_of_a_dead_process(url: str) -> None:
    async with aclosing(PostgresStorage(url)) as storage, aclosing(PostgresStorage(url)) as other:
        till = await Till(storage).open_full()
        await till.admit("abandoned", 700)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DELETE FROM owner")
        lives = Till(other)
        await lives.admit("lives", 300)
        await other.sweep(0.0)
        assert (await lives.purses(run=None))["account"] == (0, 300)
        await lives.admit("next", 700)


async def test_a_closing_process_leaves_a_lease_for_what_it_could_not_release(url: str) -> None:
    clock = FakeClock()
    async with aclosing(PostgresStorage(url, clock=clock)) as other:
        storage = PostgresStorage(url, clock=clock, lease_s=LEASE_S)
        await (await Till(storage).open_full()).admit("lost", 1_000)
        storage._writer._holds.clear()
        await storage.aclose()
        await clock.advance(2 * LEASE_S)
        await Till(other).admit("next", 1_000)


async def test_a_call_that_cannot_be_widened_keeps_its_hold(url: str, proxy: FaultProxy) -> None:
    async with aclosing(PostgresStorage(at_port(url, proxy.port))) as storage:
        till = await Till(storage).open_full()
        grant = await till.admit("runs", 500)
        proxy.drops = {"client"}
        with pytest.raises(StorageUnavailable):
            await storage.accounts.widen(grant, 800)
        proxy.restore()
        await soon(lambda: till.admit("other", 100))
        assert (await till.purses(run=None))["account"] in [(0, 600), (0, 900)]
        await till.settle("runs", make_row("runs", charge=450))
        assert (await till.purses(run=None))["account"] == (450, 100)
        assert [row.overrun_nanos for row in await till.rows(request_id="runs")] == [0]


async def test_a_settlement_that_cannot_be_booked_affects_no_other_of_its_tick(url: str) -> None:
    async with aclosing(PostgresStorage(url)) as storage:
        till = await Till(storage).open_full()
        for number in range(10):
            await till.admit(f"c{number}", 1)
        failed = list[str]()

        async def settle(number: int) -> None:
            try:
                await till.settle(f"c{number}", make_row(f"c{number}", charge=2**70 if number == 3 else 1))
            except InternalError:
                failed.append(f"c{number}")

        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(settle, number)
        assert failed == ["c3"]
        assert (await till.purses())["account"] == (9, 1)


WAITING = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


async def until_waiting(connection: psycopg.Connection[Any], many: int) -> None:
    """Wait until so many transactions wait for a lock."""
    with anyio.fail_after(30):
        while connection.execute(WAITING).fetchone() != (many,):  # noqa: ASYNC110  # nothing tells
            await anyio.sleep(0.01)


async def test_deletions_block_no_call_and_concurrent_ones_subtract_each_trace_once(url: str) -> None:
    async with aclosing(PostgresStorage(url)) as storage:
        till = await Till(storage).open_full()
        usage = UsageCounts(first="2026-11-01", last="2026-11-30", environment=None, group_by="model")
        nothing = await storage.read("acme", usage)
        traces = [make_trace(number, account="acme", metadata={"n": number}) for number in range(30)]
        await storage.apply("acme", [PutTrace(trace) for trace in traces])
        assert await storage.read("acme", usage) != nothing
        deleted: list[int] = []

        async def delete(**which: Any) -> None:
            (written,) = await storage.apply("acme", [DeleteTraces(**which)])
            deleted.append(written.count)

        async with anyio.create_task_group() as group:
            with psycopg.connect(url) as holder, psycopg.connect(url, autocommit=True) as watcher:
                held = "SELECT FROM trace WHERE id = %s FOR UPDATE"
                holder.execute(held, (traces[15].id,))
                group.start_soon(partial(delete, limit=20))
                await until_waiting(watcher, 1)
                await pay(till, "meanwhile")
                group.start_soon(partial(delete, limit=25))
                await until_waiting(watcher, 2)
        assert sorted(deleted) in ([10, 20], [5, 25])
        await delete()
        assert sum(deleted) == 30
        assert await storage.read("acme", usage) == nothing
        assert (await till.purses(run=None))["account"] == (1, 0)


async def test_a_promoted_replica_has_every_answered_call() -> None:
    with PostgresServer(durable=False, synchronous_commit="remote_apply") as primary:
        url = new_store(primary)
        with primary.replica() as replica:
            primary.sql("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
            both = url.replace(f"{HOST}:{primary.port}", f"{HOST}:{primary.port},{HOST}:{replica.port}")
            async with aclosing(PostgresStorage(f"{both}?target_session_attrs=read-write")) as storage:
                till = await Till(storage).open_full()
                for number in range(20):
                    await pay(till, f"call {number}")
                await till.admit("runs", 100)
                primary.kill()
                replica.promote()
                await soon(lambda: till.settle("runs", make_row("runs", charge=80)))
                for number in range(20):
                    assert await till.ask("again", key="k", same=f"call {number}") == Replay(f"call {number}".encode())
                assert (await till.purses())["account"] == (100, 0)


async def test_the_servers_clock_counts_if_a_machines_is_an_hour_off(url: str) -> None:
    class Off(SystemClock):
        @staticmethod
        def time() -> float:
            return time.time() + 3_600.0

    async with aclosing(PostgresStorage(url)) as right, aclosing(PostgresStorage(url, clock=Off())) as wrong:
        till, other = await Till(right).open(limits=RateLimits(requests_per_min=3)), Till(wrong)
        await till.admit("a", same="i")
        await other.admit("b")
        await till.settle("a", result=b"answer")
        assert await other.ask("again", same="i") == Replay(b"answer")
        assert (await other.admit("c")).windows[0].remaining == 0
        for each in (till, other):
            with pytest.raises(RateLimited) as refused:
                await each.ask("d")
            assert 55 < (refused.value.detail or {})["retry_after_seconds"] <= 60


def test_a_forked_child_inherits_no_holds_and_does_not_touch_the_parents_connection(url: str) -> None:
    script = """
        from routewright.backends.storage.postgres import PostgresStorage
        from tests.contracts.storage.samples import Till, make_row

        storage = PostgresStorage(sys.argv[1])
        till = Till(storage)

        async def begin():
            await till.open_full()
            await till.admit("parents", 600)

        async def child():
            assert (await till.short("childs", 500)).waits
            await till.admit("childs", 300)
            await till.settle("childs", make_row("childs", charge=200))
            await storage.aclose()

        async def end():
            await till.settle("parents", make_row("parents", charge=500))
            assert (await till.purses())["account"] == (700, 0)
            await storage.aclose()

        anyio.run(begin)
        forked = os.fork()
        if not forked:
            anyio.run(child)
            os._exit(0)
        assert os.waitpid(forked, 0)[1] == 0
        anyio.run(end)
    """
    run(script, url)


async def test_holds_of_a_dead_process_are_freed_in_batches_without_delaying_other_accounts(
    postgres_server: PostgresServer,
) -> None:
    url = new_store(postgres_server)  # nobody is heard but these two
    dead = PostgresStorage(url, lease_s=0.1)
    async with aclosing(PostgresStorage(url, lease_s=0.1)) as storage:
        till, other = await Till(dead).open_full(), Till(storage, account="other")
        await other.open(limits=RateLimits(requests_per_min=100_000))
        await other.admit("keeps it heard")
        for number in range(250):
            await till.admit(f"c{number}", 1)
        dead._writer._holds.clear()  # it says nothing any more
        await anyio.sleep(0.2)
        with Address(url).connect() as locker, locker.transaction():
            locker.execute("SELECT lock_accounts(ARRAY['acme'])")
            await other.admit("at once")
        with anyio.fail_after(30):
            while (await Till(storage).purses(run=None))["account"] != (0, 0):
                await other.admit("soon")
                other.release("soon")
                await anyio.sleep(0.05)
        for call in ("keeps it heard", "at once"):
            other.release(call)
    await dead.aclose()


async def test_cached_limits_may_be_evicted_while_calls_are_granted(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "MAX_BALANCES", 1)
    async with aclosing(PostgresStorage(url)) as storage:
        till = await Till(storage).open_full()
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                for number in range(20):
                    group.start_soon(partial(till.admit, f"c{number}", 1, run=RunLimit(f"r{number}", 10)))


async def test_an_account_that_stays_locked_delays_others_only_once(url: str) -> None:
    async with aclosing(PostgresStorage(url)) as storage:
        till, other = await Till(storage).open_full(), Till(storage, account="other")

        async def refused(call: str) -> None:
            with pytest.raises(StorageUnavailable):
                await till.admit(call, 1)

        with Address(url).connect() as locker, locker.transaction():
            locker.execute("SELECT lock_accounts(ARRAY['acme'])")
            await refused("first")
            with anyio.fail_after(1.5):  # less than one waits for a lock
                for number in range(4):
                    async with anyio.create_task_group() as group:
                        group.start_soon(refused, f"c{number}")
                        group.start_soon(other.admit, f"c{number}")
        await soon(lambda: till.admit("again", 1))
        till.release("again")
        for number in range(4):
            other.release(f"c{number}")


async def test_calls_booked_one_by_one_wait_for_an_unreachable_server_only_once(url: str) -> None:
    async with aclosing(PostgresStorage(url)) as storage:
        asked, all_came = list[str](), threading.Event()

        def settle(ending: Ending) -> Any:
            all_came.wait(30)
            asked.append(ending.call)
            raise StorageUnavailable("the server did not answer in time")

        storage._server.settle = settle  # type: ignore[method-assign]  # who is not there does not answer
        failed = list[str]()

        async def fail(call: str) -> None:
            facts = make_facts(call, make_row(call, charge=1))  # without a grant
            with pytest.raises(StorageUnavailable):
                await storage.accounts.settle(None, facts)
            failed.append(call)

        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(fail, f"c{number}")
            await anyio.wait_all_tasks_blocked()
            all_came.set()
        assert len(failed) == 20
        assert len(asked) <= 2, "those that came while the first was booked are one pass"


@pytest.mark.parametrize("is_freed", [True, False])
def test_many_waiting_calls_of_one_account_do_not_delay_another(is_freed: bool) -> None:
    queues, now = Queues(), 0.0
    waiting = [PendingAsk(make_ask(f"c{n}", caller=Caller("busy"), waits_s=60.0), inline=False) for n in range(200)]
    waiting.append(PendingAsk(make_ask("other", caller=Caller("other"), waits_s=60.0), inline=False))
    for n, asking in enumerate(waiting):
        queues.wait(asking, Wait(str(n).encode(), None), now)
    tried = {each.ask.id for each in queues.take_ready(now)}
    if is_freed:
        queues.free("busy")
        queues.free("other")
    for _ in range(4):
        now += 0 if is_freed else LOOK_S
        tried |= {each.ask.id for each in queues.take_ready(now)}
    assert tried == {each.ask.id for each in waiting}
