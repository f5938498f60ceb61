"""Errors from real causes, and the exceptions the official SDK raises for them."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import anthropic
import anyio
import msgspec
import pytest

from routewright import ProviderFault, RateLimits
from routewright.backends.providers.callable import CallableProvider
from routewright.server import HttpLimits
from routewright.testing import ScriptedProvider
from routewright.wire import Finish, UpstreamCall, Usage
from tests.server.uvicorn_server import PATIENCE_S, Site
from tests.tables import table

from .clients import ASKED, client_of, model, sandbox, scripted, sdk

LIMITED: dict[str, Any] = {**ASKED, "extra_body": {"routewright": {"budget": {"maxCostUsd": 1e-9}}}}


def failure(site: Site, key: str | None = None, **asked: Any) -> anthropic.APIStatusError:
    with sdk(site, key) as client, pytest.raises(anthropic.APIStatusError) as caught:
        client.messages.create(**{**ASKED, **asked})
    return caught.value


@table(
    ("asked", "error", "kind", "code"),
    [
        ({"model": "nope"}, anthropic.NotFoundError, "not_found_error", "model_not_found"),
        ({"max_tokens": 0}, anthropic.BadRequestError, "invalid_request_error", "validation_failed"),
        (LIMITED, anthropic.UnprocessableEntityError, "invalid_request_error", "router.budget_exceeded"),
        (
            {"extra_headers": {"Authorization": "Bearer no"}},
            anthropic.AuthenticationError,
            "authentication_error",
            None,
        ),
        ({"extra_headers": {"Content-Type": "text/plain"}}, anthropic.APIStatusError, "invalid_request_error", None),
    ],
)
def test_a_refused_request_raises_the_sdks_own_error_class(
    asked: dict[str, Any], error: type[anthropic.APIStatusError], kind: str, code: str | None
) -> None:
    caught = failure(sandbox(), **asked)
    assert isinstance(caught, error)
    assert caught.type == kind
    assert code is None or caught.error_code == code
    assert caught.request_id is not None
    assert caught.response.headers["x-should-retry"] == "false"


def test_a_key_without_the_scope_is_denied() -> None:
    site = sandbox()
    caught = failure(site, site.key(environment="sandbox", scopes=["traces:read"]))
    assert isinstance(caught, anthropic.PermissionDeniedError)
    assert caught.type == "permission_error"


def test_an_account_without_balance_gets_402() -> None:
    site = scripted(ScriptedProvider(["Hello"], models=[model()]))
    caught = failure(site, site.key(account_prepaid=True))
    assert (caught.status_code, caught.type) == (402, "billing_error")


def test_an_error_lists_at_most_twenty_rejected_models_callable_ones_first() -> None:
    site = scripted(ScriptedProvider([], models=[model()]))
    caught = failure(site, site.key(), **LIMITED)
    assert caught.error_code == "router.budget_exceeded"
    rejected = caught.body["error"]["details"]["rejected_candidates"]
    assert len(rejected) == 20
    assert (rejected[0]["model"], rejected[0]["reason"]) == ("test/one", "budget_cost")
    assert {each["reason"] for each in rejected[1:]} <= {"disabled", "deprecated", "provider_unavailable"}
    assert len(str(caught)) < 3_000


def test_an_endpoint_that_is_not_offered_is_404() -> None:
    with sdk(sandbox()) as client, pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.batches.list()
    assert caught.value.type == "not_found_error"
    assert "'messages' is not served here" in caught.value.message


def test_a_body_over_the_limit_is_too_large() -> None:
    storage = sandbox()
    site = Site(storage.router, storage=storage.storage, limits=HttpLimits(body_bytes=500))
    caught = failure(site, messages=[{"role": "user", "content": "x" * 1000}])
    assert (caught.status_code, caught.body["error"]["type"]) == (413, "request_too_large")


def test_a_reused_key_with_another_body_is_a_conflict_without_retry() -> None:
    provider = ScriptedProvider(["Hello", "Hello"], models=[model()])
    site = scripted(provider)
    with sdk(site, site.key(), max_retries=2) as client:
        client.messages.create(**ASKED, extra_headers={"Idempotency-Key": "once"})
        with pytest.raises(anthropic.ConflictError):
            client.messages.create(**{**ASKED, "max_tokens": 99}, extra_headers={"Idempotency-Key": "once"})
    assert len(provider.calls) == 1


@table(
    ("fault", "error", "facts"),
    [
        ("server", anthropic.InternalServerError, (502, "api_error", "router.upstream_failed")),
        ("refused", anthropic.PermissionDeniedError, (403, "permission_error", "content_refused")),
    ],
)
def test_a_provider_failure_raises_the_sdks_own_error_class(fault: str, error: type, facts: tuple[Any, ...]) -> None:
    caught = failure(sandbox(faults={"*": fault}))
    assert issubclass(type(caught), error)
    assert (caught.status_code, caught.type, caught.error_code) == facts


def test_a_call_that_takes_too_long_times_out() -> None:
    async def never(call: UpstreamCall) -> AsyncIterator[str]:
        await anyio.sleep_forever()
        yield ""

    site = scripted(CallableProvider(never, models=[model()]))
    caught = failure(site, site.key(), extra_body={"routewright": {"timeout_ms": 50}})
    assert (caught.status_code, caught.type) == (504, "timeout_error")


def test_a_stream_that_fails_before_content_has_an_error_status() -> None:
    with sdk(sandbox(faults={"*": "server"})) as client, pytest.raises(anthropic.InternalServerError):
        client.messages.create(**ASKED, stream=True)


def test_a_fallback_before_content_only_changes_the_model() -> None:
    provider = ScriptedProvider(
        [ProviderFault("request"), "Hello"], models=[model("test/one"), model("test/two", quality=0.4)]
    )
    with sdk(scripted(provider)) as client:
        answer = client.messages.with_raw_response.create(**ASKED, stream=True)
        start = next(iter(answer.parse()))
    failed, served = (call.model.id for call in provider.calls)
    assert failed != served
    assert isinstance(start, anthropic.types.RawMessageStartEvent)
    assert start.message.model == served
    assert answer.headers["X-Routewright-Model"] == served


def test_a_fault_after_content_is_an_error_event() -> None:
    read = threading.Event()

    def answer(call: UpstreamCall) -> Iterator[str]:
        yield "Hel"
        read.wait(PATIENCE_S)
        raise ProviderFault("reset")

    site, heard = scripted(CallableProvider(answer, models=[model()])), list[str]()
    raised = pytest.raises(anthropic.APIStatusError)

    def listen(stream: anthropic.MessageStream[None]) -> None:
        for text in stream.text_stream:
            heard.append(text)
            read.set()

    with sdk(site, site.key()) as client, client.messages.stream(**ASKED) as stream, raised as caught:
        listen(stream)
    assert heard == ["Hel"]
    assert caught.value.type == "api_error"
    assert caught.value.error_code == "router.upstream_failed"


class Patient(anthropic.Anthropic):  # type: ignore[misc]
    """Says how long it would wait before it asks again, and lets a test wait for something better."""

    waits: list[float]
    meanwhile: Callable[[], None]

    def _calculate_retry_timeout(self, *args: Any, **rest: Any) -> float:
        self.waits.append(super()._calculate_retry_timeout(*args, **rest))
        self.meanwhile()
        return 0.0


def test_the_sdk_retries_after_retry_after() -> None:
    began, release = threading.Event(), threading.Event()

    def answer(call: UpstreamCall) -> Iterator[Any]:
        began.set()
        release.wait(PATIENCE_S)
        yield from ("Hello", Usage(1, 1), Finish("stop"))

    def let_it_end() -> None:
        release.set()
        first.join(PATIENCE_S)

    site = scripted(CallableProvider(answer, models=[model()]))
    key = site.key(account_limits=RateLimits(concurrency=1))
    with site.served() as url, client_of(url, key) as other:
        first = threading.Thread(target=other.messages.create, kwargs=ASKED)
        first.start()
        assert began.wait(PATIENCE_S)
        with Patient(base_url=f"{url}/anthropic", api_key=key, max_retries=1) as client:
            client.waits, client.meanwhile = [], let_it_end
            assert client.messages.create(**ASKED).stop_reason == "end_turn"
    assert len(client.waits) == 1
    assert client.waits[0] >= 1


def leave(url: str, key: str, began: threading.Event, **more: Any) -> None:
    """Ask, and go once the call is under way."""
    body = msgspec.json.encode({**ASKED, **more.pop("fields", {})})
    headers = {"x-api-key": key, "content-type": "application/json", "content-length": str(len(body)), **more}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    address = urlsplit(url)
    with socket.create_connection((address.hostname or "", address.port or 0)) as connection:
        connection.sendall(f"POST /anthropic/v1/messages HTTP/1.1\r\nhost: x\r\n{head}\r\n".encode() + body)
        assert began.wait(PATIENCE_S)


@table("streams", [False, True])
def test_a_disconnect_cancels_the_call(streams: bool) -> None:
    began, left = threading.Event(), threading.Event()

    async def answer(call: UpstreamCall) -> AsyncIterator[str]:
        try:
            yield "Hel"
            began.set()
            await anyio.sleep_forever()
        finally:
            left.set()

    site = scripted(CallableProvider(answer, models=[model()]))
    with site.served() as url:
        leave(url, site.key(), began, fields={"stream": streams})
        assert left.wait(PATIENCE_S)


@table("streams", [False, True])
def test_with_an_idempotency_key_the_call_finishes_after_a_disconnect(streams: bool) -> None:
    began, release, calls = threading.Event(), threading.Event(), list[UpstreamCall]()

    def answer(call: UpstreamCall) -> Iterator[Any]:
        calls.append(call)
        yield "Hel"
        began.set()
        release.wait(PATIENCE_S)
        yield from ("lo", Usage(1, 1), Finish("stop"))

    site = scripted(CallableProvider(answer, models=[model()]))
    key = site.key()
    with site.served() as url, client_of(url, key) as client:
        leave(url, key, began, fields={"stream": True} if streams else {}, **{"idempotency-key": "once"})
        release.set()
        options: dict[str, Any] = {"extra_headers": {"Idempotency-Key": "once"}}
        if streams:
            with client.messages.stream(**ASKED, **options) as stream:
                message: Any = stream.get_final_message()
        else:
            message = client.messages.create(**ASKED, **options)
    assert message.content[0].text == "Hello"
    assert len(calls) == 1
