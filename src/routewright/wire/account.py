"""Accounts, keys and callers, and secrets that show as ``***`` wherever they are printed."""

from __future__ import annotations

import re
from typing import Any, Literal, Self

from msgspec import Struct

from .analytics import in_usd
from .limits import RateLimits

HIDDEN = "***"


class Secret(str):
    """Holds a credential behind the string ``***``; only ``reveal`` gives it out.

    It is that string to ``repr``, ``str``, ``format``, ``json``, ``pickle`` and ``copy``: a copy opens nothing.
    Two secrets are equal only if they are one object, so that no comparison can leak by its time.
    """

    __slots__ = ("_value",)
    _value: str

    def __new__(cls, value: str) -> Self:
        """Hide ``value``. A ``Secret`` stays what it is."""
        secret = super().__new__(cls, HIDDEN)
        object.__setattr__(secret, "_value", value.reveal() if isinstance(value, Secret) else value)
        return secret

    def reveal(self) -> str:
        """Give the credential itself, for the header that carries it and nothing else."""
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
        """Nothing: what dumps an object's state dumps no credential."""

    def __reduce_ex__(self, protocol: Any, /) -> tuple[Any, ...]:
        return Secret, (HIDDEN,)


def without_passwords(text: str) -> str:
    """A text that may quote URLs, or what was meant to be some."""
    hidden = re.sub(r"(?<=:)[^\s/:@\"'][^\s\"']*@", f"{HIDDEN}@", text)
    return re.sub(r"(?<=password=)[^&\s\"']*", HIDDEN, hidden)


def without_password(url: str) -> str:
    """A URL that may be shown, even if it is none."""
    shown = re.sub(r"^((?>[\w+]*:?/*))[^@]*:.*@", r"\1", url, flags=re.DOTALL)
    return re.sub(r"(?<=password=)[^&]*", HIDDEN, without_passwords(shown))


Environment = Literal["production", "sandbox"]


SYSTEM_ACCOUNT = "_system"  # holds what belongs to no account: snapshots, and how long traces are kept
DEFAULT_ACCOUNT = "default"  # of calls that name no other: nobody's, without a plan or a limit

Expect = Literal["absent", "present"]
Durability = Literal["buffered", "committed"]
"""What a batch outlives once ``apply`` returned: ``buffered`` the process, ``committed`` a power cut, too. A batch has
the stronger one of its writes."""


PlanName = Literal["free", "pro", "team", "enterprise", "unlimited"]
Scope = Literal["route", "agents", "models:read", "policies:read", "traces:read", "analytics:read"]
"""What a key may be used for."""


class Caller(Struct, frozen=True, gc=False):
    """The account a call belongs to. Every stored thing is kept under it and read back only by it.

    caller = await console.authenticate("Bearer sk_live_...")  # or, where you know who calls: Caller("acme")
    """

    account: str = DEFAULT_ACCOUNT
    """Whose limits hold, who is charged. ``default`` is nobody's, and has none."""
    environment: Environment = "production"
    """``sandbox``: canned answers, never billed, traces of its own."""
    key_id: str | None = None
    """The key that it came with, ``key_...``, whose limits hold besides. None: with none."""
    scopes: tuple[Scope, ...] | None = None
    """What its key is for. None: everything. A Router asks for ``route`` alone; the others are asked for by whoever
    hands out what they name."""


class Account(Struct, frozen=True, kw_only=True):
    """Who is served, on what terms."""

    name: str
    """What ``Caller.account`` says."""
    created_at: str
    """RFC 3339, UTC, milliseconds."""
    plan: PlanName = "free"
    """Which rate limits it has, but for those of its own."""
    limits: RateLimits | None = None
    """Its own, in place of those of the plan, each that is not None."""
    prepaid: bool = False
    """Calls are paid from its balance, which credit fills: what is not there cannot be spent."""
    monthly_nanos: int | None = None
    """The most that it may be charged in a calendar month, in UTC. None: no limit."""

    @property
    def has_limited_money(self) -> bool:
        """Whether its calls have to be reserved for."""
        return self.prepaid or self.monthly_nanos is not None

    @property
    def monthly_limit_usd(self) -> float | None:
        """``monthly_nanos`` in dollars."""
        return in_usd(self.monthly_nanos)


class Key(Struct, frozen=True, kw_only=True):
    """A key to an account. The key itself is shown once, and kept nowhere."""

    id: str
    """``key_...``."""
    account: str
    """Whose it is, for ever."""
    environment: Environment
    """``production``: a key ``sk_live_...``; ``sandbox``: ``sk_test_...``."""
    name: str
    """What its owner calls it."""
    prefix: str
    """How it begins, so that its owner knows it again."""
    digest: str
    """A mark of the secret that it was digested with, a colon, and its HMAC-SHA-256, in hex."""
    created_at: str
    scopes: tuple[Scope, ...] | None = None
    """What it is for. None: everything."""
    limits: RateLimits | None = None
    """Besides those of the account: both hold."""
    budget_nanos: int | None = None
    """The most that may ever be charged for its calls, those before it had a budget included. None: no limit."""
    monthly_nanos: int | None = None
    """The most that may be charged for them in a calendar month, in UTC. None: no limit."""
    revoked_at: str | None = None
    """None: it is live."""

    @property
    def has_limited_money(self) -> bool:
        """Whether its calls have to be reserved for."""
        return self.budget_nanos is not None or self.monthly_nanos is not None

    @property
    def budget_usd(self) -> float | None:
        """``budget_nanos`` in dollars."""
        return in_usd(self.budget_nanos)

    @property
    def monthly_limit_usd(self) -> float | None:
        """``monthly_nanos`` in dollars."""
        return in_usd(self.monthly_nanos)


class NewKey(Struct, frozen=True):
    """A key that was just made, with what is kept of it."""

    secret: Secret
    """The key itself: hand on what its ``reveal`` gives. Nobody can show it again."""
    key: Key


class PutAccount(Struct, frozen=True, tag=True):
    """Keep an account, in place of what was said of it before. Said under its own name."""

    account: Account
    expect: Expect | Account | None = None
    """As it was read: nobody has changed it since, but for what this batch does."""
    durability: Durability = "committed"


class PutKey(Struct, frozen=True, tag=True):
    """Keep a key, in place of what was said of it before. Said under the name of its account. One that was revoked
    stays so. Fails the batch with ``PreconditionFailed`` where another key, of whichever account, has its digest."""

    key: Key
    expect: Expect | Key | None = None
    """As it was read, likewise."""
    durability: Durability = "committed"


class RevokeKey(Struct, frozen=True, tag=True):
    """Revoke a key of the account for ever. The traces of its calls from a day before then on are compromised, also
    those that are put later. ``Written.created`` is False where it was revoked before; ``count`` 0: there is none."""

    key_id: str
    at: str
    """RFC 3339, UTC, milliseconds."""
    durability: Durability = "committed"


class KeyByDigest(Struct, frozen=True, tag=True):
    """The ``Key`` that has one of these digests, whichever account it is of, or None. Asked under
    ``SYSTEM_ACCOUNT``."""

    digests: tuple[str, ...]


class Keys(Struct, frozen=True, tag=True):
    """A list of all keys of the account, oldest first."""


class AllAccounts(Struct, frozen=True, tag=True):
    """A list of all accounts that were set up, by name. Asked under ``SYSTEM_ACCOUNT``."""
