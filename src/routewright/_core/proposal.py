"""What would a price list change in a catalogue? The difference of the two as values; nothing is written here.

A list's silence changes nothing. Rows that contradict each other, and prices of nothing where something is charged, are
told and not taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from msgspec.structs import asdict, replace

from routewright.errors import Problem
from routewright.wire import Model, PriceChange, PriceTier, Pricing

from .catalogue.prices import pricing_on
from .price_list import Listed, PriceList, provider_of
from .request.json_scan import quoted

PRICES = {
    "input_usd": "input",
    "output_usd": "output",
    "cached_input_usd": "cached input",
    "cache_write_usd": "cache write",
    "batch_input_usd": "batch input",
    "batch_output_usd": "batch output",
    "reasoning_usd": "reasoning",
}
"""The prices of a model, and what people call them."""
ENDS = "ends"
"""What a change of ``deprecated_at`` is called."""


class Change(NamedTuple):
    """One figure of a model that the list has otherwise: dollars per million tokens, or the day on which it ends."""

    model: str
    what: str
    before: float | str | None
    after: float | str | None

    @property
    def factor(self) -> float:
        """How many times as much the larger price is; 1 where it cannot be said."""
        if not isinstance(self.before, float) or not isinstance(self.after, float):
            return 1.0
        low, high = sorted((self.before, self.after))
        return high / low if low > 0 else 1.0


class Contradiction(NamedTuple):
    """Rows for one model that have different prices."""

    model: str
    places: tuple[str, ...]
    sources: tuple[str, ...]
    what: tuple[str, ...]
    """The prices that differ."""


class Update(NamedTuple):
    """A model as it is, and as it would be."""

    before: Model | None
    """None: it is new."""
    after: Model


class Proposal(NamedTuple):
    """What a list would change."""

    changes: tuple[Change, ...]
    updates: tuple[Update, ...]
    """The models that would be changed or added."""
    kept: Mapping[str, tuple[str, ...]]
    """Prices that stay beside a new price of input or output, by model: the list does not say them."""
    same: int
    """How many models the list has as the catalogue has them."""
    contradictions: tuple[Contradiction, ...]
    refused: tuple[Problem, ...]
    unknown: int
    """Rows of chat models that are neither in the catalogue nor asked for."""

    @property
    def added(self) -> tuple[str, ...]:
        """Ids of the new models."""
        return tuple(update.after.id for update in self.updates if update.before is None)


class Wish(NamedTuple):
    """What of a list is wanted."""

    day: str
    """``YYYY-MM-DD``: today, whose prices are compared."""
    add: tuple[str, ...] = ()
    """Globs over ids of new models."""
    providers: frozenset[str] = frozenset()
    """Names of providers, the catalogue's or the list's own; empty for all."""
    starts: str | None = None
    """The day from which the list's prices hold; None: now, in the place of those that are there."""


def propose(catalogue: Sequence[Model], listed: PriceList, wish: Wish) -> Proposal:
    """Compare a catalogue with a list."""
    known = {model.id: model for model in catalogue}
    by_id, unknown = _wanted(listed.rows, known, wish)
    changes: list[Change] = []
    updates: list[Update] = []
    kept: dict[str, tuple[str, ...]] = {}
    contradictions: list[Contradiction] = []
    refused: list[Problem] = []
    for model_id, rows in by_id.items():
        if apart := _contradiction(model_id, rows):
            contradictions.append(apart)
            continue
        said, ours = _agreed(rows), known.get(model_id)
        if ours is None:
            updates.append(Update(None, said.model))
            continue
        if problem := _free(said, ours, wish):
            refused.append(problem)
            continue
        after = _updated(ours, said, wish)
        if found := differences(ours, after, wish.starts or wish.day):
            changes += found
            kept |= _kept(found, said, facts(after, wish.starts or wish.day))
            updates.append(Update(ours, after))
    same = len(by_id) - len(updates) - len(contradictions) - len(refused)
    return Proposal(tuple(changes), tuple(updates), kept, same, tuple(contradictions), tuple(refused), unknown)


def differences(before: Model, after: Model, day: str) -> list[Change]:
    """In which prices and dates two states of a model differ on a day."""
    first, second = facts(before, day), facts(after, day)
    names = [*second, *(name for name in first if name not in second)]
    return [Change(after.id, name, first.get(name), second.get(name))
            for name in names if first.get(name) != second.get(name)]  # fmt: skip


def facts(model: Model, day: str) -> dict[str, float | str]:
    """What a model costs on a day, and when it ends."""
    found: dict[str, float | str] = {**named_prices(pricing_on(model, day))}
    if model.deprecated_at is not None:
        found[ENDS] = model.deprecated_at[:10]
    return found


def named_prices(pricing: Pricing | None) -> dict[str, float]:
    """Every price by what people call it: ``input``, ``cached input above 200k``."""
    if pricing is None:
        return {}
    found = _named(pricing, "")
    for tier in pricing.tiers:
        found |= _named(tier, f" above {_size(tier.above_tokens)}")
    return found


def _wanted(rows: Iterable[Listed], known: Mapping[str, Model], wish: Wish) -> tuple[dict[str, list[Listed]], int]:
    """The rows that are asked for by the id of their model, and how many others there are."""
    wanted: dict[str, list[Listed]] = {}
    unknown = 0
    for row in rows:
        model_id = row.model.id
        if wish.providers and wish.providers.isdisjoint((row.source, provider_of(row.source))):
            continue
        if model_id in known or any(fnmatchcase(model_id, pattern) for pattern in wish.add):
            wanted.setdefault(model_id, []).append(row)
        else:
            unknown += 1
    return wanted, unknown


def _contradiction(model_id: str, rows: Sequence[Listed]) -> Contradiction | None:
    prices = [named_prices(row.model.pricing_per_1m) for row in rows]
    names = dict.fromkeys(name for each in prices for name in each)
    apart = tuple(name for name in names if len({each.get(name) for each in prices}) > 1)
    if not apart:
        return None
    return Contradiction(model_id, tuple(row.place for row in rows), tuple(row.source for row in rows), apart)


def _agreed(rows: Sequence[Listed]) -> Listed:
    """What rows of one price say in common."""
    first = rows[0]
    said = [asdict(row.model) for row in rows]
    common = {name: value for name, value in said[0].items() if all(each[name] == value for each in said)}
    return first._replace(model=Model(**common))


def _free(said: Listed, ours: Model, wish: Wish) -> Problem | None:
    """Refuse a price of nothing for what costs something: lists write it where they know none."""
    now, then = pricing_on(ours, wish.day), said.model.pricing_per_1m
    if now is None or then is None or then.input_usd or then.output_usd or not (now.input_usd or now.output_usd):
        return None
    hint = f"if it is free, write so into your catalogue file under prices[{quoted(ours.id)}]"
    return Problem(said.place, f"has a price of nothing for {ours.id}, so it is not taken", hint)


def _kept(found: Sequence[Change], said: Listed, prices: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Prices that nobody has said to go with the new ones of input or output."""
    if not any(change.what in ("input", "output") for change in found):
        return {}
    told = {*named_prices(said.model.pricing_per_1m), *(change.what for change in found), ENDS}
    left = tuple(name for name in prices if name not in told)
    return {said.model.id: left} if left else {}


def _updated(ours: Model, said: Listed, wish: Wish) -> Model:
    """The model with the list's prices, from a day on or in the place of today's."""
    after = replace(ours, deprecated_at=said.model.deprecated_at or ours.deprecated_at)
    day = wish.starts or wish.day
    now = pricing_on(ours, day)
    price = merged(now, said)
    if price is None or price == now:
        return after
    changes = ours.price_changes or ()
    if wish.starts is not None:
        kept = [change for change in changes if change.starts != wish.starts]
        dated = sorted([*kept, PriceChange(wish.starts, price)], key=lambda change: change.starts)
        return replace(after, price_changes=tuple(dated))
    ahead = tuple(change for change in changes if change.starts > wish.day)
    return replace(after, pricing_per_1m=price, price_changes=ahead or None)


def merged(ours: Pricing | None, said: Listed) -> Pricing | None:
    """Our prices with what the list says over them; what it leaves open stays as it is."""
    new = said.model.pricing_per_1m
    if ours is None or new is None:
        return new or ours
    given = {name: value for name in PRICES if (value := getattr(new, name)) is not None}
    return replace(ours, **given, tiers=_tiers(ours, new, said.assumed_threshold) or ours.tiers)


def _tiers(ours: Pricing, new: Pricing, assumed: bool) -> tuple[PriceTier, ...]:
    """The list's tiers, with what they leave open from ours of the same size."""
    tiers = new.tiers
    if assumed and len(tiers) == len(ours.tiers) == 1 and _rates(tiers[0]) == _rates(ours.tiers[0]):
        tiers = (replace(tiers[0], above_tokens=ours.tiers[0].above_tokens),)
    old = {tier.above_tokens: tier for tier in ours.tiers}
    return tuple(_over(old.get(tier.above_tokens), tier) for tier in tiers)


def _rates(tier: PriceTier) -> tuple[float, float]:
    return tier.input_usd, tier.output_usd


def _over(old: PriceTier | None, new: PriceTier) -> PriceTier:
    if old is None:
        return new
    open_ = [name for name in ("cached_input_usd", "cache_write_usd") if getattr(new, name) is None]
    return replace(new, **{name: getattr(old, name) for name in open_})


def _named(prices: Pricing | PriceTier, suffix: str) -> dict[str, float]:
    values: dict[str, Any] = {name: getattr(prices, field, None) for field, name in PRICES.items()}
    return {f"{name}{suffix}": value for name, value in values.items() if value is not None}


def _size(tokens: int) -> str:
    return f"{tokens // 1000}k" if tokens % 1000 == 0 else str(tokens)
