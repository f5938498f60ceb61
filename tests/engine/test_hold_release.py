"""What calls hold is released: at once, later if a part fails, and when the Router closes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace

from routewright import (
    DenyList,
    MemoryStorage,
    NoCandidates,
    ProviderFault,
    RateLimited,
    Router,
    RouterError,
    Settings,
    SqliteStorage,
)
from routewright.errors import BlockedByPolicy, IdempotencyKeyReused, QuotaExhausted, RouterTimeoutError, UpstreamFailed
from routewright.protocols import Facts, Guardrail
from routewright.testing import FakeClock, ScriptedProvider
from routewright.testing.provider import Line, Pause
from routewright.wire import (
    Allow,
    Ask,
    Claim,
    Delta,
    Finish,
    Grant,
    LedgerRows,
    OutputDelta,
    RateLimits,
    Stage,
    Stands,
    TraceById,
    Usage,
)

from .account_router import ACME, ANSWER, CAP, COST, ONE, Bank, account

pytestmark = pytest.mark.anyio

LIMIT = 10**9
OTHER: list[Line] = [Delta("another answer"), Usage(100, 50), Finish("stop")]


async def test_the_key_of_a_refused_call_is_free_at_once_and_the_request_counts() -> None:
    bank = await Bank(ANSWER, terms=[account(monthly_nanos=1, limits=RateLimits(requests_per_min=2))]).open()
    for _ in range(2):
        with pytest.raises(QuotaExhausted) as refused:
            await bank.route(idempotency_key="k")
    assert refused.value.headers["X-RateLimit-Remaining"] == "0"
    with pytest.raises(RateLimited):
        await bank.route(idempotency_key="k")
    await bank.clock.sleep(60.0)
    await bank.storage.apply("acme", [account(monthly_nanos=10**9)])
    assert (await bank.route("another request", idempotency_key="k")).output == "an answer"


async def test_a_kept_answer_is_given_though_no_model_fits_any_more() -> None:
    bank = await Bank(ANSWER, terms=[account(monthly_nanos=LIMIT)]).open()
    await bank.route(idempotency_key="k")
    too_small = replace(ONE, context_window=CAP["max_output_tokens"])
    bank.use(bank.storage, [ScriptedProvider([], models=[too_small], clock=bank.clock)])
    with pytest.raises(NoCandidates):
        await bank.route(idempotency_key="another key")
    assert (await bank.route(idempotency_key="k")).output == "an answer"


async def plain(router: Router) -> None:
    await router.route("forbidden", caller=ACME, params=CAP)


async def streamed(router: Router) -> None:
    async with router.stream("forbidden", caller=ACME, params=CAP) as stream:
        async for _ in stream:
            pass


async def hosted(router: Router) -> None:
    with router.steps("forbidden", caller=ACME, params=CAP) as steps:
        steps.next()


class Slow:
    """A guardrail that looks at a text for a while."""

    name = "slow"
    stages: tuple[Stage, ...] = ("input",)
    holds = None

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    async def check(self, text: str, stage: Stage) -> Allow:
        if text == "forbidden":
            await self._clock.sleep(5.0)
        return Allow()


async def guarded(guardrail: Callable[[FakeClock], Guardrail]) -> Bank:
    """Its account has one slot."""
    bank = Bank(ANSWER, terms=[account(monthly_nanos=LIMIT, limits=RateLimits(concurrency=1))])
    settings, guardrails = Settings(clock=bank.clock), [guardrail(bank.clock)]
    bank.router = Router(providers=[bank.good], storage=bank.storage, guardrails=guardrails, settings=settings)
    return await bank.open()


@pytest.mark.parametrize("call", [plain, streamed, hosted])
async def test_a_call_that_a_guardrail_blocks_holds_nothing(call: Callable[[Router], Awaitable[None]]) -> None:
    bank = await guarded(lambda clock: DenyList(["forbidden"]))
    with pytest.raises(BlockedByPolicy):
        await call(bank.router)
    assert (await bank.route()).output == "an answer"


@pytest.mark.parametrize("call", [plain, streamed])
async def test_a_call_cancelled_during_a_guardrail_holds_nothing(call: Callable[[Router], Awaitable[None]]) -> None:
    bank = await guarded(Slow)
    with bank.clock.deadline(bank.clock.monotonic() + 1.0) as limit:
        await call(bank.router)
    assert limit.expired
    assert bank.good.calls == []
    assert (await bank.route()).output == "an answer"


async def test_an_unanswered_admission_is_released() -> None:
    bank = await Bank([Pause(1.0), *ANSWER], terms=[account(monthly_nanos=500_000)]).open()
    storage = bank.behind()
    storage.still = (Ask,)
    with bank.clock.deadline(bank.clock.monotonic() + 1.0):
        await bank.route(idempotency_key="k")
    assert bank.good.calls == []
    storage.still = ()
    began = bank.clock.monotonic()
    assert (await bank.route(idempotency_key="k")).output == "an answer"
    assert bank.clock.monotonic() - began == pytest.approx(1.0, abs=0.1)
    assert await bank.purse() == (500_000, COST, 0)


@pytest.mark.parametrize("pause_s", [0.0, 50.0])
@pytest.mark.parametrize("behind", [False, True])
async def test_one_key_is_billed_once_even_if_another_call_took_it_over(pause_s: float, behind: bool) -> None:
    """The first was taken for gone, and its hold ended by name. The other ends before it, or after."""
    bank = await Bank([Pause(20.0), *ANSWER], [Pause(pause_s), *OTHER], terms=[account(monthly_nanos=LIMIT)]).open()
    if behind:
        bank.behind()
    call = partial(bank.route, idempotency_key="k", timeout_ms=200_000)
    accounts = bank.storage.accounts
    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await bank.clock.sleep(10.0)
        (hold,) = accounts.state.holds.values()
        hold.ends_at = -inf
        accounts.tidy(0.0)
        group.start_soon(call)
    late, billed = sorted(bank.answers, key=lambda answer: answer.output)
    charges = {row.request_id: (row.cost_nanos, row.charge_nanos) for row in await bank.rows() if row.kind == "attempt"}
    assert charges == {late.trace_id: (COST, 0), billed.trace_id: (COST, COST)}
    assert await bank.purse() == (LIMIT, COST, 0)
    trace = await bank.storage.read("acme", TraceById(late.trace_id, "production"))
    assert trace is not None
    assert (trace.status, trace.charged_usd) == ("completed", 0.0)
    assert (await bank.route(idempotency_key="k", timeout_ms=200_000)).output == "another answer"


async def test_a_call_whose_key_was_taken_over_by_a_failed_call_is_billed_and_kept() -> None:
    bank = await Bank([Pause(20.0), *ANSWER], ProviderFault("auth"), terms=[account(monthly_nanos=LIMIT)]).open()
    accounts = bank.storage.accounts
    async with anyio.create_task_group() as group:
        group.start_soon(partial(bank.route, idempotency_key="k"))
        await bank.clock.sleep(10.0)
        (hold,) = accounts.state.holds.values()
        hold.ends_at = -inf
        accounts.tidy(0.0)
        with pytest.raises(UpstreamFailed):
            await bank.route(idempotency_key="k")
    assert await bank.purse() == (LIMIT, COST, 0)
    assert (await bank.route(idempotency_key="k")).output == "an answer"


async def test_a_running_call_keeps_its_key_however_many_join() -> None:
    bank = Bank([Pause(10.0), *ANSWER], *[ANSWER] * 4, terms=[account(monthly_nanos=LIMIT)])
    bank.storage = MemoryStorage(newest=1, clock=bank.clock)
    bank.use(bank.storage)
    await bank.open()
    call = partial(bank.route, idempotency_key="k")
    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await bank.clock.sleep(1.0)
        for number in range(3):
            await bank.route(idempotency_key=f"k{number}")
        group.start_soon(call)
    assert await bank.purse() == (LIMIT, 4 * COST, 0)
    *others, first, second = bank.answers
    assert (len(others), first.trace_id) == (3, second.trace_id)


async def test_a_call_joining_one_that_cannot_be_settled_waits_until_its_deadline() -> None:
    bank = await Bank(ANSWER, terms=[account(monthly_nanos=LIMIT)]).open()
    storage = bank.behind()
    storage.away = (Facts,)
    assert (await bank.route(idempotency_key="k", timeout_ms=2_000)).output == "an answer"
    began = bank.clock.monotonic()
    with pytest.raises(RouterTimeoutError, match="idempotency key"):
        await bank.route(idempotency_key="k", timeout_ms=2_000)
    assert bank.clock.monotonic() - began == pytest.approx(2.0, abs=0.07)
    storage.away = ()
    await bank.clock.sleep(5.0)
    assert (await bank.route(idempotency_key="k", timeout_ms=2_000)).output == "an answer"
    assert await bank.purse() == (LIMIT, COST, 0)


async def test_a_dropped_stream_releases_its_money_without_another_call() -> None:
    bank = Bank([Delta("some words"), Pause(100.0)], terms=[account(monthly_nanos=10**9)])
    bank.behind()
    await bank.open()
    stream = bank.router.stream("hi", caller=ACME, params=CAP)
    while not isinstance(await anext(stream), OutputDelta):
        pass
    assert (await bank.purse())[2] > 0
    del stream
    await bank.clock.sleep(1.0)
    (row,) = await bank.rows()
    assert await bank.purse() == (10**9, row.charge_nanos, 0)


# Calls that are running when the Router closes


SLOTS = 2
SLOW: list[Line] = [Delta("an answer"), Usage(100, 50), Pause(5.0), *ANSWER[2:]]
kinds = pytest.mark.parametrize("kind", ["memory", "slow", "sqlite"])
BREAKS: list[Line] = [Pause(5.0), ProviderFault("auth")]


def storage_of(kind: str, bank: Bank, folder: Path) -> Any:
    match kind:
        case "memory":
            return bank.storage
        case "slow":
            storage = bank.behind()
            storage.takes_s = 0.01
            return storage
    bank.storage = SqliteStorage(folder / "calls.db", clock=bank.clock)  # type: ignore[assignment]
    return bank.storage


async def opened(kind: str, folder: Path, *script: Any) -> Bank:
    bank = Bank(*script, terms=[account(monthly_nanos=LIMIT, limits=RateLimits(concurrency=SLOTS))])
    bank.use(storage_of(kind, bank, folder))
    return await bank.open()


async def left(bank: Bank) -> tuple[int, int, bool, bool]:
    """What is spent and reserved, and whether the key is taken and a slot held."""
    found = await bank.storage.read("acme", Stands(bank.month))
    (month,) = [purse for purse in found.purses if purse.level == "month"]
    claimed, holds, grants = False, False, []
    for number in range(SLOTS):
        claim = Claim("k", "another") if number == 0 else None
        ask = Ask(id=f"tr_{number}", caller=ACME, at=bank.clock.time(), lasts_s=1.0, claim=claim)
        try:
            grants.append(await bank.storage.accounts.admit(ask))
        except RateLimited:
            holds = True
        except IdempotencyKeyReused:  # it has its answer, or runs
            claimed = True
    for grant in grants:
        assert isinstance(grant, Grant)
        bank.storage.accounts.release(grant)
    return month.spent_nanos, month.reserved_nanos, claimed, holds


@kinds
async def test_a_call_that_ends_after_the_close_is_billed_once(kind: str, tmp_path: Path) -> None:
    bank = await opened(kind, tmp_path, SLOW)
    async with anyio.create_task_group() as group:
        group.start_soon(partial(bank.route, idempotency_key="k"))
        await bank.clock.sleep(1.0)
        await bank.router.aclose()
        assert bank.clock.monotonic() <= 3.0, "two seconds after closing began"
    (answer,) = bank.answers
    assert answer.output == "an answer"
    assert bank.clock.monotonic() < 6.0, "nothing is waited for that nobody does"
    assert await left(bank) == (COST, 0, True, False)
    rows = await bank.storage.scan("acme", LedgerRows(), after=None, limit=10)
    assert [(row.request_id, row.charge_nanos) for row in rows] == [(answer.trace_id, COST)]


@kinds
async def test_a_call_that_fails_after_the_close_holds_nothing(kind: str, tmp_path: Path) -> None:
    bank = await opened(kind, tmp_path, BREAKS)

    async def call() -> None:
        with pytest.raises(RouterError):
            await bank.route(idempotency_key="k")

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await bank.clock.sleep(1.0)
        await bank.router.aclose()
    assert await left(bank) == (0, 0, False, False)


@kinds
async def test_a_call_cancelled_after_the_close_holds_nothing(kind: str, tmp_path: Path) -> None:
    bank = await opened(kind, tmp_path, SLOW)
    async with anyio.create_task_group() as group:
        group.start_soon(partial(bank.route, idempotency_key="k"))
        await bank.clock.sleep(1.0)
        await bank.router.aclose()
        group.cancel_scope.cancel()
    assert await left(bank) == (0, 0, False, False)
    (row,) = await bank.storage.scan("acme", LedgerRows(), after=None, limit=10)
    assert (row.kind, row.cost_nanos) == ("attempt", COST), "its cost is in the ledger"


@kinds
async def test_a_stream_left_after_the_close_is_billed_for_its_output(kind: str, tmp_path: Path) -> None:
    bank = await opened(kind, tmp_path, SLOW)
    async with bank.router.stream("hi", caller=ACME, params=CAP, idempotency_key="k") as stream:
        while not isinstance(await anext(stream), OutputDelta):
            pass
        await bank.router.aclose()
    (row,) = await bank.storage.scan("acme", LedgerRows(), after=None, limit=10)
    assert row.charge_nanos > 0
    assert await left(bank) == (row.charge_nanos, 0, False, False)


@pytest.mark.parametrize("kind", ["slow", "sqlite"])
async def test_a_call_waiting_for_money_at_the_close_holds_nothing(kind: str, tmp_path: Path) -> None:
    bank = await opened(kind, tmp_path, SLOW)
    await bank.storage.apply("acme", [account(monthly_nanos=600_000)])
    async with anyio.create_task_group() as group:
        group.start_soon(bank.route)
        await bank.clock.sleep(1.0)
        group.start_soon(partial(bank.route, idempotency_key="k"))
        await bank.clock.sleep(1.0)
        await bank.router.aclose()
        group.cancel_scope.cancel()
    assert await left(bank) == (0, 0, False, False)
