"""The models of a catalogue, and the lookup of models by providers' names. Ambiguous names find nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from hashlib import blake2b
from math import log2
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from routewright._core.money import LEAST_USD_PER_1M, per_million
from routewright._core.request.rules import MODEL_ID, check_date, check_day, check_names, check_numbers, check_text
from routewright._core.routing.quality import DEFAULT_QUALITY
from routewright.errors import Problem, ValidationFailed
from routewright.wire import Availability, CatalogueSnapshot, Model, PriceTier, Pricing, ServicePrice
from routewright.wire.conversion import rebuild
from routewright.wire.json_scan import quoted
from routewright.wire.problems import Problems, did_you_mean, listed, shown

_BORROWED = (  # fields a model copies from the one it is ``like``, if they are not set; never the price
    "context_window modalities max_output_tokens structured_output unsupported reasoning tokenizer quality ttft_s "
    "tokens_per_s"
).split()
_DEFAULTS = {  # for fields that are not set
    "modalities": ("text",),
    "structured_output": False,
    "reasoning": False,
    "free_tier": False,
    "disabled": False,
}
NO_FILES = ("xai", "zai")  # providers whose chat completions take no documents, even for models that can read them
_EMPTY = Model(id="")
_IN_FILES = {"prices": "it is 'pricing_per_1m' here, a Pricing", "regions": "it is 'availability' here"}
"""Hints for fields of catalogue files that have another name here."""
_FIELDS = Model.__struct_fields__
_PACKING = frozenset("instruct it latest gguf mlx awq gptq".split())
"""Words in names for a model's packaging, or for chat tuning."""
_QUANTISED = re.compile(r"[-:_.](ud-)?(i?q\d\w*|fp\d+|bf16|f16|int\d+|\d+bit|mxfp4|nvfp4)$")

_PATTERN = re.compile(r".*[*?]|(provider|tag|capability):", re.DOTALL)
"""Words by which policies and keys select several models."""
ADD = "add a new one by models=[Model(id=...)] of its provider, or in a catalogue file"
PER_OCTAVE = 0.1  # distance of a doubled price; the distance between worst and best quality is 1
_MAIN = "input_usd", "output_usd"
_FREE = 0.001  # dollars per million tokens, assumed for a price of 0 to take its logarithm


def overlay(base: Sequence[Model], added: Iterable[Mapping[str, object]]) -> tuple[Model, ...]:
    """Merge rows into a catalogue. Each row has an ``id`` and some fields; new ids are appended. Missing fields keep
    their value in a known model, and are copied from the ``like`` model in a new one. Raises ``ValidationFailed`` for
    anything but a row, an id without a provider, an unknown ``like``, and an invalid field."""
    models = {model.id: model for model in base}
    for row in added:
        if not isinstance(row, Mapping):
            hint = "pass the id and some fields of Model"
            raise ValidationFailed.at("models", f"{shown(row)} is not a row of a catalogue", hint)
        model_id = _checked_id(row.get("id"))
        for key in row:
            if key not in _FIELDS:
                hint = _IN_FILES.get(key) or did_you_mean(key, _FIELDS) or f"known: {', '.join(_FIELDS)}"
                raise ValidationFailed.at(f"models[{quoted(model_id)}]", f"{shown(key)} is not a field", hint)
        if (old_model := models.get(model_id)) is None:
            provider, name = model_id.split("/", 1)
            names = {"provider": provider, "provider_model_id": name, "display_name": name}
            like = row.get("like")
            lent: dict[str, Any] = {}
            if like is not None:
                if not isinstance(like, str) or like not in models:
                    hint = did_you_mean(like, models) or "use the id of a model in the catalogue"
                    raise ValidationFailed.at(f"models[{quoted(model_id)}].like", f"unknown model {shown(like)}", hint)
                lent = {name: getattr(models[like], name) for name in _BORROWED}
            model = Model(**(names | lent | dict(row)))
        elif row.get("pricing_per_1m") is None:
            model = replace(old_model, **row)
        else:  # the user's own price replaces a free offer and announced price changes
            model = replace(old_model, **{"free_tier": False, "price_changes": None, **row})
        model = replace(model, **{name: value for name, value in _DEFAULTS.items() if getattr(model, name) is None})
        if model != old_model:
            models[model.id] = _checked(model)
    return tuple(models.values())


def models_of(value: object) -> tuple[Model, ...]:
    """Check a list of models. Raises ``ValidationFailed``."""
    if isinstance(value, str | Model) or not isinstance(value, Iterable):
        hint = "put it in a list" if value is not None else "leave it out, or pass [Model(id=...)]"
        raise ValidationFailed.at("models", f"{shown(value)} is not a list of Model", hint)
    models = tuple(value)
    for model in models:
        _checked_id(_checked_kind(model).id)
    return models


def fields_of(model: Model) -> dict[str, Any]:
    """The fields that are set in a model. Raises ``ValidationFailed`` for anything but a model."""
    _checked_kind(model)
    fields = {name: getattr(model, name) for name in _FIELDS}
    return {name: value for name, value in fields.items() if name == "id" or value != getattr(_EMPTY, name)}


def overlay_catalogue(listed_models: Sequence[Model], catalogue: Sequence[Model]) -> tuple[Model, ...]:
    """The models a server lists, overlaid with the catalogue's rows of the same ids. A model that the catalogue knows
    from other hosts gets the lowest quality it has there, but not its speed, which depends on the host."""
    rows = {model.id: model for model in catalogue}
    quality: dict[str, float] = {}
    for model in catalogue:
        if model.quality is not None:
            name = _plain_name(model.id)
            quality[name] = min(model.quality, quality.get(name, 1.0))
    models: list[Model] = []
    for model in listed_models:
        row_fields = fields_of(rows[model.id]) if model.id in rows else {}
        row_fields = {name: value for name, value in row_fields.items() if value != _DEFAULTS.get(name)}
        models.append(replace(model, **{"quality": quality.get(_plain_name(model.id)), **row_fields}))
    return tuple(models)


def _plain_name(model_id: str) -> str:
    """A model's name without host, publisher, punctuation and packaging words."""
    name = _QUANTISED.sub("", model_id.rpartition("/")[2].lower())
    return "".join(word for word in re.split(r"[^a-z0-9]+", name) if word not in _PACKING)


def mark_unavailable(models: Sequence[Model], served: frozenset[str]) -> tuple[Model, ...]:
    """The models, with those that no configured provider serves marked as unavailable."""
    return tuple(
        model
        if model.id in served
        else replace(model, availability=Availability("unavailable", model.availability.regions))
        for model in models
    )


def snapshot(models: Sequence[Model], as_of: str) -> CatalogueSnapshot:
    """Freeze a catalogue under an id derived from its content."""
    content = CatalogueSnapshot("", as_of, tuple(models))
    return replace(content, id="cat_" + content_id(content))


def content_id(content: object) -> str:
    """A digest of a value, 26 hex digits."""
    return blake2b(msgspec.json.encode(content, order="deterministic"), digest_size=13).hexdigest()


def check_aliases(aliases: Mapping[str, str], rows: Mapping[str, int]) -> None:
    """Raise ``ValidationFailed`` for an alias of an unknown model, or one that is a model's id."""
    for alias, target in aliases.items():
        path = f"aliases[{quoted(alias)}]"
        if alias in rows:
            raise ValidationFailed.at(path, "is the id of a model", "use another name")
        if target not in rows:
            hint = did_you_mean(target, rows) or "Router.models() lists the known ids"
            raise ValidationFailed.at(path, f"stands for the unknown model {quoted(target)}", hint)


def resolve(names: Iterable[str], aliases: Mapping[str, str], rows: Mapping[str, int], path: str) -> list[str]:
    """Turn names and aliases into model ids. Raises ``ValidationFailed`` with the closest known id."""
    ids = [resolve_one(name, aliases, rows, f"{path}[{place}]") for place, name in enumerate(names)]
    return list(dict.fromkeys(ids))


def is_pattern(word: str) -> bool:
    """True for a word that can select several models."""
    return _PATTERN.match(word) is not None


def resolve_one(name: str, aliases: Mapping[str, str], rows: Mapping[str, int], path: str) -> str:
    """Turn a name or alias into a model id. Raises ``ValidationFailed`` with the closest known id."""
    model_id = aliases.get(name, name)
    if model_id not in rows:
        if is_pattern(name):
            hint = "a request names ids or aliases; patterns are for policies and keys"
            raise ValidationFailed.at(path, f"{quoted(name)} is a pattern", hint)
        near = did_you_mean(name, [*rows, *aliases]) or "Router.models() lists the known ids;"
        raise ValidationFailed.at(path, f"unknown model {quoted(name)}", f"{near} {ADD}")
    return model_id


def resolve_within(
    names: Iterable[str],
    allowed: Sequence[str] | None,
    aliases: Mapping[str, str],
    rows: Mapping[str, int],
    path: str,
    called: str,
) -> list[str]:
    """Like ``resolve``, but all models must be in ``allowed``, if given. Raises ``ValidationFailed``."""
    ids = resolve(names, aliases, rows, path)
    inside = {*(ids if allowed is None else allowed)}
    outside = [model for model in ids if model not in inside]
    if outside:
        problem = f"{listed(outside)} of {called} {listed(ids)} is outside the whitelist {listed(allowed or ())}"
        first = "" if path == "prefer" else "; to say only which model is first, use 'prefer' in place of 'models'"
        raise ValidationFailed.at(path, problem, f"add it to 'models', or remove it from '{path}'{first}")
    return ids


def _checked(model: Model) -> Model:
    """Check a model's types and rules. Raises ``ValidationFailed`` with the field's path."""
    path = f"models[{quoted(model.id)}]"
    model = rebuild(model, Model, path)
    problems: Problems = []
    check_numbers(Model, f"{path}.", model, problems)
    if model.pricing_per_1m is not None:
        check_pricing(f"{path}.pricing_per_1m", model.pricing_per_1m, problems)
    last_day = ""
    for index, change in enumerate(model.price_changes or ()):
        at = f"{path}.price_changes[{index}]"
        check_day(f"{at}.starts", change.starts, problems)
        if change.starts <= last_day:
            problem = f"must come after {last_day}, got {quoted(change.starts)}"
            problems.append(Problem(f"{at}.starts", problem, "sort the changes by day, at most one per day"))
        last_day = change.starts
        check_pricing(f"{at}.pricing_per_1m", change.pricing_per_1m, problems)
    texts = {name: getattr(model, name) for name in ("provider", "provider_model_id", "display_name")}
    texts = {name: text for name, text in texts.items() if text}
    texts |= {f"availability.regions[{index}]": region for index, region in enumerate(model.availability.regions)}
    texts |= {f"tags[{index}]": tag for index, tag in enumerate(model.tags or ())}
    for name, text in texts.items():
        check_text(f"{path}.{name}", text, problems)
    if model.modalities is not None and "text" not in model.modalities:
        problem = f"must include 'text', got {listed(model.modalities) or 'none'}"
        problems.append(Problem(f"{path}.modalities", problem, "add 'text'"))
    if model.deprecated_at is not None:
        check_date(f"{path}.deprecated_at", model.deprecated_at, problems)
    if problems:
        raise ValidationFailed.of(*problems)
    return model


def check_pricing(path: str, pricing: Pricing, problems: Problems) -> None:
    """Append the problems of the prices at ``path``."""
    for place, part in _parts(pricing).items():
        check_numbers(type(part), f"{path}.{place}", part, problems)
    for place, usd in token_prices(pricing).items():
        problem = f"must be in dollars per million tokens: {usd:.12g} is below {LEAST_USD_PER_1M}"
        hint = f"write {per_million(usd):.12g} if that is the price of a token; set 'exact' if it is right"
        problems.append(Problem(f"{path}.{place}", problem, hint))


def _parts(pricing: Pricing) -> dict[str, Pricing | PriceTier | ServicePrice]:
    """The records with prices, by their places."""
    tiers = {f"tiers[{index}].": tier for index, tier in enumerate(pricing.tiers)}
    return {"": pricing, **tiers, **{f"service_tiers[{n}].": tier for n, tier in enumerate(pricing.service_tiers)}}


def token_prices(pricing: Pricing | None) -> dict[str, float]:
    """Input and output prices, by their places, that look as if they were per token; none if they are ``exact``."""
    parts = {} if pricing is None or pricing.exact else _parts(pricing)
    prices = {place + name: getattr(part, name) for place, part in parts.items() for name in _MAIN}
    return {place: usd for place, usd in prices.items() if 0 < usd < LEAST_USD_PER_1M}


def _checked_kind(model: object) -> Model:
    if not isinstance(model, Model):
        raise ValidationFailed.at("models", f"{shown(model)} is not a Model", "pass Model(id=...)")
    return model


def _checked_id(model_id: object) -> str:
    if not isinstance(model_id, str) or not MODEL_ID.fullmatch(model_id):
        hint = "write it as 'provider/name', without spaces"
        raise ValidationFailed.at("models", f"id {shown(model_id)} is not a provider and model", hint)
    check_names({f"models[{quoted(model_id)}].id": model_id})
    return model_id


class Deprecation(Struct, frozen=True):
    """A model that its vendor retires."""

    model: str
    ends: str
    """The first day without the model, ``YYYY-MM-DD``."""
    days_left: int
    """0 or less once it is retired."""
    replacement: str | None
    """The most similar model of the provider that stays longer and has the same abilities; None if there is none."""


def deprecations(models: Sequence[Model], today: date, within_days: int | None = None) -> tuple[Deprecation, ...]:
    """Models that are retired or will be within ``within_days`` of today (None: ever), soonest first."""
    results: list[Deprecation] = []
    for model in models:
        if model.deprecated_at is not None and not model.disabled:
            ends = model.deprecated_at[:10]
            days_left = (date.fromisoformat(ends) - today).days
            if within_days is None or days_left <= within_days:
                options = [
                    other
                    for other in models
                    if other.provider == model.provider
                    and (other.deprecated_at is None or other.deprecated_at[:10] > max(ends, today.isoformat()))
                    and not (other.disabled or other.free_tier)
                    and set(model.modalities or ()) <= set(other.modalities or ())
                    and (other.structured_output or not model.structured_output)
                ]
                nearest = min(options, key=lambda other: (_distance(model, other), other.id)).id if options else None
                results.append(Deprecation(model.id, ends, days_left, nearest))
    return tuple(sorted(results, key=lambda deprecation: (deprecation.ends, deprecation.model)))


def _distance(model: Model, other: Model) -> float:
    quality, octave = _figures(model)
    other_quality, other_octave = _figures(other)
    return abs(quality - other_quality) + PER_OCTAVE * abs(octave - other_octave)


def _figures(model: Model) -> tuple[float, float]:
    """Quality, and the log2 of the price of a mix of three input tokens to one output token."""
    quality = DEFAULT_QUALITY if model.quality is None else model.quality
    price = model.pricing_per_1m
    return quality, 0.0 if price is None else log2(max(_FREE, 0.75 * price.input_usd + 0.25 * price.output_usd))


_DATE = re.compile(r"[-@](?:\d{4}-\d{2}-\d{2}|\d{8}|latest)$")
"""The suffix of a dated version of a model, or of the newest."""
_PREFIX = "models/"  # Google's prefix of names
_SIGNS = re.compile(r"[^a-z0-9]+")


def model_called(name: str, models: Iterable[Model], provider: str) -> str | None:
    """The id of the provider's model with a name of its own; None if none or several match."""
    name = name.removeprefix(_PREFIX)
    plain = undated(name)
    bare = _bare(name)
    matchers: tuple[Callable[[Model], bool], ...] = (
        lambda model: name in (model.id, model.provider_model_id, f"{model.provider}/{model.provider_model_id}"),
        # the names differ only by a date that one of them lacks
        lambda model: plain == undated(model.provider_model_id) and plain in (name, model.provider_model_id),
        # the display name, ignoring case and punctuation
        lambda model: bare != "" and bare in (_bare(model.display_name), _bare(model.provider_model_id)),
    )
    rows = [row for row in models if row.provider == provider]
    for fits in matchers:
        ids = {row.id for row in rows if fits(row)}
        if ids:
            return ids.pop() if len(ids) == 1 else None
    return None


def undated(name: str) -> str:
    """A name without its date suffix."""
    return _DATE.sub("", name)


def _bare(name: str) -> str:
    return _SIGNS.sub("-", name.lower()).strip("-").removesuffix("-latest")
