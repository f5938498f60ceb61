"""Keys for single purposes out of one root secret, by HKDF with SHA-256 (RFC 5869), and what is done with them.

The one place where secrets are compared, in a time that does not tell where they differ.
"""

from __future__ import annotations

import hmac

HASH = "sha256"
MIN_ROOT_BYTES = 16
_SALT = b"routewright"


def derive(root: bytes, purpose: str) -> bytes:
    """The key of 32 bytes that the root secret has for a purpose. Of another purpose's key it says nothing."""
    extracted = hmac.digest(_SALT, root, HASH)
    return hmac.digest(extracted, purpose.encode() + b"\x01", HASH)


def mac(key: bytes, message: bytes) -> bytes:
    """HMAC-SHA-256, 32 bytes."""
    return hmac.digest(key, message, HASH)


def same(told: bytes, expected: bytes) -> bool:
    """Compare two codes."""
    return hmac.compare_digest(told, expected)
