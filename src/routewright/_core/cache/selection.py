"""Which entries does a selection mean?"""

from __future__ import annotations

from msgspec import DecodeError, json

from routewright.wire import CacheEntry, CacheSelection


def selects(which: CacheSelection, entry: CacheEntry) -> bool:
    """True if the selection means this entry."""
    return (
        entry.account == which.account
        and which.environment in (None, entry.environment)
        and which.key in (None, entry.key)
        and which.partition in (None, entry.partition)
        and which.id in (None, entry.id)
        and which.namespace in (None, entry.namespace)
        and (which.made_before is None or entry.created_at < which.made_before)
        and (which.metadata is None or is_tagged(entry.metadata, which.metadata))
    )


def is_tagged(metadata: bytes | None, tag: tuple[str, str | float | bool]) -> bool:
    """True if metadata holds this key with this value. ``true`` is not 1."""
    try:
        found = json.decode(metadata or b"{}")
    except DecodeError:
        return False
    key, value = tag
    if not isinstance(found, dict) or key not in found:
        return False
    kept = found[key]
    return isinstance(kept, bool) is isinstance(value, bool) and bool(kept == value)
