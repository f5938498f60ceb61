"""Which fault comes next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

from routewright._core.request.problems import did_you_mean, shown
from routewright.errors import Problem, ValidationFailed

from .cells import CELLS, Cell, Play, good
from .completion import ANSWER, asks_for_stream

Faults = str | Cell | Iterable[str | Cell | None]
"""One fault for all requests, or one a request, by name; None is a good answer, and so is what comes after the last."""


class Request(NamedTuple):
    """A request as it came, without its headers, which hold the key."""

    method: str
    url: str
    body: bytes


class Script:
    """Says how each request is served, in turn, and remembers the requests."""

    def __init__(self, faults: Faults = (), answer: str = ANSWER) -> None:
        self.requests: list[Request] = []
        self.known = _known(faults)
        """The faults that were given, unless they are made one by one."""
        self._good = good(answer)
        self._cells = _cells(faults, self.known)

    def play(self, request: Request) -> Play:
        """How a request is served."""
        self.requests.append(request)
        cell = next(self._cells, None) or self._good
        return cell.play(asks_for_stream(request.body))


def _known(faults: object) -> list[Cell | None]:
    if isinstance(faults, str | Cell):
        return [_cell(faults)]
    if isinstance(faults, Sequence):
        return [_cell(fault, f"faults[{place}]") for place, fault in enumerate(faults)]
    if isinstance(faults, Iterable):
        return []
    hint = "name one of routewright.testing.CELLS"
    raise ValidationFailed.of(Problem("faults", f"{shown(faults)} is neither a fault nor a list of them", hint))


def _cells(faults: Faults, known: list[Cell | None]) -> Iterator[Cell | None]:
    if isinstance(faults, str | Cell):
        return repeat(known[0])
    return iter(known) if isinstance(faults, Sequence) else map(_cell, faults)


def _cell(fault: object, place: str = "faults") -> Cell | None:
    if fault is None or isinstance(fault, Cell):
        return fault
    if isinstance(fault, str) and fault in CELLS:
        return CELLS[fault]
    hint = did_you_mean(fault, CELLS) or "see routewright.testing.CELLS, or pass None for a good answer"
    raise ValidationFailed.of(Problem(place, f"no fault is known as {shown(fault)}", hint))
