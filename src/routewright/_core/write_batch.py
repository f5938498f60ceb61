"""Checks a batch of writes before any of them is applied, so that it is applied completely or not at all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import get_args

from routewright import wire
from routewright.errors import PreconditionFailed, UnsupportedWrite
from routewright.wire import SYSTEM_ACCOUNT, Environment, Write
from routewright.wire.money import NANOS_PER_USD, usd_text

MOST_CREDIT = 9_000_000_000 * NANOS_PER_USD
"""Limit on an account's total credit; fits into 64 bits."""
UNNAMED_S = 24 * 3600  # how long unreferenced snapshots are kept, because a trace may follow
_OF_THE_SYSTEM = (
    *(wire.PutSnapshot, wire.PutPolicyVersion, wire.AddLearned, wire.SetRetention, wire.PutIncident),
    *(wire.PutPolicyRecord, wire.ClaimDeliveries, wire.EndAttempt),
)
_OF_TRACES = (wire.PutTrace, wire.PutFeedback, wire.PutSnapshot, wire.DeleteTraces, wire.SetRetention)
_KNOWN: tuple[type[Write], ...] = get_args(Write)
_Compared = wire.PutAccount | wire.PutKey | wire.PutEndpoint | wire.PutIncident | wire.PutPolicyRecord

Booked = Callable[[Write], object]
"""What a write replaces: the stored account, key, endpoint, incident or policy record; for credit the total so far.
None: nothing, or credit that was already given."""
Holder = Callable[[str], tuple[str, str] | None]  # account and id of the key with a digest


def ids_of(writes: Sequence[Write]) -> tuple[list[str], list[str]]:
    """Ids of the traces and snapshots to look up before ``check_batch``."""
    traces = [write.trace.id for write in writes if isinstance(write, wire.PutTrace)]
    traces += [write.trace_id for write in writes if isinstance(write, wire.PutFeedback) and write.expect is not None]
    snapshots = [write.snapshot.id for write in writes if isinstance(write, wire.PutSnapshot)]
    return [*dict.fromkeys(traces)], [*dict.fromkeys(snapshots)]


def check_batch(
    storage: str,
    account: str,
    writes: Sequence[Write],
    traces: Mapping[str, Environment],
    snapshots: Collection[str],
    booked: Booked | None = None,
) -> None:
    """Check the expectations of every write, including earlier writes of the batch. ``traces`` (with environment) and
    ``snapshots`` are those that exist. ``booked`` returns stored accounts, keys, incidents and credit;
    without it these kinds are unknown.

    Raises ``PreconditionFailed``, also for a trace id of the other environment, and ``UnsupportedWrite`` for an unknown
    kind or a wrong account.
    """
    stored_traces = dict(traces)
    stored_snapshots = set(snapshots)
    written: set[tuple[str, str]] = set()
    credited: dict[str, int] = {}
    for index, write in enumerate(writes):
        kind = type(write).__name__
        if isinstance(write, _OF_THE_SYSTEM) and account != SYSTEM_ACCOUNT:
            raise UnsupportedWrite(f"{storage} takes {kind} only under {SYSTEM_ACCOUNT!r}")
        if isinstance(write, wire.DeleteTraces) and len(writes) > 1:
            raise UnsupportedWrite(f"{storage} takes {kind} only as the one write of a batch")
        if not isinstance(write, _OF_TRACES if booked is None else _KNOWN):
            raise UnsupportedWrite(f"{storage} knows no write {kind}")
        match write:
            case wire.PutTrace(trace):
                present = trace.id in stored_traces
                check_place(trace.id, trace.environment, stored_traces.setdefault(trace.id, trace.environment), index)
                _check_expected(trace.id, write.expect, present, index)
            case wire.PutFeedback(trace_id):
                of = stored_traces.get(trace_id)
                _check_expected(trace_id, write.expect, of is not None and write.environment in (None, of), index)
            case wire.PutSnapshot(snapshot):
                _check_expected(snapshot.id, write.expect, snapshot.id in stored_snapshots, index)
                stored_snapshots.add(snapshot.id)
            case _ if booked is not None and isinstance(write, _Compared):
                owner, name = _subject_of(write)
                if owner != account:
                    raise UnsupportedWrite(f"{storage} takes {kind} only under the account that it is about")
                before = booked(write)
                if isinstance(before, wire.Endpoint) and before.account != account:
                    raise PreconditionFailed(f"{name} is an endpoint of another account", index=index)
                if write.expect is None or isinstance(write.expect, str):
                    _check_expected(name, write.expect, (kind, name) in written or bool(before), index)
                elif write.expect != before:
                    raise PreconditionFailed(f"{name} has changed since it was read", index=index)
                written.add((kind, name))
            case wire.AddCredit() if booked is not None:
                before = booked(write)  # None: it was already given
                if isinstance(before, int) and write.id not in credited:
                    credited[write.id] = write.nanos
                    nanos = before + sum(credited.values())
                    if abs(nanos) > MOST_CREDIT:
                        most = f"no more than ${usd_text(MOST_CREDIT)} is kept"
                        raise PreconditionFailed(f"credit would come to ${usd_text(nanos)}, and {most}", index=index)


def _subject_of(write: _Compared) -> tuple[str, str]:
    """Account and id of what a write is about."""
    match write:
        case wire.PutAccount(account):
            return account.name, account.name
        case wire.PutKey(key):
            return key.account, key.id
        case wire.PutEndpoint(endpoint):
            return endpoint.account, endpoint.id
        case wire.PutIncident(incident):
            return SYSTEM_ACCOUNT, incident.id
        case wire.PutPolicyRecord(record):
            return SYSTEM_ACCOUNT, record.name


def _check_expected(name: str, expect: str | None, present: bool, index: int) -> None:
    if expect is not None and present != (expect == "present"):
        raise PreconditionFailed(f"{name} was expected to be {expect} and is not", index=index)


def check_digests(account: str, writes: Sequence[Write], holder: Holder) -> None:
    """Raise ``PreconditionFailed`` if a key has the digest of another key of any account."""
    owners: dict[str, tuple[str, str]] = {}
    for index, write in enumerate(writes):
        if isinstance(write, wire.PutKey):
            mine = account, write.key.id
            if owners.setdefault(write.key.digest, holder(write.key.digest) or mine) != mine:
                raise PreconditionFailed(f"{write.key.id} has the digest of another key", index=index)


def check_place(trace_id: str, environment: Environment, there: Environment, index: int = 0) -> None:
    """Raise ``PreconditionFailed`` if a trace would replace one of the other environment."""
    if environment != there:
        raise PreconditionFailed(f"{trace_id} is a trace of {there}, not of {environment}", index=index)
