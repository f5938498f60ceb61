"""What caches with rows have in common: bounds, the body of a row, and what a selection means."""

from __future__ import annotations

from msgspec import DecodeError, msgpack
from msgspec.structs import replace

from routewright._core.request.problems import shown
from routewright.errors import ValidationFailed
from routewright.wire import CacheEntry, CacheSelection

MAX_BYTES = 256_000_000
MAX_ENTRIES = 100_000
ROW_BYTES = 400
"""Room that an entry takes beside its texts and its vector."""
OBSERVATIONS = 5_000
"""Observations kept of a space. The oldest go."""
_encoder, _decoder = msgpack.Encoder(), msgpack.Decoder(CacheEntry)


def check_bounds(name: str, **bounds: object) -> None:
    """Raises ``ValidationFailed`` for a bound that is not a whole number above 0."""
    for field, bound in bounds.items():
        if type(bound) is not int or bound < 1:
            raise ValidationFailed.at(f"{name}.{field}", f"is {shown(bound)}", "take a whole number above 0")


def body_of(entry: CacheEntry) -> bytes:
    """An entry without its vector, as ``entry_of`` reads it."""
    return _encoder.encode(replace(entry, vector=None))


def row_of(entry: CacheEntry) -> tuple[int, tuple[bytes | str | float | None, ...]]:
    """The size of an entry, and its columns from the key on."""
    body = body_of(entry)
    size = ROW_BYTES + len(body) + len(entry.vector or b"") + len(entry.metadata or b"")
    return size, (
        *(entry.key, entry.account, entry.environment, entry.partition, entry.id, entry.namespace),
        *(entry.created_at, entry.expires_at, size, entry.cost_nanos, entry.metadata, entry.vector, body),
    )


def entry_of(body: bytes) -> CacheEntry | None:
    """The entry of a row; None if it is damaged, or of another version."""
    try:
        return _decoder.decode(body)
    except (DecodeError, TypeError, ValueError):
        return None


def narrowed(which: CacheSelection) -> dict[str, str | bytes | float]:
    """Columns with how they are compared, and with what. Metadata aside."""
    names = ("account", "environment", "key", "partition", "id", "namespace")
    given = {f"{name} =": getattr(which, name) for name in names} | {"created_at <": which.made_before}
    return {compared: value for compared, value in given.items() if value is not None}
