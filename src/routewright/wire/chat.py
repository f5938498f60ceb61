"""Messages and tools, in the common chat format (spec 2.1)."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

Role = Literal["system", "developer", "user", "assistant", "tool"]


class TextPart(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """A run of text inside a message."""

    text: str


class ImageUrl(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where an image is: an ``https:`` address or a ``data:`` URL. Passed on to the provider, never fetched here."""

    url: str
    """Begins with ``https://``, ``http://`` or ``data:image/``."""
    detail: Literal["auto", "low", "high"] | None = None
    """How closely the model looks."""


class ImagePart(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="image_url"):
    """An image inside a message."""

    image_url: ImageUrl


Part = TextPart | ImagePart


class FunctionCall(Struct, frozen=True, forbid_unknown_fields=True):
    """The function a model wants called; ``arguments`` is JSON text as the model wrote it."""

    name: str
    arguments: str


class ToolCall(Struct, frozen=True, forbid_unknown_fields=True):
    """One call that a model asks for."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class Message(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One turn of a chat. ``content`` is null only where an assistant turn carries tool calls."""

    role: Role
    content: str | list[Part] | None = None
    """A text or parts. None, or nothing, beside ``tool_calls`` alone."""
    tool_calls: list[ToolCall] | None = None
    """Of the role ``assistant``: what it wanted called."""
    tool_call_id: str | None = None
    """Of the role ``tool``: the ``id`` of the call that it answers."""
    name: str | None = None
    """Who speaks."""


class FunctionSpec(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A function that a model may call; ``parameters`` is a JSON schema object."""

    name: str
    description: str | None = None
    """For the model."""
    parameters: dict[str, Any] | None = None
    """A JSON schema of an object."""
    strict: bool | None = None
    """Whether arguments are held to the schema by the letter."""


class Tool(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A tool declaration, nested (``function``) or flat (``name`` ...). Read it through ``function_spec``."""

    type: Literal["function"] = "function"
    function: FunctionSpec | None = None
    """The nested form: then the others are left out."""
    name: str | None = None
    """This and the next three: the flat form."""
    description: str | None = None
    """For the model."""
    parameters: dict[str, Any] | None = None
    """A JSON schema of an object."""
    strict: bool | None = None
    """Whether arguments are held to the schema by the letter."""

    @property
    def function_spec(self) -> FunctionSpec:
        """The declaration in its one inner shape, however it was written."""
        if self.function is not None:
            return self.function
        return FunctionSpec(self.name or "", self.description, self.parameters, self.strict)


class FunctionName(Struct, frozen=True, forbid_unknown_fields=True):
    """A function named in ``tool_choice``."""

    name: str


class NamedToolChoice(Struct, frozen=True, forbid_unknown_fields=True):
    """The object form of ``tool_choice``."""

    function: FunctionName
    type: Literal["function"] = "function"
