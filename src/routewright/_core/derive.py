"""Keys for single purposes out of one root secret, by HKDF with SHA-256 (RFC 5869), and what is done with them. The one
place where secrets are compared, in a time that does not tell where they differ."""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode

HASH = "sha256"
MIN_ROOT_BYTES = 16
_SALT = b"routewright"
_NONCE = 16


def derive(root: bytes, purpose: str) -> bytes:
    """The key of 32 bytes that the root secret has for a purpose. Of another purpose's key it says nothing."""
    extracted = hmac.digest(_SALT, root, HASH)
    return hmac.digest(extracted, purpose.encode() + b"\x01", HASH)


def mac(key: bytes, message: bytes) -> bytes:
    """HMAC-SHA-256, 32 bytes."""
    return hmac.digest(key, message, HASH)


def seal(key: bytes, text: str, nonce: bytes) -> str:
    """Encrypt a short text and authenticate it; base64. ``nonce``: 16 random bytes, never used twice with a key."""
    covered = _covered(key, nonce, text.encode())
    return b64encode(nonce + covered + mac(key, b"sealed" + nonce + covered)[:_NONCE]).decode()


def unseal(key: bytes, sealed: str) -> str | None:
    """The text that was sealed; None if another key sealed it, or it was changed."""
    given = b64decode(sealed)
    nonce, covered, code = given[:_NONCE], given[_NONCE:-_NONCE], given[-_NONCE:]
    if not same(code, mac(key, b"sealed" + nonce + covered)[:_NONCE]):
        return None
    return _covered(key, nonce, covered).decode()


def _covered(key: bytes, nonce: bytes, text: bytes) -> bytes:
    """Each byte XOR one of a keystream: HMAC of the nonce and a counter."""
    stream = b"".join(mac(key, b"stream" + nonce + bytes([block])) for block in range(len(text) // 32 + 1))
    return bytes(each ^ cover for each, cover in zip(text, stream, strict=False))


def same(told: bytes, expected: bytes) -> bool:
    """Compare two codes."""
    return hmac.compare_digest(told, expected)
