"""The state of a Router's parts, for its operator. Without secrets and prompts."""

from __future__ import annotations

from .plain import Struct
from .webhook import DeliveryState


class LastFault(Struct, frozen=True):
    """The last fault of a model that counted against it."""

    model: str
    kind: str
    """A ``FaultKind``."""
    at: str
    """RFC 3339."""


class ProviderStatus(Struct, frozen=True, kw_only=True):
    """A provider."""

    name: str
    models: int
    """Models that it serves."""
    keys: int | None
    """None: the provider does not say."""
    keys_refused: int
    """Keys that its vendor refused when they were last used."""
    circuits_open: int
    """Models that are not called for a while, for their faults or the refused key."""
    last_fault: LastFault | None
    problem: str | None
    """Why its server's models are not known."""


class CircuitStatus(Struct, frozen=True):
    """An open circuit: a model that is not called for a while."""

    model: str
    provider: str
    fault: str | None
    """Kind of the model's last fault. None: another process opened the circuit, or the provider's key is refused."""
    probe_in_s: float
    """Seconds until a call may try the model."""


class LimitsStatus(Struct, frozen=True):
    """Where rate limits are counted."""

    place: str
    """``process``, ``storage`` or ``coordination``; ``none`` if the storage knows no accounts."""
    share: str | None
    """The share of every limit that this process uses while the coordination is away, such as ``1/4``."""


class StorageStatus(Struct, frozen=True):
    """The storage."""

    kind: str
    """Name of its class."""
    failing: bool
    """The last write failed."""
    database_bytes: int | None
    """Size of its files. None, here and below: it is not a file."""
    disk_free_bytes: int | None


class PartFault(Struct, frozen=True, kw_only=True):
    """The last failure of a part, as logged."""

    part: str
    failing: bool
    """It still fails."""
    text: str
    at: str
    """When it began to fail, or to work again, in RFC 3339."""


class RouterStatus(Struct, frozen=True, kw_only=True):
    """The state of a Router in this process."""

    at: str
    problems: list[str]
    """What is wrong now, in sentences. Empty: nothing."""
    providers: list[ProviderStatus]
    """Those in use so far, like the circuits."""
    circuits: list[CircuitStatus]
    limits: LimitsStatus
    storage: StorageStatus
    traces: dict[str, int]
    """``TraceCounts``: traces that are not in the storage."""
    hooks: dict[str, int]
    """``HookCounts``."""
    rescued: dict[str, dict[str, int]]
    """Calls that another model answered, by the provider that had failed, and the kind of its fault."""
    refusals: dict[str, int]
    """Calls and requests that were refused since the start, by the code of their error. Calls whose attempts failed are
    not among them."""
    deliveries: dict[DeliveryState, int]
    """Attempts to deliver a webhook since the start, by the delivery's state after it."""
    faults: list[PartFault]
    """The last failure of every part that ever failed, those that still fail first; 100 at most."""
