"""The ground of the tests in a browser: whatever goes wrong in a page fails its test."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from playwright.sync_api import Error, Page, expect

from .checks import EXTREME_WIDTHS, axe, longest_frame_ms, looks, no_sideways_scroll
from .chromium import loop_hidden
from .problems import PageProblem, Problems

STRICT = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'"
Serve = Callable[..., str]
OpenPage = Callable[..., Page]


def site(body: str, script: str = "", style: str = "") -> Callable[..., Awaitable[None]]:
    """A page with a script and a style sheet."""
    page = (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>A page</title><link rel=stylesheet href=style.css><main>{body}</main><script src=script.js></script>"
    )
    files = {"/": ("html", page), "/script.js": ("javascript", script), "/style.css": ("css", style)}

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        kind, text = files.get(scope["path"], ("plain", ""))
        status = 404 if scope["path"] == "/missing" else 200
        headers = {"content-type": f"text/{kind}", "content-security-policy": f"{STRICT}; report-uri /report"}
        rows = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": rows})
        await send({"type": "http.response.body", "body": text.encode(), "more_body": scope["path"] == "/endless"})
        while scope["path"] == "/endless" and (await receive())["type"] != "http.disconnect":
            pass

    return app


def test_a_plain_page_has_no_problem(page: Page, serve: Serve) -> None:
    page.goto(serve(site("<h1>Hello</h1>", "document.querySelector('h1').textContent += ' there'")))
    expect(page.get_by_role("heading")).to_have_text("Hello there")
    axe(page)
    no_sideways_scroll(page)


@pytest.mark.xfail(raises=PageProblem, strict=True, reason="a page with a problem fails its test")
def test_a_problem_fails_the_test(page: Page, serve: Serve) -> None:
    page.goto(serve(site("", "console.error('broken')")))


PROBLEMS = [
    ("<script>alert(1)</script>", "", "policy violation: script-src-elem blocks inline"),
    ("<b onclick=alert(1)>bold</b>", "", "policy violation: script-src-attr blocks inline"),
    ("<p style='color: red'>", "", "policy violation: style-src-attr blocks inline"),
    ("<p style='color: red'>", "", "policy report: .*style-src-attr"),
    ("", "eval('1')", "policy violation: script-src blocks eval"),
    ("", "new WebSocket('ws://a.example')", "policy violation: connect-src blocks ws:"),
    ("", "console.error('broken', 1)", "^console error: broken 1$"),
    ("", "console.warn('old')", "^console warning: old$"),
    ("", "console.assert(1 > 2, 'less')", "^console assert: less$"),
    ("", "throw TypeError('thrown')", "^uncaught: TypeError: thrown\n.*script.js:1"),
    ("", "Promise.reject(Error('lost'))", "^uncaught: Error: lost"),
    ("", "fetch('missing')", "^failed request: GET http://127.0.0.1:.*/missing: 404$"),
    ("", "location = 'http://127.0.0.1:1/'", "^failed request: GET http://127.0.0.1:1/: net::ERR_UNSAFE_PORT$"),
    ("<img alt='' src=http://a.example/b>", "", "^foreign request: GET http://a.example/b$"),
    ("", "open('http://a.example/')", "^foreign request: GET http://a.example/$"),
    ("", "location = 'http://a.example/'", "^foreign request: GET http://a.example/$"),
    ("", "alert('hello')", "^dialog: alert: hello$"),
]
"""Body and script of a page, and a problem that it has beside others."""


def test_whatever_goes_wrong_is_a_problem(page: Page, serve: Serve, problems: Problems) -> None:
    for body, script, problem in PROBLEMS:
        with problems.expect(problem, "."):
            page.goto(serve(site(body, script)))


def test_a_crash_is_a_problem(page: Page, problems: Problems) -> None:
    with problems.expect("crash: "), pytest.raises(Error):
        page.goto("chrome://crash")


def test_what_a_page_ends_itself_is_no_problem(page: Page, serve: Serve) -> None:
    url = serve(site("<h1>Hello</h1>", "fetch('endless').then(response => response.text())"))
    with page.expect_request(f"{url}/endless"):
        page.goto(url)
    page.goto(f"{url}/?left")
    expect(page.get_by_role("heading")).to_be_visible()


def test_problems_of_every_page_count(open_page: OpenPage, serve: Serve, problems: Problems) -> None:
    url = serve(site(""))
    hers = open_page()
    his = open_page()
    with problems.expect("console error: hers", "console error: his"):
        for page, whose in ((hers, "hers"), (his, "his")):
            page.goto(url)
            page.context.new_page().evaluate("whose => console.error(whose)", whose)


def test_only_expected_problems_are_forgiven(page: Page, problems: Problems, monkeypatch: pytest.MonkeyPatch) -> None:
    with problems.expect("one|two"):
        page.evaluate("() => { for (const text of ['one', 'other', 'two']) console.error(text) }")
    monkeypatch.setattr("tests.browser.problems.PATIENCE_S", 0.0)
    with pytest.raises(AssertionError, match="no problem matches"), problems.expect("other"):
        pass  # the one before does not count
    with pytest.raises(PageProblem, match=r"problems:\nconsole error: other$"):
        problems.check()


def test_each_test_has_a_fresh_profile(open_page: OpenPage, serve: Serve) -> None:
    url = serve(site("", "document.cookie = 'seen=1'"))
    first = open_page()
    first.goto(url)
    assert first.context.cookies()
    assert not open_page().context.cookies()


def test_a_page_can_be_served_under_a_foreign_name(page: Page, serve: Serve, problems: Problems) -> None:
    url = serve(site("<h1>Hello</h1>")).replace("127.0.0.1", "rebound.test")
    with problems.expect("foreign request"):
        page.goto(url)
        expect(page.get_by_role("heading")).to_be_visible()


@pytest.mark.parametrize(
    ("body", "style", "rule"),
    [
        pytest.param("<img src=a.gif>", "", "image-alt", id="picture"),
        pytest.param("<p>pale</p>", "p { color: #bbb; background: #fff }", "color-contrast", id="contrast"),
        pytest.param("<button>a</button><button>b</button>", "button { all: unset }", "target-size", id="small button"),
    ],
)
def test_axe_names_what_it_finds(page: Page, serve: Serve, body: str, style: str, rule: str) -> None:
    page.goto(serve(site(body, style=style)))
    with pytest.raises(AssertionError, match=rf"^{rule} \(\w+\): .*\n  <"):
        axe(page)


def test_a_page_is_shown_in_each_size_and_scheme(page: Page, serve: Serve) -> None:
    page.goto(serve(site("", style="@media (prefers-color-scheme: dark) { main { color: red } }")))
    colour = "() => getComputedStyle(document.querySelector('main')).color"
    assert {look: (page.evaluate("innerWidth"), page.evaluate(colour)) for look in looks(page)} == {
        "360x740-dark": (360, "rgb(255, 0, 0)"),
        "360x740-light": (360, "rgb(0, 0, 0)"),
        "1440x900-dark": (1440, "rgb(255, 0, 0)"),
        "1440x900-light": (1440, "rgb(0, 0, 0)"),
    }


@pytest.mark.parametrize("width", EXTREME_WIDTHS)
def test_a_page_that_scrolls_sideways_is_named(page: Page, serve: Serve, width: int) -> None:
    media = f"@media (min-width: {width}px) and (max-width: {width}px)"
    page.goto(serve(site("<p class=wide>wide</p>", style=f"{media} {{ .wide {{ width: 101vw }} }}")))
    with pytest.raises(AssertionError, match=rf'^at {width} px the page is \d+ px wide: <p class="wide"></p>$'):
        no_sideways_scroll(page)


def test_a_long_frame_is_measured(page: Page, serve: Serve) -> None:
    script = """addEventListener("click", () => {
        const until = performance.now() + 150
        while (performance.now() < until);
    })"""
    page.goto(serve(site("<button>Work</button>", script)))
    assert longest_frame_ms(page, page.get_by_role("button").click) >= 150
    assert min(longest_frame_ms(page, page.get_by_role("main").hover) for _ in range(5)) < 100


def test_other_event_loops_run_beside_the_browser(page: Page) -> None:
    with loop_hidden():
        anyio.run(anyio.sleep, 0)
    assert page.evaluate("1 + 1") == 2
