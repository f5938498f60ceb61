"""What a price list would change in a catalogue, and the catalogue file with those changes.

Whatever a list does not say stays. Rows that contradict each other, and prices of zero for what costs money, are
reported and not taken."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from msgspec import to_builtins
from msgspec.structs import asdict, replace

from routewright._core.catalogue.prices import pricing_on
from routewright._core.request.json_scan import quoted
from routewright.errors import Problem
from routewright.wire import Model, PriceChange, PriceTier, Pricing

from .price_lists import Listed, PriceList, provider_of

PRICES = {
    "input_usd": "input",
    "output_usd": "output",
    "cached_input_usd": "cached input",
    "cache_write_usd": "cache write",
    "batch_input_usd": "batch input",
    "batch_output_usd": "batch output",
    "reasoning_usd": "reasoning",
    "audio_input_usd": "audio input",
    "cache_write_hour_usd": "cache write for an hour",
}
"""The prices of a model, and what people call them."""
ENDS = "ends"
"""The name of a change of ``deprecated_at``."""
_ENTRY = ("context_window", "max_output_tokens", "structured_output", "reasoning")
"""Fields that the entry of a new model holds."""
_TIER_PRICES = [name for name in PRICES if name in PriceTier.__struct_fields__]
P = TypeVar("P", Pricing, PriceTier)
_BARE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


class Change(NamedTuple):
    """A figure of a model that differs in the list: dollars per million tokens, or the day on which the model ends."""

    model: str
    what: str
    before: float | str | None
    after: float | str | None

    @property
    def factor(self) -> float:
        """The larger price divided by the smaller; 1 if that is undefined."""
        if not isinstance(self.before, float) or not isinstance(self.after, float):
            return 1.0
        low, high = sorted((self.before, self.after))
        return high / low if low > 0 else 1.0


class Contradiction(NamedTuple):
    """Rows for one model with different prices."""

    model: str
    places: tuple[str, ...]
    sources: tuple[str, ...]
    what: tuple[str, ...]
    """The prices that differ."""


class Update(NamedTuple):
    """A model before and after the import."""

    before: Model | None
    """None: it is new."""
    after: Model


class Proposal(NamedTuple):
    """What a list would change."""

    changes: tuple[Change, ...]
    updates: tuple[Update, ...]
    """The models that would be changed or added."""
    kept: Mapping[str, tuple[str, ...]]
    """By model: prices that stay beside a new input or output price, because the list does not have them."""
    same: int
    """Models that are the same in the list and the catalogue."""
    contradictions: tuple[Contradiction, ...]
    refused: tuple[Problem, ...]
    unknown: int
    """Rows of chat models that are neither in the catalogue nor asked for."""

    @property
    def added(self) -> tuple[str, ...]:
        """Ids of the new models."""
        return tuple(update.after.id for update in self.updates if update.before is None)


class Wish(NamedTuple):
    """What to take from a list."""

    day: str
    """Today, ``YYYY-MM-DD``: its prices are compared."""
    add: tuple[str, ...] = ()
    """Globs over ids of new models."""
    providers: frozenset[str] = frozenset()
    """Provider names, the catalogue's or the list's own; empty for all."""
    starts: str | None = None
    """The day from which the list's prices hold; None: now, replacing today's."""


def propose(catalogue: Sequence[Model], listed: PriceList, wish: Wish) -> Proposal:
    """Compare a catalogue with a list."""
    known = {model.id: model for model in catalogue}
    by_id: dict[str, list[Listed]] = {}
    unknown = 0
    for row in listed.rows:
        if wish.providers and wish.providers.isdisjoint((row.source, provider_of(row.source))):
            continue
        if row.model.id in known or any(fnmatchcase(row.model.id, pattern) for pattern in wish.add):
            by_id.setdefault(row.model.id, []).append(row)
        else:
            unknown += 1
    day = wish.starts or wish.day
    changes: list[Change] = []
    updates: list[Update] = []
    kept: dict[str, tuple[str, ...]] = {}
    contradictions: list[Contradiction] = []
    refused: list[Problem] = []
    for model_id, rows in by_id.items():
        if apart := _apart(rows):
            places, sources = tuple(row.place for row in rows), tuple(row.source for row in rows)
            contradictions.append(Contradiction(model_id, places, sources, apart))
            continue
        # what all rows of a model say
        first, *others = [asdict(row.model) for row in rows]
        common = {name: value for name, value in first.items() if all(each[name] == value for each in others)}
        said, ours = rows[0]._replace(model=Model(**common)), known.get(model_id)
        if ours is None:
            updates.append(Update(None, said.model))
        elif problem := _free(said, ours, wish.day):
            refused.append(problem)
        else:
            after = _updated(ours, said, wish)
            if found := differences(ours, after, day):
                changes += found
                kept |= _kept(found, said, facts(after, day))
                updates.append(Update(ours, after))
    same = len(by_id) - len(updates) - len(contradictions) - len(refused)
    return Proposal(tuple(changes), tuple(updates), kept, same, tuple(contradictions), tuple(refused), unknown)


def differences(before: Model, after: Model, day: str) -> list[Change]:
    """The prices and dates in which two states of a model differ on a day."""
    first, second = facts(before, day), facts(after, day)
    return [
        Change(after.id, name, first.get(name), second.get(name))
        for name in {**second, **first}
        if first.get(name) != second.get(name)
    ]


def facts(model: Model, day: str) -> dict[str, float | str]:
    """The prices of a model on a day, and when it ends."""
    found: dict[str, float | str] = {**named_prices(pricing_on(model, day))}
    if model.deprecated_at is not None:
        found[ENDS] = model.deprecated_at[:10]
    return found


def named_prices(pricing: Pricing | None) -> dict[str, float]:
    """Every price by what people call it: ``input``, ``cached input above 200k``."""
    found: dict[str, float] = {}
    for prices in () if pricing is None else (pricing, *pricing.tiers):
        above = prices.above_tokens if isinstance(prices, PriceTier) else 0
        size = f"{above // 1000}k" if above % 1000 == 0 else str(above)
        for field, name in PRICES.items():
            value = getattr(prices, field, None)
            if value is not None:
                found[f"{name} above {size}" if above else name] = value
    return found


def _apart(rows: Sequence[Listed]) -> tuple[str, ...]:
    """The prices in which rows contradict each other."""
    prices = [named_prices(row.model.pricing_per_1m) for row in rows]
    names = dict.fromkeys(name for each in prices for name in each)
    return tuple(name for name in names if len({each.get(name) for each in prices}) > 1)


def _free(said: Listed, ours: Model, day: str) -> Problem | None:
    """Refuse a price of zero for a model that costs money: lists write it where they know none."""
    now, then = pricing_on(ours, day), said.model.pricing_per_1m
    if now is None or then is None or then.input_usd or then.output_usd or not (now.input_usd or now.output_usd):
        return None
    hint = f"if it is free, write so into your catalogue file under prices[{quoted(ours.id)}]"
    return Problem(said.place, f"has a price of nothing for {ours.id}, so it is not taken", hint)


def _kept(found: Sequence[Change], said: Listed, prices: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Prices that the list does not have although it changes those of input or output."""
    if not any(change.what in ("input", "output") for change in found):
        return {}
    told = {*named_prices(said.model.pricing_per_1m), *(change.what for change in found), ENDS}
    left = tuple(name for name in prices if name not in told)
    return {said.model.id: left} if left else {}


def _updated(ours: Model, said: Listed, wish: Wish) -> Model:
    """Our model overlaid with what the list says; all else stays."""
    after = replace(ours, deprecated_at=said.model.deprecated_at or ours.deprecated_at)
    now, new = pricing_on(ours, wish.starts or wish.day), said.model.pricing_per_1m
    price = new or now
    if now is not None and new is not None:
        tiers, old = new.tiers, {tier.above_tokens: tier for tier in now.tiers}
        if said.assumed_threshold and len(tiers) == len(now.tiers) == 1:
            theirs, known = tiers[0], now.tiers[0]
            if (theirs.input_usd, theirs.output_usd) == (known.input_usd, known.output_usd):
                tiers = (replace(theirs, above_tokens=known.above_tokens),)
        tiers = tuple(_overlaid(old.get(tier.above_tokens, tier), tier, _TIER_PRICES) for tier in tiers)
        price = replace(_overlaid(now, new, PRICES), tiers=tiers or now.tiers)
    if price is None or price == now:
        return after
    changes = ours.price_changes or ()
    if wish.starts is None:
        ahead = tuple(change for change in changes if change.starts > wish.day)
        return replace(after, pricing_per_1m=price, price_changes=ahead or None)
    kept = [change for change in changes if change.starts != wish.starts]
    dated = sorted([*kept, PriceChange(wish.starts, price)], key=lambda change: change.starts)
    return replace(after, price_changes=tuple(dated))


def _overlaid(old: P, new: P, names: Iterable[str]) -> P:
    """The old prices with those that the new ones have."""
    return replace(old, **{name: value for name in names if (value := getattr(new, name)) is not None})


def with_proposal(content: Mapping[str, Any], proposal: Proposal, as_of: str | None) -> dict[str, Any]:
    """The content of a catalogue file with a proposal applied. Everything else in the file stays.

    ``as_of``: the day of the facts, ``YYYY-MM-DD``; None: the file's own."""
    models = [dict(entry) for entry in content.get("models", ())]
    entries = {entry["id"]: entry for entry in models}
    prices = dict(content.get("prices", {}))
    for before, after in proposal.updates:
        entry, price = entries.get(after.id) or {"id": after.id}, after.pricing_per_1m
        if before is None:
            entry |= {name: value for name in _ENTRY if (value := getattr(after, name))}
            entry["modalities"] = list(after.modalities or ("text",))
            if price is not None:
                entry["prices"] = to_builtins(price)
        elif price is not None and price != before.pricing_per_1m:  # where the file has them already
            if "prices" in entry and after.id not in prices:
                entry["prices"] = to_builtins(price)
            else:
                prices[after.id] = to_builtins(price)
        if after.deprecated_at != (None if before is None else before.deprecated_at):
            entry["deprecated_at"] = after.deprecated_at
        if before is not None and after.price_changes != before.price_changes:
            entry["price_changes"] = [
                {"starts": date.fromisoformat(each.starts), **to_builtins(each.pricing_per_1m)}
                for each in after.price_changes or ()
            ]
        if len(entry) > 1 and after.id not in entries:
            models.append(entry)
    dated = {} if as_of is None else {"as_of": date.fromisoformat(as_of)}
    return {**content, **dated, "models": models, "prices": prices}


def overlay_text(content: Mapping[str, Any]) -> str:
    """A catalogue file as TOML, always in the same layout."""
    tables = {key: value for key, value in content.items() if key in ("models", "prices", "aliases")}
    lines = _pairs({key: value for key, value in content.items() if key not in tables})
    for entry in tables.get("models", ()):
        lines += ["", "[[models]]", *_pairs(entry)]
    for model, prices in tables.get("prices", {}).items():
        lines += ["", f"[prices.{_key(model)}]", *_pairs(prices)]
    if tables.get("aliases"):
        lines += ["", "[aliases]", *_pairs(tables["aliases"])]
    return "\n".join(lines).lstrip("\n") + "\n"


def is_ours(path: Path, content: Mapping[str, Any]) -> bool:
    """True if the file is as ``overlay_text`` writes it, so that writing it again loses nothing."""
    return path.read_text("utf-8") == overlay_text(content)


def _pairs(table: Mapping[str, Any]) -> list[str]:
    return [f"{_key(key)} = {_toml(value)}" for key, value in table.items() if value is not None]


def _key(key: str) -> str:
    return key if key and _BARE.issuperset(key) else _toml(key)


def _toml(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case date():
            return value.isoformat()
        case list() | tuple():
            items = [_toml(each) for each in value]
            if any(isinstance(each, dict) for each in value):  # tables stand below each other
                return "[\n" + "".join(f"    {item},\n" for item in items) + "]"
            return f"[{', '.join(items)}]"
        case dict():
            return f"{{ {', '.join(_pairs(value))} }}"
        case _:
            # JSON's escapes are TOML's, except for the one control character that JSON leaves as it is
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
