"""Ledger rows, balances and reservations (contract 7). Amounts are in nano-dollars. *Cost* is paid to the
provider, *charge* is billed to the account."""

from __future__ import annotations

from typing import Literal

import msgspec

from .account import Account, Durability, Key
from .money import NANOS_PER_USD, in_usd
from .plain import Struct
from .response import Tokens

Level = Literal["agent_run", "tag", "key", "account", "day", "week", "month"]
"""A level with a money limit. A call reserves at all levels that apply, or at none."""
Period = Literal["day", "week", "month"]
Tags = tuple[tuple[str, str], ...]
"""Keys and values of a request's metadata that an account has a ``TagLimit`` for."""
RowKind = Literal["attempt", "expired", "credit", "correction"]


class LedgerRow(Struct, frozen=True, kw_only=True, gc=False):
    """One line of an account's ledger, identified by ``request_id`` and ``attempt``. Rows never change. Only an
    ``expired`` row can disappear, if its call settles after all."""

    request_id: str
    """Trace id of the call, or id of the credit."""
    attempt: int
    """1, 2 ... within the call; 0 for rows without an attempt; -1, -2 ... in rows of kind ``correction``."""
    kind: RowKind = "attempt"
    """``attempt``: a call of one model. ``expired``: a reservation whose process is gone, so its true cost is unknown.
    ``credit``: money added. ``correction``: the change of an earlier row's amounts, which
    the library counts but never writes."""
    at: str
    """RFC 3339, UTC, milliseconds: admission of the call. All its attempts are charged to that day, week and month."""
    key_id: str | None = None
    model: str = ""
    provider: str = ""
    tokens: Tokens = Tokens()
    cost_nanos: int = 0
    charge_nanos: int = 0
    credit_nanos: int = 0
    cost_range_nanos: tuple[int, int] | None = None
    """Lowest and highest possible cost, if the provider did not report usage. For a correction: the change of each."""
    overrun_nanos: int = 0
    """Charge (in an agent run, cost) of the call beyond its reservation, because the provider ignored the cap or the
    reservation had expired. Set in the call's last row."""
    note: str = ""


class RunLimit(Struct, frozen=True, gc=False):
    """Cost limit of an agent run."""

    id: str
    limit_nanos: int


class Purse(Struct, frozen=True, gc=False):
    """Money at one level. A call is admitted only if ``spent_nanos + reserved_nanos`` stays within ``limit_nanos``."""

    level: Level
    """``account`` is the balance; ``day``, ``week`` and ``month`` are limits of the account."""
    name: str
    """``account``, ``day:2026-11-30``, ``week:2026-11-30`` (its Monday), ``month:2026-11``, ``key:<id>``,
    ``key:<id>:day:2026-11-30``, ``key:<id>:week:2026-11-30``, ``key:<id>:2026-11``, ``run:<id>``,
    ``tag:<key>=<value>:day:2026-11-30``."""
    limit_nanos: int | None
    """For a balance: total credit. None: no limit."""
    spent_nanos: int = 0
    """Can exceed the limit if the limit was lowered, credit was withdrawn, or a provider billed beyond the cap."""
    reserved_nanos: int = 0
    """Reserved for running calls."""

    @property
    def left_nanos(self) -> int | None:
        """Not spent; part of it may be reserved. None: no limit."""
        return None if self.limit_nanos is None else self.limit_nanos - self.spent_nanos

    @property
    def limit_usd(self) -> float | None:
        """``limit_nanos`` in dollars."""
        return in_usd(self.limit_nanos)

    @property
    def spent_usd(self) -> float:
        """``spent_nanos`` in dollars."""
        return self.spent_nanos / NANOS_PER_USD

    @property
    def reserved_usd(self) -> float:
        """``reserved_nanos`` in dollars."""
        return self.reserved_nanos / NANOS_PER_USD

    @property
    def left_usd(self) -> float | None:
        """``left_nanos`` in dollars."""
        return in_usd(self.left_nanos)

    @property
    def percent(self) -> float | None:
        """Percent of the limit spent. None: no limit, or a limit of 0."""
        return 100 * self.spent_nanos / self.limit_nanos if self.limit_nanos else None


class AccountPurse(Struct, frozen=True):
    """Money at one level of an account."""

    account: str
    purse: Purse


class Standing(msgspec.Struct, frozen=True):
    """Money of an account and one of its keys."""

    account: Account | None
    """None: not set up, so unlimited."""
    key: Key | None
    """None: no such key, or none requested."""
    purses: tuple[Purse, ...]
    """Those that apply, in the order run, tags, key, account, day, week, month. Those of a day, a week or a tag only if
    they have a limit."""


class AddCredit(Struct, frozen=True, tag=True):
    """Add to the account's balance, or withdraw from it. Does nothing if the id exists."""

    id: str
    nanos: int
    at: str
    note: str = ""
    durability: Durability = "committed"


class Stands(Struct, frozen=True, tag=True):
    """The ``Standing`` of the account, of one of its keys, of an agent run, and of tags."""

    at: str
    """RFC 3339; selects the day, week and month."""
    key_id: str | None = None
    run: RunLimit | None = None
    tags: Tags = ()


class LedgerSums(Struct, frozen=True, tag=True):
    """``LedgerSum`` records of a range of days ``YYYY-MM-DD``, both ends included."""

    first: str
    last: str


class LedgerSum(Struct, frozen=True):
    """Sum of all rows of one kind, model and day."""

    day: str
    provider: str
    model: str
    kind: RowKind
    rows: int
    tokens: Tokens
    cost_nanos: int
    charge_nanos: int
    credit_nanos: int
    least_nanos: int
    """Lowest possible ``cost_nanos``, if providers did not report all usage."""
    most_nanos: int


class LedgerRows(Struct, frozen=True, tag=True):
    """The account's rows, newest first. The key of a row is ``at``, ``request_id`` and ``attempt``."""

    since: str | None = None
    until: str | None = None
    request_id: str | None = None


class KeyStanding(msgspec.Struct, frozen=True):
    """Money of a key."""

    key: Key
    """Its settings."""
    total: Purse
    """All charges for its calls, and its budget, if any."""
    month: Purse
    """Charges of this month, and the monthly limit, if any."""
    day: Purse | None = None
    """Charges of today. None: no limit."""
    week: Purse | None = None
    """Charges of this week. None: no limit."""


class AccountStanding(msgspec.Struct, frozen=True):
    """Money of an account on a day, and in its week and calendar month."""

    account: Account
    """Its settings."""
    balance: Purse | None
    """Total credit as the limit, total charges as spent; ``left_nanos`` is the balance. None: not prepaid."""
    month: Purse
    """Charges of this month, and the monthly limit, if any."""
    keys: tuple[KeyStanding, ...]
    """Keys with a budget or limit."""
    day: Purse | None = None
    """Charges of today. None: no limit."""
    week: Purse | None = None
    """Charges of this week. None: no limit."""
    tags: tuple[Purse, ...] = ()
    """Charges of the requests with a tag, for the tags in the question that have limits."""


class Credit(Struct, frozen=True):
    """Credit that was added or withdrawn."""

    id: str
    """Your id, or ``cr_...``. Also the ``request_id`` of its ledger row."""
    nanos: int
    """Negative: withdrawn."""
    created: bool
    """False: it was already booked earlier."""
    balance_nanos: int | None
    """Current balance. None: the account is not prepaid; the credit counts once it is."""

    @property
    def usd(self) -> float:
        """``nanos`` in dollars."""
        return self.nanos / NANOS_PER_USD

    @property
    def balance_usd(self) -> float | None:
        """``balance_nanos`` in dollars."""
        return in_usd(self.balance_nanos)
