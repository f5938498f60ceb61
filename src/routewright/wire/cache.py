"""What the response cache holds, finds and counts (contract 6)."""

from __future__ import annotations

from msgspec import Struct

from .account import Environment
from .plain import PlainData
from .request import ToolCall


class CachedAnswer(Struct, frozen=True, array_like=True, gc=False):
    """A complete answer, as its caller got it."""

    output: str
    finish_reason: str
    model: str
    provider: str
    tool_calls: list[ToolCall] | None = None


class CacheEntry(Struct, frozen=True, array_like=True, gc=False):
    """One answer and what it may be given for."""

    id: str
    """Trace id of the call that made it."""
    account: str
    environment: Environment
    partition: bytes
    """Digest of all that has to be the same for a hit, the last user turn aside: 16 bytes."""
    key: bytes
    """Digest of the whole request, its partition included: 16 bytes. One entry has it."""
    answer: CachedAnswer
    cost_nanos: int
    """Paid for the answer, and so saved by each hit."""
    created_at: float
    """Unix seconds."""
    expires_at: float
    prompt: str | None = None
    """The last user turn; None: only the same request again finds the entry."""
    vector: bytes | None = None
    """The prompt's embedding, of length 1, as little-endian float32. Left out of entries that come from a cache."""
    namespace: str | None = None
    metadata: bytes | None = None
    """The request's, as JSON."""


class CacheMatch(Struct, frozen=True, gc=False):
    """An entry near a question."""

    entry: CacheEntry
    similarity: float
    """Cosine of the two embeddings."""


class CacheSelection(Struct, frozen=True, kw_only=True):
    """Entries of one account; each field that is given narrows it further."""

    account: str
    environment: Environment | None = None
    key: bytes | None = None
    partition: bytes | None = None
    id: str | None = None
    """Trace id of the call that made the entry."""
    namespace: str | None = None
    metadata: tuple[str, str | float | bool] | None = None
    """A key of the metadata, and its value."""
    made_before: float | None = None
    """Unix seconds."""


class CacheStats(PlainData, Struct, frozen=True, kw_only=True):
    """What a cache holds of one account, or of all."""

    entries: int = 0
    size_bytes: int = 0
    partitions: int = 0
    oldest_at: float | None = None
    """Unix seconds."""
    saves_nanos: int = 0
    """Total cost of the entries."""


class Observation(Struct, frozen=True, array_like=True, gc=False):
    """Whether a cached answer was right where the question was answered live as well."""

    features: tuple[float, ...]
    right: bool
    weight: float
    """Inverse probability of observing this case."""
