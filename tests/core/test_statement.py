"""An account's statement: its lines, and that they add up to the nano-dollar."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright import ValidationFailed
from routewright._core.accounts.ledger import NOTHING, together, total
from routewright._core.money import nanos_of, usd
from routewright._core.statement import check_by, day_before, days_of_month, statement
from routewright.wire import LedgerSum, RowKind, Statement, StatementBy, Tokens

MONTH = "2026-11"


def sums_of(model: str = "a/one", charge: int = 0, cost: int | None = None, **given: Any) -> LedgerSum:
    """The sum of one row that costs what it charges, unless it says else."""
    paid = charge if cost is None else cost
    facts: dict[str, Any] = {"day": "2026-11-21", "kind": "attempt", "rows": 1, "tokens": Tokens(10, 2, 1)}
    facts |= {"cost_nanos": paid, "charge_nanos": charge, "credit_nanos": 0, "least_nanos": paid, "most_nanos": paid}
    return LedgerSum(model=model, provider=model.partition("/")[0], **facts | given)


def made(*sums: LedgerSum, by: StatementBy = "model", opening: int | None = 0) -> Statement:
    return statement("acme", MONTH, by, sums, opening)


@pytest.mark.parametrize(
    ("month", "days"),
    [
        ("2026-11", ("2026-11-01", "2026-11-30")),
        ("2026-12", ("2026-12-01", "2026-12-31")),
        ("2028-02", ("2028-02-01", "2028-02-29")),
        ("2100-02", ("2100-02-01", "2100-02-28")),
        ("1970-01", ("1970-01-01", "1970-01-31")),
        ("9998-12", ("9998-12-01", "9998-12-31")),
    ],
)
def test_a_month_has_a_first_and_a_last_day(month: str, days: tuple[str, str]) -> None:
    assert days_of_month(month) == days


@pytest.mark.parametrize("month", ["2026-13", "2026-1", "2026", "", "2026-11-01", "11/2026", None, 202611, "1969-12"])
def test_an_invalid_month_is_refused(month: Any) -> None:
    with pytest.raises(ValidationFailed, match=r"^month: is .*; write YYYY-MM$"):
        days_of_month(month)


@pytest.mark.parametrize("by", ["days", "", None, ["day"]])
def test_lines_are_by_model_or_by_day(by: Any) -> None:
    with pytest.raises(ValidationFailed, match=r"^by: is .*; one of model, day$"):
        check_by(by)


def test_the_day_before_a_month_ends_the_previous_one() -> None:
    assert (day_before("2027-01-01"), day_before("2026-03-01")) == ("2026-12-31", "2026-02-28")


def test_by_model_the_most_charged_comes_first_and_by_day_the_earliest() -> None:
    sums = (sums_of(charge=5), sums_of("b/two", 7), sums_of(charge=4, day="2026-11-20"))
    assert [(line.day, line.model, line.charged_nanos) for line in made(*sums).charges] == [
        (None, "a/one", 9), (None, "b/two", 7)
    ]  # fmt: skip
    assert [(line.day, line.model, line.charged_nanos) for line in made(*sums, by="day").charges] == [
        ("2026-11-20", "a/one", 4), ("2026-11-21", "b/two", 7), ("2026-11-21", "a/one", 5)
    ]  # fmt: skip


def test_a_line_has_rows_tokens_cost_and_charge_in_both_units() -> None:
    (line,) = made(sums_of(charge=1_500, cost=2_500_000_000), sums_of(charge=500, cost=1)).charges
    assert (line.provider, line.rows, line.tokens) == ("a", 2, Tokens(20, 4, 2))
    assert (line.cost_nanos, line.cost_usd, line.charged_nanos, line.charged_usd) == (
        2_500_000_001, 2.500000001, 2_000, 2e-6
    )  # fmt: skip


def test_corrections_and_credits_have_lines_of_their_own() -> None:
    told = made(
        sums_of(charge=10),
        sums_of(charge=-4, kind="correction", tokens=Tokens(-1, 0, 0)),
        sums_of("", credit_nanos=100, kind="credit"),
        sums_of("", credit_nanos=-30, kind="credit", day="2026-11-02"),
    )
    assert [(line.model, line.charged_nanos, line.tokens) for line in told.corrections] == [
        ("a/one", -4, Tokens(-1, 0, 0))
    ]
    assert [(line.day, line.credited_nanos) for line in told.credits] == [("2026-11-02", -30), ("2026-11-21", 100)]
    assert [line.charged_nanos for line in told.charges] == [10]
    totals = told.totals
    assert (totals.attempts, totals.corrections) == (1, 1)
    assert (totals.charged_nanos, totals.corrected_nanos, totals.credited_nanos) == (6, -4, 70)


def test_uncertain_costs_are_listed_until_corrected() -> None:
    unsure = sums_of(charge=10, least_nanos=4, most_nanos=90)
    (line,) = made(unsure, sums_of("b/two", 7)).uncertain
    assert (line.model, line.least_nanos, line.most_nanos, line.most_usd) == ("a/one", 4, 90, 9e-8)
    mended = sums_of(charge=2, kind="correction", least_nanos=12 - 4, most_nanos=12 - 90)
    told = made(unsure, mended)
    assert told.uncertain == []
    assert (told.totals.least_nanos, told.totals.cost_nanos, told.totals.most_nanos) == (12, 12, 12)


def test_expired_calls_are_uncertain_without_a_model() -> None:
    (line,) = made(sums_of("", kind="expired", most_nanos=50)).uncertain
    assert (line.provider, line.model, line.least_nanos, line.most_nanos) == ("", "", 0, 50)


def test_an_account_without_a_balance_has_no_opening_amount() -> None:
    told = made(sums_of(charge=10), opening=None)
    assert (told.opening_nanos, told.opening_usd, told.closing_nanos, told.closing_usd) == (None,) * 4


def test_a_month_without_rows_has_a_statement() -> None:
    told = made(opening=7)
    assert (told.charges, told.corrections, told.credits, told.uncertain) == ([], [], [], [])
    assert (told.opening_nanos, told.closing_nanos, told.closing_usd) == (7, 7, 7e-9)


@st.composite
def any_sums(draw: st.DrawFn) -> LedgerSum:
    nanos = st.integers(-(10**12), 10**12)
    count = st.integers(0, 10**9)
    model = draw(st.sampled_from(["a/one", "a/two", "b/one", ""]))
    return LedgerSum(
        day=f"2026-11-{draw(st.integers(1, 4)):02}",
        provider=model.partition("/")[0],
        model=model,
        kind=draw(st.sampled_from(get_args(RowKind))),
        rows=draw(st.integers(1, 9)),
        tokens=Tokens(draw(count), draw(count), draw(count)),
        cost_nanos=draw(nanos),
        charge_nanos=draw(nanos),
        credit_nanos=draw(nanos),
        least_nanos=draw(nanos),
        most_nanos=draw(nanos),
    )


def _kept_apart(sums: list[LedgerSum]) -> list[LedgerSum]:
    """As a ledger has them: only credit adds to a balance, and neither it nor what expired is charged."""
    facts: dict[str, dict[str, int]] = {
        "credit": {"cost_nanos": 0, "charge_nanos": 0},
        "expired": {"cost_nanos": 0, "charge_nanos": 0, "credit_nanos": 0},
    }
    fields = LedgerSum.__struct_fields__
    return [
        LedgerSum(**{name: getattr(each, name) for name in fields} | facts.get(each.kind, {"credit_nanos": 0}))
        for each in sums
    ]


@given(st.lists(any_sums(), max_size=20), st.integers(-(10**12), 10**12), st.sampled_from(get_args(StatementBy)))
def test_a_statement_adds_up_to_the_nano_dollar(sums: list[LedgerSum], opening: int, by: StatementBy) -> None:
    sums = _kept_apart(sums)
    told = statement("acme", MONTH, by, sums, opening)
    lines, totals = [*told.charges, *told.corrections], told.totals
    assert sum(line.charged_nanos for line in lines) == totals.charged_nanos == sum(e.charge_nanos for e in sums)
    assert sum(line.cost_nanos for line in lines) == totals.cost_nanos == sum(e.cost_nanos for e in sums)
    assert sum(line.charged_nanos for line in told.corrections) == totals.corrected_nanos
    assert sum(line.credited_nanos for line in told.credits) == totals.credited_nanos
    assert told.closing_nanos == opening + totals.credited_nanos - totals.charged_nanos
    assert sum(line.rows for line in told.charges) == totals.attempts
    in_dollars = [(totals.charged_usd, totals.charged_nanos), (told.closing_usd, told.closing_nanos)]
    in_dollars += [(line.cost_usd, line.cost_nanos) for line in lines]
    assert all(usd(nanos or 0) == dollars and nanos_of(dollars or 0.0) == nanos for dollars, nanos in in_dollars)


@given(st.lists(any_sums(), max_size=20))
def test_merging_sums_keeps_the_total(sums: list[LedgerSum]) -> None:
    found = together(sums)
    names = [(each.day, each.provider, each.model, each.kind) for each in found]
    assert names == sorted(set(names))
    assert total(found) == total(sums)
    assert total([]) == NOTHING
