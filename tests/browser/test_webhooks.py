"""Webhook endpoints and their deliveries: what a person does in the page, and what is then in the store."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest
from playwright.sync_api import Locator, Page, expect

from routewright import Console, MemoryStorage, Router, Settings
from routewright.console import BlockingConsole
from routewright.settings import WebhookSettings
from routewright.webhook import verify_request
from routewright.wire import WebhookAnswer

from .checks import axe, no_sideways_scroll
from .dialogs import dialog, leave, refuse, submit
from .problems import Problems

OpenUi = Callable[..., Page]
HOSTILE = "<img src=x onerror=alert(1)>"
SLOW = f"https://slow.example.com/{'x' * 300}"
EVENTS = 30


class Receivers:
    """Accept events, refuse them, or do not answer, by their host. ``all_tried`` is set after the last one."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.all_tried = anyio.Event()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> WebhookAnswer:
        self.count -= 1
        if not self.count:
            self.all_tried.set()
        if "slow" in url:
            raise OSError(f"{HOSTILE} does not answer")
        return WebhookAnswer(410 if "gone" in url else 204)

    async def aclose(self) -> None:
        """Nothing to close."""


class Receiver:
    """An endpoint on this machine. It keeps what it received."""

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, str], bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = (await receive())["body"]
        self.requests.append(({name.decode(): value.decode() for name, value in scope["headers"]}, body))
        await send({"type": "http.response.start", "status": 202, "headers": []})
        await send({"type": "http.response.body"})


@pytest.fixture
def console() -> Console:
    return Console(MemoryStorage(), secret="0123456789abcdef" * 4)


@pytest.fixture
def router(console: Console) -> Router:
    settings = Settings(webhooks=WebhookSettings(deliver=False))
    return Router(providers=[], storage=console._storage, settings=settings)


@pytest.fixture
def store(console: Console) -> BlockingConsole:
    return console.blocking


@pytest.fixture
def delivered(console: Console, store: BlockingConsole) -> dict[str, str]:
    """The ids of three endpoints of ``default``, by the first word of their hosts. All their events were tried."""
    urls = ("https://ok.example.com/", "https://gone.example.com/", SLOW)
    ids = {url[8:].partition(".")[0]: store.create_endpoint("default", url).endpoint.id for url in urls}
    for number in range(EVENTS):
        store.open_incident(f"Answers are slow {number}", severity="major")

    async def deliver() -> None:
        receivers = Receivers(len(urls) * EVENTS)
        await console.deliver(WebhookSettings(transport=receivers), stop=receivers.all_tried)

    with ThreadPoolExecutor() as pool:  # Playwright has this thread's loop
        pool.submit(anyio.run, deliver).result()
    return ids


def states(store: BlockingConsole, **filters: Any) -> list[str]:
    return [delivery.state for delivery in store.deliveries("default", limit=100, **filters)]


def test_an_endpoint_is_created_tested_rotated_and_deleted(
    open_ui: OpenUi,
    serve: Callable[..., str],
    router: Router,
    console: Console,
    store: BlockingConsole,
    problems: Problems,
) -> None:
    store.create_account("acme")
    receiver = Receiver()
    url = f"{serve(receiver)}/in"
    page = open_ui(router, console, at="webhooks?account=acme&environment=sandbox")
    form = dialog(page.get_by_role("main"), "Create an endpoint")
    form.get_by_label("URL").fill("https://10.0.0.1/in")
    refuse(form, problems, "url: has a host that is not public")
    form.get_by_label("URL").fill(url)
    for event in ("router.error_burst", "router.policy_changed", "agent.run_completed", "cache.evicted"):
        form.get_by_label(event).uncheck()
    form.get_by_label("Signature").select_option("standard")
    submit(form)
    expect(form.get_by_role("status")).to_contain_text(f"deliveries to {url}. It is not shown again.")
    first = form.locator("code").inner_text()
    leave(page)
    (endpoint,) = store.endpoints("acme")
    assert (endpoint.url, endpoint.environment, endpoint.profile) == (url, "sandbox", "standard")
    assert [event.partition(".")[0] for event in endpoint.events] == ["router", "router", "billing", "incident"]
    assert first not in page.content()

    row = page.get_by_role("row", name=endpoint.id)
    send_samples(page, row)
    assert [verify_request(body, headers, first).type for headers, body in receiver.requests] == list(endpoint.events)

    form = dialog(row, "Rotate the secret")
    expect(form.get_by_label("Keep the old secret for")).to_have_value("86400")
    form.get_by_label("Keep the old secret for").select_option("1 hour")
    submit(form)
    expect(form.get_by_role("status")).to_contain_text("new signing secret")
    second = form.locator("code").inner_text()
    leave(page)
    expect(row).to_contain_text("The old secret signs until")
    new, old = store.endpoints("acme")[0].secrets
    assert (new.expires_at, old.expires_at is None) == (None, False)
    receiver.requests.clear()
    send_samples(page, row)
    assert len(receiver.requests) == 4
    for headers, body in receiver.requests:
        assert verify_request(body, headers, first) == verify_request(body, headers, second)

    submit(dialog(row, "Disable"))
    expect(row).to_contain_text("disabled")
    assert store.endpoints("acme")[0].disabled_at is not None
    submit(dialog(row, "Enable"))
    expect(row).to_contain_text("enabled")
    assert store.endpoints("acme")[0].disabled_at is None
    submit(dialog(row, "Delete"))
    expect(page.get_by_text("No endpoints.")).to_be_visible()
    assert store.endpoints("acme") == []


def send_samples(page: Page, row: Locator) -> None:
    form = dialog(row, "Test")
    submit(form)
    expect(form.get_by_role("definition")).to_contain_text(["202, "] * 4)
    leave(page)


def test_deliveries_are_filtered_paged_and_replayed(
    open_ui: OpenUi, router: Router, console: Console, store: BlockingConsole, delivered: dict[str, str]
) -> None:
    page = open_ui(router, console, at="webhooks")
    rows = page.get_by_role("region", name="Deliveries").locator("tbody tr")
    expect(rows).to_have_count(50)
    page.get_by_role("link", name="Older").click()
    expect(rows).to_have_count(3 * EVENTS - 50)
    page.get_by_role("link", name="Newest").click()
    expect(rows).to_have_count(50)
    filters = page.locator(".fields")
    filters.get_by_label("State").select_option("waiting")
    expect(rows).to_have_count(EVENTS)
    expect(rows.first).to_contain_text(f"1: {HOSTILE} does not answer")
    rows.first.get_by_role("group").click()
    expect(rows.first.get_by_role("definition")).to_contain_text(["does not answer"])
    axe(page)
    no_sideways_scroll(page)
    filters.get_by_label("Endpoint").select_option(delivered["gone"])
    expect(page.get_by_text("None.")).to_be_visible()
    filters.get_by_label("State").select_option("rejected")
    expect(rows).to_have_count(EVENTS)
    expect(page).to_have_url(re.compile(f"state=rejected&endpoint={delivered['gone']}"))
    page.go_back()
    expect(page.get_by_text("None.")).to_be_visible()
    page.go_forward()
    expect(rows.first).to_contain_text("1: 410")

    submit(dialog(rows.first, "Replay"))
    expect(rows).to_have_count(EVENTS - 1)
    assert states(store, endpoint_id=delivered["gone"]).count("waiting") == 1
    row = page.get_by_role("region", name="Endpoints").get_by_role("row", name=delivered["gone"])
    submit(dialog(row, "Replay failed"))
    expect(row.get_by_role("status")).to_have_text(f"Deliveries restarted: {EVENTS}")
    assert set(states(store, endpoint_id=delivered["gone"])) == {"waiting"}
    assert set(states(store, endpoint_id=delivered["ok"])) == {"delivered"}
    store.delete_endpoint("default", delivered["gone"])
    page.reload()
    expect(rows).to_have_count(0)  # the address names an endpoint that is no more: rejected deliveries of all
    expect(filters.get_by_label("Endpoint")).to_have_value("")
    filters.get_by_label("State").select_option("delivered")
    expect(rows).to_have_count(EVENTS)
