"""Entries, matches and statistics of the response cache (contract 6)."""

from __future__ import annotations

from msgspec import Struct

from .account import Environment
from .plain import PlainData
from .request import ToolCall


class CachedAnswer(Struct, frozen=True, array_like=True, gc=False):
    """A complete answer, as returned to its caller."""

    output: str
    finish_reason: str
    model: str
    provider: str
    tool_calls: list[ToolCall] | None = None


class CacheEntry(Struct, frozen=True, array_like=True, gc=False):
    """One cached answer and the requests that it may answer."""

    id: str
    """Trace id of the call that created it."""
    account: str
    environment: Environment
    partition: bytes
    """16-byte digest of everything that must be equal for a hit, except the last user turn."""
    key: bytes
    """16-byte digest of the whole request, partition included. Unique."""
    answer: CachedAnswer
    cost_nanos: int
    """Cost of the answer, saved by each hit."""
    created_at: float
    """Unix seconds."""
    expires_at: float
    prompt: str | None = None
    """The last user turn. None: only an identical request finds the entry."""
    vector: bytes | None = None
    """The prompt's embedding, normalized, as little-endian float32. Not set in entries read from a cache."""
    namespace: str | None = None
    metadata: bytes | None = None
    """Metadata of the request, as JSON."""


class CacheMatch(Struct, frozen=True, gc=False):
    """An entry near a question."""

    entry: CacheEntry
    similarity: float
    """Cosine similarity of the embeddings."""


class CacheSelection(Struct, frozen=True, kw_only=True):
    """Selects entries of one account that match all given fields."""

    account: str
    environment: Environment | None = None
    key: bytes | None = None
    partition: bytes | None = None
    id: str | None = None
    """Trace id of the call that created the entry."""
    namespace: str | None = None
    metadata: tuple[str, str | float | bool] | None = None
    """A metadata key and its value."""
    created_before: float | None = None
    """Unix seconds."""


class CacheStats(PlainData, Struct, frozen=True, kw_only=True):
    """Contents of a cache for one account, or for all."""

    entries: int = 0
    size_bytes: int = 0
    partitions: int = 0
    oldest_at: float | None = None
    """Unix seconds."""
    saves_nanos: int = 0
    """Total cost of the cached answers."""


class Observation(Struct, frozen=True, array_like=True, gc=False):
    """Whether a cached answer was right, checked against a live answer."""

    features: tuple[float, ...]
    right: bool
    weight: float
    """Inverse of the probability of observing this case."""
