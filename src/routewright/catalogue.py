"""``Catalogue``: the models a Router chooses from, 160 bundled ones and your own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import msgspec

from routewright.errors import ValidationFailed
from routewright.wire import Availability, Bill, BillLine, Modality, Model, PriceTier, Pricing, Usage

from ._core.catalogue.models import NO_FILES, Deprecation, deprecations, given_fields, models_of, overlay
from ._core.catalogue.prices import (
    COST_PARTS,
    adds_up,
    batch_prices_of,
    charges,
    price_at,
    prices_of,
    pricing_on,
    usage_nanos,
)
from ._core.money import NANOS_PER_USD, PICOS_PER_NANO, PICOS_PER_USD_1M
from ._core.request.json_scan import quoted
from ._core.request.problems import did_you_mean, shown
from ._core.request.read import rebuilt
from ._core.request.rules import check_names, is_day

_O200K = ("openai/", "groq/openai/", "cerebras/gpt-oss")
"""Prefixes of models that use the o200k vocabulary."""


class Catalogue:
    """Models and aliases, never changed in place.

        catalogue = Catalogue.load("models.toml")
        router = Router(catalogue=catalogue)

    ``Catalogue()`` is the bundled one. ``load`` overlays it with a TOML or JSON file
    (``docs/how-to/own-models.md``)."""

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
        """Overlay the bundled catalogue with a file. Raises ``ValidationFailed`` naming file and key."""
        from .config import read_catalogue
        from .input_file import read

        document = read(path)
        with document.naming():
            rows, aliases, as_of = read_catalogue(document, known=[model.id for model in cls().models])
            return cls().overlaid(rows, aliases=aliases, as_of=as_of)

    def overlaid(
        self, rows: Iterable[Mapping[str, Any]], *, aliases: Mapping[str, str] | None = None, as_of: str | None = None
    ) -> Catalogue:
        """Overlay this catalogue with rows, each an ``id`` and some fields of ``Model``. ``as_of``: the date of the
        facts, if it differs."""
        new = Catalogue(aliases=self.aliases | dict(aliases or {}), as_of=as_of or self._said_as_of)
        new._models = overlay(self.models, rows)
        return new

    def deprecations(
        self, within_days: int | None = None, *, today: str | date | None = None
    ) -> tuple[Deprecation, ...]:
        """The models that end within some days, including those that have ended, the soonest first.

        ``within_days`` None: all with a known end. ``today`` None: the day in UTC. Raises ``ValidationFailed``."""
        if within_days is not None and (isinstance(within_days, bool) or not isinstance(within_days, int)):
            raise ValidationFailed.at(
                "within_days", f"must be a whole number, got {shown(within_days)}", "give it in days"
            )
        return deprecations(self.models, date.fromisoformat(_day(today, "today")), within_days)

    @property
    def models(self) -> tuple[Model, ...]:
        """All models, in order of definition."""
        return bundled()[0] if self._models is None else self._models

    @property
    def as_of(self) -> str:
        """Date of the facts, ``YYYY-MM-DD``."""
        return self._as_of or bundled()[1]

    def age_days(self, today: str) -> int | None:
        """Days from the date of the facts to ``today`` (``YYYY-MM-DD``); None if that date is unknown."""
        said = self._said_as_of
        day = date.fromisoformat(_checked_day(today, "today"))
        return None if said is None else (day - date.fromisoformat(said)).days

    def bill(self, model: str, usage: Usage, *, on: str | date | None = None, batch: bool = False) -> Bill:
        """Price one call by the prices of a day, by default today in UTC.

            Catalogue().bill("openai/gpt-4.1", Usage(input=1_000, output=200)).total_usd

        Raises ``ValidationFailed`` for an unknown model, a missing price, and a usage that does not add up."""
        given, models, day = model, {each.id: each for each in self.models}, _day(on, "on")
        if not isinstance(given, str):
            raise ValidationFailed.at("model", f"must be an id or alias, got {shown(given)}", 'as "openai/gpt-4.1"')
        found = models.get(self.aliases.get(given, given))
        if found is None:
            hint = did_you_mean(given, [*models, *self.aliases]) or "'models' of the catalogue lists the known ids"
            raise ValidationFailed.at("model", f"unknown model {quoted(given)}", hint)
        usage = checked_usage(usage)
        listed = pricing_on(found, day)
        prices = batch_prices_of(listed) if batch else prices_of(listed)
        if listed is None:
            problem = f"no price of {quoted(found.id)} is known on {day}"
            raise ValidationFailed.at("model", problem, "give it one in a catalogue file")
        if not prices:
            hint = "give it batch_input_usd and batch_output_usd, or leave 'batch' out"
            raise ValidationFailed.at("batch", f"no batch price of {quoted(found.id)} is known on {day}", hint)
        price = price_at(prices, usage.input)
        lines = tuple(
            BillLine(what, tokens, picos / PICOS_PER_USD_1M, tokens * picos / (PICOS_PER_NANO * NANOS_PER_USD))
            for what, (tokens, picos) in zip(COST_PARTS, charges(price, usage), strict=True)
            if tokens
        )
        above = None if price.above < 0 else price.above
        return Bill(found.id, day, batch, above, lines, usage_nanos(prices, usage))

    @property
    def _said_as_of(self) -> str | None:
        """The given date, or the bundled catalogue's; None for own models without a date."""
        return self.as_of if self._models is None else self._as_of


def _checked_day(text: object, path: str = "as_of") -> str:
    if not isinstance(text, str) or not is_day(text):
        raise ValidationFailed.at(path, f"must be a date, got {shown(text)}", "write 'YYYY-MM-DD'")
    return text


def _day(given: object, path: str) -> str:
    if given is None:
        return datetime.now(UTC).date().isoformat()
    return _checked_day(given.isoformat() if isinstance(given, date) else given, path)


def checked_usage(given: object) -> Usage:
    """A usage whose parts do not exceed the whole. Raises ``ValidationFailed``."""
    usage = rebuilt(given, Usage, "usage")
    if not adds_up(usage):
        hint = "'input' includes 'cached' and 'written', 'output' includes 'reasoning', and none is negative"
        raise ValidationFailed.at("usage", "does not add up", hint)
    return usage


@cache
def bundled() -> tuple[tuple[Model, ...], str]:
    """The bundled models, and the date of their facts."""
    data = files("routewright") / "data"
    listed = msgspec.json.decode((data / "models_catalogue.json").read_bytes(), type=_Listed)
    priors = msgspec.json.decode((data / "model_priors.json").read_bytes(), type=_Priors)
    mended = msgspec.json.decode((data / "price_corrections.json").read_bytes(), type=_Corrections).pricing_per_1m
    models = (_model(row, priors.models.get(row.id, _Prior()), mended.get(row.id)) for row in listed.models)
    return tuple(models), listed.meta.as_of


class _Row(msgspec.Struct):
    id: str
    provider: str
    provider_model_id: str
    display_name: str | None
    context_window: int | None
    max_output_tokens: int | None
    modalities: tuple[Literal["text", "image", "tool"], ...]
    input_modalities: tuple[str, ...]
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


class _Corrections(msgspec.Struct):
    pricing_per_1m: dict[str, Pricing]


def _model(row: _Row, prior: _Prior, mended: Pricing | None) -> Model:
    modalities: list[Modality] = [*row.modalities]
    if "audio" in row.input_modalities:
        modalities.append("audio")
    if "pdf" in row.input_modalities and row.provider not in NO_FILES:
        modalities.append("file")
    return Model(
        id=row.id,
        provider=row.provider,
        context_window=row.context_window,
        modalities=tuple(modalities),
        pricing_per_1m=mended or _pricing(row),
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
    longer = row.long_context_prices or {}  # above one size, as input_usd_above_272k
    tiers = [
        PriceTier(
            int(size.removesuffix("k")) * (1000 if size.endswith("k") else 1),
            longer.get(f"input_usd_above_{size}", row.input_usd_per_1m),
            longer.get(f"output_usd_above_{size}", row.output_usd_per_1m),
            longer.get(f"cached_input_usd_above_{size}"),
            longer.get(f"cache_write_usd_above_{size}"),
        )
        for size in sorted({name.rpartition("_")[2] for name in longer})
    ]
    tiers += [  # bands of sizes; the first is the list price; per million tokens, despite the keys' names
        PriceTier(
            int(band["range"][0]),
            band["input_cost_per_token"],
            band["output_cost_per_token"],
            band.get("cache_read_input_token_cost"),
            band.get("cache_creation_input_token_cost"),
        )
        for band in row.tiered_prices or []
        if band["range"][0] > 0
    ]
    return Pricing(
        row.input_usd_per_1m,
        row.output_usd_per_1m,
        row.cached_input_usd_per_1m,
        row.cache_write_usd_per_1m,
        row.batch_input_usd_per_1m,
        row.batch_output_usd_per_1m,
        tiers=tuple(tiers),
    )
