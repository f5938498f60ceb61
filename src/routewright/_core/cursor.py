"""Where does the next page begin? A cursor says it, for one query of one account, for 24 hours (contract 9).

It is opaque and authenticated: one that was changed, or made for another query, is refused and reveals nothing.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence

import msgspec

from routewright.errors import CursorExpired, CursorInvalid

from .derive import mac, same

LIFETIME_S = 24 * 3600
MAX_CHARS = 1_000
_MAC_BYTES = 16


class _Content(msgspec.Struct, frozen=True, array_like=True):
    issued_at: int
    """Unix seconds."""
    after: str
    """Key of the last item of the page before."""


def seal(after: str, asked: object, secret: bytes, now: float) -> str:
    """Write the cursor of the page behind the key ``after`` in what was ``asked``: account and query, as JSON."""
    content = msgspec.json.encode(_Content(int(now), after))
    return _written(content + _mac(content, asked, secret))


def unseal(cursor: str, asked: object, secrets: Sequence[bytes], now: float) -> str:
    """Read the key that a page begins behind. ``secrets``: the one in use, then those that were before it.

    Raises ``CursorInvalid`` and ``CursorExpired``.
    """
    data = _read(cursor)
    content, told = data[:-_MAC_BYTES], data[-_MAC_BYTES:]
    if not any(same(told, _mac(content, asked, secret)) for secret in secrets):
        raise CursorInvalid("the cursor is not one of this query: pass next_cursor as it came, with the same filter")
    read = msgspec.json.decode(content, type=_Content)  # it is our own
    if int(now) - read.issued_at > LIFETIME_S:
        raise CursorExpired("the cursor is older than 24 hours: begin again without one")
    return read.after


def _mac(content: bytes, asked: object, secret: bytes) -> bytes:
    return mac(secret, msgspec.json.encode(asked) + b"\n" + content)[:_MAC_BYTES]


def _written(data: bytes) -> str:
    """Content comes first: it is a JSON array, so no cursor begins with a dash, which a command takes for an option."""
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _read(cursor: object) -> bytes:
    """What a cursor holds; nothing of one that was not written so: at its end several letters mean the same bits."""
    if not isinstance(cursor, str) or len(cursor) > MAX_CHARS or not cursor.isascii():
        return b""
    try:
        data = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
    except ValueError:
        return b""
    return data if _written(data) == cursor else b""
