"""A catalogue overlay that people write by hand, and what pydantic says of such files. TOML or JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from typing import Annotated, Any, NamedTuple, TypeVar

import pydantic
from msgspec import Struct
from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from routewright.errors import Problem, ValidationFailed
from routewright.wire import (
    Availability,
    CacheOpts,
    Feature,
    Modality,
    Model,
    PriceChange,
    PriceTier,
    Pricing,
    Tokenizer,
)

from ._core.request.json_scan import joined, quoted
from ._core.request.problems import did_you_mean, shown
from ._core.request.rules import A_NAME, MAX_PROBLEMS, MODEL_ID, NUMBERS, is_date, is_day, is_name
from .document import Document

_KIND = re.compile(r"#/\$defs/(\w+)")
"""What pydantic's schema refers to."""
_TAGS = ("[key]", "<switch>", "<table>")
"""What stands in pydantic's places and in no file."""
_SAID = {
    "bool_type": "must be true or false",
    "float_type": "must be a number",
    "int_from_float": "must be a whole number",
    "int_type": "must be a whole number",
    "model_type": "must be a table or object",
    "dict_type": "must be a table or object",
    "string_type": "must be a string",
    "tuple_type": "must be an array",
    "string_pattern_mismatch": "must be 'provider/name', without spaces",
}
"""What pydantic's kinds of error mean here."""


def within(kind: type[Struct], name: str) -> AfterValidator:
    """What the same number of the struct may be."""
    allowed = NUMBERS[kind][name]

    def check(value: float) -> float:
        if not allowed.admits(value):
            raise PydanticCustomError("range", "must be {allowed}", {"allowed": str(allowed)})
        return value

    return AfterValidator(check)


def _name(text: str) -> str:
    if not is_name(text):
        raise PydanticCustomError("name", "must be {allowed}", {"allowed": A_NAME})
    return text


def _date(value: object) -> str:
    """A date or timestamp of TOML's, or one as text."""
    text = value.isoformat() if isinstance(value, date) else value
    if not isinstance(text, str) or not is_date(text):
        raise PydanticCustomError("date", "must be a date or timestamp")
    return text


def _day(value: object) -> str:
    """A date of TOML's, or one as text."""
    text = value.isoformat() if isinstance(value, date) else value
    if not isinstance(text, str) or not is_day(text):
        raise PydanticCustomError("date", "must be a date, YYYY-MM-DD")
    return text


STRICT = Field(strict=True)  # else true would be 1, "5" a number, and "off" false
Usd = Annotated[float, STRICT, within(Pricing, "input_usd")]
Share = Annotated[float, STRICT, within(CacheOpts, "explore")]
Day = Annotated[str, BeforeValidator(_day)]
Tokens = Annotated[int, STRICT, within(Model, "context_window")]
Switch = Annotated[bool, STRICT]
Name = Annotated[str, AfterValidator(_name)]
ModelId = Annotated[str, Field(pattern=f"^{MODEL_ID.pattern}$"), AfterValidator(_name)]


class Strict(pydantic.BaseModel):
    """Takes no key that it does not know."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class TierEntry(Strict):
    """US dollars per one million tokens of an input that is longer than ``above_tokens``."""

    above_tokens: Tokens
    input_usd: Usd
    output_usd: Usd
    cached_input_usd: Usd | None = None
    cache_write_usd: Usd | None = None


class PricesEntry(Strict):
    """US dollars per one million tokens."""

    input_usd: Usd
    output_usd: Usd
    cached_input_usd: Usd | None = None
    cache_write_usd: Usd | None = None
    reasoning_usd: Usd | None = None
    batch_input_usd: Usd | None = None
    batch_output_usd: Usd | None = None
    tiers: tuple[TierEntry, ...] = ()

    def pricing(self) -> Pricing:
        """The prices as the library knows them."""
        prices = {name: getattr(self, name) for name in PricesEntry.model_fields if name != "tiers"}
        return Pricing(**prices, tiers=tuple(PriceTier(**tier.model_dump()) for tier in self.tiers))


class PriceChangeEntry(PricesEntry):
    """Prices that hold from a day on."""

    starts: Day


class ModelEntry(Strict):
    """A model of your own, or changes to a bundled one. A new one needs ``prices`` to be used under a budget."""

    id: ModelId
    like: str | None = None
    provider_model_id: Name | None = None
    display_name: Name | None = None
    context_window: Tokens | None = None
    max_output_tokens: Tokens | None = None
    modalities: tuple[Modality, ...] | None = None
    structured_output: Switch | None = None
    unsupported: tuple[Feature, ...] | None = None
    reasoning: Switch | None = None
    tokenizer: Tokenizer | None = None
    quality: Share | None = None
    ttft_s: Annotated[float, STRICT, within(Model, "ttft_s")] | None = None
    tokens_per_s: Annotated[float, STRICT, within(Model, "tokens_per_s")] | None = None
    prices: PricesEntry | None = None
    price_changes: tuple[PriceChangeEntry, ...] | None = None
    regions: tuple[Name, ...] | None = None
    deprecated_at: Annotated[str, BeforeValidator(_date)] | None = None
    disabled: Switch | None = None
    tags: tuple[Name, ...] | None = None

    def row(self) -> dict[str, Any]:
        """The fields of ``Model`` that the entry gives."""
        fields = self.model_dump(exclude_none=True, exclude={"prices", "price_changes", "regions"})
        if self.prices is not None:
            fields["pricing_per_1m"] = self.prices.pricing()
        if self.price_changes is not None:
            fields["price_changes"] = tuple(PriceChange(each.starts, each.pricing()) for each in self.price_changes)
        if self.regions is not None:
            fields["availability"] = Availability(regions=self.regions)
        return fields


class CatalogueFile(Strict):
    """A catalogue overlay."""

    models: tuple[ModelEntry, ...] = ()
    prices: dict[ModelId, PricesEntry] = {}
    aliases: dict[Name, ModelId] = {}
    disabled: tuple[ModelId, ...] = ()
    as_of: Day | None = None
    """The day of its facts."""


FileModel = TypeVar("FileModel", bound=Strict)


class Overlay(NamedTuple):
    """What a catalogue file holds, as ``Catalogue.overlaid`` takes it."""

    rows: list[dict[str, Any]]
    aliases: dict[str, str]
    as_of: str | None


def read_catalogue(document: Document, known: Sequence[str]) -> Overlay:
    """Take an overlay of a catalogue that knows some ids.

    Raises ``ValidationFailed`` naming the key.
    """
    file = shaped(document.content, CatalogueFile)
    _check_models(file, known)
    return Overlay([*_rows(file).values()], dict(file.aliases), file.as_of)


def _check_models(file: CatalogueFile, known: Sequence[str]) -> None:
    """Refuse names that mean no model, where a slip would pass as a new one, and aliases that mean two."""
    own = [entry.id for entry in file.models]
    above = {*known}
    for entry in file.models:
        if entry.like is not None:
            _check_known(f"models[{entry.id!r}].like", entry.like, above, own)
        above.add(entry.id)
    for model in file.disabled:
        _check_known("disabled", model, above)
    for model in file.prices:
        _check_known(joined("prices", model), model, above)
    for alias in file.aliases:
        if alias in above:
            raise ValidationFailed.of(Problem(joined("aliases", alias), "is the id of a model", "take another name"))


def _check_known(path: str, model: str, known: set[str], below: Sequence[str] = ()) -> None:
    if model in known:
        return
    if model in below:
        raise ValidationFailed.of(Problem(path, f"{model!r} does not stand above it", "name a model that does"))
    hint = did_you_mean(model, known) or "give it an entry under models"
    raise ValidationFailed.of(Problem(path, f"unknown model {quoted(model)}", hint))


def _rows(file: CatalogueFile) -> dict[str, dict[str, Any]]:
    """The fields that the file gives of each model."""
    rows: dict[str, dict[str, Any]] = {}
    for entry in file.models:
        if entry.id in rows:
            raise ValidationFailed.of(Problem("models", f"{entry.id!r} stands twice", "merge the entries"))
        rows[entry.id] = entry.row()
    for model_id, prices in file.prices.items():
        row = rows.setdefault(model_id, {"id": model_id})
        row["pricing_per_1m"] = prices.pricing()
    for model_id in file.disabled:
        rows.setdefault(model_id, {"id": model_id})["disabled"] = True
    return rows


def shaped(content: object, shape: type[FileModel]) -> FileModel:
    """Hold what a file says to what it should. Raises ``ValidationFailed`` naming the keys."""
    try:
        return shape.model_validate(content)
    except pydantic.ValidationError as error:
        found = error.errors()[:MAX_PROBLEMS]
    raise ValidationFailed.of(*(_problem(shape, dict(each)) for each in found))


def _problem(shape: type[Strict], found: dict[str, Any]) -> Problem:
    loc = [part for part in found["loc"] if part not in _TAGS]
    place = ""
    for part in loc:
        place = joined(place, part)
    if found["type"] == "extra_forbidden":
        return Problem(place, "unknown key", _hint(str(loc[-1]), shape, top=len(loc) == 1))
    if found["type"] == "missing":
        return Problem(place, "is missing", "")
    got = shown(found["input"]) if place else "something else"  # which may be anything, a key too
    said = _SAID.get(found["type"]) or found["msg"].replace("Input should be", "must be", 1)
    return Problem(place, f"{said}, got {got}", "")


def _hint(key: str, shape: type[Strict], *, top: bool) -> str:
    """What to do about an unknown key."""
    if key == "pricing_per_1m":
        return "it is 'prices' in a file"
    holders = _holders(shape)
    if key in holders:
        return _belonging(holders[key], next(iter(shape.model_fields)), top=top)
    return did_you_mean(key, holders) or "remove it"


def _belonging(holder: str, first: str, *, top: bool) -> str:
    """Where a known key goes that stands in the wrong place."""
    if not holder:
        return "it goes to the top of the file"
    return f"it goes into a table: [[{holder}]]" if top and holder == first else f"it goes into {holder!r}"


def _holders(shape: type[Strict]) -> dict[str, str]:
    """Every key that a file of this shape may use, at any depth, with the one that holds it; the top is empty."""
    schema = shape.model_json_schema()
    holders = dict.fromkeys(schema["properties"], "")
    waiting = [schema]
    for each in waiting:
        for name, said in each["properties"].items():
            inner = [schema["$defs"][kind] for kind in _KIND.findall(str(said))]
            waiting += [one for one in inner if one not in waiting]
            for one in inner:
                holders = dict.fromkeys(one["properties"], name) | holders
    return holders
