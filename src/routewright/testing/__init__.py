"""Test support: doubles and faults.

The parts of faults are in ``routewright.testing.faulty``. ``routewright.testing.plugin`` is an opt-in pytest plug-in.
"""

from .clock import FakeClock
from .faulty import SCENARIOS, FaultyProvider, FaultyServer, FaultyTransport, Scenario
from .provider import Pause, ScriptedProvider
from .survival import SITUATIONS, NotSurvived, Situation, SituationCase, situations
from .trace import assert_trace

__all__ = [
    "SCENARIOS",
    "SITUATIONS",
    "FakeClock",
    "FaultyProvider",
    "FaultyServer",
    "FaultyTransport",
    "NotSurvived",
    "Pause",
    "Scenario",
    "ScriptedProvider",
    "Situation",
    "SituationCase",
    "assert_trace",
    "situations",
]  # fmt: skip
