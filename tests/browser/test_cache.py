"""The cache: what it saves, how its bound is kept, and why a question or a call is a hit or a miss."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Page, expect

from routewright import Caller, Console, MemoryStorage, Router

from .checks import axe, no_sideways_scroll
from .problems import Problems

OpenUi = Callable[..., Page]
HOSTILE = "What is <img src=x onerror=alert(1)> \u202e in the capital of France?"
SECRET = "0123456789abcdef" * 4


def make_router() -> tuple[Router, list[str]]:
    """A miss, a hit, a question near it, and a call without the cache, of ``acme``. Their trace ids."""
    storage = MemoryStorage()
    Console(storage, secret=SECRET).blocking.create_account("acme")
    router = Router.sandbox(storage=storage)
    questions = (HOSTILE, HOSTILE, HOSTILE.replace("France", "Peru"), "Hello")
    answers = [
        router.blocking.route(question, caller=Caller("acme", "sandbox"), cache=question != "Hello")
        for question in questions
    ]
    router.blocking.flush()
    return router, [answer.trace_id for answer in answers]


def test_what_the_cache_saves_and_why_a_question_is_a_hit(open_ui: OpenUi, problems: Problems) -> None:
    router, _ = make_router()
    page = open_ui(router, at="cache?account=acme&environment=sandbox")
    report = router.traces.blocking.cache_report(account="acme", environment="sandbox")
    assert (report.hits, report.misses) == (1, 2)
    expect(page.get_by_text("33.3 %", exact=True).first).to_be_visible()
    expect(page.get_by_text("1 hits, 2 misses")).to_be_visible()
    expect(page.locator(".figure", has_text="Entries")).to_contain_text("2")
    expect(page.locator(".figure", has_text="Bound (max_error)")).to_contain_text("1 %")
    expect(page.locator(".figure", has_text="Answered live")).to_contain_text("0 % of look-ups")
    ages = page.get_by_role("region", name="Hits", exact=True).get_by_role("row")
    expect(ages.nth(1)).to_contain_text("1, 100 %")

    addresses: list[str] = []
    page.on("request", lambda request: addresses.append(request.url))
    question = page.get_by_role("textbox", name="Question")
    question.fill(HOSTILE)
    page.get_by_role("button", name="Explain", exact=True).click()
    expect(page.get_by_text("a hit: the same request was answered")).to_be_visible()
    question.fill(HOSTILE.replace("France", "Chile"))
    page.get_by_role("button", name="Explain", exact=True).press("Enter")
    near = page.get_by_role("region", name="Entries near it")
    expect(near).to_contain_text("<img src=x onerror=alert(1)>")
    expect(page.get_by_text("a miss:")).to_be_visible()
    axe(page)
    no_sideways_scroll(page)
    question.fill('{"messages": [], "goal": "best"}')
    with problems.expect("page.explain_cache.*400"):
        page.get_by_role("button", name="Explain", exact=True).click()
        expect(page.get_by_role("alert")).to_contain_text("goal")
    assert any("page.explain_cache" in address for address in addresses)
    assert not any("capital" in address for address in addresses)
    question.fill("{")
    page.get_by_role("button", name="Explain", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("JSON")


def test_a_trace_says_what_its_look_up_came_to(open_ui: OpenUi, problems: Problems) -> None:
    router, (first, hit, near, plain) = make_router()
    page = open_ui(router, at="cache?account=acme&environment=sandbox", writes=False)
    expect(page.get_by_text("takes a key with console:write")).to_be_visible()
    expect(page.get_by_role("textbox", name="Question")).to_have_count(0)  # it would show questions of others
    field = page.get_by_label("Trace id")

    def explain(trace_id: str) -> None:
        field.fill(trace_id)
        field.press("Enter")

    explain(hit)
    expect(page).to_have_url(re.compile(f"trace={hit}"))
    expect(page.get_by_text(re.compile(r"^Hit \(exact\): an answer from .* before, which saved \$"))).to_be_visible()
    expect(page.get_by_role("link", name=first)).to_be_visible()
    explain(first)
    expect(page.get_by_text("Miss: no entry was near.")).to_be_visible()
    explain(near)
    expect(page.get_by_text(re.compile("^Miss: the nearest question differs in"))).to_be_visible()
    axe(page)
    no_sideways_scroll(page)
    page.reload()
    expect(field).to_have_value(near)
    explain(plain)
    expect(page.get_by_text("used no cache")).to_be_visible()
    with problems.expect("api/trace.*40"):
        explain("tr_01jd3v8m6qk2x9w5t7r4n8y2zb")
        expect(page.get_by_role("alert")).to_contain_text("no trace")
