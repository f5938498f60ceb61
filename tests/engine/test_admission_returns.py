"""What a call took and cannot give back at once it gives back later, whatever stands in the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import anyio
import pytest

from routewright import QuotaExhausted, RateLimited, StorageUnavailable
from routewright.testing.provider import Pause
from routewright.wire import ClaimByKey, ClaimKey, EndClaim, PutTrace, RateLimits, Reserve, Write, Written

from .test_admission import ANSWER, COST, Bank, account
from .test_failing_parts import Failing

pytestmark = pytest.mark.anyio
POOR = [account(monthly_nanos=1)]


class Ends:
    """A coordination that takes slots at once, and hears of their ends as ``hears`` lets it."""

    def __init__(self, inner: Any, hears: Callable[[], Any]) -> None:
        self._inner = inner
        self._hears = hears
        self.heard = 0

    def __getattr__(self, name: str) -> Any:
        if name == "give_back":  # it is not immediate
            raise AttributeError(name)
        return getattr(self._inner, name)

    async def end(self, taken: Any, tokens: int | None = None) -> None:
        await self._hears()
        await self._inner.end(taken, tokens)
        self.heard += 1


async def slotted(*script: Any) -> Bank:
    terms = [account(limits=RateLimits(concurrency=1))]
    return await Bank(*script, terms=terms).open()


async def test_a_slot_that_could_not_be_given_back_in_time_is_given_back_behind_the_call() -> None:
    bank = await slotted(ANSWER, ANSWER)

    async def slowly() -> None:
        await bank.clock.sleep(3.0)

    bank.router._parts.coordination = ends = Ends(bank.coordination, slowly)
    await bank.route()
    assert bank.clock.monotonic() == 0.5
    assert ends.heard == 0
    with pytest.raises(RateLimited):
        await bank.route()
    await bank.clock.sleep(4.0)
    assert (await bank.route()).output == "an answer"


async def test_a_slot_whose_end_is_not_heard_of_is_given_back_behind_the_call() -> None:
    bank, away = await slotted(ANSWER, ANSWER), [StorageUnavailable("away")]

    async def once() -> None:
        if away:
            raise away.pop()

    bank.router._parts.coordination = Ends(bank.coordination, once)
    await bank.route()
    await bank.clock.sleep(0.1)
    assert (await bank.route()).output == "an answer"


class Stopped(BaseException):
    """Ends the program, or the task."""


async def faulty(fault: BaseException) -> Bank:
    """Of which the first end meets a fault that nobody knows."""
    bank, faults = await slotted(ANSWER, ANSWER), [fault]

    async def once() -> None:
        if faults:
            raise faults.pop()

    bank.router._parts.coordination = Ends(bank.coordination, once)
    return bank


async def test_an_answer_is_given_though_giving_its_slot_back_failed_and_the_slot_comes_back() -> None:
    bank = await faulty(RuntimeError("odd"))
    assert (await bank.route()).output == "an answer"
    await bank.clock.sleep(0.1)
    assert (await bank.route()).output == "an answer"


async def test_a_slot_comes_back_though_its_call_is_ended_as_it_is_given_back() -> None:
    bank = await faulty(Stopped())
    with pytest.raises(Stopped):
        await bank.route()
    await bank.clock.sleep(0.1)
    assert (await bank.route()).output == "an answer"


async def is_free(bank: Bank) -> bool:
    """Whether nobody has the key."""
    asked = ClaimByKey("k", "production", bank.clock.monotonic(), bank.clock.time())
    return await bank.storage.read("acme", asked) is None


async def test_a_key_of_a_refused_call_is_free_as_soon_as_the_storage_hears_of_it() -> None:
    bank = await Bank(terms=POOR).open()
    storage = Failing(bank)
    bank.use(storage)
    storage.away = (EndClaim,)
    with pytest.raises(QuotaExhausted):
        await bank.route(idempotency_key="k")
    await bank.clock.sleep(3.0)
    assert not await is_free(bank)
    storage.away = ()
    await bank.clock.sleep(6.0)
    assert await is_free(bank)


async def test_what_is_being_given_back_as_the_router_closes_is_tried_once_more() -> None:
    bank = await Bank(terms=POOR).open()
    hung: list[Write] = []

    class Hangs(Failing):
        async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
            if isinstance(writes[0], EndClaim) and not hung:
                hung.extend(writes)
                await anyio.sleep_forever()
            return await super().apply(account, writes)

    bank.use(Hangs(bank))
    with pytest.raises(QuotaExhausted):
        await bank.route(idempotency_key="k")
    await bank.clock.sleep(0.1)
    assert hung
    assert not await is_free(bank)
    await bank.router.aclose()
    assert await is_free(bank)


class DoneAndLost(Failing):
    """A storage that does a kind of write, and then ``fails``, once."""

    def __init__(self, bank: Bank, kind: type, fails: Callable[[], Any]) -> None:
        super().__init__(bank)
        self._kinds = [kind]
        self._fails = fails

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        written = await super().apply(account, writes)
        if self._kinds and isinstance(writes[0], self._kinds[0]):
            self._kinds.clear()
            await self._fails()
        return written


async def breaks() -> None:
    raise StorageUnavailable("the connection broke")


@pytest.mark.parametrize("fails", [breaks, anyio.sleep_forever])
@pytest.mark.parametrize("kind", [ClaimKey, Reserve])
async def test_what_was_taken_without_a_word_of_it_is_given_back(kind: type, fails: Callable[[], Any]) -> None:
    bank = await Bank([Pause(1.0), *ANSWER], terms=[account(monthly_nanos=500_000)]).open()
    bank.use(DoneAndLost(bank, kind, fails))
    with suppress(StorageUnavailable), bank.clock.deadline(bank.clock.monotonic() + 1.0):
        await bank.route(idempotency_key="k")
    assert bank.good.calls == []
    began = bank.clock.monotonic()
    assert (await bank.route(idempotency_key="k")).output == "an answer"
    assert bank.clock.monotonic() - began == pytest.approx(1.0, abs=0.1)
    assert await bank.purse() == (500_000, COST, 0)


class Refuses(Failing):
    """A storage that takes no trace of the account."""

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        if any(isinstance(each, PutTrace) for each in writes):
            raise ValueError("odd")
        return await super().apply(account, writes)


async def test_a_call_whose_trace_is_refused_is_billed_and_holds_nothing() -> None:
    bank = await Bank([Pause(5.0), *ANSWER], terms=[account(monthly_nanos=10**9)]).open()
    bank.use(Refuses(bank))
    answers: list[Any] = []

    async def call() -> None:
        answers.append(await bank.route(idempotency_key="k"))

    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(call)
    assert [answer.output for answer in answers] == ["an answer"] * 2
    assert bank.clock.monotonic() == pytest.approx(5.0)
    assert await bank.purse() == (10**9, COST, 0)
    assert bank.router.trace_counts.refused == 1
