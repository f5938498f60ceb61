"""The steps of a faulty server for one request, the same over real TCP and in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import repeat
from typing import NamedTuple

from routewright.testing.provider import Pause

FOREVER = math.inf
"""The seconds of a pause that lasts until the client leaves."""


class Connection(StrEnum):
    """A connection that fails. Such a step is alone, and applies to a whole ``FaultyServer``."""

    REFUSED = "refused"
    UNRESOLVED = "unresolved"
    """The name has no address."""
    UNTRUSTED = "untrusted"
    """The certificate is not trusted."""
    MUTE = "mute"
    """It opens, but the TLS handshake is never answered."""


class Break(StrEnum):
    """The connection ends early."""

    RESET = "reset"
    CLOSE = "close"
    """A clean close. A body with all its bytes is complete."""


class Head(NamedTuple):
    """Status line and headers. Without a content-length the body is chunked.

    A status under 200 is an interim one, followed by another head.
    """

    status: int
    headers: Mapping[str, str]


class Repeat(NamedTuple):
    """A repeated piece of the body, generated as it is sent."""

    piece: bytes
    times: int | None = None
    """None: without end."""
    every_s: float = 0.0
    """The pause before each."""


class Drip(NamedTuple):
    """Bytes of the body one by one."""

    data: bytes
    every_s: float = 0.0
    """The pause before each."""


Moment = Connection | Head | bytes | Pause | Break
Step = Moment | Repeat | Drip
"""``bytes`` are a piece of the body. After the last step the body ends properly."""


def moments(steps: Sequence[Step]) -> Iterator[Moment]:
    """The steps, with ``Repeat`` and ``Drip`` expanded."""
    for step in steps:
        match step:
            case Repeat(piece, times, every_s):
                yield from _paced(repeat(piece) if times is None else repeat(piece, times), every_s)
            case Drip(data, every_s):
                yield from _paced((data[at : at + 1] for at in range(len(data))), every_s)
            case _:
                yield step


def _paced(pieces: Iterator[bytes], every_s: float) -> Iterator[Moment]:
    for piece in pieces:
        if every_s:
            yield Pause(every_s)
        yield piece
