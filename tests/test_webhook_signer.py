"""What a signer signs it verifies, and nothing else. All the rest it refuses in one way, and it tells no secret."""

from __future__ import annotations

import copy
import json
import logging
import math
import pickle
import random
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator
from decimal import Decimal
from email.message import Message
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright import ValidationFailed, WebhookSigner
from routewright.errors import SignatureError
from routewright.webhook import StandardWebhookSigner
from routewright.wire.account import Secret
from tests.tables import table

CANARY = "whsec_CanaryCanaryCanaryCanaryCanaryCa"
OTHER = "whsec_bm9ib2R5IGtub3dzIHRoaXMgc2VjcmV0IQ"
BODY = b'{"id":"evt_1","type":"router.error_burst","data":{"error_rate":0.07},"filler":"' + b"x" * 1_150 + b'"}'
NOW = 1_763_812_800

SECRETS = st.text(st.characters(exclude_categories=["Cs", "C", "Z"]), min_size=32, max_size=120).map("whsec_".__add__)
TIMES = st.integers(0, 10**11 - 1) | st.floats(0, 10**11, exclude_max=True)
IDS = st.from_regex(r"[!-\-/-~]{1,256}", fullmatch=True)


def refused(signer: Any, *given: Any) -> str:
    """What the one error says."""
    with pytest.raises(SignatureError) as raised:
        signer.verify(*given)
    assert raised.value.__cause__ is None
    return str(raised.value)


@given(st.lists(SECRETS, min_size=1, max_size=3), st.binary(max_size=200), TIMES)
def test_a_signature_is_verified(secrets: list[str], body: bytes, at: float) -> None:
    signer = WebhookSigner(*secrets)
    signer.verify(body, signer.sign(body, at), math.floor(at))


@given(st.lists(st.binary(min_size=24, max_size=64), min_size=1, max_size=3), st.binary(max_size=200), TIMES, IDS)
def test_a_standard_signature_is_verified(keys: list[bytes], body: bytes, at: float, event_id: str) -> None:
    signer = StandardWebhookSigner(*(f"whsec_{b64encode(key).decode()}" for key in keys))
    signer.verify(body, signer.sign(body, at, event_id), math.floor(at))


def flipped(text: bytes) -> Iterator[bytes]:
    """The text with each of its bits changed in turn."""
    for place, byte in enumerate(text):
        for bit in range(8):
            yield text[:place] + bytes([byte ^ 1 << bit]) + text[place + 1 :]


def test_not_one_of_ten_thousand_changed_bits_is_accepted() -> None:
    signer = WebhookSigner(CANARY)
    header = signer.sign(BODY, NOW)
    for body in flipped(BODY):
        refused(signer, body, header, NOW)
    changed = [*flipped(header.encode())]
    for each in changed:
        refused(signer, BODY, each.decode("latin-1"), NOW)
    assert 8 * len(BODY) + len(changed) > 10_000


def fuzzed(chance: random.Random, header: str) -> object:
    """Something like a header, or nothing like one."""
    match chance.randrange(4):
        case 0:
            return "".join(chance.choices("t=v1,0 \t;ſ１\0\ud800é", k=chance.randrange(40)))
        case 1:
            fields = [
                *header.split(","),
                "t=1",
                "v1=",
                "v0=00",
                "",
                "=",
                f"t={chance.getrandbits(chance.randrange(300))}",
            ]
            return ",".join(chance.choices(fields, k=chance.randrange(30)))
        case 2:
            cut, to = sorted(chance.choices(range(len(header) + 1), k=2))
            return header[:cut] + chr(chance.randrange(0x11_0000)) * chance.randrange(3) + header[to:]
        case _:
            return chance.choice(
                [None, header.encode(), bytearray(), 0, math.nan, [header], {"t": NOW}, object, Message()]
            )


def test_fuzzed_headers_are_refused_with_one_error(full: bool) -> None:
    signer, chance = WebhookSigner(CANARY), random.Random(6)
    header = signer.sign(BODY, NOW)
    for _ in range(100_000 if full else 3_000):
        given = fuzzed(chance, header)
        try:
            signer.verify(BODY, given, NOW)  # type: ignore[arg-type]
        except SignatureError:
            continue
        assert isinstance(given, str)
        assert set(header.split(",")) <= {field.strip(" \t") for field in given.split(",")}, "it holds the genuine one"


class Odd:
    """Has items that cannot be had."""

    def items(self) -> object:
        raise RuntimeError("no")


@table("headers", [None, 1, "v1,", b"v1,", [("webhook-id", "evt_1")], object, dict, Odd(), {1}])
def test_anything_without_headers_is_refused_with_the_same_error(headers: object) -> None:
    told = refused(StandardWebhookSigner(CANARY), BODY, headers, NOW)
    assert told == "the headers are neither a mapping nor ASGI's pairs of bytes"


@pytest.mark.parametrize(
    "now", [math.nan, math.inf, -math.inf, -1, 10**400, 10**11, NOW * 1_000, None, "now", b"", 1j, Decimal(NOW), object]
)
def test_an_invalid_time_is_refused_with_the_same_error(now: object) -> None:
    told = refused(WebhookSigner(CANARY), BODY, WebhookSigner(CANARY).sign(BODY, NOW), now)
    assert re.fullmatch(r"now is .+: pass Unix time in seconds, as time.time\(\) gives it", told)


def test_a_huge_header_is_not_read() -> None:
    signer = WebhookSigner(CANARY)
    header = signer.sign(BODY, NOW)
    assert "at most 4096 characters" in refused(signer, BODY, header + ",v1=" * 5_000_000, NOW)


def test_each_live_secret_verifies_and_a_dropped_one_does_not() -> None:
    old, new = WebhookSigner.new_secret(), WebhookSigner.new_secret()
    before, during, after = WebhookSigner(old), WebhookSigner(new, old), WebhookSigner(new)
    header = during.sign(BODY, NOW)
    assert re.fullmatch(r"t=\d+,v1=[0-9a-f]{64},v1=[0-9a-f]{64}", header)
    for receiver in (before, during, after):
        receiver.verify(BODY, header, NOW)
    for sender in (before, after):
        during.verify(BODY, sender.sign(BODY, NOW), NOW)
    assert "no signature matches" in refused(after, BODY, before.sign(BODY, NOW), NOW)
    assert "no signature matches" in refused(before, BODY, after.sign(BODY, NOW), NOW)


def test_the_profiles_refuse_each_others_signatures() -> None:
    own, standard = WebhookSigner(CANARY), StandardWebhookSigner(CANARY)
    refused(standard, BODY, {"Service-Signature": own.sign(BODY, NOW)}, NOW)
    refused(own, BODY, standard.sign(BODY, NOW, "evt_1")["webhook-signature"], NOW)


def test_a_new_secret_has_at_least_192_random_bits_and_fits_both_profiles() -> None:
    made = {WebhookSigner.new_secret().reveal() for _ in range(100)}
    assert len(made) == 100
    for secret in made:
        assert re.fullmatch(r"whsec_[A-Za-z0-9+/]{44}", secret)
        assert 8 * len(b64decode(secret[6:])) == 264
        WebhookSigner(secret)
        StandardWebhookSigner(secret)


@table(
    ("secrets", "said"),
    [
        ((), "secrets: are 0; pass 1 to 10; make one with WebhookSigner.new_secret()"),
        ((CANARY, ""), "secrets[1]: does not begin with whsec_"),
        ((CANARY[:37],), "secrets[0]: has fewer than 32 characters after whsec_; make one"),
        ((f"{CANARY}\n",), "secrets[0]: contains spaces, line breaks or unprintable characters; strip it"),
        ((CANARY.encode(),), "secrets[0]: is bytes; pass each secret as a string"),
        ((copy.copy(Secret(CANARY)),), "secrets[0]: is a copy of a hidden secret; store the value of Secret.reveal()"),
    ],
)
@table("kind", [WebhookSigner, StandardWebhookSigner])
def test_an_invalid_secret_is_refused_and_not_shown(kind: type, secrets: tuple[object, ...], said: str) -> None:
    with pytest.raises(ValidationFailed) as raised:
        kind(*secrets)
    assert str(raised.value).startswith(said)
    assert "anary" not in f"{raised.value!r}{raised.value.detail}{raised.value.problems}".lower()


@table(
    ("secret", "said"),
    [
        ("whsec_" + "Canary-_" * 4, "secrets[0]: is not base64 after whsec_; pass the secret unchanged"),
        ("whsec_" + "Canary//" * 11, "secrets[0]: holds 66 bytes; Standard Webhooks takes 24 to 64"),
        ("whsec_" + "C" * 30 + "==", "secrets[0]: holds 22 bytes"),
    ],
)
def test_standard_webhooks_takes_24_to_64_bytes_in_base64(secret: str, said: str) -> None:
    with pytest.raises(ValidationFailed) as raised:
        StandardWebhookSigner(secret)
    assert str(raised.value).startswith(said)
    assert raised.value.__cause__ is None
    WebhookSigner(secret)  # it takes any text as a key


@table(
    ("body", "at", "said"),
    [
        ("Canary", NOW, "body: is str; pass the bytes that are sent"),
        (BODY, math.nan, "timestamp: is nan; pass Unix time in seconds, as time.time() gives it"),
        (BODY, NOW * 1_000, "timestamp: is 1763812800000"),
        (BODY, str(NOW), "timestamp: is '1763812800'"),
    ],
)
def test_unsignable_arguments_are_refused_with_a_reason(body: Any, at: Any, said: str) -> None:
    for sign in (
        lambda: WebhookSigner(CANARY).sign(body, at),
        lambda: StandardWebhookSigner(CANARY).sign(body, at, "evt_1"),
    ):
        with pytest.raises(ValidationFailed) as raised:
            sign()
        assert str(raised.value).startswith(said)
        assert "Canary" not in str(raised.value)


@table("event_id", ["", "evt.1", "evt 1", "evt_1\r\nx-other: 1", "évt", "e" * 257, b"evt_1", None])
def test_an_id_that_does_not_fit_a_header_is_not_signed(event_id: Any) -> None:
    with pytest.raises(ValidationFailed, match=r"event_id: is .+; pass 1 to 256 visible ASCII characters without dots"):
        StandardWebhookSigner(CANARY).sign(BODY, NOW, event_id)


@pytest.mark.parametrize("signer", [WebhookSigner(CANARY, OTHER), StandardWebhookSigner(Secret(CANARY), OTHER)])
def test_a_signer_shows_no_secret(signer: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert repr(signer) == f"{type(signer).__name__}(***, ***)"
    logging.getLogger("test").warning("%s %r", signer, [signer])
    shown = [
        str(signer),
        f"{signer}",
        caplog.text,
        str(signer._keys),
        str(vars(type(signer))),
        str(signer.__getstate__()),
    ]
    assert not [text for text in shown if "anary" in text]
    for write in (json.dumps, msgspec.json.encode):
        with pytest.raises(TypeError):
            write(signer)
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            copied(signer)
    assert not hasattr(signer, "__dict__")
