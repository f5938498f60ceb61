"""Faults of providers as data, and three ways to meet them: over TCP, in memory, and as a ready provider."""

from .scenarios import SCENARIOS, Play, Request, Scenario
from .server import FaultyServer
from .steps import FOREVER, Break, Connection, Drip, Head, Repeat, Step
from .transport import FaultyProvider, FaultyTransport

__all__ = [
    "FOREVER",
    "SCENARIOS",
    "Break",
    "Connection",
    "Drip",
    "FaultyProvider",
    "FaultyServer",
    "FaultyTransport",
    "Head",
    "Play",
    "Repeat",
    "Request",
    "Scenario",
    "Step",
]  # fmt: skip
