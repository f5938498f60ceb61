"""Files that people write by hand, checked by pydantic: a catalogue overlay, and policies. TOML or JSON."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import pydantic
from pydantic import Field

from routewright.errors import Problem, ValidationFailed
from routewright.wire import (
    Availability,
    Budget,
    CacheOpts,
    Goal,
    Modality,
    OnPartial,
    Policy,
    PolicyFallback,
    Pricing,
    Strategy,
)

from ._core.problem import did_you_mean

Usd = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
ModelId = Annotated[str, Field(pattern=r"^[^/\s]+/\S+$")]


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
    context_window: Count | None = None
    max_output_tokens: Count | None = None
    modalities: tuple[Modality, ...] | None = None
    structured_output: bool | None = None
    reasoning: bool | None = None
    tokenizer: Literal["o200k_base", "cl100k_base"] | None = None
    quality: Share | None = None
    ttft_s: Annotated[float, Field(gt=0)] | None = None
    tokens_per_s: Annotated[float, Field(gt=0)] | None = None
    prices: PricesEntry | None = None
    regions: tuple[str, ...] | None = None
    deprecated_at: date | None = None
    disabled: bool | None = None

    def row(self) -> dict[str, Any]:
        """The fields of ``Model`` that the entry gives."""
        fields = self.model_dump(exclude_none=True, exclude={"prices", "regions", "deprecated_at"})
        if self.prices is not None:
            fields |= {"pricing_per_1m": Pricing(**self.prices.model_dump()), "free_tier": False}
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
    max_retries: Annotated[int, Field(ge=0, le=5)] | None = None
    on_partial: OnPartial | None = None
    on_refusal: Literal["fail", "fallback"] = "fail"


class BudgetEntry(_Strict):
    """A policy's budget per request."""

    max_cost_usd: Usd | None = None
    max_tokens: Count | None = None


class CacheEntry(_Strict):
    """How a policy's requests may be answered from the cache."""

    mode: Literal["semantic", "exact"] = "semantic"
    max_error: Share | None = None
    threshold: Share | None = None
    ttl_seconds: Annotated[float, Field(gt=0)] = 3600
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
    timeout_ms: Annotated[int, Field(ge=1, le=3_600_000)] | None = None

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


def read_catalogue(path: Path, known: Sequence[str]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Read an overlay of a catalogue that knows some ids: rows for ``Catalogue.overlaid``, and aliases.

    Raises ``ValidationFailed`` naming the file and the key.
    """
    file = _read(path, CatalogueFile)
    _check_names(path, file, {*known, *(entry.id for entry in file.models)})
    rows: dict[str, dict[str, Any]] = {}
    for entry in file.models:
        if entry.id in rows:
            raise ValidationFailed.of(
                Problem(f"{path.name}: models", f"{entry.id!r} stands twice", "merge the entries")
            )
        rows[entry.id] = entry.row()
    for model_id, prices in file.prices.items():
        row = rows.setdefault(model_id, {"id": model_id})
        row |= {"pricing_per_1m": Pricing(**prices.model_dump()), "free_tier": False}
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
            raise ValidationFailed.of(Problem(f"{path.name}: {key}", f"unknown model {model!r}", hint))


def read_policies(path: str | Path) -> list[Policy]:
    """Read policies from a file. Raises ``ValidationFailed`` naming the file and the key."""
    return [entry.policy() for entry in _read(Path(path), PolicyFile).policies]


def _fallback(entry: FallbackEntry) -> PolicyFallback:
    models = None if entry.models is None else list(entry.models)
    return PolicyFallback(models, entry.max_retries, entry.on_partial, entry.on_refusal)


def _read(path: Path, shape: type[FileModel]) -> FileModel:
    try:
        text = path.read_text("utf-8")
        content = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        return shape.model_validate(content)
    except OSError as error:
        raise ValidationFailed.of(Problem(path.name, f"cannot be read: {error.strerror}", "check the path")) from error
    except pydantic.ValidationError as error:
        raise ValidationFailed.of(*(_problem(path, shape, dict(found)) for found in error.errors())) from error
    except ValueError as error:  # both parsers' errors, and bytes that are not UTF-8
        raise ValidationFailed.of(Problem(path.name, str(error), "write TOML, or JSON in a .json file")) from error


def _problem(path: Path, shape: type[_Strict], found: dict[str, Any]) -> Problem:
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in found["loc"]).lstrip(".")
    hint = ""
    if found["type"] == "extra_forbidden":
        hint = did_you_mean(str(found["loc"][-1]), _keys(shape)) or "remove it"
        return Problem(f"{path.name}: {place}", "unknown key", hint)
    return Problem(f"{path.name}: {place}", f"{found['msg']}, got {found['input']!r:.80}", hint)


def _keys(shape: type[_Strict]) -> list[str]:
    """Every key that a file of this shape may use, at any depth."""
    schema = shape.model_json_schema()
    objects = [schema, *schema.get("$defs", {}).values()]
    return [key for each in objects for key in each.get("properties", {})]
