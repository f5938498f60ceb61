"""A call's pending writes survive any storage error, and storage results are validated before use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from routewright import Console, MemoryStorage, Pricing, ProviderFault, SqliteStorage
from routewright._core.money import MOST_TOKENS
from routewright.errors import InternalError, StorageUnavailable, UnsupportedWrite, UpstreamFailed
from routewright.protocols import Facts
from routewright.testing import ScriptedProvider
from routewright.wire import Ask, Replay, Stands, Tokens, UpstreamCall, Usage

from .behind import NOTHING, Behind, Look, Widen
from .support import traces_in
from .test_admission import ACME, ANSWER, COST, ONE, Bank, account

pytestmark = pytest.mark.anyio
LIMIT = 10**9
ODD = [ValueError("odd"), KeyError("odd"), InternalError("odd"), asyncio.CancelledError("odd")]


Odd = Callable[..., Awaitable[tuple[Bank, Behind]]]


@pytest.fixture(params=["memory", "sqlite"])
async def odd(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Odd]:
    """Makes a bank whose storage turns odd when it is told to. Its router is closed at the end of the test."""
    banks: list[Bank] = []

    async def made(*script: Any) -> tuple[Bank, Behind]:
        bank = Bank(*(script or [ANSWER] * 5), terms=[account(monthly_nanos=LIMIT)])
        banks.append(bank)
        if request.param == "sqlite":
            bank.storage = SqliteStorage(tmp_path / "s.db", clock=bank.clock)  # type: ignore[assignment]
        storage = bank.behind()
        return await bank.open(), storage

    yield made
    for bank in banks:
        await bank.router.aclose()


@pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
async def test_a_settlement_refused_once_is_booked_and_its_answer_kept(odd: Odd, error: BaseException) -> None:
    bank, storage = await odd()
    storage.refuse(Facts, error=error, times=1)
    answer = await bank.route(idempotency_key="k")
    assert answer.output == "an answer"
    await bank.clock.sleep(1.0)
    assert await bank.purse() == (LIMIT, COST, 0)
    assert (await bank.route(idempotency_key="k")).trace_id == answer.trace_id
    assert len(bank.good.calls) == 1


async def test_a_delayed_settlement_keeps_its_hold_and_is_booked_in_full(odd: Odd) -> None:
    bank, storage = await odd()
    storage.away = (Facts,)
    answer = await bank.route(idempotency_key="k")
    await bank.clock.sleep(20.0)
    assert (await bank.purse())[2] > COST
    storage.away = ()
    await bank.clock.sleep(10.0)
    assert await bank.purse() == (LIMIT, COST, 0)
    assert (await bank.route(idempotency_key="k")).trace_id == answer.trace_id
    assert [trace.id for trace in await traces_in(bank.storage, "acme")] == [answer.trace_id]
    assert bank.router.trace_counts == (0, 0, 0, 0, 0)


async def test_a_refused_trace_loses_neither_bill_nor_kept_answer(odd: Odd) -> None:
    bank, storage = await odd()

    def refuse(thing: Any) -> None:
        if isinstance(thing, Facts) and thing.trace is not None:
            raise ValueError("odd")

    storage.before = refuse
    answer = await bank.route(idempotency_key="k")
    assert await bank.purse() == (LIMIT, COST, 0)
    assert (await bank.route(idempotency_key="k")).output == answer.output
    assert bank.router.trace_counts.refused == 1


def detailed(thing: Any) -> None:
    """Refuse bills that say what was used."""
    if isinstance(thing, Facts) and any(row.tokens != Tokens() for row in thing.rows):
        raise ValueError("odd")


async def test_a_refused_settlement_is_booked_without_detail_and_frees_its_key(odd: Odd) -> None:
    bank, storage = await odd()
    storage.before = detailed
    first = await bank.route(idempotency_key="k")
    assert await bank.purse() == (LIMIT, COST, 0)
    (row,) = await bank.rows()
    assert (row.request_id, row.attempt, row.charge_nanos, row.note) == (
        first.trace_id, 1, COST, "the storage refused to book it as it was",
    )  # fmt: skip
    storage.before = lambda _: None
    assert (await bank.route(idempotency_key="k")).trace_id != first.trace_id


async def test_a_settlement_booked_without_detail_charges_at_most_the_reservation(odd: Odd) -> None:
    overrun = [*ANSWER[:1], replace(ANSWER[1], output=10_000), *ANSWER[2:]]  # type: ignore[type-var]
    bank, storage = await odd(overrun)
    storage.before = detailed
    await bank.route(idempotency_key="k")
    (ask,) = storage.of(Ask)
    assert await bank.purse() == (LIMIT, ask.nanos, 0)
    assert 0 < ask.nanos < 100 * 1_000 + 10_000 * 4_000


async def test_a_shortened_settlement_without_limits_charges_its_cost(odd: Odd) -> None:
    bank, storage = await odd()
    await bank.storage.apply("acme", [account()])
    storage.before = detailed
    await bank.route(idempotency_key="k")
    assert await bank.charged() == COST


@pytest.mark.parametrize("error", [ValueError("CANARY"), UnsupportedWrite("no ledger")], ids=repr)
async def test_a_settlement_refused_for_good_is_counted_and_logged(
    odd: Odd, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    bank, storage = await odd()
    storage.refuse(Facts, error=error)
    answer = await bank.route(idempotency_key="k")
    assert bank.router.trace_counts == (0, 1, 0, 0, 1)
    with pytest.raises(InternalError, match="1 were refused") as told:
        await bank.router.flush()
    (said,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert said.getMessage().startswith(
        f"money is lost: call {answer.trace_id} of account acme (cost $0.0003, charge $0.0003) is not in the ledger: "
    )
    assert "CANARY" not in caplog.text + str(told.value)
    assert len(storage.of(Facts)) == (1 if isinstance(error, UnsupportedWrite) else 3)


async def test_a_failing_settlement_delays_no_other(odd: Odd) -> None:
    bank, storage = await odd()
    first: list[str] = []

    def refuse(thing: Any) -> None:
        if isinstance(thing, Facts) and thing.id == (first or [thing.id])[0]:
            first.append(thing.id)
            raise StorageUnavailable("away")

    storage.before = refuse
    await bank.route()
    assert (await bank.purse())[1] == 0
    for count in (1, 2, 3):
        await bank.route()
        assert (await bank.purse())[1] == count * COST
    assert bank.router.trace_counts.waiting == 1


async def test_closing_names_what_could_not_be_booked(odd: Odd, caplog: pytest.LogCaptureFixture) -> None:
    bank, storage = await odd()
    storage.away = (Facts,)
    answer = await bank.route(idempotency_key="k")
    await bank.router.aclose()
    assert (await bank.purse())[1] == 0
    assert f"money is lost: call {answer.trace_id} of account acme" in caplog.text


@pytest.mark.parametrize("gives", [NOTHING, 5, "garbage", [None]], ids=lambda gives: type(gives).__name__)
async def test_a_wrong_result_of_settle_does_not_count_as_booked(odd: Odd, gives: Any) -> None:
    bank, storage = await odd()
    garbled = [gives] * 2
    storage.before = lambda thing: garbled.pop() if isinstance(thing, Facts) and garbled else None
    await bank.route(idempotency_key="l")
    assert await bank.purse() == (LIMIT, COST, 0)
    assert len(storage.of(Facts)) == 3


@pytest.mark.parametrize(
    "gives", [NOTHING, 5, [], "garbage", [None], {"fingerprint": "x"}], ids=lambda gives: type(gives).__name__
)
@pytest.mark.parametrize("asked", [Look, Ask])
async def test_a_wrong_result_of_look_or_admit_fails_before_a_call_is_made(odd: Odd, asked: type, gives: Any) -> None:
    bank, storage = await odd()
    storage.before = lambda thing: gives if isinstance(thing, asked) else None
    given = "NoneType" if gives is NOTHING else type(gives).__name__
    with pytest.raises(InternalError, match=rf"^AccountsBehind\.\w+ must return .*, got {given}$"):
        await bank.route(idempotency_key="k")
    assert bank.good.calls == []
    storage.before = lambda _: None
    assert (await bank.route(idempotency_key="k")).output == "an answer"
    assert await bank.purse() == (LIMIT, COST, 0)


@pytest.mark.parametrize("error", [ValueError("CANARY"), KeyError("CANARY"), OSError(5, "CANARY")], ids=repr)
@pytest.mark.parametrize("asked", [Look, Ask])
async def test_an_exception_of_a_storage_becomes_a_router_error_without_its_message(
    odd: Odd, asked: type, error: Exception
) -> None:
    bank, storage = await odd()
    storage.refuse(asked, error=error, times=1)
    with pytest.raises(InternalError, match=f"^the storage failed with {type(error).__name__}$"):
        await bank.route(idempotency_key="k")
    assert (await bank.route(idempotency_key="k")).output == "an answer"
    assert await bank.purse() == (LIMIT, COST, 0)


@pytest.mark.parametrize("asked", [Look, Ask])
async def test_a_storage_that_cancels_itself_cancels_no_call(odd: Odd, asked: type) -> None:
    bank, storage = await odd()
    storage.refuse(asked, error=asyncio.CancelledError(), times=1)
    with pytest.raises(StorageUnavailable, match=r"^the storage cancelled itself$"):
        await bank.route(idempotency_key="k")
    assert (await bank.route(idempotency_key="k")).output == "an answer"


@pytest.mark.parametrize("gives", [False, *ODD], ids=lambda gives: type(gives).__name__)
async def test_a_fallback_that_cannot_widen_its_reservation_uses_what_it_has(odd: Odd, gives: Any) -> None:
    bank, storage = await odd()

    def fails(call: UpstreamCall) -> ProviderFault:
        if gives is False:
            storage.before = lambda thing: False if isinstance(thing, Widen) else None
        else:
            storage.refuse(Widen, error=gives)
        return ProviderFault("auth")

    dear = replace(ONE, pricing_per_1m=Pricing(4.0, 16.0))
    spare = ScriptedProvider(
        [ANSWER], models=[replace(ONE, id="spare/two", quality=0.5, pricing_per_1m=Pricing(2.0, 8.0))], clock=bank.clock
    )
    bank.use(storage, providers=[ScriptedProvider(fails, models=[dear], clock=bank.clock), spare])
    answer = await bank.route(goal="quality")
    assert answer.routing.selected_model == "spare/two", "its worst case is the smaller one"
    assert (await bank.purse())[2] == 0


async def test_the_dearest_call_that_can_be_is_booked_alike_in_all_storages(odd: Odd) -> None:
    most = replace(ANSWER[1], input=MOST_TOKENS, output=MOST_TOKENS)  # type: ignore[type-var]
    bank, storage = await odd([ANSWER[0], most, ANSWER[2]])
    dearest = replace(ONE, pricing_per_1m=Pricing(10_000.0, 10_000.0))
    await bank.storage.apply("acme", [account(monthly_nanos=2**62)])
    provider = ScriptedProvider([[ANSWER[0], most, ANSWER[2]]] * 3, models=[dearest], clock=bank.clock)
    bank.use(storage, providers=[provider])
    for _ in range(3):
        await bank.route()
    assert await bank.purse() == (2**62, 3 * 2 * 10**15, 0)
    assert (await bank.rows())[0].overrun_nanos > 10**15
    assert bank.router.trace_counts == (0, 0, 0, 0, 0)


@pytest.mark.parametrize("usage", [Usage(5, 2**52), Usage(MOST_TOKENS + 1, 5)], ids=repr)
async def test_impossible_usage_is_ignored_and_never_billed(odd: Odd, usage: Usage) -> None:
    bank, _ = await odd(*[[ANSWER[0], usage, ANSWER[2]]] * 9)
    with pytest.raises(UpstreamFailed):
        await bank.route(fallback={"maxRetries": 0})
    assert await bank.purse() == (LIMIT, 0, 0)
    assert all(row.cost_nanos < LIMIT for row in await bank.rows())


async def test_an_invalid_kept_answer_is_a_storage_fault(odd: Odd) -> None:
    bank, storage = await odd()
    storage.before = lambda thing: Replay(b"CANARY") if isinstance(thing, Ask) else None
    with pytest.raises(InternalError, match=r"^the storage failed with \w+$"):
        await bank.route(idempotency_key="k")


async def test_a_booked_settlement_is_never_booked_twice(odd: Odd) -> None:
    """Each part is taken, and then refused all the same."""
    bank, storage = await odd(ProviderFault("server"), ANSWER)
    settle = storage.accounts.settle

    async def forgets(*asked: Any) -> Any:
        await settle(*asked)
        raise ValueError("odd") if len(storage.of(Facts)) < 3 else StorageUnavailable("away")

    storage.accounts.settle = forgets  # type: ignore[assignment, method-assign]
    await bank.route(idempotency_key="k")
    await bank.clock.sleep(60.0)
    storage.accounts.settle = settle  # type: ignore[method-assign]
    await bank.clock.sleep(10.0)
    assert await bank.purse() == (LIMIT, COST, 0)
    assert bank.router.trace_counts.waiting == 0


class TracesAlone:
    """A storage without ``accounts`` that keeps all else, or knows nothing of accounts."""

    def __init__(self, *, knows_accounts: bool = True) -> None:
        self.kept = MemoryStorage()
        self._knows_accounts = knows_accounts
        self.looks = 0

    def __getattr__(self, name: str) -> Any:
        if name in ("accounts", "keep"):
            raise AttributeError(name)
        return getattr(self.kept, name)

    async def read(self, account: str, query: Any) -> Any:
        if isinstance(query, Stands):
            self.looks += 1
            if not self._knows_accounts:
                raise UnsupportedWrite("no query Stands")
        return await self.kept.read(account, query)


NAMES_THE_SUITE = r"has no `accounts`, .* AccountsContract of tests/contracts$"


@pytest.mark.parametrize("knows", [True, False])
async def test_a_storage_without_accounts_serves_callers_without_limits_only(knows: bool) -> None:
    bank, storage = Bank(*[ANSWER] * 3), TracesAlone(knows_accounts=knows)
    bank.use(storage)
    assert (await bank.router.route("hi", budget={"maxCostUsd": 1.0})).output == "an answer"
    assert storage.looks == 0
    assert (await bank.route()).output == "an answer"
    assert (await bank.route()).output == "an answer"
    prepared = bank.router.prepare({"messages": [{"role": "user", "content": "hi"}]}, caller=ACME)
    assert (await prepared.count_tokens()).model == ONE.id
    assert storage.looks == 1
    for needs in ({"idempotency_key": "k"}, {"caller": replace(ACME, key_id=f"key_{'0' * 26}")}):
        with pytest.raises(InternalError, match=NAMES_THE_SUITE):
            await bank.route(**needs)
    await bank.router.aclose()


async def test_an_account_in_a_storage_without_accounts_is_refused_instead_of_served_without_limits() -> None:
    bank, storage = Bank(), TracesAlone()
    await storage.kept.apply("acme", [account(plan="free")])
    bank.use(storage)
    prepared = bank.router.prepare({"messages": [{"role": "user", "content": "hi"}]}, caller=ACME)
    for call in (bank.route, bank.route, prepared.count_tokens):
        with pytest.raises(InternalError, match=NAMES_THE_SUITE):
            await call()
    await bank.router.aclose()


async def test_an_account_created_later_is_noticed() -> None:
    bank, storage = Bank(*[ANSWER] * 2), TracesAlone()
    bank.use(storage)
    assert (await bank.route()).output == "an answer"
    await storage.kept.apply("acme", [account(plan="free")])
    await bank.clock.advance(3.0)
    with pytest.raises(InternalError, match=NAMES_THE_SUITE):
        await bank.route()
    await bank.router.aclose()


async def test_a_console_refuses_limits_that_the_storage_cannot_enforce() -> None:
    storage = TracesAlone()
    await storage.kept.apply("acme", [account()])
    console = Console(storage, secret="s" * 32)
    for made in (console.create_account("umbra"), console.create_key("acme", name="x")):
        with pytest.raises(InternalError, match=NAMES_THE_SUITE):
            await made
