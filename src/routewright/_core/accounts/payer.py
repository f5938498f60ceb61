"""The windows and purses that a caller's calls count in, holds of running calls, and errors for lack of money
(contract 7)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from routewright._core.account import is_live, is_made, limits_of, refusal, stray_key, unknown_key
from routewright._core.limits import Window, denied
from routewright._core.money import usd, usd_text
from routewright.errors import InsufficientBalance, QuotaExhausted, RateLimited, RouterError
from routewright.wire import WINDOW_S, Account, Caller, Key, Level, Purse, RateLimits, RunLimit, Take

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
    monthly = purse.level == "key" and _period(purse) is not None
    whose = "the key, in this month," if monthly else _WHOSE[purse.level]
    said = f"{whose} has {_dollars(left)} left of its {_dollars(limit)}"
    return QuotaExhausted(f"{said}{_needs(least_nanos, 'raise that limit')}", detail=detail)


def _needs(least_nanos: int | None, remedy: str) -> str:
    if least_nanos is None:
        return ", and no model that could answer has a price, so that none can be paid for; give one its price"
    least = f"the cheapest model that could answer needs at least {_dollars(least_nanos)}"
    return f", and {least}; {remedy}, or ask for less, such as a smaller params.max_output_tokens"


def _period(purse: Purse) -> str | None:
    """A purse's month, as ``2026-11``. None: it is not monthly."""
    found = _MONTH.search(purse.name)
    return None if found is None else found[1]


def _dollars(nanos: int) -> str:
    return f"-${usd_text(-nanos)}" if nanos < 0 else f"${usd_text(nanos)}"


def held_by_others(purse: Purse, timeout_ms: int | None) -> RateLimited:
    """The error when running calls hold a level's remaining money. ``timeout_ms``: the time waited; None: no wait."""
    said = f"calls that run hold what {_WHOSE[purse.level]} has left, and "
    said += "steps() does not wait for them" if timeout_ms is None else f"went on for timeout_ms={timeout_ms}"
    detail = {"level": purse.level, "resource": "requests", "limit_of": "money", "retry_after_seconds": 1}
    return RateLimited(f"{said}; try again, or run fewer at a time", detail=detail)


class Hold(Struct, array_like=True, gc=False):
    """Limits, money and idempotency key held by a running call."""

    id: str
    account: str
    key_id: str | None
    came_at: float
    """Arrival of the call in Unix seconds. Its month pays."""
    ends_at: float
    """Log time by which the call must end."""
    parties: tuple[str, ...]
    """Names of the windows it counts in."""
    tokens: int
    slots: int
    nanos: int
    purses: tuple[str, ...]
    """Names of the purses that hold the reservation and pay."""
    claim: bytes | None
    fingerprint: str
    owner: int = 0
    taken_at: float = 0.0
    """Log time of its admission."""
    run: RunLimit | None = None
    """The agent run it belongs to."""


class End(Struct, array_like=True, gc=False):
    """How a hold ended."""

    id: str
    tokens: int | None
    """Tokens it used. None: keep the count taken at admission."""
    charge: int = 0
    run_nanos: int = 0
    """The amount that agent runs count."""
    account: str = ""
    purses: tuple[str, ...] = ()
    """Purses to charge if there is no hold, or it names none."""


class Widened(Struct, array_like=True, gc=False):
    """A hold now reserves another amount."""

    id: str
    nanos: int


class Tick(Struct, array_like=True, gc=False):
    """The changes of one owner in one transaction, in this order."""

    changed: list[str] = []
    """Accounts whose terms, keys or sums were changed otherwise."""
    expired: list[str] = []
    ends: list[End] = []
    widened: list[Widened] = []
    admits: list[Hold] = []

    @property
    def is_empty(self) -> bool:
        """True if it says nothing but that its owner lives."""
        return not (self.ends or self.admits or self.expired or self.widened or self.changed)


RUN = "run:"
MONTH = len("2026-11")  # so much of a timestamp says the month
BALANCE = -1  # stands for the limit of a prepaid account's balance, which credit changes
_NO_LIMITS = RateLimits()
_LEVELS: dict[str, Level] = {"run": "agent_run", "key": "key", "account": "account", "month": "month"}


class Sums:
    """Running totals of a purse."""

    __slots__ = ("account", "charged", "granted", "is_known", "is_of_run", "name", "payers", "reserved", "spent")

    def __init__(self, account: str, name: str) -> None:
        self.account = account
        self.name = name
        self.spent = self.granted = self.reserved = 0
        self.charged: int | None = None  # charges that are not in the books yet (``State.charged``)
        self.is_known = False  # False until ``spent`` and ``granted`` were read from the books
        self.is_of_run = name.startswith(RUN)
        self.payers = 0  # callers that are resolved to it


class Payer:
    """The terms of a caller, resolved: its windows with their limits, and its purses with theirs."""

    __slots__ = ("account", "all", "day", "key", "limited", "names", "parties", "purses", "used_at", "windows")

    def __init__(self, account: Account | None, key: Key | None, day: int) -> None:
        self.account = account
        self.key = key
        self.day = day  # of its month's purses
        self.windows: list[tuple[str, Window, RateLimits]] = []
        self.parties: tuple[str, ...] = ()
        self.purses: list[tuple[Sums, int | None]] = []
        """The innermost first. The limit of a balance is what was granted: ``BALANCE``."""
        self.names: tuple[str, ...] = ()
        self.all: tuple[Sums, ...] = ()  # the purses without their limits
        self.limited = False  # True if any of its purses has a limit
        self.used_at = 0.0


def purses_of(
    account: Account | None, key: Key | None, month: str, run: RunLimit | None = None
) -> dict[str, int | None]:
    """The purses that pay for a call, innermost first, with their limits. Those without one count, too."""
    found: dict[str, int | None] = {} if run is None else {RUN + run.id: run.limit_nanos}
    if key is not None:
        found[f"key:{key.id}"] = key.budget_nanos
        found[f"key:{key.id}:{month}"] = key.monthly_nanos
    if account is not None:
        found["account"] = BALANCE if account.prepaid else None
        found[f"month:{month}"] = account.monthly_nanos
    return found


def level_of(purse: str) -> Level:
    """The level of a purse, from its name."""
    return _LEVELS[purse.partition(":")[0]]


def parties_of(caller: Caller, account: Account | None, key: Key | None) -> list[tuple[str, RateLimits]]:
    """The account and the key of a caller with their rate limits, each if it has any."""
    parties = [(f"account:{caller.environment}:{caller.account}", limits_of(account))]
    if key is not None and key.limits is not None:
        parties.append((f"key:{caller.account}\0{key.id}", key.limits))
    return [each for each in parties if each[1] != _NO_LIMITS]


def refused(
    windows: Sequence[tuple[str, Window, RateLimits]],
    tokens: int,
    at: float,
    now: float,
    *,
    slots: bool,
    processes: int = 1,
) -> RateLimited:
    """The error that says which limit is waited for longest, where one of them has no room ``at`` the windows' time;
    ``now`` in Unix seconds. ``processes``: each of so many has its part of the limits."""
    takes = [(take, window) for name, window, limits in windows for take in takes_of(name, limits, tokens, slots=slots)]
    for _, window in takes:
        window.age(at - WINDOW_S)
    parts = [(replace(take, limit=take.limit // processes), window) for take, window in takes]
    return refusal([take for take, _ in takes], denied(parts, at), now, processes)


def takes_of(name: str, limits: RateLimits, tokens: int, *, slots: bool) -> list[Take]:
    """The amounts that a call takes from the limits of an account or key."""
    takes: list[Take] = []
    if limits.concurrency is not None and slots:
        takes.append(Take(name, "slots", limits.concurrency))
    if limits.requests_per_min is not None:
        takes.append(Take(name, "requests", limits.requests_per_min))
    if limits.tokens_per_min is not None:
        takes.append(Take(name, "tokens", limits.tokens_per_min, tokens))
    return takes


def check_key(key: Key | None, key_id: str) -> None:
    """Raises ``AuthenticationFailed`` for a key that was revoked, or that a Console made elsewhere. Any other key that
    is not there is the host's own, and has no limits here."""
    if key is None and is_made(key_id):
        raise stray_key(key_id)
    if key is not None and not is_live(key):
        raise unknown_key()
