"""What is done to the tables in one transaction: the rules of ``_core/limiter.py``, over rows.

All limits of one name stand in one row, and what one step took of its windows in another: a step of an account and a
key touches two of each, whatever it takes. Sums are changed by adding to them, in SQL: a finaliser may end a step in
the midst of another, in the same transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from routewright._core.window import SLOT_WAIT_S, fits, leaves_in, missing, state_of
from routewright.backends.storage.sqlite.connection import Connection
from routewright.wire import WINDOW_S, Denied, Resource, Take, Taken

DELETE_AT = 64
"""Entries that have left their windows are deleted so many at a time."""

_PARTY = "SELECT id, requests, tokens, slots, first, kept, next, oldest, newest FROM party WHERE name = ?"
_NOBODY = (None, 0, 0, 0, 0, 0, 0, 0.0, 0.0)
_NEW_PARTY = """INSERT INTO party (name, requests, tokens, slots, first, kept, next, oldest, newest)
VALUES (?, 0, 0, 0, 0, 0, 0, 0, 0) RETURNING id"""
_TAKE = """UPDATE party SET requests = requests + ?, tokens = tokens + ?, slots = slots + ?,
next = ?, oldest = ?, newest = ? WHERE id = ?"""
_AGE = "UPDATE party SET requests = requests - ?, tokens = tokens - ?, first = ?, kept = ?, oldest = ? WHERE id = ?"
_ENTRY = "INSERT INTO entry (party, n, at, requests, tokens, step) VALUES (?, ?, ?, ?, ?, ?)"
_ENTRIES = "SELECT n, at, requests, tokens FROM entry WHERE party = ? AND n >= ? ORDER BY n"
_LAST = {
    "requests": "SELECT at FROM entry WHERE party = ? AND n >= ? AND requests > 0 ORDER BY n DESC LIMIT 1",
    "tokens": "SELECT at FROM entry WHERE party = ? AND n >= ? AND tokens > 0 ORDER BY n DESC LIMIT 1",
}
_COLUMN = {"requests": 2, "tokens": 3}
"""Of ``_ENTRIES``."""
_FREE = "UPDATE party SET slots = slots - ? WHERE id = ?"


class Party:
    """Whose limits they are, as they are now."""

    __slots__ = ("_connection", "_now", "first", "id", "kept", "name", "newest", "next", "oldest", "used", "wanted")

    def __init__(self, connection: Connection, name: str, now: float) -> None:
        self._connection, self._now = connection, now
        self.name = name
        self.wanted: dict[Resource, int] = {}
        """What this step is about to take."""
        found: Sequence[Any] = connection.execute(_PARTY, (name,)).fetchone() or _NOBODY
        self.id: int | None = found[0]
        self.used: dict[Resource, int] = {"requests": found[1], "tokens": found[2], "slots": found[3]}
        """The sums of what counts."""
        self.first, self.kept, self.next, self.oldest, self.newest = found[4:]
        if self.first < self.next and self.oldest <= now - WINDOW_S:
            self._age(now - WINDOW_S)

    def _age(self, cut: float) -> None:
        """Let go what was taken until ``cut``."""
        entries = self._connection.execute(_ENTRIES, (self.id, self.first))
        left_requests = left_tokens = 0
        self.first, self.oldest = self.next, self.newest
        while (entry := entries.fetchone()) is not None:
            n, at, requests, tokens = entry
            if at > cut:
                self.first, self.oldest = n, at
                break
            left_requests += requests
            left_tokens += tokens
        self.used["requests"] -= left_requests
        self.used["tokens"] -= left_tokens
        if self.first - self.kept >= DELETE_AT or self.first == self.next:
            self._connection.execute("DELETE FROM entry WHERE party = ? AND n < ?", (self.id, self.first))
            self.kept = self.first
        self._connection.execute(_AGE, (left_requests, left_tokens, self.first, self.kept, self.oldest, self.id))

    def has_room(self, take: Take) -> bool:
        """Whether it fits beside what is wanted already."""
        return fits(self.used[take.resource] + self.wanted.get(take.resource, 0), take.amount, take.limit)

    def want(self, take: Take) -> None:
        """Ask for it, too."""
        self.wanted[take.resource] = self.wanted.get(take.resource, 0) + take.amount

    def take(self, step: int, owner: str) -> None:
        """Take what is wanted."""
        if self.id is None:
            self.id = self._connection.execute(_NEW_PARTY, (self.name,)).fetchone()[0]
        requests, tokens, slots = (self.wanted.get(each, 0) for each in self.used)
        if "requests" in self.wanted or "tokens" in self.wanted:
            ended_by = step if "tokens" in self.wanted else None
            self._connection.execute(_ENTRY, (self.id, self.next, self._now, requests, tokens, ended_by))
            if self.first == self.next:
                self.oldest = self._now
            self.next += 1
        if "slots" in self.wanted:
            sql = "INSERT INTO slot (step, party, owner, amount) VALUES (?, ?, ?, ?)"
            self._connection.execute(sql, (step, self.id, owner, slots))
        taken = requests, tokens, slots, self.next, self.oldest, self._now, self.id
        self._connection.execute(_TAKE, taken)

    def wait(self, take: Take) -> float:
        """Seconds until it fits (``Window.wait``)."""
        used = self.used[take.resource]
        if fits(used, take.amount, take.limit):
            return 0.0
        if take.limit < 1:
            return WINDOW_S
        if take.resource == "slots":
            return SLOT_WAIT_S
        left = missing(used, take.amount, take.limit)
        entries = self._connection.execute(_ENTRIES, (self.id, self.first))
        while (entry := entries.fetchone()) is not None:
            left -= entry[_COLUMN[take.resource]]
            if left <= 0:
                return leaves_in(entry[1], self._now)
        return SLOT_WAIT_S

    def reset_s(self, resource: Resource) -> float:
        """Seconds until all that is taken now has left (``Window.reset_s``)."""
        if resource == "slots" or not self.used[resource]:
            return 0.0
        last = self._connection.execute(_LAST[resource], (self.id, self.first)).fetchone()
        return 0.0 if last is None else WINDOW_S - (self._now - last[0])


def take(
    connection: Connection, takes: Sequence[Take], owner: str, step: int, now: float, lease_s: float
) -> tuple[Taken | Denied, int]:
    """Take all of it or nothing, as the step of that number. Gives how many parties are new, too."""
    holds = any(each.resource == "slots" for each in takes)
    if holds:
        lapse(connection, now)
    parties = {name: Party(connection, name, now) for name in dict.fromkeys(each.name for each in takes)}
    states = []
    for place, each in enumerate(takes):
        party = parties[each.name]
        if not party.has_room(each):
            return _denied(takes, parties, place), 0
        party.want(each)
        reset_s = WINDOW_S if each.amount and each.resource != "slots" else party.reset_s(each.resource)
        used = party.used[each.resource] + party.wanted[each.resource]
        states.append(state_of(each.resource, each.limit, used, reset_s))
    if holds:
        connection.execute(
            "REPLACE INTO owner (name, until, lease_s) VALUES (?, ?, ?)", (owner, now + lease_s, lease_s)
        )
    made = sum(party.id is None for party in parties.values())
    for party in parties.values():
        party.take(step, owner)
    return Taken(step, tuple(states)), made


def _denied(takes: Sequence[Take], parties: dict[str, Party], refusing: int) -> Denied:
    waits = [parties[each.name].wait(each) for each in takes]
    waits[refusing] = waits[refusing] or SLOT_WAIT_S  # a limit that is named twice
    states = []
    for each in takes:
        party = parties[each.name]
        states.append(state_of(each.resource, each.limit, party.used[each.resource], party.reset_s(each.resource)))
    return Denied(waits.index(max(waits)), max(waits), tuple(states))


def end(connection: Connection, step: int, tokens: int | None) -> None:
    """Give back the slots of a step, and correct its tokens."""
    sql = "DELETE FROM slot WHERE step = ? RETURNING amount, party"
    for freed in connection.execute(sql, (step,)).fetchall():
        connection.execute(_FREE, freed)
    if tokens is None:
        connection.execute("UPDATE entry SET step = NULL WHERE step = ?", (step,))
        return
    sql = "SELECT party, n, tokens FROM entry WHERE step = ?"
    for party, n, amount in connection.execute(sql, (step,)).fetchall():
        sql = "UPDATE entry SET tokens = ?, step = NULL WHERE party = ? AND n = ?"
        connection.execute(sql, (tokens, party, n))
        sql = "UPDATE party SET tokens = tokens + ? WHERE id = ? AND first <= ?"
        connection.execute(sql, (tokens - amount, party, n))


def renew(connection: Connection, owner: str, now: float, lease_s: float) -> None:
    """Keep an owner's slots for another lease."""
    lapse(connection, now)
    connection.execute("UPDATE owner SET until = ?, lease_s = ? WHERE name = ?", (now + lease_s, lease_s, owner))


def lapse(connection: Connection, now: float) -> None:
    """Give back the slots of those whose leases have ended."""
    for (name,) in connection.execute("SELECT name FROM owner WHERE until <= ?", (now,)).fetchall():
        sql = "DELETE FROM slot WHERE owner = ? RETURNING amount, party"
        for freed in connection.execute(sql, (name,)).fetchall():
            connection.execute(_FREE, freed)
        connection.execute("DELETE FROM owner WHERE name = ?", (name,))


def look(connection: Connection, after: int, many: int, now: float) -> int:
    """Drop those of the parties behind ``after`` that have taken nothing for a window and hold no slot. Gives the last
    that was looked at; 0: of all."""
    sql = "SELECT id, newest, slots FROM party WHERE id > ? ORDER BY id LIMIT ?"
    found = connection.execute(sql, (after, many)).fetchall()
    for id, newest, slots in found:
        if newest <= now - WINDOW_S and not slots:
            connection.execute("DELETE FROM entry WHERE party = ?", (id,))
            connection.execute("DELETE FROM party WHERE id = ?", (id,))
    return int(found[-1][0]) if len(found) == many else 0
