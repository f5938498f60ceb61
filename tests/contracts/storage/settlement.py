"""Contract of settlement and the ledger: a call is booked once, its answer is kept for a day, unused money is released,
rows and sums are complete."""

from __future__ import annotations

from random import Random
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from routewright._core.accounts.ledger import key_of
from routewright.errors import IdempotencyKeyReused, PreconditionFailed
from routewright.testing import FakeClock
from routewright.wire import (
    SYSTEM_ACCOUNT,
    AddCredit,
    Claim,
    DeleteResults,
    DeleteTraces,
    Environment,
    Events,
    HealthSnapshot,
    LedgerRow,
    LedgerRows,
    LedgerSums,
    PutAccount,
    PutEvent,
    PutTrace,
    RateLimits,
    Replay,
    RunLimit,
    SetRetention,
    SnapshotById,
    StoredEvent,
    Tokens,
    TraceById,
)

from .accounts_model import AccountsWalk
from .admission import A_MOMENT_S, AccountsSuite
from .samples import (
    ALIKE,
    AT,
    BIG,
    EVENT_IDS,
    NEXT_MONTH,
    NOW,
    ODD_TEXTS,
    PURSES,
    RUN,
    Draft,
    Till,
    all_pages,
    ledger_sums,
    make_account,
    make_event,
    make_row,
    make_trace,
)

DAY_S = 24 * 3600.0
ANSWER = b'\x00{"output":"\xff"}'
BOTH: tuple[Environment, ...] = ("production", "sandbox")
ALIKE_CALLS = ("c", "c/", "c/1", "c/1/1", "c/-1", "c1", "c1/1", "c-1", "cU", "c\0", "c\0/1", "c😀", "c😀/0")
"""Ids that must not be taken for each other."""
DAYS = (("2026-11-19", "2026-11-21"), ("2026-11-20", "2026-11-20"), ("2026-11-22", "2026-11-21"))


class Settling(AccountsSuite):
    """A call's outcome is booked at every level, once, however often and late it is reported."""

    async def test_unused_money_is_freed_and_a_run_is_charged_the_cost(self, full: Till) -> None:
        await full.admit("c", 400, key="k", run=RUN)
        rows = make_row(attempt=1, cost=30, key_id="k"), make_row(attempt=2, charge=100, key_id="k", model="a/two")
        await full.settle("c", *rows)
        assert await full.purses() == {name: (130 if name == "run:r" else 100, 0) for name in PURSES}
        assert await full.rows(request_id="c") == [rows[1], rows[0]]

    @pytest.mark.parametrize("rows", [[], [make_row(charge=100)]], ids=["nothing", "booked"])
    async def test_a_repeated_settlement_changes_nothing(self, full: Till, rows: list[LedgerRow]) -> None:
        await full.admit("c", 400, key="k", run=RUN)
        for _ in range(3):
            await full.settle("c", *rows, run_nanos=200)
            spent = {name: (200 if name == "run:r" else 100, 0) for name in PURSES}
            assert await full.purses() == (spent if rows else dict.fromkeys(PURSES, (0, 0)))
            assert await full.rows(request_id="c") == rows

    async def test_concurrent_settlements_of_a_call_count_once(self, full: Till) -> None:
        await full.admit("c", 400)
        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(full.settle, "c", make_row(charge=100))
        assert (await full.purses())["account"] == (100, 0)

    async def test_rows_are_booked_once_even_without_a_grant(self, full: Till) -> None:
        first, second = make_row(attempt=1, charge=10), make_row(attempt=2, charge=20)
        for rows, spent in (([first], 10), ([first, second], 30)):
            await full.settle("c", *rows, key="k", run=RUN)
            assert await full.purses() == dict.fromkeys(PURSES, (spent, 0))
        assert await full.rows(request_id="c") == [second, first], "nothing is overrun"

    async def test_the_last_row_has_the_overrun_and_nothing_more_is_admitted(self, full: Till) -> None:
        await full.admit("c", 1_000)
        await full.settle("c", make_row(attempt=1, charge=500), make_row(attempt=2, charge=700))
        assert [row.overrun_nanos for row in await full.rows(request_id="c")] == [200, 0]
        refused = await full.short("d", 0)
        assert (refused.purse.spent_nanos, refused.waits) == (1_200, False)

    @pytest.mark.parametrize(
        ("charge", "cost", "run", "run_nanos", "overrun"),
        [
            (400, 400, None, None, 0),
            (401, 401, None, None, 1),
            (0, 500, None, None, 0),
            (0, 500, RUN, None, 100),
            (450, 500, RUN, None, 100),
            (0, 0, RUN, 402, 2),
            (0, 0, None, 402, 0),
        ],
    )
    async def test_a_run_is_overrun_by_cost_and_the_other_purses_by_charge(
        self, full: Till, charge: int, cost: int, run: RunLimit | None, run_nanos: int | None, overrun: int
    ) -> None:
        await full.admit("c", 400, run=run)
        await full.settle("c", make_row(charge=charge, cost=cost), run_nanos=run_nanos)
        assert [row.overrun_nanos for row in await full.rows(request_id="c")] == [overrun]

    async def test_trace_events_and_rows_are_stored_together_or_not_at_all(self, full: Till) -> None:
        trace = make_trace(1, account="acme")
        put = PutEvent(make_event(7), once="x", quiet_s=9.0, at=1.0)
        await full.admit(trace.id, 400)
        sandbox = Draft(make_trace(1, account="acme", environment="sandbox"))
        await full.put(PutTrace(trace))
        with pytest.raises(PreconditionFailed):
            await full.settle(trace.id, make_row(trace.id, charge=100), trace=sandbox, events=[put])
        assert (await full.purses())["account"] == (0, 400), "a trace of the other environment has the place"
        assert await full.storage.scan("acme", Events(), after=None, limit=9) == []
        fresh = replace(trace, status="failed")
        row, named = make_row(trace.id, charge=100), HealthSnapshot("hea_1", {})
        events = await full.settle(trace.id, row, trace=Draft(fresh), events=[put, put], snapshots=[named])
        assert await full.storage.read(SYSTEM_ACCOUNT, SnapshotById("hea_1")) == named
        assert [*events] == [put.event]
        assert await full.storage.scan("acme", Events(), after=None, limit=9) == [put.event]
        assert await full.storage.read("acme", TraceById(trace.id)) == fresh
        assert (await full.purses())["account"] == (100, 0)

    # Releases

    async def test_a_release_frees_all_but_the_request(self, full: Till) -> None:
        await full.put(PutAccount(make_account(prepaid=True, monthly_nanos=1_000, limits=RateLimits(
            requests_per_min=2, tokens_per_min=10, concurrency=1))))  # fmt: skip
        await full.admit("c", 400, key="k", run=RUN, tokens=10, same="i")
        for _ in range(2):
            full.release("c")
            assert await full.purses() == dict.fromkeys(PURSES, (0, 0))
        grant = await full.admit("d", 1_000, key="k", run=RUN, tokens=10, same="i")
        assert [state.remaining for state in grant.windows] == [0, 0]
        assert await full.kinds() == []

    async def test_a_released_call_may_still_be_booked(self, full: Till) -> None:
        await full.admit("c", 400)
        full.release("c")
        await full.settle("c", make_row(charge=30))
        assert (await full.purses())["account"] == (30, 0)

    # Thresholds of the month

    @pytest.mark.parametrize(
        ("charges", "expected"),
        [
            ([499, 1, 1], [[], [50], []]),
            ([500, 299, 1, 199, 1, 500], [[50], [], [80], [], [100], []]),
            ([800], [[50, 80]]),
            ([5_000, 5_000], [[50, 80, 100], []]),
            ([500, -400, 400], [[50], [], []]),
        ],
    )
    async def test_each_threshold_is_emitted_once(
        self, till: Till, charges: list[int], expected: list[list[int]]
    ) -> None:
        await till.open(monthly_nanos=1_000)
        assert [await _told(till, f"c{place}", charge) for place, charge in enumerate(charges)] == expected

    async def test_a_threshold_event_has_its_figures_and_is_stored(self, till: Till) -> None:
        await till.open(monthly_nanos=10_000_000_000)
        events = await till.settle("c", make_row(charge=8_500_000_000), event_id=EVENT_IDS)
        data = {"period": "2026-11", "threshold_percent": 50, "spent_usd": 8.5, "limit_usd": 10.0}
        first = StoredEvent(
            id="evt_1", type="billing.threshold_crossed", created_at=AT, data=data, account="acme",
            environment="production",
        )  # fmt: skip
        second = replace(first, id="evt_2", data=data | {"threshold_percent": 80})
        assert [*events] == [first, second]
        assert await till.storage.scan("acme", Events(), after=None, limit=9) == [second, first]
        assert not await till.settle("c", make_row(charge=8_500_000_000), event_id=EVENT_IDS)

    async def test_a_threshold_is_emitted_again_for_another_limit_or_month(self, till: Till) -> None:
        await till.open(monthly_nanos=1_000)
        await till.admit("runs", 1_000)
        assert await _told(till, "c1", 500) == [50]
        changes = [
            (10_000, 4_499, []), (10_000, 1, [50]), (10_000, 3_000, [80]), (100, 1, [50, 80, 100]), (None, 9, []),
            (10_000, 1, []), (1_000, 1, [80, 100]), (100, 1, []), (1_000, 1, []), (10_000, 2_000, [100]),
        ]  # fmt: skip
        for place, (limit, charge, expected) in enumerate(changes):
            await till.put(PutAccount(make_account(monthly_nanos=limit)))
            assert await _told(till, f"change {place}", charge) == expected
        await till.put(PutAccount(make_account(monthly_nanos=1_000)))
        assert await _told(till, "c2", 500, at=NEXT_MONTH) == [50]

    # Credit

    async def test_credit_is_given_once_and_may_be_taken_back(self, till: Till) -> None:
        await till.open(prepaid=True)
        assert not (await till.short("c", 1)).waits
        given = AddCredit("cr_1", 500, AT, note="invoice 7")
        assert [(await till.put(given)).created for _ in range(2)] == [True, False]
        await till.admit("c", 500)
        await till.put(AddCredit("cr_2", -600, AT))
        (purse, _) = (await till.standing(key=None, run=None)).purses
        assert (purse.limit_nanos, purse.reserved_nanos) == (-100, 500)
        assert [replace(row, note="") for row in await till.rows(request_id="cr_1")] == [
            LedgerRow(request_id="cr_1", attempt=0, kind="credit", at=AT, credit_nanos=500)
        ]


class Idempotency(AccountsSuite):
    """An idempotency key has one running call, or one answer for a day."""

    async def test_an_answer_is_kept_for_exactly_a_day_from_the_end_of_its_call(
        self, till: Till, clock: FakeClock
    ) -> None:
        await till.admit("c", same="i", lasts_s=300.0)
        await clock.advance(20.0)
        await till.settle("c", result=ANSWER)
        for seconds in (0.0, DAY_S / 2, DAY_S / 2 - A_MOMENT_S):
            await clock.advance(seconds)
            assert await till.ask("again", same="i") == Replay(ANSWER)
            await till.settle("c", result=ANSWER)  # said once more
        await clock.advance(A_MOMENT_S)
        await till.admit("d", same="i")

    async def test_a_key_of_a_running_or_answered_call_is_refused_to_another_request(self, till: Till) -> None:
        await till.open(limits=RateLimits(requests_per_min=1))
        await till.admit("c", same="i")
        for _ in range(2):
            with pytest.raises(IdempotencyKeyReused):
                await till.ask("d", same=Claim("i", "of another"))
            await till.settle("c", result=ANSWER)

    async def test_idempotency_keys_are_separate_by_account_and_environment(self, till: Till) -> None:
        keys = (*(text for text in ODD_TEXTS if len(text.encode()) <= 64), "k" * 64)
        tills = [Till(till.storage, name) for name in ALIKE]
        names = [(each, environment, key) for each in tills for environment in BOTH for key in keys]
        for number, (each, environment, key) in enumerate(names):
            await each.admit(f"c{number}", caller=each.caller(environment=environment), same=key)
            if number % 2:
                await each.settle(f"c{number}", result=str(number).encode())
        for number, (each, environment, key) in enumerate(names):
            asked = each.ask("again", caller=each.caller(environment=environment), same=Claim(key, "of it"))
            if number % 2:
                assert await asked == Replay(str(number).encode())
            else:
                asked.close()
                with pytest.raises(IdempotencyKeyReused):
                    await each.ask("again", caller=each.caller(environment=environment), same=Claim(key, "of another"))

    @pytest.mark.parametrize("environment", ["production", "sandbox", None])
    async def test_deleting_answers_leaves_running_calls(self, till: Till, environment: Environment | None) -> None:
        tills = [till, Till(till.storage, "other")]
        names = [(each, of, key) for each in tills for of in BOTH for key in ("a", "b", "runs")]
        for each, of, key in names:
            await each.admit(f"{each.account} {of} {key}", caller=each.caller(environment=of), same=key)
            if key != "runs":
                await each.settle(f"{each.account} {of} {key}", result=ANSWER)
        gone = BOTH if environment is None else (environment,)
        for count in (2 * len(gone), 0):
            assert (await till.put(DeleteResults(environment))).count == count
        for each, of, key in names:
            asked: dict[str, Any] = {"caller": each.caller(environment=of), "same": key}
            if key == "runs":
                with pytest.raises(IdempotencyKeyReused):
                    await each.ask("again", **asked | {"same": Claim(key, "of another")})
            elif each is till and of in gone:
                await each.admit(f"anew {of} {key}", **asked)
            else:
                assert await each.ask("again", **asked) == Replay(ANSWER)

    async def test_a_sweep_removes_and_counts_answers_after_a_day(self, till: Till, clock: FakeClock) -> None:
        async with anyio.create_task_group() as group:
            for number in range(600):
                group.start_soon(_answer, till, f"i{number}")
        await till.admit("runs", same="runs", lasts_s=10 * DAY_S)
        assert await till.storage.sweep(clock.time() + DAY_S - A_MOMENT_S) == 0
        assert await till.storage.sweep(clock.time() + DAY_S) == 600
        assert await till.storage.sweep(clock.time() + DAY_S) == 0
        with pytest.raises(IdempotencyKeyReused):
            await till.ask("again", same=Claim("runs", "of another"))


class Accounting(AccountsSuite):
    """Booked rows can be read in pages and in sums."""

    async def test_every_row_comes_back_as_it_was(self, till: Till) -> None:
        texts = [*(text for text in ODD_TEXTS if len(text) <= 200), *ALIKE_CALLS, "n" * 200, ""]
        rows = [
            LedgerRow(
                request_id=text, attempt=number, at=AT, key_id=text, model=text, provider=text,
                tokens=Tokens(1, 2, BIG), cost_nanos=BIG, charge_nanos=-BIG, cost_range_nanos=(0, BIG),
                note=text * 3,
            )
            for number, text in enumerate(texts, start=-3)
        ]  # fmt: skip
        for row in rows:
            await till.settle(row.request_id, row)
        assert sorted(await till.rows(), key=key_of) == sorted(rows, key=key_of)
        for row in rows:
            assert await till.rows(request_id=row.request_id) == [row]

    async def test_pages_visit_each_row_once_newest_first(self, till: Till) -> None:
        noon = "2026-11-20T12:00:00.000Z"
        expected = sorted(await _book(till, Random(1), 60), key=key_of, reverse=True)
        asked = [LedgerRows(), LedgerRows(since=noon), LedgerRows(until=noon)]
        for query in [*asked, *(LedgerRows(request_id=call) for call in ("c1", "c1/1", "c"))]:
            since, until = query.since or "", query.until or "3000"
            fits = [row for row in expected if query.request_id in (None, row.request_id) and since <= row.at < until]
            for limit in (1, 7, 1_000):
                assert await all_pages(till.storage, "acme", query, key_of, limit) == fits
        assert await till.storage.scan("acme", LedgerRows(), after=None, limit=0) == []

    async def test_sums_add_up_the_rows_by_day_provider_model_and_kind(self, till: Till) -> None:
        names = ("acme", "other", "default")
        rows = {name: await _book(Till(till.storage, name), Random(seed), 25) for seed, name in enumerate(names)}
        for first, last in DAYS:
            fits = {name: [row for row in rows[name] if first <= row.at[:10] <= last] for name in names}
            for name in names:
                assert await till.storage.read(name, LedgerSums(first, last)) == ledger_sums(fits[name])

    async def test_sums_may_exceed_the_largest_amount(self, till: Till) -> None:
        for account in ("acme", "other"):
            for number in range(5):
                await Till(till.storage, account).settle("c", make_row(attempt=number, charge=BIG, cost=-BIG))
        (total,) = await till.storage.read("acme", LedgerSums("2026-11-21", "2026-11-21"))
        assert (total.charge_nanos, total.cost_nanos, total.most_nanos) == (5 * BIG, -5 * BIG, -5 * BIG)

    async def test_deleting_traces_leaves_the_ledger(self, full: Till) -> None:
        till = full
        await till.put(PutTrace(make_trace(1, account="acme")))
        await till.settle(make_trace(1).id, make_row(make_trace(1).id, charge=5), key="k")
        await till.admit("c", 7, key="k")
        before = await till.purses(), await till.rows()
        await till.put(DeleteTraces())
        await till.storage.apply(SYSTEM_ACCOUNT, [SetRetention(production_s=0.0, sandbox_s=0.0)])
        await till.storage.sweep(NOW + 1e9)
        assert (await till.purses(), await till.rows()) == before


class Histories(AccountsSuite):
    """Everything, in random order."""

    @pytest.mark.parametrize("seed", range(3))
    async def test_a_random_history_matches_the_model(self, till: Till, clock: FakeClock, seed: int) -> None:
        other = self.other(clock)
        await AccountsWalk(till.limiting, clock, Random(seed), other=other, lease_s=self.lease_s).go(150)
        if other is not None:
            await other.aclose()


async def _answer(till: Till, key: str) -> None:
    await till.admit(key, same=key)
    await till.settle(key, result=ANSWER)


async def _told(till: Till, call: str, charge: int, *, at: str = AT) -> list[int]:
    """The thresholds that a charge crosses."""
    row = make_row(call, charge=charge, at=at)
    events = await till.settle(call, row, event_id=EVENT_IDS, created_at=at)
    return [event.data["threshold_percent"] for event in events]


async def _book(till: Till, rng: Random, calls: int) -> list[LedgerRow]:
    """Settle calls with random rows."""
    times, booked = ("00:00:00.000", "12:00:00.000", "23:59:59.999"), list[LedgerRow]()
    for call in ("c1/1", *(f"c{number}" for number in range(calls))):
        rows = [
            make_row(
                call, attempt, charge=rng.randrange(9), cost=rng.randrange(9),
                at=f"2026-11-{rng.choice((19, 20, 21))}T{rng.choice(times)}Z",
                model=rng.choice(("a/one", "b/two", "")), provider=rng.choice(("a", "b")),
                kind=rng.choice(("attempt", "correction")), tokens=Tokens(rng.randrange(9), 1, 2),
                cost_range_nanos=rng.choice((None, (1, 5))),
            )
            for attempt in rng.sample((-11, -2, -1, 1, 2, 3, 9, 10, 11), rng.randint(1, 4))
        ]  # fmt: skip
        await till.settle(call, *rows)
        booked += rows
    return booked
