"""The models a Router chooses from: 160 bundled ones, and what you put over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import msgspec

from routewright.errors import Problem, ValidationFailed
from routewright.wire import Availability, Model, PriceTier, Pricing

from ._core.catalogue import given_fields, models_of, overlay
from ._core.problem import shown
from ._core.rules import check_names, is_date
from ._core.scan import quoted
from ._core.shape import rebuilt

_O200K = ("openai/", "groq/openai/", "cerebras/gpt-oss")
"""Whose models count tokens with the o200k vocabulary."""


class Catalogue:
    """Models and aliases, never changed in place.

        catalogue = Catalogue.load("models.toml")
        router = Router(catalogue=catalogue)

    ``Catalogue()`` is the bundled one. ``load`` puts a TOML or JSON file over it (``docs/how-to/own-models.md``).
    """

    def __init__(
        self,
        models: Iterable[Model] | None = None,
        *,
        aliases: Mapping[str, str] | None = None,
        as_of: str | None = None,
    ) -> None:
        self._models = None if models is None else overlay((), map(given_fields, models_of(models)))
        self.aliases: dict[str, str] = rebuilt(aliases or {}, dict[str, str], "aliases")
        check_names({f"aliases[{quoted(alias)}]": alias for alias in self.aliases})
        self._as_of = None if as_of is None else _checked_day(as_of)

    @classmethod
    def load(cls, path: str | Path) -> Catalogue:
        """Read a file over the bundled catalogue. Raises ``ValidationFailed`` naming file, line and key."""
        from .config import read_catalogue
        from .document import read

        document = read(path)
        with document.naming():
            rows, aliases = read_catalogue(document, known=[model.id for model in cls().models])
            return cls().overlaid(rows, aliases=aliases)

    def overlaid(self, rows: Iterable[Mapping[str, Any]], *, aliases: Mapping[str, str] | None = None) -> Catalogue:
        """Put rows over this catalogue: each holds an ``id`` and the fields of ``Model`` that it gives."""
        new = Catalogue(aliases=self.aliases | dict(aliases or {}), as_of=self.as_of)
        new._models = overlay(self.models, rows)
        return new

    @property
    def models(self) -> tuple[Model, ...]:
        """All models, in the order in which they came."""
        return bundled()[0] if self._models is None else self._models

    @property
    def as_of(self) -> str:
        """Date of the facts, ``YYYY-MM-DD``."""
        return self._as_of or bundled()[1]


def _checked_day(text: object) -> str:
    if not isinstance(text, str) or not is_date(text) or len(text) != len("YYYY-MM-DD"):
        raise ValidationFailed.of(Problem("as_of", f"must be a date, got {shown(text)}", "write 'YYYY-MM-DD'"))
    return text


@cache
def bundled() -> tuple[tuple[Model, ...], str]:
    """Read the package's own catalogue: its models, and the date of its facts."""
    data = files("routewright") / "data"
    listed = msgspec.json.decode((data / "models_catalogue.json").read_bytes(), type=_Listed)
    priors = msgspec.json.decode((data / "model_priors.json").read_bytes(), type=_Priors)
    return tuple(_model(row, priors.models.get(row.id, _Prior())) for row in listed.models), listed.meta.as_of


class _Row(msgspec.Struct):
    id: str
    provider: str
    provider_model_id: str
    display_name: str | None
    context_window: int | None
    max_output_tokens: int | None
    modalities: tuple[Literal["text", "image", "tool"], ...]
    structured_output: bool
    reasoning: bool
    input_usd_per_1m: float | None
    output_usd_per_1m: float | None
    cached_input_usd_per_1m: float | None
    cache_write_usd_per_1m: float | None
    batch_input_usd_per_1m: float | None
    batch_output_usd_per_1m: float | None
    long_context_prices: dict[str, float] | None
    tiered_prices: list[dict[str, Any]] | None
    deprecation_date: str | None
    release_date: str | None


class _Meta(msgspec.Struct):
    as_of: str


class _Listed(msgspec.Struct):
    meta: _Meta
    models: list[_Row]


class _Prior(msgspec.Struct):
    quality: float | None = None
    ttft_s: float | None = None
    tokens_per_s: float | None = None


class _Priors(msgspec.Struct):
    models: dict[str, _Prior]


def _model(row: _Row, prior: _Prior) -> Model:
    return Model(
        id=row.id,
        provider=row.provider,
        context_window=row.context_window,
        modalities=row.modalities,
        pricing_per_1m=_pricing(row),
        availability=Availability(),
        deprecated_at=row.deprecation_date,
        provider_model_id=row.provider_model_id,
        display_name=row.display_name or row.provider_model_id,
        max_output_tokens=row.max_output_tokens,
        structured_output=row.structured_output,
        reasoning=row.reasoning,
        tokenizer="o200k_base" if row.id.startswith(_O200K) else None,
        released_at=row.release_date,
        quality=prior.quality,
        ttft_s=prior.ttft_s,
        tokens_per_s=prior.tokens_per_s,
        # A list price of nothing is a vendor's rate-limited offer, no price to route by.
        free_tier=row.input_usd_per_1m == 0 and row.output_usd_per_1m == 0,
        disabled=False,
    )


def _pricing(row: _Row) -> Pricing | None:
    if row.input_usd_per_1m is None or row.output_usd_per_1m is None:
        return None
    return Pricing(
        row.input_usd_per_1m,
        row.output_usd_per_1m,
        row.cached_input_usd_per_1m,
        row.cache_write_usd_per_1m,
        row.batch_input_usd_per_1m,
        row.batch_output_usd_per_1m,
        tiers=(*_long_context(row), *_bands(row)),
    )


def _long_context(row: _Row) -> list[PriceTier]:
    """Prices above one size, written as ``input_usd_above_272k``."""
    prices = row.long_context_prices or {}
    sizes = {name.rpartition("_")[2] for name in prices}
    return [
        PriceTier(
            _tokens(size),
            prices.get(f"input_usd_above_{size}", row.input_usd_per_1m or 0.0),
            prices.get(f"output_usd_above_{size}", row.output_usd_per_1m or 0.0),
            prices.get(f"cached_input_usd_above_{size}"),
        )
        for size in sorted(sizes)
    ]


def _bands(row: _Row) -> list[PriceTier]:
    """Prices by band of sizes; the first band is the list price. Per million tokens, whatever the source's key says."""
    return [
        PriceTier(
            int(band["range"][0]),
            band["input_cost_per_token"],
            band["output_cost_per_token"],
            band.get("cache_read_input_token_cost"),
        )
        for band in row.tiered_prices or []
        if band["range"][0] > 0
    ]


def _tokens(size: str) -> int:
    return int(size.removesuffix("k")) * 1000 if size.endswith("k") else int(size)
