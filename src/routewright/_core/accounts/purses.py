"""Money: purses, which of them pay for a call, and the refusals for a lack of it (contract 7)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, timedelta
from functools import lru_cache
from hashlib import sha256
from itertools import chain
from typing import TypeAlias, get_args

from msgspec.structs import replace

from routewright._core.money import usd
from routewright._core.trace.filter import text_of
from routewright.errors import InsufficientBalance, QuotaExhausted, RateLimited, RouterError
from routewright.wire import Account, JsonObject, Key, Left, Level, Period, Purse, RunLimit, TagLimit, Tags
from routewright.wire.money import usd_text
from routewright.wire.printable import one_line

from .terms import MAX_TAG_CHARS

RUN = "run:"
MONTH = len("2026-11")  # length of the month in a timestamp
DAY = len("2026-11-30")
WHOLE = 1_000_000  # millionths
PURSE_S = 32 * 86_400.0  # how long purses of runs, days, weeks and tags stay after their last use
BALANCE = -1  # marks a balance as limit: the credit granted so far
LimitedPurse: TypeAlias = "tuple[Sums, int | None]"  # a purse and its limit
_LEVELS: dict[str, Level] = {"run": "agent_run", **{level: level for level in get_args(Level)}}
_OWNERS: dict[Level, str] = {
    "agent_run": "the run", "key": "the key", "account": "the account", "day": "today", "week": "this week",
    "month": "this month",
}  # fmt: skip
_PERIOD = re.compile(r"(?:^|:)(?:(day|week|month):)?(\d{4}-\d{2}(?:-\d{2})?)$")
_TEMPORARY = re.compile(r"^(?:run|tag):|(?:^|:)(?:day|week):")
_PERIODS: dict[str | None, Period] = {None: "month", **{period: period for period in get_args(Period)}}
_ADJECTIVES: dict[Period | None, str] = {"day": "daily ", "week": "weekly ", "month": "monthly ", None: ""}


class Sums:
    """Running totals of a purse."""

    __slots__ = (
        "account", "charged", "granted", "is_known", "is_of_run", "is_temporary", "name", "payers", "reserved", "spent",
    )  # fmt: skip

    def __init__(self, account: str, name: str) -> None:
        self.account = account
        self.name = name
        self.spent = self.granted = 0
        self.reserved = 0
        self.charged: int | None = None  # charges not in the books yet (``State.charged``)
        self.is_known = False  # True once ``spent`` and ``granted`` are loaded from the books
        self.is_of_run = name.startswith(RUN)
        self.is_temporary = is_temporary(name)
        self.payers = 0  # number of ``Payer`` that refer to it


def purses_of(
    account: Account | None, key: Key | None, day: str, run: RunLimit | None = None, tags: Tags = ()
) -> dict[str, int | None]:
    """Purses charged for a call, innermost first, with their limits (None: no limit). Purses of a day, a week or a tag
    exist only with a limit."""
    purses: dict[str, int | None] = {} if run is None else {RUN + run.id: run.limit_nanos}
    month = day[:MONTH]
    if account is not None and tags:
        purses.update(tag_purses(account, day, tags))
    if key is not None:
        purses[f"key:{key.id}"] = key.budget_nanos
        purses.update(_short_periods(f"key:{key.id}:", key, day))
        purses[f"key:{key.id}:{month}"] = key.monthly_nanos
    if account is not None:
        purses["account"] = BALANCE if account.prepaid else None
        purses.update(_short_periods("", account, day))
        purses[f"month:{month}"] = account.monthly_nanos
    return purses


def tag_purses(account: Account, day: str, tags: Tags) -> Iterator[tuple[str, int]]:
    """Purses of a call's tags, with their limits."""
    for tag, limit in _limits_of(account, tags):
        yield from _short_periods(f"tag:{tag}:", limit, day)
        if limit.monthly_nanos is not None:
            yield f"tag:{tag}:month:{day[:MONTH]}", limit.monthly_nanos


def _limits_of(account: Account, tags: Tags) -> Iterator[tuple[str, TagLimit]]:
    """Limits of tags. That of a value replaces that of all values."""
    limits = {(limit.key, limit.value): limit for limit in account.tag_limits}
    for key, value in tags:
        limit = limits.get((key, value)) or limits.get((key, None))
        if limit is not None:
            yield f"{key}={value}", limit


def within_tags(left: Left, metadata: JsonObject | None) -> Left:
    """The same, with at most the limits of a call's tags. What they have left is known to ``admit`` alone."""
    if left.account is None or not left.account.tag_limits:
        return left
    limits = [limit.period_nanos for _, limit in _limits_of(left.account, tags_of(left.account, metadata))]
    amounts = [nanos for nanos in chain((left.nanos,), *limits) if nanos is not None]
    return replace(left, nanos=min(amounts, default=None))


def _short_periods(prefix: str, limits: Account | Key | TagLimit, day: str) -> Iterator[tuple[str, int]]:
    if limits.daily_nanos is not None:
        yield f"{prefix}day:{day}", limits.daily_nanos
    if limits.weekly_nanos is not None:
        yield f"{prefix}week:{monday_of(day)}", limits.weekly_nanos


@lru_cache(maxsize=8)
def monday_of(day: str) -> str:
    """First day of a day's week."""
    at = date.fromisoformat(day)
    return (at - timedelta(days=at.weekday())).isoformat()


def tags_of(account: Account, metadata: Mapping[str, object] | None) -> Tags:
    """Keys and values of the metadata that an account limits. Only texts, numbers and booleans count."""
    texts = {limit.key: text_of((metadata or {}).get(limit.key)) for limit in account.tag_limits}
    return tuple([(key, _short_value(text)) for key, text in texts.items() if text is not None])


def _short_value(text: str) -> str:
    return text if len(text) <= MAX_TAG_CHARS else f"sha256:{sha256(text.encode()).hexdigest()[:32]}"


def spent_shares(purses: Iterable[tuple[str, int | None, int]]) -> dict[Period, int]:
    """Millionths spent of the largest used limit of a day, week and month. ``purses``: name, limit and spending."""
    shares: dict[Period, int] = {}
    for name, limit, spent in purses:
        if limit is not None and (period := _period_of(name)[0]) is not None:
            shares[period] = max(shares.get(period, 0), spent * WHOLE // limit if limit else WHOLE)
    return shares


def is_temporary(purse: str) -> bool:
    """True for a purse of a run, a day, a week or a tag, which is removed ``PURSE_S`` after its last use."""
    return _TEMPORARY.search(purse) is not None


def is_over(purse: str, day: str) -> bool:
    """True for a temporary purse whose period began before a day's."""
    start = _period_of(purse)[1]
    return start is not None and start < day[: len(start)] and is_temporary(purse)


def _period_of(purse: str) -> tuple[Period | None, str | None]:
    """Period of a purse, and its first day or month. None: it has none."""
    match = _PERIOD.search(purse)
    return (None, None) if match is None else (_PERIODS[match[1]], match[2])


def level_of(purse: str) -> Level:
    """Level of a purse, from its name."""
    return _LEVELS[purse.partition(":")[0]]


def money_error(purse: Purse, least_nanos: int | None) -> RouterError:
    """The error for a level with too little left. ``least_nanos``: the cheapest model's need, if priced; 0: nothing is
    left."""
    left = purse.left_nanos or 0
    limit = purse.limit_nanos or 0
    per, period = _period_of(purse.name)
    detail = {
        "level": purse.level,
        "per": per,
        "period": period,
        "limit_usd": usd(limit),
        "spent_usd": usd(purse.spent_nanos),
        "needed_usd": None if least_nanos is None else usd(least_nanos),
    }
    if purse.level == "account":
        message = f"the balance of the account is {_dollars(left)}{_needs(least_nanos, 'add credit')}"
        return InsufficientBalance(message, detail=detail)
    adjective = _ADJECTIVES[per] if purse.level in ("key", "tag") else ""
    if purse.level == "agent_run":
        adjective = "total_budget_usd of "
    message = f"{_owner_of(purse)} has {_dollars(left)} left of its {adjective}{_dollars(limit)}"
    return QuotaExhausted(f"{message}{_needs(least_nanos, 'raise that limit')}", detail=detail)


def _owner_of(purse: Purse) -> str:
    if purse.level == "tag":
        return "the tag " + one_line(purse.name.removeprefix("tag:").rsplit(":", 2)[0])
    return _OWNERS[purse.level]


def _needs(least_nanos: int | None, remedy: str) -> str:
    if least_nanos is None:
        return ", and no model that could answer has a known price; add a price to one"
    if not least_nanos:
        return f"; {remedy}"
    least = f"the cheapest model that could answer needs at least {_dollars(least_nanos)}"
    return f", and {least}; {remedy}, or ask for less, such as a smaller params.max_output_tokens"


def _dollars(nanos: int) -> str:
    return f"-${usd_text(-nanos)}" if nanos < 0 else f"${usd_text(nanos)}"


def reserved_error(purse: Purse, timeout_ms: int | None) -> RateLimited:
    """The error if running calls have reserved the rest of a purse. ``timeout_ms`` is the time waited; None: no
    wait."""
    message = f"running calls have reserved all that {_owner_of(purse)} has left, and "
    message += "steps() does not wait for them" if timeout_ms is None else f"did not end within timeout_ms={timeout_ms}"
    detail = {"level": purse.level, "resource": "requests", "limit_of": "money", "retry_after_seconds": 1}
    return RateLimited(f"{message}; retry, or run fewer calls at a time", detail=detail)
