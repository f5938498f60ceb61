"""Contract of the ledger: rows and sums are complete, each row counts once, and deleting traces changes nothing."""

from __future__ import annotations

from random import Random

from routewright._core.accounts.ledger import key_of, sum_of, together
from routewright.wire import (
    SYSTEM_ACCOUNT,
    DeleteTraces,
    LedgerRow,
    LedgerRows,
    LedgerSums,
    LedgerSumsOfAll,
    PutTrace,
    SetRetention,
    Tokens,
)

from .admission import AccountsSuite
from .samples import AT, BIG, NOW, ODD_TEXTS, Till, all_pages, make_row, make_trace

DAYS = (("2026-11-19", "2026-11-21"), ("2026-11-20", "2026-11-20"), ("2026-11-22", "2026-11-21"))


class Accounting(AccountsSuite):
    """Booked rows can be read in pages and in sums."""

    async def test_every_row_comes_back_as_it_was(self, till: Till) -> None:
        texts = [*(text for text in ODD_TEXTS if len(text) <= 200), "n" * 200, ""]
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

    async def test_sums_are_what_the_rows_of_each_day_provider_model_and_kind_come_to(self, till: Till) -> None:
        names = ("acme", "other", "default")
        rows = {name: await _book(Till(till.storage, name), Random(seed), 25) for seed, name in enumerate(names)}
        for first, last in DAYS:
            fits = {name: [row for row in rows[name] if first <= row.at[:10] <= last] for name in names}
            for name in names:
                assert await till.storage.read(name, LedgerSums(first, last)) == together(map(sum_of, fits[name]))
            asked = LedgerSumsOfAll(first, last)
            assert await till.storage.read(SYSTEM_ACCOUNT, asked) == together(
                sum_of(row) for name in names for row in fits[name]
            )
            assert await till.storage.read("acme", asked) == [], "told to the system alone"

    async def test_sums_may_be_greater_than_any_one_amount(self, till: Till) -> None:
        for account in ("acme", "other"):
            for number in range(5):
                await Till(till.storage, account).settle("c", make_row(attempt=number, charge=BIG, cost=-BIG))
        (total,) = await till.storage.read("acme", LedgerSums("2026-11-21", "2026-11-21"))
        assert (total.charge_nanos, total.cost_nanos, total.most_nanos) == (5 * BIG, -5 * BIG, -5 * BIG)
        (total,) = await till.storage.read(SYSTEM_ACCOUNT, LedgerSumsOfAll("2026-11-21", "2026-11-21"))
        assert (total.rows, total.charge_nanos, total.cost_nanos) == (10, 10 * BIG, -10 * BIG)

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
