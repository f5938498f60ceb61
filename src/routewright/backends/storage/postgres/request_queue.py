"""Requests to the accounts in PostgreSQL, their encoding for ``tick``, and the queues of waiting asks."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Sequence
from heapq import heappop, heappush
from itertools import islice
from math import inf
from typing import Any, Literal

import msgspec

from routewright._core.accounts.holds import FreedName, Wait
from routewright._core.accounts.keys import is_issued
from routewright._core.accounts.purses import DAY, MONTH, monday_of
from routewright._core.accounts.settlement import compute_charge
from routewright._core.idempotency import scope_of
from routewright._runtime.loop import Reply
from routewright.backends.storage.tables import ledger as shelf
from routewright.backends.storage.tables.ledger import ROW, columns_of
from routewright.backends.storage.tables.traces import COLUMNS, TraceRows
from routewright.protocols import Facts
from routewright.wire import Ask, Caller, Grant, StoredEvent
from routewright.wire.timestamps import timestamp

from .connections import Tables, escape

_NAMES = ROW.split(", ")
_UNSAFE = re.compile(rb"\\u000[01]")
_encode = msgspec.json.Encoder().encode


def pack(value: Any) -> bytes:
    """JSON for PostgreSQL, with escaped texts."""
    text = _encode(value)
    return _encode(_escape_all(value)) if _UNSAFE.search(text) else text


def _escape_all(value: Any) -> Any:
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, dict):
        return {_escape_all(name): _escape_all(member) for name, member in value.items()}
    return [*map(_escape_all, value)] if isinstance(value, list | tuple) else value


def put_traces(tables: Tables, traces: Sequence[TraceRows]) -> None:
    """Insert new traces."""
    blobs: list[bytes | None] = []
    rows = [trace_of(trace, blobs) for trace in traces]
    tables.raw.execute("SELECT put_traces(%s::jsonb, %s::bytea[])", (pack(rows).decode(), blobs))


def trace_of(rows: TraceRows, blobs: list[bytes | None]) -> dict[str, Any]:
    """Encode a trace. Its bytes are appended to ``blobs``, which PostgreSQL indexes from 1."""
    shape, *sums = rows.counted[1:]
    start = len(blobs) + 1
    blobs += (*rows.body, shape)
    row = dict(zip(COLUMNS, rows.columns, strict=True)) | {"named": rows.named}
    row |= {"blob": start, "content": start + 1, "keys": start + 2, "shape": start + 3, "sums": sums}
    if rows.tags:
        row["tags"] = [{"key": key, "value": value, "number": number} for _, key, value, *_, number in rows.tags]
    return row


def end_of(index: int, grant: Grant, facts: Facts, blobs: list[bytes | None]) -> dict[str, Any]:
    """Encode the settlement of a granted call."""
    caller = facts.caller
    is_paid = caller.environment == "production"
    is_of_run = is_paid and facts.run is not None
    charge = compute_charge(facts.rows, facts, grant.nanos, is_of_run=is_of_run)
    result = None
    if facts.claim is not None and facts.result is not None:
        blobs.append(facts.result)
        result = len(blobs)
    return {
        "i": index, "account": caller.account, "id": facts.id, "is_release": False, "nanos": grant.nanos,
        "used": facts.tokens, "charge": charge.nanos, "run": charge.run_nanos, "month": facts.created_at[:MONTH],
        "created_at": facts.created_at, "tells": facts.event_id is not None, "is_open": not is_paid or not charge.rows,
        "environment": caller.environment, "result": result,
        "rows": [dict(zip(_NAMES, columns_of(row), strict=True)) for row in charge.rows],
    }  # fmt: skip


def release_of(index: int, account: str, call: str, tokens: int | None) -> dict[str, Any]:
    """Encode the release of a call."""
    return {"i": index, "account": account, "id": call, "is_release": True, "used": tokens, "rows": []}


def caller_of(index: int, caller: Caller, day: str, windows: bool) -> dict[str, Any]:  # of a key
    """Encode a caller: its limits and purses."""
    return {
        "i": index, "account": caller.account, "key": caller.key_id, "month": day[:MONTH], **periods_of(day),
        "pays": caller.environment == "production", "is_made": caller.key_id is not None and is_issued(caller.key_id),
        "window_": f"account:{caller.environment}:{caller.account}" if windows else None,
        "key_window": None if caller.key_id is None or not windows else f"key:{caller.account}\0{caller.key_id}",
    }  # fmt: skip


def periods_of(day: str) -> dict[str, str]:
    """Encode a day and its week."""
    return {"day": day, "week": monday_of(day)}


def ask_of(
    index: int, pending: PendingAsk, caller: int, *, again: bool, waits: bool, behind: Sequence[str]
) -> dict[str, Any]:
    """Encode an ask."""
    ask = pending.ask
    claim = ask.claim
    entry = {
        "i": index, "caller": caller, "id": ask.id, "came_at": ask.at, "lasts": ask.lasts_s, "tokens": ask.tokens,
        "nanos": ask.nanos, "claim": None if claim is None else scope_of(ask.caller, claim.key).hex(),
        "fingerprint": None if claim is None else claim.fingerprint, "run": None if ask.run is None else ask.run.id,
        "run_limit": None if ask.run is None else ask.run.limit_nanos, "slot": int(ask.slot and ask.windows),
        "again": again, "waits": waits, "behind": behind, "kind": pending.kind,
    }  # fmt: skip
    return {**entry, "tags": ask.tags, **periods_of(timestamp(ask.at)[:DAY])} if ask.tags else entry


MAX_BATCH = 64
"""Calls in one tick, so that other processes need not wait long."""
LOOK_S = 0.05
"""How often waiting asks are tried again, in case another process has freed something."""


class PendingAsk(shelf.PendingAsk):
    """A pending ask.

    One that ``looks`` takes nothing and is answered with a ``Left``. One that ``widens`` never waits, and is answered
    with None if there is no room.
    """

    __slots__ = ("is_done", "kind", "number")

    def __init__(self, ask: Ask, kind: Literal["admits", "widens", "looks"] = "admits", *, inline: bool) -> None:
        super().__init__(ask, inline=inline)
        self.kind = kind
        self.is_done = False
        """True if it has an answer, even if its caller has not received it."""
        self.number = 0
        """Its number among waiting asks."""

    @property
    def account(self) -> str:
        """The account whose limits and money it needs."""
        return self.ask.caller.account

    def answer(self, answer: Any) -> None:
        """Set the answer, or the error to raise."""
        self.is_done = True
        if isinstance(answer, Exception):
            self.error = answer
        else:
            self.result = answer


class Ending(Reply[Sequence[StoredEvent]]):
    """An ended call. Without facts it is released, with the used ``tokens``."""

    __slots__ = ("account", "call", "facts", "grant", "tokens", "trace")

    def __init__(
        self,
        account: str,
        call: str,
        grant: Grant | None,
        facts: Facts | None = None,
        trace: TraceRows | None = None,
        tokens: int | None = 0,
        *,
        awaited: bool = False,
    ) -> None:
        super().__init__(awaited=awaited)
        self.account = account
        self.call = call
        self.grant = grant
        self.facts = facts
        self.trace = trace
        self.tokens = tokens

    @property
    def is_plain(self) -> bool:
        """True if ``tick`` can end it."""
        return self.facts is None or (self.grant is not None and not self.facts.events)


class Work(Reply[Any]):
    """Other work, before a tick, or after it if it ``comes_last``."""

    __slots__ = ("comes_last", "do")

    def __init__(self, do: Callable[[], Any], *, awaited: bool, comes_last: bool = False) -> None:
        super().__init__(awaited=awaited)
        self.do = do
        self.comes_last = comes_last


class Queues:
    """FIFO queues of waiting asks for each purse and idempotency key. For one thread at a time. Waiting costs nothing
    until something is freed in the account, or the deadline passes."""

    def __init__(self) -> None:
        self._queues: dict[str, dict[FreedName, dict[int, PendingAsk]]] = {}
        """By account and awaited thing."""
        self._ends: list[tuple[float, int, PendingAsk]] = []
        """A heap of deadlines, also of some that have left."""
        self._freed: set[str] = set()
        """Accounts with waiting asks in which something was freed."""
        self._count = self._number = 0
        self._looked_at = -inf

    def __len__(self) -> int:
        return self._count

    @property
    def is_ready(self) -> bool:
        """True if something was freed since the last try."""
        return bool(self._freed)

    @property
    def gives_up_at(self) -> float:
        """The first deadline."""
        while self._ends and self._ends[0][2].waits is None:
            heappop(self._ends)
        return self._ends[0][0] if self._ends else inf

    def free(self, account: str) -> None:
        """Called when something was freed in an account."""
        if account in self._queues:
            self._freed.add(account)

    def look(self) -> None:
        """Try the first of each queue at once, since others may have freed something."""
        self._looked_at = -inf

    def take_ready(self, now: float) -> list[PendingAsk]:
        """Asks to try now: those of accounts in which something was freed, sometimes the first of each queue, and those
        after their deadline."""
        # Trying all waiting asks whenever anything is freed would cost a tick of thousands, and in the order of arrival
        # the queue of one busy account would fill every tick. So a tick takes at most `MAX_BATCH`, and accounts and
        # queues take turns: what was tried moves to the end of its dict
        # (`test_many_waiting_calls_of_one_account_do_not_delay_another`). Other processes free things without telling
        # this one, so every `LOOK_S` the first of each queue is tried anyway.
        is_look_due = now >= self._looked_at + LOOK_S
        ready: dict[int, PendingAsk] = {}
        while self.gives_up_at <= now and len(ready) < MAX_BATCH:
            end = heappop(self._ends)
            ready[end[1]] = end[2]
        if is_look_due:
            self._looked_at = now
        freed = self._freed
        self._freed = set()
        for account in [account for account in self._queues if is_look_due or account in freed]:
            for name in [*self._queues[account]]:
                room = MAX_BATCH - len(ready)
                if room <= 0:
                    self._freed |= freed & {account}
                    break
                queues = self._queues[account] = self._queues.pop(account)  # tried ones come last next time
                queue = queues[name] = queues.pop(name)
                ready |= islice(queue.items(), room if account in freed else 1)
        return [ready[number] for number in sorted(ready)]

    def wait(self, pending: PendingAsk, wait: Wait, now: float) -> None:
        """Append an ask to a queue, unless it waits there already."""
        if pending.waits is None or pending.waits.on != wait.on:
            self.leave(pending)
            if pending.number == 0:
                self._number += 1
                pending.number = self._number
                pending.until = now + pending.ask.waits_s
            self._queues.setdefault(pending.account, {}).setdefault(wait.on, {})[pending.number] = pending
            self._count += 1
            heappush(self._ends, (pending.until, pending.number, pending))
        pending.waits = wait

    def leave(self, pending: PendingAsk) -> None:
        """Remove an ask from its queue, if it is in one."""
        wait = pending.waits
        if wait is None:
            return
        pending.waits = None
        queues = self._queues[pending.account]
        del queues[wait.on][pending.number]
        self._count -= 1
        if not queues[wait.on]:
            del queues[wait.on]
        if queues:
            self._freed.add(pending.account)  # the next one may have waited only for this ask
        else:
            del self._queues[pending.account]
            self._freed.discard(pending.account)

    def find_waiting(self, account: str, numbers: Container[int]) -> list[str]:
        """Purses for which other asks than those of these numbers wait. New asks queue behind them."""
        return [
            name[1]
            for name, queue in self._queues.get(account, {}).items()
            if isinstance(name, tuple) and any(number not in numbers for number in queue)
        ]
