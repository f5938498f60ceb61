"""Reads stored decisions and what they name, for the simulations of the Console, and makes the reports."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from routewright import wire
from routewright._core.accounts.purses import monday_of
from routewright._core.analytics.comparison import wilson
from routewright._core.analytics.estimate import ENOUGH, Calibration, Cell, Figures, FloatArray, Lengths
from routewright._core.catalogue.models import resolve_one
from routewright._core.model_selector import ModelIndex
from routewright._core.money import usd
from routewright._core.policy import check_policy, resolve, with_version
from routewright._core.routing.simulation import Simulation, Transform
from routewright._core.trace.filter import parse_filter
from routewright._engine.storage import read_accounts
from routewright._runtime.loop import in_thread
from routewright.errors import ValidationFailed
from routewright.protocols import Clock, Storage
from routewright.wire import SYSTEM_ACCOUNT, JsonObject, Term
from routewright.wire.problems import did_you_mean, listed, shown
from routewright.wire.timestamps import start_of, timestamp

PAGE = 10_000
_NEWEST = 10  # records that may name the catalogue, since some may be damaged
_TOP = 10  # pairs of models in a report
_ACCOUNTS = 5
_SHARE = 0.05
"""Models with less of the cost do not make a report worthless if their answers drift, nor do those with less of the
requests if nothing is known of their times. The same goes for requests whose spending is unknown."""
_STARTS: dict[wire.Period, Callable[[str], str]] = {"day": str, "week": monday_of, "month": "{:.7}-01".format}
"""First day of a day's period."""


class Simulator:
    """Runs simulations over one storage."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        index: ModelIndex,
        *,
        since: str,
        filter: str,
        account: str | None,
    ) -> None:
        """``index``: models that drafts may name, besides those of the traces."""
        self._storage = storage
        self._clock = clock
        self._index = index
        self._since = start_of(since, clock.time())
        self._until = timestamp(clock.time() + 0.001)  # requests of this millisecond, too
        self._terms = parse_filter(filter)
        self._account = account
        self._yardstick = wire.HealthSnapshot("", {})
        self._accounts: dict[str, wire.Account | None] = {}
        self._has_traces = False

    async def simulate(self, draft: wire.PolicyVersion) -> wire.SimulationReport:
        """The report on a draft or version (``Console.simulate``)."""
        policy = check_policy(draft.policy, 0)
        await self._look_back()
        bare = self._select(*self._terms)
        if not self._has_traces:  # nothing says which models there are, nor is a decision to be repeated
            policy = replace(policy, models=None, prefer=None, fallback=None, classes=None)
        snapshot = with_version(resolve([policy], self._index)[0], replace(draft, created_at=self._until))
        if not any(term.key == "policy_id" for term in self._terms):
            own = self._select(*self._terms, Term("policy_id", "=", snapshot.policy.id))
            is_used = [bool(await self._storage.scan(name, own, after=None, limit=1)) for name in self._accounts]
            bare = own if any(is_used) else self._select(*self._terms, Term("policy_id", "=", ""))
        simulation = await self._run(bare, lambda snapshots: Simulation(snapshots, snapshot, yardstick=self._yardstick))
        usage = await self._read_usage({account for account, _ in simulation.accounts})

        def report() -> wire.SimulationReport:
            calibration = Calibration(zip(simulation.cells, simulation.costs, strict=True))
            shared = self._shared(simulation, calibration)
            daily = _daily(simulation, calibration) if shared["problem"] is None else {}
            return wire.SimulationReport(
                policy=policy.name,
                version=draft.label,
                blocked=_blocked(usage, daily),
                costlier=_costlier(daily),
                examples=simulation.examples,
                unknown_spent=simulation.unknown_spent,
                **shared,
            )

        return await in_thread(self._clock, report)

    async def what_if(
        self, without: Collection[str], only: Collection[str], prices: Sequence[wire.Model], cache: bool
    ) -> wire.WhatIfReport:
        """The report on other models, or on ``prices`` of models (``Console.what_if``)."""
        await self._look_back()
        ids: list[list[str]] = []
        for path, names in (("without", without), ("only", only), ("prices", [model.id for model in prices])):
            if isinstance(names, str) or not all(isinstance(name, str) for name in names):
                raise ValidationFailed.at(path, f"is {shown(names)}", "pass a list of model ids")
            checked = names if self._has_traces else ()
            ids.append([resolve_one(name, self._index.aliases, self._index.row, path) for name in checked])
        without, only = ids[:2]
        if {*without}.issuperset(only or self._index.row):
            raise ValidationFailed.at("without", "leaves no model", "keep one or more")
        transform = _transform(without, only, prices) if without or only or prices else None
        simulation = await self._run(
            self._select(*self._terms),
            lambda snapshots: Simulation(snapshots, None, transform, hits_call=not cache, yardstick=self._yardstick),
        )
        calibration = Calibration(zip(simulation.cells, simulation.costs, strict=True))
        shared = await in_thread(self._clock, self._shared, simulation, calibration)
        return wire.WhatIfReport(hits=simulation.hits, **shared)

    def _select(self, *terms: Term) -> wire.Decisions:
        kind = Term("kind", "=", "route")
        return wire.Decisions(since=self._since, until=self._until, environment="production", terms=(kind, *terms))

    async def _look_back(self) -> None:
        """Find the accounts, and add the models of their newest trace, as it has them. Its health is the yardstick."""
        accounts = await read_accounts(self._storage)
        name = self._account
        if name is not None:
            if name not in accounts and not await self._storage.scan(name, wire.Decisions(), after=None, limit=1):
                hint = did_you_mean(name, accounts) or f"known: {listed([*accounts])}"
                raise ValidationFailed.at("account", f"unknown account {shown(name)}", hint)
            accounts = {name: accounts.get(name)}
        self._accounts = accounts
        newest_first = replace(self._select(*self._terms), newest_first=True)
        for name in self._accounts:
            for record in await self._storage.scan(name, newest_first, after=None, limit=_NEWEST):
                self._has_traces = True
                snapshots = await self._read_snapshots(_snapshot_ids([record]))
                for snapshot in snapshots:
                    if isinstance(snapshot, wire.HealthSnapshot):
                        self._yardstick = snapshot
                for snapshot in snapshots:
                    if isinstance(snapshot, wire.CatalogueSnapshot):
                        models = {model.id: model for model in (*self._index.models, *snapshot.models)}
                        self._index = ModelIndex([*models.values()], self._index.aliases)
                        return

    async def _read_usage(self, names: Collection[str]) -> list[tuple[wire.Account, list[wire.UsageCount]]]:
        """Usage of the accounts with limits, since the periods began that the simulated time is in."""
        first = min(start(self._since[:10]) for start in _STARTS.values())
        last = self._until[:10]
        query = wire.UsageCounts(first=first, last=last, environment="production", group_by="model", groups=0)
        accounts = [account for name in sorted(names) if (account := self._accounts[name]) is not None]
        limited = [account for account in accounts if account.has_limited_money]
        return [(account, (await self._storage.read(account.name, query)).all) for account in limited]

    async def _read_snapshots(self, ids: Collection[str]) -> list[wire.Snapshot]:
        return await self._storage.read(SYSTEM_ACCOUNT, wire.SnapshotsById(tuple(ids)))

    async def _run(
        self, selection: wire.Decisions, start: Callable[[Mapping[str, wire.Snapshot]], Simulation]
    ) -> Simulation:
        """Decide all records, a page at a time. Only the health snapshots of one page are in memory."""
        snapshots: dict[str, wire.Snapshot] = {}
        simulation = start(snapshots)
        for account in self._accounts:
            after: str | None = None
            while True:
                page = await self._storage.scan(account, selection, after=after, limit=PAGE)
                named = _snapshot_ids(page)
                for snapshot_id in snapshots.keys() - named:
                    if isinstance(snapshots[snapshot_id], wire.HealthSnapshot):
                        del snapshots[snapshot_id]
                missing = named - snapshots.keys()
                snapshots.update((snapshot.id, snapshot) for snapshot in await self._read_snapshots(missing))
                await in_thread(self._clock, simulation.add, account, page)
                if len(page) < PAGE:
                    break
                after = page[-1].key
        return simulation

    def _shared(self, simulation: Simulation, calibration: Calibration) -> JsonObject:
        """The fields of ``Simulated``."""
        drifts = _drifts(simulation)
        problem = _problem(simulation, calibration, drifts)
        if not simulation.requests:
            problem = f"no stored production request of {listed([*self._accounts])} matches; the sandbox is left out"
        cells = simulation.cells
        moments = zip(cells, simulation.latencies, strict=True)
        timed = [(cell, sums) for cell, sums in moments if cell.before or cell.is_hit]
        answered = {cell: int(sums[0]) for cell, sums in timed if cell.after}
        latency_problem = problem or _latency_problem(calibration, answered)
        costs = None if problem else calibration.figures(usd(1))
        latencies = None if latency_problem else Calibration(timed).figures(1 / max(1, sum(answered.values())))
        constraints = dict.fromkeys(constraint for constraint, _ in simulation.refused)
        refused = simulation.refused
        rerouted = simulation.reroutes.total()
        return {
            "since": self._since,
            "until": self._until,
            "requests": simulation.requests,
            "skipped": simulation.skipped,
            "rerouted": rerouted,
            "rerouted_share": _share(rerouted, simulation),
            "refused_share": _share(sum(refused[name, True] for name in constraints), simulation),
            "reroutes": [wire.Reroute(*pair, count) for pair, count in simulation.reroutes.most_common(_TOP)],
            "actual_cost_usd": usd(simulation.actual_nanos),
            **_named("cost", "usd", costs),
            **_named("latency", "ms", latencies),
            "refusals": [wire.RefusalChange(name, refused[name, True], refused[name, False]) for name in constraints],
            "expectations": sorted({cell.after for cell in cells if cell.after} - calibration.outcomes.keys()),
            "drifts": drifts,
            "problem": problem,
            "latency_problem": latency_problem,
        }


def _snapshot_ids(records: Iterable[wire.DecisionRecord]) -> set[str]:
    """Ids of the snapshots that decisions name."""
    inputs = [record.decision_input for record in records if record.decision_input is not None]
    policies = {entry.policy for entry in inputs if entry.policy is not None}
    return {entry.health for entry in inputs} | {entry.catalogue for entry in inputs} | policies


def _transform(without: Collection[str], only: Collection[str], prices: Sequence[wire.Model]) -> Transform:
    priced = {model.id: model for model in prices}

    def transform(models: Sequence[wire.Model]) -> Iterator[wire.Model]:
        for model in models:
            is_left_out = model.id in without or bool(only and model.id not in only)
            source = priced.get(model.id, model)
            offer = {"pricing_per_1m": source.pricing_per_1m, "price_changes": source.price_changes}
            yield replace(model, disabled=model.disabled or is_left_out, **offer)

    return transform


def _named(figure: str, unit: str, figures: Figures | None) -> dict[str, wire.Estimate | None]:
    names = f"{figure}_before_{unit}", f"{figure}_after_{unit}", f"{figure}_change"
    return dict(zip(names, figures or (None, None, None), strict=True))


def _share(count: int, simulation: Simulation) -> wire.Estimate | None:
    """The share of the requests. None: it is unknown where they would go."""
    requests = simulation.requests
    share = count / max(requests, 1)
    return None if simulation.unknown_spent > _SHARE * requests else wire.Estimate(share, *wilson(share, requests))


def _drifts(simulation: Simulation) -> list[wire.Drift]:
    """Models whose answers drifted, over the whole time or on the last day."""
    drifts = []
    for model in sorted({model for model, _ in simulation.lengths}):
        days = {day: sums for (name, day), sums in simulation.lengths.items() if name == model}
        is_known = simulation.usual[model][1]
        total = np.sum([*days.values()], axis=0)
        last = Lengths(is_known, days[max(days)])
        earlier = Lengths(is_known, total - last.sums)
        drift = Lengths(is_known, total).drift(model) or last.drift(model) or last.drift(model, earlier)
        if drift is not None:
            drifts.append(drift)
    return drifts


def _problem(simulation: Simulation, calibration: Calibration, drifts: Sequence[wire.Drift]) -> str | None:
    """Why nothing can be claimed of requests, if so."""
    if (unknown := simulation.unknown_spent) > _SHARE * simulation.requests:
        return (
            f"for {unknown} of the requests it is unknown how much of its limits the caller had spent, which 'when' "
            "needs; make the draft the policy's shadow, so that traces record it"
        )
    if sum(calibration.outcomes.values()) < ENOUGH:
        return f"requests with an outcome: {sum(calibration.outcomes.values())}; at least {ENOUGH} are needed"
    if unpriced := {model for _, model in simulation.unpriced}:
        cells = {cell for cell, _ in simulation.unpriced}
        count = sum(int(sums[0]) for cell, sums in calibration.cells if cell in cells)
        return f"the cost of {count} of the requests is unknown: {listed(sorted(unpriced))} without a price"
    drifted = {drift.model for drift in drifts}
    if drifts and calibration.share(drifted) >= _SHARE:
        texts = [f"{drift.model} {drift.ratio.value:.2f} times as long" for drift in drifts]
        return f"answers are no longer as long as expected: {', '.join(texts)}"
    if all(cell.after is None for cell, _ in calibration.cells):
        return "every request would be refused"
    return None


def _latency_problem(calibration: Calibration, answered: Mapping[Cell, int]) -> str | None:
    """Why no time can be claimed, if so. A time from the catalogue is no match for a measured one."""
    moved = {cell: count for cell, count in answered.items() if cell.before != cell.after}
    few = sorted({cell.after for cell in moved if cell.after and calibration.outcomes.get(cell.after, 0) < ENOUGH})
    count = sum(count for cell, count in moved.items() if cell.after in few)
    if count <= _SHARE * sum(answered.values()):
        return None
    return f"{count} of the requests would go to {listed(few)}, with fewer than {ENOUGH} outcomes on such requests"


class _Day(NamedTuple):
    """The simulated requests of an account and day. Those newly refused are in the last two figures alone."""

    requests: float = 0.0
    before_usd: float = 0.0
    after_usd: float = 0.0
    refused: float = 0.0
    refused_usd: float = 0.0
    """What they were charged."""


def _daily(simulation: Simulation, calibration: Calibration) -> dict[tuple[str, str], _Day]:
    """By account and day."""
    cells = simulation.cells
    daily = {}
    for key, by_cell in simulation.accounts.items():
        total = np.zeros(5)
        for place, (requests, x, c, charges) in by_cell.items():
            cell = cells[place]
            if cell.is_newly_refused:
                total[3:] += requests, usd(charges)
            else:
                before = x * calibration.factor(cell.before, cell.size)
                after = c * calibration.factor(cell.after, cell.size)
                total[:3] += requests, usd(before), usd(after)
        daily[key] = _Day(*total.tolist())
    return daily


def _costlier(daily: Mapping[tuple[str, str], _Day]) -> list[wire.AccountCost]:
    totals: dict[str, FloatArray] = {}
    for (account, _), amounts in daily.items():
        totals[account] = totals.get(account, 0.0) + np.array(amounts[:3])
    costs = [wire.AccountCost(name, int(total[0]), *total[1:].tolist()) for name, total in totals.items()]
    costs.sort(key=lambda cost: cost.before_usd - cost.after_usd)
    return [cost for cost in costs[:_ACCOUNTS] if cost.after_usd > cost.before_usd]


def _blocked(
    usage: Iterable[tuple[wire.Account, Iterable[wire.UsageCount]]], daily: Mapping[tuple[str, str], _Day]
) -> list[wire.BlockedBudget]:
    """Limits that the expected charges exceed and the real ones did not. ``usage``: of all requests of an account, by
    day in order of time."""
    blocked = []
    for account, days in usage:
        for (period, start), limit in zip(_STARTS.items(), account.period_nanos, strict=True):
            if limit is None:
                continue
            spent: dict[str, list[float]] = {}
            for day in days:
                real = usd(day.charged_nanos)
                change = daily.get((account.name, day.start), _Day())
                after = max(0.0, real + change.after_usd - change.before_usd - change.refused_usd)
                total = spent.setdefault(start(day.start), [0.0, 0.0, 0.0])
                over = min(1.0, max(0.0, total[0] + after - usd(limit)) / after) if after else 0.0
                total[0] += after
                total[1] += real
                total[2] += over * (day.requests - change.refused)
            for first, (after, real, requests_over) in spent.items():
                if after > usd(limit) >= real:
                    blocked.append(
                        wire.BlockedBudget(account.name, period, first, usd(limit), after, round(requests_over))
                    )
    return blocked
