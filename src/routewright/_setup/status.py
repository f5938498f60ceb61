"""The state of a Router's parts, read from their counters (``Router.status``)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shutil import disk_usage

from msgspec.structs import replace

from routewright import wire
from routewright._core.outage import Outage
from routewright._engine.fleet import Fleet
from routewright._engine.hooks import Hooks
from routewright._engine.trace_log import TraceLog
from routewright.protocols import LocalStorage
from routewright.wire.timestamps import timestamp

CIRCUIT = "circuit of "
"""Begins the name of a part that the problems of providers cover."""
LOW_DISK_BYTES = 256 * 1024 * 1024
MOST_FAULTS = 100
"""Parts in a status: those that fail, then those that changed last."""


def make_status(
    log: TraceLog,
    fleets: Sequence[Fleet],
    limits: wire.LimitsStatus,
    hooks: Hooks,
    outages: Mapping[str, Outage],
    deliveries: Mapping[wire.DeliveryState, int],
) -> wire.RouterStatus:
    """``outages``: those of all parts, by name."""
    clock = log.clock
    now = clock.time()
    ahead_s = now - clock.monotonic()
    failed = [(name, outage) for name, outage in outages.items() if outage.text]
    failed.sort(key=lambda entry: (not entry[1].is_on, -entry[1].since))
    rescued = defaultdict[str, dict[str, int]](dict)
    for fleet in fleets:
        for (provider, kind), count in [*fleet.outages.rescues.items()]:
            rescued[provider][kind.value] = rescued[provider].get(kind.value, 0) + count
    storage = log.writer.storage
    size = free = None
    if isinstance(storage, LocalStorage):
        from routewright.backends.storage.sqlite.file import SUFFIXES  # only a store in a file has them

        path = storage.path
        with suppress(OSError):  # a file of a transaction may just have gone
            free = disk_usage(path.parent).free
            files = [Path(f"{path}{suffix}") for suffix in SUFFIXES]
            size = sum(file.stat().st_size for file in files if file.exists())
    status = wire.RouterStatus(
        at=timestamp(now),
        problems=[],
        providers=[status for fleet in fleets for status in fleet.provider_status()],
        circuits=[circuit for fleet in fleets for circuit in fleet.circuit_status()],
        limits=limits,
        storage=wire.StorageStatus(type(storage).__name__, log.writer.fails, size, free),
        traces=log.writer.counts._asdict(),
        hooks=hooks.counts._asdict(),
        rescued=dict(rescued),
        refusals=dict(log.refusals),
        deliveries=dict(deliveries),
        faults=[
            wire.PartFault(part=name, failing=outage.is_on, text=outage.text, at=timestamp(outage.since + ahead_s))
            for name, outage in failed[:MOST_FAULTS]
        ],
    )
    return replace(status, problems=[*_find_problems(status)])


def _find_problems(status: wire.RouterStatus) -> Iterator[str]:
    for provider in status.providers:
        if provider.keys_refused:
            several = f"{provider.keys_refused} of {provider.keys} keys"
            yield f"{provider.name}: the vendor refused {several if (provider.keys or 1) > 1 else 'its key'}"
        if provider.circuits_open:
            fault = f"; the last fault was {provider.last_fault.kind}" if provider.last_fault else ""
            yield f"{provider.name}: {provider.circuits_open} of {provider.models} models are not called{fault}"
        if provider.problem is not None:
            yield f"{provider.name}: {provider.problem}"
    if status.limits.share is not None:
        yield f"rate limits: this process uses {status.limits.share} of them, since the coordination is away"
    free = status.storage.disk_free_bytes
    if free is not None and free < LOW_DISK_BYTES:
        yield f"storage: {free / 1e6:.0f} MB are left on the disk"
    lasting = (fault for fault in status.faults if fault.failing and not fault.part.startswith(CIRCUIT))
    yield from (part.text if part.text.startswith(part.part) else f"{part.part}: {part.text}" for part in lasting)
