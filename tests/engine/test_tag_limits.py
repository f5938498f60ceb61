"""Limits of tags hold for whatever a client writes into its metadata, and for all calls of an agent run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from routewright import (
    Agent,
    CallableProvider,
    Catalogue,
    Console,
    MemoryStorage,
    Model,
    Pricing,
    Router,
    RouterError,
    Settings,
    SqliteStorage,
    ValidationFailed,
)
from routewright.errors import QuotaExhausted
from routewright.protocols import Clock, Storage
from routewright.storage import open_storage
from routewright.testing import FakeClock
from routewright.wire import Caller, Stands, TagLimit, ToolDelta, UpstreamCall, Usage
from routewright.wire.timestamps import timestamp

pytestmark = pytest.mark.anyio

MODEL = Model(
    id="mine/one",
    quality=0.9,
    pricing_per_1m=Pricing(0, 1_000),
    context_window=100_000,
    modalities=("text", "tool"),
)
ACME = Caller("acme")
NEXT_WEEK_S = 1_795_996_800.0
"""2026-11-30T00:00:00Z, a Monday."""
CALL = 100_000_000
"""Nano-dollars of a call."""
LIMITS: list[dict[str, Any]] = [{"key": "team", "daily_limit_usd": 0.1}]


async def answer(call: UpstreamCall) -> Any:
    """An agent's first call asks for the tool."""
    if call.tools and call.messages[-1].role == "user":
        return [ToolDelta(0, '{"task":"x"}', "call_1", "work"), Usage(input=0, output=100)]
    return ["hi", Usage(input=0, output=100)]


@pytest.fixture(params=["memory:", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres"))
    return f"sqlite:///{tmp_path}/store.db" if request.param == "sqlite" else "memory:"


async def router_of(storage: Storage, limits: Any = LIMITS, clock: Clock | None = None, **terms: Any) -> Router:
    async def serve(call: UpstreamCall) -> Any:
        if clock is not None and call.messages[-1].content == "slow":
            await clock.sleep(2)
        return await answer(call)

    await Console(storage, clock=clock).create_account("acme", plan="unlimited", tag_limits=limits, **terms)
    settings = None if clock is None else Settings(clock=clock)
    provider = CallableProvider(serve, models=[MODEL])
    return Router(providers=[provider], catalogue=Catalogue(()), storage=storage, settings=settings)


async def route(router: Router, team: object) -> str:
    """The answer, or the code of the error."""
    try:
        text = "slow" if team == "slow" else "hi"
        reply = await router.route(text, caller=ACME, params={"max_output_tokens": 100}, metadata={"team": team})
    except RouterError as error:
        return error.code
    return reply.output


async def spent(storage: Storage, team: object) -> list[tuple[int, int]]:
    """What is spent of the limits of a team, and reserved."""
    standing = await Console(storage).standing("acme", tags={"team": team})
    return [(purse.spent_nanos, purse.reserved_nanos) for purse in standing.tags]


async def test_any_text_of_a_client_is_a_purse_of_its_own(url: str) -> None:
    storage = open_storage(url)
    texts = ["a\x00b", "x" * 10_000, "se\u0430rch", "search", "search:day:2026-11-30", "a=b", "", "\u202egnp", "'; --"]
    async with await router_of(storage) as router:
        for text in texts:
            assert [await route(router, text) for _ in range(2)] == ["hi", QuotaExhausted.code], ascii(text[:30])
            assert await spent(storage, text) == [(CALL, 0)]
        for first, same in ((1, 1.0), (True, "true"), (-0.0, "0"), ("2.50", "2.50")):
            assert [await route(router, value) for value in (first, same)] == ["hi", QuotaExhausted.code]


async def test_an_error_names_a_tag_without_control_characters() -> None:
    storage = open_storage("memory:")
    async with await router_of(storage) as router:
        await route(router, "a\x1b[2J\n\u202eb")
        with pytest.raises(QuotaExhausted) as caught:
            await router.route("hi", caller=ACME, metadata={"team": "a\x1b[2J\n\u202eb"})
        assert str(caught.value).startswith("the tag team=a[2J b has $0 left of its daily $0.1")


async def test_calls_at_once_stay_within_a_tag(url: str) -> None:
    storage = open_storage(url)
    limits = [{"key": "team", "daily_limit_usd": 0.35, "weekly_limit_usd": 0.5}]
    async with await router_of(storage, limits) as router:
        outcomes: list[str] = []

        async def call() -> None:
            outcomes.append(await route(router, "a"))
            assert all(sum(sums) <= 3.5 * CALL for sums in await spent(storage, "a"))

        async with anyio.create_task_group() as group:
            for _ in range(12):
                group.start_soon(call)
        assert sorted(outcomes) == ["hi"] * 3 + [QuotaExhausted.code] * 9
        assert await spent(storage, "a") == [(3 * CALL, 0)] * 2


async def work(task: str) -> str:
    """Work."""
    return task


@pytest.mark.parametrize("kind", ["function", "agent", "call"])
async def test_all_calls_of_an_agent_run_have_its_tags(url: str, kind: str) -> None:
    storage = open_storage(url)
    async with await router_of(storage, [{"key": "team", "daily_limit_usd": 9}]) as router:

        async def nested(task: str) -> str:
            """Work."""
            return (await router.route(task)).output

        nested.__name__ = "work"
        tools: dict[str, Any] = {"function": work, "call": nested, "agent": Agent(router).as_tool("work", "Work.")}
        run = await Agent(router, tools=[tools[kind]]).run("go", caller=ACME, metadata={"team": "a"})
        assert run.status == "completed"
        calls = 2 if kind == "function" else 3
        assert await spent(storage, "a") == [(calls * CALL, 0)]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_call_over_midnight_is_of_the_day_on_which_it_began(kind: str, tmp_path: Path) -> None:
    clock = FakeClock(NEXT_WEEK_S - 1)
    storage: Storage = MemoryStorage(clock=clock)
    if kind == "sqlite":
        storage = SqliteStorage(tmp_path / "store.db", clock=clock)
    limits = [{"key": "team", "daily_limit_usd": 0.1, "weekly_limit_usd": 0.1}]
    async with await router_of(storage, limits, clock, daily_limit_usd=0.1, weekly_limit_usd=0.1) as router:
        async with anyio.create_task_group() as group:
            group.start_soon(route, router, "slow")
            await clock.advance(0.5)
            assert await route(router, "slow") == QuotaExhausted.code, "the call has reserved all of Sunday"
            await clock.advance(1)
            assert await route(router, "a") == "hi"
            await clock.advance(5)
        assert [await route(router, team) for team in ("a", "slow")] == [QuotaExhausted.code] * 2
        purses: dict[str, int] = {}
        for at in (NEXT_WEEK_S - 1, NEXT_WEEK_S):
            query = Stands(timestamp(at), tags=(("team", "a"), ("team", "slow")))
            standing = await storage.read("acme", query)
            purses |= {purse.name: purse.spent_nanos for purse in standing.purses if purse.limit_nanos is not None}
        assert purses == {
            "tag:team=slow:day:2026-11-29": CALL, "tag:team=slow:week:2026-11-23": CALL,
            "tag:team=slow:day:2026-11-30": 0, "tag:team=slow:week:2026-11-30": 0,
            "tag:team=a:day:2026-11-29": 0, "tag:team=a:week:2026-11-23": 0,
            "tag:team=a:day:2026-11-30": CALL, "tag:team=a:week:2026-11-30": CALL,
            "day:2026-11-29": CALL, "week:2026-11-23": CALL, "day:2026-11-30": CALL, "week:2026-11-30": CALL,
        }  # fmt: skip


@pytest.mark.parametrize(
    ("limit", "problem"),
    [
        (TagLimit(key="a=b", daily_nanos=1), "key: is 'a=b'"),
        (
            {"key": "metadata.team", "daily_limit_usd": 1},
            "key: is 'metadata.team'; limit a metadata key, without 'metadata.'",
        ),
        (TagLimit(key="team", value="x" * 101, daily_nanos=1), "value: must be 0 to 100 printable characters"),
        (TagLimit(key="team", daily_nanos=-1), "tag_limits: has -1, None, None for 'team'; take"),
        (TagLimit(key="team", weekly_nanos=cast("int", 0.5)), "tag_limits: has None, 0.5, None for 'team'; take"),
        ({"key": "team", "value": "x" * 100 + " ", "daily_limit_usd": 1}, "value: must be 0 to 100 printable"),
    ],
)
async def test_a_limit_that_no_request_can_meet_is_refused(limit: Any, problem: str) -> None:
    with pytest.raises(ValidationFailed, match=problem):
        await Console(MemoryStorage()).create_account("acme", tag_limits=[limit])
