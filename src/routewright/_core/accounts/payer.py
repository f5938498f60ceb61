"""Who pays for a call: windows and purses of a caller, holds of running calls, and errors for a lack of money (contract
7)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from routewright._core.account import is_live, is_made, limits_of, refusal, stray_key, unknown_key
from routewright._core.limits import Window, denied
from routewright._core.money import usd
from routewright.errors import InsufficientBalance, QuotaExhausted, RateLimited, RouterError
from routewright.wire import WINDOW_S, Account, Caller, Key, Level, Purse, RateLimits, RunLimit, Take
from routewright.wire.money import usd_text

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
        "period": month[1] if (month := _MONTH.search(purse.name)) else None,
        "limit_usd": usd(limit),
        "spent_usd": usd(purse.spent_nanos),
        "needed_usd": None if least_nanos is None else usd(least_nanos),
    }
    if purse.level == "account":
        said = f"the balance of the account is {_dollars(left)}{_needs(least_nanos, 'add credit')}"
        return InsufficientBalance(said, detail=detail)
    monthly = purse.level == "key" and detail["period"] is not None
    whose = "the key, in this month," if monthly else _WHOSE[purse.level]
    said = f"{whose} has {_dollars(left)} left of its {_dollars(limit)}"
    return QuotaExhausted(f"{said}{_needs(least_nanos, 'raise that limit')}", detail=detail)


def _needs(least_nanos: int | None, remedy: str) -> str:
    if least_nanos is None:
        return ", and no model that could answer has a known price; add a price to one"
    least = f"the cheapest model that could answer needs at least {_dollars(least_nanos)}"
    return f", and {least}; {remedy}, or ask for less, such as a smaller params.max_output_tokens"


def _dollars(nanos: int) -> str:
    return f"-${usd_text(-nanos)}" if nanos < 0 else f"${usd_text(nanos)}"


def held_by_others(purse: Purse, timeout_ms: int | None) -> RateLimited:
    """The error if running calls have reserved the rest of a purse. ``timeout_ms`` is the time waited; None: no
    wait."""
    said = f"running calls have reserved all that {_WHOSE[purse.level]} has left, and "
    said += "steps() does not wait for them" if timeout_ms is None else f"did not end within timeout_ms={timeout_ms}"
    detail = {"level": purse.level, "resource": "requests", "limit_of": "money", "retry_after_seconds": 1}
    return RateLimited(f"{said}; retry, or run fewer calls at a time", detail=detail)


class Hold(Struct, array_like=True, gc=False):
    """Limits, money and idempotency key held by a running call."""

    id: str
    account: str
    key_id: str | None
    came_at: float
    """Unix seconds of the call's arrival. Determines the month it is charged to."""
    ends_at: float
    """Log time by which the call ends."""
    parties: tuple[str, ...]
    """Accounts and keys whose windows count it."""
    tokens: int
    slots: int
    nanos: int
    purses: tuple[str, ...]
    """Purses that hold the reservation and are charged."""
    claim: bytes | None
    fingerprint: str
    owner: int = 0
    taken_at: float = 0.0
    """Log time of admission."""
    run: RunLimit | None = None
    """Agent run of the call."""


class End(Struct, array_like=True, gc=False):
    """The end of a hold."""

    id: str
    tokens: int | None
    """Actual tokens. None: the count at admission stays."""
    charge: int = 0
    run_nanos: int = 0
    """Cost that the agent run counts."""
    account: str = ""
    purses: tuple[str, ...] = ()
    """Purses to charge if there is no hold, or it names none."""


class Widened(Struct, array_like=True, gc=False):
    """A changed reservation of a hold."""

    id: str
    nanos: int


class Tick(Struct, array_like=True, gc=False):
    """Changes of one owner in one transaction, in this order."""

    changed: list[str] = []
    """Accounts whose terms, keys or sums were changed by other writes."""
    expired: list[str] = []
    ends: list[End] = []
    widened: list[Widened] = []
    admits: list[Hold] = []

    @property
    def is_empty(self) -> bool:
        """True if it only extends its owner's lease."""
        return not (self.ends or self.admits or self.expired or self.widened or self.changed)


RUN = "run:"
MONTH = len("2026-11")  # length of the month in a timestamp
BALANCE = -1  # marks a balance as limit: the credit granted so far
_NO_LIMITS = RateLimits()
_LEVELS: dict[str, Level] = {"run": "agent_run", "key": "key", "account": "account", "month": "month"}


class Sums:
    """Running totals of a purse."""

    __slots__ = ("account", "charged", "granted", "is_known", "is_of_run", "name", "payers", "reserved", "spent")

    def __init__(self, account: str, name: str) -> None:
        self.account = account
        self.name = name
        self.spent = self.granted = self.reserved = 0
        self.charged: int | None = None  # charges not in the books yet (``State.charged``)
        self.is_known = False  # True once ``spent`` and ``granted`` are loaded from the books
        self.is_of_run = name.startswith(RUN)
        self.payers = 0  # number of ``Payer`` that refer to it


class Payer:
    """Resolved terms of a caller: windows and purses with their limits."""

    __slots__ = ("account", "all", "day", "key", "limited", "names", "parties", "purses", "used_at", "windows")

    def __init__(self, account: Account | None, key: Key | None, day: int) -> None:
        self.account = account
        self.key = key
        self.day = day  # resolved anew each day, for the month's purses
        self.windows: list[tuple[str, Window, RateLimits]] = []
        self.parties: tuple[str, ...] = ()
        self.purses: list[tuple[Sums, int | None]] = []
        """Innermost first. The limit of a balance is ``BALANCE``."""
        self.names: tuple[str, ...] = ()
        self.all: tuple[Sums, ...] = ()  # purses without limits
        self.limited = False  # True if any purse has a limit
        self.used_at = 0.0


def purses_of(
    account: Account | None, key: Key | None, month: str, run: RunLimit | None = None
) -> dict[str, int | None]:
    """Purses charged for a call, innermost first, with their limits (None: no limit)."""
    found: dict[str, int | None] = {} if run is None else {RUN + run.id: run.limit_nanos}
    if key is not None:
        found[f"key:{key.id}"] = key.budget_nanos
        found[f"key:{key.id}:{month}"] = key.monthly_nanos
    if account is not None:
        found["account"] = BALANCE if account.prepaid else None
        found[f"month:{month}"] = account.monthly_nanos
    return found


def level_of(purse: str) -> Level:
    """Level of a purse, from its name."""
    return _LEVELS[purse.partition(":")[0]]


def parties_of(caller: Caller, account: Account | None, key: Key | None) -> list[tuple[str, RateLimits]]:
    """Account and key of a caller with their rate limits, if any."""
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
    """The error for a call that exceeds a limit; it names the limit with the longest wait. ``at`` is the windows' time,
    ``now`` in Unix seconds. ``processes`` share the limits equally."""
    takes = [(take, window) for name, window, limits in windows for take in takes_of(name, limits, tokens, slots=slots)]
    for _, window in takes:
        window.age(at - WINDOW_S)
    parts = [(replace(take, limit=take.limit // processes), window) for take, window in takes]
    return refusal([take for take, _ in takes], denied(parts, at), now, processes)


def takes_of(name: str, limits: RateLimits, tokens: int, *, slots: bool) -> list[Take]:
    """Amounts that a call takes from the limits of an account or key."""
    takes: list[Take] = []
    if limits.concurrency is not None and slots:
        takes.append(Take(name, "slots", limits.concurrency))
    if limits.requests_per_min is not None:
        takes.append(Take(name, "requests", limits.requests_per_min))
    if limits.tokens_per_min is not None:
        takes.append(Take(name, "tokens", limits.tokens_per_min, tokens))
    return takes


def check_key(key: Key | None, key_id: str) -> None:
    """Raise ``AuthenticationFailed`` for a revoked key, or one that a Console created in another storage. Other unknown
    ids are the host's own keys, without limits."""
    if key is None and is_made(key_id):
        raise stray_key(key_id)
    if key is not None and not is_live(key):
        raise unknown_key()
