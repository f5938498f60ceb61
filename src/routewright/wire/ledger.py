"""The ledger, and money reserved for running calls (contract 7). All money is in nano-dollars. *Cost* is paid upstream,
*charge* is billed to the account."""

from __future__ import annotations

from typing import Literal

import msgspec

from .account import Account, Durability, Key
from .analytics import NANOS_PER_USD, in_usd
from .plain import Struct
from .response import Tokens

Level = Literal["agent_run", "key", "account", "month"]
"""Levels of money. A call is reserved at all levels that apply, or at none. A request's own budget is separate."""
RowKind = Literal["attempt", "expired", "credit", "correction"]


class LedgerRow(Struct, frozen=True, kw_only=True, gc=False):
    """One row of an account's ledger, identified by ``request_id`` and ``attempt``. Rows never change. Only an
    ``expired`` row is ever removed: when its call settles after all."""

    request_id: str
    """Id of the call's trace, or of the credit."""
    attempt: int
    """Number of the attempt from 1; 0: no attempt; -1, -2 ...: corrections."""
    kind: RowKind = "attempt"
    """``attempt``: a call of one model. ``expired``: a reservation of a dead process, at an unknown cost. ``credit``:
    money paid in. ``correction``: the difference that corrects another row."""
    at: str
    """RFC 3339, UTC, milliseconds: when the call was admitted. That month pays for all its attempts."""
    key_id: str | None = None
    model: str = ""
    provider: str = ""
    tokens: Tokens = Tokens()
    cost_nanos: int = 0
    charge_nanos: int = 0
    credit_nanos: int = 0
    cost_range_nanos: tuple[int, int] | None = None
    """Least and greatest possible cost, if the provider sent no final usage. For a correction: the change of each."""
    overrun_nanos: int = 0
    """How far the call exceeded its reservation, in charge, or in cost within an agent run: the provider ignored the
    cap, or the reservation had expired. Only in the call's last row."""
    note: str = ""


class RunLimit(Struct, frozen=True, gc=False):
    """Budget of an agent run, in cost."""

    id: str
    limit_nanos: int


class Purse(Struct, frozen=True, gc=False):
    """Money of one level. A call is admitted only if ``spent_nanos + reserved_nanos`` stays within ``limit_nanos``."""

    level: Level
    """``account``: its balance; ``month``: its monthly limit."""
    name: str
    """``account``, ``month:2026-11``, ``key:<id>``, ``key:<id>:2026-11``, ``run:<id>``."""
    limit_nanos: int | None
    """For a balance, the sum of all credit. None: no limit."""
    spent_nanos: int = 0
    """May exceed the limit if that was lowered, credit was taken back, or a provider billed beyond the cap."""
    reserved_nanos: int = 0
    """Reserved for running calls."""

    @property
    def left_nanos(self) -> int | None:
        """Not spent, though perhaps reserved. None: no limit."""
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
        """Percentage of the limit that is spent. None: no limit, or a limit of 0."""
        return 100 * self.spent_nanos / self.limit_nanos if self.limit_nanos else None


class Standing(msgspec.Struct, frozen=True):
    """Terms and purses of an account, and of one of its keys."""

    account: Account | None
    """None: the account was not set up, so it is unlimited."""
    key: Key | None
    """None: no such key, or none was queried."""
    purses: tuple[Purse, ...]
    """The request is inside the run, that in the key, the account and the month: of each that applies."""


class AddCredit(Struct, frozen=True, tag=True):
    """Add credit to the account's balance, or take it back. An id that exists changes nothing."""

    id: str
    nanos: int
    at: str
    note: str = ""
    durability: Durability = "committed"


class Correct(Struct, frozen=True, kw_only=True, tag=True):
    """Book a correction of a call and charge it to the purses of its month. The batch fails with
    ``PreconditionFailed`` if the call's rows have changed since they were read."""

    row: LedgerRow
    after: int
    """Number of rows the call had when read."""
    event_ids: tuple[str, ...] = ()
    """Three, for thresholds of the month that are crossed by it."""
    durability: Durability = "committed"


class Stands(Struct, frozen=True, tag=True):
    """The ``Standing`` of the account: of one of its keys, and of an agent run."""

    at: str
    """RFC 3339; selects the month."""
    key_id: str | None = None
    run: RunLimit | None = None


class LedgerSums(Struct, frozen=True, tag=True):
    """Returns a list of ``LedgerSum`` for a range of days, ``YYYY-MM-DD``, both ends inclusive."""

    first: str
    last: str


class LedgerSumsOfAll(Struct, frozen=True, tag=True):
    """``LedgerSums`` over all accounts, to compare with a provider's bill. Queried under ``SYSTEM_ACCOUNT``."""

    first: str
    last: str


class LedgerSum(Struct, frozen=True):
    """Sums over all rows of one kind, model and day."""

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
    """The account's rows, newest first. The key of a row is its ``at``, ``request_id`` and ``attempt``."""

    since: str | None = None
    until: str | None = None
    request_id: str | None = None


class KeyStanding(msgspec.Struct, frozen=True):
    """A key's terms and spending."""

    key: Key
    """Its terms."""
    total: Purse
    """Total charges and the total budget, if any."""
    month: Purse
    """What was charged this month, and its limit, if there is one."""


class AccountStanding(msgspec.Struct, frozen=True):
    """An account's terms and spending in a calendar month."""

    account: Account
    """Its terms."""
    balance: Purse | None
    """Limit: all its credit. Spent: all charges. ``left_nanos`` is the balance. None: the account is not prepaid."""
    month: Purse
    """What was charged this month, and its limit, if there is one."""
    keys: tuple[KeyStanding, ...]
    """Keys with a budget."""


class Credit(Struct, frozen=True):
    """Credit that was added or taken back."""

    id: str
    """Your own id, or ``cr_...``. Also the ``request_id`` of its ledger row."""
    nanos: int
    """Negative: taken back."""
    created: bool
    """False: the id existed, and nothing changed."""
    balance_nanos: int | None
    """The balance now. None: the account is not prepaid; the credit counts once it is."""

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
    """Sums of one model."""

    day: str | None
    """``YYYY-MM-DD``. None: the whole month."""
    provider: str
    model: str
    rows: int
    """Number of attempts, or of corrections."""
    tokens: Tokens
    """For corrections, the change, here and in the fields below."""
    cost_nanos: int
    """Paid upstream."""
    cost_usd: float
    charged_nanos: int
    """Billed to the account."""
    charged_usd: float


class CreditLine(Struct, frozen=True, kw_only=True):
    """Credit added or taken back on one day."""

    day: str
    rows: int
    credited_nanos: int
    credited_usd: float


class UncertainLine(Struct, frozen=True, kw_only=True):
    """Range of the cost of a model's calls, if the provider did not report all usage."""

    provider: str
    model: str
    """Empty: calls of any model whose process died before they ended."""
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
    """The part of ``charged_nanos`` that comes from corrections."""
    corrected_usd: float
    credited_nanos: int
    credited_usd: float
    least_nanos: int
    """Of ``cost_nanos``, where providers did not tell all."""
    least_usd: float
    most_nanos: int
    most_usd: float


class Statement(Struct, frozen=True, kw_only=True):
    """An account's charges in a UTC month. ``opening + credited - charged = closing``, to the nano-dollar."""

    account: str
    month: str
    """``YYYY-MM``."""
    by: StatementBy
    opening_nanos: int | None
    """Balance at the start of the month. None: the account is not prepaid."""
    opening_usd: float | None
    charges: list[StatementLine]
    """Largest charge first; in order of days if split by day."""
    corrections: list[StatementLine]
    """Corrections of this month's calls, whenever they were made."""
    credits: list[CreditLine]
    uncertain: list[UncertainLine]
    totals: StatementTotals
    closing_nanos: int | None
    closing_usd: float | None
