"""Reads the requests of a policy's versions, for ``Console.compare``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from routewright import wire
from routewright._core.analytics.comparison import PolicyTraffic
from routewright._engine.storage import read_accounts
from routewright._runtime.loop import in_thread
from routewright.errors import NotFound
from routewright.protocols import Clock, Storage
from routewright.wire.ids import policy_id
from routewright.wire.problems import shown

from .arguments import check_account

PIECE = 500
"""Traces per read."""


async def compare_versions(
    storage: Storage, clock: Clock, name: str, since: str, account: str | None, environment: wire.Environment
) -> wire.PolicyComparison:
    """Compare the versions of a policy that served an account; None: all. Raises ``NotFound``."""
    owners = [*await read_accounts(storage)] if account is None else [check_account("account", account)]
    versions = await storage.read(wire.SYSTEM_ACCOUNT, wire.PolicyVersions(name=name))
    if not versions:
        raise NotFound(f"no version of a policy {shown(name)} is published")
    records = await storage.read(wire.SYSTEM_ACCOUNT, wire.PolicyRecords())
    shares = [record.share.content for record in records if record.name == name and record.share is not None]
    shared = next((version.label for version in versions if version.content in shares), None)
    traffic = PolicyTraffic(versions)

    def add(traces: Sequence[wire.TraceItem], scores: Mapping[str, float]) -> None:
        for trace in traces:
            traffic.add(trace, scores.get(trace.id))

    ids = {(version.policy and version.policy.id) or policy_id(name) for version in versions}
    for owner, id in ((owner, id) for owner in owners for id in ids):
        terms = wire.Term("policy_id", "=", id), wire.Term("kind", "=", "route")
        query = wire.TraceItems(environment=environment, since=since, terms=terms)
        after: str | None = None
        while traces := await storage.scan(owner, query, after=after, limit=PIECE):
            after = traces[-1].key
            ratings = await storage.read(owner, wire.FeedbackByTraces(tuple(trace.id for trace in traces)))
            scores = {rating.trace_id: rating.score for rating in ratings}
            await in_thread(clock, add, traces, scores)
    return traffic.report(name, since, shared)
