"""Every purse equals the sum of its ledger rows, whatever calls do, lose and correct."""

from __future__ import annotations

from collections import Counter
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from routewright._core.accounts.ledger import key_of, total
from routewright.wire import AddCredit, Correct, Grant, LedgerRow, LedgerRows, LedgerSums, RunLimit
from tests.contracts.storage.samples import AT, AT_S, NEXT_MONTH, NEXT_MONTH_S, Till, all_pages, make_row

from .places import KINDS, LEASE_S, Place, at_once, tills_of

MONTHS = {AT: AT_S, NEXT_MONTH: NEXT_MONTH_S}
RUNS = (RunLimit("r1", 10**9), RunLimit("r2", 10**9))
EVERYTHING = LedgerSums("2026-01-01", "2026-12-31")


class History:
    """Anything that calls of one account do, and what is reserved for them."""

    def __init__(self, place: Place, rng: Random) -> None:
        self._place, self._rng = place, rng
        self.tills = tills_of(place, "acme")
        self._made = count()
        self._facts: dict[str, dict[str, Any]] = {}
        """What is said of each call when it ends."""
        self._running: dict[str, tuple[int, int]] = {}
        """The process that holds it, and how much."""
        self._rows = Counter[str]()

    def step(self) -> None:
        rng, kinds = self._rng, {"ask": 8, "settle": 8, "release": 1, "correct": 2, "credit": 1, "wait": 3, "lose": 1}
        (what,) = rng.choices([*kinds], [*kinds.values()])
        till = rng.choice(self.tills)
        match what:
            case "ask":
                self._ask(rng.randrange(len(self.tills)))
            case "settle" if self._facts:
                self._settle(till, rng.choice([*self._facts]))
            case "release" if self._running:
                call = rng.choice([*self._running])
                del self._running[call]
                till.accounts.release(self._grant(call))
            case "correct" if self._facts:
                self._correct(till, rng.choice([*self._facts]))
            case "credit":
                at_once(till.put(AddCredit(f"cr/{rng.randrange(9)}", rng.choice((-40, 50, 200)), AT)))
            case "wait":
                self._place.pause(rng.choice((0.1, 7.0, 14.0)))
            case "lose":
                self._lose(rng.randrange(len(self.tills)))

    def _ask(self, process: int) -> None:
        call, rng = f"c{next(self._made)}/1", self._rng
        run, key, at = rng.choice((None, *RUNS)), rng.choice((None, "k")), rng.choice((AT, NEXT_MONTH))
        given: dict[str, Any] = {"run": run, "at": MONTHS[at], "lasts_s": self._place.lasts_s}
        found = at_once(self.tills[process].admit(call, rng.choice((0, 50, 70)), key=key, **given))
        self._running[call] = process, found.nanos
        self._facts[call] = {"caller": found.caller, "run": run, "created_at": at}

    def _settle(self, till: Till, call: str) -> None:
        """End one, or say more of one that ended or was lost."""
        facts, rng = self._facts[call], self._rng
        if call not in self._running:
            self._rows[call] -= rng.randint(0, min(1, self._rows[call]))  # said once more
        rows = []
        for _ in range(rng.randint(0, 2)):
            self._rows[call] += 1
            rows.append(make_row(
                call, self._rows[call], 10 * self._rows[call], 3 * self._rows[call], at=facts["created_at"],
                key_id=facts["caller"].key_id, model=rng.choice(("a/one", "b/two")),
            ))  # fmt: skip
        self._running.pop(call, None)
        at_once(till.settle(call, *rows, **facts))

    def _correct(self, till: Till, call: str) -> None:
        rows, facts = at_once(till.rows(request_id=call)), self._facts[call]
        number = -1 - sum(row.kind == "correction" for row in rows)
        row = make_row(
            call, number, self._rng.choice((-5, 9)), at=facts["created_at"], kind="correction",
            key_id=facts["caller"].key_id,
        )  # fmt: skip
        at_once(till.put(Correct(row=row, after=len(rows))))

    def _lose(self, silent: int) -> None:
        self._place.clock.now += LEASE_S + 1.0
        if self._place.is_shared:
            self._place.touch(self.tills[1 - silent].limiting)
        else:
            self._place.sweep()
        self._running = {call: held for call, held in self._running.items() if held[0] != silent}

    def _grant(self, call: str) -> Grant:
        return next(till.grants[call] for till in self.tills if call in till.grants)

    def check(self) -> None:
        """Every purse, as each process knows it."""
        for till in self.tills:
            rows = at_once(all_pages(till.storage, "acme", LedgerRows(), key_of, 7))
            assert len(rows) == len({key_of(row) for row in rows})
            sums = total(at_once(till.storage.read("acme", EVERYTHING)))
            assert (sums.rows, sums.charge_nanos) == (len(rows), sum(row.charge_nanos for row in rows))
            assert sums.most_nanos == sum((row.cost_range_nanos or (0, row.cost_nanos))[1] for row in rows)
            assert sums.credit_nanos == sum(row.credit_nanos for row in rows)
            for month in (AT, NEXT_MONTH):
                for run in RUNS:
                    for purse in at_once(till.standing(month, run=run)).purses:
                        found = purse.spent_nanos, purse.reserved_nanos
                        assert found == (self._spent(purse.name, rows), self._reserved(purse.name)), purse
                        assert purse.name != "account" or purse.limit_nanos == sums.credit_nanos

    def _spent(self, purse: str, rows: list[LedgerRow]) -> int:
        if purse.startswith("run:"):
            mine = [row for row in rows if row.kind in ("attempt", "expired") and self._pays(purse, row.request_id)]
            return sum((row.cost_range_nanos or (0, row.cost_nanos))[1] for row in mine)
        return sum(row.charge_nanos for row in rows if row.kind != "credit" and self._pays(purse, row.request_id))

    def _reserved(self, purse: str) -> int:
        return sum(nanos for call, (_, nanos) in self._running.items() if self._pays(purse, call))

    def _pays(self, purse: str, call: str) -> bool:
        facts = self._facts[call]
        level, _, name = purse.partition(":")
        match level:
            case "run":
                return facts["run"] is not None and facts["run"].id == name
            case "key":
                return facts["caller"].key_id == "k" and name in ("k", f"k:{facts['created_at'][:7]}")
        return purse in ("account", f"month:{facts['created_at'][:7]}")


@pytest.mark.parametrize("kind", KINDS)
def test_a_purse_always_equals_the_sum_of_its_rows(kind: str, tmp_path: Path, full: bool) -> None:
    for seed in range(500 if full else 5):
        place = Place(kind, tmp_path / "traces.db")
        history = History(place, Random(seed))
        for number in range(80):
            history.step()
            if not number % 8:
                history.check()
        place.close()


@pytest.mark.parametrize("kind", KINDS)
def test_pages_visit_each_row_once_while_rows_come_and_go(kind: str, tmp_path: Path, full: bool) -> None:
    came = set[object]()
    for seed in range(500 if full else 5):
        place, rng, seen = Place(kind, tmp_path / "traces.db"), Random(seed), list[str]()
        history = History(place, rng)
        for _ in range(80):
            history.step()
        storage = history.tills[-1].storage
        before = {key_of(row) for row in at_once(storage.scan("acme", LedgerRows(), after=None, limit=1_000))}
        after = None
        while page := at_once(storage.scan("acme", LedgerRows(), after=after, limit=rng.randint(2, 5))):
            seen += map(key_of, page)
            after = seen[-1]
            history.step()
        now = {key_of(row) for row in at_once(storage.scan("acme", LedgerRows(), after=None, limit=1_000))}
        assert seen == sorted(set(seen), reverse=True)
        assert before & now <= {*seen}
        came |= now - before
        place.close()
    assert came, "rows came in meanwhile"
