"""What a call holds it holds for as long as it runs; and who was taken for gone, and comes back, takes nothing away."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import anyio
import pytest

from routewright import (
    MemoryCoordination,
    MemoryStorage,
    PermissionDenied,
    PreconditionFailed,
    ProviderFault,
    QuotaExhausted,
    Router,
    RouterTimeoutError,
    Settings,
    SqliteStorage,
    StorageUnavailable,
    SystemClock,
    UpstreamFailed,
)
from routewright._engine.leases import Leases
from routewright._engine.worker import Worker
from routewright.identity import Ids
from routewright.protocols import Clock
from routewright.testing import FakeClock, ScriptedProvider
from routewright.testing.provider import Line, Pause
from routewright.wire import (
    Caller,
    ClaimByKey,
    ClaimKey,
    Delta,
    Denied,
    EndClaim,
    Finish,
    KeepLease,
    RateLimits,
    Reserve,
    Take,
    TraceById,
    Usage,
    Write,
    Written,
)

from .test_admission import ACME, ANSWER, CAP, COST, SPARE, Bank, account
from .test_failing_parts import Failing

pytestmark = pytest.mark.anyio
T = TypeVar("T")
LATE_S = 5.0
"""A renewal takes so long to arrive: less than a third of a lease."""
LIMIT = 1_000_000
OTHER: list[Line] = [Delta("another answer"), Usage(100, 50), Finish("stop")]


class LateRenewals(Failing):
    """A storage that renewals reach a moment late."""

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        if any(isinstance(each, KeepLease) for each in writes):
            await self._clock.sleep(LATE_S)
        return await super().apply(account, writes)


class LateSlots:
    """The same of slots."""

    def __init__(self, inner: Any, clock: Clock) -> None:
        self._inner = inner
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def renew(self, owner: str) -> None:
        await self._clock.sleep(LATE_S)
        await self._inner.renew(owner)


async def reservable(bank: Bank) -> bool:
    """Whether another owner may have all of the account's money."""
    now = bank.clock.monotonic()
    asked = Reserve(id="tr_other", nanos=LIMIT, owner="other", lease_s=30.0, clock_s=now, at=bank.month)
    try:
        await bank.storage.apply("acme", [asked])
    except PreconditionFailed:
        return False
    return True


async def claimable(bank: Bank) -> bool:
    """Whether another owner may have the key."""
    now, at = bank.clock.monotonic(), bank.clock.time()
    asked = ClaimKey(
        key="k", environment="production", fingerprint="f", call="tr_other", owner="other", lease_s=30.0,
        clock_s=now, at=at,
    )  # fmt: skip
    (written,) = await bank.storage.apply("acme", [asked])
    return written.created


async def takeable(bank: Bank) -> bool:
    """Whether another owner may have the slot."""
    slot = Take("account:production:acme", "slots", 1)
    return not isinstance(await bank.coordination.take([slot], "other"), Denied)


@pytest.mark.parametrize("may_have", [reservable, claimable, takeable])
async def test_a_renewal_that_comes_a_moment_late_loses_nothing(may_have: Any) -> None:
    terms = [account(monthly_nanos=LIMIT, limits=RateLimits(concurrency=1))]
    bank = await Bank([Pause(100.0), *ANSWER], terms=terms).open()
    bank.use(LateRenewals(bank), coordination=LateSlots(bank.coordination, bank.clock))
    async with anyio.create_task_group() as group:
        group.start_soon(partial(bank.route, timeout_ms=200_000, idempotency_key="k"))
        for _ in range(90):
            await bank.clock.sleep(1.0)
            assert not await may_have(bank), bank.clock.monotonic()
    assert await bank.purse() == (LIMIT, COST, 0)


class Heard(Failing):
    """A storage that remembers what it was asked to do."""

    def __init__(self, bank: Bank) -> None:
        super().__init__(bank)
        self.writes: list[Write] = []

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        self.writes.extend(writes)
        return await super().apply(account, writes)

    def of(self, kind: type[T]) -> list[T]:
        """Those of a kind."""
        return [each for each in self.writes if isinstance(each, kind)]


async def test_who_holds_nothing_renews_nothing() -> None:
    bank = await Bank([Pause(15.0), *ANSWER], [Pause(15.0)], ANSWER, terms=[account(monthly_nanos=LIMIT)]).open()
    storage = Heard(bank)
    bank.use(storage)
    await bank.route()
    with bank.clock.deadline(bank.clock.monotonic() + 15.0):
        await bank.route()
    with pytest.raises(QuotaExhausted):
        await bank.route(params={"max_output_tokens": 1_000})
    with pytest.raises(PermissionDenied):
        await bank.route(caller=Caller("acme", scopes=()))
    assert len(storage.of(KeepLease)) >= 2
    await bank.clock.sleep(1.0)
    storage.writes.clear()
    await bank.clock.sleep(100.0)
    assert storage.of(KeepLease) == []


def test_two_threads_that_make_the_first_call_at_once_are_one_owner() -> None:
    both, numbers = threading.Barrier(2), itertools.count()

    def ids(prefix: str) -> str:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.2)  # where only one comes here, as it should be, it waits in vain
        return f"{prefix}{next(numbers)}"

    clock = FakeClock()
    owner = Leases(
        MemoryStorage(), MemoryCoordination(clock=clock), Worker(clock), cast("Ids", ids), clock, 30.0, tuple
    )
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(lambda: owner.id) for _ in range(2)]
    assert [each.result() for each in asked] == ["own_0"] * 2


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_threads_that_make_the_first_calls_of_a_router_at_once_hold_what_they_take_under_one_name(backend: str) -> None:
    bank, together = Bank(*[ANSWER] * 8, terms=[account(monthly_nanos=10**9)]), threading.Barrier(8)
    real: Any = SystemClock()  # virtual time is one loop's, which jumps when that waits
    bank.clock, bank.coordination = real, MemoryCoordination()
    anyio.run(bank.open, backend=backend)
    storage = Heard(bank)
    bank.use(storage)

    def call() -> str:
        together.wait()
        answer = anyio.run(bank.route, backend=backend)
        return str(answer.output)

    with ThreadPoolExecutor(8) as pool:
        assert [each.result() for each in [pool.submit(call) for _ in range(8)]] == ["an answer"] * 8
    assert len(storage.of(Reserve)) == 8
    assert len({each.owner for each in storage.of(Reserve)}) == 1
    assert anyio.run(bank.purse) == (10**9, 8 * COST, 0)
    bank.router.blocking.close()


class Deaf(MemoryStorage):
    """A storage of the same process that never waits, and never hears of renewals."""

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        if any(isinstance(each, KeepLease) for each in writes):
            raise StorageUnavailable("away")
        return await super().apply(account, writes)


class Overtaken:
    """Two Routers of one storage. The first is not heard of while its call runs, and the second takes its key over,
    whose call takes ``pause_s`` and gives ``theirs``."""

    def __init__(self, kind: str, pause_s: float, theirs: Sequence[Any] = OTHER, path: Path | None = None) -> None:
        self.bank = bank = Bank([Pause(60.0), *ANSWER], terms=[account(monthly_nanos=LIMIT)])
        if kind == "memory":
            bank.storage = Deaf()
            bank.use(bank.storage)
        else:
            if path is not None:
                bank.storage = cast("MemoryStorage", SqliteStorage(path, clock=bank.clock))
            failing = Failing(bank)
            failing.away = (KeepLease,)
            bank.use(failing)
        provider = ScriptedProvider([[Pause(pause_s), *theirs]], models=[SPARE], clock=bank.clock)
        self.second = Router(providers=[provider], storage=bank.storage, settings=Settings(clock=bank.clock))
        self.answers: list[Any] = []

    async def call(self, router: Router) -> None:
        with suppress(UpstreamFailed):
            answer = await router.route("hi", caller=ACME, params=CAP, idempotency_key="k", timeout_ms=200_000)
            self.answers.append(answer)

    async def run(self) -> Overtaken:
        """First the answer that came first."""
        await self.bank.open()
        async with anyio.create_task_group() as group:
            group.start_soon(self.call, self.bank.router)
            await self.bank.clock.sleep(40.0)
            group.start_soon(self.call, self.second)
        for router in (self.bank.router, self.second):
            await router.flush()
        return self


@pytest.mark.parametrize("pause_s", [0.0, 50.0])
@pytest.mark.parametrize("kind", ["memory", "behind"])
async def test_one_key_is_one_bill_though_another_took_it_over(kind: str, pause_s: float) -> None:
    both = await Overtaken(kind, pause_s).run()
    bank, by_text = both.bank, {answer.output: answer for answer in both.answers}
    late, billed = by_text["an answer"], by_text["another answer"]
    charges = {row.request_id: (row.cost_nanos, row.charge_nanos) for row in await bank.rows() if row.kind == "attempt"}
    assert charges == {late.trace_id: (COST, 0), billed.trace_id: (2 * COST, 2 * COST)}, "each at its model's prices"
    assert await bank.purse() == (LIMIT, 2 * COST, 0)
    trace = await bank.storage.read("acme", TraceById(late.trace_id, "production"))
    assert (trace.status, trace.charged_usd) == ("completed", 0.0)


@pytest.mark.parametrize("pause_s", [0.0, 50.0])
@pytest.mark.parametrize("kind", ["memory", "behind"])
async def test_a_key_that_was_taken_over_brings_the_answer_of_who_has_it(kind: str, pause_s: float) -> None:
    both = await Overtaken(kind, pause_s).run()
    for router in (both.bank.router, both.second):
        await both.call(router)
    assert [answer.output for answer in both.answers[2:]] == ["another answer"] * 2


@pytest.mark.parametrize("kind", ["memory", "behind", "sqlite"])
async def test_one_whose_key_was_taken_over_by_one_that_failed_is_billed_and_its_answer_kept(
    kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "s.db" if kind == "sqlite" else None
    both = await Overtaken(kind, 0.0, [ProviderFault("auth")], path).run()
    assert await both.bank.purse() == (LIMIT, COST, 0)
    for router in (both.bank.router, both.second):
        await both.call(router)
    assert [answer.output for answer in both.answers] == ["an answer"] * 3
    assert len(both.bank.good.calls) == 1
    await both.bank.storage.aclose()


async def test_a_call_that_runs_keeps_its_key_and_its_bill_however_many_come_meanwhile() -> None:
    bank = Bank([Pause(10.0), *ANSWER], *[ANSWER] * 4, terms=[account(monthly_nanos=10**9)])
    bank.storage = MemoryStorage(newest=1)
    bank.use(bank.storage)
    await bank.open()
    answers: list[Any] = []

    async def call() -> None:
        answers.append(await bank.route(idempotency_key="k"))

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await bank.clock.sleep(1.0)
        for number in range(3):
            await bank.route(idempotency_key=f"k{number}")
        group.start_soon(call)
    assert await bank.purse() == (10**9, 4 * COST, 0)
    assert len({answer.trace_id for answer in answers}) == 1


class Looks(Failing):
    """A storage that counts how often it is asked who has a key."""

    asked = 0

    async def read(self, account: str, query: Any) -> Any:
        self.asked += isinstance(query, ClaimByKey)
        return await super().read(account, query)


async def gone() -> tuple[Bank, Looks]:
    """Another process has the key, and is gone: its lease runs on for 30 seconds. The storage is another's."""
    bank = await Bank([Pause(100.0)], ANSWER, terms=[account(monthly_nanos=LIMIT)]).open()
    away = Failing(bank)
    bank.use(away)
    away.away = (EndClaim, KeepLease)
    with bank.clock.deadline(1.0):
        await bank.route(idempotency_key="k", timeout_ms=20_000)
    looks = Looks(bank)
    bank.use(looks)
    return bank, looks


async def test_a_key_of_who_is_gone_is_waited_for_no_longer_than_a_call_has_time() -> None:
    bank, looks = await gone()
    with pytest.raises(RouterTimeoutError, match="idempotency key"):
        await bank.route(idempotency_key="k", timeout_ms=20_000)
    assert bank.clock.monotonic() == pytest.approx(21.0)
    assert looks.asked < 60, "ever less often"
    assert await bank.charged() == 0


async def test_a_key_of_who_is_gone_is_another_s_when_its_lease_is_over() -> None:
    bank, _ = await gone()
    await bank.clock.sleep(20.0)
    assert (await bank.route(idempotency_key="k", timeout_ms=20_000)).output == "an answer"
    assert 30.0 <= bank.clock.monotonic() < 31.0


async def test_who_joins_a_call_whose_bill_cannot_be_written_waits_no_longer_than_its_time() -> None:
    bank = await Bank(ANSWER, terms=[account(monthly_nanos=LIMIT)]).open()
    storage = Failing(bank)
    bank.use(storage)
    storage.away = (EndClaim,)
    assert (await bank.route(idempotency_key="k", timeout_ms=2_000)).output == "an answer"
    began = bank.clock.monotonic()
    with pytest.raises(RouterTimeoutError, match="idempotency key"):
        await bank.route(idempotency_key="k", timeout_ms=2_000)
    assert bank.clock.monotonic() - began == pytest.approx(2.0)
    storage.away = ()
    assert (await bank.route(idempotency_key="k", timeout_ms=2_000)).output == "an answer"
    assert await bank.purse() == (LIMIT, COST, 0)
