"""What becomes of calls while a part is down or stands still (contract 13): bounded in time, and nothing is lost."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from routewright import (
    MemoryCoordination,
    Pricing,
    ProviderFault,
    QuotaExhausted,
    RateLimited,
    RouterTimeoutError,
    SqliteStorage,
    StorageUnavailable,
    UpstreamFailed,
)
from routewright._engine.account import KNOWN_S, OPEN_S
from routewright.testing import ScriptedProvider
from routewright.wire import (
    Caller,
    ClaimByKey,
    ClaimKey,
    Denied,
    EndClaim,
    PutAccount,
    PutTrace,
    RateLimits,
    Reserve,
    Settle,
    Stands,
    Take,
    Taken,
    UpstreamCall,
    Write,
    Written,
)

from .test_admission import ACME, ANSWER, CAP, COST, ONE, Bank, account

pytestmark = pytest.mark.anyio
HIDDEN = "redis://:password@host"
TERMS = [account(monthly_nanos=10**9, limits=RateLimits(concurrency=1))]


class Failing:
    """A storage of which some kinds fail, or stand still, while somebody says so."""

    def __init__(self, bank: Bank) -> None:
        self.kept = bank.storage
        self.away: tuple[type, ...] = ()
        self.still: tuple[type, ...] = ()
        self.slow_s = 0.0
        """So long it takes to settle."""
        self._clock = bank.clock

    async def _pass(self, *things: object) -> None:
        if isinstance(things[0], self.away) or any(isinstance(each, self.away) for each in things):
            raise StorageUnavailable("away")
        while any(isinstance(each, self.still) for each in things):
            await self._clock.sleep(1.0)
        if any(isinstance(each, Settle) for each in things):
            await self._clock.sleep(self.slow_s)

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        await self._pass(*writes)
        return await self.kept.apply(account, writes)

    async def read(self, account: str, query: Any) -> Any:
        await self._pass(query)
        return await self.kept.read(account, query)

    async def scan(self, account: str, query: Any, *, after: str | None, limit: int) -> Any:
        return await self.kept.scan(account, query, after=after, limit=limit)

    async def sweep(self, now: float) -> int:
        return await self.kept.sweep(now)

    async def aclose(self) -> None:
        pass


async def failing() -> tuple[Bank, Failing]:
    bank = await Bank(*[ANSWER] * 5, terms=TERMS).open()
    storage = Failing(bank)
    bank.use(storage)
    return bank, storage


@pytest.mark.parametrize("kind", [Reserve, Stands, ClaimKey, ClaimByKey])
async def test_without_the_storage_no_call_is_made_that_needs_its_promise(kind: type) -> None:
    bank, storage = await failing()
    storage.away = (kind,)
    with pytest.raises(StorageUnavailable) as caught:
        await bank.route(idempotency_key="k")
    assert caught.value.retryable
    assert bank.good.calls == []
    storage.away = ()
    assert (await bank.route(idempotency_key="k")).output == "an answer"
    assert await bank.purse() == (10**9, COST, 0)


@pytest.mark.parametrize("kind", [Reserve, Stands, ClaimKey, ClaimByKey])
async def test_a_storage_that_stands_still_holds_a_call_no_longer_than_its_time(kind: type) -> None:
    bank, storage = await failing()
    storage.still = (kind,)
    began = bank.clock.monotonic()
    with pytest.raises(RouterTimeoutError):
        await bank.route(idempotency_key="k", timeout_ms=1_500)
    assert bank.clock.monotonic() - began == pytest.approx(1.5, abs=0.001)
    assert bank.good.calls == []
    storage.still = ()
    await bank.clock.sleep(2.0)
    assert (await bank.route(idempotency_key="k")).output == "an answer"
    assert await bank.purse() == (10**9, COST, 0)


async def test_calls_that_need_no_promise_go_on_without_the_storage() -> None:
    bank, storage = await failing()
    await bank.route(caller=Caller("open"))
    storage.away = (Stands, Reserve, Settle, ClaimKey)
    assert (await bank.route(caller=Caller())).output == "an answer"
    await bank.clock.sleep(10.0)
    assert (await bank.route(caller=Caller("open"))).output == "an answer", "nobody had set it up"


async def test_who_has_no_account_waits_a_moment_for_a_storage_that_stands_still_and_then_for_a_while_no_more() -> None:
    bank, storage = await failing()
    await bank.route(caller=Caller("open"))
    storage.still = (Stands,)
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


async def test_a_paid_answer_is_given_though_it_cannot_be_settled_and_its_reservation_stands_until_it_can() -> None:
    bank, storage = await failing()
    storage.away = (Settle, EndClaim)
    began = bank.clock.monotonic()
    assert (await bank.route(idempotency_key="k")).output == "an answer"
    assert bank.clock.monotonic() - began < 1.0
    _, spent, reserved = await bank.purse()
    assert spent == 0
    assert reserved > COST
    storage.away = ()
    await bank.clock.sleep(60.0)
    assert await bank.purse() == (10**9, COST, 0)
    again = await bank.route(idempotency_key="k")
    assert (again.output, len(bank.good.calls)) == ("an answer", 1)


@pytest.mark.parametrize(("slow_s", "within_s"), [(0.0, 5.1), (7.0, 60.0)])
async def test_what_waits_for_a_storage_that_stands_still_is_written_soon_once_it_goes_on(
    slow_s: float, within_s: float
) -> None:
    bank, storage = await failing()
    storage.still = (Settle,)
    for _ in range(3):
        await bank.route(timeout_ms=2_000)
    await bank.clock.sleep(60.0)
    assert (await bank.purse())[1] == 0
    storage.still, storage.slow_s = (), slow_s
    await bank.clock.sleep(within_s)
    assert await bank.purse() == (10**9, 3 * COST, 0)
    assert bank.router.trace_counts.waiting == 0


async def test_what_a_refused_call_held_is_given_back_as_soon_as_that_can_be() -> None:
    bank, storage = await failing()
    storage.away = (Settle, EndClaim)
    with bank.clock.deadline(bank.clock.monotonic() + 0.01):
        await bank.route(idempotency_key="k")
    storage.away = ()
    await bank.clock.sleep(10.0)
    assert (await bank.purse())[2] == 0


async def test_a_slot_is_given_back_however_long_that_takes() -> None:
    bank, _ = await failing()
    inner, slow = bank.coordination, True

    class Slow:
        def __getattr__(self, name: str) -> Any:
            if name == "give_back":  # it is not immediate
                raise AttributeError(name)
            return getattr(inner, name)

        async def end(self, taken: Any, tokens: int | None = None) -> None:
            await bank.clock.sleep(3.0 if slow else 0.0)
            await inner.end(taken, tokens)

    bank.use(bank.storage, coordination=Slow())
    began = bank.clock.monotonic()
    await bank.route()
    assert bank.clock.monotonic() - began < 1.0, "an answer waits for it a moment"
    assert bank.router.limit_counts.degraded
    assert (await bank.route(params=CAP, caller=ACME)).output == "an answer", "it goes on by itself"
    slot = Take("account:production:acme", "slots", 1)
    assert isinstance(await inner.take([slot], "another"), Denied)
    slow = False
    await bank.clock.sleep(5.0)
    await bank.route()
    assert isinstance(await inner.take([slot], "another"), Taken)


@pytest.mark.parametrize("what", ["away", "still"])
async def test_a_fallback_has_to_do_with_what_is_set_aside_where_no_more_can_be(what: str) -> None:
    bank = Bank(spare=[ANSWER], terms=TERMS)
    storage = Failing(bank)

    def fails(call: UpstreamCall) -> ProviderFault:
        setattr(storage, what, (Reserve,))
        return ProviderFault("auth")

    first = ScriptedProvider(fails, models=[replace(ONE, pricing_per_1m=Pricing(4.0, 16.0))], clock=bank.clock)
    bank.use(storage, providers=[first, bank.spare])
    await bank.open()
    answer = await bank.route(goal="quality", timeout_ms=5_000)
    assert answer.routing.selected_model == "spare/two", "its worst case is the smaller one"
    setattr(storage, what, ())
    assert (await bank.purse())[2] == 0


@pytest.mark.parametrize(("what", "within_s"), [("away", 1.0), ("still", 5.001)])
async def test_a_fallback_that_cannot_be_paid_for_is_not_called(what: str, within_s: float) -> None:
    bank = Bank(spare=[ANSWER], terms=TERMS)
    storage = Failing(bank)

    def fails(call: UpstreamCall) -> ProviderFault:
        setattr(storage, what, (Reserve,))
        return ProviderFault("auth")

    bank.use(storage, providers=[ScriptedProvider(fails, models=[ONE], clock=bank.clock), bank.spare])
    await bank.open()
    began = bank.clock.monotonic()
    with pytest.raises((UpstreamFailed, RouterTimeoutError)):
        await bank.route(goal="quality", timeout_ms=5_000)
    assert bank.clock.monotonic() - began <= within_s
    assert bank.spare.calls == []
    setattr(storage, what, ())
    await bank.clock.sleep(2.0)
    assert await bank.purse() == (10**9, 0, 0)


class OddAtOnce(MemoryCoordination):
    """One that never waits, and fails as no coordination may."""

    async def take(self, takes: Sequence[Take], owner: str) -> Taken | Denied:
        raise ConnectionError(HIDDEN)

    def give_back(self, taken: Taken, tokens: int | None = None) -> None:
        raise ConnectionError(HIDDEN)

    async def renew(self, owner: str) -> None:
        raise ConnectionError(HIDDEN)


class OddLater(OddAtOnce):
    """One that lets calls in, and fails at their end."""

    async def take(self, takes: Sequence[Take], owner: str) -> Taken | Denied:
        return await MemoryCoordination.take(self, takes, owner)


@pytest.mark.parametrize("kind", [OddAtOnce, OddLater])
async def test_a_coordination_that_fails_oddly_is_away_and_nobody_sees_its_words(
    kind: type[OddAtOnce], caplog: pytest.LogCaptureFixture
) -> None:
    bank = await Bank(*[ANSWER] * 3, terms=[account(limits=RateLimits(requests_per_min=8))]).open()
    bank.use(bank.storage, coordination=kind(clock=bank.clock))
    for _ in range(2):  # a part of four
        assert (await bank.route()).output == "an answer"
    with pytest.raises(RateLimited):
        await bank.route()
    await bank.router.aclose()
    assert "ConnectionError" in caplog.text
    assert HIDDEN not in caplog.text


async def test_a_bill_is_kept_however_many_traces_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("routewright._engine.trace_queue.QUEUE", 2)
    bank, storage = await failing()
    storage.away = (PutTrace,)
    for _ in range(4):
        await bank.route(caller=Caller(), timeout_ms=100)
    assert (await bank.route(timeout_ms=100)).output == "an answer"
    assert bank.router.trace_counts.lost == 2
    storage.away = ()
    await bank.clock.sleep(60.0)
    assert await bank.purse() == (10**9, COST, 0)


async def test_who_is_limited_is_not_served_once_the_store_is_gone(tmp_path: Path) -> None:
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
