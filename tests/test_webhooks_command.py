"""``routewright webhooks``: endpoints and deliveries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from queue import Queue
from typing import Any

import anyio
import pytest

from routewright import Console, SqliteStorage
from routewright.cli import main
from routewright.errors import SignatureError
from routewright.webhook import verify_request
from routewright.wire import ClaimDeliveries, DeliveryAttempt, EndAttempt, PutEvent, WebhookEvent
from tests.contracts.storage.samples import make_event
from tests.upstream import Answer, Request, Upstream

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
URL = "https://hooks.example.com/in"
STORE = Path("store.db")


@pytest.fixture(autouse=True)
def _the_store_is_named(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("ROUTEWRIGHT_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ROUTEWRIGHT_STORE", "store.db")
    Console(f"sqlite:///{STORE}").blocking.create_account("acme")


def shown(capsys: Capture, *argv: str, code: int = 0) -> tuple[str, str]:
    capsys.readouterr()
    assert main(["webhooks", *argv]) == code
    out, err = capsys.readouterr()
    return out, err


def told(capsys: Capture, *argv: str, code: int = 0) -> Any:
    return json.loads(shown(capsys, *argv, "--json", code=code)[0])


def created(capsys: Capture, *argv: str) -> dict[str, Any]:
    found: dict[str, Any] = told(capsys, "create", "acme", URL, *argv)
    return found


def test_create_prints_the_secret_alone_to_stdout(capsys: Capture) -> None:
    out, err = shown(capsys, "create", "acme", URL)
    assert out.startswith("whsec_")
    assert out.strip() not in err
    assert "it is not shown again" in err
    (there,) = told(capsys, "ls", "acme")["endpoints"]
    assert (there["url"], len(there["events"]), there["profile"], there["disabled_at"]) == (URL, 8, "service", None)
    assert "secret" not in json.dumps(there)


def test_create_makes_an_endpoint_with_the_given_options(capsys: Capture) -> None:
    options = ("--event", "incident.created,cache.evicted", "--environment", "sandbox", "--profile", "standard")
    made = created(capsys, *options)
    assert made["secret"].startswith("whsec_")
    assert (made["events"], made["environment"]) == (["cache.evicted", "incident.created"], "sandbox")
    assert made["profile"] == "standard"
    _, err = shown(capsys, "create", "acme", "http://127.0.0.1:9000", code=2)
    assert "URL" in err
    assert shown(capsys, "create", "acme", "http://127.0.0.1:9000", "--allow-loopback")[0].startswith("whsec_")
    _, err = shown(capsys, "create", "acme", URL, "--event", "cache.evict", code=2)
    assert "did you mean 'cache.evicted'?" in err


def test_an_endpoint_is_disabled_enabled_rotated_and_deleted(capsys: Capture) -> None:
    made = created(capsys)
    assert told(capsys, "disable", "acme", made["id"])["disabled_at"] is not None
    assert "disabled" in shown(capsys, "ls", "acme")[0]
    assert told(capsys, "enable", "acme", made["id"])["disabled_at"] is None
    assert told(capsys, "rotate", "acme", made["id"], "--overlap", "0m")["secret"] != made["secret"]
    assert "is not a time" in refused(capsys, "rotate", "acme", made["id"], "--overlap", "soon")
    _, err = shown(capsys, "delete", "other", made["id"], code=2)
    assert "no endpoint" in err
    shown(capsys, "delete", "acme", made["id"])
    assert shown(capsys, "ls", "acme")[1] == "the account has no endpoint\n"


def refused(capsys: Capture, *argv: str) -> str:
    with pytest.raises(SystemExit):
        main(["webhooks", *argv])
    return capsys.readouterr().err


async def _fail(endpoint_id: str) -> None:
    storage, event = SqliteStorage(STORE), make_event(1)
    await storage.apply("acme", [PutEvent(event)])
    now = time.time()
    await storage.apply("_system", [ClaimDeliveries(lease="a", at=now, until=now + 30, limit=1, per_endpoint=1)])
    attempt = DeliveryAttempt("2026-11-22T09:30:00.000Z", 12.5, 503)
    ended = EndAttempt(
        endpoint_id=endpoint_id, event_id=event.id, lease="a", state="failed_delivery", attempt=attempt, at=now
    )
    await storage.apply("_system", [ended])
    await storage.aclose()


def test_a_failed_delivery_is_listed_and_replayed(capsys: Capture) -> None:
    made = created(capsys)
    assert shown(capsys, "deliveries", "acme")[1] == "there is no delivery\n"
    anyio.run(_fail, made["id"])
    out, _ = shown(capsys, "deliveries", "acme", "--state", "failed_delivery", "--endpoint", made["id"])
    assert "failed_delivery" in out
    assert "503" in out
    (delivery,) = told(capsys, "deliveries", "acme")["deliveries"]
    assert (delivery["event_type"], delivery["attempts"][0]["status"]) == ("router.error_burst", 503)
    assert told(capsys, "replay", "acme", made["id"]) == {"replayed": 1}
    assert told(capsys, "replay", "acme", made["id"], "--event", "evt_unknown") == {"replayed": 0}


def test_test_and_run_deliver_to_a_receiver(capsys: Capture) -> None:
    events: Queue[WebhookEvent] = Queue()

    def receive(request: Request) -> Answer:
        try:
            events.put(verify_request(request.raw, request.headers, made["secret"]))
        except SignatureError:
            return Answer(status=401)
        return Answer(status=204)

    with Upstream(receive) as receiver:
        options = (receiver.root, "--allow-loopback", "--event", "incident.created")
        stranger, made = (told(capsys, "create", "acme", *options) for _ in range(2))
        attempts = told(capsys, "test", "acme", stranger["id"], "--allow-loopback", code=1)["attempts"]
        assert attempts["incident.created"]["status"] == 401  # it is signed with another secret
        out, _ = shown(capsys, "test", "acme", made["id"], code=1)
        assert "not public" in out
        out, _ = shown(capsys, "test", "acme", made["id"], "--allow-loopback")
        assert "204" in out
        assert events.get(timeout=10).type == "incident.created"
        shown(capsys, "delete", "acme", stranger["id"])
        command = [sys.executable, "-m", "routewright", "webhooks", "run", "--allow-loopback"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr is not None
                assert "delivering" in process.stderr.readline()
                assert main(["incidents", "open", "Answers are slow"]) == 0
                assert events.get(timeout=30).data["title"] == "Answers are slow"
            finally:
                process.kill()
