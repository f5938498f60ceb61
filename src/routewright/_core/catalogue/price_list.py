"""Reads a third-party price list into a catalogue file: litellm's price map or models.dev's ``api.json``.

Nothing is guessed: whatever a list does not say stays, rows that are not chat models are skipped, and a row that cannot
be read, contradicts another or prices a paid model at nothing becomes a ``Problem`` with its place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from operator import itemgetter
from typing import Any, NamedTuple, NoReturn, Self, TypeVar, get_args

from msgspec import to_builtins
from msgspec.structs import asdict, replace

from routewright._core.money import LEAST_USD_PER_1M, per_million
from routewright._core.request.rules import MODEL_ID, NUMBERS, is_date, is_name
from routewright.errors import Problem, ValidationFailed
from routewright.wire import JsonObject, Modality, Model, PriceTier, Pricing, ServicePrice
from routewright.wire.json_scan import joined, quoted
from routewright.wire.money import nanos_of, usd_text
from routewright.wire.problems import in_json, shown

from .models import NO_FILES, token_prices
from .prices import pricing_on

PROVIDERS = {
    "bedrock": "amazon-bedrock", "bedrock_converse": "amazon-bedrock", "cohere_chat": "cohere", "dashscope": "alibaba",
    "gemini": "google", "google-vertex": "google", "moonshot": "moonshotai", "together_ai": "togetherai",
    "vertex_ai": "google", "vertex_ai-language-models": "google", "volcengine": "bytedance-volcengine",
    "xiaomi_mimo": "xiaomi",
}  # fmt: skip
"""Provider names in the lists that differ from the catalogue's."""

_PER_TOKEN = ("input_cost_per_token", "output_cost_per_token",
              "cache_read_input_token_cost", "cache_creation_input_token_cost")  # fmt: skip
_PER_MILLION = ("input", "output", "cache_read", "cache_write")
_LONG = re.compile(rf"({'|'.join(_PER_TOKEN)})_above_(\d{{1,6}})k_tokens")
_PRICE = NUMBERS[Pricing]["input_usd"]
_TOKENS = NUMBERS[Model]["context_window"]
_ENTRY = ("context_window", "max_output_tokens", "modalities", "structured_output", "reasoning")
"""Fields of a new model in a catalogue file, besides its id, prices and end."""
P = TypeVar("P", Pricing, PriceTier)


class Listed(NamedTuple):
    """One chat model in a list, with what its row says."""

    place: str
    source: str
    """The provider's name in the list."""
    model: Model
    assumed_threshold: bool = False
    """The long-context prices come from a form that says 200,000 tokens whatever the vendor's own threshold is."""

    @property
    def names(self) -> frozenset[str]:
        """The names of its provider: the list's own and the catalogue's."""
        return frozenset((self.source, PROVIDERS.get(self.source, self.source)))


Update = tuple[Model | None, Model]
"""A model before and after the import; None: it is new."""


class PriceStep(NamedTuple):
    """A price before and after an import, in dollars per million tokens. None: there is none."""

    price: str
    before_usd: float | None
    after_usd: float | None

    @property
    def mark(self) -> str:
        """``x10`` for a factor of five or more, up or down: lists slip by powers of ten."""
        before, after = self.before_usd, self.after_usd
        if before is None or after is None or 4.999 * min(before, after) > max(before, after):
            return ""
        return f"x{after / before:.3g}" if before else "from nothing"

    def __str__(self) -> str:
        shown = ["none" if usd is None else f"${usd_text(nanos_of(usd))}" for usd in self[1:]]
        return f"{self.price} {' -> '.join(shown)} {self.mark}".rstrip()


class ModelChange(NamedTuple):
    """The changes of an import in one model."""

    model: str
    is_new: bool
    prices: list[PriceStep]
    ends: str | None
    """Its new last day."""

    def __str__(self) -> str:
        steps = [*map(str, self.prices), *([f"ends {self.ends}"] if self.ends else ())]
        return f"{self.model}  {'new' if self.is_new else 'changed'}  {', '.join(steps)}"


def read_price_list(content: object) -> tuple[list[Listed], list[Problem]]:
    """The chat models of a list, and the rows that cannot be read. Raises ``ValidationFailed`` for an unknown shape."""
    entries = content if isinstance(content, dict) else {}
    rows = [row for row in entries.values() if isinstance(row, dict)]
    is_litellm = not any(isinstance(row.get("models"), dict) for row in rows)
    if is_litellm and not any("litellm_provider" in row for row in rows):
        hint = "pass a JSON file such as litellm's price map or models.dev's api.json"
        raise ValidationFailed.at("", "is not a price list in a known format", hint)
    chat_models: list[Listed | None] = []
    problems: list[Problem] = []
    for source, provider in {"": {"models": entries}}.items() if is_litellm else entries.items():
        place = "" if is_litellm else joined(joined("", source), "models")
        models = provider.get("models") if isinstance(provider, dict) else None
        for name, fields in models.items() if isinstance(models, dict) else (("", models),):
            try:
                row = _Row.of(joined(place, name) if name else place, fields)
                entry = _litellm(row, name) if is_litellm else _models_dev(row, source, name)
                for price, usd in token_prices(entry and entry.model.pricing_per_1m).items():
                    _refuse(row.place, f"{price} must be 0, or at least {LEAST_USD_PER_1M} per million tokens", usd)
                chat_models.append(entry)
            except ValidationFailed as error:
                problems += error.problems
    return [*filter(None, chat_models)], problems


def updates_of(
    models: Sequence[Model], entries: Iterable[Listed], day: str, *, add: Sequence[str] = ()
) -> tuple[list[Update], list[Problem]]:
    """What a list changes in a catalogue, and what is not taken. ``day`` (``YYYY-MM-DD``): its prices are replaced.
    ``add``: globs over ids of new models."""
    models_by_id = {model.id: model for model in models}
    by_id: dict[str, list[Listed]] = {}
    for row in entries:
        if row.model.id in models_by_id or any(fnmatchcase(row.model.id, glob) for glob in add):
            by_id.setdefault(row.model.id, []).append(row)
    updates: list[Update] = []
    problems: list[Problem] = []
    for model_id, rows in by_id.items():
        ours = models_by_id.get(model_id)
        now = None if ours is None else pricing_on(ours, day)
        new = rows[0].model.pricing_per_1m
        if any(row.model.pricing_per_1m != new for row in rows):
            hint = f"choose the provider {' or '.join(dict.fromkeys(row.source for row in rows))}"
            problems.append(Problem(model_id, "has rows with different prices, so none is taken", hint))
        elif now and new and (new.input_usd == 0 < now.input_usd or new.output_usd == 0 < now.output_usd):
            hint = f"if it is free, set that in your catalogue file under prices[{quoted(model_id)}]"
            problems.append(Problem(rows[0].place, f"lists a price of 0 for {model_id}, so it is not taken", hint))
        else:  # what all rows of the model say
            common, *others = [asdict(row.model) for row in rows]
            common = {name: value for name, value in common.items() if all(other[name] == value for other in others)}
            entry = rows[0]._replace(model=Model(**common))
            after = entry.model if ours is None else _updated(ours, entry, day)
            if after != ours:
                updates.append((ours, after))
    return updates, problems


def _updated(ours: Model, entry: Listed, day: str) -> Model:
    """Our model with the prices and the end that the list has; all else stays."""
    model = replace(ours, deprecated_at=entry.model.deprecated_at or ours.deprecated_at)
    now = pricing_on(ours, day)
    new = entry.model.pricing_per_1m
    price = new or now
    if now is not None and new is not None:
        tiers = new.tiers
        old = {tier.above_tokens: tier for tier in now.tiers}
        if entry.assumed_threshold and len(tiers) == len(now.tiers) == 1:
            tiers = (replace(tiers[0], above_tokens=now.tiers[0].above_tokens),)
        tiers = tuple(_overlaid(old.get(tier.above_tokens, tier), tier) for tier in tiers)
        price = replace(_overlaid(now, new), tiers=tiers or now.tiers)
    if price is None or price == now:
        return model
    ahead = tuple(change for change in ours.price_changes or () if change.starts > day)
    return replace(model, pricing_per_1m=price, price_changes=ahead or None)


def _overlaid(old: P, new: P) -> P:
    """The old prices with those that the new ones have."""
    return replace(old, **{name: value for name, value in asdict(new).items() if value is not None})


def changes_of(updates: Iterable[Update], day: str) -> list[ModelChange]:
    """The updates in figures, new models last. ``day`` is that of ``updates_of``."""
    changes = []
    for before, after in updates:
        old = {} if before is None else _prices(pricing_on(before, day))
        new = _prices(after.pricing_per_1m)
        steps = [PriceStep(name, old.get(name), new.get(name)) for name in old | new if old.get(name) != new.get(name)]
        ends = None if before is not None and before.deprecated_at == after.deprecated_at else after.deprecated_at
        changes.append(ModelChange(after.id, before is None, steps, ends))
    return sorted(changes, key=lambda change: change.is_new)


def _prices(pricing: Pricing | None) -> dict[str, float]:
    """All prices by name, as ``input`` and ``input above 200000``."""
    parts: dict[str, Pricing | PriceTier | ServicePrice] = {} if pricing is None else {"": pricing}
    if pricing is not None:
        parts |= {f" above {tier.above_tokens}": tier for tier in pricing.tiers}
        parts |= {f" {tier.tier}": tier for tier in pricing.service_tiers}
    named = [(name + where, usd) for where, part in parts.items() for name, usd in asdict(part).items()]
    return {name.replace("_usd", ""): usd for name, usd in named if "_usd" in name and usd is not None}


def with_updates(content: Mapping[str, Any], updates: Iterable[Update], as_of: str | None) -> JsonObject:
    """The content of a catalogue file with updates of its models; everything else in it stays. ``as_of``: the day of
    the facts, ``YYYY-MM-DD``; None: the file's own."""
    entries = {entry["id"]: dict(entry) for entry in content.get("models", ())}
    prices = dict(content.get("prices", {}))
    for before, after in updates:
        entry = entries.setdefault(after.id, {"id": after.id})
        if before is None:
            entry |= {name: value for name in _ENTRY if (value := getattr(after, name))}
        if before is None or after.pricing_per_1m != before.pricing_per_1m:
            prices.pop(after.id, None)
            entry["prices"] = to_builtins(after.pricing_per_1m)
        if before is not None and after.price_changes != before.price_changes:
            ahead = after.price_changes or ()
            entry["price_changes"] = [{"starts": price.starts, **to_builtins(price.pricing_per_1m)} for price in ahead]
        if after.deprecated_at is not None and (before is None or after.deprecated_at != before.deprecated_at):
            entry["deprecated_at"] = after.deprecated_at
    content = content if as_of is None else {**content, "as_of": as_of}
    return {**content, "models": [*entries.values()], "prices": prices}


class _RowPrices(NamedTuple):
    """Dollars per million tokens, as far as a row has them."""

    fresh: float | None
    output: float | None
    cached: float | None
    """Input read from the vendor's cache."""
    written: float | None
    """Input written to it."""


class _Row(NamedTuple):
    """An object in a list. Reads its fields, and refuses values that make no sense."""

    place: str
    fields: Mapping[str, Any]

    @classmethod
    def of(cls, place: str, content: object) -> Self:
        if not isinstance(content, dict):
            _refuse(place, "must be an object", content)
        return cls(place, content)

    def inner(self, key: str, default: object = None) -> _Row:
        return _Row.of(joined(self.place, key), self.fields.get(key, default))

    def rows(self, key: str) -> list[_Row]:
        """An array of objects; empty if it is missing."""
        if (values := self.fields.get(key)) is None:
            return []
        if not isinstance(values, list):
            _refuse(joined(self.place, key), "must be an array", values)
        return [_Row.of(f"{joined(self.place, key)}[{index}]", value) for index, value in enumerate(values)]

    def says(self, key: str) -> bool:
        return self.fields.get(key) is True

    def usd(self, key: str) -> float | None:
        """A price per million tokens. Only litellm's keys name the token, and have prices per token."""
        if (value := self.fields.get(key)) is None:
            return None
        place = joined(self.place, key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            _refuse(place, "must be a number", value)
        usd = value
        if abs(value) <= 1e300:  # neither an infinity, nor more digits than a float has room for
            usd = per_million(value) if "token" in key else float(value)
        if not _PRICE.admits(usd):
            _refuse(place, f"must be {_PRICE} per million tokens", usd)
        return usd

    def tokens(self, key: str) -> int | None:
        """A number of tokens; 0 is how lists write that it is unknown."""
        value = self.fields.get(key)
        if value is None or (value == 0 and _is_whole(value)):
            return None
        if not _is_whole(value) or not _TOKENS.admits(value):
            _refuse(joined(self.place, key), f"must be {_TOKENS}", value)
        return int(value)

    def prices(self, keys: tuple[str, ...]) -> _RowPrices:
        """The prices under these keys."""
        prices = _RowPrices(*map(self.usd, keys))
        # Lists write 0 where a cache write is not charged apart; its tokens are still billed as input.
        return prices if prices.written or not prices.fresh else prices._replace(written=None)

    def tier(self, above: int, keys: tuple[str, ...], base: Pricing) -> PriceTier:
        """Prices above a size; missing ones are as for shorter inputs."""
        prices = self.prices(keys)
        fresh = base.input_usd if prices.fresh is None else prices.fresh
        output = base.output_usd if prices.output is None else prices.output
        return PriceTier(above, fresh, output, prices.cached, prices.written)


def _litellm(row: _Row, key: str) -> Listed | None:
    if key == "sample_spec" or row.fields.get("mode") not in ("chat", "responses"):
        return None
    source = row.fields.get("litellm_provider")
    ends = row.fields.get("deprecation_date")
    if not isinstance(source, str) or not source:
        _refuse(joined(row.place, "litellm_provider"), "must be a name", source)
    if ends not in (None, "") and not (isinstance(ends, str) and is_date(ends)):
        _refuse(joined(row.place, "deprecation_date"), "must be a date", ends)
    pricing = _litellm_pricing(row)
    if pricing is None:
        return None
    provider = PROVIDERS.get(source, source)
    prefix = key.split("/", 1)[0]  # perhaps the provider
    name = key.removeprefix(f"{prefix}/") if PROVIDERS.get(prefix, prefix) == provider else key
    model = Model(
        id=_model_id(row.place, f"{provider}/{name}"),
        context_window=row.tokens("max_input_tokens"), max_output_tokens=row.tokens("max_output_tokens"),
        modalities=_modalities(
            image=row.says("supports_vision"), tool=row.says("supports_function_calling"),
            audio=row.says("supports_audio_input"), file=row.says("supports_pdf_input") and provider not in NO_FILES,
        ),
        structured_output=row.says("supports_response_schema"), reasoning=row.says("supports_reasoning"),
        pricing_per_1m=pricing, deprecated_at=ends or None,
    )  # fmt: skip
    return Listed(row.place, source, model)


def _litellm_pricing(row: _Row) -> Pricing | None:
    bands: list[tuple[int, _Row]] = []
    for band in row.rows("tiered_pricing"):
        sizes = band.fields.get("range")
        if not (isinstance(sizes, list) and sizes and _is_whole(sizes[0]) and 0 <= sizes[0] <= _TOKENS.high):
            _refuse(f"{row.place}.tiered_pricing", "must have a 'range' that begins with a whole number", sizes)
        bands.append((int(sizes[0]), band))
    bands.sort(key=itemgetter(0))
    base = bands[0][1] if bands and row.fields.get("input_cost_per_token") is None else row
    price = _pricing(base, _PER_TOKEN, row.usd("output_cost_per_reasoning_token"))
    if price is None:
        return None
    above: dict[int, JsonObject] = {}
    for key, value in row.fields.items():
        if match := _LONG.fullmatch(key):  # input_cost_per_token_above_272k_tokens
            above.setdefault(int(match[2]) * 1000, {})[match[1]] = value
    sized = [(size, row._replace(fields=prices)) for size, prices in above.items()]
    sized += [(size, band) for size, band in bands if size > 0]
    return replace(
        price,
        batch_input_usd=row.usd("input_cost_per_token_batches"),
        batch_output_usd=row.usd("output_cost_per_token_batches"),
        tiers=_rising(row.place, [band_row.tier(size, _PER_TOKEN, price) for size, band_row in sized]),
        audio_input_usd=row.usd("input_cost_per_audio_token"),
        cache_write_hour_usd=row.usd("cache_creation_input_token_cost_above_1hr"),
    )


def _models_dev(row: _Row, source: str, name: str) -> Listed | None:
    modalities = row.fields.get("modalities")
    modalities = modalities if isinstance(modalities, dict) else {"input": ["text"], "output": ["text"]}
    takes = _words(modalities.get("input"))
    is_chat = "text" in takes and "text" in _words(modalities.get("output"))
    if "embed" in f"{name} {row.fields.get('family', '')}".lower() or not is_chat or row.fields.get("cost") is None:
        return None
    limit = row.inner("limit", {})
    tools = row.fields.get("tool_call")
    cost = row.inner("cost")
    provider = PROVIDERS.get(source, source)
    price = _pricing(cost, _PER_MILLION, cost.usd("reasoning"))
    if price is None:
        return None
    tiers: list[PriceTier] = []
    for tier_row in cost.rows("tiers"):
        tier = tier_row.inner("tier")
        size = tier.tokens("size")
        if size is None or tier.fields.get("type", "context") != "context":
            _refuse(tier.place, "must name a size of the context", tier.fields.get("type"))
        tiers.append(tier_row.tier(size, _PER_MILLION, price))
    if is_old := cost.fields.get("tiers") is None and cost.fields.get("context_over_200k") is not None:
        tiers.append(cost.inner("context_over_200k").tier(200_000, _PER_MILLION, price))
    model = Model(
        id=_model_id(row.place, f"{provider}/{name}"),
        context_window=limit.tokens("context"), max_output_tokens=limit.tokens("output"),
        modalities=_modalities(
            image="image" in takes, audio="audio" in takes, file="pdf" in takes and provider not in NO_FILES,
            tool=tools is True or (isinstance(tools, dict) and tools.get("supported") is True),
        ),
        structured_output=row.says("structured_output"), reasoning=row.says("reasoning"),
        pricing_per_1m=replace(price, tiers=_rising(cost.place, tiers)),
    )  # fmt: skip
    return Listed(row.place, source, model, assumed_threshold=is_old)


def _pricing(row: _Row, keys: tuple[str, ...], reasoning: float | None) -> Pricing | None:
    prices = row.prices(keys)
    if prices.fresh is None or prices.output is None:  # not priced by the token
        return None
    reasoning = None if reasoning == prices.output else reasoning
    return Pricing(prices.fresh, prices.output, prices.cached, prices.written, reasoning_usd=reasoning)


def _rising(place: str, tiers: list[PriceTier]) -> tuple[PriceTier, ...]:
    sizes = [tier.above_tokens for tier in tiers]
    if len({*sizes}) < len(sizes) or 0 in sizes:
        _refuse(place, "must have its prices by size once for each size, above 0", sizes)
    return tuple(sorted(tiers, key=lambda tier: tier.above_tokens))


def _words(value: object) -> set[str]:
    return {word for word in value if isinstance(word, str)} if isinstance(value, list) else set()


def _modalities(**able: bool) -> tuple[Modality, ...]:
    return tuple(kind for kind in get_args(Modality) if kind == "text" or able[kind])


def _is_whole(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0


def _model_id(place: str, name: str) -> str:
    if not MODEL_ID.fullmatch(name) or not is_name(name):
        _refuse(place, "must be a name without spaces, of at most 200 characters", name)
    return name


def _refuse(place: str, problem: str, value: object) -> NoReturn:
    raise ValidationFailed.at(place, f"{problem}, got {in_json(shown(value))}", "fix the list, or use a newer one")
