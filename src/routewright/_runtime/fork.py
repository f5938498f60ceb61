"""Fork safety: in a child, locks are free whichever thread held them in the parent; shared files are closed first."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import Protocol
from weakref import WeakSet, ref

LONGEST_IMPORT_S = 10.0
count = 0
"""Forks since the first process imported this module: the number of the present one."""


class Renewable(Protocol):
    """Holds state that a child must not inherit."""

    def renew(self) -> None:
        """Replace it by new state."""


class Quiet(Protocol):
    """Holds something that must not be open during a fork."""

    def quiet(self) -> None:
        """Close it until ``resume``; called in the parent before the fork."""

    def resume(self) -> None:
        """Continue; called in parent and child after the fork."""


def renew_in_children(part: Renewable) -> None:
    """Call ``thing.renew()`` now, and in each child that is forked while the thing lives."""
    part.renew()
    _renewables.add(part)


def quiet_at_fork(part: Quiet) -> None:
    """Call ``thing.quiet()`` before each fork, and ``thing.resume()`` after it in both processes."""
    _quiet.add(part)


class Renewals:
    """The parts of one owner that children renew, in the order in which they were added."""

    def __init__(self) -> None:
        self._parts: list[ref[Renewable]] = []
        renew_in_children(self)

    def add(self, part: Renewable) -> None:
        """Call ``part.renew()`` now, and in each child that is forked while the part lives."""
        part.renew()
        self._parts = [*(reference for reference in self._parts if reference() is not None), ref(part)]

    def renew(self) -> None:
        """Renew the parts that live."""
        for reference in self._parts:
            if (part := reference()) is not None:
                part.renew()


class Guard:
    """A lock that is free in every forked child: ``with guard.lock``. Keep guarded sections small: a child may see one
    half done.

    It is reentrant, since the garbage collector may close a call that takes the same lock."""

    __slots__ = ("__weakref__", "lock")

    def __init__(self) -> None:
        renew_in_children(self)

    def renew(self) -> None:
        """Replace the lock by an open one."""
        self.lock = threading.RLock()


_renewables: WeakSet[Renewable] = WeakSet()
_quiet: WeakSet[Quiet] = WeakSet()
_paused: list[Quiet] = []  # those of the fork that is under way

importing = Guard()
"""Held around a late import: a fork waits for its end, since a child could never finish it. Late imports of other
libraries are not covered."""


def _before() -> None:
    # Python's own import locks cannot be replaced like ours: a child forked during another thread's import sees a
    # module that stays half loaded. So the fork waits for late imports of this package, though not for ever.
    # Test: test_a_fork_waits_for_what_is_imported_late.
    importing.lock.acquire(timeout=LONGEST_IMPORT_S)
    parts: list[Quiet] | None = None
    while parts is None:
        with suppress(RuntimeError):  # another thread adds one just now
            parts = list(_quiet)
    for part in parts:
        _paused.append(part)
        part.quiet()


def _after_in_parent() -> None:
    with suppress(RuntimeError):  # not acquired: the import took too long
        importing.lock.release()
    _resume()


def _after_in_child() -> None:
    # fork() copies the memory, but only the thread that called it. A lock that another thread held at that moment stays
    # locked in the child for ever, and the child's first call would hang. Acquiring all locks before the fork would not
    # do: the forking thread may hold some of them already, in another order, and would deadlock. So the child replaces
    # every lock by a new one, and with it all state that two processes must not share: connections, queues, sequences
    # of ids. What a lock guarded may be half done in the child; that is why guarded sections are small.
    # Tests: test_a_child_works_although_other_threads_held_every_lock, test_a_forked_child_draws_new_random_bits.
    global count
    count += 1
    for part in list(_renewables):
        part.renew()
    _resume()


def _resume() -> None:
    while _paused:
        _paused.pop().resume()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
