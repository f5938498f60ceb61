"""Reads third-party price lists: each row becomes a ``Model`` that holds what the row says, and nothing else.

Two shapes are known: litellm's price map, and models.dev's ``api.json`` or repository. Nothing is guessed: a row that
cannot be read is reported with its place, a row that is not a chat model is counted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, Self, get_args

from msgspec.structs import replace

from routewright._core.catalogue.models import NO_FILES
from routewright._core.money import per_million
from routewright._core.request.json_scan import joined
from routewright._core.request.problems import in_json, shown
from routewright._core.request.rules import MODEL_ID, NUMBERS, is_date, is_name
from routewright.errors import Problem, ValidationFailed
from routewright.input_file import naming, path_of, read
from routewright.wire import Modality, Model, PriceTier, Pricing

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
"""Provider names in the lists that differ from the catalogue's."""

_PER_TOKEN = ("input_cost_per_token", "output_cost_per_token",
              "cache_read_input_token_cost", "cache_creation_input_token_cost")  # fmt: skip
_PER_MILLION = ("input", "output", "cache_read", "cache_write")
_LONG = re.compile(rf"({'|'.join(_PER_TOKEN)})_above_(\d{{1,6}})k_tokens")
_OLD_THRESHOLD = 200_000
_PRICE = NUMBERS[Pricing]["input_usd"]
_TOKENS = NUMBERS[Model]["context_window"]
_EXPECTED = "give a JSON file like litellm's price map or models.dev's api.json, or a models.dev folder"


class Listed(NamedTuple):
    """One chat model in a list."""

    place: str
    """Its place in the list."""
    source: str
    """The provider's name in the list."""
    model: Model
    assumed_threshold: bool = False
    """The long-context prices come from a form that says 200,000 tokens whatever the vendor's own threshold is."""


class PriceList(NamedTuple):
    """The contents of a list."""

    shape: Shape
    rows: tuple[Listed, ...]
    unread: tuple[Problem, ...]
    """Rows that could not be read, and why."""
    left_out: Mapping[str, int]
    """Rows that are not chat models, counted by kind."""


class _LeftOut(Exception):
    """Raised for a row that cannot be routed to; names its kind."""


def read_price_list(given: str | Path) -> PriceList:
    """Read a price list: a JSON file like litellm's price map or models.dev's ``api.json``, or a models.dev folder.

    Raises ``ValidationFailed`` naming the file and the place. Rows that make no sense are in ``unread``."""
    path = path_of(given)
    if not path.is_dir():
        document = read(path)
        with document.naming():
            return read_list(document.content)
    found: dict[str, Any] = {}  # providers/NAME/models/**/*.toml in the shape of ``api.json``
    try:
        root = path / "providers" if (path / "providers").is_dir() else path
        for provider in sorted(root.iterdir()):
            models = provider / "models"
            files = sorted(each for each in models.rglob("*.toml") if each.is_file()) if models.is_dir() else []
            if files:
                rows = {each.relative_to(models).with_suffix("").as_posix(): read(each).content for each in files}
                found[provider.name] = {"models": rows}
    except OSError as error:
        raise ValidationFailed.at(str(path), f"cannot be read: {error.strerror}", "check the path") from error
    if not found:
        hint = "name a folder with providers/NAME/models/*.toml in it"
        raise ValidationFailed.at(str(path), "is a folder without price lists", hint)
    with naming(path):
        return read_list(found)


def read_list(content: object) -> PriceList:
    """Read a list of either shape. Raises ``ValidationFailed`` for anything else."""
    shape = shape_of(content)
    assert isinstance(content, dict)
    rows: list[Listed] = []
    unread: list[Problem] = []
    left_out: dict[str, int] = {}
    found: list[tuple[str, str, str, object]] = []
    if shape == "litellm":
        found += ((joined("", key), "", key, row) for key, row in content.items() if key != "sample_spec")
    else:
        for source, provider in content.items():
            place = joined(joined("", source), "models")
            models = provider.get("models") if isinstance(provider, dict) else None
            if isinstance(models, dict):
                found += ((joined(place, name), source, name, row) for name, row in models.items())
            else:
                found.append((place, source, "", models))
    for place, source, name, given in found:
        try:
            row = _Row.of(place, given, per_token=shape == "litellm")
            rows.append(_litellm(row, name) if shape == "litellm" else _models_dev(row, source, name))
        except ValidationFailed as error:
            unread += error.problems
        except _LeftOut as kind:
            left_out[str(kind)] = left_out.get(str(kind), 0) + 1
    return PriceList(shape, tuple(rows), tuple(unread), left_out)


def shape_of(content: object) -> Shape:
    """The shape of a list, by its content. Raises ``ValidationFailed`` for an unknown one."""
    rows = [row for row in content.values() if isinstance(row, dict)] if isinstance(content, dict) else []
    if any(isinstance(row.get("models"), dict) for row in rows):
        return "models.dev"
    if any("litellm_provider" in row for row in rows):
        return "litellm"
    raise ValidationFailed.at("", "is no price list of a known shape", _EXPECTED)


def provider_of(source: str) -> str:
    """The catalogue's name of a list's provider."""
    return PROVIDERS.get(source, source)


class _Row(NamedTuple):
    """An object in a list. Reads its fields, and refuses values that make no sense."""

    place: str
    fields: Mapping[str, Any]
    per_token: bool
    """Its prices are per token; otherwise per million."""

    @classmethod
    def of(cls, place: str, given: object, *, per_token: bool) -> Self:
        if not isinstance(given, dict):
            _refuse(place, "must be an object", given)
        return cls(place, given, per_token)

    def inner(self, key: str, default: object = None) -> _Row:
        return _Row.of(joined(self.place, key), self.fields.get(key, default), per_token=self.per_token)

    def rows(self, key: str) -> list[_Row]:
        """An array of objects; empty if it is missing."""
        given = self.fields.get(key)
        if given is None:
            return []
        if not isinstance(given, list):
            _refuse(joined(self.place, key), "must be an array", given)
        places = (f"{joined(self.place, key)}[{index}]" for index in range(len(given)))
        return [_Row.of(place, each, per_token=self.per_token) for place, each in zip(places, given, strict=True)]

    def says(self, key: str) -> bool:
        return self.fields.get(key) is True

    def usd(self, key: str) -> float | None:
        """A price per million tokens."""
        value = self.fields.get(key)
        if value is None:
            return None
        place = joined(self.place, key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            _refuse(place, "must be a number", value)
        usd = value
        if abs(value) <= 1e300:  # neither an infinity, nor more digits than a float has room for
            usd = per_million(value) if self.per_token else float(value)
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

    def prices(self, keys: tuple[str, ...]) -> list[float | None]:
        """Prices of fresh input, output, input read from the cache, and input written to it."""
        fresh, output, cached, written = (self.usd(key) for key in keys)
        # Lists write 0 where a cache write is not charged apart; its tokens are still billed as input.
        return [fresh, output, cached, written if written or not fresh else None]

    def tier(self, above: int, keys: tuple[str, ...], base: Pricing) -> PriceTier:
        """Prices above a size; missing ones are as for shorter inputs."""
        fresh, output, cached, written = self.prices(keys)
        fresh, output = base.input_usd if fresh is None else fresh, base.output_usd if output is None else output
        return PriceTier(above, fresh, output, cached, written)


def _litellm(row: _Row, key: str) -> Listed:
    mode, source, ends = (row.fields.get(each) for each in ("mode", "litellm_provider", "deprecation_date"))
    if mode not in ("chat", "responses"):
        raise _LeftOut(mode if isinstance(mode, str) else "no mode")
    if not isinstance(source, str) or not source:
        _refuse(joined(row.place, "litellm_provider"), "must be a name", source)
    if ends not in (None, "") and not (isinstance(ends, str) and is_date(ends)):
        _refuse(joined(row.place, "deprecation_date"), "must be a date", ends)
    provider = provider_of(source)
    head, slash, tail = key.partition("/")
    model = Model(
        id=_model_id(row.place, f"{provider}/{tail if slash and provider_of(head) == provider else key}"),
        context_window=row.tokens("max_input_tokens"),
        max_output_tokens=row.tokens("max_output_tokens"),
        modalities=_modalities(
            image=row.says("supports_vision"),
            tool=row.says("supports_function_calling"),
            audio=row.says("supports_audio_input"),
            file=row.says("supports_pdf_input") and provider not in NO_FILES,
        ),
        structured_output=row.says("supports_response_schema"),
        reasoning=row.says("supports_reasoning"),
        pricing_per_1m=_litellm_pricing(row),
        deprecated_at=ends or None,
    )
    return Listed(row.place, source, model)


def _litellm_pricing(row: _Row) -> Pricing:
    bands: list[tuple[int, _Row]] = []
    for band in row.rows("tiered_pricing"):
        sizes = band.fields.get("range")
        if not (isinstance(sizes, list) and sizes and _is_whole(sizes[0]) and 0 <= sizes[0] <= _TOKENS.high):
            _refuse(f"{row.place}.tiered_pricing", "must have a 'range' that begins with a whole number", sizes)
        bands.append((int(sizes[0]), band))
    bands.sort(key=itemgetter(0))
    base = bands[0][1] if bands and row.fields.get("input_cost_per_token") is None else row
    price = _pricing(base, _PER_TOKEN, row.usd("output_cost_per_reasoning_token"))
    above: dict[int, dict[str, Any]] = {}
    for key, value in row.fields.items():
        if found := _LONG.fullmatch(key):  # input_cost_per_token_above_272k_tokens
            above.setdefault(int(found[2]) * 1000, {})[found[1]] = value
    sized = [(size, row._replace(fields=prices)) for size, prices in above.items()]
    sized += [(size, band) for size, band in bands if size > 0]
    return replace(
        price,
        batch_input_usd=row.usd("input_cost_per_token_batches"),
        batch_output_usd=row.usd("output_cost_per_token_batches"),
        tiers=_rising(row.place, [each.tier(size, _PER_TOKEN, price) for size, each in sized]),
        audio_input_usd=row.usd("input_cost_per_audio_token"),
        cache_write_hour_usd=row.usd("cache_creation_input_token_cost_above_1hr"),
    )


def _models_dev(row: _Row, source: str, name: str) -> Listed:
    said = row.fields.get("modalities")
    said = said if isinstance(said, dict) else {"input": ["text"], "output": ["text"]}
    takes, gives = _words(said.get("input")), _words(said.get("output"))
    if "embed" in f"{name} {row.fields.get('family', '')}".lower():
        raise _LeftOut("embedding")
    if "text" not in takes or "text" not in gives:
        raise _LeftOut(next(iter(sorted({*takes, *gives} - {"text"})), "no text"))
    limit, tools, released = row.inner("limit", {}), row.fields.get("tool_call"), row.fields.get("release_date")
    provider = provider_of(source)
    if row.fields.get("cost") is None:
        raise _LeftOut("no price per token")
    cost = row.inner("cost")
    price = _pricing(cost, _PER_MILLION, cost.usd("reasoning"))
    if cost.fields.get("tiers") is not None:
        tiers = []
        for each in cost.rows("tiers"):
            tier = each.inner("tier")
            size = tier.tokens("size")
            if size is None or tier.fields.get("type", "context") != "context":
                _refuse(tier.place, "must name a size of the context", tier.fields.get("type"))
            tiers.append(each.tier(size, _PER_MILLION, price))
    elif cost.fields.get("context_over_200k") is not None:  # the older form
        tiers = [cost.inner("context_over_200k").tier(_OLD_THRESHOLD, _PER_MILLION, price)]
    else:
        tiers = []
    model = Model(
        id=_model_id(row.place, f"{provider}/{name}"),
        context_window=limit.tokens("context"),
        max_output_tokens=limit.tokens("output"),
        modalities=_modalities(
            image="image" in takes,
            tool=tools is True or (isinstance(tools, dict) and tools.get("supported") is True),
            audio="audio" in takes,
            file="pdf" in takes and provider not in NO_FILES,
        ),
        structured_output=row.says("structured_output"),
        reasoning=row.says("reasoning"),
        pricing_per_1m=replace(price, tiers=_rising(cost.place, tiers)),
        released_at=released if isinstance(released, str) and is_date(released) else None,
    )
    return Listed(row.place, source, model, assumed_threshold="tiers" not in row.fields["cost"])


def _pricing(row: _Row, keys: tuple[str, ...], reasoning: float | None) -> Pricing:
    fresh, output, cached, written = row.prices(keys)
    if fresh is None or output is None:
        raise _LeftOut("no price per token")
    return Pricing(fresh, output, cached, written, reasoning_usd=None if reasoning == output else reasoning)


def _rising(place: str, tiers: list[PriceTier]) -> tuple[PriceTier, ...]:
    sizes = [tier.above_tokens for tier in tiers]
    if len({*sizes}) < len(sizes) or 0 in sizes:
        _refuse(place, "must have its prices by size once for each size, above 0", sizes)
    return tuple(sorted(tiers, key=lambda tier: tier.above_tokens))


def _words(value: object) -> set[str]:
    return {each for each in value if isinstance(each, str)} if isinstance(value, list) else set()


def _modalities(**able: bool) -> tuple[Modality, ...]:
    return tuple(kind for kind in get_args(Modality) if kind == "text" or able[kind])


def _is_whole(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0


def _model_id(place: str, name: str) -> str:
    if not MODEL_ID.fullmatch(name) or not is_name(name):
        _refuse(place, "must be a name without spaces, of at most 200 characters", name)
    return name


def _refuse(place: str, problem: str, value: object) -> NoReturn:
    raise ValidationFailed.at(place, f"{problem}, got {in_json(shown(value))}", "mend the list, or take a newer one")
