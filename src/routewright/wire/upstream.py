"""Calls to a provider, and the chunks of its answer."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from .model import Model
from .plain import JsonObject
from .request import Message, NamedToolChoice, Params, Tool


class FaultKind(StrEnum):
    """What went wrong with an attempt. It determines whether the call retries, falls back or fails."""

    CONNECT = "connect"
    """No connection: refused, unresolved, TLS."""
    LOCAL = "local"
    """No connection because this process lacks a resource: file descriptors, memory."""
    TIMEOUT = "timeout"
    """No answer, no first token, or no further token in time."""
    RESET = "reset"
    """The connection broke."""
    RATE_LIMITED = "rate_limited"
    SERVER = "server"
    """A 5xx."""
    AUTH = "auth"
    """The provider rejected our credential (401, 403)."""
    REQUEST = "request"
    """The provider rejected the request as malformed (400, 422 ...)."""
    MODEL_NOT_FOUND = "model_not_found"
    REFUSED = "refused"
    """The provider's moderation refused the content."""
    CONTEXT_OVERFLOW = "context_overflow"
    MALFORMED = "malformed"
    """The response is not a valid answer: bad JSON, empty choices, wrong content type."""
    TRUNCATED = "truncated"
    """The answer stopped early: no finish reason, or one that says that the vendor cut it."""
    INVALID_OUTPUT = "invalid_output"
    """A complete answer that does not match the requested ``output_type``."""
    BLOCKED = "blocked"
    """A guardrail blocked the answer."""


class UpstreamCall(Struct, frozen=True):
    """One call to one model. No field sets the provider's address or credential."""

    model: Model
    messages: list[Message]
    params: Params
    tools: list[Tool] | None
    tool_choice: str | NamedToolChoice | None
    max_output_tokens: int | None
    """Output limit to send. None: the provider's own."""
    deadline: float
    """``clock.monotonic()`` by which the answer must be complete."""
    stream: bool = True
    """False: the provider may fetch the answer in one piece."""
    traceparent: str | None = None
    """Value of the ``traceparent`` header to send, if any."""
    repeats: bool = False
    """True: the prompt will be sent again with more messages, so the vendor should cache it."""

    def __repr__(self) -> str:
        # leaves out the prompt, because reprs end up in logs
        return f"<UpstreamCall of {self.model.id}, {len(self.messages)} messages>"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        """Representation for ``rich``, also without the prompt."""
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
    """A piece of the model's reasoning. Not part of the answer."""

    text: str = ""
    """Readable text or summary; empty if the vendor gives none."""
    item: JsonObject | None = None
    """A complete item in the vendor's format, to send back with the next turn."""


class Usage(Struct, frozen=True, gc=False):
    """Tokens as counted by the provider. ``output`` includes ``reasoning``; ``input`` includes ``cached`` and
    ``written``, which do not overlap."""

    input: int
    output: int
    cached: int = 0
    """Read from the vendor's prompt cache."""
    reasoning: int = 0
    written: int = 0
    """Written to the vendor's prompt cache."""
    written_hour: int = 0
    """Part of ``written`` that is kept for an hour; some vendors charge more for it."""
    audio: int = 0
    """Audio part of ``input`` that was neither read from the cache nor written to it."""
    tier: str = ""
    """The service tier that served the call (``default``, ``flex``, ``priority``); empty if the vendor did not say."""


class Finish(Struct, frozen=True, gc=False):
    """The end of the answer. ``reason`` is ``stop``, ``length``, ``tool_calls``, ``content_filter`` or the vendor's own
    word; callers get unknown words as ``other``. An empty reason, or a vendor's word for a failure or an answer cut
    short, makes the attempt a fault."""

    reason: str


Chunk = Delta | ToolDelta | Thought | Usage | Finish
