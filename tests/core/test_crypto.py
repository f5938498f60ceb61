"""Derived keys match RFC 5869, and each purpose has its own."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from routewright._core import crypto
from routewright._core.crypto import NONCE, derive, mac, same
from routewright._core.trace.filter import seal, unseal

ROOTS = st.binary(min_size=1, max_size=80)
PURPOSES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def hkdf(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """HKDF with SHA-256, as RFC 5869 tells it."""
    key = hmac.new(salt, secret, hashlib.sha256).digest()
    block, found = b"", b""
    for counter in range(1, -(-length // 32) + 1):
        block = hmac.new(key, block + info + bytes([counter]), hashlib.sha256).digest()
        found += block
    return found[:length]


def test_hkdf_matches_the_vectors_of_the_rfc() -> None:
    found = hkdf(b"\x0b" * 22, bytes(range(13)), bytes(range(0xF0, 0xFA)), 42)
    assert found.hex() == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"


@given(ROOTS, PURPOSES)
def test_a_key_is_derived_by_hkdf_with_salt_and_purpose(root: bytes, purpose: str) -> None:
    assert derive(root, purpose) == hkdf(root, b"routewright", purpose.encode(), 32)


def test_derived_keys_never_change() -> None:
    assert derive(b"correct horse battery staple", "cursor").hex() == (
        "384c21d3f3baa3da59109be84762e8deba8c1c32b7962bbc07a802120bbf7587"
    )


@given(st.lists(st.tuples(ROOTS, PURPOSES), min_size=2, max_size=8, unique=True))
def test_each_purpose_and_root_has_its_own_key_of_32_bytes(asked: list[tuple[bytes, str]]) -> None:
    keys = {derive(root, purpose) for root, purpose in asked}
    assert len(keys) == len(asked)
    assert {len(key) for key in keys} == {32}


@given(ROOTS, st.binary(max_size=200))
def test_a_code_is_hmac_with_sha_256(key: bytes, message: bytes) -> None:
    assert mac(key, message) == hmac.new(key, message, hashlib.sha256).digest()


@given(st.binary(max_size=4), st.binary(max_size=4))
def test_equal_codes_are_the_same(told: bytes, expected: bytes) -> None:
    assert same(told, expected) == (told == expected)


def test_codes_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def noted(told: bytes, expected: bytes) -> bool:
        compared.append((told, expected))
        return True

    monkeypatch.setattr("routewright._core.crypto.hmac.compare_digest", noted)
    assert same(b"one", b"other")
    assert unseal(seal("after", [], b"s" * 32, 0.0), ["other"], [b"s" * 32], 0.0) == "after"
    assert len(compared) == 2, "a cursor's code, too"


def test_a_text_is_sealed_by_aes_256_gcm_with_its_owner_as_associated_data() -> None:
    key, nonce = derive(b"root", "seals"), bytes(range(NONCE))
    data = b64decode(crypto.seal(key, "whsec_1", "acme/whe_1", nonce))
    assert data[:NONCE] == nonce
    assert AESGCM(key).decrypt(nonce, data[NONCE:], b"acme/whe_1") == b"whsec_1"


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20_000))
def test_a_sealed_text_of_any_length_is_opened(text: str) -> None:
    key = derive(b"root", "seals")
    assert crypto.unseal(key, crypto.seal(key, text, "acme/whe_1", b"n" * NONCE), "acme/whe_1") == text


def test_nothing_else_is_opened() -> None:
    key = derive(b"root", "seals")
    sealed = crypto.seal(key, "whsec_1", "acme/whe_1", b"n" * NONCE)
    for owner in ("acme/whe_2", "corp/whe_1", ""):
        assert crypto.unseal(key, sealed, owner) is None
    assert crypto.unseal(derive(b"other", "seals"), sealed, "acme/whe_1") is None
    for broken in ("", "ü", "no base64", "YQ==", sealed[:-4], sealed[4:], "A" + sealed[1:], sealed + "AAAA"):
        assert crypto.unseal(key, broken, "acme/whe_1") is None, broken
