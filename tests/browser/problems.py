"""What goes wrong in a page, whether or not a test looks for it: errors, failed requests, violations of the
Content-Security-Policy, dialogs, requests to other hosts."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, ConsoleMessage, Dialog, Error, Request, Response, WebError

PATIENCE_S = 10.0
LOOPBACK = ("127.0.0.1", "localhost")
REPORT_VIOLATIONS = """
addEventListener("securitypolicyviolation", event => console.error(
    `policy violation: ${event.effectiveDirective} blocks ${event.blockedURI} ${event.sample}`), true)
"""
NEXT_FRAME = """() => new Promise(done => {
    requestAnimationFrame(() => setTimeout(done))
    setTimeout(done, 100) // a hidden page has no frames
})"""


class PageProblem(AssertionError):
    """A page had problems that its test does not expect."""


class Problems:
    """The problems of all pages of a test, in order."""

    def __init__(self) -> None:
        self._problems: list[str] = []
        self._contexts: list[BrowserContext] = []

    def __str__(self) -> str:
        return "\n".join(self._problems)

    def show(self) -> str:
        """The problems, and what the open pages show."""
        texts = []
        for page in (page for context in self._contexts for page in context.pages):
            with suppress(Error):  # a page may have crashed
                texts.append(f"{page.url} shows:\n{page.inner_text('body', timeout=1_000)[:2_000]}")
        return "\n".join([f"problems of the page:\n{self}", *texts])

    def watch(self, context: BrowserContext) -> None:
        """Collect the problems of every page that this context opens."""
        self._contexts.append(context)
        context.add_init_script(REPORT_VIOLATIONS)
        context.on("page", lambda page: page.on("crash", lambda page: self._problems.append(f"crash: {page.url}")))
        context.on("console", self._on_console)
        context.on("weberror", self._on_error)
        context.on("dialog", self._on_dialog)
        context.on("request", self._on_request)
        context.on("requestfailed", self._on_failure)
        context.on("response", self._on_response)

    @contextmanager
    def expect(self, *patterns: str) -> Iterator[None]:
        """The block causes problems that match these regular expressions, at least one for each. Others remain."""
        start = len(self._problems)
        yield
        until = time.monotonic() + PATIENCE_S
        while missing := [pattern for pattern in patterns if not self._match(pattern, start)]:
            assert time.monotonic() < until, f"no problem matches {missing}; there are:\n{self}"
            self._settle()
        self._settle()
        for pattern in patterns:
            for problem in self._match(pattern, start):
                self._problems.remove(problem)

    def check(self) -> None:
        """Raise ``PageProblem`` if there were any, and forget them."""
        self._settle()
        text = str(self)
        self._problems.clear()
        if text:
            raise PageProblem(f"the page had problems:\n{text}")

    def _match(self, pattern: str, start: int) -> list[str]:
        return [problem for problem in self._problems[start:] if re.search(pattern, problem)]

    def _settle(self) -> None:
        """Let the pages report what has happened by now."""
        for page in [page for context in self._contexts for page in context.pages]:
            with suppress(Error):  # the page has gone, or goes elsewhere
                page.evaluate(NEXT_FRAME)

    def _on_console(self, message: ConsoleMessage) -> None:
        # a failed request is reported with its method and status by its own event
        if message.type in ("error", "assert", "warning") and not message.text.startswith("Failed to load resource"):
            self._problems.append(f"console {message.type}: {message.text}")

    def _on_error(self, error: WebError) -> None:
        self._problems.append(f"uncaught: {error.error.stack or error.error}")

    def _on_dialog(self, dialog: Dialog) -> None:
        self._problems.append(f"dialog: {dialog.type}: {dialog.message}")
        dialog.dismiss()

    def _on_request(self, request: Request) -> None:
        url = urlsplit(request.url)
        if url.scheme.startswith("http") and url.hostname not in LOOPBACK:
            self._problems.append(f"foreign request: {request.method} {request.url}")
        if request.headers.get("content-type") == "application/csp-report":
            self._problems.append(f"policy report: {request.post_data}")

    def _on_failure(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # a page ends its own requests, as when it is left
            self._problems.append(f"failed request: {request.method} {request.url}: {request.failure}")

    def _on_response(self, response: Response) -> None:
        if response.status >= 400:
            self._problems.append(f"failed request: {response.request.method} {response.url}: {response.status}")
