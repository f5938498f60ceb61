"""Dispatchers are killed: every event still arrives with its id, and duplicates occur only after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from routewright import SqliteStorage, WebhookSigner
from routewright._core.crypto import NONCE
from routewright._core.webhooks.endpoint import add_secret
from routewright.wire import Deliveries, Endpoint, PutEndpoint, PutEvent
from tests.contracts.storage.samples import make_event
from tests.upstream import Answer, Request, Upstream

from .webhook_child import KEY, LEASE_S

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked"),
]
DISPATCHERS, ENDPOINTS, EVENTS_A_KILL = 3, 5, 4
PATIENCE_S = 60.0
ROOT = Path(__file__).parents[2]


class Received:
    """What came of each delivery: which process sent it, in the order of arrival."""

    def __init__(self) -> None:
        self.by_delivery: dict[tuple[str, str], list[int]] = defaultdict(list)
        self.changed = threading.Condition()

    def wait_for(self, deliveries: int) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: len(self.by_delivery) >= deliveries, PATIENCE_S)


@contextmanager
def receiving(received: Received) -> Iterator[int]:
    def answer(request: Request) -> Answer:
        WebhookSigner(SECRET).verify(request.raw, request.headers["service-signature"], time.time())
        with received.changed:
            name = request.path, request.headers["service-event-id"]
            received.by_delivery[name].append(int(request.headers["x-process"]))
            received.changed.notify_all()
        return Answer(status=204)

    with Upstream(answer) as server:
        yield server.port


SECRET = WebhookSigner.new_secret().reveal()


async def test_every_event_arrives_even_if_dispatchers_are_killed(tmp_path: Path, full: bool) -> None:
    kills, chance, received = 200 if full else 6, Random(), Received()
    storage = SqliteStorage(tmp_path / "s.db")
    for number in range(ENDPOINTS):
        endpoint = Endpoint(
            id=f"whe_{number}", account="acme", url=f"/{number}", events=("router.error_burst",),
            created_at="2026-11-21T09:30:00.000Z", secrets=(),
        )  # fmt: skip
        await storage.apply("acme", [PutEndpoint(add_secret(endpoint, SECRET, KEY, bytes([number]) * NONCE))])
    with receiving(received) as port:
        command = [sys.executable, "-m", "tests.backends.webhook_child", str(tmp_path / "s.db"), str(port)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, cwd=ROOT, **pipes) as nursery:  # noqa: ASYNC220
            assert nursery.stdin is not None
            assert nursery.stdout is not None

            def born() -> int:
                nursery.stdin.write("\n")  # type: ignore[union-attr]
                nursery.stdin.flush()  # type: ignore[union-attr]
                return int(nursery.stdout.readline())  # type: ignore[union-attr]

            alive, dead, emitted = [born() for _ in range(DISPATCHERS)], set[int](), 0
            for _ in range(kills):
                events = [make_event(emitted + place) for place in range(EVENTS_A_KILL)]
                await storage.apply("acme", [PutEvent(event) for event in events])
                emitted += EVENTS_A_KILL
                with received.changed:
                    received.changed.wait(chance.random() * 0.1)
                victim = alive.pop(chance.randrange(DISPATCHERS))
                os.kill(victim, signal.SIGKILL)
                dead.add(victim)
                alive.append(born())
            assert received.wait_for(emitted * ENDPOINTS)
            deadline = time.monotonic() + PATIENCE_S
            while await storage.scan("acme", Deliveries(state="in_flight"), after=None, limit=1):
                assert time.monotonic() < deadline
                with received.changed:
                    received.changed.wait(LEASE_S / 30)
            for process in alive:
                os.kill(process, signal.SIGKILL)
            nursery.stdin.close()
    states = {each.state for each in await storage.scan("acme", Deliveries(), after=None, limit=10_000)}
    await storage.aclose()
    assert states == {"delivered"}
    assert set(received.by_delivery) == {
        (f"/{number}", make_event(event).id) for number in range(ENDPOINTS) for event in range(emitted)
    }
    for delivery, senders in received.by_delivery.items():
        assert len(senders) == len(set(senders)), f"{delivery} was sent twice by one process"
        assert dead.issuperset(senders[:-1]), f"{delivery} was sent again, though nobody was killed"
