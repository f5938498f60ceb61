"""Keys derived from the root secret by HKDF-SHA-256 (RFC 5869): MACs, sealing, and the only comparison of secrets, in
constant time."""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode

HASH = "sha256"
MIN_ROOT_BYTES = 16
_SALT = b"routewright"
_NONCE = 16


def derive(root: bytes, purpose: str) -> bytes:
    """Derive the 32-byte key for a purpose. Keys of different purposes are independent."""
    extracted = hmac.digest(_SALT, root, HASH)
    return hmac.digest(extracted, purpose.encode() + b"\x01", HASH)


def mac(key: bytes, message: bytes) -> bytes:
    """HMAC-SHA-256, 32 bytes."""
    return hmac.digest(key, message, HASH)


def seal(key: bytes, text: str, nonce: bytes) -> str:
    """Encrypt and authenticate a short text; base64. ``nonce`` is 16 random bytes, never reused with a key."""
    covered = _covered(key, nonce, text.encode())
    return b64encode(nonce + covered + mac(key, b"sealed" + nonce + covered)[:_NONCE]).decode()


def unseal(key: bytes, sealed: str) -> str | None:
    """Decrypt the result of ``seal``. None: another key, or changed data."""
    data = b64decode(sealed)
    nonce = data[:_NONCE]
    covered = data[_NONCE:-_NONCE]
    if not same(data[-_NONCE:], mac(key, b"sealed" + nonce + covered)[:_NONCE]):
        return None
    return _covered(key, nonce, covered).decode()


def _covered(key: bytes, nonce: bytes, text: bytes) -> bytes:
    """XOR with a keystream: HMACs of the nonce and a counter."""
    stream = b"".join(mac(key, b"stream" + nonce + bytes([block])) for block in range(len(text) // 32 + 1))
    return bytes(byte ^ cover for byte, cover in zip(text, stream, strict=False))


def same(code: bytes, expected: bytes) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(code, expected)
