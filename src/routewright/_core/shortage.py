"""What a caller is told whose money does not pay for a call, or is held by others (contract 7)."""

from __future__ import annotations

import re

from routewright.errors import InsufficientBalance, QuotaExhausted, RateLimited, RouterError
from routewright.wire import Level, Purse

from .money import usd, usd_text

_WHOSE: dict[Level, str] = {
    "agent_run": "the agent run",
    "key": "the key",
    "account": "the account",
    "month": "this month",
}
_MONTH = re.compile(r":(\d{4}-\d{2})$")


def without_money(purse: Purse, least_nanos: int | None) -> RouterError:
    """The error for a level with too little left. ``least_nanos``: the cheapest model's need, if priced."""
    left, limit = purse.left_nanos or 0, purse.limit_nanos or 0
    detail = {
        "level": purse.level,
        "period": _period(purse),
        "limit_usd": usd(limit),
        "spent_usd": usd(purse.spent_nanos),
        "needed_usd": None if least_nanos is None else usd(least_nanos),
    }
    if purse.level == "account":
        said = f"the balance of the account is {_dollars(left)}{_needs(least_nanos, 'add credit')}"
        return InsufficientBalance(said, detail=detail)
    said = f"{_whose(purse)} has {_dollars(left)} left of its {_dollars(limit)}"
    return QuotaExhausted(f"{said}{_needs(least_nanos, 'raise that limit')}", detail=detail)


def _needs(least_nanos: int | None, remedy: str) -> str:
    if least_nanos is None:
        return ", and no model that could answer has a price, so that none can be paid for; give one its price"
    least = f"the cheapest model that could answer needs at least {_dollars(least_nanos)}"
    return f", and {least}; {remedy}, or ask for less, such as a smaller params.max_output_tokens"


def _whose(purse: Purse) -> str:
    monthly = purse.level == "key" and _period(purse) is not None
    return "the key, in this month," if monthly else _WHOSE[purse.level]


def _period(purse: Purse) -> str | None:
    """The month that a purse is of, as ``2026-11``; None: it is of all times."""
    found = _MONTH.search(purse.name)
    return None if found is None else found[1]


def _dollars(nanos: int) -> str:
    return f"-${usd_text(-nanos)}" if nanos < 0 else f"${usd_text(nanos)}"


def held_by_others(purse: Purse, timeout_ms: int | None) -> RateLimited:
    """What a caller is told for whom others held what a level has left, for as long as he waited. None: he may not."""
    said = f"calls that run hold what {_WHOSE[purse.level]} has left, and "
    said += "steps() does not wait for them" if timeout_ms is None else f"went on for timeout_ms={timeout_ms}"
    detail = {"level": purse.level, "resource": "requests", "limit_of": "money", "retry_after_seconds": 1}
    return RateLimited(f"{said}; try again, or run fewer at a time", detail=detail)
