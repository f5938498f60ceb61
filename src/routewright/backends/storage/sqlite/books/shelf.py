"""The ledger of one account in its tables: the ``Shelf`` of ``_core/ledger.py``.

What a batch needs is read at once, and what it changes is written at its end, since each statement takes longer than
the rule that asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from routewright._core.ledger import Expired, Hold, Sums, limits
from routewright.backends.storage.sqlite.connection import Connection
from routewright.backends.storage.sqlite.many import insert, rows_where
from routewright.wire import Account, AddCredit, Key, LedgerRow, Reserve, Settle, Stands, StoredEvent

from .bodies import ROW, account_of, columns_of, encode, key_of, name_of, names_of, text_of
from .owners import gone

_ACCOUNT = "SELECT body FROM account WHERE account = ?"
_KEYS = "SELECT id, body FROM key WHERE account = ? AND id IN ({})"
_PURSES = "SELECT name, spent, reserved, granted, told FROM purse WHERE account = ? AND name IN ({})"
_PUT_PURSES = "INSERT OR REPLACE INTO purse (account, name, spent, reserved, granted, told, at) VALUES {}"
_HOLD = "id, nanos, purses, owner, at, key_id"
_HOLDS = f"SELECT {_HOLD} FROM hold WHERE account = ? AND id IN ({{}})"
_HOLDS_OF = f"SELECT {_HOLD} FROM hold WHERE account = ? AND owner IN ({{}})"
_PUT_HOLDS = f"INSERT OR REPLACE INTO hold (account, {_HOLD}) VALUES {{}}"
_DROP_HOLD = "DELETE FROM hold WHERE account = ? AND id = ?"
_KINDS = "SELECT name, kind FROM ledger INDEXED BY ledger_by_name WHERE account = ? AND name IN ({})"
_EXPIRED = "SELECT most, purses FROM ledger WHERE account = ? AND name = ?"
_PUT_ROWS = f"INSERT INTO ledger (account, {ROW}, purses) VALUES {{}}"
_DROP_ROW = "DELETE FROM ledger WHERE account = ? AND name = ?"
PUT_EVENT = "INSERT OR REPLACE INTO event (account, id, created_at, body) VALUES (?, ?, ?, ?)"
_RUN = "run:"


class TableShelf:
    """As ``Shelf`` says, within one transaction. Nothing is written before ``flush``, or at all if that is not called,
    but for an expired row that goes, and events."""

    def __init__(self, connection: Connection, account: str) -> None:
        self._connection = connection
        self._name = account
        self._accounts: list[Account | None] = []
        """The account, once it was read."""
        self._keys: dict[str, Key | None] = {}
        self._sums: dict[str, Sums] = {}
        self._changed: dict[str, str] = {}
        """Purses that have changed, and when."""
        self._holds: dict[str, Hold | None] = {}
        self._touched: dict[str, None] = {}
        """Reservations that have changed."""
        self._kinds: dict[str, str | None] = {}
        """Of the rows that were looked for, by name."""
        self._rows: dict[str, tuple[LedgerRow, Sequence[str]]] = {}
        """Those that are new."""
        self.at = ""
        """When this is, as a timestamp."""

    def look_up(self, writes: Iterable[object]) -> None:
        """Read what some writes, or a query, will need."""
        calls = [each for each in writes if isinstance(each, Reserve | Settle)]
        self._read_holds([each.id for each in calls])
        self._read_kinds([name for each in writes for name in _rows_of(each)])
        asked = [each for each in writes if isinstance(each, Reserve | Settle | Stands)]
        self._read_keys({each.key_id for each in asked if each.key_id is not None})
        names = dict[str, None]()
        for each in asked:
            hold = None if isinstance(each, Stands) else self._holds.get(each.id)
            if hold is not None:
                names.update(dict.fromkeys(hold.purses))
            if hold is None or isinstance(each, Reserve):
                key = None if each.key_id is None else self._keys[each.key_id]
                names.update(dict.fromkeys(limits(self.account(), key, each.at, each.run)))
        self._read_sums([*names])

    def account(self) -> Account | None:
        """As ``Shelf`` says."""
        if not self._accounts:
            row = self._connection.execute(_ACCOUNT, (self._name,)).fetchone()
            self._accounts.append(None if row is None else account_of(row[0]))
        return self._accounts[-1]

    def key(self, key_id: str) -> Key | None:
        """As ``Shelf`` says."""
        if key_id not in self._keys:
            self._read_keys([key_id])
        return self._keys[key_id]

    def sums(self, purse: str) -> Sums:
        """As ``Shelf`` says."""
        if purse not in self._sums:
            self._read_sums([purse])
        return self._sums[purse]

    def put_sums(self, purse: str, sums: Sums) -> None:
        """As ``Shelf`` says."""
        self._sums[purse] = sums
        self._changed[purse] = self.at

    def hold(self, hold_id: str) -> Hold | None:
        """As ``Shelf`` says."""
        if hold_id not in self._holds:
            self._read_holds([hold_id])
        return self._holds[hold_id]

    def put_hold(self, hold: Hold) -> None:
        """As ``Shelf`` says."""
        self._holds[hold.id] = hold
        self._touched[hold.id] = None

    def drop_hold(self, hold_id: str) -> None:
        """As ``Shelf`` says."""
        self._holds[hold_id] = None
        self._touched[hold_id] = None

    def abandoned(self, clock_s: float) -> Sequence[Hold]:
        """As ``Shelf`` says. Who never spoke holds nothing."""
        found = rows_where(self._connection, _HOLDS_OF, gone(self._connection, clock_s), self._name)
        lost = [_hold_of(row) for row in found]
        self._holds.update({hold.id: hold for hold in lost})
        return lost

    def book(self, row: LedgerRow, purses: Sequence[str]) -> bool:
        """As ``Shelf`` says."""
        name = name_of(row.request_id, row.attempt)
        if self._kind(name) is not None:
            return False
        self._kinds[name] = row.kind
        self._rows[name] = row, purses
        return True

    def unbook(self, request_id: str) -> Expired | None:
        """As ``Shelf`` says. What expired in this batch stays."""
        name = name_of(request_id, 0)
        if self._kind(name) != "expired" or name in self._rows:
            return None
        self._kinds[name] = None
        most, purses = self._connection.execute(_EXPIRED, (self._name, name)).fetchone()
        self._connection.execute(_DROP_ROW, (self._name, name))
        return Expired(most, names_of(purses) if purses else ())

    def tell(self, event: StoredEvent) -> None:
        """As ``Shelf`` says."""
        self._connection.execute(PUT_EVENT, (self._name, event.id, event.created_at, encode(event)))

    def forget_terms(self) -> None:
        """Read the account and its keys anew."""
        self._accounts.clear()
        self._keys.clear()

    def flush(self) -> None:
        """Write what has changed."""
        insert(self._connection, _PUT_PURSES, [self._purse(name, at) for name, at in self._changed.items()])
        put = [hold for hold_id in self._touched if (hold := self._holds[hold_id]) is not None]
        insert(self._connection, _PUT_HOLDS, [(self._name, *_columns(hold)) for hold in put])
        for hold_id in self._touched:
            if self._holds[hold_id] is None:
                self._connection.execute(_DROP_HOLD, (self._name, hold_id))
        rows = [(self._name, *columns_of(row), text_of(names) if names else None) for row, names in self._rows.values()]
        insert(self._connection, _PUT_ROWS, rows)
        for written in (self._changed, self._touched, self._rows):
            written.clear()

    def _purse(self, name: str, at: str) -> tuple[Any, ...]:
        sums = self._sums[name]
        last_used = at if name.startswith(_RUN) else None
        return self._name, name, sums.spent, sums.reserved, sums.granted, sums.told, last_used

    def _kind(self, name: str) -> str | None:
        if name not in self._kinds:
            self._read_kinds([name])
        return self._kinds[name]

    def _read_keys(self, ids: Iterable[str]) -> None:
        wanted = [*ids]
        self._keys.update(dict.fromkeys(wanted))
        self._keys.update((key_id, key_of(body)) for key_id, body in self._where(_KEYS, wanted))

    def _read_sums(self, names: Sequence[str]) -> None:
        self._sums.update(dict.fromkeys(names, Sums()))
        self._sums.update((name, Sums(*sums)) for name, *sums in self._where(_PURSES, names))

    def _read_holds(self, ids: Sequence[str]) -> None:
        self._holds.update(dict.fromkeys(ids))
        self._holds.update((row[0], _hold_of(row)) for row in self._where(_HOLDS, ids))

    def _read_kinds(self, names: Sequence[str]) -> None:
        self._kinds.update(dict.fromkeys(names))
        self._kinds.update(self._where(_KINDS, names))

    def _where(self, sql: str, ids: Sequence[str]) -> list[Any]:
        return rows_where(self._connection, sql, ids, self._name)


def _rows_of(write: object) -> list[str]:
    """Names of the rows that a write may be about."""
    match write:
        case Settle(id=id, rows=rows):
            return [name_of(id, 0), *(name_of(row.request_id, row.attempt) for row in rows)]
        case AddCredit(id):
            return [name_of(id, 0)]
    return []


def _hold_of(row: Sequence[Any]) -> Hold:
    hold_id, nanos, purses, owner, at, key_id = row
    return Hold(hold_id, nanos, tuple(names_of(purses)), owner, at, key_id)


def _columns(hold: Hold) -> tuple[Any, ...]:
    return hold.id, hold.nanos, text_of(hold.purses), hold.owner, hold.at, hold.key_id
