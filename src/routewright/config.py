"""Files that people write by hand, checked by pydantic: a catalogue overlay, and policies. TOML or JSON."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import pydantic
from msgspec import Struct
from pydantic import Field
from pydantic_core import PydanticCustomError

from routewright.errors import Problem, ValidationFailed
from routewright.wire import (
    Availability,
    Budget,
    CacheOpts,
    Goal,
    Modality,
    Model,
    OnPartial,
    Policy,
    PolicyFallback,
    Pricing,
    Strategy,
    Tokenizer,
)

from ._core.problem import did_you_mean, shown
from ._core.rules import MAX_PROBLEMS, MODEL_ID, NUMBERS


def _within(kind: type[Struct], name: str) -> pydantic.AfterValidator:
    """What the same number of the struct may be."""
    allowed = NUMBERS[kind][name]

    def check(value: float) -> float:
        if not allowed.admits(value):
            raise PydanticCustomError("range", "must be {allowed}", {"allowed": str(allowed)})
        return value

    return pydantic.AfterValidator(check)


_STRICT = Field(strict=True)  # else true would be 1, and "5" a number
Usd = Annotated[float, _STRICT, _within(Pricing, "input_usd")]
Share = Annotated[float, _STRICT, _within(CacheOpts, "explore")]
Tokens = Annotated[int, _STRICT, _within(Model, "context_window")]
ModelId = Annotated[str, Field(pattern=f"^{MODEL_ID.pattern}$")]


class _Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class PricesEntry(_Strict):
    """US dollars per one million tokens."""

    input_usd: Usd
    output_usd: Usd
    cached_input_usd: Usd | None = None
    cache_write_usd: Usd | None = None


class ModelEntry(_Strict):
    """A model of your own, or changes to a bundled one. A new one needs ``prices`` to be used under a budget."""

    id: ModelId
    like: str | None = None
    provider_model_id: str | None = None
    display_name: str | None = None
    context_window: Tokens | None = None
    max_output_tokens: Tokens | None = None
    modalities: tuple[Modality, ...] | None = None
    structured_output: bool | None = None
    reasoning: bool | None = None
    tokenizer: Tokenizer | None = None
    quality: Share | None = None
    ttft_s: Annotated[float, _STRICT, _within(Model, "ttft_s")] | None = None
    tokens_per_s: Annotated[float, _STRICT, _within(Model, "tokens_per_s")] | None = None
    prices: PricesEntry | None = None
    regions: tuple[str, ...] | None = None
    deprecated_at: date | None = None
    disabled: bool | None = None

    def row(self) -> dict[str, Any]:
        """The fields of ``Model`` that the entry gives."""
        fields = self.model_dump(exclude_none=True, exclude={"prices", "regions", "deprecated_at"})
        if self.prices is not None:
            fields["pricing_per_1m"] = Pricing(**self.prices.model_dump())
        if self.regions is not None:
            fields["availability"] = Availability(regions=self.regions)
        if self.deprecated_at is not None:
            fields["deprecated_at"] = self.deprecated_at.isoformat()
        return fields


class CatalogueFile(_Strict):
    """A catalogue overlay."""

    models: tuple[ModelEntry, ...] = ()
    prices: dict[ModelId, PricesEntry] = {}
    aliases: dict[str, ModelId] = {}
    disabled: tuple[ModelId, ...] = ()


class FallbackEntry(_Strict):
    """A policy's own chain."""

    models: tuple[str, ...] | None = None
    max_retries: Annotated[int, _STRICT, _within(PolicyFallback, "max_retries")] | None = None
    on_partial: OnPartial | None = None
    on_refusal: Literal["fail", "fallback"] = "fail"


class BudgetEntry(_Strict):
    """A policy's budget per request."""

    max_cost_usd: Annotated[float, _STRICT, _within(Budget, "max_cost_usd")] | None = None
    max_tokens: Annotated[int, _STRICT, _within(Budget, "max_tokens")] | None = None


class CacheEntry(_Strict):
    """How a policy's requests may be answered from the cache."""

    mode: Literal["semantic", "exact"] = "semantic"
    max_error: Share | None = None
    threshold: Share | None = None
    ttl_seconds: Annotated[float, _STRICT, _within(CacheOpts, "ttl_seconds")] = 3600
    explore: Share = 0.02
    namespace: str | None = None

    @pydantic.model_validator(mode="after")
    def _one_bound(self) -> CacheEntry:
        if self.max_error is not None and self.threshold is not None:
            raise ValueError("give max_error or threshold, not both")
        return self


class PolicyEntry(_Strict):
    """One policy."""

    name: Annotated[str, Field(min_length=1, pattern=r"^[^@]+$")]
    id: str = ""
    goal: Goal | None = None
    strategy: Strategy | None = None
    models: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    regions: tuple[str, ...] | None = None
    fallback: FallbackEntry | None = None
    budget: BudgetEntry | None = None
    cache: bool | CacheEntry | None = None
    timeout_ms: Annotated[int, _STRICT, _within(Policy, "timeout_ms")] | None = None

    def policy(self) -> Policy:
        """The policy as the library knows it."""
        return Policy(
            name=self.name,
            id=self.id,
            goal=self.goal,
            strategy=self.strategy,
            models=None if self.models is None else list(self.models),
            regions=None if self.regions is None else list(self.regions),
            fallback=None if self.fallback is None else _fallback(self.fallback),
            budget=None if self.budget is None else Budget(self.budget.max_cost_usd, self.budget.max_tokens),
            cache=CacheOpts(**self.cache.model_dump()) if isinstance(self.cache, CacheEntry) else self.cache,
            timeout_ms=self.timeout_ms,
        )


class PolicyFile(_Strict):
    """Policies."""

    policies: tuple[PolicyEntry, ...]


FileModel = TypeVar("FileModel", bound=_Strict)


def read_catalogue(given: str | Path, known: Sequence[str]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Read an overlay of a catalogue that knows some ids: rows for ``Catalogue.overlaid``, and aliases.

    Raises ``ValidationFailed`` naming the file and the key.
    """
    path = _path(given)
    file = _read(path, CatalogueFile)
    _check_names(path, file, {*known, *(entry.id for entry in file.models)})
    rows: dict[str, dict[str, Any]] = {}
    for entry in file.models:
        if entry.id in rows:
            raise ValidationFailed.of(Problem(f"{path}: models", f"{entry.id!r} stands twice", "merge the entries"))
        rows[entry.id] = entry.row()
    for model_id, prices in file.prices.items():
        row = rows.setdefault(model_id, {"id": model_id})
        row["pricing_per_1m"] = Pricing(**prices.model_dump())
    for model_id in file.disabled:
        rows.setdefault(model_id, {"id": model_id})["disabled"] = True
    return list(rows.values()), dict(file.aliases)


def _check_names(path: Path, file: CatalogueFile, known: set[str]) -> None:
    """Refuse names that mean no model: a slip in one would else pass as a new model."""
    named = [("disabled", model) for model in file.disabled]
    named += [(f"prices.{model}", model) for model in file.prices]
    named += [(f"models[{entry.id!r}].like", entry.like) for entry in file.models if entry.like is not None]
    for key, model in named:
        if model not in known:
            hint = did_you_mean(model, known) or "give it an entry under models"
            raise ValidationFailed.of(Problem(f"{path}: {key}", f"unknown model {model!r}", hint))


def read_policies(path: str | Path) -> list[Policy]:
    """Read policies from a file. Raises ``ValidationFailed`` naming the file and the key."""
    return [entry.policy() for entry in _read(_path(path), PolicyFile).policies]


def _fallback(entry: FallbackEntry) -> PolicyFallback:
    models = None if entry.models is None else list(entry.models)
    return PolicyFallback(models, entry.max_retries, entry.on_partial, entry.on_refusal)


def _path(given: object) -> Path:
    if not isinstance(given, str | os.PathLike):
        raise ValidationFailed.of(Problem("path", f"{shown(given)} is not the path of a file", "pass 'models.toml'"))
    return Path(given)


def _read(path: Path, shape: type[FileModel]) -> FileModel:
    try:
        text = path.read_text("utf-8")
        content = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        return shape.model_validate(content)
    except OSError as error:
        raise ValidationFailed.of(Problem(str(path), f"cannot be read: {error.strerror}", "check the path")) from error
    except pydantic.ValidationError as error:
        found = error.errors()[:MAX_PROBLEMS]
        raise ValidationFailed.of(*(_problem(path, shape, dict(each)) for each in found)) from None
    except RecursionError:
        raise ValidationFailed.of(Problem(str(path), "nests too deep to be read", "flatten it")) from None
    except ValueError as error:  # both parsers' errors, and bytes that are not UTF-8
        raise ValidationFailed.of(Problem(str(path), str(error), "write TOML, or JSON in a .json file")) from error


def _problem(path: Path, shape: type[_Strict], found: dict[str, Any]) -> Problem:
    *_, key = loc = found["loc"] or ("",)
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")
    if found["type"] == "extra_forbidden":
        return Problem(f"{path}: {place}", "unknown key", _hint(str(key), shape, top=len(loc) == 1))
    if found["type"] == "missing":
        return Problem(f"{path}: {place}", "is missing", "")
    got = shown(found["input"]) if place else "something else"  # which may be anything, a key too
    return Problem(f"{path}: {place}", f"{_said(found)}, got {got}", "")


def _hint(key: str, shape: type[_Strict], *, top: bool) -> str:
    """What to do about an unknown key."""
    if key == "pricing_per_1m":
        return "it is 'prices' in a file"
    known = _keys(shape)
    if top and key in known:
        return f"it goes into a table: [[{next(iter(shape.model_fields))}]]"
    return did_you_mean(key, known) or "remove it"


def _said(found: dict[str, Any]) -> str:
    match found["type"]:
        case "tuple_type":
            return "must be an array"
        case "string_pattern_mismatch":
            return "must be 'provider/name', without spaces"
        case _:
            words: str = found["msg"]
            return words.replace("Input should be", "must be", 1)


def _keys(shape: type[_Strict]) -> list[str]:
    """Every key that a file of this shape may use, at any depth."""
    schema = shape.model_json_schema()
    objects = [schema, *schema.get("$defs", {}).values()]
    return [key for each in objects for key in each.get("properties", {})]
