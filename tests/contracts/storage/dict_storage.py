"""A complete storage for traces, in dicts: the one that ``docs/how-to/own-storage.md`` tells to start from."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from threading import Lock
from typing import Any

from msgspec.structs import replace

from routewright import wire
from routewright.errors import UnsupportedWrite
from routewright.storage import Rollups, check_batch, ids_of, selects


class Account:
    """What one account holds."""

    def __init__(self) -> None:
        self.traces: dict[str, wire.PutTrace] = {}
        self.feedback: dict[str, wire.PutFeedback] = {}
        self.snapshots: dict[str, wire.PutSnapshot] = {}
        self.rollups = Rollups()
        self.retention = wire.SetRetention()

    def write(self, write: wire.Write) -> wire.Written:
        before: Any = None
        match write:
            case wire.PutTrace(trace):
                before = self.traces.get(trace.id)
                if before is not None:
                    self.rollups.add(before.trace, before.rollup_keys, sign=-1)
                self.traces[trace.id] = replace(write, trace=trace.copy())
                self.rollups.add(trace, write.rollup_keys)
            case wire.PutFeedback(trace_id):
                before = self.feedback.get(trace_id)
                self.feedback[trace_id] = write
            case wire.PutSnapshot(snapshot):
                before = self.snapshots.get(snapshot.id)
                self.snapshots[snapshot.id] = max(before or write, write, key=lambda put: put.at)
            case wire.SetRetention():
                before, self.retention = self.retention, write
            case wire.DeleteTraces(id=only, limit=limit):
                oldest = [trace for trace in reversed(self.newest(write)) if only in (None, trace.id)]
                for trace in (gone := oldest[: max(0, limit)]):
                    put = self.drop(trace)
                    self.rollups.add(put.trace, put.rollup_keys, sign=-1)
                return wire.Written(created=False, count=len(gone))
        return wire.Written(created=before is None)

    def newest(self, selection: Any) -> list[wire.Trace]:
        matching = (put.trace for put in self.traces.values() if selects(selection, put.trace))
        return sorted(matching, key=lambda trace: trace.key, reverse=True)

    def drop(self, trace: wire.Trace) -> wire.PutTrace:
        self.feedback.pop(trace.id, None)
        return self.traces.pop(trace.id)


class DictStorage:
    """Threads may call it, so it takes a lock. It returns copies, so that callers cannot change its data."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.accounts: dict[str, Account] = {}

    def account(self, name: str) -> Account:
        return self.accounts.setdefault(name, Account())

    async def apply(self, account: str, writes: Sequence[wire.Write]) -> list[wire.Written]:
        with self.lock:
            mine = self.account(account)
            there = {id: mine.traces[id].trace.environment for id in ids_of(writes)[0] if id in mine.traces}
            check_batch("DictStorage", account, writes, there, mine.snapshots)
            return [mine.write(write) for write in writes]

    async def read(self, account: str, query: Any) -> Any:
        with self.lock:
            mine = self.account(account)
            match query:
                case wire.TraceById(id, environment):
                    put = mine.traces.get(id)
                    return put.trace.copy() if put and environment in (None, put.trace.environment) else None
                case wire.FeedbackByTrace(trace_id, environment):
                    put = mine.traces.get(trace_id)
                    of = None if put is None else put.trace.environment
                    return mine.feedback.get(trace_id) if environment in (None, of) else None
                case wire.FeedbackByTraces(trace_ids):
                    return [mine.feedback[id] for id in trace_ids if id in mine.feedback]
                case wire.SnapshotById(id):
                    return mine.snapshots[id].snapshot if id in mine.snapshots else None
                case wire.SnapshotsById(ids):
                    return [mine.snapshots[id].snapshot for id in ids if id in mine.snapshots]
                case wire.CurrentRetention():
                    return mine.retention
                case wire.RollupKeys():
                    return mine.rollups.rollup_keys()
                case wire.UsageCounts():
                    return mine.rollups.usage_counts(query)
                case wire.CacheCounts():
                    return mine.rollups.cache_counts(query)
                case wire.FallbackCounts():
                    return mine.rollups.fallback_counts(query)
                case wire.LatencyCounts():
                    return mine.rollups.latency_counts(query)
        raise UnsupportedWrite(f"DictStorage knows no query {type(query).__name__}")

    async def scan(self, account: str, query: Any, *, after: str | None, limit: int) -> list[Any]:
        if not isinstance(query, wire.TraceItems | wire.Traces):
            raise UnsupportedWrite(f"DictStorage knows no scan {type(query).__name__}")
        with self.lock:
            traces = [trace.copy() for trace in self.account(account).newest(query) if not after or trace.key < after]
        return [trace if isinstance(query, wire.Traces) else trace.item for trace in traces[: max(0, limit)]]

    async def sweep(self, now: float) -> int:
        with self.lock:
            system = self.account("_system")
            ages = {"production": system.retention.production_s, "sandbox": system.retention.sandbox_s}
            removed = 0
            named: set[str | None] = set()
            for mine in self.accounts.values():
                for trace in mine.newest(wire.TraceItems()):
                    age = ages[trace.environment]
                    if age is not None and datetime.fromisoformat(trace.created_at).timestamp() < now - age:
                        mine.drop(trace)  # and leave it in the roll-ups
                        removed += 1
                    elif trace.decision_input:
                        decision = trace.decision_input
                        named |= {decision.catalogue, decision.health, decision.policy}
            for id, put in list(system.snapshots.items()):
                if id not in named and put.at < now - 24 * 3600:  # a pending trace may name it
                    del system.snapshots[id]
                    removed += 1
            return removed

    async def aclose(self) -> None:
        pass
