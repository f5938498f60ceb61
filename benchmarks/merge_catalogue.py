"""Merges the sources of the bundled catalogue into ``src/routewright/data/models.json``.

    python -m benchmarks.merge_catalogue

The sources are in ``benchmarks/catalogue``: listed models, their priors, and whole prices in the place of wrong ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from routewright._core.catalogue.models import NO_FILES, fields_of
from routewright.wire import Modality, Model, PriceTier, Pricing

SOURCES = Path(__file__).parent / "catalogue"
MERGED = Path(__file__).parent.parent / "src" / "routewright" / "data" / "models.json"
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


def merged() -> bytes:
    """The bundled catalogue: one model a line, without fields that have their default."""
    listed = msgspec.json.decode((SOURCES / "models_catalogue.json").read_bytes(), type=_Listed)
    priors = msgspec.json.decode((SOURCES / "model_priors.json").read_bytes(), type=_Priors)
    mended = msgspec.json.decode((SOURCES / "price_corrections.json").read_bytes(), type=_Corrections).pricing_per_1m
    models = (_model(row, priors.models.get(row.id, _Prior()), mended.get(row.id)) for row in listed.models)
    lines = ",\n".join(msgspec.json.encode(fields_of(model)).decode() for model in models)
    return f'{{"as_of":"{listed.meta.as_of}","models":[\n{lines}\n]}}\n'.encode()


if __name__ == "__main__":
    MERGED.write_bytes(merged())
