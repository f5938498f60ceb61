"""Calls while a part is down or hangs (contract 13): they end in bounded time, and nothing is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from routewright import Model, Pricing, ProviderFault, SqliteStorage
from routewright._engine.admission import OPEN_S
from routewright._engine.storage import KNOWN_S
from routewright.errors import QuotaExhausted, RouterTimeoutError, StorageUnavailable, UpstreamFailed
from routewright.protocols import Facts
from routewright.testing import ScriptedProvider
from routewright.wire import Ask, Caller, PutAccount, PutTrace, UpstreamCall

from .account_router import ANSWER, COST, ONE, Bank, account
from .faulty_storage import Behind, Look, Widen

pytestmark = pytest.mark.anyio
TERMS = [account(monthly_nanos=10**9)]


async def failing() -> tuple[Bank, Behind]:
    bank = await Bank(*[ANSWER] * 5, terms=TERMS).open()
    return bank, bank.behind()


@pytest.mark.parametrize("kind", [Ask, Look])
async def test_without_the_storage_limited_calls_are_refused(kind: type) -> None:
    bank, storage = await failing()
    storage.away, storage.forgets = (kind,), True
    with pytest.raises(StorageUnavailable) as caught:
        await bank.route(idempotency_key="k")
    assert caught.value.retryable
    assert bank.good.calls == []
    storage.away = ()
    assert (await bank.route(idempotency_key="k")).output == "an answer"
    assert await bank.purse() == (10**9, COST, 0)


@pytest.mark.parametrize("kind", [Ask, Look])
async def test_a_hanging_storage_delays_a_call_until_its_deadline_at_most(kind: type) -> None:
    bank, storage = await failing()
    storage.still, storage.forgets = (kind,), True
    began = bank.clock.monotonic()
    with pytest.raises(RouterTimeoutError):
        await bank.route(idempotency_key="k", timeout_ms=1_500)
    assert bank.clock.monotonic() - began == pytest.approx(1.5, abs=0.001)
    assert bank.good.calls == []
    storage.still = ()
    await bank.clock.sleep(2.0)
    assert (await bank.route(idempotency_key="k")).output == "an answer"
    assert await bank.purse() == (10**9, COST, 0)


async def test_unlimited_calls_go_on_without_the_storage() -> None:
    bank, storage = await failing()
    await bank.route(caller=Caller("open"))
    storage.away, storage.forgets = (Look, Ask, Facts), True
    assert (await bank.route(caller=Caller())).output == "an answer"
    await bank.clock.sleep(10.0)
    assert (await bank.route(caller=Caller("open"))).output == "an answer", "nobody had set it up"


async def test_callers_without_an_account_wait_briefly_for_a_hanging_storage_and_then_not() -> None:
    bank, storage = await failing()
    await bank.route(caller=Caller("open"))
    storage.still, storage.forgets = (Look,), True
    await bank.clock.sleep(10.0)
    began = bank.clock.monotonic()
    for waited in (OPEN_S, OPEN_S):
        await bank.route(caller=Caller("open"))
        assert bank.clock.monotonic() - began == pytest.approx(waited, abs=0.001)
    with pytest.raises(RouterTimeoutError):
        await bank.route(caller=Caller("never asked of"), timeout_ms=1_000)
    assert len(bank.good.calls) == 3
    storage.still = ()
    await bank.storage.apply("open", [PutAccount(replace(TERMS[0].account, name="open", monthly_nanos=1))])
    await bank.clock.sleep(KNOWN_S)
    with pytest.raises(QuotaExhausted):
        await bank.route(caller=Caller("open"))


@pytest.mark.parametrize(("slow_s", "within_s"), [(0.0, 5.1), (7.0, 60.0)])
async def test_queued_writes_follow_soon_after_a_hanging_storage_recovers(slow_s: float, within_s: float) -> None:
    bank, storage = await failing()
    storage.still = (Facts,)
    for _ in range(3):
        await bank.route(timeout_ms=2_000)
    await bank.clock.sleep(60.0)
    assert (await bank.purse())[1] == 0
    storage.still = ()
    storage.before = lambda thing: bank.clock.sleep(slow_s) if isinstance(thing, Facts) else None
    await bank.clock.sleep(within_s)
    assert await bank.purse() == (10**9, 3 * COST, 0)
    assert bank.router.trace_counts.waiting == 0


async def test_a_refused_call_releases_its_hold_as_soon_as_possible() -> None:
    bank, storage = await failing()
    storage.away = (Facts,)
    with bank.clock.deadline(bank.clock.monotonic() + 0.01):
        await bank.route(idempotency_key="k")
    storage.away = ()
    await bank.clock.sleep(10.0)
    assert (await bank.purse())[2] == 0


async def failing_over(what: str, first: Model) -> tuple[Bank, Behind]:
    """A bank whose first model fails, and whose storage then widens no reservation."""
    bank = Bank(spare=[ANSWER], terms=TERMS)
    storage = Behind(bank.storage, bank.clock)

    def fails(call: UpstreamCall) -> ProviderFault:
        setattr(storage, what, (Widen,))
        return ProviderFault("auth")

    bank.use(storage, providers=[ScriptedProvider(fails, models=[first], clock=bank.clock), bank.spare])
    return await bank.open(), storage


@pytest.mark.parametrize("what", ["away", "still"])
async def test_a_fallback_uses_the_reserved_amount_if_it_cannot_be_widened(what: str) -> None:
    bank, storage = await failing_over(what, replace(ONE, pricing_per_1m=Pricing(4.0, 16.0)))
    answer = await bank.route(goal="quality", timeout_ms=5_000)
    assert answer.routing.selected_model == "spare/two", "its worst case is the smaller one"
    setattr(storage, what, ())
    assert (await bank.purse())[2] == 0


@pytest.mark.parametrize(("what", "within_s"), [("away", 1.0), ("still", 5.001)])
async def test_a_fallback_that_cannot_be_paid_for_is_not_called(what: str, within_s: float) -> None:
    bank, storage = await failing_over(what, ONE)
    began = bank.clock.monotonic()
    with pytest.raises((UpstreamFailed, RouterTimeoutError)):
        await bank.route(goal="quality", timeout_ms=5_000)
    assert bank.clock.monotonic() - began <= within_s
    assert bank.spare.calls == []
    setattr(storage, what, ())
    await bank.clock.sleep(2.0)
    assert await bank.purse() == (10**9, 0, 0)


async def test_settlements_are_queued_beyond_the_limit_of_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("routewright._engine.trace_writer.QUEUE", 2)
    bank, storage = await failing()
    storage.away = (PutTrace,)
    for _ in range(4):
        await bank.route(caller=Caller(), timeout_ms=100)
    assert (await bank.route(timeout_ms=100)).output == "an answer"
    assert bank.router.trace_counts.lost == 2
    storage.away = ()
    await bank.clock.sleep(60.0)
    assert await bank.purse() == (10**9, COST, 0)


async def test_limited_callers_are_refused_once_the_store_is_gone(tmp_path: Path) -> None:
    bank = Bank(*[ANSWER] * 5, terms=TERMS)
    storage = SqliteStorage(tmp_path / "s.db", clock=bank.clock)
    bank.use(storage)
    await storage.apply("acme", TERMS)
    await bank.route()
    for file in os.listdir(tmp_path):
        os.unlink(tmp_path / file)
    await bank.clock.sleep(2.2)
    with pytest.raises(StorageUnavailable, match="was removed while it was in use"):
        await bank.route()
    assert (await bank.route(caller=Caller())).output == "an answer", "it needs no promise"
    assert os.listdir(tmp_path) == []
    await bank.router.aclose()
