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
    called, providers = _matched({line.model for line in lines} - {""}, booked, catalogue, provider, aliases)
    booked = [each for each in booked if each.provider in providers]
    theirs_in = {*called.values()}
    ours_in = {each.model for each in booked}
    told = {name for name in _FIGURES if any(getattr(line, name) is not None for line in export.lines)}
    comparison, by_model = _Comparison(scope.tolerance, told), any(line.model for line in lines)
    compared: list[ReconciledModel] = []
    for model_id in theirs_in | ours_in if by_model else ():
        its_lines = [line for line in lines if called.get(line.model) == model_id]
        compared.append(comparison.of(model_id, its_lines, [each for each in booked if each.model == model_id]))
    compared.sort(key=lambda each: (-abs(comparison.drift(each)), each.model))
    expired_nanos = total(each for each in sums if each.kind == "expired").most_nanos
    whole = comparison.of("", lines, booked, expired_nanos)
    unmatched = sorted({line.model for line in lines} - {*called})
    days = {line.day for line in lines if any(getattr(line, name) for name in _FIGURES)}
    our_days = {each.day for each in booked}
    return Reconciliation(
        shape=export.shape,
        partial=export.partial,
        providers=sorted(providers),
        first=scope.first,
        last=scope.last,
        tolerance=scope.tolerance,
        agrees=all(each.agreement != "drifts" for each in (whole, *compared)),
        total=whole,
        models=compared,
        unmatched=[comparison.unmatched(each, [line for line in lines if line.model == each]) for each in unmatched],
        only_theirs=sorted(theirs_in - ours_in),
        only_ours=sorted(ours_in - theirs_in) if by_model else [],
        days_only_theirs=sorted(days - our_days),
        days_only_ours=sorted(our_days - days),
        expired_most_usd=usd(expired_nanos),
    )


def _matched(
    names: set[str],
    booked: Sequence[LedgerSum],
    catalogue: Mapping[str, Named],
    provider: str | None,
    aliases: Mapping[str, str],
) -> tuple[dict[str, str], set[str]]:
    """Model ids by the export's names, and the providers to compare. What has calls in the ledger is preferred to the
    catalogue's."""
    there = sorted({(each.model, each.provider) for each in booked})
    used = [(catalogue.get(model) or named_by_id(model))._replace(provider=served_by) for model, served_by in there]
    found = {name: model_called(name, [used, list(catalogue.values())], provider, aliases) for name in names}
    called = {name: model_id for name, model_id in found.items() if model_id is not None}
    if provider:
        return called, {provider}
    serving = {served_by for model, served_by in there if model in called.values()}
    unused = {*called.values()} - {model for model, _ in there}
    return called, serving | {catalogue[each].provider for each in unused if each in catalogue}


class _Comparison(NamedTuple):
    """How figures of an export are compared with the ledger's sums."""

    tolerance: float
    told: set[str]
    """Figures that the export has."""

    def of(
        self, model_id: str, lines: Sequence[ExportLine], booked: Sequence[LedgerSum], expired_nanos: int = 0
    ) -> ReconciledModel:
        """Compare one model, or all together under an empty id."""
        came_to = total(booked)
        least, most, used = came_to.least_nanos, came_to.most_nanos + expired_nanos, came_to.tokens
        requests = sum(each.rows for each in booked if each.kind == "attempt")
        counts = requests, used.input, used.output, used.cached, came_to.cost_nanos
        theirs, ours = _sum_of(lines), dict(zip(_FIGURES, counts, strict=True))
        figures = {}
        for name in _FIGURES:
            said, apart = usd if name == "cost_nanos" else int, theirs[name] - ours[name]
            figures[name] = Compared(None, said(ours[name]), None, None)
            if name in self.told:
                percent = round(100 * apart / theirs[name], 4) if theirs[name] else None
                figures[name] = Compared(said(theirs[name]), said(ours[name]), said(apart), percent)
        judged = [name for name in _TOKENS if name in self.told] or ["requests"]
        if "cost_nanos" in self.told:
            judged = ["cost_nanos"]
        agreement: Agreement = "drifts"
        if all(abs(theirs[name] - ours[name]) <= self.tolerance * abs(theirs[name]) for name in judged):
            agreement = "agrees"
        elif "cost_nanos" in self.told:
            if abs(theirs["cost_nanos"] - ours["cost_nanos"]) < CENT_NANOS:
                agreement = "agrees"
            elif least <= theirs["cost_nanos"] <= most:
                agreement = "explained"
        return ReconciledModel(
            model=model_id,
            names=sorted({line.model for line in lines} - {""}) if model_id else [],
            cost_usd=figures.pop("cost_nanos"),
            least_usd=usd(least),
            most_usd=usd(most),
            agreement=agreement,
            **figures,
        )

    def drift(self, model: ReconciledModel) -> float:
        """The drift of the figure by which agreement is judged."""
        if "cost_nanos" in self.told:
            return model.cost_usd.drift or 0.0
        return sum(abs(each.drift or 0) for each in (model.input_tokens, model.output_tokens, model.requests))

    def unmatched(self, name: str, lines: Sequence[ExportLine]) -> UnmatchedName:
        """The figures under a name that matches no model."""
        told = {each: figure if each in self.told else None for each, figure in _sum_of(lines).items()}
        nanos = told.pop("cost_nanos")
        return UnmatchedName(name=name, cost_usd=None if nanos is None else usd(nanos), **told)


def _sum_of(lines: Sequence[ExportLine]) -> dict[str, int]:
    return {name: sum(getattr(line, name) or 0 for line in lines) for name in _FIGURES}
