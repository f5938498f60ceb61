"""Errors for insufficient money: they name the account or key, the amount left, and what to do."""

from __future__ import annotations

from datetime import date
from hashlib import sha256
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from routewright._core.accounts.purses import is_over, monday_of, money_error, reserved_error, tags_of
from routewright.errors import InsufficientBalance, QuotaExhausted
from routewright.wire import Purse, TagLimit
from tests.contracts.storage.samples import make_account
from tests.tables import table

ASK = "or ask for less, such as a smaller params.max_output_tokens"


@table(
    ("purse", "said", "period"),
    [
        (Purse("month", "month:2026-11", 10**9, 10**9), "this month has $0 left of its $1, and the", "2026-11"),
        (Purse("key", "key:key_1", 10**9, 5 * 10**8), "the key has $0.5 left of its $1, and the", None),
        (
            Purse("key", "key:key_1:2026-11", 10**9, 10**9 + 1),
            "the key has -$0.000000001 left of its monthly $1, and the",
            "2026-11",
        ),
        (Purse("day", "day:2026-11-30", 10**9, 10**9), "today has $0 left of its $1, and the", "2026-11-30"),
        (Purse("key", "key:k:week:2026-11-30", 10**9), "the key has $1 left of its weekly $1, and the", "2026-11-30"),
        (
            Purse("tag", "tag:team=a:b:day:2026-11-30", 10**9, 10**9),
            "the tag team=a:b has $0 left of its daily $1, and the",
            "2026-11-30",
        ),
        (Purse("agent_run", "run:r", 0), "the run has $0 left of its total_budget_usd of $0, and the", None),
    ],
)
def test_a_limit_that_is_used_up_is_named_with_its_month(purse: Purse, said: str, period: str | None) -> None:
    error = money_error(purse, 2_000_000)
    assert type(error) is QuotaExhausted
    assert str(error) == (f"{said} cheapest model that could answer needs at least $0.002; raise that limit, {ASK}")
    assert (error.detail["level"], error.detail["period"]) == (purse.level, period)
    assert error.detail["needed_usd"] == 0.002


def test_a_balance_below_zero_is_told_as_it_is() -> None:
    error = money_error(Purse("account", "account", 10**9, 5 * 10**9), 10**9)
    assert type(error) is InsufficientBalance
    assert str(error).startswith("the balance of the account is -$4, and the cheapest")
    assert str(error).endswith(f"needs at least $1; add credit, {ASK}")


def test_where_no_model_has_a_price_that_is_what_to_mend() -> None:
    error = money_error(Purse("month", "month:2026-11", 10**9), None)
    assert str(error) == (
        "this month has $1 left of its $1, and no model that could answer has a known price; add a price to one"
    )
    assert error.detail["needed_usd"] is None


@table(
    ("timeout_ms", "said"), [(5_000, "did not end within timeout_ms=5000"), (None, "steps() does not wait for them")]
)
def test_who_waits_for_others_in_vain_hears_for_how_long(timeout_ms: Any, said: str) -> None:
    error = reserved_error(Purse("key", "key:key_1", 10**9), timeout_ms)
    assert str(error) == (
        f"running calls have reserved all that the key has left, and {said}; retry, or run fewer calls at a time"
    )


@given(st.dates(date(1970, 1, 1), date(2100, 1, 1)))
def test_a_week_begins_on_the_monday_before_or_at_a_day(day: date) -> None:
    monday = date.fromisoformat(monday_of(str(day)))
    assert (monday.weekday(), 0 <= (day - monday).days < 7) == (0, True)


def test_long_values_of_metadata_are_hashed_and_lists_are_under_no_limit() -> None:
    keys = "a", "b", "c", "d", "none"
    terms = make_account(tag_limits=tuple(TagLimit(key=key, daily_nanos=1) for key in keys))
    long = "x" * 101
    assert tags_of(terms, {"a": "x" * 100, "b": long, "c": 1.0, "d": ["x"], "e": "x"}) == (
        ("a", "x" * 100), ("b", "sha256:" + sha256(long.encode()).hexdigest()[:32]), ("c", "1"),
    )  # fmt: skip


def test_a_purse_of_a_past_period_is_over_unless_it_lasts() -> None:
    over = ["day:2026-11-29", "key:k:week:2026-11-23", "tag:a=b:month:2026-10", "tag:a=b:day:2026-11-29"]
    rest = [
        "day:2026-11-30",
        "tag:a=b:month:2026-11",
        "month:2026-01",
        "key:k:2026-01",
        "key:my-day:2026-01",
        "account",
    ]
    assert [name for name in (*over, *rest) if is_over(name, "2026-11-30")] == over
