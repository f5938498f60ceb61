"""Money: purses, which of them pay for a call, and the refusals for a lack of it (contract 7)."""

from __future__ import annotations

import re
from typing import TypeAlias

from routewright._core.money import usd
from routewright.errors import InsufficientBalance, QuotaExhausted, RateLimited, RouterError
from routewright.wire import Account, Key, Level, Purse, RunLimit
from routewright.wire.money import usd_text

RUN = "run:"
MONTH = len("2026-11")  # length of the month in a timestamp
BALANCE = -1  # marks a balance as limit: the credit granted so far
LimitedPurse: TypeAlias = "tuple[Sums, int | None]"  # a purse and its limit
_LEVELS: dict[str, Level] = {"run": "agent_run", "key": "key", "account": "account", "month": "month"}
_OWNERS = {"agent_run": "the agent run", "key": "the key", "account": "the account", "month": "this month"}
_MONTH = re.compile(r":(\d{4}-\d{2})$")


class Sums:
    """Running totals of a purse."""

    __slots__ = ("account", "charged", "granted", "is_known", "is_of_run", "name", "payers", "reserved", "spent")

    def __init__(self, account: str, name: str) -> None:
        self.account = account
        self.name = name
        self.spent = self.granted = 0
        self.reserved = 0
        self.charged: int | None = None  # charges not in the books yet (``State.charged``)
        self.is_known = False  # True once ``spent`` and ``granted`` are loaded from the books
        self.is_of_run = name.startswith(RUN)
        self.payers = 0  # number of ``Payer`` that refer to it


def purses_of(
    account: Account | None, key: Key | None, month: str, run: RunLimit | None = None
) -> dict[str, int | None]:
    """Purses charged for a call, innermost first, with their limits (None: no limit)."""
    purses: dict[str, int | None] = {} if run is None else {RUN + run.id: run.limit_nanos}
    if key is not None:
        purses[f"key:{key.id}"] = key.budget_nanos
        purses[f"key:{key.id}:{month}"] = key.monthly_nanos
    if account is not None:
        purses["account"] = BALANCE if account.prepaid else None
        purses[f"month:{month}"] = account.monthly_nanos
    return purses


def level_of(purse: str) -> Level:
    """Level of a purse, from its name."""
    return _LEVELS[purse.partition(":")[0]]


def money_error(purse: Purse, least_nanos: int | None) -> RouterError:
    """The error for a level with too little left. ``least_nanos``: the cheapest model's need, if priced."""
    left = purse.left_nanos or 0
    limit = purse.limit_nanos or 0
    detail = {
        "level": purse.level,
        "period": month[1] if (month := _MONTH.search(purse.name)) else None,
        "limit_usd": usd(limit),
        "spent_usd": usd(purse.spent_nanos),
        "needed_usd": None if least_nanos is None else usd(least_nanos),
    }
    if purse.level == "account":
        message = f"the balance of the account is {_dollars(left)}{_needs(least_nanos, 'add credit')}"
        return InsufficientBalance(message, detail=detail)
    monthly = purse.level == "key" and detail["period"] is not None
    limit_text = f"monthly {_dollars(limit)}" if monthly else _dollars(limit)
    message = f"{_OWNERS[purse.level]} has {_dollars(left)} left of its {limit_text}"
    return QuotaExhausted(f"{message}{_needs(least_nanos, 'raise that limit')}", detail=detail)


def _needs(least_nanos: int | None, remedy: str) -> str:
    if least_nanos is None:
        return ", and no model that could answer has a known price; add a price to one"
    least = f"the cheapest model that could answer needs at least {_dollars(least_nanos)}"
    return f", and {least}; {remedy}, or ask for less, such as a smaller params.max_output_tokens"


def _dollars(nanos: int) -> str:
    return f"-${usd_text(-nanos)}" if nanos < 0 else f"${usd_text(nanos)}"


def reserved_error(purse: Purse, timeout_ms: int | None) -> RateLimited:
    """The error if running calls have reserved the rest of a purse. ``timeout_ms`` is the time waited; None: no
    wait."""
    message = f"running calls have reserved all that {_OWNERS[purse.level]} has left, and "
    message += "steps() does not wait for them" if timeout_ms is None else f"did not end within timeout_ms={timeout_ms}"
    detail = {"level": purse.level, "resource": "requests", "limit_of": "money", "retry_after_seconds": 1}
    return RateLimited(f"{message}; retry, or run fewer calls at a time", detail=detail)
