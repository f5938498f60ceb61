"""Results as dicts, JSON and HTML, and the hooks for pydantic and FastAPI. Never imports pydantic: its hooks run only
in programs that have loaded it."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any, ClassVar, Literal, Union, get_args, get_origin

import msgspec
from msgspec import json
from msgspec.structs import fields

JsonObject = dict[str, Any]
"""A JSON object whose fields no type declares: a schema, metadata, arguments of a tool, a body to send."""


class PlainData:
    """Converts to a dict, JSON and pydantic, with the field names of the HTTP API."""

    __slots__ = ()

    _shape: ClassVar[type[msgspec.Struct] | None] = None
    """The type of ``_plain``. None: the class itself."""

    @property
    def _plain(self) -> Any:
        """The struct that is encoded."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """The content of ``to_json`` as plain Python data."""
        data: dict[str, Any] = json.decode(json.encode(self._plain))
        return data

    def to_json(self, *, indent: int | None = None) -> str:
        """JSON as the HTTP API sends it, in one line or indented."""
        text = json.encode(self._plain)
        return (text if indent is None else json.format(text, indent=indent)).decode()

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """The items of ``to_dict``, so that ``dict(result)`` works. FastAPI uses it to encode unannotated results."""
        return iter(self.to_dict().items())

    @classmethod
    def _convert(cls, value: Any, source: Any) -> Any:
        """Convert plain data to the struct. Raises ``ValueError`` with the reason."""
        try:
            return msgspec.convert(value, source)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from None

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Accept an instance, or plain data that converts to one."""
        from pydantic_core import core_schema as make

        def passed(value: object, inner: object) -> object:
            if isinstance(value, cls):
                return value
            if cls._shape is not None:
                raise ValueError(f"{type(value).__name__} is not {cls.__name__}")
            return cls._convert(value, source)

        to_plain = make.plain_serializer_function_ser_schema(PlainData.to_dict)
        if cls._shape is not None:
            return make.no_info_wrap_validator_function(
                passed, handler.generate_schema(cls._shape), serialization=to_plain
            )
        ref = f"{cls.__module__}.{_name(source)}:{id(cls)}"
        shape = {}
        for field in fields(source):
            if field.type == tuple[source, ...]:
                schema = make.tuple_variable_schema(make.definition_reference_schema(ref))
            else:
                kind = field.type
                if msgspec.UnsetType in get_args(kind):
                    kind = Union[tuple(part for part in get_args(kind) if part is not msgspec.UnsetType)]  # noqa: UP007
                schema = handler.generate_schema(kind)
            shape[field.encode_name] = make.typed_dict_field(schema, required=field.required)
        config = cls.__struct_config__  # type: ignore[attr-defined]  # without a ``_shape`` it is a struct
        if config.tag_field is not None:
            shape = {config.tag_field: make.typed_dict_field(handler.generate_schema(Literal[config.tag]))} | shape
        return make.no_info_wrap_validator_function(
            passed, make.typed_dict_schema(shape, cls_name=_name(source)), ref=ref, serialization=to_plain
        )


class Struct(PlainData, msgspec.Struct, frozen=True):
    """Base of the structs that callers get."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> Any:
        """Add the docstrings of class and fields to the JSON schema as descriptions."""
        from routewright.wire.docstrings import field_docs, prose, summary

        json_schema = handler(schema)
        docs = field_docs(cls)
        resolved = handler.resolve_ref_schema(json_schema)
        resolved["description"] = summary(cls)
        for field in fields(cls):
            if field.name in docs:
                resolved["properties"][field.encode_name]["description"] = prose(docs[field.name])
        return json_schema


class StreamEvent(Struct, frozen=True, tag_field="event"):
    """Base of the events of a stream. ``event`` is the name, ``data`` the payload; ``id`` counts from 1."""

    event: ClassVar[str]
    id: int
    data: object

    def to_sse(self) -> bytes:
        """The event as the HTTP API sends it, with the empty line that ends it."""
        return b"event: %s\nid: %d\ndata: %s\n\n" % (self.event.encode(), self.id, json.encode(self.data))


def name_events(union: Any) -> None:
    """Set ``event`` of the members of a union to their tags."""
    for kind in get_args(union):
        kind.event = kind.__struct_config__.tag


def preformatted(text: str) -> str:
    """A text as HTML, for notebooks. Surrogates become question marks, since they have no UTF-8."""
    return f"<pre>{escape(text.encode(errors='replace').decode())}</pre>"


def _name(kind: Any) -> str:
    """``Page[Trace]`` for a generic alias, else the name of the class."""
    name: str = (get_origin(kind) or kind).__name__
    return f"{name}[{','.join(map(_name, get_args(kind)))}]" if get_args(kind) else name
