"""May a batch of writes be applied? Asked before any of it is, so that it is applied whole or not at all."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from routewright.errors import PreconditionFailed, UnsupportedWrite
from routewright.wire import (
    SYSTEM_ACCOUNT,
    DeleteTraces,
    Environment,
    PutFeedback,
    PutSnapshot,
    PutTrace,
    SetRetention,
    Write,
)

UNNAMED_S = 24 * 3600
"""How long a snapshot stays that no trace names (any more): one may be on its way."""


def ids_of(writes: Sequence[Write]) -> tuple[list[str], list[str]]:
    """The ids of the traces and of the snapshots that have to be looked up before ``check_batch``."""
    traces: dict[str, None] = {}
    snapshots: dict[str, None] = {}
    for write in writes:
        match write:
            case PutTrace(trace):
                traces[trace.id] = None
            case PutFeedback(trace_id, expect=expect) if expect is not None:
                traces[trace_id] = None
            case PutSnapshot(snapshot):
                snapshots[snapshot.id] = None
    return [*traces], [*snapshots]


def check_batch(
    storage: str,
    account: str,
    writes: Sequence[Write],
    traces: Mapping[str, Environment],
    snapshots: Collection[str],
) -> None:
    """Hold every write to what it expects of what is there: traces with their environments, and snapshots; those that
    the batch itself makes before it included.

    Raises ``PreconditionFailed``, also for a trace in the place of one of the other environment, and
    ``UnsupportedWrite`` for a kind that is unknown, or not to be said so.
    """
    there, put = dict(traces), set(snapshots)
    for index, write in enumerate(writes):
        if isinstance(write, PutSnapshot | SetRetention) and account != SYSTEM_ACCOUNT:
            raise UnsupportedWrite(f"{storage} takes {type(write).__name__} only under {SYSTEM_ACCOUNT!r}")
        match write:
            case PutTrace(trace):
                key, present = trace.id, trace.id in there
                check_place(key, trace.environment, there.setdefault(key, trace.environment), index)
            case PutFeedback(trace_id, environment=environment):
                of = there.get(trace_id)
                key, present = trace_id, of is not None and environment in (None, of)
            case PutSnapshot(snapshot):
                key, present = snapshot.id, snapshot.id in put
                put.add(key)
            case DeleteTraces():
                if len(writes) > 1:
                    raise UnsupportedWrite(f"{storage} takes DeleteTraces only as the one write of a batch")
                continue
            case SetRetention():
                continue
            case _:
                raise UnsupportedWrite(f"{storage} knows no write {type(write).__name__}")
        if write.expect is not None and present != (write.expect == "present"):
            raise PreconditionFailed(f"{key} was expected to be {write.expect} and is not", index=index)


def check_place(trace_id: str, environment: Environment, there: Environment, index: int = 0) -> None:
    """Hold a trace to the environment of that in whose place it comes. Raises ``PreconditionFailed``."""
    if environment != there:
        raise PreconditionFailed(f"{trace_id} is a trace of {there}, and one of {environment} is another", index=index)
