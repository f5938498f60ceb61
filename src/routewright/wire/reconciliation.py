"""What a provider says was used, and how that compares with the ledger: what ``Ledger.reconcile`` takes and gives.

Days are days of UTC on both sides, since providers count by them as the ledger does.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

ExportShape = Literal["openai", "anthropic", "anthropic-console", "openrouter", "table"]
"""Whose form an export has; ``table``: rows with columns of common names."""
Agreement = Literal["agrees", "explained", "drifts"]
"""``agrees``: within the tolerance. ``explained``: beyond it, but no more than what was not certain to the ledger."""


class ExportLine(Struct, frozen=True, kw_only=True):
    """What a provider says of one of its models on one day. None: it does not say."""

    day: str
    """``YYYY-MM-DD``."""
    model: str = ""
    """As the provider calls it. Empty: it says of which."""
    requests: int | None = None
    input_tokens: int | None = None
    """With those that were read from a cache, or written to it."""
    output_tokens: int | None = None
    """With those that were thought."""
    cached_tokens: int | None = None
    """Of the input, what was read from a cache."""
    cost_nanos: int | None = None


class UsageExport(Struct, frozen=True, kw_only=True):
    """What a provider says was used."""

    first: str
    """The first day that it speaks of."""
    last: str
    lines: tuple[ExportLine, ...]
    shape: ExportShape = "table"
    provider: str | None = None
    """Whose it is, as the catalogue calls him. None: it does not say."""
    partial: bool = False
    """It says that there is more than what is in it."""


class Compared(Struct, frozen=True):
    """One figure as both have it."""

    theirs: float | None
    """None: the export does not tell it."""
    ours: float
    drift: float | None
    """Theirs less ours."""
    percent: float | None
    """Of theirs. None: theirs is nothing, or not known."""


class ReconciledModel(Struct, frozen=True, kw_only=True):
    """How the figures of one model compare, or those of all together."""

    model: str
    """Its id in the ledger. Empty: all together."""
    names: list[str]
    """What the provider calls it."""
    requests: Compared
    """Of ours: attempts that may have cost something."""
    input_tokens: Compared
    output_tokens: Compared
    cached_tokens: Compared
    cost_usd: Compared
    least_usd: float
    """The least and the most that ours can have cost, where the provider did not tell at the time."""
    most_usd: float
    agreement: Agreement
    """By the cost, where the export tells it, else by the tokens, else by the requests."""


class UnmatchedName(Struct, frozen=True, kw_only=True):
    """What an export calls by a name that is no model's, or several models'. Empty: it names none."""

    name: str
    requests: int | None
    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    cost_usd: float | None


class Reconciliation(Struct, frozen=True, kw_only=True):
    """How a provider's usage export compares with the ledger, over all accounts."""

    shape: ExportShape
    partial: bool
    """The export says that there is more than what is in it."""
    providers: list[str]
    """Whose calls in the ledger are compared."""
    first: str
    """The first day, and the last one, that are compared, UTC."""
    last: str
    tolerance: float
    """The share of theirs by which ours may be off. Less than a cent never counts."""
    agrees: bool
    """Nothing ``drifts``."""
    total: ReconciledModel
    models: list[ReconciledModel]
    """The largest drift first. None, where the export names no models."""
    unmatched: list[UnmatchedName]
    """They count in the total, and in no model."""
    only_theirs: list[str]
    """Models that the ledger has no calls of in that time."""
    only_ours: list[str]
    """Models that the export does not speak of."""
    days_only_theirs: list[str]
    days_only_ours: list[str]
    expired_most_usd: float
    """The most that calls can have cost whose process ended before they did, whichever model they had called. All
    together may be explained by it."""
