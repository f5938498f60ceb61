"""Reads the price lists of others: each row becomes a ``Model`` that holds what the row says, and nothing else.

Two shapes are known: litellm's price map, and models.dev's ``api.json``. Nothing is guessed: a row that cannot be read
is told with its place, a row that is no chat model is counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, NoReturn, get_args

from routewright.errors import Problem, ValidationFailed
from routewright.wire import Modality, Model, PriceTier, Pricing

from .money import per_million
from .request.json_scan import joined
from .request.problems import shown
from .request.rules import MODEL_ID, NUMBERS, is_date, is_name

Shape = Literal["litellm", "models.dev"]

PROVIDERS = {
    "bedrock": "amazon-bedrock",
    "bedrock_converse": "amazon-bedrock",
    "cohere_chat": "cohere",
    "dashscope": "alibaba",
    "gemini": "google",
    "google-vertex": "google",
    "moonshot": "moonshotai",
    "together_ai": "togetherai",
    "vertex_ai": "google",
    "vertex_ai-language-models": "google",
    "volcengine": "bytedance-volcengine",
    "xiaomi_mimo": "xiaomi",
}
"""What the lists call providers, where the catalogue calls them otherwise."""

_CHAT_MODES = ("chat", "responses")
_LONG = re.compile(r"(input_cost_per_token|output_cost_per_token|cache_read_input_token_cost"
                   r"|cache_creation_input_token_cost)_above_(\d{1,6})k_tokens")  # fmt: skip
_OLD_THRESHOLD = 200_000
_PRICE = NUMBERS[Pricing]["input_usd"]
_TOKENS = NUMBERS[Model]["context_window"]
_PER_TOKEN = ("input_cost_per_token", "output_cost_per_token",
              "cache_read_input_token_cost", "cache_creation_input_token_cost")  # fmt: skip
_PER_MILLION = ("input", "output", "cache_read", "cache_write")
_EXPECTED = "give a JSON file like litellm's price map or models.dev's api.json, or a models.dev folder"

Row = Mapping[str, Any]
_Task = tuple[Any, ...]
"""How to read a row: what reads it, its place, and what else that needs."""
Number = Callable[[str, Row, str], float | None]
"""Reads a price: the row's place, the row, the key."""


class Listed(NamedTuple):
    """One chat model as a list has it."""

    place: str
    """Where it stands in the list."""
    source: str
    """The provider, as the list calls it."""
    model: Model
    assumed_threshold: bool = False
    """Its long-context prices are of a form that says 200,000 tokens whatever the vendor's own threshold is."""


class PriceList(NamedTuple):
    """What was read of a list."""

    shape: Shape
    rows: tuple[Listed, ...]
    unread: tuple[Problem, ...]
    """Rows that make no sense, and why."""
    left_out: Mapping[str, int]
    """How many rows are of other kinds, by kind."""


class _LeftOut(Exception):
    """The row is of a kind that cannot be routed to."""


def read_list(content: object) -> PriceList:
    """Read a list, whichever shape it has. Raises ``ValidationFailed`` for what has neither."""
    shape = shape_of(content)
    assert isinstance(content, dict)
    rows = _litellm_rows(content) if shape == "litellm" else _models_dev_rows(content)
    read: list[Listed] = []
    unread: list[Problem] = []
    left_out: dict[str, int] = {}
    for take, place, *given in rows:
        try:
            read.append(take(place, *given))
        except ValidationFailed as error:
            unread += error.problems
        except _LeftOut as kind:
            left_out[str(kind)] = left_out.get(str(kind), 0) + 1
    return PriceList(shape, tuple(read), tuple(unread), left_out)


def shape_of(content: object) -> Shape:
    """Tell by its content which shape a list has. Raises ``ValidationFailed`` for none."""
    rows = [row for row in content.values() if isinstance(row, dict)] if isinstance(content, dict) else []
    if any(isinstance(row.get("models"), dict) for row in rows):
        return "models.dev"
    if any("litellm_provider" in row for row in rows):
        return "litellm"
    raise ValidationFailed.of(Problem("", "is no price list of a known shape", _EXPECTED))


def provider_of(source: str) -> str:
    """What the catalogue calls a provider of a list."""
    return PROVIDERS.get(source, source)


def _litellm_rows(content: Row) -> Iterator[_Task]:
    for key, row in content.items():
        if key != "sample_spec":
            yield _litellm, joined("", key), key, row


def _models_dev_rows(content: Row) -> Iterator[_Task]:
    for source, provider in content.items():
        place = joined(joined("", source), "models")
        models = provider.get("models") if isinstance(provider, dict) else None
        if isinstance(models, dict):
            yield from ((_models_dev, joined(place, name), source, name, row) for name, row in models.items())
        else:
            yield _no_models, place, models


def _no_models(place: str, models: object) -> Listed:
    _refuse(place, "must be an object", models)


def _litellm(place: str, key: str, row: object) -> Listed:
    row = _object(place, row)
    mode = row.get("mode")
    if mode not in _CHAT_MODES:
        raise _LeftOut(mode if isinstance(mode, str) else "no mode")
    source = _text(place, row, "litellm_provider")
    provider = provider_of(source)
    head, slash, tail = key.partition("/")
    name = tail if slash and provider_of(head) == provider else key
    model = Model(
        id=_model_id(place, f"{provider}/{name}"),
        context_window=_count(place, row, "max_input_tokens"),
        max_output_tokens=_count(place, row, "max_output_tokens"),
        modalities=_modalities(row.get("supports_vision") is True, row.get("supports_function_calling") is True),
        structured_output=row.get("supports_response_schema") is True,
        reasoning=row.get("supports_reasoning") is True,
        pricing_per_1m=_litellm_pricing(place, row),
        deprecated_at=_day(place, row, "deprecation_date"),
    )
    return Listed(place, source, model)


def _litellm_pricing(place: str, row: Row) -> Pricing:
    bands = _bands(place, row)
    base = bands[0] if bands and row.get("input_cost_per_token") is None else row
    fresh, output, cached, written = _rates(place, base, _PER_TOKEN, _per_token)
    if fresh is None or output is None:
        raise _LeftOut("no price per token")
    list_price = PriceTier(0, fresh, output, cached, written)
    return Pricing(
        fresh,
        output,
        cached,
        written,
        _per_token(place, row, "input_cost_per_token_batches"),
        _per_token(place, row, "output_cost_per_token_batches"),
        tiers=_rising(place, [*_long(place, row, list_price), *_band_tiers(place, bands, list_price)]),
        reasoning_usd=_unless(output, _per_token(place, row, "output_cost_per_reasoning_token")),
    )


def _long(place: str, row: Row, base: PriceTier) -> list[PriceTier]:
    """Prices above a size, written as ``input_cost_per_token_above_272k_tokens``."""
    by_size: dict[int, dict[str, Any]] = {}
    for key, value in row.items():
        if found := _LONG.fullmatch(key):
            by_size.setdefault(int(found[2]) * 1000, {})[found[1]] = value
    return [_tier(place, size, prices, _PER_TOKEN, _per_token, base) for size, prices in by_size.items()]


def _bands(place: str, row: Row) -> list[Row]:
    """Prices by band of input sizes, the shortest first."""
    bands = row.get("tiered_pricing")
    if bands is None:
        return []
    if not isinstance(bands, list):
        _refuse(joined(place, "tiered_pricing"), "must be an array", bands)
    found = [_object(f"{place}.tiered_pricing[{index}]", band) for index, band in enumerate(bands)]
    return sorted(found, key=lambda band: _starts_at(place, band))


def _band_tiers(place: str, bands: list[Row], base: PriceTier) -> list[PriceTier]:
    sized = [(_starts_at(place, band), band) for band in bands]
    return [_tier(place, size, band, _PER_TOKEN, _per_token, base) for size, band in sized if size > 0]


def _starts_at(place: str, band: Row) -> int:
    sizes = band.get("range")
    if not (isinstance(sizes, list) and sizes and _is_whole(sizes[0]) and 0 <= sizes[0] <= _TOKENS.high):
        _refuse(f"{place}.tiered_pricing", "must have a 'range' that begins with a whole number", sizes)
    return int(sizes[0])


def _models_dev(place: str, source: str, name: str, row: object) -> Listed:
    row = _object(place, row)
    takes, gives = _kinds(row)
    if "embed" in f"{name} {row.get('family', '')}".lower():
        raise _LeftOut("embedding")
    if "text" not in takes or "text" not in gives:
        raise _LeftOut(next(iter(sorted({*takes, *gives} - {"text"})), "no text"))
    limit = _object(joined(place, "limit"), row.get("limit", {}))
    released = row.get("release_date")
    model = Model(
        id=_model_id(place, f"{provider_of(source)}/{name}"),
        context_window=_count(joined(place, "limit"), limit, "context"),
        max_output_tokens=_count(joined(place, "limit"), limit, "output"),
        modalities=_modalities("image" in takes, _takes_tools(row.get("tool_call"))),
        structured_output=row.get("structured_output") is True,
        reasoning=row.get("reasoning") is True,
        pricing_per_1m=_models_dev_pricing(joined(place, "cost"), row.get("cost")),
        released_at=released if isinstance(released, str) and is_date(released) else None,
    )
    return Listed(place, source, model, assumed_threshold="tiers" not in row["cost"])


def _models_dev_pricing(place: str, cost: object) -> Pricing:
    if cost is None:
        raise _LeftOut("no price per token")
    cost = _object(place, cost)
    fresh, output, cached, written = _rates(place, cost, _PER_MILLION, _usd)
    if fresh is None or output is None:
        raise _LeftOut("no price per token")
    reasoning = _unless(output, _usd(place, cost, "reasoning"))
    base = PriceTier(0, fresh, output, cached, written)
    return Pricing(fresh, output, cached, written, tiers=_longer(place, cost, base), reasoning_usd=reasoning)


def _longer(place: str, cost: Row, base: PriceTier) -> tuple[PriceTier, ...]:
    """Prices above a size: ``tiers``, else the older ``context_over_200k``."""
    tiers = cost.get("tiers")
    if tiers is None:
        longer = cost.get("context_over_200k")
        if longer is None:
            return ()
        place = joined(place, "context_over_200k")
        return (_tier(place, _OLD_THRESHOLD, _object(place, longer), _PER_MILLION, _usd, base),)
    if not isinstance(tiers, list):
        _refuse(joined(place, "tiers"), "must be an array", tiers)
    return _rising(place, [_sized(f"{place}.tiers[{index}]", tier, base) for index, tier in enumerate(tiers)])


def _sized(place: str, tier: object, base: PriceTier) -> PriceTier:
    tier = _object(place, tier)
    kind = _object(joined(place, "tier"), tier.get("tier"))
    size = _count(joined(place, "tier"), kind, "size")
    if size is None or kind.get("type", "context") != "context":
        _refuse(joined(place, "tier"), "must name a size of the context", kind.get("type"))
    return _tier(place, size, tier, _PER_MILLION, _usd, base)


def _rising(place: str, tiers: list[PriceTier]) -> tuple[PriceTier, ...]:
    sizes = [tier.above_tokens for tier in tiers]
    if len({*sizes}) < len(sizes) or 0 in sizes:
        _refuse(place, "must have its prices by size once for each size, above 0", sizes)
    return tuple(sorted(tiers, key=lambda tier: tier.above_tokens))


def _tier(place: str, above: int, row: Row, keys: tuple[str, ...], number: Number, base: PriceTier) -> PriceTier:
    """A tier; what it leaves open is as for shorter inputs."""
    fresh, output, cached, written = _rates(place, row, keys, number)
    return PriceTier(
        above,
        base.input_usd if fresh is None else fresh,
        base.output_usd if output is None else output,
        cached,
        written,
    )


def _rates(place: str, row: Row, keys: tuple[str, ...], number: Number) -> list[float | None]:
    """Prices of fresh input, output, input read from the cache, and input written to it."""
    fresh, output, cached, written = (number(place, row, key) for key in keys)
    # Lists say 0 where a write is not charged apart; its tokens are still billed as input.
    return [fresh, output, cached, written if written or not fresh else None]


def _kinds(row: Row) -> tuple[set[str], set[str]]:
    said = row.get("modalities")
    said = said if isinstance(said, dict) else {"input": ["text"], "output": ["text"]}
    takes, gives = said.get("input"), said.get("output")
    return _words(takes), _words(gives)


def _words(value: object) -> set[str]:
    return {each for each in value if isinstance(each, str)} if isinstance(value, list) else set()


def _takes_tools(said: object) -> bool:
    return said is True or (isinstance(said, dict) and said.get("supported") is True)


def _modalities(image: bool, tool: bool) -> tuple[Modality, ...]:
    takes = dict(zip(get_args(Modality), (True, image, tool), strict=True))
    return tuple(kind for kind, does in takes.items() if does)


def _per_token(place: str, row: Row, key: str) -> float | None:
    value = _number(place, row, key)
    return None if value is None else _checked(joined(place, key), per_million(value))


def _usd(place: str, row: Row, key: str) -> float | None:
    value = _number(place, row, key)
    return None if value is None else _checked(joined(place, key), value)


def _number(place: str, row: Row, key: str) -> float | None:
    value = row.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        _refuse(joined(place, key), "must be a number", value)
    if abs(value) > 1e300:  # or an infinity, or more digits than a float has room for
        _refuse(joined(place, key), f"must be {_PRICE} per million tokens", value)
    return float(value)


def _checked(place: str, usd: float) -> float:
    if not _PRICE.admits(usd):
        _refuse(place, f"must be {_PRICE} per million tokens", usd)
    return usd


def _unless(same: float, price: float | None) -> float | None:
    """A price that says more than another does."""
    return None if price == same else price


def _count(place: str, row: Row, key: str) -> int | None:
    """A number of tokens; 0 is how lists write that they do not know."""
    value = row.get(key)
    if value is None or (value == 0 and _is_whole(value)):
        return None
    if not _is_whole(value) or not _TOKENS.admits(value):
        _refuse(joined(place, key), f"must be {_TOKENS}", value)
    return int(value)


def _is_whole(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and value % 1 == 0  # type: ignore[operator]


def _day(place: str, row: Row, key: str) -> str | None:
    value = row.get(key)
    if value is None or value == "":
        return None
    if not isinstance(value, str) or not is_date(value):
        _refuse(joined(place, key), "must be a date", value)
    return value


def _text(place: str, row: Row, key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value:
        _refuse(joined(place, key), "must be a name", value)
    return value


def _object(place: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        _refuse(place, "must be an object", value)
    return value


def _model_id(place: str, name: str) -> str:
    if not MODEL_ID.fullmatch(name) or not is_name(name):
        _refuse(place, "must be a name without spaces, of at most 200 characters", name)
    return name


def _refuse(place: str, problem: str, value: object) -> NoReturn:
    raise ValidationFailed.of(Problem(place, f"{problem}, got {shown(value)}", ""))
