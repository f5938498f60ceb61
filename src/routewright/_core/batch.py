"""May a batch of writes be applied? Asked before any of it is, so that it is applied whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from routewright.errors import PreconditionFailed, UnsupportedWrite
from routewright.wire import (
    SYSTEM_ACCOUNT,
    Account,
    AddCredit,
    AddLearned,
    ClaimDeliveries,
    Correct,
    DeleteEndpoint,
    DeleteResults,
    DeleteTraces,
    EndAttempt,
    Endpoint,
    Environment,
    Key,
    PutAccount,
    PutAgentState,
    PutEndpoint,
    PutEvent,
    PutFeedback,
    PutIncident,
    PutKey,
    PutPolicyVersion,
    PutSnapshot,
    PutTrace,
    ReplayDeliveries,
    RevokeKey,
    SetRetention,
    Write,
)

from .money import NANOS_PER_USD, usd_text

MOST_CREDIT = 9_000_000_000 * NANOS_PER_USD
"""That an account was ever given, or that was taken from it: 64 bits hold it."""
UNNAMED_S = 24 * 3600
"""How long a snapshot stays that no trace names (any more): one may be on its way."""
_OF_THE_SYSTEM = (PutSnapshot, PutPolicyVersion, AddLearned, SetRetention, PutIncident, ClaimDeliveries, EndAttempt)
_ALONE = (DeleteTraces,)
_OWN = (PutAccount, PutKey, PutEndpoint)
_OF_TRACES = (PutTrace, PutFeedback, PutSnapshot, DeleteTraces, SetRetention)
_UNCONDITIONAL = (
    PutPolicyVersion,
    AddLearned,
    DeleteTraces,
    SetRetention,
    RevokeKey,
    DeleteResults,
    PutEvent,
    PutAgentState,
    DeleteEndpoint,
    ClaimDeliveries,
    EndAttempt,
    ReplayDeliveries,
)

Booked = Callable[[Write], object]
"""The account, key, endpoint or incident that a write would take the place of, how many rows the call has that it
corrects, what was credited before it; None where there is none, and for credit that was given before."""
Holder = Callable[[str], tuple[str, str] | None]
"""The account and the id of the key that has a digest."""


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
    booked: Booked | None = None,
) -> None:
    """Hold every write to what it expects of what is there: traces with their environments, and snapshots; those that
    the batch itself makes before it included. ``booked`` tells what there was before the batch of accounts, keys,
    incidents, corrections and credit; without it these and all of the ledger are unknown kinds.

    Raises ``PreconditionFailed``, also for a trace in the place of one of the other environment, and
    ``UnsupportedWrite`` for a kind that is unknown, or not to be said so.
    """
    before = _Before(traces, snapshots, booked or _nothing)
    for index, write in enumerate(writes):
        _check_kind(storage, account, write, len(writes))
        if booked is None and not isinstance(write, _OF_TRACES):
            raise UnsupportedWrite(f"{storage} knows no write {type(write).__name__}")
        match write:
            case PutTrace():
                before.check_trace(write, index)
            case PutFeedback():
                before.check_feedback(write, index)
            case PutSnapshot():
                before.check_snapshot(write, index)
            case PutAccount() | PutKey() | PutEndpoint() | PutIncident():
                before.check_thing(write, index)
            case AddCredit():
                before.check_credit(write, index)
            case Correct():
                before.check_correction(write, index)
            case _ if not isinstance(write, _UNCONDITIONAL):
                raise UnsupportedWrite(f"{storage} knows no write {type(write).__name__}")


class _Before:
    """What the writes of a batch find: what was there, and what those before them make."""

    def __init__(self, traces: Mapping[str, Environment], snapshots: Collection[str], booked: Booked) -> None:
        self._traces, self._snapshots, self._booked = dict(traces), set(snapshots), booked
        self._made: set[tuple[str, str]] = set()
        self._credited: dict[str, int] = {}

    def check_trace(self, write: PutTrace, index: int) -> None:
        """Hold a trace to what it expects, and to the environment of that in whose place it comes."""
        trace, present = write.trace, write.trace.id in self._traces
        there = self._traces.setdefault(trace.id, trace.environment)
        check_place(trace.id, trace.environment, there, index)
        _check_expected(trace.id, write.expect, present, index)

    def check_feedback(self, write: PutFeedback, index: int) -> None:
        """Hold feedback to a trace of its environment."""
        of = self._traces.get(write.trace_id)
        present = of is not None and write.environment in (None, of)
        _check_expected(write.trace_id, write.expect, present, index)

    def check_snapshot(self, write: PutSnapshot, index: int) -> None:
        """Hold a snapshot to what it expects."""
        name = write.snapshot.id
        _check_expected(name, write.expect, name in self._snapshots, index)
        self._snapshots.add(name)

    def check_thing(self, write: PutAccount | PutKey | PutEndpoint | PutIncident, index: int) -> None:
        """Hold an account, key, endpoint or incident to what it expects, which may be that nobody has changed it."""
        name, there = _name_of(write), self._booked(write)
        kind = type(write).__name__
        if isinstance(there, Endpoint) and isinstance(write, PutEndpoint) and there.account != write.endpoint.account:
            raise PreconditionFailed(f"{name} is an endpoint of another account", index=index)
        if isinstance(write.expect, Account | Key | Endpoint):
            _check_unchanged(name, write.expect, there, index)
        else:
            _check_expected(name, write.expect, (kind, name) in self._made or bool(there), index)
        self._made.add((kind, name))

    def check_credit(self, write: AddCredit, index: int) -> None:
        """Hold credit that was not given before to what can be kept, with all that the batch gives."""
        there = self._booked(write)
        if isinstance(there, int) and write.id not in self._credited:
            self._credited[write.id] = write.nanos
            _check_credit(there + sum(self._credited.values()), index)

    def check_correction(self, write: Correct, index: int) -> None:
        """Hold a correction to the rows that its call had."""
        if self._booked(write) != write.after:
            raise PreconditionFailed(
                f"the rows of {write.row.request_id} have changed since they were read", index=index
            )


def _nothing(write: Write) -> None:
    """Nothing is there."""


def _check_kind(storage: str, account: str, write: Write, of: int) -> None:
    """Hold a write to the account that it may be under, and the company that it may be in."""
    if isinstance(write, _OF_THE_SYSTEM) and account != SYSTEM_ACCOUNT:
        raise UnsupportedWrite(f"{storage} takes {type(write).__name__} only under {SYSTEM_ACCOUNT!r}")
    if isinstance(write, _ALONE) and of > 1:
        raise UnsupportedWrite(f"{storage} takes {type(write).__name__} only as the one write of a batch")
    if isinstance(write, _OWN) and account != _account_of(write):
        raise UnsupportedWrite(f"{storage} takes {type(write).__name__} only under the account that it is about")


def _check_expected(name: str, expect: str | None, present: bool, index: int) -> None:
    if expect is not None and present != (expect == "present"):
        raise PreconditionFailed(f"{name} was expected to be {expect} and is not", index=index)


def check_digests(account: str, writes: Sequence[Write], holder: Holder) -> None:
    """Hold every key to a digest that no other key has, of whichever account. Raises ``PreconditionFailed``."""
    taken: dict[str, tuple[str, str]] = {}
    for index, write in enumerate(writes):
        if isinstance(write, PutKey):
            mine = account, write.key.id
            if taken.setdefault(write.key.digest, holder(write.key.digest) or mine) != mine:
                raise PreconditionFailed(f"{write.key.id} has the digest of another key", index=index)


def check_place(trace_id: str, environment: Environment, there: Environment, index: int = 0) -> None:
    """Hold a trace to the environment of that in whose place it comes. Raises ``PreconditionFailed``."""
    if environment != there:
        raise PreconditionFailed(f"{trace_id} is a trace of {there}, and one of {environment} is another", index=index)


def _check_unchanged(key: str, read: Account | Key | Endpoint, there: object, index: int) -> None:
    if there != read:
        raise PreconditionFailed(f"{key} has changed since it was read", index=index)


def _check_credit(nanos: int, index: int) -> None:
    if abs(nanos) > MOST_CREDIT:
        problem = f"credit would come to ${usd_text(nanos)}, and no more than ${usd_text(MOST_CREDIT)} is kept"
        raise PreconditionFailed(problem, index=index)


def _account_of(write: PutAccount | PutKey | PutEndpoint) -> str:
    match write:
        case PutAccount(account):
            return account.name
        case PutKey(key):
            return key.account
        case PutEndpoint(endpoint):
            return endpoint.account


def _name_of(write: PutAccount | PutKey | PutEndpoint | PutIncident) -> str:
    match write:
        case PutAccount(account):
            return account.name
        case PutKey(key):
            return key.id
        case PutEndpoint(endpoint):
            return endpoint.id
        case PutIncident(incident):
            return incident.id
