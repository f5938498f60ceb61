"""What goes wrong for many: said once, with its event, and over once."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from ._core.moment import timestamp
from ._core.terms import incident_terms, told
from ._engine.hooks import events_of
from .errors import NotFound
from .identity import Ids
from .protocols import Clock, Storage
from .wire import SYSTEM_ACCOUNT, Caller, Incident, IncidentCreated, Incidents, PutEvent, PutIncident, Write


class IncidentLog:
    """Incidents of a storage. The methods of ``Console`` say what each does."""

    def __init__(self, storage: Storage, clock: Clock, ids: Ids) -> None:
        self._storage = storage
        self._clock = clock
        self._ids = ids

    async def open(self, given: Mapping[str, object]) -> Incident:
        """``Console.open_incident``."""
        terms, now = incident_terms(given), self._clock.time()
        incident = Incident(id=self._ids("inc_"), started_at=timestamp(now), **terms)
        (event,) = events_of([_created(incident)], Caller(SYSTEM_ACCOUNT), self._ids, now)
        await self._apply(PutIncident(incident, expect="absent"), PutEvent(event.stored))
        return incident

    async def resolve(self, id: str) -> Incident:
        """``Console.resolve_incident``."""
        found = next((each for each in await self.last() if each.id == id), None)
        if found is None:
            raise NotFound(f"no incident {told(id)}")
        if found.resolved_at is not None:
            return found
        resolved = replace(found, resolved_at=timestamp(self._clock.time()))
        await self._apply(PutIncident(resolved, expect="present"))
        return resolved

    async def last(self) -> list[Incident]:
        """``Console.incidents``."""
        return await self._storage.read(SYSTEM_ACCOUNT, Incidents())

    async def _apply(self, *writes: Write) -> None:
        await self._storage.apply(SYSTEM_ACCOUNT, writes)


def _created(incident: Incident) -> IncidentCreated:
    return IncidentCreated(
        incident.id, incident.title, incident.severity, incident.started_at, incident.status_url
    )  # fmt: skip
