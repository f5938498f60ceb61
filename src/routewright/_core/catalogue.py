"""Puts a catalogue together: what is bundled, what the user's file says, what providers declare. Later words win."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from hashlib import blake2b
from typing import Any

import msgspec

from routewright.errors import Problem, ValidationFailed
from routewright.wire import Availability, CatalogueSnapshot, Model, PriceTier, Pricing

from .problem import did_you_mean, listed
from .scan import quoted

_BORROWED = (
    "context_window",
    "modalities",
    "max_output_tokens",
    "structured_output",
    "reasoning",
    "tokenizer",
    "quality",
    "ttft_s",
    "tokens_per_s",
)
"""What ``like`` lends where a model says nothing itself. Never the price."""
_EMPTY = Model(id="")

MOST_USD = 1e6
"""No list price, and no speed, is as large: such a figure is a slip."""
MOST_TOKENS = 10**9


def overlay(base: Sequence[Model], added: Iterable[Mapping[str, Any]]) -> tuple[Model, ...]:
    """Put rows over a catalogue, each the fields it gives and its ``id``; new ids are appended.

    A known id keeps what the new row leaves open; a new one borrows it from the model it is ``like``.
    Raises ``ValidationFailed`` for an id without a provider and for a ``like`` that nothing answers to.
    """
    models = {model.id: model for model in base}
    for fields in added:
        known = models.get(fields["id"])
        model = _merged(known, fields) if known is not None else _new(fields, models)
        _check(model)
        models[model.id] = model
    return tuple(models.values())


def given_fields(model: Model) -> dict[str, Any]:
    """The fields in which a model says something besides the defaults."""
    fields = {name: getattr(model, name) for name in Model.__struct_fields__}
    return {name: value for name, value in fields.items() if name == "id" or value != getattr(_EMPTY, name)}


def unavailable(models: Sequence[Model], served: frozenset[str]) -> tuple[Model, ...]:
    """Mark the models that no configured provider serves."""
    return tuple(model if model.id in served else _unavailable(model) for model in models)


def snapshot(models: Sequence[Model], as_of: str) -> CatalogueSnapshot:
    """Freeze a catalogue under an id made from its content."""
    content = CatalogueSnapshot("", as_of, tuple(models))
    return msgspec.structs.replace(content, id="cat_" + content_id(content))


def content_id(content: object) -> str:
    """26 characters made from a value's content."""
    return blake2b(msgspec.json.encode(content, order="deterministic"), digest_size=13).hexdigest()


def resolve(names: Iterable[str], aliases: Mapping[str, str], known: Mapping[str, int], path: str) -> list[str]:
    """Turn names and aliases into model ids. Raises ``ValidationFailed`` naming the nearest known id."""
    ids = []
    for place, name in enumerate(names):
        model_id = aliases.get(name, name)
        if model_id not in known:
            hint = did_you_mean(name, [*known, *aliases]) or "Router.models() lists the known ids"
            raise ValidationFailed.of(Problem(f"{path}[{place}]", f"unknown model {quoted(name)}", hint))
        ids.append(model_id)
    return list(dict.fromkeys(ids))


def resolve_lists(
    models: Sequence[str] | None,
    chain: Sequence[str] | None,
    aliases: Mapping[str, str],
    known: Mapping[str, int],
    path: str,
) -> tuple[list[str] | None, list[str] | None]:
    """Resolve a whitelist and the chain beside it. ``path`` is where both stand.

    Raises ``ValidationFailed`` also for a chain that leaves the whitelist, naming both.
    """
    allowed = None if models is None else resolve(models, aliases, known, f"{path}models")
    asked = None if chain is None else resolve(chain, aliases, known, f"{path}fallback.models")
    if allowed is not None and asked is not None:
        inside = set(allowed)
        outside = [model for model in asked if model not in inside]
        if outside:
            lists = f"fallback.models: {listed(asked)}; models: {listed(allowed)}"
            hint = "add it to 'models', or take it out of 'fallback.models'"
            problem = f"{listed(outside)} is outside the whitelist ({lists})"
            raise ValidationFailed.of(Problem(f"{path}fallback.models", problem, hint))
    return allowed, asked


def _check(model: Model) -> None:
    """Refuse what nothing could be reckoned with. Raises ``ValidationFailed`` naming the model and the field."""
    prices = () if model.pricing_per_1m is None else _amounts(model.pricing_per_1m)
    wrong: list[tuple[str, object, str]] = [
        (f"pricing_per_1m.{name}", usd, "0 or more") for name, usd in prices if not 0 <= usd < MOST_USD
    ]
    for name in ("context_window", "max_output_tokens"):
        count = getattr(model, name)
        if count is not None and not 1 <= count <= MOST_TOKENS:
            wrong.append((name, count, f"1 to {MOST_TOKENS}"))
    for name in ("ttft_s", "tokens_per_s"):
        value = getattr(model, name)
        if value is not None and not 0 < value < MOST_USD:
            wrong.append((name, value, "above 0"))
    if model.quality is not None and not 0 <= model.quality <= 1:
        wrong.append(("quality", model.quality, "0 to 1"))
    if model.deprecated_at is not None and not _is_date(model.deprecated_at):
        wrong.append(("deprecated_at", model.deprecated_at, "a date, YYYY-MM-DD"))
    if wrong:
        problems = (
            Problem(f"models[{model.id!r}].{name}", f"is {value!r}", f"give {fit}") for name, value, fit in wrong
        )
        raise ValidationFailed.of(*problems)


def _amounts(pricing: Pricing) -> list[tuple[str, float]]:
    """All dollars of a price list that are given, with their names."""
    holders: list[tuple[str, Pricing | PriceTier]] = [("", pricing)]
    holders += [(f"tiers[{place}].", tier) for place, tier in enumerate(pricing.tiers)]
    return [
        (prefix + name, value)
        for prefix, holder in holders
        for name in holder.__struct_fields__
        if name.endswith("_usd") and (value := getattr(holder, name)) is not None
    ]


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text[:10])
    except ValueError:
        return False
    return True


def _merged(known: Model, fields: Mapping[str, Any]) -> Model:
    return msgspec.structs.replace(known, **fields)


def _new(fields: Mapping[str, Any], models: Mapping[str, Model]) -> Model:
    """Make a model that the catalogue does not know."""
    head, slash, tail = fields["id"].partition("/")
    if not (head and slash and tail):
        problem = Problem("models", f"id {fields['id']!r} names no provider", "write it as 'provider/name'")
        raise ValidationFailed.of(problem)
    names = {"provider": head, "provider_model_id": tail, "display_name": tail}
    return Model(**(names | _lent(fields, models) | dict(fields)))


def _lent(fields: Mapping[str, Any], models: Mapping[str, Model]) -> dict[str, Any]:
    """What the model that it is ``like`` lends a new one."""
    like = fields.get("like")
    if like is None:
        return {}
    if like not in models:
        hint = did_you_mean(like, models) or "name a model of the catalogue"
        raise ValidationFailed.of(Problem(f"models[{fields['id']!r}].like", f"unknown model {like!r}", hint))
    return {name: getattr(models[like], name) for name in _BORROWED}


def _unavailable(model: Model) -> Model:
    return msgspec.structs.replace(model, availability=Availability("unavailable", model.availability.regions))
