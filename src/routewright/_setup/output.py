"""Output types (``Router.route(output_type=...)``). msgspec parses structs, and types that pydantic cannot."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, get_origin

import msgspec
from pydantic import TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema

from routewright._core.structured_output import Form, Misfit, Unfit, property_names
from routewright.errors import ValidationFailed
from routewright.wire.json_scan import joined
from routewright.wire.problems import shown

MAX_FORMS = 64
"""Cached forms: making one takes up to milliseconds."""

LISTED = 1_000
"""The most errors listed per answer: listing blocks the event loop."""

_ABOUT_THE_TYPE = frozenset(
    "expected gt ge lt le multiple_of pattern min_length max_length actual_length field_type max_digits decimal_places "
    "whole_digits discriminator expected_tags class_name".split()
)
"""Values in pydantic's messages that are not taken from the answer."""
_EXPECTATIONS = ("Expected ", "Object missing required field ", "Invalid RFC3339", "Invalid ISO8601", "Invalid UUID")
"""Prefixes of msgspec's messages that quote nothing from the answer."""
_OTHERWISE = {
    "Invalid enum value": "is none of the choices",
    "Invalid value": "is none of the choices",
    "Object contains unknown field": "has a field that is not one of its type",
}
"""Replacements for messages that do."""
_HINT = "pass a type that JSON can hold: a pydantic model, a msgspec Struct, a dataclass, a TypedDict, list[int] ..."


class _Schema(GenerateJsonSchema):
    """Omits defaults that JSON cannot hold, without a warning: the type has them."""

    ignored_warning_kinds = {"non-serializable-default"}  # noqa: RUF012 (pydantic declares it so)


def form_of(output_type: object) -> Form:
    """The JSON schema and parser of a type. Raises ``ValidationFailed`` for a type without JSON schema."""
    try:
        return _cached_form(output_type)
    except TypeError:  # not hashable
        return _make_form(output_type)


def _make_form(output_type: object) -> Form:
    if isinstance(output_type, str):  # a name, which could only be looked up here
        raise ValidationFailed.at("output_type", f"{shown(output_type)} is a string", "pass the type itself")
    kind = get_origin(output_type) or output_type
    is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    makers = (_by_msgspec,) if is_struct else (_by_pydantic, _by_msgspec)
    reasons = []
    for maker in makers:
        try:
            return maker(output_type)
        except Exception as error:  # types may raise anything
            reasons.append(str(error).partition("\n")[0].rstrip(":"))
    raise ValidationFailed.at("output_type", f"{_name(output_type)} has no JSON schema: {reasons[0]}", _HINT)


_cached_form: Callable[[object], Form] = lru_cache(MAX_FORMS, typed=True)(_make_form)


def _by_pydantic(output_type: Any) -> Form:
    adapter: TypeAdapter[Any] = TypeAdapter(output_type)
    schema = adapter.json_schema(schema_generator=_Schema)
    names = property_names(schema)

    def read(body: bytes) -> object:
        try:
            return adapter.validate_json(body)
        except ValidationError as error:
            count = error.error_count()
            details = [] if count > LISTED else error.errors(include_input=False)
        misfits = []
        for detail in details:
            path = safe_path = ""
            for part in detail["loc"]:
                path = joined(path, part)
                # a dict's key comes from the model
                safe_path = joined(safe_path, part) if isinstance(part, int) or part in names else f"{safe_path}[...]"
            # only pydantic's own errors have a "url"; other messages may quote the answer
            ours = "url" in detail and _ABOUT_THE_TYPE.issuperset(detail.get("ctx", ()))
            kind = detail["type"] if "url" in detail else "its own"
            misfits.append(Misfit(detail["msg"] if ours else f"fails a check ({kind})", detail["msg"], safe_path, path))
        message = f"does not fit in {count} places"
        raise Unfit(misfits or [Misfit(message, message)])

    return Form(_name(output_type), schema, read)


def _by_msgspec(output_type: object) -> Form:
    decoder = msgspec.json.Decoder(output_type)

    def read(body: bytes) -> object:
        try:
            return decoder.decode(body)
        except msgspec.ValidationError as error:
            parts = str(error).rsplit(" - at `$", 1)
            is_own = error.__cause__ is not None  # a check of the type's own
        problem = safe_problem = parts[0]
        path = "".join(parts[1:]).removesuffix("`").lstrip(".")
        if is_own or not problem.startswith(_EXPECTATIONS):
            replacements = (words for start, words in _OTHERWISE.items() if problem.startswith(start) and not is_own)
            safe_problem = next(replacements, "fails a check of its type")
        raise Unfit([Misfit(safe_problem, problem, path, path)])

    return Form(_name(output_type), msgspec.json.schema(output_type), read)


def _name(output_type: object) -> str:
    name = getattr(output_type, "__name__", None)
    return name if isinstance(name, str) else str(output_type)
