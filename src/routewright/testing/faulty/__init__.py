"""Faults of providers as data, and three ways to meet them: over TCP, in memory, and as a ready provider."""

from .scenarios import CELLS, Cell, Play, Request
from .server import FaultyServer
from .steps import FOREVER, Break, Connection, Drip, Head, Repeat, Step
from .transport import FaultyProvider, FaultyTransport

__all__ = [
    "CELLS", "FOREVER", "Break", "Cell", "Connection", "Drip", "FaultyProvider", "FaultyServer", "FaultyTransport",
    "Head", "Play", "Repeat", "Request", "Step",
]  # fmt: skip
