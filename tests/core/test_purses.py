"""Errors for insufficient money: they name the account or key, the amount left, and what to do."""

from __future__ import annotations

from typing import Any

from routewright._core.accounts.purses import money_error, reserved_error
from routewright.errors import InsufficientBalance, QuotaExhausted
from routewright.wire import Purse
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
        (Purse("agent_run", "run:r", 0), "the agent run has $0 left of its $0, and the", None),
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
    ("timeout_ms", "said"),
    [(5_000, "did not end within timeout_ms=5000"), (None, "steps() does not wait for them")],
)
def test_who_waits_for_others_in_vain_hears_for_how_long(timeout_ms: Any, said: str) -> None:
    error = reserved_error(Purse("key", "key:key_1", 10**9), timeout_ms)
    assert str(error) == (
        f"running calls have reserved all that the key has left, and {said}; retry, or run fewer calls at a time"
    )
