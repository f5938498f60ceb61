"""A receiver in each framework handles what verifies once, and answers 401 to everything else.

The receivers are those of ``docs/how-to/webhooks.md``, each behind its framework's own test client.
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from email.message import Message
from threading import Barrier
from types import ModuleType
from typing import Any, get_args
from wsgiref.util import setup_testing_defaults

import anyio
import flask
import httpx2
import msgspec
import pytest
from docs._blocks import ROOT, blocks
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.routing import Route
from starlette.testclient import TestClient
from werkzeug.datastructures import Headers as WerkzeugHeaders

from routewright import ValidationFailed, WebhookSigner
from routewright._core.webhooks.endpoint import SAMPLES
from routewright._core.webhooks.outbox import body_of
from routewright.errors import SignatureError
from routewright.webhook import SeenEvents, StandardWebhookSigner, WebhookEvent, verify_request
from routewright.wire import Event, EventType
from tests.tables import table

SECRET, OTHER = WebhookSigner.new_secret().reveal(), WebhookSigner.new_secret().reveal()
PAGE = ROOT / "docs" / "how-to" / "webhooks.md"
NOW = 1_763_812_800

Pairs = list[tuple[str, str]]
Post = Callable[[bytes, Pairs], int]
"""Sends a body and headers to a receiver, and returns the status of its answer."""


def event_of(type: EventType, id: str = "evt_1", created_at: str = "2026-11-22T09:30:00.123Z") -> Event:
    data = SAMPLES[type]
    return Event(id=id, type=type, created_at=created_at, data=data, account="acme", environment="production")


BODY = body_of(event_of("router.error_burst"))


def signed(body: bytes, at: float, *secrets: str) -> Pairs:
    return [("Service-Signature", WebhookSigner(*(secrets or (SECRET,))).sign(body, at))]


def signed_standard(body: bytes, at: float, *secrets: str) -> Pairs:
    return [*StandardWebhookSigner(*(secrets or (SECRET,))).sign(body, at, "evt_1").items()]


SIGN = {"service": signed, "standard": signed_standard}


def receiver(heading: str, place: int = 0) -> dict[str, Any]:
    """The names that a block below a heading of the page defines, after those of the first block."""
    text = PAGE.read_text("utf-8")
    start = text.index("\n## Receive them\n")
    code = [each for each in blocks(text) if each.language == "python" and each.start > start]
    found = [each for each in code if each.start > text.index(f"\n{heading}\n", start)]
    namespace: dict[str, Any] = {"__name__": "__page__"}
    for block in (code[0], found[place]):
        exec(compile(block.text, str(PAGE), "exec", dont_inherit=True), namespace)
    return namespace


@contextmanager
def in_fastapi() -> Iterator[Post]:
    with TestClient(receiver("```python")["app"]) as client:
        yield lambda body, headers: client.post("/webhooks", content=body, headers=headers).status_code


@contextmanager
def in_starlette() -> Iterator[Post]:
    receive = receiver("```python")["receive"]
    with TestClient(Starlette(routes=[Route("/webhooks", receive, methods=["POST"])])) as client:
        yield lambda body, headers: client.post("/webhooks", content=body, headers=headers).status_code


@contextmanager
def in_flask() -> Iterator[Post]:
    client = receiver("## Flask")["app"].test_client()
    yield lambda body, headers: client.post("/webhooks", data=body, headers=headers).status_code


def django(name: str) -> Any:
    """A module of Django, which has no types."""
    conf = importlib.import_module("django.conf")
    if not conf.settings.configured:
        conf.settings.configure(
            ALLOWED_HOSTS=["testserver"], MIDDLEWARE=["django.middleware.csrf.CsrfViewMiddleware"], USE_TZ=True
        )
    return importlib.import_module(f"django.{name}")


@contextmanager
def in_django() -> Iterator[Post]:
    test, urls = django("test"), ModuleType("urls")
    urls.urlpatterns = [django("urls").path("webhooks", receiver("## Django")["receive"])]  # type: ignore[attr-defined]
    client = test.Client(enforce_csrf_checks=True)

    def post(body: bytes, headers: Pairs) -> int:
        answer = client.post("/webhooks", body, "application/json", headers=dict(headers))
        return int(answer.status_code)

    with test.override_settings(ROOT_URLCONF=urls):
        yield post


def receive(body: bytes, headers: Any, seen: SeenEvents) -> int:
    """What a receiver without a framework does, and its status."""
    try:
        event = verify_request(body, headers, SECRET)
    except SignatureError:
        return 401
    with seen.once(event.id) as is_new:
        if is_new:
            print(event.type, event.data)
    return 204


@contextmanager
def in_asgi() -> Iterator[Post]:
    seen = SeenEvents()
    yield lambda body, headers: receive(body, asgi_pairs(headers), seen)


@contextmanager
def in_wsgi() -> Iterator[Post]:
    seen = SeenEvents()
    yield lambda body, headers: receive(body, wsgi_environ(headers), seen)


def asgi_pairs(headers: Pairs) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in headers]


def wsgi_environ(headers: Pairs) -> dict[str, Any]:
    """As servers make it: repeated headers are joined."""
    environ: dict[str, Any] = {}
    setup_testing_defaults(environ)
    for name, value in headers:
        key = f"HTTP_{name.upper().replace('-', '_')}"
        environ[key] = f"{environ[key]},{value}" if key in environ else value
    return environ


FRAMEWORKS = [in_fastapi, in_starlette, in_flask, in_django, in_asgi, in_wsgi]


@pytest.fixture(params=FRAMEWORKS, ids=lambda made: made.__name__.removeprefix("in_"))
def post(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Post]:
    monkeypatch.setenv("WEBHOOK_SECRET", SECRET)
    with request.param() as post:
        yield post


@pytest.mark.parametrize("sign", SIGN.values(), ids=SIGN)
def test_an_event_is_handled_once_however_often_it_comes(
    post: Post, sign: Callable[..., Pairs], capsys: pytest.CaptureFixture[str]
) -> None:
    at = time.time()
    assert [post(BODY, sign(BODY, at + late)) for late in range(3)] == [204] * 3
    other = body_of(event_of("cache.evicted", "evt_2"))
    assert post(other, sign(other, at)) == 204
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["router.error_burst", "cache.evicted"]


@pytest.mark.parametrize("sign", SIGN.values(), ids=SIGN)
def test_unverified_requests_are_answered_401_and_not_handled(
    post: Post, sign: Callable[..., Pairs], capsys: pytest.CaptureFixture[str]
) -> None:
    at = time.time()
    requests = [
        (BODY, []),
        (BODY, sign(BODY, at, OTHER)),
        (BODY, sign(BODY, at - 400)),
        (BODY, sign(BODY, at + 400)),
        (BODY + b" ", sign(BODY, at)),
        (json.dumps(json.loads(BODY), indent=1).encode(), sign(BODY, at)),
        (b"", sign(BODY, at)),
        (b"[]", sign(b"[]", at)),
    ]
    assert [post(body, headers) for body, headers in requests] == [401] * len(requests)
    assert not capsys.readouterr().out


def test_after_a_rotation_the_old_secret_verifies_until_it_is_replaced(post: Post) -> None:
    assert post(BODY, signed(BODY, time.time(), OTHER, SECRET)) == 204


def message(headers: Pairs) -> Message:
    made = Message()
    for name, value in headers:
        made[name] = value
    return made


def flask_headers(headers: Pairs) -> object:
    with flask.Flask("app").test_request_context(headers=headers):
        return flask.request.headers


def django_request(headers: Pairs) -> Any:
    return django("test").RequestFactory().post("/", **wsgi_environ(headers))


CONTAINERS: dict[str, Callable[[Pairs], Any]] = {
    "dict": dict,
    "lower case": lambda headers: {name.lower(): value for name, value in headers},
    "upper case": lambda headers: {name.upper(): value for name, value in headers},
    "starlette": lambda headers: Headers(raw=asgi_pairs(headers)),
    "werkzeug": WerkzeugHeaders,
    "flask": flask_headers,
    "django headers": lambda headers: django_request(headers).headers,
    "django META": lambda headers: django_request(headers).META,
    "asgi": asgi_pairs,
    "asgi, any iterable": lambda headers: iter([list(pair) for pair in asgi_pairs(headers)]),
    "wsgi": wsgi_environ,
    "aiohttp": CIMultiDict,
    "httpx": httpx2.Headers,
    "http.server": message,
}
"""How frameworks hand out headers."""


@table("sign", SIGN.values(), ids=SIGN)
@table("held", CONTAINERS.values(), ids=CONTAINERS)
def test_headers_of_every_framework_are_read(held: Callable[[Pairs], Any], sign: Callable[..., Pairs]) -> None:
    others = [("Host", "testserver"), ("Service-Event-Id", "evt_2"), ("X-Service-Signature", "t=1,v1=0")]
    found = verify_request(BODY, held(others + sign(BODY, NOW)), OTHER, SECRET, now=NOW)
    assert (found.id, found.type, found.api_version) == ("evt_1", "router.error_burst", "v1")
    assert found.data == msgspec.to_builtins(SAMPLES["router.error_burst"])


@table("held", ["starlette", "werkzeug", "asgi", "asgi, any iterable", "aiohttp", "http.server"])
@table("sign", SIGN.values(), ids=SIGN)
def test_a_repeated_header_is_refused(held: str, sign: Callable[..., Pairs]) -> None:
    for repeated in sign(BODY, NOW):
        headers = CONTAINERS[held]([*sign(BODY, NOW), repeated])
        with pytest.raises(SignatureError, match=f"there are several {repeated[0].lower()} headers"):
            verify_request(BODY, headers, SECRET, now=NOW)


@table("sign", SIGN.values(), ids=SIGN)
def test_a_header_in_two_spellings_is_refused(sign: Callable[..., Pairs]) -> None:
    for name, value in sign(BODY, NOW):
        for other in (name.swapcase(), f"HTTP_{name.replace('-', '_').upper()}"):
            with pytest.raises(SignatureError, match="there are several"):
                verify_request(BODY, dict(sign(BODY, NOW)) | {other: value}, SECRET, now=NOW)


@table("held", ["flask", "django headers", "django META", "wsgi", "httpx"])
def test_a_repeated_header_joined_by_the_server_is_refused(held: str) -> None:
    id, at, signatures = signed_standard(BODY, NOW)
    for headers in (signed(BODY, NOW) * 2, [id, id, at, signatures], [id, at, at, signatures]):
        with pytest.raises(SignatureError):
            verify_request(BODY, CONTAINERS[held](headers), SECRET, now=NOW)


def test_the_service_signature_is_verified_first() -> None:
    both = signed(BODY, NOW) + signed_standard(BODY, NOW)
    assert verify_request(BODY, dict(both), SECRET, now=NOW).id == "evt_1"
    with pytest.raises(SignatureError, match="Service-Signature header is not t="):
        verify_request(BODY, dict(both) | {"Service-Signature": ""}, SECRET, now=NOW)


@table("sign", SIGN.values(), ids=SIGN)
@table(
    "body",
    [
        b"",
        b"[]",
        b"\xff",
        BODY[:-1],
        BODY + b"}",
        BODY.replace(b'"evt_1"', b"1"),
        b'{"id":"evt_1","type":"t","created_at":"c","data":[]}',
        b'{"id":' + b"[" * 100_000,
    ],
)
def test_a_verified_body_that_is_not_an_event_is_refused(body: bytes, sign: Callable[..., Pairs]) -> None:
    with pytest.raises(SignatureError, match=r"^the signature is valid, but the body is not an event: .") as raised:
        verify_request(body, dict(sign(body, NOW)), SECRET, now=NOW)
    assert raised.value.__cause__ is None


def test_an_unverified_body_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(msgspec.json, "decode", None)
    with pytest.raises(SignatureError, match="no signature matches"):
        verify_request(BODY, dict(signed(BODY, NOW, OTHER)), SECRET, now=NOW)


def test_types_and_fields_of_later_versions_are_accepted() -> None:
    body = b'{"id":"evt_1","type":"router.new","created_at":"2030","api_version":"v2","data":{},"more":1}'
    assert verify_request(body, dict(signed(body, NOW)), SECRET, now=NOW) == WebhookEvent(
        "2030", "evt_1", "router.new", {}, "v2"
    )


@table("headers", [{}, dict(signed(BODY, NOW)), dict(signed_standard(BODY, NOW)), None])
@table("secrets", [(), ("",), (SECRET, "sk_live_x")])
def test_a_malformed_secret_is_a_validation_error_for_any_request(secrets: tuple[str, ...], headers: Any) -> None:
    with pytest.raises(ValidationFailed, match="secrets"):
        verify_request(BODY, headers, *secrets, now=NOW)


def test_a_sender_cannot_cause_a_validation_error_by_its_profile() -> None:
    plain = "whsec_" + "not-base64!" * 4
    assert verify_request(BODY, dict(signed(BODY, NOW, plain)), plain, now=NOW).id == "evt_1"
    with pytest.raises(SignatureError, match=r"those of Standard Webhooks, for which secrets\[0\]: is not base64"):
        verify_request(BODY, dict(signed_standard(BODY, NOW)), plain, now=NOW)


STRIPE: Any = importlib.import_module("stripe")


@given(st.text(max_size=200), st.integers(0, 10**10))
def test_stripes_library_and_ours_verify_each_other(text: str, at: int) -> None:
    body, theirs = text.encode(), STRIPE.WebhookSignature
    for header in (signed(body, at)[0][1], signed(body, at, OTHER, SECRET)[0][1]):
        assert theirs.verify_header(text, header, SECRET)
        with pytest.raises(STRIPE.SignatureVerificationError):
            theirs.verify_header(f"{text} ", header, SECRET)
    made = theirs.generate_signature_header(text, SECRET, at)
    assert made == signed(body, at)[0][1]
    WebhookSigner(SECRET).verify(body, made, at)


@table("type", get_args(EventType))
def test_a_body_has_five_fields_in_order(type: EventType) -> None:
    event = event_of(type)
    body = body_of(event)
    assert body == body_of(event.stored) == body_of(event.stored.event)
    head = f'{{"id":"evt_1","type":"{type}","created_at":"2026-11-22T09:30:00.123Z","api_version":"v1","data":{{'
    assert body.startswith(head.encode())
    assert [*json.loads(body)] == ["id", "type", "created_at", "api_version", "data"]
    received = verify_request(body, dict(signed(body, NOW)), SECRET, now=NOW)
    assert msgspec.convert(received.data, SAMPLES[type].__class__) == SAMPLES[type]


def test_the_bytes_of_a_body_are_fixed() -> None:
    assert body_of(event_of("billing.threshold_crossed")) == (
        b'{"id":"evt_1","type":"billing.threshold_crossed","created_at":"2026-11-22T09:30:00.123Z","api_version":"v1",'
        b'"data":{"period":"2026-11","threshold_percent":80,"spent_usd":400.12,"limit_usd":500.0}}'
    )


def test_seen_events_remember_the_newest() -> None:
    seen = SeenEvents(size=3)

    def new(event_ids: str) -> str:
        found = ""
        for event_id in event_ids:
            with seen.once(event_id) as is_new:
                found += event_id * is_new
        return found

    assert [new("abcabc"), new("d"), new("bcd"), new("a")] == ["abc", "d", "", "a"]


def is_new(seen: SeenEvents, error: BaseException | None = None) -> bool:
    """Whether an event was new to a block, which then raised."""
    with suppress(BaseException), seen.once("evt_1") as is_new:
        if error is not None:
            raise error
    return is_new


@table("error", [ValueError(), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_a_failed_event_is_new_again(error: BaseException) -> None:
    seen = SeenEvents()
    assert [is_new(seen, error), is_new(seen, error), is_new(seen), is_new(seen)] == [True, True, True, False]
    assert [is_new(seen, error), is_new(seen)] == [False, False], "what fails for a duplicate changes nothing"


def test_a_duplicate_during_handling_is_answered_503() -> None:
    """Were it answered 204, the event would be lost if the first one then fails."""
    seen = SeenEvents()
    with suppress(ValueError), seen.once("evt_1"):
        with pytest.raises(RuntimeError, match="evt_1 is being handled"), seen.once("evt_1"):
            pass
        raise ValueError
    assert is_new(seen)


@pytest.mark.anyio
async def test_a_cancelled_event_is_new_again() -> None:
    seen = SeenEvents()
    with anyio.CancelScope() as scope, seen.once("evt_1"):
        scope.cancel()
        await anyio.lowlevel.checkpoint()
    with seen.once("evt_1") as is_new:
        assert is_new


def test_one_of_many_threads_handles_an_event() -> None:
    seen, start, threads, events = SeenEvents(), Barrier(8), 8, 200

    def work() -> list[int]:
        start.wait()
        handled = []
        for number in range(events):
            with seen.once(f"evt_{number}") as is_new:
                if is_new:
                    handled.append(number)
        return handled

    with ThreadPoolExecutor(threads) as pool:
        results = [pool.submit(work) for _ in range(threads)]
    assert sorted(number for each in results for number in each.result()) == [*range(events)]
