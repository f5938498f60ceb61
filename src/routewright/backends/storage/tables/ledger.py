"""Tables of accounts, keys and the ledger."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from math import inf
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from routewright import wire
from routewright._core.accounts.holds import Hold, Wait
from routewright._core.accounts.purses import DAY
from routewright._core.accounts.settlement import Booked, Expired, expire_hold, expired_row, settle
from routewright._core.accounts.state import State
from routewright._core.idempotency import KeptResult
from routewright._runtime.loop import Reply, Signal
from routewright.errors import StorageCorrupt
from routewright.protocols import Clock, Facts
from routewright.wire import Account, Ask, Environment, Key, LedgerRow, StoredEvent

from .statements import Row, Statements, insert, select_rows

T = TypeVar("T")

_Columns = namedtuple(
    "_Columns", "name at kind key_id provider model input output cached cost charge credit least most overrun note"
)
ROW = ", ".join(_Columns._fields)
"""Columns of the ledger."""

ACCOUNT_TERMS = "plan", "limits", "prepaid", "monthly_nanos"
KEY_TERMS = "scopes", "limits", "budget_nanos", "monthly_nanos", "revoked_at"
"""Always written: a body without one of these is damaged, and must not count as unlimited."""

encode = msgspec.json.Encoder().encode
_account = msgspec.json.Decoder(Account).decode
_key = msgspec.json.Decoder(Key).decode
_fields = msgspec.json.Decoder(dict[str, Any]).decode
_plain = attrgetter(
    "at", "kind", "key_id", "provider", "model", "tokens.input", "tokens.output", "tokens.cached",
    "cost_nanos", "charge_nanos", "credit_nanos",
)  # fmt: skip


def _read(decode: Callable[[Any], T], kind: str, body: bytes | str, terms: Sequence[str] = ()) -> T:
    """Decode a body. Raises ``StorageCorrupt``, also if one of the terms is missing."""
    try:
        record = decode(body)
        if not terms or _fields(body).keys() >= {*terms}:
            return record
        raise ValueError("a term is missing")
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise StorageCorrupt(f"{kind} is damaged; run 'routewright store check' and restore a backup") from error


incident_of = partial(_read, msgspec.json.Decoder(wire.Incident).decode, "an incident")
event_of = partial(_read, msgspec.json.Decoder(StoredEvent).decode, "an event")
names_of = partial(_read, msgspec.json.Decoder(list[str]).decode, "a reservation")
"""Decode incidents, events, and names of purses."""


@lru_cache(maxsize=1_000)
def account_of(body: bytes) -> Account:
    """Decode an account. Cached: each call needs it, and it seldom changes."""
    return _read(_account, "an account", body, ACCOUNT_TERMS)


@lru_cache(maxsize=10_000)
def key_of(body: bytes) -> Key:
    """Decode a key, with a cache."""
    return _read(_key, "a key", body, KEY_TERMS)


@lru_cache(maxsize=1_000)
def text_of(names: tuple[str, ...]) -> str:
    """Encode names of purses."""
    return encode(names).decode()


def name_of(request_id: str, attempt: int | str) -> str:
    """The name of a row of the ledger."""
    return f"{request_id}/{attempt}"


def row_of(columns: Sequence[Any]) -> LedgerRow:
    """The ledger row of ``ROW`` columns."""
    row = _Columns(*columns)
    request_id, attempt = row.name.rsplit("/", 1)
    return LedgerRow(
        request_id=request_id, attempt=int(attempt), kind=row.kind, at=row.at, key_id=row.key_id, model=row.model,
        provider=row.provider, tokens=wire.Tokens(row.input, row.output, row.cached), cost_nanos=row.cost,
        charge_nanos=row.charge, credit_nanos=row.credit, overrun_nanos=row.overrun, note=row.note,
        cost_range_nanos=None if row.least is None else (row.least, row.most),
    )  # fmt: skip


def columns_of(row: LedgerRow) -> Row:
    """The ``ROW`` columns of a row."""
    least, most = row.cost_range_nanos or (None, None)
    return name_of(row.request_id, row.attempt), *_plain(row), least, most, row.overrun_nanos, row.note


_ACCOUNT = "SELECT body FROM account WHERE account = ?"
_KEY = "SELECT body FROM key WHERE account = ? AND id = ?"
_SUMS = "SELECT spent, granted FROM purse WHERE account = ? AND name = ?"
_CHARGE = """
INSERT INTO purse (account, name, spent, granted, told, at) VALUES {}
ON CONFLICT (account, name) DO UPDATE
SET spent = purse.spent + excluded.spent, granted = purse.granted + excluded.granted, at = excluded.at
"""
_THRESHOLD = "SELECT told FROM purse WHERE account = ? AND name = ?"
_PUT_THRESHOLD = """
INSERT INTO purse (account, name, spent, granted, told, at) VALUES (?, ?, 0, 0, ?, NULL)
ON CONFLICT (account, name) DO UPDATE SET told = excluded.told
"""
_READ_RESULTS = """
SELECT claim.claim, fingerprint, call, result, until FROM claim JOIN kept USING (n)
WHERE claim.account = ? AND claim.claim IN ({})
"""
_PUT_RESULTS = "INSERT INTO kept (n, account, claim, environment, fingerprint, call, until, result) VALUES {}"
_PUT_CLAIM = "INSERT INTO claim (account, claim, n) VALUES {} ON CONFLICT (account, claim) DO UPDATE SET n = excluded.n"
_CLAIM_NUMBERS = "SELECT n FROM claim WHERE account = ?"
_LAST_RESULT = "SELECT coalesce(max(n), 0) FROM kept"
_NAMES = "SELECT name FROM ledger INDEXED BY ledger_by_name WHERE account = ? AND name > ? AND name < ?"
_EXPIRED = (
    "SELECT most, purses FROM ledger INDEXED BY ledger_by_name WHERE account = ? AND name = ? AND kind = 'expired'"
)
PUT_ROWS = f"INTO ledger (account, {ROW}, purses) VALUES {{}}"
_DROP_ROW = "DELETE FROM ledger WHERE account = ? AND name = ?"
PUT_EVENT = "INSERT INTO event (account, id, created_at, body) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
_AFTER_ANY = "U"
"""Sorts after every digit."""

MAX_AGE_S = 2.0
"""Maximum age of cached state, so that a revoked key is refused within five seconds."""
LOOK_S = 0.1
"""With a virtual clock: how often waiting asks are tried again."""
SNAPSHOT_S = 6 * 3600.0
"""A snapshot is put again after this time, since one without a new trace for a day is removed."""
MAX_SNAPSHOTS = 1_000


SETTLE = 0
WRITE = 1
ASK = 2
"""Order within a transaction: settlements free what admissions need."""


class PendingAsk(Reply[Any]):
    """A pending admission, which may wait for others to release something."""

    __slots__ = ("ask", "takes", "until", "waits")
    order = ASK

    def __init__(self, ask: Ask, *, inline: bool) -> None:
        super().__init__(awaited=not inline)
        self.ask = ask
        if inline:
            self.here = Signal()
        self.waits: Wait | None = None
        self.until = inf
        """Monotonic deadline."""
        self.takes = False
        """True once it was granted."""

    async def poll(self, clock: Clock, look: Callable[[], object]) -> Any:
        """Wait in virtual time, without a thread. ``look`` tries waiting asks again."""
        until = clock.monotonic() + self.ask.waits_s
        while not self.is_delivered:
            now = clock.monotonic()
            with clock.deadline(min(now + LOOK_S, until) if now < until else now + LOOK_S):
                await self.here.wait()
            if not self.is_delivered:
                look()
        return await self.wait()


class TableShelf:
    """The ``Shelf`` over tables. ``begin`` is called for each transaction."""

    connection: Statements

    def __init__(self) -> None:
        self.state = State(self)
        self._rows: list[Row] = []
        self._new_results: list[Row] = []
        self._results: dict[bytes, list[Any] | None] = {}
        """Answers that were read in this transaction."""

    def account(self, name: str) -> Account | None:
        """As ``StoredAccounts`` says."""
        row = self.connection.execute(_ACCOUNT, (name,)).fetchone()
        return None if row is None else account_of(row[0])

    def key(self, account: str, key_id: str) -> Key | None:
        """As ``StoredAccounts`` says."""
        row = self.connection.execute(_KEY, (account, key_id)).fetchone()
        return None if row is None else key_of(row[0])

    def sums(self, account: str, purse: str) -> tuple[int, int]:
        """As ``StoredAccounts`` says."""
        row = self.connection.execute(_SUMS, (account, purse)).fetchone()
        return (0, 0) if row is None else tuple(row)

    def read_result(self, account: str, claim: bytes, now: float) -> KeptResult | None:
        """As ``StoredAccounts`` says."""
        if claim not in self._results:
            self.look_up(account, [claim])
        row = self._results[claim]
        return None if row is None or row[-1] <= now else KeptResult(*row[:-1])

    def look_up(self, account: str, claims: Sequence[bytes]) -> None:
        """Read answers under idempotency keys."""
        if self._new_results:
            self._flush_results()
        self._results.update(dict.fromkeys(claims))
        for claim, *row in select_rows(self.connection, _READ_RESULTS, claims, account):
            self._results[claim] = row

    def attempts(self, account: str, call: str) -> set[int]:
        """As ``Shelf`` says."""
        self.flush_rows()
        first = name_of(call, "")
        names = self.connection.execute(_NAMES, (account, first, first + _AFTER_ANY)).fetchall()
        parts = (name.rpartition("/") for (name,) in names)
        return {int(attempt) for request_id, _, attempt in parts if request_id == call}

    def unbook(self, account: str, call: str) -> Expired | None:
        """As ``Shelf`` says."""
        self.flush_rows()
        key = account, name_of(call, 0)
        if (row := self.connection.execute(_EXPIRED, key).fetchone()) is None:
            return None
        expired = Expired(row[0], tuple(names_of(row[1] or "[]")))  # may raise
        self.connection.execute(_DROP_ROW, key)
        return expired

    def read_threshold(self, account: str, name: str) -> int:
        """As ``Shelf`` says."""
        row = self.connection.execute(_THRESHOLD, (account, name)).fetchone()
        return 0 if row is None else row[0]

    def put_threshold(self, account: str, name: str, threshold: int) -> None:
        """As ``Shelf`` says."""
        self.connection.execute(_PUT_THRESHOLD, (account, name, threshold))

    def begin(self, connection: Statements) -> None:
        """Begin a transaction."""
        self.connection = connection
        self._results.clear()

    # Writes

    def settle(self, facts: Facts, now: float) -> Booked:
        """Book a call. The caller writes its trace."""
        booking = settle(self.state, self, facts, now)
        if booking.rows:
            self.book(facts.caller.account, booking.rows, booking.purses)
        if booking.events:
            self.emit(booking.events)
        if booking.keeps is not None:
            self.keep(facts.caller.account, *booking.keeps)
        return booking

    def credit(self, account: str, credit: wire.AddCredit) -> bool:
        """Add to a balance. False: already done."""
        if 0 in self.attempts(account, credit.id):
            return False
        row = LedgerRow(
            request_id=credit.id, attempt=0, kind="credit", at=credit.at, credit_nanos=credit.nanos, note=credit.note
        )
        self.book(account, [row], ("account",))
        insert(self.connection, _CHARGE, [(account, "account", 0, credit.nanos, 0, None)])
        return True

    def book(self, account: str, rows: Sequence[LedgerRow], purses: tuple[str, ...]) -> None:
        """Add new ledger rows."""
        names = text_of(purses) if purses else None
        for row in rows:
            self._rows.append((account, *columns_of(row), names))

    def keep(self, account: str, claim: bytes, environment: Environment, until: float, answer: KeptResult) -> None:
        """Add an answer."""
        self._results.pop(claim, None)
        self._new_results.append((account, claim, environment, answer.fingerprint, answer.call, until, answer.result))

    def delete_results(self, account: str, environments: Sequence[Environment]) -> int:
        """Remove all answers under idempotency keys of an account, and return how many."""
        numbers = [n for (n,) in self.connection.execute(_CLAIM_NUMBERS, (account,)).fetchall()]
        sql = f"SELECT n, claim FROM kept WHERE environment IN ({', '.join('?' * len(environments))}) AND n IN ({{}})"
        rows = select_rows(self.connection, sql, numbers, *environments)
        sql = "DELETE FROM kept WHERE account = ? AND n = ?"
        self.connection.executemany(sql, [(account, n) for n, _ in rows])
        sql = "DELETE FROM claim WHERE account = ? AND claim = ?"
        self.connection.executemany(sql, [(account, claim) for _, claim in rows])
        return len(rows)

    def emit(self, events: Sequence[StoredEvent]) -> None:
        """Insert events."""
        rows = [(event.account, event.id, event.created_at, encode(event)) for event in events]
        self.connection.executemany(PUT_EVENT, rows)

    def expire(self, hold: Hold) -> None:
        """End a hold of a dead process."""
        expire_hold(self.state, hold.id)
        row = expired_row(hold, self.unbook(hold.account, hold.id)) if hold.nanos else None
        if row is not None:
            self.book(hold.account, [row], hold.purses)

    def flush(self, at: str) -> None:
        """Write all pending rows. ``at``: the time as a timestamp."""
        if self._new_results:
            self._flush_results()
        self.flush_rows()
        charged = self.state.charged
        if charged:
            rows = [
                (purse.account, purse.name, purse.charged, 0, 0, at[:DAY] if purse.is_temporary else None)
                for purse in charged
            ]
            insert(self.connection, _CHARGE, rows)
            self.state.booked()

    def drop(self) -> None:
        """Drop all pending rows after a failed transaction."""
        self._rows = []
        self._new_results = []
        self.state.booked()

    def flush_rows(self) -> None:
        """Write pending ledger rows."""
        if self._rows:
            insert(self.connection, f"INSERT {PUT_ROWS}", self._rows)
            self._rows = []

    def _flush_results(self) -> None:
        results: list[Row] = []
        claims: list[Row] = []
        for number, row in enumerate(self._new_results, self.connection.execute(_LAST_RESULT).fetchone()[0] + 1):
            results.append((number, *row))
            claims.append((row[0], row[1], number))
        insert(self.connection, _PUT_RESULTS, results)
        insert(self.connection, _PUT_CLAIM, claims)
        self._new_results = []
