"""What a call owes is booked whatever the storage raises or gives; and what it gives is looked at before it is used."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from routewright import (
    InternalError,
    MemoryStorage,
    PreconditionFailed,
    Pricing,
    ProviderFault,
    Router,
    RouterError,
    RouterTimeoutError,
    Settings,
    SqliteStorage,
    StorageUnavailable,
    UnsupportedWrite,
    UpstreamFailed,
)
from routewright._core.money import MOST_TOKENS
from routewright.testing import Pause, ScriptedProvider
from routewright.wire import (
    ClaimByKey,
    ClaimKey,
    EndClaim,
    PutTrace,
    Reserve,
    Settle,
    Snapshot,
    Stands,
    Tokens,
    UpstreamCall,
    Usage,
    Write,
)

from .support import traces_in
from .test_admission import ACME, ANSWER, CAP, COST, ONE, Bank, account

pytestmark = pytest.mark.anyio
LIMIT = 10**9
ODD = [ValueError("odd"), KeyError("odd"), InternalError("odd"), asyncio.CancelledError("odd")]


class Odd:
    """A storage that refuses, or answers, as a test says."""

    def __init__(self, kept: Any) -> None:
        self.kept = kept
        self.refuses: Callable[[Sequence[Write]], bool] = lambda writes: False
        self.error: BaseException = ValueError("odd")
        self.times = 10**9
        self.kind: type | None = None
        """Reads and writes of this kind are answered with ``gives``."""
        self.gives: Any = None

    def refuse(self, kind: type, error: BaseException | None = None, times: int = 10**9) -> None:
        """Refuse batches with writes of a kind, so often."""
        self.refuses = lambda writes: any(isinstance(write, kind) for write in writes)
        self.error, self.times = error or self.error, times

    async def apply(self, account: str, writes: Sequence[Write]) -> Any:
        if self.times and self.refuses(writes):
            self.times -= 1
            raise self.error
        if self.kind is not None and any(isinstance(each, self.kind) for each in writes):
            return self._garbled()
        return await self.kept.apply(account, writes)

    async def read(self, account: str, query: Any) -> Any:
        if self.kind is not None and isinstance(query, self.kind):
            return self._garbled()
        return await self.kept.read(account, query)

    def _garbled(self) -> Any:
        if isinstance(self.gives, BaseException):
            raise self.gives
        return self.gives

    async def scan(self, account: str, query: Any, *, after: str | None, limit: int) -> Any:
        return await self.kept.scan(account, query, after=after, limit=limit)

    async def sweep(self, now: float) -> int:
        return 0

    async def aclose(self) -> None:
        await self.kept.aclose()


class OddAtOnce(Odd):
    """One that never waits."""

    def keep(self, account: str, draft: Any, snapshots: Sequence[Snapshot]) -> None:
        self.kept.keep(account, draft, snapshots)


@pytest.fixture(params=["memory", "behind", "sqlite"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def odd(kind: str, tmp_path: Path, *script: Any) -> tuple[Bank, Odd]:
    """A bank whose storage turns odd when it is told to."""
    bank = Bank(*(script or [ANSWER] * 5), terms=[account(monthly_nanos=LIMIT)])
    bank.storage = SqliteStorage(tmp_path / "s.db", clock=bank.clock) if kind == "sqlite" else MemoryStorage()  # type: ignore[assignment]
    storage = OddAtOnce(bank.storage) if kind == "memory" else Odd(bank.storage)
    bank.use(storage)
    return await bank.open(), storage


@pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
async def test_a_bill_that_is_refused_once_is_booked_and_its_answer_kept(
    kind: str, tmp_path: Path, error: BaseException
) -> None:
    bank, storage = await odd(kind, tmp_path)
    storage.refuse(Settle, error, times=2)
    answer = await bank.route(idempotency_key="k")
    assert answer.output == "an answer"
    await bank.clock.sleep(1.0)
    assert await bank.purse() == (LIMIT, COST, 0)
    assert (await bank.route(idempotency_key="k")).trace_id == answer.trace_id
    assert len(bank.good.calls) == 1
    assert [trace.id for trace in await traces_in(bank.storage, "acme")] == [answer.trace_id]
    await bank.router.aclose()


async def test_a_bill_that_is_refused_for_a_while_keeps_what_it_holds_and_is_booked_whole_in_the_end(
    kind: str, tmp_path: Path
) -> None:
    bank, storage = await odd(kind, tmp_path)
    bank.router, other = (
        Router(
            providers=[bank.good],
            storage=storage,
            coordination=bank.coordination,
            settings=Settings(clock=bank.clock, lease_s=2.0),
        )
        for _ in range(2)
    )
    asked: dict[str, Any] = {"idempotency_key": "k", "timeout_ms": 1_000, "params": CAP, "caller": ACME}
    storage.refuse(Settle)
    answer = await bank.route(**asked)
    await bank.clock.sleep(20.0)
    assert (await bank.purse())[2] > COST
    with pytest.raises(RouterTimeoutError):  # its key is not another's, either
        await other.route("hi", **asked)
    storage.times = 0
    await bank.clock.sleep(10.0)
    assert await bank.purse() == (LIMIT, COST, 0)
    assert (await other.route("hi", **asked)).trace_id == answer.trace_id
    assert len(bank.good.calls) == 1
    assert bank.router.trace_counts == (0, 0, 0, 0, 0)
    await bank.router.aclose()
    await other.aclose()


async def test_a_trace_that_is_refused_costs_no_bill_and_no_kept_answer(tmp_path: Path) -> None:
    bank, storage = await odd("behind", tmp_path)
    storage.refuse(PutTrace)
    answer = await bank.route(idempotency_key="k")
    assert await bank.purse() == (LIMIT, COST, 0)
    assert (await bank.route(idempotency_key="k")).output == answer.output
    assert bank.router.trace_counts.refused == 1
    await bank.router.aclose()


async def test_a_bill_that_is_never_taken_as_it_is_is_booked_without_detail_and_its_key_is_free(
    kind: str, tmp_path: Path
) -> None:
    bank, storage = await odd(kind, tmp_path)
    storage.refuses = lambda writes: any(
        isinstance(write, Settle) and any(row.tokens != Tokens() for row in write.rows) for write in writes
    )
    first = await bank.route(idempotency_key="k")
    await bank.clock.sleep(20.0)
    assert (await bank.purse())[1] == 0, "what was odd may pass"
    await bank.clock.sleep(20.0)
    assert await bank.purse() == (LIMIT, COST, 0)
    (row,) = await bank.rows()
    assert (row.request_id, row.attempt, row.charge_nanos, row.note) == (
        first.trace_id, 1, COST, "the storage refused to book it as it was",
    )  # fmt: skip
    storage.times = 0
    assert (await bank.route(idempotency_key="k")).trace_id != first.trace_id
    await bank.router.aclose()


async def test_of_a_bill_that_is_never_taken_as_it_is_no_more_than_was_set_aside_is_charged(tmp_path: Path) -> None:
    overrun = [*ANSWER[:1], replace(ANSWER[1], output=10_000), *ANSWER[2:]]  # type: ignore[type-var]
    bank, storage = await odd("behind", tmp_path, overrun)
    storage.refuses = lambda writes: any(isinstance(write, EndClaim) and write.result for write in writes)
    await bank.route(idempotency_key="k")
    reserved = (await bank.purse())[2]
    await bank.clock.sleep(60.0)
    assert await bank.purse() == (LIMIT, reserved, 0)
    assert 0 < reserved < 100 * 1_000 + 10_000 * 4_000
    await bank.router.aclose()


async def test_a_bill_that_is_refused_for_good_is_counted_and_said_aloud(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bank, storage = await odd(kind, tmp_path)
    storage.refuse(Settle, ValueError("CANARY"))
    answer = await bank.route(idempotency_key="k")
    await bank.clock.sleep(700.0)
    assert bank.router.trace_counts == (0, 1, 0, 0, 1)
    with pytest.raises(InternalError, match="1 were refused") as told:
        await bank.router.flush()
    (said,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert said.getMessage() == (
        f"money is lost: call {answer.trace_id} of account acme (cost $0.0003, charge $0.0003) is not in the ledger: "
        "ValueError"
    )
    assert "CANARY" not in caplog.text + str(told.value)
    await bank.router.aclose()


async def test_a_bill_that_is_refused_holds_up_no_other(kind: str, tmp_path: Path) -> None:
    bank, storage = await odd(kind, tmp_path)
    refused: list[str] = []

    def refuses(writes: Sequence[Write]) -> bool:
        ids = [write.id for write in writes if isinstance(write, Settle)]
        refused.extend(ids[: 1 - len(refused)])
        return any(each in refused for each in ids)

    storage.refuses = refuses
    await bank.route()
    assert (await bank.purse())[1] == 0
    for count in (1, 2, 3):
        await bank.route()
        assert (await bank.purse())[1] == count * COST
    assert bank.router.trace_counts.waiting == 1
    await bank.router.aclose()


@pytest.mark.parametrize("until", [Settle, EndClaim])
async def test_closing_books_what_it_can_and_names_the_rest(
    until: type, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bank, storage = await odd(kind, tmp_path)
    storage.refuse(until)
    answer = await bank.route(idempotency_key="k")
    await bank.router.aclose()
    assert (await bank.purse())[1] == (COST if until is EndClaim else 0)
    lost = f"money is lost: call {answer.trace_id} of account acme" in caplog.text
    assert lost == (until is Settle)


async def test_a_storage_without_a_ledger_is_not_asked_again(tmp_path: Path) -> None:
    bank, storage = await odd("behind", tmp_path)
    storage.refuse(Settle, UnsupportedWrite("no ledger"))
    await bank.route()
    assert bank.router.trace_counts == (0, 1, 0, 0, 1)
    await bank.router.aclose()


@pytest.mark.parametrize("gives", [None, 5, [], "garbage", [None]], ids=repr)
async def test_what_a_storage_says_of_a_bill_is_not_taken_for_booked(kind: str, tmp_path: Path, gives: Any) -> None:
    bank, storage = await odd(kind, tmp_path)
    await bank.route(idempotency_key="k")
    storage.kind, storage.gives = Settle, gives
    await bank.route(idempotency_key="l")
    assert (await bank.purse())[1] == COST
    storage.kind = None
    await bank.clock.sleep(10.0)
    assert await bank.purse() == (LIMIT, 2 * COST, 0)
    await bank.router.aclose()


GARBAGE = [
    (asked, gives)
    for asked in (Stands, ClaimByKey, ClaimKey, Reserve)
    for gives in (None, 5, [], "garbage", [None], {"fingerprint": "x"})
    if (asked, gives) != (ClaimByKey, None)  # nobody has the key
]


@pytest.mark.parametrize(("asked", "gives"), GARBAGE, ids=repr)
async def test_what_a_storage_gives_is_looked_at_before_a_call_is_made(
    kind: str, tmp_path: Path, asked: type, gives: Any
) -> None:
    bank, storage = await odd(kind, tmp_path)
    storage.kind, storage.gives = asked, gives
    with pytest.raises(InternalError, match=rf"^Odd(AtOnce)?\.\w+ has to give .*, and gave {type(gives).__name__}$"):
        await bank.route(idempotency_key="k")
    assert bank.good.calls == []
    storage.kind = None
    await bank.clock.sleep(1.0)
    assert (await bank.route(idempotency_key="k")).output == "an answer"
    assert await bank.purse() == (LIMIT, COST, 0)
    await bank.router.aclose()


@pytest.mark.parametrize("error", [ValueError("CANARY"), KeyError("CANARY"), OSError(5, "CANARY")], ids=repr)
@pytest.mark.parametrize("asked", [Stands, ClaimByKey, ClaimKey, Reserve])
async def test_what_a_storage_raises_comes_out_as_ours_without_a_word_of_it(
    kind: str, tmp_path: Path, asked: type, error: Exception
) -> None:
    bank, storage = await odd(kind, tmp_path)
    storage.kind, storage.gives = asked, error
    with pytest.raises(InternalError, match=f"^the storage failed with {type(error).__name__}$"):
        await bank.route(idempotency_key="k")
    storage.kind = None
    await bank.clock.sleep(1.0)
    assert (await bank.route(idempotency_key="k")).output == "an answer"
    assert await bank.purse() == (LIMIT, COST, 0)
    await bank.router.aclose()


@pytest.mark.parametrize("asked", [Stands, ClaimByKey, ClaimKey, Reserve])
async def test_a_storage_that_cancels_itself_cancels_no_call(kind: str, tmp_path: Path, asked: type) -> None:
    bank, storage = await odd(kind, tmp_path)
    storage.kind, storage.gives = asked, asyncio.CancelledError()
    with pytest.raises(StorageUnavailable, match=r"^the storage cancelled itself$"):
        await bank.route(idempotency_key="k")
    storage.kind = None
    await bank.clock.sleep(1.0)
    assert (await bank.route(idempotency_key="k")).output == "an answer"
    await bank.router.aclose()


@pytest.mark.parametrize("gives", [None, [], *ODD], ids=repr)
async def test_a_fallback_that_no_more_can_be_set_aside_for_has_to_do_with_what_is(
    kind: str, tmp_path: Path, gives: Any
) -> None:
    bank, storage = await odd(kind, tmp_path)

    def fails(call: UpstreamCall) -> ProviderFault:
        storage.kind, storage.gives = Reserve, gives
        return ProviderFault("auth")

    dear = replace(ONE, pricing_per_1m=Pricing(4.0, 16.0))
    spare = ScriptedProvider(
        [ANSWER], models=[replace(ONE, id="spare/two", quality=0.5, pricing_per_1m=Pricing(2.0, 8.0))], clock=bank.clock
    )
    bank.use(storage, providers=[ScriptedProvider(fails, models=[dear], clock=bank.clock), spare])
    answer = await bank.route(goal="quality")
    assert answer.routing.selected_model == "spare/two", "its worst case is the smaller one"
    storage.kind = None
    await bank.clock.sleep(1.0)
    assert (await bank.purse())[2] == 0
    await bank.router.aclose()


@pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
async def test_what_a_call_held_that_came_to_nothing_is_given_back_though_that_is_refused_at_first(
    kind: str, tmp_path: Path, error: BaseException
) -> None:
    bank, storage = await odd(kind, tmp_path, [Pause(0.1), *ANSWER], ANSWER)
    storage.refuse(Settle, error, times=3)
    storage.kind, storage.gives = Reserve, [None]
    with pytest.raises(RouterError):
        await bank.route(idempotency_key="k")
    storage.kind = None
    await bank.storage.apply("acme", [])
    await bank.clock.sleep(2.0)
    assert storage.times == 0
    assert (await bank.route(params={"max_output_tokens": 50}, caller=ACME, idempotency_key="k")).output == "an answer"
    assert await bank.purse() == (LIMIT, COST, 0)
    await bank.router.aclose()


async def test_the_dearest_call_that_can_be_is_booked_alike_in_all_storages(kind: str, tmp_path: Path) -> None:
    most = replace(ANSWER[1], input=MOST_TOKENS, output=MOST_TOKENS)  # type: ignore[type-var]
    bank, storage = await odd(kind, tmp_path, [ANSWER[0], most, ANSWER[2]])
    dearest = replace(ONE, pricing_per_1m=Pricing(10_000.0, 10_000.0))
    await bank.storage.apply("acme", [account(monthly_nanos=2**62)])
    provider = ScriptedProvider([[ANSWER[0], most, ANSWER[2]]] * 3, models=[dearest], clock=bank.clock)
    bank.use(storage, providers=[provider])
    for _ in range(3):
        await bank.route()
    assert await bank.purse() == (2**62, 3 * 2 * 10**15, 0)
    assert (await bank.rows())[0].overrun_nanos > 10**15
    assert bank.router.trace_counts == (0, 0, 0, 0, 0)
    await bank.router.aclose()


@pytest.mark.parametrize("usage", [Usage(5, 2**52), Usage(MOST_TOKENS + 1, 5)], ids=repr)
async def test_usage_that_no_call_can_come_to_is_no_usage_and_never_billed(
    kind: str, tmp_path: Path, usage: Usage
) -> None:
    bank, _ = await odd(kind, tmp_path, *[[ANSWER[0], usage, ANSWER[2]]] * 9)
    with pytest.raises(UpstreamFailed):
        await bank.route(fallback={"maxRetries": 0})
    limit, spent, reserved = await bank.purse()
    assert (limit, spent, reserved) == (LIMIT, 0, 0)
    assert all(row.cost_nanos < LIMIT for row in await bank.rows())
    await bank.router.aclose()


async def test_a_refusal_that_does_not_say_what_is_short_is_a_fault_of_the_storage(kind: str, tmp_path: Path) -> None:
    bank, storage = await odd(kind, tmp_path)
    storage.refuse(Reserve, PreconditionFailed("no"))
    with pytest.raises(InternalError, match=r"without saying which purse is short$"):
        await bank.route()
    assert bank.good.calls == []
    await bank.router.aclose()


async def test_a_kept_answer_that_is_none_is_a_fault_of_the_storage(kind: str, tmp_path: Path) -> None:
    bank, storage = await odd(kind, tmp_path)
    await bank.route(idempotency_key="k")
    found = await bank.storage.read("acme", ClaimByKey("k", "production", bank.clock.monotonic(), bank.clock.time()))
    storage.kind, storage.gives = ClaimByKey, replace(found, result=b"CANARY")
    with pytest.raises(InternalError, match=r"^the storage failed with \w+$"):
        await bank.route(idempotency_key="k")
    await bank.router.aclose()


async def test_a_bill_that_was_taken_is_never_doubled_whatever_was_said_of_it(kind: str, tmp_path: Path) -> None:
    """Each part is taken, and then refused all the same."""
    bank, storage = await odd(kind, tmp_path, ProviderFault("server"), ANSWER)
    kept, faults = storage.kept, 10**9

    class Forgets:
        def __getattr__(self, name: str) -> Any:
            return getattr(kept, name)

        async def apply(self, account: str, writes: Sequence[Write]) -> Any:
            nonlocal faults
            written = await kept.apply(account, writes)
            if faults and any(isinstance(write, Settle) for write in writes):
                faults -= 1
                raise ValueError("odd")
            return written

    storage.kept = Forgets()
    await bank.route(idempotency_key="k")
    await bank.clock.sleep(60.0)
    faults = 0
    await bank.clock.sleep(10.0)
    assert await bank.purse() == (LIMIT, COST, 0)
    assert bank.router.trace_counts == (0, 0, 0, 0, 0)
    await bank.router.aclose()


async def test_a_trace_whose_bill_was_taken_without_it_waits_for_a_storage_that_is_away(tmp_path: Path) -> None:
    bank, storage = await odd("behind", tmp_path)
    storage.refuse(PutTrace, times=1)
    inner, away = storage.apply, True

    async def apply(account: str, writes: Sequence[Write]) -> Any:
        if away and not storage.times and any(isinstance(write, PutTrace) for write in writes):
            raise StorageUnavailable("away")
        return await inner(account, writes)

    storage.apply = apply  # type: ignore[method-assign]
    answer = await bank.route(idempotency_key="k")
    assert await bank.purse() == (LIMIT, COST, 0)
    assert bank.router.trace_counts.waiting == 1
    away = False
    await bank.clock.sleep(10.0)
    assert [trace.id for trace in await traces_in(bank.storage, "acme")] == [answer.trace_id]
    assert await bank.purse() == (LIMIT, COST, 0)
    await bank.router.aclose()


async def test_the_bill_of_an_account_without_limits_is_cut_to_what_it_cost(tmp_path: Path) -> None:
    bank, storage = await odd("behind", tmp_path)
    await bank.storage.apply("acme", [account()])
    storage.refuses = lambda writes: any(isinstance(write, EndClaim) and write.result for write in writes)
    await bank.route(idempotency_key="k")
    await bank.clock.sleep(60.0)
    assert await bank.charged() == COST
    await bank.router.aclose()
