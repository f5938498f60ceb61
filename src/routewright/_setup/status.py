"""The state of a Router's parts, read from their counters (``Router.status``)."""

from __future__ import annotations

import glob
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from shutil import disk_usage

from routewright import wire
from routewright._core.outage import Outage
from routewright._engine.fleet import Fleet
from routewright._engine.hooks import Hooks
from routewright._engine.trace_log import TraceLog
from routewright.protocols import LocalStorage, Storage
from routewright.wire.timestamps import timestamp

CIRCUIT = "circuit of "
"""Begins the name of a part that the problems of providers cover."""
LOW_DISK_BYTES = 256 * 1024 * 1024
MOST_FAULTS = 100
"""Parts in a status, those that changed last."""


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
    failed.sort(key=lambda entry: -entry[1].since)
    faults = [
        wire.PartFault(part=name, failing=outage.is_on, text=outage.text, at=timestamp(outage.since + ahead_s))
        for name, outage in failed[:MOST_FAULTS]
    ]
    counts = log.writer.counts
    providers = [status for fleet in fleets for status in fleet.provider_status()]
    rescued = defaultdict[str, dict[str, int]](dict)
    for fleet in fleets:
        for (provider, kind), count in [*fleet.outages.rescues.items()]:
            rescued[provider][kind.value] = rescued[provider].get(kind.value, 0) + count
    storage = storage_status(log.writer.storage, failing=log.writer.fails)
    return wire.RouterStatus(
        at=timestamp(now),
        problems=[*_find_problems(providers, storage, limits, faults, counts.lost + counts.refused)],
        providers=providers,
        circuits=[circuit for fleet in fleets for circuit in fleet.circuit_status()],
        limits=limits,
        storage=storage,
        traces=counts._asdict(),
        hooks=hooks.counts._asdict(),
        rescued=dict(rescued),
        refusals=dict(log.refusals),
        deliveries=dict(deliveries),
        faults=faults,
    )


def storage_status(storage: Storage, *, failing: bool = False) -> wire.StorageStatus:
    """The storage, its files and the disk."""
    size = free = None
    if isinstance(storage, LocalStorage):
        path = storage.path
        with suppress(OSError):  # a file of a transaction may just have gone
            free = disk_usage(path.parent).free
            size = sum(file.stat().st_size for file in path.parent.glob(f"{glob.escape(path.name)}*"))
    return wire.StorageStatus(kind=type(storage).__name__, failing=failing, database_bytes=size, disk_free_bytes=free)


def _find_problems(
    providers: Sequence[wire.ProviderStatus],
    storage: wire.StorageStatus,
    limits: wire.LimitsStatus,
    faults: Sequence[wire.PartFault],
    dropped: int,
) -> Iterator[str]:
    for provider in providers:
        if provider.keys_refused:
            several = f"{provider.keys_refused} of {provider.keys} keys"
            yield f"{provider.name}: the vendor refused {several if (provider.keys or 1) > 1 else 'its key'}"
        if provider.circuits_open:
            fault = f"; the last fault was {provider.last_fault.kind}" if provider.last_fault else ""
            yield f"{provider.name}: {provider.circuits_open} of {provider.models} models are not called{fault}"
        if provider.problem is not None:
            yield f"{provider.name}: {provider.problem}"
    if limits.share is not None:
        yield f"rate limits: this process uses {limits.share} of them, since the coordination is away"
    if storage.disk_free_bytes is not None and storage.disk_free_bytes < LOW_DISK_BYTES:
        yield f"storage: {storage.disk_free_bytes / 1e6:.0f} MB are left on the disk"
    if dropped:
        yield f"storage: {dropped} traces were refused or lost"
    lasting = (fault for fault in faults if fault.failing and not fault.part.startswith(CIRCUIT))
    yield from (f"{fault.part}: {fault.text}" for fault in lasting)
