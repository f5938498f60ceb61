"""Streams in the applications of hosts: the code of the page, in each framework, and ``sse_response``."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import anyio
import msgspec
import pytest
from docs._blocks import blocks

from routewright import (
    Agent,
    CallableProvider,
    Caller,
    Catalogue,
    Console,
    MemoryStorage,
    Model,
    Pricing,
    ProviderFault,
    Router,
    UpstreamCall,
)
from routewright.server import sse_response
from routewright.wire import ErrorEnvelope, RateLimits
from tests.test_webhook_receivers import django

from .asgi_client import Client, Message, scope_of
from .uvicorn_server import PATIENCE_S

pytestmark = pytest.mark.anyio

PAGE = Path(__file__).parents[2] / "docs/how-to/web-app.md"
MODEL = Model(id="local/one", quality=0.5, pricing_per_1m=Pricing(1.0, 4.0))
Ask = Callable[[str, Client], Coroutine[Any, Any, None]]


class House:
    """A Router whose account may ask a few times a minute, and whose model does what it is told."""

    def __init__(self) -> None:
        self.storage = MemoryStorage()
        self.shown = threading.Event()
        """Set once a client has some of the answer."""
        self.left = threading.Event()
        provider = CallableProvider(self.answer, models=[MODEL])
        self.owner = Router(providers=[provider], catalogue=Catalogue(()), storage=self.storage, max_retries=0)
        self.router = self.owner.as_caller(Caller("acme"))

    async def __aenter__(self) -> Self:
        console = Console(self.storage, secret="a secret that is long enough for one")
        await console.create_account("acme", limits=RateLimits(requests_per_min=2))
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.owner.aclose()

    async def answer(self, call: UpstreamCall) -> AsyncIterator[str]:
        word = call.messages[-1].content
        if word == "fail":
            raise ProviderFault("request")
        try:
            yield "" if word == "think" else "half "
            if word == "break":
                await anyio.to_thread.run_sync(self.shown.wait, PATIENCE_S)
                raise ProviderFault("reset")
            if word in ("hang", "think"):
                await anyio.sleep_forever()
            yield "and half"
        finally:
            self.left.set()


class Browser(Client):
    """Says when it has some of the answer."""

    def __init__(self, house: House) -> None:
        super().__init__()
        self._house = house

    @property
    def headers(self) -> dict[str, str]:
        return {name.lower(): value for name, value in super().headers.items()}

    async def send(self, message: Message) -> None:
        await super().send(message)
        if b"half" in message.get("body", b""):
            self._house.shown.set()


def code_of(heading: str, router: Router) -> dict[str, Any]:
    """The names that the block below a heading of the page defines, over this Router."""
    text = PAGE.read_text("utf-8")
    code = [block for block in blocks(text) if block.language == "python"]
    block = next(block for block in code if block.start > text.index(f"\n{heading}\n"))
    namespace: dict[str, Any] = {"__name__": "__page__"}
    for part in (code[0], block):
        exec(compile(part.text, str(PAGE), "exec", dont_inherit=True), namespace)
    namespace["router"] = router
    return namespace


def asgi(app: Any) -> Ask:
    async def ask(question: str, client: Client) -> None:
        scope = scope_of("GET", "/ask", query=f"question={question}", headers={"host": "testserver"})
        await app(scope, client.receive, client.send)

    return ask


def in_django(router: Router) -> Ask:
    urls = ModuleType("urls")
    django("test")
    view = code_of("## Django", router)["ask"]
    urls.urlpatterns = [django("urls").path("ask", view)]  # type: ignore[attr-defined]
    ask = asgi(django("core.asgi").get_asgi_application())

    async def ask_there(question: str, client: Client) -> None:
        with django("test").override_settings(ROOT_URLCONF=urls, MIDDLEWARE=[]):
            await ask(question, client)

    return ask_there


def in_flask(router: Router) -> Ask:
    browser = code_of("## Flask", router)["app"].test_client()

    def ask(question: str, client: Client) -> None:
        """As a WSGI server: it closes what it sends when it cannot send on."""
        answer = browser.get("/ask", query_string={"question": question}, buffered=False)
        headers = [(name.lower().encode(), value.encode()) for name, value in answer.headers]
        send = anyio.from_thread.run
        send(client.send, {"type": "http.response.start", "status": answer.status_code, "headers": headers})
        for piece in answer.iter_encoded():
            send(client.send, {"type": "http.response.body", "body": piece, "more_body": True})
            if question == "hang" and b"half" in piece:
                break
        answer.close()

    async def ask_there(question: str, client: Client) -> None:
        await anyio.to_thread.run_sync(ask, question, client)

    return ask_there


FRAMEWORKS: dict[str, Callable[[Router], Ask]] = {
    "starlette": lambda router: asgi(code_of("## Starlette", router)["app"]),
    "fastapi": lambda router: asgi(code_of("## FastAPI", router)["app"]),
    "django": in_django,
    "flask": in_flask,
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_a_refusal_and_a_failure_before_content_have_their_own_status(framework: str) -> None:
    async with House() as house:
        ask = FRAMEWORKS[framework](house.router)
        failed, fine, refused = (Browser(house) for _ in range(3))
        await ask("fail", failed)
        assert (failed.status, failed.json["error"]["code"]) == (502, "router.upstream_failed")
        await ask("fine", fine)
        assert fine.status == 200
        assert fine.headers["content-type"].startswith("text/event-stream")
        assert fine.headers["x-ratelimit-limit"] == "2"
        assert fine.body.startswith(b"event: route.started\nid: 1\n")
        assert fine.body.count(b"event: route.completed\nid: 4\n") == 1
        await ask("fine", refused)
        assert (refused.status, refused.json["error"]["code"]) == (429, "RATE_LIMITED")
        assert int(refused.headers["retry-after"]) > 0
        assert refused.json["error"]["request_id"].startswith("req_")


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_a_failure_midway_is_the_last_event(framework: str) -> None:
    async with House() as house:
        client = Browser(house)
        await FRAMEWORKS[framework](house.router)("break", client)
        *_, content, last = client.body.decode().removesuffix("\n\n").split("\n\n")
        assert client.status == 200
        assert content.startswith("event: output.delta\nid: 2\n")
        assert last.startswith("event: error\nid: 3\ndata: ")
        error = msgspec.json.decode(last.partition("data: ")[2], type=ErrorEnvelope).error
        assert error.code == "router.upstream_failed"
        assert (error.request_id or "").startswith("req_")


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_a_client_that_leaves_ends_the_call(framework: str) -> None:
    async with House() as house:
        client = Browser(house)
        ask = FRAMEWORKS[framework](house.router)
        async with anyio.create_task_group() as group:
            group.start_soon(ask, "hang", client)
            if framework != "flask":
                await client.until(lambda it: b"half" in it.body)
                client.leave()
        assert await anyio.to_thread.run_sync(house.left.wait, PATIENCE_S)
        await house.router.flush()
        (trace,) = (await house.router.traces.query()).data
        assert trace.status == "cancelled"
        assert trace.charged_usd == trace.cost_usd > 0


async def test_an_agents_steps_are_a_response() -> None:
    async with House() as house:
        agent = Agent(house.router)
        served, _, refused = clients = [Browser(house) for _ in range(3)]
        for client in clients:
            await sse_response(agent.stream("fine"))(scope_of(), client.receive, client.send)
        assert served.body.startswith(b"event: run.started\nid: 1\n")
        assert served.body.count(b"event: run.completed\n") == 1
        assert served.headers["x-ratelimit-limit"] == "2"
        assert (refused.status, refused.json["error"]["code"]) == (429, "RATE_LIMITED")
