"""Accounts, keys and callers, and secrets that print as ``***``."""

from __future__ import annotations

import re
from typing import Literal, Self

from msgspec import Struct

from .limits import RateLimits
from .money import in_usd

HIDDEN = "***"
_KEY = re.compile(r"(sk_(?:live|test)_)[0-9A-Za-z]{8,}")


class Secret(str):
    """A credential that appears as the string ``***``; only ``reveal`` returns it.

    ``repr``, ``str``, ``format``, ``json``, ``pickle`` and ``copy`` see ``***``, so a copy does not hold the
    credential. Secrets compare by identity, so comparisons leak no timing.
    """

    __slots__ = ("_value",)
    _value: str

    def __new__(cls, value: str) -> Self:
        """Hide ``value``, a string or another ``Secret``."""
        secret = super().__new__(cls, HIDDEN)
        object.__setattr__(secret, "_value", value.reveal() if isinstance(value, Secret) else value)
        return secret

    def reveal(self) -> str:
        """The credential itself. Use it only for the header that carries it."""
        return self._value

    def __repr__(self) -> str:
        return HIDDEN

    def __format__(self, spec: str) -> str:
        return format(HIDDEN, spec)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __hash__(self) -> int:
        return id(self)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Secret is constant: {name!r} cannot be set")

    def __getstate__(self) -> None:
        """None, so that dumping the object's state does not dump the credential."""

    def __reduce_ex__(self, protocol: object, /) -> tuple[object, ...]:
        return Secret, (HIDDEN,)


def without_passwords(text: str) -> str:
    """Replace passwords in a text that may quote URLs, malformed ones included."""
    hidden = re.sub(r"(?<=:)[^\s/:@\"'][^\s\"']*@", f"{HIDDEN}@", text)
    return re.sub(r"(?<=password=)('[^']*'|\"[^\"]*\"|[^&\s\"']*)", HIDDEN, hidden)


def without_password(url: str) -> str:
    """A URL with its password removed, safe to show even if it is malformed."""
    # of a sound URL the user stays, so that a command with it can be pasted
    sound = re.sub(r"^((?>[\w+]+://)[\w.~%-]+):.*@", r"\1@", url, flags=re.DOTALL)
    shown = re.sub(r"^((?>[\w+]*:?/*))[^@]*:.*@", r"\1", sound, flags=re.DOTALL)
    return re.sub(r"(?<=password=)[^&]*", HIDDEN, without_passwords(shown))


def holds_key(text: str) -> bool:
    """True if a text contains an API key."""
    return _KEY.search(text) is not None


def without_keys(text: str) -> str:
    """Replace API keys in a text by their prefix and ``***``."""
    return _KEY.sub(r"\1***", text)


Environment = Literal["production", "sandbox"]


SYSTEM_ACCOUNT = "_system"  # owns data of no account: snapshots, retention, keys of operators
DEFAULT_ACCOUNT = "default"  # used by calls that name no account; has no plan and no limits

Expect = Literal["absent", "present"]
Durability = Literal["buffered", "committed"]
"""What a batch survives once ``apply`` has returned: ``buffered`` a crash of the process, ``committed`` also a power
cut. A batch gets the strongest durability of its writes."""


UnknownAccounts = Literal["auto", "serve", "refuse"]
PlanName = Literal["free", "pro", "team", "enterprise", "unlimited"]
Scope = Literal[
    "route", "agents", "models:read", "policies:read", "traces:read", "analytics:read", "console:read", "console:write"
]
"""An operation that a key is allowed. Those of ``console`` are for keys of ``SYSTEM_ACCOUNT``, which have no others."""


class Caller(Struct, frozen=True, gc=False):
    """The account, environment and key of a call. Data stored for an account is visible only to that account.

    caller = await console.authenticate("Bearer sk_live_...")  # or, for a caller you know: Caller("acme")
    """

    account: str = DEFAULT_ACCOUNT
    """The account that is limited and charged. ``default`` has no limits."""
    environment: Environment = "production"
    """``sandbox``: canned answers, separate traces, never billed."""
    key_id: str | None = None
    """Id of the key used, ``key_...``. Its limits apply in addition to the account's."""
    scopes: tuple[Scope, ...] | None = None
    """What the key is allowed. None: everything. A Router checks only ``route``; check the others where you serve that
    data."""
    models: tuple[str, ...] | None = None
    """Models that its calls may use, in the words of a policy. None: all, or those of the key."""
    policies: tuple[str, ...] | None = None
    """Names or ids of policies of which its calls use one. None: any or none, or those of the key."""


_UNLIMITED = None, None, None


class _PeriodLimits:
    """The limits by day, week and month of a struct."""

    __slots__ = ()
    daily_nanos: int | None
    weekly_nanos: int | None
    monthly_nanos: int | None

    @property
    def daily_limit_usd(self) -> float | None:
        """``daily_nanos`` in dollars."""
        return in_usd(self.daily_nanos)

    @property
    def weekly_limit_usd(self) -> float | None:
        """``weekly_nanos`` in dollars."""
        return in_usd(self.weekly_nanos)

    @property
    def monthly_limit_usd(self) -> float | None:
        """``monthly_nanos`` in dollars."""
        return in_usd(self.monthly_nanos)

    @property
    def period_nanos(self) -> tuple[int | None, int | None, int | None]:
        """The limits by day, week and month."""
        return self.daily_nanos, self.weekly_nanos, self.monthly_nanos


class TagLimit(Struct, _PeriodLimits, frozen=True, kw_only=True):
    """The most to be charged for the requests with one value of a ``metadata`` key."""

    key: str
    """Key of the metadata."""
    value: str | None = None
    """None: any value has these limits of its own, except those with a ``TagLimit`` that names them."""
    daily_nanos: int | None = None
    """Highest charge per day (UTC)."""
    weekly_nanos: int | None = None
    """Highest charge per week, from Monday (UTC)."""
    monthly_nanos: int | None = None
    """Highest charge per calendar month (UTC)."""


class Account(Struct, _PeriodLimits, frozen=True, kw_only=True):
    """A customer with a plan, limits and a balance."""

    name: str
    """The value of ``Caller.account``."""
    created_at: str
    """RFC 3339, UTC, milliseconds."""
    plan: PlanName = "free"
    """Sets the default rate limits."""
    limits: RateLimits | None = None
    """Override the plan's limits, each that is not None."""
    prepaid: bool = False
    """True: calls are paid from the balance, which credit fills, and refused if it is too low."""
    monthly_nanos: int | None = None
    """Highest charge per calendar month (UTC). None: no limit."""
    daily_nanos: int | None = None
    """Highest charge per day (UTC), counted from the first call after it is set. None: no limit."""
    weekly_nanos: int | None = None
    """Highest charge per week, from Monday (UTC), counted likewise. None: no limit."""
    tag_limits: tuple[TagLimit, ...] = ()
    """Limits for requests with certain metadata."""

    @property
    def has_limited_money(self) -> bool:
        """True if calls need a reservation."""
        return self.prepaid or self.period_nanos != _UNLIMITED or bool(self.tag_limits)


class Key(Struct, _PeriodLimits, frozen=True, kw_only=True):
    """An API key of an account. Its secret is shown once and not stored."""

    id: str
    """``key_...``."""
    account: str
    """Owner; it never changes."""
    environment: Environment
    """``production`` for ``sk_live_...`` keys, ``sandbox`` for ``sk_test_...`` keys."""
    name: str
    """Display name."""
    prefix: str
    """First characters of the secret, to recognize the key."""
    digest: str
    """Identifier of the root secret, a colon, and the key's HMAC-SHA-256 in hex."""
    created_at: str
    scopes: tuple[Scope, ...] | None = None
    """What the key is allowed. None: everything."""
    limits: RateLimits | None = None
    """Limits that apply in addition to the account's."""
    budget_nanos: int | None = None
    """Highest total charge for its calls, counted from the key's creation. None: no limit."""
    monthly_nanos: int | None = None
    """Highest charge for its calls per calendar month (UTC). None: no limit."""
    models: tuple[str, ...] | None = None
    """Models that its calls may use, in the words of a policy: ids, aliases, ``openai/*``, ``provider:openai``. None:
    all."""
    policies: tuple[str, ...] | None = None
    """Names or ids of policies of which its calls must use one. A single one applies by itself. None: any or none."""
    revoked_at: str | None = None
    """None: the key is active."""
    daily_nanos: int | None = None
    """Highest charge for its calls per day (UTC), counted from the first call after it is set. None: no limit."""
    weekly_nanos: int | None = None
    """Highest charge for its calls per week, from Monday (UTC), counted likewise. None: no limit."""
    signed_out_at: str | None = None
    """Of an operator's key: sessions that began until then are over."""

    @property
    def has_limited_money(self) -> bool:
        """True if calls need a reservation."""
        return self.budget_nanos is not None or self.period_nanos != _UNLIMITED

    @property
    def budget_usd(self) -> float | None:
        """``budget_nanos`` in dollars."""
        return in_usd(self.budget_nanos)


class NewKey(Struct, frozen=True):
    """A new key with its secret."""

    secret: Secret
    """The secret; call ``reveal`` for its text. It cannot be shown again."""
    key: Key


class PutAccount(Struct, frozen=True, tag=True):
    """Create or replace an account. Applied under its own name."""

    account: Account
    expect: Expect | Account | None = None
    """An ``Account``: fail unless the stored one equals it."""
    durability: Durability = "committed"


class PutKey(Struct, frozen=True, tag=True):
    """Create or replace a key. Applied under its account. A revoked key stays revoked. Fails the batch with
    ``PreconditionFailed`` if another key of any account has the same digest."""

    key: Key
    expect: Expect | Key | None = None
    """A ``Key``: fail unless the stored one equals it."""
    durability: Durability = "committed"


class RevokeKey(Struct, frozen=True, tag=True):
    """Revoke a key of the account permanently. Traces of its calls from a day before ``at`` are marked compromised,
    also those stored later. ``Written.created`` is False if it was already revoked; ``count`` is 0 if there is no such
    key."""

    key_id: str
    at: str
    """RFC 3339, UTC, milliseconds."""
    durability: Durability = "committed"


class KeyByDigest(Struct, frozen=True, tag=True):
    """The ``Key`` of any account with one of these digests, or None. Queried under ``SYSTEM_ACCOUNT``."""

    digests: tuple[str, ...]


class Keys(Struct, frozen=True, tag=True):
    """All keys of the account, oldest first."""


class AllAccounts(Struct, frozen=True, tag=True):
    """All stored accounts, by name. Queried under ``SYSTEM_ACCOUNT``."""
