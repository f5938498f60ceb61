"""Four servers on one store: each cause produces one event, verified by a receiver behind TLS."""

from __future__ import annotations

import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, get_args

import anyio
import httpx2
import pytest
import trustme

from routewright import Console
from routewright.errors import SignatureError
from routewright.webhook import verify_request
from routewright.wire import EventType, WebhookEvent
from tests.upstream import Answer, Request, Upstream

from .server_processes import WORKERS, forked
from .uvicorn_server import SECRET, bearer
from .webhook_child import HITS_WINDOW_S, LEAST_LOOKUPS

PATIENCE_S = 40.0


class Receiver:
    """Verifies what comes."""

    def __init__(self) -> None:
        self.secret = ""
        self.accepted: list[WebhookEvent] = []
        self.changed = threading.Condition()

    def wait_for(self, types: Sequence[str]) -> None:
        """Wait until all of these have come. Fails if one does not, or another one does."""
        with self.changed:
            self.changed.wait_for(lambda: len(self.accepted) >= len(types), PATIENCE_S)
        assert Counter(event.type for event in self.accepted) == Counter(types)


@contextmanager
def receiving(authority: trustme.CA) -> Iterator[tuple[Receiver, int]]:
    receiver = Receiver()

    def answer(request: Request) -> Answer:
        try:
            event = verify_request(request.raw, request.headers, receiver.secret)
        except SignatureError:
            return Answer(status=401)
        with receiver.changed:
            receiver.accepted.append(event)
            receiver.changed.notify_all()
        return Answer(status=204)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    with Upstream(answer, context) as server:
        yield receiver, server.port


class Farm(NamedTuple):
    urls: list[str]
    console: Console
    receiver: Receiver
    policies: Path
    port: int

    def ask(self, key: str, calls: int, path: str = "/v1/route", **body: Any) -> Counter[int]:
        """So many calls over all servers at once, each with a question of its own; their statuses."""
        answers: Counter[int] = Counter()

        async def one(client: httpx2.AsyncClient, number: int) -> None:
            asked = {**body, **said(f"question {number}?")} if "messages" not in body and "task" not in body else body
            answers[(await client.post(f"{self.urls[number % WORKERS]}{path}", json=asked)).status_code] += 1

        async def run() -> None:
            client = httpx2.AsyncClient(headers=bearer(key), timeout=PATIENCE_S)
            async with client, anyio.create_task_group() as group:
                for number in range(calls):
                    group.start_soon(one, client, number)

        anyio.run(run)
        return answers


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    folder = tmp_path_factory.mktemp("farm")
    authority, policies = trustme.CA(), folder / "policies.toml"
    authority.cert_pem.write_to_path(str(folder / "authority.pem"))
    policies.write_text('[[policies]]\nname = "first"\ngoal = "cost"\n')
    environment = {"SSL_CERT_FILE": str(folder / "authority.pem"), "ROUTEWRIGHT_SECRET": SECRET}
    console = Console(f"sqlite:///{folder / 'store.db'}", secret=SECRET)
    console.blocking.create_account("acme", plan="unlimited", monthly_limit_usd=1_000)
    arguments = (str(folder / "store.db"), str(policies))
    with (
        receiving(authority) as (receiver, port),
        forked(WORKERS, "webhook_child", *arguments, **environment) as workers,
    ):
        yield Farm([worker.url for worker in workers], console, receiver, policies, port)
        console.blocking.close()


def said(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def test_each_of_the_eight_events_arrives_once_over_four_workers(farm: Farm) -> None:
    console, receiver, told = farm.console.blocking, farm.receiver, list[str]()
    url = f"https://localhost:{farm.port}/in"
    new = console.create_endpoint("acme", url, allow_loopback=True)
    receiver.secret = new.secret.reveal()
    key = console.create_key("acme", name="k").secret.reveal()

    def expect(*types: str) -> None:
        told.extend(types)
        receiver.wait_for(told)

    assert farm.ask(key, 3, goal="quality", **said("stumble")) == {200: 3}
    expect(*["router.fallback_triggered"] * 3)
    assert farm.ask(key, 2, budget={"maxCostUsd": 0}, **said("hi")) == {422: 2}
    expect(*["router.budget_exceeded"] * 2)
    assert farm.ask(key, 4, path="/v1/agents/run", task="hi") == {200: 4}
    expect(*["agent.run_completed"] * 4)
    farm.policies.write_text('[[policies]]\nname = "first"\ngoal = "quality"\n')
    expect("router.policy_changed")
    console.open_incident("Answers are slow", severity="minor")
    expect("incident.created")
    spent = console.standing("acme").month.spent_nanos / 1e9
    console.change_account("acme", monthly_limit_usd=round(spent * 1.7, 6))
    farm.ask(key, 8, params={"max_output_tokens": 10}, **said("hi"))
    pushed = [each.event_type for each in console.deliveries("acme", limit=200)]  # written before the answers
    assert pushed.count("billing.threshold_crossed") >= 1
    expect(*["billing.threshold_crossed"] * pushed.count("billing.threshold_crossed"))
    crossed = [event.data["threshold_percent"] for event in receiver.accepted if "threshold_percent" in event.data]
    assert len(crossed) == len(set(crossed))
    assert set(crossed) <= {50, 80, 100}
    console.change_account("acme", monthly_limit_usd=1_000)
    looks = WORKERS * (LEAST_LOOKUPS + 5)
    assert farm.ask(key, looks, cache={"mode": "exact"}) == {200: looks}
    with receiver.changed:
        receiver.changed.wait(HITS_WINDOW_S)
    farm.ask(key, WORKERS, cache={"mode": "exact"}, **said("hi"))
    expect("cache.evicted")
    assert farm.ask(key, 80, **said("fail")) == {502: 80}
    expect("router.error_burst")
    assert set(told) == set(get_args(EventType))
    assert len({event.id for event in receiver.accepted}) == len(told)
    deadline = time.monotonic() + PATIENCE_S
    while {each.state for each in console.deliveries("acme", limit=200)} != {"delivered"}:  # noted after the answer
        assert time.monotonic() < deadline
        with receiver.changed:
            receiver.changed.wait(0.05)


def test_a_wrong_signature_is_rejected_for_good(farm: Farm) -> None:
    console, receiver = farm.console.blocking, farm.receiver
    console.create_account("other")
    console.create_endpoint("other", f"https://localhost:{farm.port}/in", allow_loopback=True)
    receiver.secret = "whsec_" + "A" * 44
    key = console.create_key("other", name="k").secret.reveal()
    farm.ask(key, 1, budget={"maxCostUsd": 0}, **said("hi"))
    deadline = time.monotonic() + PATIENCE_S
    while not (found := console.deliveries("other", state="rejected")):
        assert time.monotonic() < deadline
        with receiver.changed:
            receiver.changed.wait(0.05)
    assert [attempt.status for attempt in found[0].attempts] == [401]
