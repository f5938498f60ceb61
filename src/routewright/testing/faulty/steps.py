"""The steps of a faulty server for one request, the same over real TCP and in memory."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
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


class Gate:
    """Holds a server back until the test opens it, from any thread."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        """Set once somebody waits."""
        self._open = threading.Event()
        self._waiting: list[Callable[[], object]] = []

    def open(self) -> None:
        """Let it go on."""
        self._open.set()
        for wake in self._waiting:
            wake()

    async def wait(self) -> None:
        """Wait until it is open."""
        loop = asyncio.get_running_loop()
        opened = asyncio.Event()
        self._waiting.append(lambda: loop.call_soon_threadsafe(opened.set))
        self.reached.set()
        if not self._open.is_set():
            await opened.wait()


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


Moment = Connection | Head | bytes | Pause | Break | Gate
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
