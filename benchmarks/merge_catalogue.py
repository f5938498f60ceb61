"""Merges the sources of the bundled catalogue into the files ``models.json`` and ``price_sources.json`` of the package.

    python -m benchmarks.merge_catalogue

The sources are in ``benchmarks/catalogue``: listed models, their priors, whole prices in the place of wrong ones, and
what vendors have announced since, each with the page that says so.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from routewright._core.catalogue.models import NO_FILES, fields_of
from routewright.wire import Modality, Model, PriceChange, PriceTier, Pricing

SOURCES = Path(__file__).parent / "catalogue"
MERGED = Path(__file__).parent.parent / "src" / "routewright" / "data" / "models.json"
PRICE_SOURCES = MERGED.with_name("price_sources.json")
_O200K = ("openai/", "groq/openai/", "cerebras/gpt-oss")
"""Prefixes of models that use the o200k vocabulary."""


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
    source: str
    source_url: str | None


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


class Page(msgspec.Struct):
    """Where an announcement was read."""

    title: str
    url: str


class AddedModel(msgspec.Struct, forbid_unknown_fields=True):
    """A model that the lists do not have. Quality and speed are those of the model it is ``like``."""

    id: str
    like: str
    display_name: str
    context_window: int
    max_output_tokens: int
    modalities: tuple[Modality, ...]
    structured_output: bool
    reasoning: bool
    pricing_per_1m: Pricing
    sources: list[Page]
    """The first one has the prices."""
    released_at: str | None = None


class AnnouncedPrice(msgspec.Struct, forbid_unknown_fields=True):
    """Whole prices in the place of the listed ones; with ``starts``, from that day on."""

    model: str
    pricing_per_1m: Pricing
    source: Page
    starts: str | None = None


class AnnouncedEnd(msgspec.Struct, forbid_unknown_fields=True):
    model: str
    deprecated_at: str
    source: Page


class Announcements(msgspec.Struct, forbid_unknown_fields=True):
    meta: dict[str, str]
    models: list[AddedModel]
    prices: list[AnnouncedPrice]
    price_changes: list[AnnouncedPrice]
    ends: list[AnnouncedEnd]


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


def announcements() -> Announcements:
    """What vendors have announced since the lists."""
    return msgspec.json.decode((SOURCES / "announcements.json").read_bytes(), type=Announcements)


def _added(row: AddedModel, like: Model) -> Model:
    provider, name = row.id.split("/", 1)
    return Model(
        id=row.id,
        provider=provider,
        context_window=row.context_window,
        modalities=row.modalities,
        pricing_per_1m=row.pricing_per_1m,
        provider_model_id=name,
        display_name=row.display_name,
        max_output_tokens=row.max_output_tokens,
        structured_output=row.structured_output,
        reasoning=row.reasoning,
        tokenizer=like.tokenizer,
        released_at=row.released_at,
        quality=like.quality,
        ttft_s=like.ttft_s,
        tokens_per_s=like.tokens_per_s,
        free_tier=False,
        disabled=False,
    )


def _listed() -> _Listed:
    return msgspec.json.decode((SOURCES / "models_catalogue.json").read_bytes(), type=_Listed)


def merged() -> bytes:
    """The bundled catalogue: one model a line, without fields that have their default."""
    priors = msgspec.json.decode((SOURCES / "model_priors.json").read_bytes(), type=_Priors)
    mended = msgspec.json.decode((SOURCES / "price_corrections.json").read_bytes(), type=_Corrections).pricing_per_1m
    news = announcements()
    rows = _listed().models
    models = {row.id: _model(row, priors.models.get(row.id, _Prior()), mended.get(row.id)) for row in rows}
    for added in news.models:
        models[added.id] = _added(added, models[added.like])
    for price in news.prices:
        models[price.model] = replace(models[price.model], pricing_per_1m=price.pricing_per_1m)
    for price in sorted(news.price_changes, key=lambda price: price.starts or ""):
        model = models[price.model]
        changes = (*(model.price_changes or ()), PriceChange(price.starts or "", price.pricing_per_1m))
        models[price.model] = replace(model, price_changes=changes)
    for end in news.ends:
        models[end.model] = replace(models[end.model], deprecated_at=end.deprecated_at)
    lines = ",\n".join(msgspec.json.encode(fields_of(model)).decode() for model in models.values())
    return f'{{"as_of":"{news.meta["as_of"]}","models":[\n{lines}\n]}}\n'.encode()


def price_sources() -> bytes:
    """The pages that the bundled prices are from: one model a line, its price changes after its present price."""
    news = announcements()
    pages: dict[str, list[dict[str, str]]] = {}
    for row in _listed().models:
        page = {"title": f"price map of {row.source.replace('-', ' ', 1)}"}
        pages[row.id] = [page if row.source_url is None else page | {"url": row.source_url}]
    pages |= {added.id: [msgspec.to_builtins(added.sources[0])] for added in news.models}
    pages |= {price.model: [msgspec.to_builtins(price.source)] for price in news.prices}
    for price in sorted(news.price_changes, key=lambda price: price.starts or ""):
        pages[price.model].append(msgspec.to_builtins(price.source) | {"starts": price.starts})
    lines = ",\n".join(f"{json.dumps(model)}: {json.dumps(sources)}" for model, sources in pages.items())
    return f"{{\n{lines}\n}}\n".encode()


if __name__ == "__main__":
    MERGED.write_bytes(merged())
    PRICE_SOURCES.write_bytes(price_sources())
