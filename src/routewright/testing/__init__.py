"""Test support, public and documented: doubles, and one contract suite a protocol.

The contract suites need pytest and live in modules of their own: ``routewright.testing.storage``.
"""

from .clock import FakeClock
from .provider import Pause, ScriptedProvider

__all__ = ["FakeClock", "Pause", "ScriptedProvider"]
