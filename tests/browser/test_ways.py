"""The ways to the page in a real browser, and pages of others that try to use its session."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from routewright import Console, MemoryStorage, Router, SqliteStorage
from routewright.ui import Operator, create_ui
from tests.ui.command import running

from .problems import Problems

ATTACK = """<!doctype html><title>evil</title><script>
(async () => {
  const body = JSON.stringify({ name: "stolen" }), credentials = "include";
  const post = { method: "POST", credentials, body };
  const json = { "Content-Type": "application/json" };
  const tries = [
    fetch("URL/api/console.accounts", { credentials }),
    fetch("URL/session", { credentials }),
    fetch("URL/session", { credentials, method: "DELETE", mode: "no-cors" }),
    fetch("URL/api/console.create_account", { ...post, headers: { ...json, "X-Session-Token": "x" } }),
    fetch("URL/api/console.create_account", { ...post, mode: "no-cors" }),
    fetch("URL/api/console.create_account", { ...post, mode: "no-cors", headers: { "Content-Type": "text/plain" } }),
  ];
  const results = (await Promise.allSettled(tries)).map((result) => result.value?.type || "refused");
  document.body.textContent = results.join(" ");
})();
</script><body>"""


def test_the_browser_that_the_command_opens_is_signed_in(page: Page, tmp_path: Path, problems: Problems) -> None:
    console = Console(SqliteStorage(tmp_path / "traces.db"))
    console.blocking.create_account("acme")
    console.blocking.close()
    opened = tmp_path / "opened.txt"
    script = tmp_path / "browser.sh"
    script.write_text(f'#!/bin/sh\necho "$@" > {opened}.part\nmv {opened}.part {opened}\n')
    script.chmod(0o755)
    with running(tmp_path, BROWSER=str(script)) as command:
        command.until(opened.exists)
        page.goto(opened.read_text().strip())
        expect(page).to_have_url(re.compile(rf"^http://127\.0\.0\.1:{command.port}/#/$"))
        expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
        expect(page.get_by_label("Account")).to_contain_text("acme")
        page.reload()
        expect(page.get_by_label("Account")).to_contain_text("acme")
        page.goto("about:blank")


def test_a_page_at_another_port_of_the_host_can_do_nothing(
    page: Page, serve: Callable[..., str], problems: Problems
) -> None:
    storage = MemoryStorage()
    console = Console(storage)
    owner = Operator(name="ada", writes=True)
    url = serve(create_ui(Router.sandbox(storage=storage), console, link_token="t", owner=owner))
    evil = serve(one_page(ATTACK.replace("URL", url)))
    framing = serve(one_page(f"<!doctype html><title>frame</title><iframe src='{url}/'></iframe>"))
    page.goto(f"{url}/#link=t")
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    with problems.expect(".*"):
        page.goto(evil)
        expect(page.locator("body")).to_have_text(" ".join(["refused"] * 6))
        page.goto(framing)
        expect(page.frame_locator("iframe").get_by_role("heading")).to_have_count(0)
    page.goto(f"{url}/#/models")
    expect(page.get_by_role("heading", level=1)).to_have_text("Models")  # still signed in
    assert console.blocking.accounts() == []


def one_page(html: str) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/html")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": html.encode()})

    return app
