"""One person with two tabs, and a page whose server goes away."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from routewright import Console, MemoryStorage, Router
from routewright.ui import create_ui
from routewright.ui.app import Ui
from tests.server.uvicorn_server import served

from .problems import Problems


class Site:
    """The page of a Router, and a key to it."""

    def __init__(self) -> None:
        storage = MemoryStorage()
        console = Console(storage)
        self.key = console.blocking.create_key("_system", name="ada", scopes=["console:write"]).secret.reveal()
        self.ui: Ui = create_ui(Router.sandbox(storage=storage), console)

    def sign_in(self, page: Page) -> None:
        page.get_by_label("Key").fill(self.key)
        page.keyboard.press("Enter")


@pytest.fixture
def site() -> Site:
    return Site()


def shows(page: Page, title: str) -> None:
    expect(page.get_by_role("heading", level=1)).to_have_text(title)


def test_signing_out_in_one_tab_ends_the_other(
    page: Page, serve: Callable[..., str], site: Site, problems: Problems
) -> None:
    url = serve(site.ui)
    with problems.expect("GET .*/session: 401"):
        page.goto(f"{url}/#/models?q=gpt")
        site.sign_in(page)
    shows(page, "Models")
    other = page.context.new_page()
    other.clock.install()
    other.goto(f"{url}/#/accounts")
    shows(other, "Accounts")
    other.goto(f"{url}/#/overview?range=24h")
    shows(other, "Overview")
    page.get_by_role("button", name="Sign out").click()
    shows(page, "Sign in")
    with problems.expect("GET .*/api/.*: 401"):
        other.clock.run_for(61_000)  # it reads its figures again
        shows(other, "Sign in")
        site.sign_in(other)
        shows(other, "Overview")  # by then the last refusal has come
    expect(other.get_by_role("link", name="24 hours")).to_have_attribute("aria-current", "true")
    with problems.expect("POST .*/session: 401"):
        page.get_by_label("Key").fill("sk_live_wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_be_visible()
    site.sign_in(page)
    shows(page, "Models")
    expect(page.get_by_label("Search")).to_have_value("gpt")


def test_a_page_says_that_its_server_is_away_and_goes_on_when_it_is_back(
    page: Page, site: Site, problems: Problems
) -> None:
    page.clock.install()
    with served(site.ui) as url:
        with problems.expect("GET .*/session: 401"):
            page.goto(f"{url}/#/overview")
            site.sign_in(page)
        shows(page, "Overview")
        expect(page.get_by_text("Disk free")).to_be_visible()
    with problems.expect("ERR_CONNECTION_REFUSED"):
        page.clock.run_for(11_000)  # it reads the status again
        expect(page.get_by_role("alert").first).to_contain_text("cannot be reached")
        expect(page.get_by_text("Disk free")).to_be_visible()  # what it knew stays
        page.get_by_role("link", name="Webhooks").click()
        expect(page.get_by_role("alert").first).to_contain_text("cannot be reached")
        page.get_by_role("link", name="Overview").click()
        expect(page.get_by_role("alert").first).to_contain_text("cannot be reached")
        with served(site.ui, port=urlsplit(url).port or 0):
            page.clock.run_for(61_000)
            expect(page.get_by_text("Disk free")).to_be_visible()
            expect(page.get_by_role("alert")).to_have_count(0)
            page.goto("about:blank")
