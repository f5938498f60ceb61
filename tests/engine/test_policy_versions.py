"""Equal policies have equal versions, in all processes of a store and for its whole lifetime."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from routewright import Event, MemoryStorage, Policy, Router, Settings, SqliteStorage
from routewright.errors import StorageUnavailable, UnsupportedWrite
from routewright.protocols import Storage
from routewright.testing import FakeClock
from routewright.wire import PolicyVersions, Query, Write, Written
from tests.backends.processes import running

pytestmark = pytest.mark.anyio
START = 1_795_255_200.0
"""2026-11-21T10:00:00Z."""
FAST, GOOD = Policy(name="desk", strategy="latency-optimized"), Policy(name="desk", strategy="quality-first")


def desk(storage: Storage, clock: FakeClock, *policies: Policy) -> Router:
    return Router.sandbox(policies=policies, storage=storage, settings=Settings(clock=clock))


def version(router: Router) -> str:
    return router._parts.engine.policy_table.policies[0].version


async def test_a_version_survives_a_restart_and_another_day(tmp_path: Path) -> None:
    clock, seen = FakeClock(START), []
    for policy in (FAST, GOOD, FAST):
        async with desk(SqliteStorage(tmp_path / "store.db", clock=clock), clock, policy) as router:
            seen.append((version(router), router.policies()[0].created_at))
        await clock.advance(86_400)
    assert seen == [
        ("desk@2026-11-21", "2026-11-21T00:00:00Z"),
        ("desk@2026-11-22", "2026-11-22T00:00:00Z"),
        ("desk@2026-11-21", "2026-11-21T00:00:00Z"),
    ]


async def test_a_policy_that_was_removed_returns_under_its_version() -> None:
    clock = FakeClock(START)
    async with desk(MemoryStorage(), clock, FAST) as router:
        told = [router.reload_policies(policies) for policies in ([], [GOOD], [], [FAST], [GOOD])]
    assert [change.to_version for changes in told for change in changes] == [
        *(None, "desk@2026-11-21.2", None, "desk@2026-11-21", "desk@2026-11-21.2")
    ]


async def test_two_routers_of_a_store_that_change_a_policy_at_once_give_each_content_its_own(tmp_path: Path) -> None:
    clock = FakeClock(START)
    one, other = (desk(SqliteStorage(tmp_path / "store.db", clock=clock), clock, FAST) for _ in range(2))
    async with one, other:
        one.reload_policies([GOOD])
        other.reload_policies([Policy(name="desk", goal="stability")])
        assert [version(each) for each in (one, other)] == ["desk@2026-11-21.2", "desk@2026-11-21.3"]
        other.reload_policies([GOOD])
        assert version(other) == "desk@2026-11-21.2"
        assert one._parts.engine.policy_table.policies == other._parts.engine.policy_table.policies, (
            "by the same snapshot, too"
        )


async def test_the_trace_of_a_call_names_the_version(tmp_path: Path) -> None:
    clock = FakeClock(START)
    dated = Policy(name="desk", created_at="2026-01-02T03:04:05Z")
    async with desk(SqliteStorage(tmp_path / "store.db", clock=clock), clock, dated) as router:
        answer = await router.route("Hello", policy_id="desk")
        assert answer.trace.policy_version == "desk@2026-01-02"


class Away(MemoryStorage):
    """A storage that may be away, and that does not say that it never waits."""

    keep = None  # type: ignore[assignment]
    error: Exception | None = StorageUnavailable("the disk is full")

    async def read(self, account: str, query: Query) -> Any:
        if isinstance(query, PolicyVersions) and self.error is not None:
            raise self.error
        return await super().read(account, query)

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        if self.error is not None:
            raise self.error
        return await super().apply(account, writes)


async def test_while_the_storage_is_unavailable_a_policy_has_a_provisional_version(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, storage, heard = FakeClock(START), Away(), list[Event]()
    async with desk(storage, clock, FAST) as router:
        router.on_event(heard.append)
        assert version(router).startswith("desk@2026-11-21.x")
        assert (await router.route("Hello", policy_id="desk")).routing.policy_version == version(router)
        await clock.advance(20.0)
        assert version(router).startswith("desk@2026-11-21.x")
        storage.error = None
        await clock.advance(5.0)
        assert version(router) == "desk@2026-11-21"
        assert heard == [], "it is the policy that it was"
        storage.error = StorageUnavailable("the disk is full")
        router.reload_policies([GOOD])
        storage.error = None
        router.reload_policies([GOOD])
        await clock.advance(20.0)
        assert version(router) == "desk@2026-11-21.2", "nobody asks again for what is known"
    assert len([record for record in caplog.records if "policies have provisional versions" in record.message]) == 2


async def test_without_versions_in_the_storage_the_router_makes_its_own() -> None:
    clock, storage = FakeClock(START), Away()
    storage.error = UnsupportedWrite("no versions here")
    router = desk(storage, clock, FAST)
    seen = [version(router)]
    for policies in ([GOOD], [FAST]):
        router.reload_policies(policies)
        seen.append(version(router))
    assert seen == ["desk@2026-11-21", "desk@2026-11-21.2", "desk@2026-11-21"]


WORKER = """
    from routewright import Policy, Router
    path, strategy = sys.argv[1:]

    async def main():
        say("ready")
        heard()
        desk = Policy(name="desk", strategy=strategy)
        async with Router.sandbox(storage=SqliteStorage(path), policies=[desk]) as router:
            say((await router.route("Hello", policy_id="desk")).routing.policy_version)

    anyio.run(main)
"""


def test_workers_that_start_at_once_agree_on_versions(tmp_path: Path) -> None:
    strategies = ["balanced", "balanced", "quality-first"]
    with ExitStack() as stack:
        workers = [stack.enter_context(running(WORKER, tmp_path / "store.db", each)) for each in strategies]
        assert [each.heard() for each in workers] == ["ready"] * 3
        for each in workers:
            each.tell()
        first, same, other = (each.heard() for each in workers)
        assert first == same != other
        workers[0].kill()
        again = stack.enter_context(running(WORKER, tmp_path / "store.db", "balanced"))
        again.tell()
        assert [again.heard(), again.heard()] == ["ready", first]


async def test_a_storage_that_blocks_holds_a_policy_for_two_seconds_at_most() -> None:
    go_on = threading.Event()

    class Stuck:
        async def read(self, account: str, query: Query) -> Any:
            go_on.wait(30)

        apply = scan = sweep = read

        async def aclose(self) -> None:
            pass

    router, began = Router.sandbox(policies=[FAST], storage=Stuck()), time.monotonic()  # type: ignore[arg-type]
    try:
        assert version(router).startswith("desk@")
        assert time.monotonic() - began < 10
    finally:
        go_on.set()
    await router.aclose()
