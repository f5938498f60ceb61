"""The ledger's rows and what they come to: all of it, each once, whatever becomes of the traces."""

from __future__ import annotations

from random import Random

import pytest

from routewright._core.batch import MOST_CREDIT
from routewright._core.rows import key_of, summed
from routewright.errors import PreconditionFailed
from routewright.protocols import Storage
from routewright.wire import (
    SYSTEM_ACCOUNT,
    AddCredit,
    DeleteTraces,
    LedgerRow,
    LedgerRows,
    LedgerSum,
    LedgerSums,
    LedgerSumsOfAll,
    PutTrace,
    SetRetention,
    Tokens,
)

from .money import AT, BIG, Till, make_row
from .retention import NOW
from .samples import ODD_TEXTS, make_trace
from .suite import Suite

ODD = tuple(text for text in ODD_TEXTS if len(text) <= 200)


class Accounting(Suite):
    """What the ledger says."""

    async def test_every_row_comes_back_as_it_was(self, storage: Storage) -> None:
        rows = [
            LedgerRow(
                request_id=text, attempt=number, at=AT, key_id=text, model=text, provider=text,
                tokens=Tokens(1, 2, BIG), cost_nanos=BIG, charge_nanos=-BIG, cost_range_nanos=(0, BIG),
                note=text * 3,
            )
            for number, text in enumerate((*ODD, "n" * 200, ""), start=-3)
        ]  # fmt: skip
        till = Till(storage)
        for row in rows:
            await till.settle(row.request_id, row)
        assert sorted(await till.rows(), key=key_of) == sorted(rows, key=key_of)
        for row in rows:
            assert await till.rows(request_id=row.request_id) == [row]

    async def test_a_walk_of_pages_visits_each_row_once_newest_first(self, storage: Storage) -> None:
        till, rows = Till(storage), _random_rows(Random(1), 60)
        for call, some in rows.items():
            await till.settle(call, *some)
        expected = sorted((row for some in rows.values() for row in some), key=key_of, reverse=True)
        asked = [
            LedgerRows(),
            LedgerRows(since="2026-11-20T12:00:00.000Z"),
            LedgerRows(until="2026-11-20T12:00:00.000Z"),
        ]
        for query in [*asked, *(LedgerRows(request_id=call) for call in ("c1", "c1/1", "c"))]:
            fits = [row for row in expected if _fits(row, query)]
            for limit in (1, 7, 1_000):
                assert await _walked(storage, query, limit) == fits
        assert await storage.scan("acme", LedgerRows(), after=None, limit=0) == []

    async def test_sums_are_what_the_rows_of_each_day_provider_model_and_kind_come_to(self, storage: Storage) -> None:
        till, rows = Till(storage), _random_rows(Random(2), 60)
        for call, some in rows.items():
            await till.settle(call, *some)
        every = [row for some in rows.values() for row in some]
        for first, last in (("2026-11-19", "2026-11-21"), ("2026-11-20", "2026-11-20"), ("2026-11-22", "2026-11-21")):
            found = await storage.read("acme", LedgerSums(first, last))
            assert found == _sums([row for row in every if first <= row.at[:10] <= last])

    async def test_sums_may_be_greater_than_any_one_amount(self, storage: Storage) -> None:
        till = Till(storage)
        for number in range(5):
            await till.settle("c", make_row(attempt=number, charge=BIG, cost=-BIG))
        (total,) = await storage.read("acme", LedgerSums("2026-11-21", "2026-11-21"))
        assert (total.charge_nanos, total.cost_nanos, total.most_nanos) == (5 * BIG, -5 * BIG, -5 * BIG)

    async def test_sums_of_all_are_what_the_rows_of_all_accounts_come_to_and_only_told_to_the_system(
        self, storage: Storage
    ) -> None:
        every: list[LedgerRow] = []
        for seed, account in enumerate(("acme", "other", "default")):
            for call, some in _random_rows(Random(seed), 20).items():
                await Till(storage, account).settle(call, *some)
                every += some
        for first, last in (("2026-11-19", "2026-11-21"), ("2026-11-20", "2026-11-20"), ("2026-11-22", "2026-11-21")):
            asked = LedgerSumsOfAll(first, last)
            fits = [row for row in every if first <= row.at[:10] <= last]
            assert await storage.read(SYSTEM_ACCOUNT, asked) == _sums(fits)
            assert await storage.read("acme", asked) == []

    async def test_sums_of_all_may_be_greater_than_any_one_amount(self, storage: Storage) -> None:
        for account in ("acme", "other", "third"):
            await Till(storage, account).settle("c", make_row(charge=BIG, cost=-BIG))
        (total,) = await storage.read(SYSTEM_ACCOUNT, LedgerSumsOfAll("2026-11-21", "2026-11-21"))
        assert (total.rows, total.charge_nanos, total.cost_nanos) == (3, 3 * BIG, -3 * BIG)

    @pytest.mark.parametrize("sign", [1, -1])
    async def test_credit_has_a_bound_in_all_and_what_is_beyond_it_changes_nothing(
        self, storage: Storage, sign: int
    ) -> None:
        till = await Till(storage).open(credit=sign * (MOST_CREDIT - 5), prepaid=True)
        given = AddCredit("all", sign * 5, AT)
        for refused in (AddCredit("cr_1", sign * 6, AT), AddCredit("cr_1", sign * 2**70, AT)):
            with pytest.raises(PreconditionFailed) as failed:
                await storage.apply("acme", [AddCredit("cr_2", -sign, AT), AddCredit("cr_3", sign, AT), refused])
            assert failed.value.index == 2
        assert (await till.standing(key_id=None, run=None)).purses[0].limit_nanos == sign * (MOST_CREDIT - 5)
        assert len(await till.rows()) == 1
        assert [w.created for w in await storage.apply("acme", [given, given])] == [True, False]
        assert not (await till.put(given)).created, "said again it adds nothing"
        assert (await till.standing(key_id=None, run=None)).purses[0].limit_nanos == sign * MOST_CREDIT
        with pytest.raises(PreconditionFailed):
            await till.put(AddCredit("more", sign, AT))
        assert (await till.put(AddCredit("less", -sign, AT))).created

    async def test_a_row_that_goes_is_no_longer_in_the_sums(self, storage: Storage) -> None:
        till = await Till(storage).open_full()
        await till.reserve("lost", 800, owner="dead")
        await till.reserve("c", 1_000, clock_s=31.0)
        asked = LedgerSums("2026-11-21", "2026-11-21")
        assert [(each.kind, each.rows, each.most_nanos) for each in await storage.read("acme", asked)] == [
            ("credit", 1, 0), ("expired", 1, 800)
        ]  # fmt: skip
        await till.settle("lost")
        assert [each.kind for each in await storage.read("acme", asked)] == ["credit"]

    async def test_who_deletes_traces_leaves_the_ledger(self, storage: Storage) -> None:
        till = await Till(storage).open_full()
        await storage.apply("acme", [PutTrace(make_trace(1, account="acme"))])
        await till.settle(make_trace(1).id, make_row(make_trace(1).id, charge=5), key_id="k")
        await till.reserve("c", 7, key_id="k")
        before = await till.purses(), await till.rows()
        await storage.apply("acme", [DeleteTraces()])
        await storage.apply("_system", [SetRetention(production_s=0.0, sandbox_s=0.0)])
        await storage.sweep(NOW + 1e9)
        assert (await till.purses(), await till.rows()) == before


def _random_rows(rng: Random, calls: int) -> dict[str, list[LedgerRow]]:
    days = ("2026-11-19", "2026-11-20", "2026-11-21")
    names = ["c1/1", *(f"c{number}" for number in range(calls))]
    return {
        call: [
            make_row(
                call, attempt, charge=rng.randrange(9), cost=rng.randrange(9),
                at=f"{rng.choice(days)}T{rng.choice(('00:00:00.000', '12:00:00.000', '23:59:59.999'))}Z",
                model=rng.choice(("a/one", "b/two", "")), provider=rng.choice(("a", "b")),
                kind=rng.choice(("attempt", "correction")), tokens=Tokens(rng.randrange(9), 1, 2),
                cost_range_nanos=rng.choice((None, (1, 5))),
            )
            for attempt in rng.sample((-11, -2, -1, 1, 2, 3, 9, 10, 11), rng.randint(1, 4))
        ]
        for call in names
    }  # fmt: skip


def _fits(row: LedgerRow, query: LedgerRows) -> bool:
    since, until = query.since or "", query.until or "3000"
    return query.request_id in (None, row.request_id) and since <= row.at < until


async def _walked(storage: Storage, query: LedgerRows, limit: int) -> list[LedgerRow]:
    found: list[LedgerRow] = []
    while page := await storage.scan("acme", query, after=key_of(found[-1]) if found else None, limit=limit):
        assert len(page) <= limit
        found += page
    return found


def _sums(rows: list[LedgerRow]) -> list[LedgerSum]:
    sums: dict[tuple[str, str, str, str], LedgerSum] = {}
    for row in rows:
        name = row.at[:10], row.provider, row.model, row.kind
        empty = LedgerSum(row.at[:10], row.provider, row.model, row.kind, 0, Tokens(), 0, 0, 0, 0, 0)
        sums[name] = summed(sums.get(name, empty), row)
    return [sums[name] for name in sorted(sums)]
