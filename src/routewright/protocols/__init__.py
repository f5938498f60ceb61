"""What the owner of the process may plug in. Any object that fits will do; nobody has to inherit.

Each protocol says in its docstring what an implementer must keep. The contract suites in ``routewright.testing``
check the same sentences against your own objects.
"""

from .clock import Clock, Deadline, Rng
from .content import Guardrail, QualityPredictor, Redactor, TokenCounter
from .coordination import Coordination, ImmediateCoordination
from .provider import ParticularProvider, Provider, RegionalProvider, Response, ShieldingProvider, Transport
from .storage import ImmediateStorage, LocalStorage, Storage, TraceDraft

__all__ = [
    "Clock",
    "Coordination",
    "Deadline",
    "Guardrail",
    "ImmediateCoordination",
    "ImmediateStorage",
    "LocalStorage",
    "ParticularProvider",
    "Provider",
    "QualityPredictor",
    "Redactor",
    "RegionalProvider",
    "Response",
    "Rng",
    "ShieldingProvider",
    "Storage",
    "TokenCounter",
    "TraceDraft",
    "Transport",
]
