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
    detail: Literal["auto", "low", "high"] | None = None


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
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class FunctionSpec(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A function that a model may call; ``parameters`` is a JSON schema object."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A tool declaration, nested (``function``) or flat (``name`` ...). Read it through ``function_spec``."""

    type: Literal["function"] = "function"
    function: FunctionSpec | None = None
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

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
