"""How does what a provider says was used compare with the ledger?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from routewright.errors import Problem, ValidationFailed
from routewright.wire import (
    Agreement,
    Compared,
    ExportLine,
    LedgerSum,
    Model,
    ReconciledModel,
    Reconciliation,
    UnmatchedName,
    UsageExport,
)

from .model_name import Named, model_called, named, named_by_id
from .money import usd
from .request.json_scan import quoted
from .request.problems import did_you_mean, listed
from .rows import total

CENT_NANOS = 10_000_000
"""Less than that is no difference: bills are rounded to it."""
_TOKENS = ("input_tokens", "output_tokens", "cached_tokens")
_FIGURES = ("requests", *_TOKENS, "cost_nanos")
_BOOKED = ("attempt", "correction")
"""Kinds of rows that are of a model."""


class Scope(NamedTuple):
    """What is to be compared."""

    first: str
    last: str
    tolerance: float
    provider: str | None
    """None: whose the export is, else whoever serves the models that it names."""


class _Side(NamedTuple):
    """The figures of one side."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost_nanos: int = 0


class _Ours(NamedTuple):
    figures: _Side
    least: int
    most: int


def reconciled(
    export: UsageExport,
    sums: Sequence[LedgerSum],
    models: Iterable[Model],
    aliases: Mapping[str, str],
    scope: Scope,
) -> Reconciliation:
    """Compare an export with the sums of all accounts over the same days. ``models``: those of the catalogue.

    Raises ``ValidationFailed`` for a provider that neither knows.
    """
    booked = [each for each in sums if each.kind in _BOOKED]
    catalogue = {model.id: named(model) for model in models}
    provider = scope.provider or export.provider
    if scope.provider is not None:
        _check_provider(scope.provider, booked, catalogue.values())
    lines = [line for line in export.lines if scope.first <= line.day <= scope.last]
    called = _called(lines, booked, catalogue, provider, aliases)
    providers = {provider} if provider else _serving(called.values(), booked, catalogue)
    return _Comparison(export, lines, called, [each for each in booked if each.provider in providers], scope).made(
        sorted(providers), total(each for each in sums if each.kind == "expired").most_nanos
    )


def _called(
    lines: Sequence[ExportLine],
    booked: Sequence[LedgerSum],
    catalogue: Mapping[str, Named],
    provider: str | None,
    aliases: Mapping[str, str],
) -> dict[str, str]:
    """Ids of models by what the export calls them. Those that the ledger has calls of come first."""
    there = sorted({(each.model, each.provider) for each in booked})
    used = [(catalogue.get(name) or named_by_id(name))._replace(provider=served_by) for name, served_by in there]
    groups = [used, list(catalogue.values())]
    found = {name: model_called(name, groups, provider, aliases) for name in {line.model for line in lines} if name}
    return {name: model_id for name, model_id in found.items() if model_id is not None}


def _serving(model_ids: Iterable[str], booked: Sequence[LedgerSum], catalogue: Mapping[str, Named]) -> set[str]:
    """Who serves some models, in the ledger, else by the catalogue."""
    ids = set(model_ids)
    serve = {each.provider for each in booked if each.model in ids}
    serve |= {catalogue[each].provider for each in ids - {each.model for each in booked} if each in catalogue}
    return serve


def _check_provider(provider: str, booked: Iterable[LedgerSum], catalogue: Iterable[Named]) -> None:
    known = sorted({each.provider for each in booked} | {each.provider for each in catalogue})
    if provider not in known:
        hint = did_you_mean(provider, known) or f"known: {listed(known)}"
        raise ValidationFailed.of(Problem("provider", f"unknown provider {quoted(provider)}", hint))


class _Comparison:
    """One export beside what the ledger has of its provider."""

    def __init__(
        self,
        export: UsageExport,
        lines: Sequence[ExportLine],
        called: Mapping[str, str],
        booked: Sequence[LedgerSum],
        scope: Scope,
    ) -> None:
        self._export = export
        self._lines = lines
        self._called = called
        self._booked = booked
        self._scope = scope
        self._told = {name for name in _FIGURES if any(getattr(line, name) is not None for line in export.lines)}
        """What the export tells at all: of what it does not name there was none."""

    def made(self, providers: list[str], expired_nanos: int) -> Reconciliation:
        scope, theirs_in, ours_in = self._scope, set(self._called.values()), {each.model for each in self._booked}
        by_model = any(line.model for line in self._lines)
        models = [self._of_model(each) for each in theirs_in | ours_in] if by_model else []
        models.sort(key=lambda each: (-abs(self._drift(each)), each.model))
        all_ours = _ours(self._booked)
        whole = self._compared("", self._lines, all_ours._replace(most=all_ours.most + expired_nanos))
        days, our_days = {line.day for line in self._lines if _says(line)}, {each.day for each in self._booked}
        return Reconciliation(
            shape=self._export.shape,
            partial=self._export.partial,
            providers=providers,
            first=scope.first,
            last=scope.last,
            tolerance=scope.tolerance,
            agrees=all(each.agreement != "drifts" for each in (whole, *models)),
            total=whole,
            models=models,
            unmatched=self._unmatched(),
            only_theirs=sorted(theirs_in - ours_in),
            only_ours=sorted(ours_in - theirs_in) if by_model else [],
            days_only_theirs=sorted(days - our_days),
            days_only_ours=sorted(our_days - days),
            expired_most_usd=usd(expired_nanos),
        )

    def _of_model(self, model_id: str) -> ReconciledModel:
        lines = [line for line in self._lines if self._called.get(line.model) == model_id]
        return self._compared(model_id, lines, _ours(each for each in self._booked if each.model == model_id))

    def _compared(self, model_id: str, lines: Sequence[ExportLine], ours: _Ours) -> ReconciledModel:
        theirs = _sum_of(lines)
        counts = {
            name: self._figure(name, getattr(theirs, name), getattr(ours.figures, name)) for name in _FIGURES[:-1]
        }
        return ReconciledModel(
            model=model_id,
            names=sorted({line.model for line in lines} - {""}) if model_id else [],
            cost_usd=self._figure("cost_nanos", theirs.cost_nanos, ours.figures.cost_nanos),
            least_usd=usd(ours.least),
            most_usd=usd(ours.most),
            agreement=self._agreement(theirs, ours),
            **counts,
        )

    def _figure(self, name: str, theirs: int, ours: int) -> Compared:
        said = usd if name == "cost_nanos" else int
        if name not in self._told:
            return Compared(None, said(ours), None, None)
        percent = round(100 * (theirs - ours) / theirs, 4) if theirs else None
        return Compared(said(theirs), said(ours), said(theirs - ours), percent)

    def _agreement(self, theirs: _Side, ours: _Ours) -> Agreement:
        figures = ours.figures
        if "cost_nanos" in self._told:
            off = abs(theirs.cost_nanos - figures.cost_nanos)
            if off < CENT_NANOS or self._is_near(theirs.cost_nanos, figures.cost_nanos):
                return "agrees"
            return "explained" if ours.least <= theirs.cost_nanos <= ours.most else "drifts"
        judged = [name for name in _TOKENS if name in self._told] or ["requests"]
        near = [self._is_near(getattr(theirs, name), getattr(figures, name)) for name in judged]
        return "agrees" if all(near) else "drifts"

    def _is_near(self, theirs: int, ours: int) -> bool:
        return abs(theirs - ours) <= self._scope.tolerance * abs(theirs)

    def _drift(self, model: ReconciledModel) -> float:
        """By how much the figure is off that is judged."""
        if "cost_nanos" in self._told:
            return model.cost_usd.drift or 0.0
        return sum(abs(each.drift or 0) for each in (model.input_tokens, model.output_tokens, model.requests))

    def _unmatched(self) -> list[UnmatchedName]:
        names = sorted({line.model for line in self._lines} - set(self._called))
        return [self._unmatched_name(name, [line for line in self._lines if line.model == name]) for name in names]

    def _unmatched_name(self, name: str, lines: Sequence[ExportLine]) -> UnmatchedName:
        theirs = _sum_of(lines)
        told = {each: getattr(theirs, each) if each in self._told else None for each in _FIGURES}
        cost_nanos = told.pop("cost_nanos")
        return UnmatchedName(name=name, cost_usd=None if cost_nanos is None else usd(cost_nanos), **told)


def _sum_of(lines: Iterable[ExportLine]) -> _Side:
    columns = zip(*([getattr(line, name) or 0 for name in _FIGURES] for line in lines), strict=True)
    sums = [sum(column) for column in columns]
    return _Side(*sums)


def _ours(sums: Iterable[LedgerSum]) -> _Ours:
    booked = list(sums)
    came_to = total(booked)
    used = came_to.tokens
    requests = sum(each.rows for each in booked if each.kind == "attempt")
    figures = _Side(requests, used.input, used.output, used.cached, came_to.cost_nanos)
    return _Ours(figures, came_to.least_nanos, came_to.most_nanos)


def _says(line: ExportLine) -> bool:
    """Whether there was anything."""
    return any(getattr(line, name) for name in _FIGURES)
