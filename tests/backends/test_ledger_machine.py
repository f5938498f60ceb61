"""Any order of reservations, settlements, crashes, changed limits and clocks: the books are what the model says."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from routewright.errors import PreconditionFailed
from routewright.testing.storage.samples import make_account, make_key, make_row
from routewright.wire import (
    SYSTEM_ACCOUNT,
    AddCredit,
    KeepLease,
    LedgerRows,
    LedgerSums,
    PutAccount,
    PutKey,
    Reserve,
    RunLimit,
    Settle,
    Stands,
    Write,
    Written,
)

from .ledger_model import LedgerModel
from .machines import Place, now, run

MONTHS = ("2026-11", "2026-12")
KEYS, RUNS, OWNERS, CALLS = ("k1", "k2"), ("r1", "r2"), ("a", "b", "c"), ("c1", "c2", "c3", "c4", "c5", "c6")
RUN_LIMIT = 150
A_BOOT_S = 1e6
"""Each time the machine starts its clock reads less than ever before."""
TODAY = 1_794_787_200.0  # 2026-11-16

calls, owners, months = st.sampled_from(CALLS), st.sampled_from(OWNERS), st.sampled_from(MONTHS)
keys = st.none() | st.sampled_from(KEYS)
RUN_OF = dict(zip(CALLS, (None, *RUNS) * 2, strict=True))
"""Of each call, always the same (``Reserve.run``)."""
amounts, limits = st.integers(0, 90), st.none() | st.integers(0, 300)
leases, lates = st.sampled_from((10.0, 30.0)), st.sampled_from((0.0, 0.0, 5.0, 25.0))
"""How long they are, and how long ago it was that who asks read the clock."""
attempts = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=3)
"""What each is charged, and what it cost besides."""


class Machine(RuleBasedStateMachine):
    """One account, and the model of it."""

    place: Place

    def __init__(self) -> None:
        super().__init__()
        self.storage = self.place.make()
        self.model = LedgerModel()
        self.model.limits |= {f"run:{each}": RUN_LIMIT for each in RUNS}
        self.clock_s = 100 * A_BOOT_S
        self.said: list[Settle] = []
        self.heard: defaultdict[tuple[str, int | None], list[int]] = defaultdict(list)
        """Thresholds by month and limit."""
        self._put_terms()
        for key in KEYS:
            self._put_key(key)

    # calls

    @rule(call=calls, nanos=amounts, owner=owners, month=months, key=keys, lease=st.tuples(leases, lates))
    def reserve(
        self, call: str, nanos: int, owner: str, month: str, key: str | None, lease: tuple[float, float]
    ) -> None:
        run, lease_s, clock_s = RUN_OF[call], lease[0], self.clock_s - lease[1]
        purses = self.model.purses(month, key, run)
        began = call not in self.model.holds
        refused = self.model.reserve(call, nanos, purses, owner, clock_s)
        write = Reserve(
            id=call, nanos=nanos, owner=owner, lease_s=lease_s, clock_s=clock_s, at=_at(month), key_id=key,
            run=_run(run),
        )  # fmt: skip
        if refused is None:
            self.model.speak(owner, lease_s, clock_s)
            assert self._put(write) == Written(created=began)
            return
        with pytest.raises(PreconditionFailed) as failed:
            self._put(write)
        assert failed.value.detail is not None
        assert failed.value.detail["name"] in refused.purses
        assert failed.value.detail["waits"] is refused.waits

    @rule(call=calls, month=months, key=keys, spent=attempts, more=st.integers(-20, 20))
    def settle(self, call: str, month: str, key: str | None, spent: list[tuple[int, int]], more: int) -> None:
        before = sum(request_id == call for request_id, _ in self.model.rows)
        rows = [
            make_row(call, attempt, charge, charge + extra, at=_at(month))
            for attempt, (charge, extra) in enumerate(spent, start=before + 1)
        ]
        cost = sum(row.cost_nanos for row in rows)
        ids = tuple(f"evt {len(self.said)} {percent}" for percent in (50, 80, 100))
        bound = cost + more if more else None
        paid: dict[str, Any] = {"key_id": key, "run": _run(RUN_OF[call]), "run_nanos": bound, "event_ids": ids}
        self._settle(Settle(id=call, at=_at(month), rows=(*rows,), durability="buffered", **paid))

    @rule(data=st.data())
    def settle_again(self, data: st.DataObject) -> None:
        if self.said:
            self._settle(data.draw(st.sampled_from(self.said)))

    def _settle(self, write: Settle) -> None:
        month = write.at[:7]
        purses = self.model.purses(month, write.key_id, None if write.run is None else write.run.id)
        held = self.model.holds.get(write.id)
        over = self.model.unknown.get(write.id)
        there = [(row.request_id, row.attempt) in self.model.rows for row in write.rows]
        is_new = self.model.settle(write.id, [*write.rows], purses, write.run_nanos)
        written = self._put(write)
        assert written.created is is_new
        paid = held.purses if held is not None else purses if over is None else over[1]
        month = paid[-1].removeprefix("month:")
        expected = self.model.crossed(month) if not all(there) else []
        told = [event.data["threshold_percent"] for event in written.events]
        assert told == expected
        assert [event.id[-3:].strip() for event in written.events] == [str(percent)[-3:] for percent in told]
        self.heard[month, self.model.limits.get("month")] += told
        self.said.append(write)

    # terms

    @rule(prepaid=st.booleans(), monthly=limits)
    def set_terms(self, prepaid: bool, monthly: int | None) -> None:
        self.model.terms(prepaid=prepaid)
        self.model.set_limit("month", monthly)
        self._put_terms()

    @rule(key=st.sampled_from(KEYS), budget=limits, monthly=limits)
    def set_budget(self, key: str, budget: int | None, monthly: int | None) -> None:
        self.model.set_limit(f"key:{key}", budget)
        self.model.set_limit(f"key-month:{key}", monthly)
        self._put_key(key)

    @rule(nanos=st.integers(-100, 400), number=st.integers(0, 5))
    def credit(self, nanos: int, number: int) -> None:
        credit_id = f"cr_{number}"
        is_new = credit_id not in self.model.credits
        self.model.terms(prepaid=self.model.prepaid, credit=nanos, credit_id=credit_id)
        assert self._put(AddCredit(credit_id, nanos, _at(MONTHS[0]), durability="buffered")).created is is_new

    # processes and clocks

    @rule(owner=owners, lease_s=leases)
    def keep(self, owner: str, lease_s: float) -> None:
        self.model.speak(owner, lease_s, self.clock_s)
        now(self.storage.apply(SYSTEM_ACCOUNT, [KeepLease(owner, lease_s, self.clock_s)]))

    @rule(seconds=st.sampled_from((1.0, 9.0, 10.0, 20.0, 31.0)))
    def wait(self, seconds: float) -> None:
        self.clock_s += seconds

    @rule()
    def start_the_machine_anew(self) -> None:
        self.clock_s = (self.clock_s // A_BOOT_S - 1) * A_BOOT_S
        self.storage = self.place.again(self.storage)

    @rule()
    def open_it_in_another_process(self) -> None:
        self.storage = self.place.again(self.storage)

    @rule()
    def sweep(self) -> None:
        self.model.sweep()
        now(self.storage.sweep(TODAY))

    # what always holds

    @invariant()
    def every_purse_is_what_its_rows_and_reservations_come_to(self) -> None:
        for month, key, run_id in ((MONTHS[0], "k1", "r1"), (MONTHS[1], "k2", "r2")):
            standing = now(self.storage.read("acme", Stands(_at(month), key, _run(run_id))))
            assert [purse.name for purse in standing.purses] == [*self.model.purses(month, key, run_id)]
            for purse in standing.purses:
                limit, spent = self.model.limit(purse.name), self.model.spent(purse.name)
                held = self.model.reserved(purse.name)
                assert (purse.limit_nanos, purse.spent_nanos, purse.reserved_nanos) == (limit, spent, held), purse
                if limit is not None:
                    assert spent + held <= limit + self.model.excess[purse.name], purse

    @invariant()
    def the_rows_are_those_that_were_booked(self) -> None:
        rows = now(self.storage.scan("acme", LedgerRows(), after=None, limit=10_000))
        attempts = {(row.request_id, row.attempt): row for row in rows if row.kind == "attempt"}
        assert {name: _plain(row) for name, row in attempts.items()} == {
            name: _plain(row) for name, row in self.model.rows.items()
        }
        expired = {row.request_id: row.cost_range_nanos for row in rows if row.kind == "expired"}
        assert expired == {call: (0, nanos) for call, (nanos, _) in self.model.unknown.items()}
        assert {row.request_id: row.credit_nanos for row in rows if row.kind == "credit"} == self.model.credits
        sums = now(self.storage.read("acme", LedgerSums("2026-11-01", "2026-12-31")))
        assert sum(each.charge_nanos for each in sums) == self.model.spent("account")

    @invariant()
    def every_reservation_ends_once(self) -> None:
        ends = self.model.ends
        assert ends["begun"] == ends["settled"] + ends["released"] + ends["expired"] + len(self.model.holds)

    @invariant()
    def every_threshold_is_told_once_in_order(self) -> None:
        for heard in self.heard.values():
            assert heard == sorted(set(heard))

    def teardown(self) -> None:
        self.place.close(self.storage)

    def _put(self, write: Write) -> Written:
        (written,) = now(self.storage.apply("acme", [write]))
        return written

    def _put_terms(self) -> None:
        terms: dict[str, Any] = {"prepaid": self.model.prepaid, "monthly_nanos": self.model.limits.get("month")}
        self._put(PutAccount(make_account(**terms), durability="buffered"))

    def _put_key(self, key: str) -> None:
        budgets = self.model.limits.get(f"key:{key}"), self.model.limits.get(f"key-month:{key}")
        made = make_key(id=key, digest=key, budget_nanos=budgets[0], monthly_nanos=budgets[1])
        self._put(PutKey(made, durability="buffered"))


def _at(month: str) -> str:
    return f"{month}-15T12:00:00.000Z"


def _run(run_id: str | None) -> RunLimit | None:
    return None if run_id is None else RunLimit(run_id, RUN_LIMIT)


def _plain(row: Any) -> tuple[Any, ...]:
    return row.charge_nanos, row.cost_nanos, row.at, row.model


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_whatever_happens_the_books_are_right(kind: str, tmp_path: Path, full: bool) -> None:
    run(type("Placed", (Machine,), {"place": Place(kind, tmp_path)}), full=full)
