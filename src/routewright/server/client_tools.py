"""How tools and calls of vendors' clients become functions, and back."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from routewright.wire import JsonObject, TextPart
from routewright.wire.json_scan import decode
from routewright.wire.json_stream import complete_object

from .fields import Fields
from .vendor_requests import mark_of

_encode = msgspec.json.encode
_OPAQUE = re.compile(rb'"[^"\s]{1000,}"')
PARAMETERS: JsonObject = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The whole input of the tool, as plain text."}},
    "required": ["input"],
    "additionalProperties": False,
}
"""Those of the function that stands for a custom tool."""


class Origin(NamedTuple):
    """A client's tool, which models call as a function. Another kind or a namespace make another name."""

    kind: str
    """``function``, ``custom`` or ``tool_search``."""
    name: str
    namespace: str | None = None

    @property
    def function(self) -> str:
        """Name of the function. ``functions`` is Codex's name for tools without a namespace."""
        if self.namespace in (None, "", "functions"):
            return self.name
        return f"{self.namespace.rstrip('_')}__{self.name}"[-64:]


def origin_of(fields: Fields, kind: str) -> Origin:
    """The tool that a declaration, call or choice names."""
    name = kind if kind == "tool_search" else fields.need("name", str)
    return Origin(kind, name, fields.get("namespace", str))


def arguments_of(fields: Fields, name: str = "arguments") -> str:
    """The arguments of a call in a chat. Clients send a text or JSON; none and blank ones are an empty object."""
    value = fields.take(name)
    text = value if isinstance(value, str) else _encode({} if value is None else value).decode()
    return text if text.strip() else "{}"


def input_of(arguments: str) -> str:
    """A custom tool's input, or the whole text if the model did not write arguments."""
    text = decode(complete_object(arguments)).get("input")
    return text if isinstance(text, str) else arguments


def note_of(kind: str, fields: Fields) -> TextPart:
    """What only its vendor can use or continue, as text. Images and encrypted texts are left out."""
    mark = mark_of(fields)
    text = _OPAQUE.sub(b'"..."', _encode(fields.rest())).decode()
    return TextPart(f"[{kind}] {text}", mark)
