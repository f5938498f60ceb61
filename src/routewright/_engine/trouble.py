"""What could not be written, and why: counted, told by the next ``flush``, and logged when it begins."""

from __future__ import annotations

import logging
from typing import NamedTuple

from routewright._core.call import Call
from routewright._core.money import usd_text
from routewright.errors import InternalError, RouterError, StorageUnavailable
from routewright.fork import Guard, renew_in_children

_log = logging.getLogger(__name__)


class TraceCounts(NamedTuple):
    """What became of traces that are not in the storage, in this process."""

    waiting: int
    """Still to be written."""
    refused: int
    """Given up because the storage would not take them."""
    lost: int
    """Given up because too many waited, or because the Router was closed before they could be written."""
    shortened: int = 0
    """Kept without their prompts and answers, since too much text waited."""
    unbilled: int = 0
    """Of those refused and lost, calls whose cost is not in the ledger either: the log names them."""


class Trouble:
    """What a ``TraceLog`` has had of it in this process. Safe to use from several threads."""

    def __init__(self) -> None:
        self._guard = Guard()
        renew_in_children(self)

    def renew(self) -> None:
        """Begin without."""
        self._refused = self._lost = self._shortened = self._unbilled = self._told = 0
        self._failed: Exception | None = None
        self.faults = 0
        self.lasts = False
        """The last pass had some."""

    def counts(self, waiting: int) -> TraceCounts:
        """What is not in the storage."""
        return TraceCounts(waiting, self._refused, self._lost, self._shortened, self._unbilled)

    def refuse(self, error: Exception) -> None:
        """Count a trace that the storage would not take."""
        with self._guard.lock:
            self._refused += 1
        self.note(error)

    def lose(self, count: int) -> None:
        """Count traces that nobody will write."""
        with self._guard.lock:
            self._lost += count

    def shorten(self) -> None:
        """Count a trace that lost its words."""
        with self._guard.lock:
            self._shortened += 1

    def lose_bill(self, call: Call, account: str, why: str) -> None:
        """Count a call that will not be in the ledger, and say what somebody has to book by hand."""
        if not call.ledger_rows:
            return
        with self._guard.lock:
            self._unbilled += 1
        what = "money is lost: call %s of account %s (cost $%s, charge $%s) is not in the ledger: %s"
        _log.error(what, call.id, account, usd_text(call.cost_nanos), usd_text(call.charged_nanos), why)

    def note(self, error: Exception) -> None:
        """Remember a fault for ``flush``, and log it unless the last pass had one too."""
        self.faults += 1
        self._failed = error.with_traceback(None)  # its frames would stay
        if not self.lasts:
            self.lasts = True
            _log.warning("traces cannot be written: %s", said(error))

    def tell(self, waiting: int, *, waits: bool) -> None:
        """Raise ``StorageUnavailable`` if some of what waited still does, and ``InternalError`` if some was given up
        since the last time."""
        told, self._told = self._told, self._refused + self._lost
        if not waits and told == self._told:
            return
        counts = self.counts(waiting)
        left = f"{counts.waiting} wait, {counts.refused} were refused, {counts.lost} are lost"
        kind = StorageUnavailable if waits else InternalError
        fault = f"not all traces are in the storage: {left}; the last fault was {said(self._failed)}"
        raise kind(fault) from self._failed


def said(error: Exception | None) -> str:
    """An error in a log: its words too, where they are ours."""
    kind = type(error).__name__
    return f"{kind}: {error}" if isinstance(error, RouterError) else kind
