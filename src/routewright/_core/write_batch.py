"""Checks a batch of writes before any of them is applied, so that it is applied completely or not at all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import get_args

from routewright.errors import PreconditionFailed, UnsupportedWrite
from routewright.wire import (
    SYSTEM_ACCOUNT,
    Account,
    AddCredit,
    AddLearned,
    ClaimDeliveries,
    DeleteTraces,
    EndAttempt,
    Endpoint,
    Environment,
    Key,
    PutAccount,
    PutEndpoint,
    PutFeedback,
    PutIncident,
    PutKey,
    PutPolicyVersion,
    PutSnapshot,
    PutTrace,
    SetRetention,
    Write,
)

from .money import NANOS_PER_USD, usd_text

MOST_CREDIT = 9_000_000_000 * NANOS_PER_USD
"""Limit on an account's total credit; fits into 64 bits."""
UNNAMED_S = 24 * 3600  # how long unreferenced snapshots are kept, because a trace may follow
_OF_THE_SYSTEM = (PutSnapshot, PutPolicyVersion, AddLearned, SetRetention, PutIncident, ClaimDeliveries, EndAttempt)
_ALONE = (DeleteTraces,)
_OF_TRACES = (PutTrace, PutFeedback, PutSnapshot, DeleteTraces, SetRetention)
_KNOWN: tuple[type[Write], ...] = get_args(Write)

Booked = Callable[[Write], object]
"""What a write replaces: the stored account, key, endpoint or incident; for credit the total so far. None: nothing, or
credit that was already given."""
Holder = Callable[[str], tuple[str, str] | None]  # account and id of the key with a digest


def ids_of(writes: Sequence[Write]) -> tuple[list[str], list[str]]:
    """Ids of the traces and snapshots to look up before ``check_batch``."""
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
    booked: Booked | None = None,
) -> None:
    """Check the expectations of every write, including earlier writes of the batch. ``traces`` (with environment) and
    ``snapshots`` are those that exist. ``booked`` returns stored accounts, keys, incidents and credit;
    without it these kinds are unknown.

    Raises ``PreconditionFailed``, also for a trace id of the other environment, and ``UnsupportedWrite`` for an unknown
    kind or a wrong account.
    """
    there, kept, made = dict(traces), set(snapshots), set[tuple[str, str]]()
    credited: dict[str, int] = {}
    for index, write in enumerate(writes):
        kind = type(write).__name__
        if isinstance(write, _OF_THE_SYSTEM) and account != SYSTEM_ACCOUNT:
            raise UnsupportedWrite(f"{storage} takes {kind} only under {SYSTEM_ACCOUNT!r}")
        if isinstance(write, _ALONE) and len(writes) > 1:
            raise UnsupportedWrite(f"{storage} takes {kind} only as the one write of a batch")
        match write:
            case PutAccount(Account(name=owner)) | PutKey(Key(account=owner)) | PutEndpoint(Endpoint(account=owner)):
                if owner != account:
                    raise UnsupportedWrite(f"{storage} takes {kind} only under the account that it is about")
        match write:
            case PutTrace(trace):
                present = trace.id in there
                check_place(trace.id, trace.environment, there.setdefault(trace.id, trace.environment), index)
                _check_expected(trace.id, write.expect, present, index)
            case PutFeedback(trace_id):
                of = there.get(trace_id)
                _check_expected(trace_id, write.expect, of is not None and write.environment in (None, of), index)
            case PutSnapshot(snapshot):
                _check_expected(snapshot.id, write.expect, snapshot.id in kept, index)
                kept.add(snapshot.id)
            case _ if booked is None and not isinstance(write, _OF_TRACES):
                raise UnsupportedWrite(f"{storage} knows no write {kind}")
            case PutAccount() | PutKey() | PutEndpoint() | PutIncident() if booked is not None:
                name = _check_thing(write, booked(write), made, index)
                made.add((kind, name))
            case AddCredit() if booked is not None:
                before = booked(write)  # None: it was already given
                if isinstance(before, int) and write.id not in credited:
                    credited[write.id] = write.nanos
                    nanos = before + sum(credited.values())
                    if abs(nanos) > MOST_CREDIT:
                        most = f"no more than ${usd_text(MOST_CREDIT)} is kept"
                        raise PreconditionFailed(f"credit would come to ${usd_text(nanos)}, and {most}", index=index)
            case _ if not isinstance(write, _KNOWN):
                raise UnsupportedWrite(f"{storage} knows no write {kind}")


def _check_thing(
    write: PutAccount | PutKey | PutEndpoint | PutIncident, there: object, made: set[tuple[str, str]], index: int
) -> str:
    """Check the expectation of an account, key, endpoint or incident."""
    match write:
        case PutAccount(Account(name=name)) | PutKey(Key(id=name)) | PutEndpoint(Endpoint(id=name)):
            pass
        case PutIncident(incident):
            name = incident.id
    if isinstance(there, Endpoint) and isinstance(write, PutEndpoint) and there.account != write.endpoint.account:
        raise PreconditionFailed(f"{name} is an endpoint of another account", index=index)
    if isinstance(write.expect, Account | Key | Endpoint):
        if there != write.expect:
            raise PreconditionFailed(f"{name} has changed since it was read", index=index)
    else:
        _check_expected(name, write.expect, (type(write).__name__, name) in made or bool(there), index)
    return name


def _check_expected(name: str, expect: str | None, present: bool, index: int) -> None:
    if expect is not None and present != (expect == "present"):
        raise PreconditionFailed(f"{name} was expected to be {expect} and is not", index=index)


def check_digests(account: str, writes: Sequence[Write], holder: Holder) -> None:
    """Raise ``PreconditionFailed`` if a key has the digest of another key of any account."""
    taken: dict[str, tuple[str, str]] = {}
    for index, write in enumerate(writes):
        if isinstance(write, PutKey):
            mine = account, write.key.id
            if taken.setdefault(write.key.digest, holder(write.key.digest) or mine) != mine:
                raise PreconditionFailed(f"{write.key.id} has the digest of another key", index=index)


def check_place(trace_id: str, environment: Environment, there: Environment, index: int = 0) -> None:
    """Raise ``PreconditionFailed`` if a trace would replace one of the other environment."""
    if environment != there:
        raise PreconditionFailed(f"{trace_id} is a trace of {there}, not of {environment}", index=index)
