"""Signatures, byte for byte in both profiles: what is signed, with which key, and when it is accepted."""

from __future__ import annotations

import ast
import hashlib
import hmac
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright import webhook as door
from routewright._core.webhooks import signature
from routewright._core.webhooks.signature import (
    MAX_CHARS,
    MAX_SECRETS,
    Key,
    check_header,
    check_headers,
    decode_key,
    encode_key,
    header_of,
    headers_of,
    keys_of,
)
from routewright.errors import SignatureError
from tests.tables import table

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BODY = b'{"id":"evt_1","type":"router.fallback_triggered","data":{"reason":"timeout"}}'
NOW = 1_763_812_800
KEYS = keys_of([SECRET], encode_key)
STANDARD = keys_of([SECRET], decode_key)


def hmac_by_hand(key: bytes, message: bytes) -> bytes:
    """HMAC with SHA-256, as RFC 2104 tells it."""
    block = (hashlib.sha256(key).digest() if len(key) > 64 else key) + bytes(64)
    inner = hashlib.sha256(bytes(each ^ 0x36 for each in block[:64]) + message).digest()
    return hashlib.sha256(bytes(each ^ 0x5C for each in block[:64]) + inner).digest()


def code_of(secret: str, at: int, body: bytes) -> str:
    """What stands behind ``v1=``, by the specification's words."""
    return hmac_by_hand(secret.encode(), str(at).encode() + b"." + body).hex()


@table(
    ("key", "head", "body", "code"),
    [  # RFC 4231, test cases 1, 2 and 6
        (b"\x0b" * 20, b"Hi ", b"There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"),
        (
            b"Jefe",
            b"",
            b"what do ya want for nothing?",
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
        ),
        (
            b"\xaa" * 131,
            b"Test Using Larger Than Block-Size Key - Hash Key First",
            b"",
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
        ),
    ],
)
def test_codes_match_the_vectors_of_the_rfc(key: bytes, head: bytes, body: bytes, code: str) -> None:
    assert Key(key).code(head, body).hex() == code


@given(st.binary(max_size=200), st.binary(max_size=100), st.binary(max_size=300))
def test_a_code_is_hmac_sha_256_for_any_key_length(key: bytes, head: bytes, body: bytes) -> None:
    made = Key(key)
    assert (
        made.code(head, body) == hmac.new(key, head + body, hashlib.sha256).digest() == hmac_by_hand(key, head + body)
    )
    assert made.code(head, body) == made.code(head, body), "and the key is used up by none"


def test_a_header_matches_openssl() -> None:
    assert header_of(KEYS, BODY, NOW) == f"t={NOW},v1={code_of(SECRET, NOW, BODY)}"
    assert header_of(KEYS, BODY, NOW) == (
        "t=1763812800,v1=37cbb453e113ce2b37714098dfaf6e09806c25db984119ef1027324c9694105f"
    )


@table(
    ("secret", "event_id", "at", "body", "signature"),
    [
        (
            SECRET,
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            b'{"test": 2432232314}',
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
        ),
        (
            "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD",
            "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk",
            1_649_367_553,
            b'{"email":"test@example.com","username":"test_user"}',
            "v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=",
        ),
    ],
)
def test_headers_match_the_vectors_of_standard_webhooks(
    secret: str, event_id: str, at: int, body: bytes, signature: str
) -> None:
    """Those of its libraries."""
    keys = keys_of([secret], decode_key)
    headers = headers_of(keys, body, at, event_id)
    assert headers == {"webhook-id": event_id, "webhook-timestamp": str(at), "webhook-signature": signature}
    check_headers(keys, body, headers, at)


@table("apart_s", [-300, -299.5, -1, 0, 1, 299.5, 300])
def test_timestamps_within_five_minutes_are_accepted(apart_s: float) -> None:
    check_header(KEYS, BODY, header_of(KEYS, BODY, NOW), NOW + apart_s)
    check_headers(STANDARD, BODY, headers_of(STANDARD, BODY, NOW, "evt_1"), NOW + apart_s)


@table(
    ("apart_s", "said"),
    [(-301, "301.0 s ahead"), (-300.001, "300.0 s ahead"), (300.001, "300.0 s ago"), (301, "301.0 s ago")],
)
def test_timestamps_beyond_five_minutes_are_refused(apart_s: float, said: str) -> None:
    with pytest.raises(SignatureError, match=f"signed {said}, and 300 s are allowed"):
        check_header(KEYS, BODY, header_of(KEYS, BODY, NOW), NOW + apart_s)
    with pytest.raises(SignatureError, match=said):
        check_headers(STANDARD, BODY, headers_of(STANDARD, BODY, NOW, "evt_1"), NOW + apart_s)


GOOD = code_of(SECRET, NOW, BODY)
OTHER = code_of(SECRET, NOW, b"another body")


@table(
    "header",
    [
        f"t={NOW},v1={GOOD}",
        f" t={NOW} ,\tv1={GOOD} ",
        f"t={NOW},v1={OTHER},v1={GOOD}",
        f"t={NOW},v0={OTHER},v2=later,v1={GOOD},,unknown",
        f"t={NOW}" + f",v1={OTHER}" * (MAX_SECRETS - 1) + f",v1={GOOD}",
        f"t={NOW},v1={GOOD},".ljust(MAX_CHARS, ","),
    ],
)
def test_valid_service_headers_are_accepted(header: str) -> None:
    check_header(KEYS, BODY, header, NOW)


@table(
    "header",
    [
        "",
        f"t={NOW}",
        f"v1={GOOD}",
        f"t={NOW},v1={OTHER}",
        f"t={NOW},v0={GOOD}",
        f"t={NOW},t={NOW},v1={GOOD}",
        f"t={NOW + 1},v1={GOOD}",
        f"t=0{NOW},v1={GOOD}",
        f"t={NOW}.0,v1={GOOD}",
        f"t=1_763_812_800,v1={GOOD}",
        f"t= {NOW},v1={GOOD}",
        f"t={NOW}000,v1={GOOD}",
        f"t={NOW},v1={GOOD.upper()}",
        f"t={NOW},v1={GOOD[:-1]}",
        f"t={NOW},v1={GOOD[:32]} {GOOD[32:]}",
        f"t={NOW},v1= {GOOD}",
        f"t={NOW};v1={GOOD}",
        f"t={NOW},v1={GOOD}\n",
        f"t={NOW},v1={GOOD},\ud800",
        f"t={NOW}" + f",v1={OTHER}" * MAX_SECRETS + f",v1={GOOD}",
        f"t={NOW},v1={GOOD},".ljust(MAX_CHARS + 1, ","),
    ],
)
def test_invalid_service_headers_are_refused(header: str) -> None:
    with pytest.raises(SignatureError):
        check_header(KEYS, BODY, header, NOW)


STANDARD_HEADERS = headers_of(STANDARD, BODY, NOW, "evt_1")
SIGNATURE = STANDARD_HEADERS["webhook-signature"]


@table(
    "change",
    [
        {"webhook-signature": f"v1a,{SIGNATURE} v2,x {SIGNATURE}  v1, v1"},
        {"webhook-signature": " ".join(["v1,x"] * (MAX_SECRETS - 1) + [SIGNATURE])},
        {"Content-Type": "application/json", "X-Webhook-Id": "other", "via": "a", "Via": "b"},
    ],
)
def test_valid_standard_headers_are_accepted(change: dict[str, str]) -> None:
    check_headers(STANDARD, BODY, STANDARD_HEADERS | change, NOW)
    check_headers(STANDARD, BODY, {name.title(): value for name, value in (STANDARD_HEADERS | change).items()}, NOW)


@table(
    ("change", "said"),
    [
        ({"webhook-signature": None}, "webhook-signature header is missing"),
        ({"webhook-id": b"evt_1"}, "webhook-id header is not a string$"),
        ({"webhook-id": "evt_2"}, "no signature matches"),
        ({"webhook-id": f"evt_1.{NOW}"}, "webhook-id header is not a valid id"),
        ({"webhook-id": "evt_1\n"}, "is not a valid id"),
        ({"Webhook-Id": "evt_1"}, "several webhook-id headers"),
        ({"webhook-timestamp": str(NOW + 1)}, "no signature matches"),
        ({"webhook-timestamp": f"{NOW}.0"}, "timestamp is not a Unix time"),
        ({"webhook-signature": ""}, "has 0 signatures"),
        ({"webhook-signature": SIGNATURE[3:]}, "has 0 signatures"),
        ({"webhook-signature": SIGNATURE[:-1]}, "no signature matches"),
        ({"webhook-signature": " ".join(["v1,x"] * MAX_SECRETS + [SIGNATURE])}, "has 11 signatures"),
        ({"webhook-signature": SIGNATURE.ljust(MAX_CHARS + 1)}, "not ASCII of at most"),
    ],
)
def test_invalid_standard_headers_are_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(SignatureError, match=said):
        check_headers(STANDARD, BODY, STANDARD_HEADERS | change, NOW)


def test_an_id_cannot_extend_into_timestamp_or_body() -> None:
    """``x.1.2.y`` could be read as id ``x.1`` and body ``y``."""
    headers = headers_of(STANDARD, f"{NOW}.y".encode(), NOW, "x")
    with pytest.raises(SignatureError, match="is not a valid id"):
        check_headers(STANDARD, b"y", headers | {"webhook-id": f"x.{NOW}"}, NOW)


def test_signatures_are_compared_in_constant_time_at_most_a_hundred_times(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    monkeypatch.setattr("routewright._core.crypto.hmac.compare_digest", lambda *codes: compared.append(codes))
    keys = keys_of([f"whsec_{place:032}" for place in range(MAX_SECRETS)], encode_key)
    header = header_of(keys, BODY, NOW)
    with pytest.raises(SignatureError):
        check_header(keys, BODY, header, NOW)
    assert len(compared) == MAX_SECRETS**2
    assert {len(told) for told, _ in compared} == {64}


@table("module", [signature, door])
def test_only_one_function_compares_secrets(module: ModuleType) -> None:
    """By construction: whatever ``==``, ``!=`` and ``in`` compare, one side stands in the source."""
    known = {"ID", "TIMESTAMP", "SIGNATURE", "_NAMES", "_KEY_BYTES", "HIDDEN", "MAX_SECRETS", "TOLERANCE_S"}
    known |= {"headers", "signature_headers", "self._ids"}  # by name, and ids of events that were verified
    tree = ast.parse(Path(str(module.__file__)).read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and not isinstance(node.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE)):
            sides = [node.left, *node.comparators]
            fixed = [isinstance(side, ast.Constant) or ast.unparse(side) in known for side in sides]
            assert any(fixed), ast.unparse(node)
