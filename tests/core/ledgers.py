"""The rules of the ledger over what memory keeps of one account, without a storage."""

from __future__ import annotations

from typing import Any

import pytest

from routewright._core.books import Books
from routewright._core.lease import Owners
from routewright.errors import PreconditionFailed
from routewright.testing.storage.samples import AT, make_account, reservation
from routewright.wire import Key, LedgerRow, Purse, PutAccount, PutKey, Settle, Standing, Stands, Written


class Ledger:
    """An account's books, and what is asked of them most."""

    def __init__(self, *keys: Key, newest: int = 1_000, **terms: Any) -> None:
        self.books = Books(Owners(), newest)
        self.books.put(PutAccount(make_account(**terms)))
        for each in keys:
            self.books.put(PutKey(each))

    def reserve(self, call: str, nanos: int, **given: Any) -> Written:
        return self.books.put(reservation(call, nanos, **given))

    def refused(self, call: str, nanos: int, **given: Any) -> dict[str, Any]:
        """What a reservation is refused with."""
        with pytest.raises(PreconditionFailed) as full:
            self.reserve(call, nanos, **given)
        assert full.value.detail is not None
        return full.value.detail

    def settle(self, call: str, *rows: LedgerRow, **given: Any) -> Written:
        return self.books.put(Settle(id=call, rows=rows, **{"at": AT} | given))

    def standing(self, at: str = AT, **given: Any) -> Standing:
        standing: Standing = self.books.answer(Stands(at, **given))
        return standing

    def purses(self, at: str = AT, **given: Any) -> dict[str, tuple[int, int]]:
        """What is spent and reserved, by purse."""
        return {each.name: (each.spent_nanos, each.reserved_nanos) for each in self.standing(at, **given).purses}

    def purse(self, name: str, **given: Any) -> Purse:
        return next(each for each in self.standing(**given).purses if each.name == name)

    def rows(self) -> list[LedgerRow]:
        """All, oldest first."""
        return [*self.books._rows.values()]
