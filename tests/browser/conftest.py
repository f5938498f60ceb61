"""A page in a real browser. A test fails if anything goes wrong in its pages, whatever else it asserts."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from routewright import Console, Router
from routewright.ui import Operator, create_ui
from tests.database_servers import need
from tests.server.uvicorn_server import served

from .chromium import launch, loop_shown
from .problems import PATIENCE_S, Problems

CONTEXT = {"viewport": {"width": 1440, "height": 900}, "timezone_id": "Europe/Berlin", "reduced_motion": "reduce"}
"""Each test has a fresh context with these options, in a zone that is not UTC, and without animations."""
expect.set_options(timeout=PATIENCE_S * 1_000)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    problems = pyfuncitem.funcargs.get("problems")
    assert isinstance(problems, Problems | None)
    try:
        result = yield
    except Exception as error:
        if problems is not None:
            error.add_note(problems.show())
        raise
    if problems is not None:
        problems.check()
    return result


COUNT_REQUESTS = """
window.requestsInFlight = 0
const request = window.fetch
window.fetch = async (...options) => {
    window.requestsInFlight += 1
    const finish = () => { window.requestsInFlight -= 1 }
    try {
        const response = await request(...options)
        response.clone().text().then(finish, finish)
        return response
    } catch (error) {
        finish()
        throw error
    }
}
"""
"""Tells ``settle`` when the page has all that it has asked for."""


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One process for all tests of this folder, which run in one worker."""
    need("chromium")
    with launch() as browser:
        yield browser


@pytest.fixture
def problems() -> Problems:
    """The problems of this test's pages."""
    return Problems()


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Serves an ASGI application until the end of the test. Returns its address."""
    with ExitStack() as stack:
        yield lambda app, **config: stack.enter_context(served(app, **config))


@pytest.fixture
def open_page(browser: Browser, serve: Callable[..., str], problems: Problems) -> Iterator[Callable[..., Page]]:
    """Opens a page in a context of its own, as a second person would. Takes options of ``Browser.new_context``.

    It needs ``serve`` so that pages close before their server, which waits for open requests."""

    def open_page(**options: Any) -> Page:
        context = browser.new_context(**{**CONTEXT, **options})
        context.set_default_timeout(PATIENCE_S * 1_000)
        context.add_init_script(COUNT_REQUESTS)
        problems.watch(context)
        return context.new_page()

    with loop_shown(browser):
        yield open_page
        for context in browser.contexts:
            context.close()


@pytest.fixture
def open_ui(open_page: Callable[..., Page], serve: Callable[..., str]) -> Callable[..., Page]:
    """Opens the page of a Router, signed in, at an address as "traces?status=failed". Each call is another person."""

    def open_ui(
        router: Router,
        console: Console | None = None,
        at: str = "",
        *,
        name: str = "ada",
        writes: bool = True,
        **options: Any,
    ) -> Page:
        owner = Operator(name=name, writes=writes)
        url = serve(create_ui(router, console, link_token="of-the-test", owner=owner))
        page = open_page(base_url=f"{url}/", **options)
        with page.expect_request("**/session"):
            page.goto("#link=of-the-test")
        page.goto(f"#/{at}")  # most often before the overview shows, which costs more than most views
        expect(page.get_by_role("navigation", name="Views")).to_be_visible()
        return page

    return open_ui


@pytest.fixture
def page(open_page: Callable[..., Page]) -> Page:
    """A page of 1440 by 900 px."""
    return open_page()
