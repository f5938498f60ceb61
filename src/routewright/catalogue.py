"""The models a Router chooses from: 160 bundled ones, and what you put over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from functools import cache
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from routewright.errors import Problem, ValidationFailed
from routewright.wire import Availability, Bill, BillLine, Modality, Model, PriceTier, Pricing, Usage

from ._core.catalogue.models import NO_FILES, Deprecation, deprecations, given_fields, models_of, overlay
from ._core.catalogue.prices import (
    COST_PARTS,
    Price,
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
from ._core.routing.predict import Predictor

_O200K = ("openai/", "groq/openai/", "cerebras/gpt-oss")
"""Whose models count tokens with the o200k vocabulary."""


class Catalogue:
    """Models and aliases, never changed in place.

        catalogue = Catalogue.load("models.toml")
        router = Router(catalogue=catalogue)

    ``Catalogue()`` is the bundled one. ``load`` puts a TOML or JSON file over it (``docs/how-to/own-models.md``)."""

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
        """Read a file over the bundled catalogue. Raises ``ValidationFailed`` naming file and key."""
        from .config import read_catalogue
        from .document import read

        document = read(path)
        with document.naming():
            given = read_catalogue(document, known=[model.id for model in cls().models])
            return cls().overlaid(given.rows, aliases=given.aliases, as_of=given.as_of)

    def overlaid(
        self, rows: Iterable[Mapping[str, Any]], *, aliases: Mapping[str, str] | None = None, as_of: str | None = None
    ) -> Catalogue:
        """Put rows over this catalogue: each holds an ``id`` and the fields of ``Model`` that it gives. ``as_of``: the
        date of the facts, where that is another."""
        new = Catalogue(aliases=self.aliases | dict(aliases or {}), as_of=as_of or self._said_as_of)
        new._models = overlay(self.models, rows)
        return new

    def deprecations(
        self, within_days: int | None = None, *, today: str | date | None = None
    ) -> tuple[Deprecation, ...]:
        """The models that end within some days, those that have ended included, the soonest first.

        ``within_days`` None: all whose end is known. ``today`` None: the day in UTC. Raises ``ValidationFailed``."""
        if within_days is not None and (isinstance(within_days, bool) or not isinstance(within_days, int)):
            raise ValidationFailed.at(
                "within_days", f"must be a whole number, got {shown(within_days)}", "give it in days"
            )
        return deprecations(self.models, date.fromisoformat(_day(today, "today")), within_days)

    @property
    def models(self) -> tuple[Model, ...]:
        """All models, in the order in which they came."""
        return bundled()[0] if self._models is None else self._models

    @property
    def as_of(self) -> str:
        """Date of the facts, ``YYYY-MM-DD``."""
        return self._as_of or bundled()[1]

    def age_days(self, today: str) -> int | None:
        """How many days before ``today`` (``YYYY-MM-DD``) its facts were true; None where nobody said when."""
        said = self._said_as_of
        day = date.fromisoformat(_checked_day(today, "today"))
        return None if said is None else (day - date.fromisoformat(said)).days

    def bill(self, model: str, usage: Usage, *, on: str | date | None = None, batch: bool = False) -> Bill:
        """Say what one call costs, by the prices of a day: today's (UTC), if not said otherwise.

            Catalogue().bill("openai/gpt-4.1", Usage(input=1_000, output=200)).total_usd

        Raises ``ValidationFailed`` for an unknown model, one without such a price, and a usage that does not add up."""
        found, day = self._model(model), _day(on, "on")
        usage = checked_usage(usage)
        listed = pricing_on(found, day)
        prices = batch_prices_of(listed) if batch else prices_of(listed)
        if not prices:
            raise ValidationFailed.of(_unpriced(found, listed, day))
        price = price_at(prices, usage.input)
        above = None if price.above < 0 else price.above
        return Bill(found.id, day, batch, above, _bill_lines(price, usage), usage_nanos(prices, usage))

    @property
    def _said_as_of(self) -> str | None:
        """The date as it was said, here or in the package."""
        return self.as_of if self._models is None else self._as_of

    def _model(self, name: object) -> Model:
        models = {model.id: model for model in self.models}
        if not isinstance(name, str):
            raise ValidationFailed.at("model", f"must be an id or alias, got {shown(name)}", 'as "openai/gpt-4.1"')
        found = models.get(self.aliases.get(name, name))
        if found is None:
            hint = did_you_mean(name, [*models, *self.aliases]) or "'models' of the catalogue lists the known ids"
            raise ValidationFailed.at("model", f"unknown model {quoted(name)}", hint)
        return found


def _checked_day(text: object, path: str = "as_of") -> str:
    if not isinstance(text, str) or not is_day(text):
        raise ValidationFailed.at(path, f"must be a date, got {shown(text)}", "write 'YYYY-MM-DD'")
    return text


def _day(given: object, path: str) -> str:
    if given is None:
        return datetime.now(UTC).date().isoformat()
    return _checked_day(given.isoformat() if isinstance(given, date) else given, path)


def checked_usage(given: object) -> Usage:
    """A usage whose parts are no more than the whole. Raises ``ValidationFailed``."""
    usage = rebuilt(given, Usage, "usage")
    if not adds_up(usage):
        hint = "'input' includes 'cached' and 'written', 'output' includes 'reasoning', and none is negative"
        raise ValidationFailed.at("usage", "does not add up", hint)
    return usage


def _unpriced(model: Model, listed: Pricing | None, day: str) -> Problem:
    if listed is None:
        return Problem("model", f"no price of {quoted(model.id)} is known on {day}", "give it one in a catalogue file")
    problem = f"no batch price of {quoted(model.id)} is known on {day}"
    return Problem("batch", problem, "give it batch_input_usd and batch_output_usd, or leave 'batch' out")


def _bill_lines(price: Price, usage: Usage) -> tuple[BillLine, ...]:
    charged = zip(COST_PARTS, charges(price, usage), strict=True)
    return tuple(
        BillLine(what, tokens, picos / PICOS_PER_USD_1M, tokens * picos / (PICOS_PER_NANO * NANOS_PER_USD))
        for what, (tokens, picos) in charged
        if tokens
    )


@cache
def bundled() -> tuple[tuple[Model, ...], str]:
    """Read the package's own catalogue: its models, and the date of its facts."""
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


@cache
def built_in_predictor() -> Predictor:
    """The predictor that ships with the library."""
    with np.load(BytesIO(files("routewright.data").joinpath("predictor.npz").read_bytes())) as arrays:
        return Predictor({name: arrays[name] for name in arrays.files})


def _model(row: _Row, prior: _Prior, mended: Pricing | None) -> Model:
    return Model(
        id=row.id,
        provider=row.provider,
        context_window=row.context_window,
        modalities=(*row.modalities, *_attached(row)),
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


def _attached(row: _Row) -> Iterable[Modality]:
    """The kinds of parts it takes besides text and images."""
    if "audio" in row.input_modalities:
        yield "audio"
    if "pdf" in row.input_modalities and row.provider not in NO_FILES:
        yield "file"


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
    tiers += [  # by band of sizes, the first of which is the list price; per million tokens, whatever the key says
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
