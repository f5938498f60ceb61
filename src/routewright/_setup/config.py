"""Pydantic models of catalogue and policy files, with messages for mistakes in them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import date
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin

import pydantic
from msgspec import Struct, convert
from msgspec.structs import fields
from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from routewright import wire
from routewright._core.catalogue.models import check_pricing
from routewright._core.policy import check_apart, check_policy
from routewright._core.request.rules import A_NAME, MAX_PROBLEMS, MODEL_ID, NUMBERS, Range, is_date, is_day, is_name
from routewright.errors import Problem, ValidationFailed
from routewright.wire import JsonObject
from routewright.wire.foreign import HINTS
from routewright.wire.json_scan import joined, quoted
from routewright.wire.problems import did_you_mean, example, in_json, shown

from .input_file import Document

T = TypeVar("T")

_TAGS = ("[key]", "<switch>", "<table>")
"""Parts of pydantic's error locations that are not keys of the file."""
_MESSAGES = {
    "bool_type": "must be true or false",
    "float_type": "must be a number",
    "int_type": "must be a whole number",
    "model_type": "must be a table or object",
    "dict_type": "must be a table or object",
    "string_type": "must be a string",
    "tuple_type": "must be an array",
    "string_pattern_mismatch": "must be 'provider/name', without spaces",
}
"""Messages for pydantic's kinds of error."""


def _name(text: str) -> str:
    if not is_name(text):
        raise PydanticCustomError("name", "must be {allowed}", {"allowed": A_NAME})
    return text


def _dated(holds: Callable[[str], bool], form: str) -> BeforeValidator:
    """Takes a TOML date or timestamp, or one as text."""

    def check(value: object) -> str:
        text = value.isoformat() if isinstance(value, date) else value
        if not isinstance(text, str) or not holds(text):
            raise PydanticCustomError("date", "must be {said}", {"said": form})
        return text

    return BeforeValidator(check)


STRICT = Field(strict=True)  # otherwise true would be 1, "5" a number, and "off" false
Day = Annotated[str, _dated(is_day, "a date, YYYY-MM-DD")]
Switch = Annotated[bool, STRICT]
Name = Annotated[str, AfterValidator(_name)]
ModelId = Annotated[str, Field(pattern=f"^{MODEL_ID.pattern}$"), AfterValidator(_name)]


class Strict(pydantic.BaseModel):
    """Refuses unknown keys."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


FileModel = TypeVar("FileModel", bound=Strict)


def within(allowed: Range) -> AfterValidator:
    """Checks the range of a number."""

    def check(value: float) -> float:
        if not allowed.admits(value):
            raise PydanticCustomError("range", "must be {allowed}", {"allowed": str(allowed)})
        return value

    return AfterValidator(check)


def _file_type(kind: Any, allowed: Range | None) -> Any:
    """The type of a file's key for a struct's field: strict, arrays as tuples, structs as tables."""
    origin, args = get_origin(kind), get_args(kind)
    if kind in (bool, int, float):
        number = int if allowed is not None and allowed.whole else kind
        return Annotated[number, STRICT] if allowed is None else Annotated[number, STRICT, within(allowed)]
    if isinstance(kind, type) and issubclass(kind, Struct):
        return entry_of(kind)
    if origin in (list, tuple):
        item: Any = _file_type(args[0], None)
        return tuple[item, ...]
    if origin not in (Union, UnionType):
        return kind
    base, *table = [_file_type(arg, allowed) for arg in args if arg is not NoneType]
    if table:
        union: Any = Annotated[base, Tag("<switch>")] | Annotated[table[0], Tag("<table>")]
        base = Annotated[union, Discriminator(lambda value: "<switch>" if isinstance(value, bool | str) else "<table>")]
    return base | None if NoneType in args else base


def entry_of(kind: type[Struct], *, without: Collection[str] = (), **others: Any) -> Any:
    """The model of a table that becomes a struct. ``others``: fields with types of their own, and their defaults."""
    ranges = NUMBERS.get(kind, {})
    keys = {**others}
    for field in fields(kind):
        if field.name not in without and field.name not in others:
            key = Field(... if field.required else field.default, serialization_alias=field.encode_name)
            keys[field.name] = (_file_type(field.type, ranges.get(field.name)), key)
    return pydantic.create_model(f"{kind.__name__}Entry", __base__=Strict, __doc__=kind.__doc__, **keys)


def _struct_of(kind: type[T], entry: Strict, **how: Any) -> T:
    return convert(entry.model_dump(by_alias=True, **how), kind)


def validate(content: object, shape: type[FileModel]) -> FileModel:
    """Validate the content of a file. Raises ``ValidationFailed`` naming the keys."""
    try:
        return shape.model_validate(content)
    except pydantic.ValidationError as error:
        details = error.errors()[:MAX_PROBLEMS]
    problems = []
    for detail in details:
        loc = [part for part in detail["loc"] if part not in _TAGS]
        path = ""
        for part in loc:
            path = joined(path, part)
        if detail["type"] == "extra_forbidden":
            problem = Problem(path, "unknown key", _hint(loc, shape))
        elif detail["type"] == "missing":
            problem = Problem(path, "is missing", "add it")
        else:
            got = in_json(shown(detail["input"])) if path else "something else"  # at the top it may be anything
            message = _MESSAGES.get(detail["type"]) or detail["msg"].replace("Input should be", "must be", 1)
            problem = Problem(path, f"{message}, got {got}", example(path) or "correct the value")
        problems.append(problem)
    raise ValidationFailed.of(*problems)


def _hint(loc: Sequence[str | int], shape: type[Strict]) -> str:
    """The hint for the unknown key at ``loc``: its own table's keys come first."""
    key = str(loc[-1])
    if key in HINTS["files"]:
        return HINTS["files"][key]
    schema = shape.model_json_schema()
    own = [schema]
    for step in loc[:-1]:
        inside = [table.get("properties", {}).get(step) or table.get("items") for table in own]
        inside += [table.get("additionalProperties") for table in own]
        inside += [inner for table in own for inner in table.get("patternProperties", {}).values()]
        own = [branch for inner in inside if isinstance(inner, dict) for branch in _branches(inner, schema["$defs"])]
    keys = [name for table in own for name in table.get("properties", ())]
    others = {name for table in (schema, *schema["$defs"].values()) for name in table["properties"]}
    rest = "it belongs in another table" if key in others else f"known: {', '.join(keys)}"
    return did_you_mean(key, keys) or rest


def _branches(schema: JsonObject, tables: JsonObject) -> Iterator[JsonObject]:
    """The schema that a reference names, or all schemas of a union."""
    yield tables[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    for branch in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from _branches(branch, tables)


PricesEntry = entry_of(wire.Pricing)
PriceChangeEntry = pydantic.create_model("PriceChangeEntry", __base__=PricesEntry, starts=(Day, ...))
ModelEntry = entry_of(
    wire.Model,
    without=("provider", "pricing_per_1m", "availability", "released_at", "free_tier"),
    id=(ModelId, ...),
    provider_model_id=(Name | None, None),
    display_name=(Name | None, None),
    prices=(PricesEntry | None, None),
    price_changes=(tuple[PriceChangeEntry, ...] | None, None),  # type: ignore[valid-type]
    regions=(tuple[Name, ...] | None, None),
    deprecated_at=(Annotated[str, _dated(is_date, "a date or timestamp")] | None, None),
    tags=(tuple[Name, ...] | None, None),
)
"""A model of your own, or changes to a bundled one. A new one needs ``prices`` to be used under a budget."""


class CatalogueFile(Strict):
    """A catalogue overlay."""

    models: tuple[ModelEntry, ...] = ()  # type: ignore[valid-type]
    prices: dict[ModelId, PricesEntry] = {}  # type: ignore[valid-type]
    aliases: dict[Name, ModelId] = {}
    disabled: tuple[ModelId, ...] = ()
    as_of: Day | None = None
    """The date of its facts."""


class Overlay(NamedTuple):
    """The arguments of ``Catalogue.overlaid``."""

    rows: list[JsonObject]
    aliases: dict[str, str]
    as_of: str | None
    untiered: frozenset[str]
    """Models whose prices in the file do not mention ``tiers``."""


def read_catalogue(document: Document, known: Sequence[str]) -> Overlay:
    """Read an overlay of a catalogue with the ids ``known``.

    Raises ``ValidationFailed`` naming the key."""
    file = validate(document.content, CatalogueFile)
    # names of unknown models are refused, and aliases that are also ids
    entries: tuple[Any, ...] = file.models
    own_ids = [entry.id for entry in entries]
    ids_above = {*known}
    for entry in entries:
        if entry.like is not None:
            _check_known(f"models[{entry.id!r}].like", entry.like, ids_above, own_ids)
        ids_above.add(entry.id)
    for model in file.disabled:
        _check_known("disabled", model, ids_above)
    for model in file.prices:
        _check_known(joined("prices", model), model, ids_above)
    for alias in file.aliases:
        if alias in ids_above:
            raise ValidationFailed.at(joined("aliases", alias), "is the id of a model", "take another name")
    rows: dict[str, JsonObject] = {}
    for entry in entries:
        if entry.id in rows:
            raise ValidationFailed.at("models", f"{entry.id!r} has two entries", "merge them")
        row = entry.model_dump(exclude_none=True, exclude={"prices", "price_changes", "regions"})
        if entry.prices is not None:
            row["pricing_per_1m"] = _struct_of(wire.Pricing, entry.prices)
        if entry.price_changes is not None:
            row["price_changes"] = tuple(
                wire.PriceChange(change.starts, _struct_of(wire.Pricing, change, exclude={"starts"}))
                for change in entry.price_changes
            )
        if entry.regions is not None:
            row["availability"] = wire.Availability(regions=entry.regions)
        rows[entry.id] = row
    problems: list[Problem] = []
    for model_id, prices in file.prices.items():
        row = rows.setdefault(model_id, {"id": model_id})
        row["pricing_per_1m"] = _struct_of(wire.Pricing, prices)
        check_pricing(joined("prices", model_id), row["pricing_per_1m"], problems)
    if problems:
        raise ValidationFailed.of(*problems[:MAX_PROBLEMS])
    for model_id in file.disabled:
        rows.setdefault(model_id, {"id": model_id})["disabled"] = True
    own_prices = {entry.id: entry.prices for entry in entries if entry.prices is not None} | file.prices
    untiered = frozenset(id for id, prices in own_prices.items() if "tiers" not in prices.model_fields_set)
    return Overlay([*rows.values()], dict(file.aliases), file.as_of, untiered)


def _check_known(path: str, model: str, known: set[str], below: Sequence[str] = ()) -> None:
    if model in known:
        return
    if model in below:
        raise ValidationFailed.at(path, f"{model!r} is defined below it", "name a model that is defined above")
    hint = " or ".join(filter(None, (did_you_mean(model, known), "give it an entry under [[models]]")))
    raise ValidationFailed.at(path, f"unknown model {quoted(model)}", hint)


ParamsEntry = entry_of(wire.Params, without=("stop", "seed", "response_format"))
PolicyClassEntry = entry_of(
    wire.PolicyClass, regions=(tuple[Name, ...] | None, None), params=(ParamsEntry | None, None)
)
PolicyEntry = entry_of(
    wire.Policy,
    without=("created_at",),
    name=(Name, ...),
    regions=(tuple[Name, ...] | None, None),
    params=(ParamsEntry | None, None),
    classes=(tuple[PolicyClassEntry, ...] | None, None),  # type: ignore[valid-type]
)


class PoliciesFile(Strict):
    """Policies."""

    policies: tuple[PolicyEntry, ...]  # type: ignore[valid-type]


def policies_of(document: Document) -> list[wire.Policy]:
    """The policies of a file. Raises ``ValidationFailed`` naming the key."""
    entries: tuple[Strict, ...] = validate(document.content, PoliciesFile).policies
    policies = [check_policy(_struct_of(wire.Policy, entry), index) for index, entry in enumerate(entries)]
    check_apart(policies)
    return policies
