"""A server that the owner runs is sent no URL that a caller names, at any door, unless the owner allows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from routewright import Caller, Model, Pricing, Router
from routewright.backends.providers.openai import OpenAIProvider
from routewright.errors import NoCandidates, ValidationFailed
from routewright.server import create_app
from tests.core.url_samples import PRIVATE
from tests.model_servers import LocalServer

from .asgi_client import ask, scope_of

pytestmark = pytest.mark.anyio

KINDS = ("vllm", "llamacpp")
PUBLIC = "https://example.com/x.png"
REBINDING = ("https://127.0.0.1.nip.io/x.png", "https://169-254-169-254.sslip.io/latest/meta-data/")
KEYED = Caller("default", key_id="key_1")
PYTHON = "python"


def route_body(model: str, url: str) -> dict[str, Any]:
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": url}}]
    return {"models": [model], "messages": [{"role": "user", "content": parts}]}


def chat_body(model: str, url: str) -> dict[str, Any]:
    return {"model": model, "messages": route_body(model, url)["messages"]}


def response_body(model: str, url: str) -> dict[str, Any]:
    return {"model": model, "input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]}


def message_body(model: str, url: str) -> dict[str, Any]:
    image = {"type": "image", "source": {"type": "url", "url": url}}
    return {"model": model, "max_tokens": 50, "messages": [{"role": "user", "content": [image]}]}


DOORS = {
    "/v1/route": route_body,
    "/openai/v1/chat/completions": chat_body,
    "/openai/v1/responses": response_body,
    "/anthropic/v1/messages": message_body,
    PYTHON: route_body,
}


def model_of(kind: str) -> Model:
    return Model(
        id=f"{kind}/vision",
        quality=0.5,
        context_window=100_000,
        modalities=("text", "image", "file", "tool"),
        pricing_per_1m=Pricing(0.0, 0.0),
    )


class Machine:
    """A Router before a server that the owner runs, and how often that server was called."""

    def __init__(self, kind: str, server: LocalServer, **options: Any) -> None:
        self.model = f"{kind}/vision"
        self.server = server
        self.provider = OpenAIProvider(name=kind, base_url=server.url, models=[model_of(kind)], environ={}, **options)
        self.router = Router(providers=[self.provider])
        self.app = create_app(self.router, authenticate=lambda scope: Caller())

    @property
    def calls(self) -> int:
        return self.server.asked("/v1/chat/completions")

    async def ask(self, door: str, url: str) -> int:
        """The status of a call of a stranger."""
        body = DOORS[door](self.model, url)
        if door != PYTHON:
            return (await ask(self.app, scope_of(path=door), body)).status or 0
        try:
            await self.router.route(body, caller=KEYED)
        except (ValidationFailed, NoCandidates) as error:
            return error.status
        return 200


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, LocalServer]]:
    with LocalServer({}) as running:
        yield request.param, running


@pytest.mark.parametrize("door", DOORS)
async def test_no_spelling_of_a_private_address_reaches_a_server(server: tuple[str, LocalServer], door: str) -> None:
    urls = PRIVATE if door == "/v1/route" else PRIVATE[::6]  # one door reads the whole table, and all alike
    for fetches in (None, True, "callers"):  # even where the owner allows callers to send URLs
        machine = Machine(*server, fetches_urls=fetches)
        for url in urls:
            assert await machine.ask(door, url) == 400, url
        assert machine.calls == 0


@pytest.mark.parametrize("door", DOORS)
async def test_a_public_address_reaches_a_server_only_if_the_owner_allows_it_to_callers(
    server: tuple[str, LocalServer], door: str
) -> None:
    for fetches, status, calls in ((None, 422, 0), (False, 422, 0), (True, 422, 0), ("callers", 200, 1)):
        machine = Machine(*server, fetches_urls=fetches)
        assert await machine.ask(door, PUBLIC) == status
        assert machine.calls == calls


@pytest.mark.parametrize("door", DOORS)
async def test_a_public_name_of_a_private_address_does_not_reach_a_server(
    server: tuple[str, LocalServer], door: str
) -> None:
    machine = Machine(*server)
    for url in REBINDING:
        assert await machine.ask(door, url) == 422
    assert machine.calls == 0


async def test_the_owner_may_have_a_server_fetch_from_the_own_network(server: tuple[str, LocalServer]) -> None:
    machine = Machine(*server, fetches_urls=True)
    for url in ("http://127.0.0.1:9/x.png", "https://nas/x.png", PUBLIC):
        answer = await machine.router.route(route_body(machine.model, url))
        assert answer.output == "I am vision"
    assert machine.calls == 3


async def test_a_server_that_may_not_fetch_is_sent_no_url_of_the_owner(server: tuple[str, LocalServer]) -> None:
    machine = Machine(*server)
    with pytest.raises(NoCandidates, match="send images as data: URLs, or make the provider with fetches_urls=True if"):
        await machine.router.route(route_body(machine.model, PUBLIC))
    with pytest.raises(ValidationFailed, match="begins with http://, which no model here can fetch"):
        await machine.router.route(route_body(machine.model, "http://example.com/x.png"))
    assert machine.calls == 0


async def test_images_sent_as_data_reach_a_server_through_every_door(server: tuple[str, LocalServer]) -> None:
    machine = Machine(*server)
    for door in DOORS:
        assert await machine.ask(door, "data:image/png;base64,iVBORw0KGgo=") == 200, door
    assert machine.calls == len(DOORS)


@pytest.mark.parametrize(
    ("door", "path"),
    [
        ("/v1/route", "messages[0].content[1].image_url.url"),
        ("/openai/v1/chat/completions", "messages[0].content[1].image_url.url"),
        ("/openai/v1/responses", "input[0]"),
        ("/anthropic/v1/messages", "messages[0]"),
    ],
)
async def test_the_refusal_of_a_url_names_its_place_as_the_client_wrote_it(door: str, path: str) -> None:
    with LocalServer({}) as running:
        machine = Machine("vllm", running)
        told = await ask(machine.app, scope_of(path=door), DOORS[door](machine.model, PRIVATE[1]))
    assert f"{path}: names '169.254.169.254', which is not a public host" in told.body.decode()


async def test_documents_are_refused_as_images_are() -> None:
    with LocalServer({}) as running:
        machine = Machine("vllm", running, fetches_urls="callers")
        file = {"type": "file", "file": {"file_data": PRIVATE[1]}}
        content = {"models": [machine.model], "messages": [{"role": "user", "content": [file]}]}
        told = await ask(machine.app, scope_of(path="/v1/route"), content)
        assert told.json["error"]["detail"]["problems"][0]["path"] == "messages[0].content[0].file.file_data"
        document = {"type": "document", "source": {"type": "url", "url": PRIVATE[1]}}
        message = {"model": machine.model, "max_tokens": 9, "messages": [{"role": "user", "content": [document]}]}
        assert (await ask(machine.app, scope_of(path="/anthropic/v1/messages"), message)).status == 400
    assert machine.calls == 0


# Fields of vendors.
