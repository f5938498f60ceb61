"""Ledger, purses, traces and analytics agree to the nano-dollar, whatever happens to calls."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright import (
    Catalogue,
    MemoryStorage,
    ProviderFault,
    RateLimited,
    Router,
    RouterError,
    Settings,
    SqliteStorage,
)
from routewright.protocols import LimitingStorage
from routewright.testing import FakeClock, ScriptedProvider
from routewright.testing.provider import Line, Pause
from routewright.wire import (
    Ask,
    Caller,
    Delta,
    Finish,
    Grant,
    LedgerRow,
    LedgerRows,
    LedgerSums,
    RateLimits,
    Standing,
    Stands,
    Traces,
    UpstreamCall,
    Usage,
    UsageCounts,
)
from routewright.wire.money import nanos_of
from routewright.wire.timestamps import timestamp

from .account_router import ONE, SPARE, account, key

SLOTS = 4
KINDS = ("answer", "no usage", "late usage", "half", "fault", "refused", "silent", "long", "overrun")


class Act(NamedTuple):
    """One call, and what becomes of it."""

    kinds: tuple[str, ...]
    """What its models do, one after the other."""
    way: str
    begins_s: float
    leaves_s: float | None
    key: str | None
    caller: int
    cap: int | None


CALLERS = (Caller("acme"), Caller("acme", key_id="key_1"), Caller(), Caller("acme", environment="sandbox"))
ACTS = st.builds(
    Act,
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=3).map(tuple),
    st.sampled_from(("route", "stream", "text", "many", "left")),
    st.sampled_from((0.0, 0.0, 0.3, 2.0, 40.0)),
    st.sampled_from((None, None, None, 0.0, 0.2, 1.0, 5.0)),
    st.sampled_from((None, None, "a", "b")),
    st.integers(0, len(CALLERS) - 1),
    st.sampled_from((None, 50, 500)),
)


def lines(kind: str, call: UpstreamCall) -> list[Line]:
    """What a model does that was told so."""
    cap = call.max_output_tokens or 100
    match kind:
        case "no usage":
            return [Delta("some words that nobody counted"), Pause(0.3), Finish("stop")]
        case "late usage":
            return [Delta("words"), Finish("stop"), Pause(0.1), Usage(20, 7)]
        case "half":
            return [Delta("half an"), Pause(0.2), Usage(20, 3), ProviderFault("server")]
        case "fault":
            return [Pause(0.1), ProviderFault("server")]
        case "refused":
            return [ProviderFault("refused")]
        case "silent":
            return [Pause(100.0)]
        case "long":
            return [Delta("a"), Pause(3.0), Delta("b"), Usage(20, cap), Finish("length")]
        case "overrun":
            return [Delta("more than was asked for"), Usage(500, cap * 3), Finish("stop")]
    return [Pause(0.1), Delta("an answer"), Usage(20, 10, 5), Finish("stop")]


class Stage:
    """A Router whose models do as each call's act says."""

    def __init__(self, storage: LimitingStorage, clock: FakeClock) -> None:
        self.storage, self.clock = storage, clock
        self._left: dict[str, list[str]] = {}
        providers = [ScriptedProvider(self._does, models=[model], clock=clock) for model in (ONE, SPARE)]
        self.router = Router(
            providers=providers, catalogue=Catalogue(()), storage=storage, settings=Settings(clock=clock)
        )

    def _does(self, call: UpstreamCall) -> Any:
        left = self._left[str(call.messages[-1].content)]
        return lines(left.pop(0) if left else "answer", call)

    async def play(self, acts: Sequence[Act]) -> None:
        async with anyio.create_task_group() as group:
            for number, act in enumerate(acts):
                text = f"call {act.key or number}"
                self._left.setdefault(text, [*act.kinds])
                group.start_soon(self._call, act, text)

    async def _call(self, act: Act, text: str) -> None:
        await self.clock.sleep(act.begins_s)
        ends = self.clock.monotonic() + (1_000.0 if act.leaves_s is None else act.leaves_s)
        options: dict[str, Any] = {"caller": CALLERS[act.caller], "goal": "quality", "timeout_ms": 30_000}
        options["params"] = None if act.cap is None else {"max_output_tokens": act.cap}
        with suppress(RouterError, RuntimeError), self.clock.deadline(ends):
            await self._made(act, text, options)

    async def _made(self, act: Act, text: str, options: dict[str, Any]) -> None:
        if act.way == "many":
            await self.router.route_many([text, text], budget={"maxCostUsd": 0.5}, **options)
            return
        options["idempotency_key"] = act.key
        if act.way == "route":
            await self.router.route(text, **options)
            return
        async with self.router.stream(text, **options) as stream:
            async for _ in stream.text() if act.way == "text" else stream:
                if act.way == "left":
                    break


async def check(stage: Stage) -> None:
    """Hold all accounts to each other."""
    await stage.clock.sleep(100.0)
    await stage.router.flush()
    for name in ("acme", "default"):
        rows: list[LedgerRow] = await stage.storage.scan(name, LedgerRows(), after=None, limit=10_000)
        traces = await stage.storage.scan(name, Traces(environment="production"), after=None, limit=10_000)
        charge, cost = sum(row.charge_nanos for row in rows), sum(row.cost_nanos for row in rows)
        assert charge == sum(nanos_of(trace.charged_usd) for trace in traces)
        assert cost == sum(nanos_of(trace.cost_usd) for trace in traces)
        days: dict[str, Any] = {"first": "2000-01-01", "last": "2100-01-01"}
        used = await stage.storage.read(name, UsageCounts(**days, environment="production", group_by="model"))
        assert charge == sum(row.charged_nanos for row in used.all)
        assert cost == sum(row.cost_nanos for row in used.all)
        sums = await stage.storage.read(name, LedgerSums(**days))
        assert charge == sum(each.charge_nanos for each in sums)
        assert cost == sum(each.cost_nanos for each in sums)
        assert len({(row.request_id, row.attempt) for row in rows}) == len(rows)
        sandbox = await stage.storage.scan(name, Traces(environment="sandbox"), after=None, limit=10_000)
        assert all(trace.charged_usd == 0 for trace in sandbox)
        if name == "acme":
            await check_purses(stage, rows)


async def check_purses(stage: Stage, rows: Sequence[LedgerRow]) -> None:
    standing: Standing = await stage.storage.read("acme", Stands(timestamp(stage.clock.time()), "key_1"))
    for purse in standing.purses:
        counted = [row for row in rows if purse.level != "key" or row.key_id == "key_1"]
        assert purse.spent_nanos == sum(row.charge_nanos for row in counted)
        assert purse.reserved_nanos == 0
        overrun = sum(row.overrun_nanos for row in rows)
        assert purse.limit_nanos is None or purse.spent_nanos <= purse.limit_nanos + overrun
    if any(purse.left_nanos is not None and purse.left_nanos < 0 for purse in standing.purses):
        return  # nothing is admitted after an overrun, so that slots cannot be counted
    accounts = stage.storage.accounts
    grants = [await accounts.admit(ask(stage.clock, number)) for number in range(SLOTS)]
    with pytest.raises(RateLimited, match="at a time"):
        await accounts.admit(ask(stage.clock, SLOTS))
    for grant in grants:
        assert isinstance(grant, Grant)
        accounts.release(grant)


def ask(clock: FakeClock, number: int) -> Ask:
    return Ask(id=f"tr_{number}", caller=Caller("acme"), at=clock.time(), lasts_s=1.0)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@given(acts=st.lists(ACTS, min_size=1, max_size=12))
def test_all_account_backends_agree_on_every_outcome(kind: str, acts: list[Act]) -> None:
    with TemporaryDirectory() as folder:
        anyio.run(partial(play, kind, Path(folder), acts))


async def play(kind: str, folder: Path, acts: Sequence[Act]) -> None:
    clock = FakeClock()
    storage: LimitingStorage = MemoryStorage(clock=clock)
    if kind == "sqlite":
        storage = SqliteStorage(folder / "traces.db", clock=clock)
    terms = account(monthly_nanos=20_000_000, limits=RateLimits(concurrency=SLOTS, tokens_per_min=100_000))
    await storage.apply("acme", [terms, key(budget_nanos=8_000_000)])
    stage = Stage(storage, clock)
    await stage.play(acts)
    await check(stage)
    await stage.router.aclose()
