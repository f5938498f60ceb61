"""The frame of the page: signing in and out, and what holds of every view."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Page, expect

from routewright import Caller, Console, MemoryStorage, Router
from routewright.ui import create_ui

from .checks import axe, looks
from .problems import Problems

OpenUi = Callable[..., Page]
SECRET = "a secret for tests, which is long enough for one"


def test_an_operator_signs_in_with_a_key_and_out(page: Page, serve: Callable[..., str], problems: Problems) -> None:
    storage = MemoryStorage()
    console = Console(storage, secret=SECRET)
    new_key = console.blocking.create_key("_system", name="grace", scopes=["console:read"])
    key = new_key.secret.reveal()
    url = serve(create_ui(Router.sandbox(storage=storage), console))
    with problems.expect("GET .*/session: 401"):
        page.goto(f"{url}/#/models")
        expect(page.get_by_label("Key")).to_be_focused()
    with problems.expect("POST .*/session: 401"):
        page.keyboard.type("sk_live_wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_have_text("the key is unknown or revoked; paste an operator's key")
    page.get_by_label("Key").fill(key)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Models")
    expect(page.get_by_role("main")).to_be_focused()
    expect(page.get_by_text("grace (read-only)")).to_be_visible()
    with page.expect_response(re.compile("router.status")), page.expect_response(re.compile("usage.*sandbox")):
        page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("Models")
    assert key not in page.url
    assert page.evaluate("() => [document.cookie, sessionStorage.length]") == ["", 0]
    assert key not in page.evaluate("() => JSON.stringify(localStorage)")
    page.wait_for_load_state("networkidle")  # no read is under way
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    for _ in looks(page):
        axe(page)
    with problems.expect("GET .*/session: 401"):
        page.reload()
        expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    expect(page.get_by_role("alert")).to_have_count(0)
    page.get_by_label("Key").fill(key)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Models")
    with problems.expect("GET .*: 401"):  # reads of the view may be under way
        console.blocking.revoke_key("_system", new_key.key.id)
        page.reload()
        expect(page.get_by_role("alert")).to_contain_text("was revoked")


def test_what_has_most_requests_is_shown_first(open_ui: OpenUi) -> None:
    storage = MemoryStorage()
    Console(storage, secret=SECRET).blocking.create_account("acme")
    router = Router.sandbox(storage=storage)
    for account in ("default", "acme", "acme"):
        router.blocking.route("Hello", caller=Caller(account, "sandbox"))
    router.blocking.flush()
    page = open_ui(router, at="traces")
    grid = page.get_by_role("grid")
    expect(page.get_by_label("Account", exact=True)).to_have_value("acme")
    expect(page.get_by_label("Environment")).to_have_value("sandbox")
    expect(grid.get_by_role("row")).to_have_count(3)
    page.get_by_role("link", name="Overview").click()
    expect(page.get_by_role("figure", name="Calls")).to_be_visible()
    page.get_by_label("Environment").select_option("production")
    expect(page.get_by_text("No calls in this time")).to_be_visible()
    page.get_by_role("link", name="Show the sandbox").press("Enter")
    expect(page.get_by_role("figure", name="Calls")).to_be_visible()
    page.goto("#/traces?account=nobody&environment=sandbox")
    expect(page.get_by_role("alert")).to_have_text("No account has the name “nobody”.")


def test_the_navigation_leads_to_every_view_and_from_none_to_the_first(open_ui: OpenUi) -> None:
    page = open_ui(Router.sandbox())
    links = page.get_by_role("navigation").get_by_role("link")
    titles = links.all_inner_texts()
    assert len(titles) == 8
    for title in titles:
        page.get_by_role("link", name=title, exact=True).click()
        heading = re.compile(f"^{title.split()[0]}")
        expect(page).to_have_title(heading)
        expect(page.get_by_role("heading", level=1)).to_have_text(heading)
    page.go_back()
    expect(page.get_by_role("heading", level=1)).to_have_text(titles[-2])
    page.go_forward()
    expect(page).to_have_url(re.compile("#/try$"))
    page.goto("#/constructor")  # which every object of JavaScript has
    page.get_by_role("link", name="Go to the overview").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    expect(page.get_by_role("main")).to_be_focused()
    page.goto("#/overview?range=constructor")
    expect(page.get_by_role("link", name="7 days")).to_have_attribute("aria-current", "true")
    page.set_viewport_size({"width": 360, "height": 740})
    page.get_by_role("link", name="Cache").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Cache")
    header = page.get_by_role("banner").bounding_box()
    assert header is not None
    assert header["height"] < 140
    page.reload()
    expect(page.get_by_role("link", name="Cache")).to_be_in_viewport(ratio=1)


def test_the_first_tab_skips_to_the_content(open_ui: OpenUi) -> None:
    page = open_ui(Router.sandbox(), at="models")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()
    assert page.url.endswith("#/models")
