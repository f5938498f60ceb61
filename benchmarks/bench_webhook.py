"""How long does it take to sign a webhook of a kilobyte, and to verify one?"""

from __future__ import annotations

import hmac
from itertools import cycle

import pytest

from routewright import StandardWebhookSigner, WebhookSigner

from .conftest import Peer, Timed
from .report import Question, Report, Who

NOW = 1_763_812_800.25
HEAD, TAIL = b'{"id":"evt_1","type":"router.error_burst","data":"', b'"}'
BODY = HEAD + b"x" * (1_024 - len(HEAD + TAIL)) + TAIL
SECRET = WebhookSigner.new_secret()
KEY = SECRET.reveal().encode()

SIGN = Question("WebhookSigner.sign, 1 KB", "2.4")
VERIFY = Question("WebhookSigner.verify, 1 KB", "3.8")
STANDARD = {
    "sign": Question("StandardWebhookSigner.sign, 1 KB"),
    "verify": Question("StandardWebhookSigner.verify, 1 KB"),
}
PEERS: tuple[Who, ...] = ("standardwebhooks", "svix")


def floor_sign(body: bytes) -> str:
    """One call of ``hmac.digest``, and nothing checked."""
    at = str(int(NOW))
    return f"t={at},v1={hmac.digest(KEY, at.encode() + b'.' + body, 'sha256').hex()}"


HEADER = floor_sign(BODY)


def floor_verify(body: bytes) -> None:
    """The same, of a header that is taken for well-formed."""
    at, _, told = HEADER.partition(",v1=")
    if abs(NOW - int(at[2:])) > 300:
        raise ValueError
    if not hmac.compare_digest(hmac.digest(KEY, at[2:].encode() + b"." + body, "sha256").hex(), told):
        raise ValueError


class TestSign:
    def test_floor(self, timed: Timed) -> None:
        timed(SIGN, "floor", floor_sign, cycle([BODY]))

    def test_routewright(self, timed: Timed) -> None:
        signer = WebhookSigner(SECRET)
        assert signer.sign(BODY, NOW) == HEADER
        timed(SIGN, "routewright", lambda body: signer.sign(body, NOW), cycle([BODY]))

    def test_two_secrets(self, timed: Timed) -> None:
        signer = WebhookSigner(WebhookSigner.new_secret(), SECRET)
        asked = Question("the same, two secrets live")
        timed(asked, "routewright", lambda body: signer.sign(body, NOW), cycle([BODY]))


class TestVerify:
    def test_floor(self, timed: Timed) -> None:
        timed(VERIFY, "floor", floor_verify, cycle([BODY]))

    def test_routewright(self, timed: Timed) -> None:
        signer = WebhookSigner(SECRET)
        timed(VERIFY, "routewright", lambda body: signer.verify(body, HEADER, NOW), cycle([BODY]))

    def test_two_secrets(self, timed: Timed) -> None:
        """The second of them fits the second signature."""
        signer = WebhookSigner(WebhookSigner.new_secret(), SECRET)
        header = WebhookSigner(WebhookSigner.new_secret(), SECRET).sign(BODY, NOW)
        asked = Question("the same, two secrets live, the second fits")
        timed(asked, "routewright", lambda body: signer.verify(body, header, NOW), cycle([BODY]))


class TestStandard:
    @pytest.mark.parametrize("who", PEERS)
    @pytest.mark.parametrize("what", STANDARD)
    def test_peer(self, peer: Peer, report: Report, what: str, who: Who) -> None:
        report.add(STANDARD[what], who, peer("webhooks", "webhooks", who, what))

    def test_sign(self, timed: Timed) -> None:
        signer = StandardWebhookSigner(SECRET)
        timed(STANDARD["sign"], "routewright", lambda body: signer.sign(body, NOW, "evt_1"), cycle([BODY]))

    def test_verify(self, timed: Timed) -> None:
        signer = StandardWebhookSigner(SECRET)
        headers = signer.sign(BODY, NOW, "evt_1")
        timed(STANDARD["verify"], "routewright", lambda body: signer.verify(body, headers, NOW), cycle([BODY]))
