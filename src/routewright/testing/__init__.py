"""Test support, public and documented: doubles, faults, and one contract suite a protocol.

The contract suites need pytest and live in modules of their own: ``routewright.testing.storage``. The parts of which
faults are made are in ``routewright.testing.faulty``, the opt-in plug-in of pytest is ``routewright.testing.plugin``.
"""

from .clock import FakeClock
from .faulty import CELLS, Cell, FaultyProvider, FaultyServer, FaultyTransport
from .provider import Pause, ScriptedProvider
from .survival import SITUATIONS, NotSurvived, Situation, SituationCase, situations
from .trace import assert_trace

__all__ = [
    "CELLS", "SITUATIONS", "Cell", "FakeClock", "FaultyProvider", "FaultyServer", "FaultyTransport", "NotSurvived",
    "Pause", "ScriptedProvider", "Situation", "SituationCase", "assert_trace", "situations",
]  # fmt: skip
