"""What was paid and billed, and what is set aside for calls that run (contract 7). All money in nano-dollars. *Cost* is
what was paid upstream, *charge* what is billed to the account."""

from __future__ import annotations

from typing import Literal

import msgspec

from .account import Account, Durability, Key
from .analytics import NANOS_PER_USD, in_usd
from .plain import Struct
from .response import Tokens

Level = Literal["agent_run", "key", "account", "month"]
"""Whose money: a call is reserved for at all levels that apply, or at none. Below them is the request's own budget."""
RowKind = Literal["attempt", "expired", "credit", "correction"]


class LedgerRow(Struct, frozen=True, kw_only=True, gc=False):
    """One line of an account's ledger. ``request_id`` and ``attempt`` name it. Never changed; one alone ever goes, that
    of a reservation that ``expired``, where its call settles after all."""

    request_id: str
    """Of the call: its trace's id. Of credit: its own."""
    attempt: int
    """1, 2 ... within the call; 0: of no attempt; -1, -2 ...: corrections."""
    kind: RowKind = "attempt"
    """``attempt``: a call of one model. ``expired``: a reservation whose owner is gone, so that nobody knows what it
    came to. ``credit``: money that came in. ``correction``: by how much another row was wrong."""
    at: str
    """RFC 3339, UTC, milliseconds: when its call was admitted, whose month pays for all its attempts."""
    key_id: str | None = None
    model: str = ""
    provider: str = ""
    tokens: Tokens = Tokens()
    cost_nanos: int = 0
    charge_nanos: int = 0
    credit_nanos: int = 0
    cost_range_nanos: tuple[int, int] | None = None
    """The least and the most that it can have cost, where the provider did not tell. Of a correction: what it adds to
    each."""
    overrun_nanos: int = 0
    """By how much its call came to more than was reserved for it, of charge, or of cost in an agent run: the provider
    ignored the cap, or the reservation was over. Said in its last row."""
    note: str = ""


class RunLimit(Struct, frozen=True, gc=False):
    """The budget of an agent run, in cost."""

    id: str
    limit_nanos: int


class Purse(Struct, frozen=True, gc=False):
    """Money of one level. A call is admitted only if ``spent_nanos + reserved_nanos`` stays within ``limit_nanos``."""

    level: Level
    """``account`` is its balance, ``month`` what it may be charged in one."""
    name: str
    """``account``, ``month:2026-11``, ``key:<id>``, ``key:<id>:2026-11``, ``run:<id>``."""
    limit_nanos: int | None
    """Of a balance: all the credit that was given. None: there is no limit."""
    spent_nanos: int = 0
    """Above the limit where that was lowered, credit was taken back, or a provider billed beyond the cap."""
    reserved_nanos: int = 0
    """What calls that run may still come to."""

    @property
    def left_nanos(self) -> int | None:
        """What is not spent; some of it may be reserved. None: there is no limit."""
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
        """How much of the limit is spent. None: there is no limit, or it is nothing."""
        return 100 * self.spent_nanos / self.limit_nanos if self.limit_nanos else None


class Standing(msgspec.Struct, frozen=True):
    """How an account and one of its keys stand."""

    account: Account | None
    """None: nobody set it up, so it is unlimited."""
    key: Key | None
    """None: there is no such key, or none was asked for."""
    purses: tuple[Purse, ...]
    """The request is inside the run, that in the key, the account and the month: of each that applies."""


class AddCredit(Struct, frozen=True, tag=True):
    """Add to the balance of the account, or take from it. Of an id that was there before nothing is done."""

    id: str
    nanos: int
    at: str
    note: str = ""
    durability: Durability = "committed"


class Correct(Struct, frozen=True, kw_only=True, tag=True):
    """Book a correction of a call, and charge it to the purses of its month. Fails the batch with
    ``PreconditionFailed`` where the call's rows have changed since they were read."""

    row: LedgerRow
    after: int
    """How many rows the call has."""
    event_ids: tuple[str, ...] = ()
    """Three, for thresholds of the month that are crossed by it."""
    durability: Durability = "committed"


class Stands(Struct, frozen=True, tag=True):
    """The ``Standing`` of the account: of one of its keys, and of an agent run."""

    at: str
    """RFC 3339: says which month is asked for."""
    key_id: str | None = None
    run: RunLimit | None = None


class LedgerSums(Struct, frozen=True, tag=True):
    """A list of ``LedgerSum`` of some days, both ends included, ``YYYY-MM-DD``."""

    first: str
    last: str


class LedgerSumsOfAll(Struct, frozen=True, tag=True):
    """The same over all accounts: what a provider bills is what all of them used. Asked under ``SYSTEM_ACCOUNT``."""

    first: str
    last: str


class LedgerSum(Struct, frozen=True):
    """What all rows of a kind of one model on one day came to."""

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
    """Of ``cost_nanos``, where providers did not tell all."""
    most_nanos: int


class LedgerRows(Struct, frozen=True, tag=True):
    """The account's rows, newest first; the key of one is its ``at``, ``request_id`` and ``attempt``."""

    since: str | None = None
    until: str | None = None
    request_id: str | None = None


class KeyStanding(msgspec.Struct, frozen=True):
    """How a key stands."""

    key: Key
    """Its terms."""
    total: Purse
    """What was ever charged for its calls, and its budget, if it has one."""
    month: Purse
    """What was charged this month, and its limit, if there is one."""


class AccountStanding(msgspec.Struct, frozen=True):
    """How an account stands in a calendar month."""

    account: Account
    """Its terms."""
    balance: Purse | None
    """Its credit as the limit, and what was charged since it was set up; ``left_nanos`` is the balance. None: it is not
    prepaid."""
    month: Purse
    """What was charged this month, and its limit, if there is one."""
    keys: tuple[KeyStanding, ...]
    """Those that have budgets."""


class Credit(Struct, frozen=True):
    """Credit that was given, or taken back."""

    id: str
    """Yours, or ``cr_...``. It is also the ``request_id`` of its row in the ledger."""
    nanos: int
    """Below 0: it was taken back."""
    created: bool
    """False: that was done before."""
    balance_nanos: int | None
    """As it is now. None: the account is not prepaid; the credit counts once it is."""

    @property
    def usd(self) -> float:
        """``nanos`` in dollars."""
        return self.nanos / NANOS_PER_USD

    @property
    def balance_usd(self) -> float | None:
        """``balance_nanos`` in dollars."""
        return in_usd(self.balance_nanos)


StatementBy = Literal["model", "day"]


class StatementLine(Struct, frozen=True, kw_only=True):
    """What one model came to."""

    day: str | None
    """``YYYY-MM-DD``. None: over the whole month."""
    provider: str
    model: str
    rows: int
    """Attempts; of corrections, how many."""
    tokens: Tokens
    """Of corrections, what was added or taken away; so with what follows."""
    cost_nanos: int
    """Paid upstream."""
    cost_usd: float
    charged_nanos: int
    """Billed to the account."""
    charged_usd: float


class CreditLine(Struct, frozen=True, kw_only=True):
    """What came in on one day, or was taken back."""

    day: str
    rows: int
    credited_nanos: int
    credited_usd: float


class UncertainLine(Struct, frozen=True, kw_only=True):
    """Between what the cost of a model's calls lies, where the provider did not tell all."""

    provider: str
    model: str
    """Empty: of calls whose process ended before they did, whichever model they had called."""
    least_nanos: int
    least_usd: float
    most_nanos: int
    most_usd: float


class StatementTotals(Struct, frozen=True, kw_only=True):
    """The sums of all lines: charges and corrections together."""

    attempts: int
    corrections: int
    tokens: Tokens
    cost_nanos: int
    cost_usd: float
    charged_nanos: int
    charged_usd: float
    corrected_nanos: int
    """What of ``charged_nanos`` are corrections."""
    corrected_usd: float
    credited_nanos: int
    credited_usd: float
    least_nanos: int
    """Of ``cost_nanos``, where providers did not tell all."""
    least_usd: float
    most_nanos: int
    most_usd: float


class Statement(Struct, frozen=True, kw_only=True):
    """What an account was charged in a month of UTC, and for what. ``opening + credited - charged = closing``, to the
    nano-dollar."""

    account: str
    month: str
    """``YYYY-MM``."""
    by: StatementBy
    opening_nanos: int | None
    """The balance as the month began. None: the account pays from none."""
    opening_usd: float | None
    charges: list[StatementLine]
    """The most charged first; by day in the order of days."""
    corrections: list[StatementLine]
    """In the month of the calls that they are about, whenever they were made."""
    credits: list[CreditLine]
    uncertain: list[UncertainLine]
    totals: StatementTotals
    closing_nanos: int | None
    closing_usd: float | None
