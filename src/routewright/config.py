"""The files that people write, as pydantic models: catalogue overlays and policies; and messages for their mistakes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import pydantic
from msgspec import Struct
from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from routewright.errors import Problem, ValidationFailed
from routewright.wire import (
    Availability,
    Budget,
    CacheOpts,
    Capability,
    Feature,
    Goal,
    GuardrailAction,
    Modality,
    Model,
    OnPartial,
    PatternKind,
    Policy,
    PolicyFallback,
    PolicyGuardrail,
    PolicyWeights,
    PriceChange,
    PriceTier,
    Pricing,
    Stage,
    Strategy,
    Tokenizer,
)

from ._core.policy import check_apart, checked_policy
from ._core.request.json_scan import joined, quoted
from ._core.request.problems import did_you_mean, shown
from ._core.request.rules import A_NAME, MAX_PROBLEMS, MODEL_ID, NUMBERS, is_date, is_day, is_name
from .document import Document, path_of, read, read_module

_KIND = re.compile(r"#/\$defs/(\w+)")
"""References in pydantic's schema."""
_TAGS = ("[key]", "<switch>", "<table>")
"""Parts of pydantic's places that no file contains."""
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
"""Our words for pydantic's kinds of error."""


def within(kind: type[Struct], name: str) -> AfterValidator:
    """Checks the range of the struct's field of that name."""
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
    """A TOML date or timestamp, or one as text."""
    text = value.isoformat() if isinstance(value, date) else value
    if not isinstance(text, str) or not is_date(text):
        raise PydanticCustomError("date", "must be a date or timestamp")
    return text


def _day(value: object) -> str:
    """A TOML date, or one as text."""
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
    """Refuses unknown keys."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


FileModel = TypeVar("FileModel", bound=Strict)


def shaped(content: object, shape: type[FileModel]) -> FileModel:
    """Validate the content of a file. Raises ``ValidationFailed`` naming the keys."""
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
    holder = holders.get(key)
    if holder is None:
        return did_you_mean(key, holders) or "remove it"
    if not holder:
        return "it goes to the top of the file"
    first = next(iter(shape.model_fields))
    return f"it goes into a table: [[{holder}]]" if top and holder == first else f"it goes into {holder!r}"


def _holders(shape: type[Strict]) -> dict[str, str]:
    """Every key of a shape, at any depth, with the key that contains it; empty for the top level."""
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
            raise ValidationFailed.at(joined("aliases", alias), "is the id of a model", "take another name")


def _check_known(path: str, model: str, known: set[str], below: Sequence[str] = ()) -> None:
    if model in known:
        return
    if model in below:
        raise ValidationFailed.at(path, f"{model!r} does not stand above it", "name a model that does")
    hint = did_you_mean(model, known) or "give it an entry under models"
    raise ValidationFailed.at(path, f"unknown model {quoted(model)}", hint)


def _rows(file: CatalogueFile) -> dict[str, dict[str, Any]]:
    """The fields that the file gives of each model."""
    rows: dict[str, dict[str, Any]] = {}
    for entry in file.models:
        if entry.id in rows:
            raise ValidationFailed.at("models", f"{entry.id!r} stands twice", "merge the entries")
        rows[entry.id] = entry.row()
    for model_id, prices in file.prices.items():
        row = rows.setdefault(model_id, {"id": model_id})
        row["pricing_per_1m"] = prices.pricing()
    for model_id in file.disabled:
        rows.setdefault(model_id, {"id": model_id})["disabled"] = True
    return rows


class WeightsEntry(Strict):
    """What counts how much in the score: whole per cent that make 100."""

    quality: Annotated[int, STRICT, within(PolicyWeights, "quality")]
    """Of the answer, by the catalogue or your own prediction."""
    cost: Annotated[int, STRICT, within(PolicyWeights, "cost")]
    """Expected, of the request."""
    latency: Annotated[int, STRICT, within(PolicyWeights, "latency")]
    """Expected, to the whole answer."""
    stability: Annotated[int, STRICT, within(PolicyWeights, "stability")]
    """Share of calls that succeed."""


class FallbackEntry(Strict):
    """A policy's own chain."""

    models: tuple[str, ...] | None = None
    """The chain, in this order: ids and aliases of models that the policy allows; `[]` for none."""
    max_retries: Annotated[int, STRICT, within(PolicyFallback, "max_retries")] | None = None
    """Further tries of one model."""
    on_partial: OnPartial | None = None
    """What follows when a model fails within its answer."""
    on_refusal: Literal["fail", "fallback"] = "fail"
    """`fallback`: ask the next model when a provider's moderation refuses."""
    hedge: Switch = False
    """Ask the next model, too, where the first shows no life for longer than it usually takes."""


class BudgetEntry(Strict):
    """A policy's budget per request."""

    max_cost_usd: Annotated[float, STRICT, within(Budget, "max_cost_usd")] | None = None
    """Dollars for all attempts together."""
    max_tokens: Annotated[int, STRICT, within(Budget, "max_tokens")] | None = None
    """Input and output tokens together."""


class CacheEntry(Strict):
    """How a policy's requests may be answered from the cache."""

    mode: Literal["semantic", "exact"] = "semantic"
    """Answers of similar requests, or of the same alone."""
    max_error: Share | None = None
    """Share of requests that may get a wrong answer; or else ..."""
    threshold: Share | None = None
    """... how similar a request must be."""
    ttl_seconds: Annotated[float, STRICT, within(CacheOpts, "ttl_seconds")] = 3600
    """How long an answer is kept."""
    explore: Share = 0.02
    """Share of hits that are answered anew, to measure the error."""
    namespace: str | None = None
    """Keeps answers apart."""


class GuardrailEntry(Strict):
    """What a policy redacts or blocks."""

    patterns: tuple[PatternKind, ...] | None = None
    """Kinds of data to look for."""
    deny: tuple[str, ...] | None = None
    """Words and phrases to look for, in any case."""
    action: GuardrailAction
    """What is done with what is found."""
    stages: tuple[Stage, ...] | None = None
    """Where to look: by default in both."""


def _cache_kind(value: object) -> str:
    return "<switch>" if isinstance(value, bool) else "<table>"


CacheSetting = Annotated[
    Annotated[bool, Tag("<switch>")] | Annotated[CacheEntry, Tag("<table>")], Discriminator(_cache_kind)
]


class PolicyEntry(Strict):
    """One policy."""

    name: Name
    """How requests call it; without `@`."""
    id: str = ""
    """The other way to call it. Made from the name, so it stays the same everywhere."""
    goal: Goal | None = None
    """In the place of the request's."""
    strategy: Strategy | None = None
    """In the place of the request's."""
    weights: WeightsEntry | None = None
    """In the place of goal and strategy, which must then be left out."""
    models: tuple[str, ...] | None = None
    """What is allowed: ids, aliases, globs, `provider:x`, `tag:x`, `capability:x`."""
    exclude: tuple[str, ...] | None = None
    """What of these is not, in the same words."""
    capabilities: tuple[Capability, ...] | None = None
    """Only models that can do all of these."""
    regions: tuple[Name, ...] | None = None
    """Only models known to be served from all of these."""
    min_quality: Annotated[float, STRICT, within(Policy, "min_quality")] | None = None
    """Only models of at least this quality."""
    max_latency_ms: Annotated[int, STRICT, within(Policy, "max_latency_ms")] | None = None
    """Only models whose whole answer is expected within this time."""
    prefer: tuple[str, ...] | None = None
    """Tried first, in this order, where they pass: ids and aliases of models that the policy allows."""
    fallback: FallbackEntry | None = None
    """The chain, in the place of ours."""
    budget: BudgetEntry | None = None
    """The most that a request may use."""
    cache: CacheSetting | None = None
    """Whether and how answers may come from the cache. A request may switch it off or tighten it."""
    timeout_ms: Annotated[int, STRICT, within(Policy, "timeout_ms")] | None = None
    """For everything."""
    guardrails: tuple[GuardrailEntry, ...] | None = None
    """What is redacted or blocked, in this order. Several tables."""

    def policy(self) -> Policy:
        """The policy as the library knows it."""
        fields = _fields(self)
        for name, kind in _PARTS.items():
            if isinstance(fields[name], Strict):
                fields[name] = kind(**_fields(fields[name]))
        if self.guardrails is not None:
            fields["guardrails"] = [PolicyGuardrail(**_fields(each)) for each in self.guardrails]
        return Policy(**fields)


_PARTS: dict[str, type[Struct]] = {
    "weights": PolicyWeights,
    "fallback": PolicyFallback,
    "budget": Budget,
    "cache": CacheOpts,
}


def _fields(entry: Strict) -> dict[str, Any]:
    return {name: [*value] if isinstance(value, tuple) else value for name, value in entry}


class PoliciesFile(Strict):
    """Policies."""

    policies: tuple[PolicyEntry, ...]


def read_policy_document(given: str | Path) -> Document:
    """Read a file of policies, without validating it. Raises ``ValidationFailed`` naming the file."""
    path = path_of(given)
    return read_module(path, "policies") if path.suffix.lower() == ".py" else read(path)


def policies_of(document: Document) -> list[Policy]:
    """The policies of a file; a Python file may have made some itself. Raises ``ValidationFailed`` naming the key."""
    content = document.content
    if not isinstance(content, dict) or "policies" not in content:
        shaped(content, PoliciesFile)
    items: Sequence[Any] = content["policies"]
    if not isinstance(items, list | tuple):  # an iterator, say, which is empty once it was looked at
        raise ValidationFailed.at("policies", f"must be an array, got {shown(items)}")
    plain = [{"name": "made"} if isinstance(item, Policy) else item for item in items]
    entries = shaped(content | {"policies": plain}, PoliciesFile).policies
    made = [item if isinstance(item, Policy) else entry.policy() for item, entry in zip(items, entries, strict=True)]
    policies = [checked_policy(policy, place) for place, policy in enumerate(made)]
    check_apart(policies)
    return policies
