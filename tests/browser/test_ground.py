"""The ground of the tests in a browser: whatever goes wrong in a page fails its test."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from playwright.sync_api import Page

from .checks import axe
from .problems import PageProblem, Problems

STRICT = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'"
Serve = Callable[..., str]


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


@pytest.mark.xfail(raises=PageProblem, strict=True, reason="a page with a problem fails its test")
def test_a_problem_fails_the_test(page: Page, serve: Serve) -> None:
    page.goto(serve(site("", "console.error('broken')")))


PROBLEMS = [
    ("<script>alert(1)</script>", "", "policy violation: script-src-elem blocks inline"),
    ("<p style='color: red'>", "", "policy violation: style-src-attr blocks inline"),
    ("<p style='color: red'>", "", "policy report: .*style-src-attr"),
    ("", "new WebSocket('ws://a.example')", "policy violation: connect-src blocks ws:"),
    ("", "console.error('broken', 1)", "^console error: broken 1$"),
    ("", "throw TypeError('thrown')", "^uncaught: TypeError: thrown\n.*script.js:1"),
    ("", "Promise.reject(Error('lost'))", "^uncaught: Error: lost"),
    ("", "fetch('missing')", "^failed request: GET http://127.0.0.1:.*/missing: 404$"),
    ("<img alt='' src=http://a.example/b>", "", "^foreign request: GET http://a.example/b$"),
    ("", "alert('hello')", "^dialog: alert: hello$"),
]
"""Body and script of a page, and a problem that it has beside others."""


def test_whatever_goes_wrong_is_a_problem(page: Page, serve: Serve, problems: Problems) -> None:
    for body, script, problem in PROBLEMS:
        with problems.expect(problem, "."):
            page.goto(serve(site(body, script)))


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
