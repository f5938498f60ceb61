"""Upstream addresses are visible only to the operator, not over HTTP or to a caller with a key."""

from __future__ import annotations

import json
import logging
import pickle
import socket
from collections.abc import Callable
from typing import Any

import pytest

from routewright import Caller, Model, Pricing, Router, Settings
from routewright.backends.providers.openai import OpenAIProvider
from routewright.backends.transport.connections import failure_of
from routewright.errors import UpstreamFailed
from routewright.server import create_app
from routewright.settings import ExecutionLimits
from routewright.wire import error_envelope
from tests.tables import table

from .asgi_client import ask, scope_of
from .uvicorn_server import HELLO

pytestmark = pytest.mark.anyio

MODELS = [Model(id=f"gpu/m{n}", quality=0.9 - n / 10, pricing_per_1m=Pricing(1.0, 4.0)) for n in range(4)]
CHAT = {"model": "gpu/m0", "max_tokens": 100, **HELLO}
KEYED = Caller("default", key_id="key_1")


def closed_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


@pytest.fixture
def address() -> str:
    return f"127.0.0.1:{closed_port()}"


def router_at(address: str) -> Router:
    """One whose models all stand on a machine that nobody listens at."""
    provider = OpenAIProvider("sk-test", name="gpu", base_url=f"http://{address}/v1", models=MODELS)
    return Router(providers=[provider], settings=Settings(execution=ExecutionLimits(backoff_s=0.0)))


def admitting(caller: Caller) -> Callable[[Any], Caller]:
    return lambda scope: caller


def failed(router: Router, caller: Caller) -> UpstreamFailed:
    with pytest.raises(UpstreamFailed) as caught:
        router.blocking.route("Hello", goal="quality", caller=caller)
    return caught.value


def test_the_owner_sees_a_dead_address_once_with_a_hint(address: str) -> None:
    error = failed(router_at(address), Caller())
    assert error.message.count(address) == 1
    assert error.message.startswith("every attempt failed: gpu/m0, gpu/m1, gpu/m2, gpu/m3 (connect: no connection to ")
    assert error.message.endswith("; check that the server runs, and the port in the provider's base_url")
    assert len(error.detail["attempts"]) >= 4
    assert all(address in attempt["message"] for attempt in error.detail["attempts"])
    assert pickle.loads(pickle.dumps(error)).message == error.message


def test_a_caller_with_a_key_sees_no_address_but_the_log_does(address: str, caplog: pytest.LogCaptureFixture) -> None:
    error = failed(router_at(address), KEYED)
    shown = f"{error} {error.detail} {error_envelope(error)}"
    assert "127.0.0.1" not in shown
    assert address.partition(":")[2] not in shown
    assert "connect: no connection: it was refused" in error.message
    assert address in caplog.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/route", HELLO),
        ("/v1/route", {**HELLO, "stream": True}),
        ("/openai/v1/chat/completions", {**CHAT, "stream": True}),
        ("/anthropic/v1/messages", CHAT),
    ],
)
async def test_no_http_error_shows_an_upstream_address(
    address: str, path: str, body: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "routewright")
    for caller in (Caller(), KEYED):
        caplog.clear()
        router = router_at(address)
        said = await ask(create_app(router, authenticate=admitting(caller)), scope_of(path=path), body)
        await router.aclose()
        assert said.status == 502
        assert b"no connection: it was refused" in said.body
        assert b"127.0.0.1" not in said.body
        assert address.partition(":")[2] not in json.dumps(said.json)
        assert address in caplog.text


@table(
    ("error", "public", "hint"),
    [
        (
            socket.gaierror(socket.EAI_NONAME, "gpu-internal"),
            "no connection: the host is unknown",
            "check the host name",
        ),
        (ConnectionRefusedError(111, "gpu-internal"), "no connection: it was refused", "check that the server runs"),
        (TimeoutError("gpu-internal"), "no connection", ""),
    ],
)
def test_a_connection_error_is_described_without_the_systems_text(error: OSError, public: str, hint: str) -> None:
    fault = failure_of("gpu-internal:8000", f"it says {error}", error)
    assert fault.message.startswith("no connection to gpu-internal:8000: it says ")
    assert fault.public == public
    assert fault.hint.startswith(hint)
    assert bool(fault.hint) == bool(hint)
