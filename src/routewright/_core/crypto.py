"""Keys derived from the root secret by HKDF-SHA-256 (RFC 5869): MACs, AES-GCM, and the only comparison of secrets, in
constant time."""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode

from routewright.errors import require_extra

HASH = "sha256"
MIN_ROOT_BYTES = 32
MIN_DISTINCT = 10
"""Distinct bytes of a root secret; of 32 random bytes, hex digits or letters there are never fewer."""
NONCE = 12
_SALT = b"routewright"


def derive(root: bytes, purpose: str) -> bytes:
    """Derive the 32-byte key for a purpose. Keys of different purposes are independent."""
    extracted = hmac.digest(_SALT, root, HASH)
    return hmac.digest(extracted, purpose.encode() + b"\x01", HASH)


def mac(key: bytes, message: bytes) -> bytes:
    """HMAC-SHA-256, 32 bytes."""
    return hmac.digest(key, message, HASH)


def weakness(root: bytes) -> str | None:
    """What makes a root secret easy to guess, without showing it."""
    distinct = len({*root})
    is_long = len(root) >= MIN_ROOT_BYTES
    if is_long and distinct >= MIN_DISTINCT:
        return None
    count = f"{distinct} distinct byte" if is_long else f"{len(root)} byte"
    return f"has {count}{'' if count.startswith('1 ') else 's'}"


def seal(key: bytes, text: str, owner: str, nonce: bytes) -> str:
    """Encrypt a text by AES-256-GCM, bound to its owner; base64. ``nonce``: 12 random bytes, never reused with a key.
    Raises ``ModuleNotFoundError`` without the extra ``webhooks``."""
    with require_extra("webhooks", "sealing signing secrets"):
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return b64encode(nonce + AESGCM(key).encrypt(nonce, text.encode(), owner.encode())).decode()


def unseal(key: bytes, sealed: str, owner: str) -> str | None:
    """Decrypt the result of ``seal``. None: another key or owner, or changed data."""
    with require_extra("webhooks", "opening signing secrets"):
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        data = b64decode(sealed, validate=True)
        return AESGCM(key).decrypt(data[:NONCE], data[NONCE:], owner.encode()).decode()
    except (ValueError, InvalidTag):  # no base64, or too short
        return None


def same(code: bytes, expected: bytes) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(code, expected)
