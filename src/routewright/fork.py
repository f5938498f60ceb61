"""What a fork must not tear apart: locks that another thread of the parent held would stay shut in the child for ever,
and files that both go on to use would be damaged."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import Protocol
from weakref import WeakSet

LONGEST_IMPORT_S = 10.0


class Renewed(Protocol):
    """Holds what a child must not take over."""

    def renew(self) -> None:
        """Make it anew."""
        ...


class Quiet(Protocol):
    """Holds what neither side may have in its hands while the process is forked."""

    def quiet(self) -> None:
        """Put it away until ``resume``; called in the parent, before."""
        ...

    def resume(self) -> None:
        """Go on; called in the parent, and in the child."""
        ...


def renew_in_children(thing: Renewed) -> None:
    """Call ``thing.renew()`` now, and in each child that is forked while the thing lives."""
    thing.renew()
    _renewed.add(thing)


def quiet_at_fork(thing: Quiet) -> None:
    """Call ``thing.quiet()`` before each fork, and ``thing.resume()`` after it on either side."""
    _quiet.add(thing)


class Guard:
    """A lock that is open in every child: ``with guard.lock``. What it guards may be half done there; keep it small.

    The thread that holds it may take it again: the garbage collector may run inside, and there end a call whose loop
    was closed under it, which takes locks to do so.
    """

    __slots__ = ("__weakref__", "lock")

    def __init__(self) -> None:
        renew_in_children(self)

    def renew(self) -> None:
        """Put an open lock in the place of this one."""
        self.lock = threading.RLock()


_renewed: WeakSet[Renewed] = WeakSet()
_quiet: WeakSet[Quiet] = WeakSet()
_quieted: list[Quiet] = []  # those of the fork that is under way

importing = Guard()
"""To be held around an import that is left until it is needed: a fork waits for its end. A child would find the module
half imported for ever. (What another library imports late has that fault still.)"""


def _before() -> None:
    importing.lock.acquire(timeout=LONGEST_IMPORT_S)
    for thing in _listed(_quiet):
        _quieted.append(thing)
        thing.quiet()


def _after_in_parent() -> None:
    with suppress(RuntimeError):  # not acquired: the import took too long
        importing.lock.release()
    _resume()


def _after_in_child() -> None:
    for thing in list(_renewed):
        thing.renew()
    _resume()


def _listed(things: WeakSet[Quiet]) -> list[Quiet]:
    while True:
        with suppress(RuntimeError):  # another thread makes one just now
            return list(things)


def _resume() -> None:
    while _quieted:
        _quieted.pop().resume()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
