"""``TraceStore``: traces without a Router."""

from __future__ import annotations

from ._core.ids import normalise_trace_id
from ._core.problem import shown
from ._core.ranges import COUNT
from ._engine.trace import checked_trace, storage_faults
from .arguments import check_storage
from .errors import Problem, ValidationFailed
from .protocols import Storage
from .wire import Environment, PutTrace, Trace, TraceById, Traces


class TraceStore:
    """Keeps and reads traces.

    store = TraceStore(storage)
    await store.record(trace)
    trace = await store.get(trace.id)
    """

    def __init__(self, storage: Storage) -> None:
        check_storage(storage)
        self._storage = storage

    async def record(self, trace: Trace) -> None:
        """Keep a trace under its own account, in place of an earlier one of its id."""
        if not isinstance(trace, Trace):
            raise ValidationFailed.of(Problem("trace", f"{shown(trace)} is not a Trace", "pass answer.trace"))
        with storage_faults():
            await self._storage.apply(trace.account, [PutTrace(trace)])

    async def get(self, trace_id: str, *, account: str = "default", environment: Environment | None = None) -> Trace:
        """Read one trace. Raises ``NotFound`` alike for an unknown one and another account's."""
        query = TraceById(normalise_trace_id(trace_id), environment)
        with storage_faults():
            found = await self._storage.read(account, query)
        return checked_trace(found, trace_id)

    async def newest(
        self,
        limit: int = 50,
        *,
        account: str = "default",
        environment: Environment | None = None,
        after: str | None = None,
    ) -> list[Trace]:
        """Up to ``limit`` traces, newest first, from just behind the trace ``after``."""
        if type(limit) is not int or not COUNT.admits(limit):
            raise ValidationFailed.of(Problem("limit", f"must be {COUNT}, got {shown(limit)}", ""))
        with storage_faults():
            found: list[Trace] = await self._storage.scan(account, Traces(environment), after=after, limit=limit)
        return found

    async def aclose(self) -> None:
        """Free the storage."""
        await self._storage.aclose()
