"""How long does it take to sign a webhook of a kilobyte, to verify one, and how many are delivered?"""

from __future__ import annotations

import asyncio
import hmac
import time
from contextlib import suppress
from itertools import count, cycle
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.contracts.storage.samples import make_event

from routewright import MemoryStorage, SqliteStorage, WebhookSigner
from routewright._core.crypto import NONCE, derive
from routewright._core.webhooks.endpoint import add_secret
from routewright._engine.webhooks import Dispatcher
from routewright._runtime.loop import at_once
from routewright.backends.clock import SystemClock
from routewright.backends.transport.webhooks import AiohttpWebhooks
from routewright.protocols import Storage
from routewright.webhook import StandardWebhookSigner
from routewright.wire import Deliveries, Endpoint, PutEndpoint, PutEvent

from .conftest import Peer, Timed
from .measure import Effort, Figure
from .report import Question, Report, Who
from .upstream import Upstream

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
ENDPOINTS = 1_000
DEAD = 8
"""Of each hundred endpoints, the one that nobody listens at."""
STORAGES = ("memory", "SQLite")
AT_ONCE = {kind: Question(f"webhooks delivered, {ENDPOINTS:,} endpoints, {kind}") for kind in STORAGES}
EVENT = {kind: Question(f"an event in memory, {kind}") for kind in ("no endpoint", "an endpoint selects it")}


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
        figure = peer("webhooks", "webhooks", who, what)
        report.add(STANDARD[what], who, figure)
        report.add(SIGN if what == "sign" else VERIFY, who, figure)

    def test_sign(self, timed: Timed) -> None:
        signer = StandardWebhookSigner(SECRET)
        timed(STANDARD["sign"], "routewright", lambda body: signer.sign(body, NOW, "evt_1"), cycle([BODY]))

    def test_verify(self, timed: Timed) -> None:
        signer = StandardWebhookSigner(SECRET)
        headers = signer.sign(BODY, NOW, "evt_1")
        timed(STANDARD["verify"], "routewright", lambda body: signer.verify(body, headers, NOW), cycle([BODY]))


class TestDelivery:
    @pytest.mark.parametrize("kind", STORAGES)
    def test_at_once(self, report: Report, effort: Effort, server: Upstream, tmp_path: Path, kind: str) -> None:
        events = 5_000 if effort.runs > 1 else 20
        took_s = asyncio.run(deliver(made(kind, tmp_path), f"{server.url()}/chat/completions", events))
        report.add(AT_ONCE[kind], "routewright", Figure("per s", events / took_s))


class TestEvent:
    @pytest.mark.parametrize("kind", EVENT)
    def test_routewright(self, timed: Timed, kind: str) -> None:
        storage = MemoryStorage()
        if kind != "no endpoint":
            at_once(storage.apply("acme", [PutEndpoint(endpoint(0, "https://hooks.example.com", account="acme"))]))
        event = make_event()
        events = (PutEvent(replace(event, id=f"evt_{number}")) for number in count())
        timed(EVENT[kind], "routewright", lambda put: at_once(storage.apply("acme", [put])), events)


def made(kind: str, folder: Path) -> Storage:
    return MemoryStorage() if kind == "memory" else SqliteStorage(folder / "store.db")


SEALING = derive(b"root" * 8, "webhook secrets")


def endpoint(number: int, url: str, account: str) -> Endpoint:
    new = Endpoint(
        id=f"whe_{number:05}",
        account=account,
        url=url if number % 100 != DEAD else "http://127.0.0.1:1/",
        events=("router.error_burst",),
        created_at="2026-11-22T00:00:00.000Z",
        secrets=(),
    )
    return add_secret(new, SECRET.reveal(), SEALING, number.to_bytes(NONCE, "big"))


async def deliver(storage: Storage, url: str, events: int) -> float:
    """Emits events for a thousand endpoints, each of its own account, until all are delivered that can be. Returns the
    seconds that it took."""
    names = [f"a{number}" for number in range(ENDPOINTS)]
    for number, name in enumerate(names):
        await storage.apply(name, [PutEndpoint(endpoint(number, url, name))])
    dispatcher = Dispatcher(storage, lambda: AiohttpWebhooks(allow_loopback=True), lambda: (SEALING,), SystemClock())
    running = asyncio.create_task(dispatcher.run())
    began = time.perf_counter()
    for number in range(events):
        name = names[number % ENDPOINTS]
        await storage.apply(name, [PutEvent(make_event(number, account=name))])
        dispatcher.wake()
    alive = [number for number in range(events) if number % ENDPOINTS % 100 != DEAD]
    while not all([await is_delivered(storage, names[number % ENDPOINTS]) for number in alive[-200:]]):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    took_s = time.perf_counter() - began
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    await storage.aclose()
    return took_s


async def is_delivered(storage: Storage, account: str) -> bool:
    (newest,) = await storage.scan(account, Deliveries(), after=None, limit=1)
    return newest.state == "delivered"
