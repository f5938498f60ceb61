"""What crosses the door between the engine and a provider."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from msgspec import Struct

from .model import Model
from .request import Message, NamedToolChoice, Params, Tool


class FaultKind(StrEnum):
    """What went wrong with an attempt, in the words of the fault table (``_core/attempts/faults.py``)."""

    CONNECT = "connect"
    """No connection: refused, unresolved, TLS."""
    LOCAL = "local"
    """No connection, for want of something that this process lacks: file descriptors, memory."""
    TIMEOUT = "timeout"
    """No answer, no first token, or no further token in time."""
    RESET = "reset"
    """The connection broke."""
    RATE_LIMITED = "rate_limited"
    SERVER = "server"
    """A 5xx."""
    AUTH = "auth"
    """The provider does not take our credential (401, 403)."""
    REQUEST = "request"
    """The provider calls the request malformed (400, 422 ...)."""
    MODEL_NOT_FOUND = "model_not_found"
    REFUSED = "refused"
    """The provider's moderation refuses the content."""
    CONTEXT_OVERFLOW = "context_overflow"
    MALFORMED = "malformed"
    """What came back is not an answer: bad JSON, empty choices, wrong content type."""
    TRUNCATED = "truncated"
    """An answer that ended without its end, or whose finish reason says that the vendor cut it."""
    INVALID_OUTPUT = "invalid_output"
    """A whole answer that does not fit the ``output_type`` that was asked for."""
    BLOCKED = "blocked"
    """A guardrail of ours blocked the answer."""


class UpstreamCall(Struct, frozen=True):
    """One call to one model. Everything a provider may know; no field sets its address or credential."""

    model: Model
    messages: list[Message]
    params: Params
    tools: list[Tool] | None
    tool_choice: str | NamedToolChoice | None
    max_output_tokens: int | None
    """The cap to send; None: the provider's own."""
    deadline: float
    """``clock.monotonic()`` by which the whole answer must be there."""
    stream: bool = True
    """False: the answer is wanted whole, and a provider may fetch it so."""
    traceparent: str | None = None
    """The header of that name to send, so that spans of the provider's follow from this call; None: none."""
    repeats: bool = False
    """The prompt will be sent again with more behind it, so it is worth keeping in the vendor's cache."""

    def __repr__(self) -> str:
        # no prompt: a repr ends up in logs
        return f"<UpstreamCall of {self.model.id}, {len(self.messages)} messages>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """What ``rich`` prints: no prompt either."""
        return [("model", self.model.id), ("messages", len(self.messages))]


class Delta(Struct, frozen=True, gc=False):
    """A piece of the answer's text."""

    text: str


class ToolDelta(Struct, frozen=True, gc=False):
    """A piece of tool call ``index``; ``id`` and ``name`` come with its first piece."""

    index: int
    arguments: str = ""
    id: str = ""
    name: str = ""


class Thought(Struct, frozen=True):
    """A piece of what the model thinks before or between its words. Not part of the answer."""

    text: str = ""
    """Readable text, perhaps a summary; empty where the vendor gives none."""
    item: dict[str, Any] | None = None
    """A whole item in the vendor's own form, to be sent back with the next turn; given once it is complete."""


class Usage(Struct, frozen=True, gc=False):
    """Tokens as the provider counted them. ``output`` includes ``reasoning``; ``input`` includes ``cached`` and
    ``written``, which have no token in common."""

    input: int
    output: int
    cached: int = 0
    """Read from the vendor's prompt cache."""
    reasoning: int = 0
    written: int = 0
    """Written to the vendor's prompt cache."""
    written_hour: int = 0
    """Of ``written``, what is kept for an hour, which some vendors price higher."""
    audio: int = 0
    """Of ``input``, recordings that were neither read from the cache nor written to it."""
    tier: str = ""
    """The service tier that served the call (``default``, ``flex``, ``priority``); empty if the vendor did not say."""


class Finish(Struct, frozen=True, gc=False):
    """The answer's end, in the common words (stop, length, tool_calls, content_filter) or the vendor's own. What they
    mean is one table: a word for an answer that the vendor cut, or none at all, is a fault
    (``_core/attempts/faults.py``)."""

    reason: str


Chunk = Delta | ToolDelta | Thought | Usage | Finish
