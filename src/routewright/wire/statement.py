"""What an account was charged in a month: what ``Ledger.statement`` gives. Every amount stands there twice, in
nano-dollars, which add up, and in dollars."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from .route import Tokens

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
