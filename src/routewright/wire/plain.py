"""Results as plain data: dicts, JSON, and what FastAPI and pydantic ask of a type. pydantic is never imported here: its
hook runs only where a program has loaded it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal, Union, get_args, get_origin

import msgspec
from msgspec import json
from msgspec.structs import fields


class PlainData:
    """Gives what its ``_plain`` holds as a dict, as JSON, and to pydantic, in the spelling of HTTP."""

    __slots__ = ()

    _shape: ClassVar[type[msgspec.Struct] | None] = None
    """The type of its ``_plain``; None: its own."""

    @property
    def _plain(self) -> Any:
        """The struct that is encoded."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """What ``to_json`` says, as dicts, lists, texts and numbers."""
        told: dict[str, Any] = json.decode(json.encode(self._plain))
        return told

    def to_json(self, *, indent: int | None = None) -> str:
        """JSON as HTTP would send it, in one line or indented."""
        text = json.encode(self._plain)
        return (text if indent is None else json.format(text, indent=indent)).decode()

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """The items of ``to_dict``, so that ``dict(result)`` is that: FastAPI encodes by it what has no annotation."""
        return iter(self.to_dict().items())

    @classmethod
    def _made_of(cls, value: Any, source: Any) -> Any:
        """A struct of plain data. Raises ``ValueError``, which says what does not fit."""
        try:
            return msgspec.convert(value, source)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from None

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """A value of the type passes, and of plain data a struct is made."""
        from pydantic_core import core_schema as make

        def passed(value: Any, inner: Any) -> Any:
            if isinstance(value, cls):
                return value
            if cls._shape is not None:
                raise ValueError(f"{type(value).__name__} is not {cls.__name__}")
            return cls._made_of(value, source)

        to_plain = make.plain_serializer_function_ser_schema(PlainData.to_dict)
        if cls._shape is not None:
            return make.no_info_wrap_validator_function(
                passed, handler.generate_schema(cls._shape), serialization=to_plain
            )
        ref, shape = f"{cls.__module__}.{_name(source)}:{id(cls)}", {}
        for field in fields(source):
            if field.type == tuple[source, ...]:
                told = make.tuple_variable_schema(make.definition_reference_schema(ref))
            else:
                told = handler.generate_schema(_told(field))
            shape[field.encode_name] = make.typed_dict_field(told, required=field.required)
        config = cls.__struct_config__  # type: ignore[attr-defined]  # it has no other shape, so it is a struct
        if config.tag_field is not None:
            shape = {config.tag_field: make.typed_dict_field(handler.generate_schema(Literal[config.tag]))} | shape
        return make.no_info_wrap_validator_function(
            passed,
            make.typed_dict_schema(shape, cls_name=_name(source)),
            ref=ref,
            serialization=to_plain,
        )


class Struct(PlainData, msgspec.Struct, frozen=True):
    """What all structs share that callers are given."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> Any:
        """The JSON schema, with the docstrings of class and fields as descriptions."""
        from routewright.docstrings import field_docs, prose, summary

        made, told = handler(schema), field_docs(cls)
        shown = handler.resolve_ref_schema(made)
        shown["description"] = summary(cls)
        for field in fields(cls):
            if field.name in told:
                shown["properties"][field.encode_name]["description"] = prose(told[field.name])
        return made


def _told(field: Any) -> Any:
    """The type of a field, where it is not left out."""
    kinds = tuple(each for each in get_args(field.type) if each is not msgspec.UnsetType)
    return Union[kinds] if msgspec.UnsetType in get_args(field.type) else field.type  # noqa: UP007  # of a tuple


def _name(kind: Any) -> str:
    """``Page[Trace]`` for a generic alias, else the name of the class."""
    name: str = (get_origin(kind) or kind).__name__
    return f"{name}[{','.join(map(_name, get_args(kind)))}]" if get_args(kind) else name
