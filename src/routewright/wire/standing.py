"""How accounts stand: what a ``Console`` gives. Money is in nano-dollars, and in dollars where a name says so."""

from __future__ import annotations

from msgspec import Struct

from .account import Account, Key
from .ledger import Purse
from .money import NANOS_PER_USD, in_usd


class KeyStanding(Struct, frozen=True):
    """How a key stands."""

    key: Key
    """Its terms."""
    total: Purse
    """What was ever charged for its calls, and its budget, if it has one."""
    month: Purse
    """What was charged this month, and its limit, if there is one."""


class AccountStanding(Struct, frozen=True):
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
