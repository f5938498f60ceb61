"""Compares a provider's usage export with the ledger. Days are UTC on both sides: providers count by them, too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Literal, NamedTuple

import anyio.to_thread

from routewright._core.accounts.ledger import total
from routewright._core.analytics.report import days_of
from routewright._core.catalogue.models import Named, model_called, named, named_by_id
from routewright._core.money import usd
from routewright._core.request.json_scan import quoted
from routewright._core.request.problems import did_you_mean, listed, shown
from routewright._core.request.rules import Range
from routewright.catalogue import Catalogue
from routewright.errors import Problem, ValidationFailed
from routewright.protocols import Clock, Storage
from routewright.wire import SYSTEM_ACCOUNT, LedgerSum, LedgerSumsOfAll, Model
from routewright.wire.plain import Struct

from .usage_exports import ExportLine, ExportShape, UsageExport, checked_export, read_usage_export

CENT_NANOS = 10_000_000
"""A smaller difference does not count: bills are rounded to it."""
_TOKENS = ("input_tokens", "output_tokens", "cached_tokens")
_FIGURES = ("requests", *_TOKENS, "cost_nanos")
_SHARE = Range(0, 1)

Agreement = Literal["agrees", "explained", "drifts"]
"""``agrees``: within the tolerance. ``explained``: beyond it, but within the uncertainty of the ledger's own costs."""


class Compared(Struct, frozen=True):
    """One figure on both sides."""

    theirs: float | None
    """None: not in the export."""
    ours: float
    drift: float | None
    """Theirs less ours."""
    percent: float | None
    """Of theirs. None: theirs is zero or unknown."""


class ReconciledModel(Struct, frozen=True, kw_only=True):
    """The comparison of one model, or of all together."""

    model: str
    """Its id in the ledger. Empty: all together."""
    names: list[str]
    """The provider's names of it."""
    requests: Compared
    """Ours: attempts that may have cost something."""
    input_tokens: Compared
    output_tokens: Compared
    cached_tokens: Compared
    cost_usd: Compared
    least_usd: float
    """The least and the most that ours can have cost, where the provider did not tell at the time."""
    most_usd: float
    agreement: Agreement
    """By cost if the export has it, otherwise by tokens, otherwise by requests."""


class UnmatchedName(Struct, frozen=True, kw_only=True):
    """The figures under a name that matches no model, or several. Empty: the export names none."""

    name: str
    requests: int | None
    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    cost_usd: float | None


class Reconciliation(Struct, frozen=True, kw_only=True):
    """A provider's usage export beside the ledger, over all accounts."""

    shape: ExportShape
    partial: bool
    """The export says that there is more than it contains."""
    providers: list[str]
    """Providers whose calls in the ledger are compared."""
    first: str
    """The first and the last day that are compared, UTC."""
    last: str
    tolerance: float
    """The share of theirs by which ours may be off. Less than a cent never counts."""
    agrees: bool
    """Nothing ``drifts``."""
    total: ReconciledModel
    models: list[ReconciledModel]
    """The largest drift first. Empty if the export names no models."""
    unmatched: list[UnmatchedName]
    """They count in the total, and in no model."""
    only_theirs: list[str]
    """Models without calls in the ledger in that time."""
    only_ours: list[str]
    """Models that are not in the export."""
    days_only_theirs: list[str]
    days_only_ours: list[str]
    expired_most_usd: float
    """The most that calls can have cost whose process ended before they did, whatever model they used. The total may be
    explained by it."""


class Scope(NamedTuple):
    """What to compare."""

    first: str
    last: str
    tolerance: float
    provider: str | None
    """None: the export's, or else those that serve its models."""


class _Side(NamedTuple):
    """The figures of one side."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost_nanos: int = 0


async def reconcile(
    storage: Storage,
    clock: Clock,
    export: str | Path | UsageExport,
    *,
    first: str | date | None,
    last: str | date | None,
    provider: str | None,
    tolerance: float,
    catalogue: Catalogue | None,
) -> Reconciliation:
    """``Ledger.reconcile``. Raises ``ValidationFailed``."""
    share: object = tolerance
    if isinstance(share, bool) or not isinstance(share, int | float) or not _SHARE.admits(share):
        raise ValidationFailed.at("tolerance", f"must be {_SHARE}, got {shown(share)}", "0.01 is 1 %")
    if not isinstance(provider, str | None):
        raise ValidationFailed.at("provider", f"is {shown(provider)}", "pass its name, or leave it out")
    if not isinstance(catalogue, Catalogue | None):
        problem = Problem("catalogue", f"is {type(catalogue).__name__}", "pass Catalogue.load(path) or a Catalogue")
        raise ValidationFailed.of(problem)
    if isinstance(export, UsageExport):
        found = checked_export(export)
    elif clock.virtual:
        found = read_usage_export(export)
    else:
        found = await anyio.to_thread.run_sync(read_usage_export, export)
    days = days_of(first or found.first, last or found.last, clock.time(), ("first", "last"))
    sums = await storage.read(SYSTEM_ACCOUNT, LedgerSumsOfAll(*days))
    known = Catalogue() if catalogue is None else catalogue
    return reconciled(found, sums, known.models, known.aliases, Scope(*days, float(tolerance), provider))


def reconciled(
    export: UsageExport, sums: Sequence[LedgerSum], models: Iterable[Model], aliases: Mapping[str, str], scope: Scope
) -> Reconciliation:
    """Compare an export with the sums of all accounts over the same days. ``models``: those of the catalogue.

    Raises ``ValidationFailed`` for a provider that neither knows."""
    booked = [each for each in sums if each.kind in ("attempt", "correction")]
    catalogue = {model.id: named(model) for model in models}
    provider = scope.provider or export.provider
    if scope.provider is not None:
        known = sorted({each.provider for each in booked} | {each.provider for each in catalogue.values()})
        if provider not in known:
            hint = did_you_mean(provider, known) or f"known: {listed(known)}"
            raise ValidationFailed.at("provider", f"unknown provider {quoted(scope.provider)}", hint)
    lines = [line for line in export.lines if scope.first <= line.day <= scope.last]
    called = _called({line.model for line in lines} - {""}, booked, catalogue, provider, aliases)
    providers = {provider} if provider else _serving({*called.values()}, booked, catalogue)
    ours = [each for each in booked if each.provider in providers]
    expired_nanos = total(each for each in sums if each.kind == "expired").most_nanos
    told = {name for name in _FIGURES if any(getattr(line, name) is not None for line in export.lines)}
    return _Comparison(lines, called, ours, scope.tolerance, told).made(export, scope, sorted(providers), expired_nanos)


def _called(
    names: set[str],
    booked: Sequence[LedgerSum],
    catalogue: Mapping[str, Named],
    provider: str | None,
    aliases: Mapping[str, str],
) -> dict[str, str]:
    """Model ids by the export's names. Models with calls in the ledger are preferred."""
    there = sorted({(each.model, each.provider) for each in booked})
    used = [(catalogue.get(model) or named_by_id(model))._replace(provider=served_by) for model, served_by in there]
    groups = [used, list(catalogue.values())]
    found = {name: model_called(name, groups, provider, aliases) for name in names}
    return {name: model_id for name, model_id in found.items() if model_id is not None}


def _serving(model_ids: set[str], booked: Sequence[LedgerSum], catalogue: Mapping[str, Named]) -> set[str]:
    """The providers of some models: those in the ledger, otherwise the catalogue's."""
    serve = {each.provider for each in booked if each.model in model_ids}
    unused = model_ids - {each.model for each in booked}
    return serve | {catalogue[each].provider for each in unused if each in catalogue}


class _Comparison:
    """The lines of an export beside the ledger's sums of its provider."""

    def __init__(
        self,
        lines: Sequence[ExportLine],
        called: Mapping[str, str],
        booked: Sequence[LedgerSum],
        tolerance: float,
        told: set[str],
    ) -> None:
        self._lines = lines
        self._called = called
        self._booked = booked
        self._tolerance = tolerance
        self._told = told
        """Figures that the export has."""

    def made(self, export: UsageExport, scope: Scope, providers: list[str], expired_nanos: int) -> Reconciliation:
        by_model = any(line.model for line in self._lines)
        theirs_in, ours_in = {*self._called.values()}, {each.model for each in self._booked}
        models = [self._of_model(each) for each in theirs_in | ours_in] if by_model else []
        models.sort(key=lambda each: (-abs(self._drift(each)), each.model))
        whole = self._compared("", self._lines, self._booked, expired_nanos)
        days = {line.day for line in self._lines if any(getattr(line, name) for name in _FIGURES)}
        our_days = {each.day for each in self._booked}
        return Reconciliation(
            shape=export.shape,
            partial=export.partial,
            providers=providers,
            first=scope.first,
            last=scope.last,
            tolerance=scope.tolerance,
            agrees=all(each.agreement != "drifts" for each in (whole, *models)),
            total=whole,
            models=models,
            unmatched=[
                self._unmatched(each) for each in sorted({line.model for line in self._lines} - {*self._called})
            ],
            only_theirs=sorted(theirs_in - ours_in),
            only_ours=sorted(ours_in - theirs_in) if by_model else [],
            days_only_theirs=sorted(days - our_days),
            days_only_ours=sorted(our_days - days),
            expired_most_usd=usd(expired_nanos),
        )

    def _of_model(self, model_id: str) -> ReconciledModel:
        lines = [line for line in self._lines if self._called.get(line.model) == model_id]
        return self._compared(model_id, lines, [each for each in self._booked if each.model == model_id])

    def _compared(
        self, model_id: str, lines: Sequence[ExportLine], booked: Sequence[LedgerSum], expired_nanos: int = 0
    ) -> ReconciledModel:
        theirs, came_to = _sum_of(lines), total(booked)
        requests, used = sum(each.rows for each in booked if each.kind == "attempt"), came_to.tokens
        ours = _Side(requests, used.input, used.output, used.cached, came_to.cost_nanos)
        least, most = came_to.least_nanos, came_to.most_nanos + expired_nanos
        figures = {name: self._figure(name, getattr(theirs, name), getattr(ours, name)) for name in _FIGURES}
        return ReconciledModel(
            model=model_id,
            names=sorted({line.model for line in lines} - {""}) if model_id else [],
            cost_usd=figures.pop("cost_nanos"),
            least_usd=usd(least),
            most_usd=usd(most),
            agreement=self._agreement(theirs, ours, least, most),
            **figures,
        )

    def _figure(self, name: str, theirs: int, ours: int) -> Compared:
        said = usd if name == "cost_nanos" else int
        if name not in self._told:
            return Compared(None, said(ours), None, None)
        percent = round(100 * (theirs - ours) / theirs, 4) if theirs else None
        return Compared(said(theirs), said(ours), said(theirs - ours), percent)

    def _agreement(self, theirs: _Side, ours: _Side, least: int, most: int) -> Agreement:
        if "cost_nanos" in self._told:
            near = self._is_near(theirs.cost_nanos, ours.cost_nanos)
            if near or abs(theirs.cost_nanos - ours.cost_nanos) < CENT_NANOS:
                return "agrees"
            return "explained" if least <= theirs.cost_nanos <= most else "drifts"
        judged = [name for name in _TOKENS if name in self._told] or ["requests"]
        return (
            "agrees" if all(self._is_near(getattr(theirs, each), getattr(ours, each)) for each in judged) else "drifts"
        )

    def _is_near(self, theirs: int, ours: int) -> bool:
        return abs(theirs - ours) <= self._tolerance * abs(theirs)

    def _drift(self, model: ReconciledModel) -> float:
        """The drift of the figure by which agreement is judged."""
        if "cost_nanos" in self._told:
            return model.cost_usd.drift or 0.0
        return sum(abs(each.drift or 0) for each in (model.input_tokens, model.output_tokens, model.requests))

    def _unmatched(self, name: str) -> UnmatchedName:
        sums = _sum_of(line for line in self._lines if line.model == name)._asdict()
        told = {each: figure if each in self._told else None for each, figure in sums.items()}
        nanos = told.pop("cost_nanos")
        return UnmatchedName(name=name, cost_usd=None if nanos is None else usd(nanos), **told)


def _sum_of(lines: Iterable[ExportLine]) -> _Side:
    return _Side(*map(sum, zip(*([getattr(line, name) or 0 for name in _FIGURES] for line in lines), strict=True)))
