"""The list of traces, and the view of one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Locator, Page, expect

from routewright import Agent, Delta, Finish, MemoryStorage, Router, Settings, Usage
from routewright.errors import BudgetExceeded
from routewright.protocols import Storage
from routewright.settings import Capture
from routewright.wire import ToolDelta, Trace
from tests.sample_store import BIG, NOON, SMALL, trace

from .chromium import loop_hidden
from .problems import Problems

OpenUi = Callable[..., Page]
Sandbox = Callable[..., Router]
HOSTILE = "<img src=x onerror=alert(1)>\u202egnp\"'&,javascript:alert(1)\n"
FAILED: dict[str, Any] = {"status": "failed", "error": "router.upstream_failed", "selected_model": None}


@pytest.fixture
def sandbox() -> Iterator[Callable[..., Router]]:
    """Makes Routers."""
    routers: list[Router] = []

    def sandbox(storage: Storage | None = None, **options: Any) -> Router:
        routers.append(Router.sandbox(storage=storage or MemoryStorage(), **options))
        return routers[-1]

    yield sandbox
    with loop_hidden():
        for router in routers:
            router.blocking.close()


@pytest.fixture
def router(sandbox: Callable[..., Router]) -> Router:
    """A Router without traces."""
    return sandbox()


def record(router: Router, *traces: Trace) -> None:
    for each in traces:
        router.traces.blocking.record(each)


def rows(page: Page) -> Locator:
    return page.get_by_role("grid").locator("[aria-rowindex]:not([aria-rowindex='1'])")


def test_the_list_is_filtered_by_a_line_buttons_and_values(open_ui: OpenUi, router: Router, problems: Problems) -> None:
    record(
        router,
        trace("tr_newest", 1.0, metadata={"team": 'search, "EU"', "n": 3}),
        trace("tr_failed", 2.0, **FAILED),
        trace("tr_rescued", 3.0, fallback_used=True),
        trace("tr_run", 4.0, kind="agent", selected_model=None),
        trace("tr_oldest", 99.0, selected_model=BIG, compromised=True),
    )
    page = open_ui(router, at="traces")
    line = page.get_by_role("searchbox", name="Filter")
    links = rows(page).get_by_role("link")

    def shows(*ids: str) -> None:
        expect(links).to_have_count(len(ids))
        assert [link.get_attribute("href") for link in links.all()] == [f"#/traces/tr_{name}" for name in ids]

    shows("newest", "failed", "rescued", "run", "oldest")
    line.fill("cost_usd>=0.001,status=failed")
    line.press("Enter")
    shows("failed")
    with problems.expect("GET .*/api/traces.*: 400"):
        line.fill("cost_usd>=much")
        line.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("write a number such as 0.5")
    page.get_by_role("button", name="Remove cost_usd>=much").click()
    shows("newest", "failed", "rescued", "run", "oldest")
    rows(page).get_by_role("button", name='team=search, "EU"').click()
    shows("newest")
    expect(line).to_have_value(r'metadata.team="search, \"EU\""')
    expect(page.get_by_role("list", name="Terms of the filter").get_by_role("button")).to_have_count(1)
    page.go_back()
    shows("newest", "failed", "rescued", "run", "oldest")
    page.go_forward()
    shows("newest")
    page.reload()
    shows("newest")
    page.get_by_role("button", name="Remove metadata.team").click()
    for name, expected in (("fallback", "rescued"), ("error", "failed"), ("compromised", "oldest")):
        toggle = page.locator(".filter").get_by_role("button", name=name, exact=True)
        toggle.click()
        shows(expected)
        expect(toggle).to_have_attribute("aria-pressed", "true")
        toggle.click()
    page.get_by_role("combobox", name="Kind").select_option("Agent runs")
    shows("run")
    page.get_by_role("combobox", name="Kind").select_option("Any")
    page.get_by_label("Since").fill("2026-11-22T11:30")  # Berlin's, an hour ahead: 10:30
    shows("newest")
    page.get_by_role("combobox", name="Status").select_option("failed")
    expect(page.get_by_text("No trace matches")).to_be_visible()
    page.get_by_role("link", name="Show all traces").click()
    shows("newest", "failed", "rescued", "run", "oldest")


def test_the_list_is_used_by_keyboard(open_ui: OpenUi, router: Router) -> None:
    record(router, *(trace(f"tr_{number:03}", number / 10) for number in range(150)))
    page = open_ui(router, at="traces")
    grid = page.get_by_role("grid", name="Traces, newest first")
    active = grid.get_by_role("row", selected=True)
    grid.focus()
    for key, place in (("ArrowDown", 0), ("ArrowDown", 1), ("End", 99), ("End", 149), ("ArrowUp", 148), ("Home", 0)):
        if key == "End":
            expect(grid).to_have_attribute("aria-rowcount", "151")  # the second page is read before it is scrolled to
        page.keyboard.press(key)
        expect(active).to_have_attribute("aria-rowindex", str(max(place, 149 if key == "End" else place) + 2))
        expect(active).to_be_in_viewport()
        expect(grid).to_have_attribute("aria-activedescendant", active.get_attribute("id") or "")
    page.keyboard.press("PageDown")
    assert 5 < int(active.get_attribute("aria-rowindex") or 0) < 40
    page.keyboard.press("Home")
    page.keyboard.press("Tab")
    expect(active.get_by_role("link")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("filter=status%3Dcompleted"))
    page.keyboard.press("ArrowDown")
    grid.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Trace tr_001")
    page.go_back()
    expect(active).to_contain_text("completed")
    expect(active.get_by_role("link")).to_have_attribute("href", "#/traces/tr_001")


def test_new_traces_appear_and_wait_while_others_are_read(open_ui: OpenUi, router: Router) -> None:
    record(router, *(trace(f"tr_{number:03}", number + 1) for number in range(60)))
    page = open_ui(router, at="traces")
    first = rows(page).first.get_by_role("link")
    expect(first).to_have_attribute("href", "#/traces/tr_000")
    page.clock.set_fixed_time(NOON)
    record(router, trace("tr_new", 0.5))
    expect(first).to_have_attribute("href", "#/traces/tr_new")
    page.get_by_role("grid").evaluate("grid => { grid.scrollTop = 900 }")
    read = page.locator("a[href='#/traces/tr_030']")
    place = read.bounding_box()
    record(router, trace("tr_newer", 0.4), trace("tr_late", 0.51))
    arrived = page.get_by_role("button", name="2 new traces")
    expect(arrived).to_be_visible()
    assert read.bounding_box() == place
    arrived.click()
    expect(first).to_have_attribute("href", "#/traces/tr_newer")
    expect(rows(page).nth(2).get_by_role("link")).to_have_attribute("href", "#/traces/tr_late")
    expect(arrived).to_have_count(0)
    page.get_by_role("switch", name="Live").uncheck()
    expect(page).to_have_url(re.compile("paused=1"))


def answer(call: Any) -> list[Any]:
    """Ask for the calculator, then answer."""
    last = call.messages[-1]
    if last.role == "tool" or "17.5" not in str(last.content):
        return [Delta(f"It is {HOSTILE}"), Usage(120, 12), Finish("stop")]
    return [
        ToolDelta(0, '{"expression": "2340 * 0.175"}', "call_1", "calculator"),
        Usage(100, 20),
        Finish("tool_calls"),
    ]


def test_a_trace_says_why_its_model_was_chosen(open_ui: OpenUi, sandbox: Sandbox) -> None:
    router = sandbox(answers=answer, settings=Settings(capture=Capture()))
    done = router.blocking.route(f"Why? {HOSTILE}", goal="quality", metadata={HOSTILE.strip(): 1})
    router.blocking.flush()
    at = router.blocking.traces.get(done.trace_id).created_at
    record(router, msgspec.structs.replace(trace("tr_live", 1.0), created_at=at))  # so the page begins in production
    page = open_ui(router, at=f"traces/{done.trace_id}?environment=sandbox")
    expect(page.get_by_text(done.decision.reason, exact=True)).to_be_visible()
    candidates = page.get_by_role("region", name="Candidates").get_by_role("row")
    expect(candidates.nth(1)).to_contain_text(done.decision.model)
    expect(page.get_by_text(re.compile(r"^Rejected by constraint: .*deprecated \d+"))).to_be_visible()
    expect(page.get_by_text("same decision")).to_be_visible()
    replayed = page.get_by_role("region", name="The stored decision and its replay").get_by_role("row")
    expect(replayed.nth(1).get_by_role("cell").nth(2)).to_contain_text(done.decision.model)
    expect(replayed.filter(has_text="Digest")).to_have_count(0)  # it is the same
    page.get_by_label("Why not this model?").fill(SMALL)
    page.keyboard.press("Enter")
    expect(page.get_by_role("region", name="What would change it")).to_contain_text(f"{SMALL} is number")
    expect(page).to_have_url(re.compile("model="))
    expect(page.get_by_role("region", name="user")).to_have_text(f"Why? {HOSTILE}")
    expect(page.get_by_role("region", name="answer")).to_have_text(f"It is {HOSTILE}")
    page.get_by_role("button", name="Give feedback").click()
    page.get_by_label("Score").fill("0.25")
    page.get_by_label("Comment").fill(HOSTILE)
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_text("0.25 of 1")).to_be_visible()
    feedback = router.traces.blocking.feedback_of(done.trace_id)
    assert feedback is not None
    assert (feedback.score, feedback.comment) == (0.25, HOSTILE.strip("\n"))
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_text("JSON", exact=True).click()
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    copied = msgspec.json.decode(page.evaluate("() => navigator.clipboard.readText()"))
    assert copied["id"] == done.trace_id

    with pytest.raises(BudgetExceeded) as refusal:
        router.blocking.route("Hello", budget={"maxCostUsd": 1e-9})
    router.blocking.flush()
    page.goto(f"#/traces/{refusal.value.trace_id}")
    expect(page.locator(".failure")).to_have_text(f"router.budget_exceeded: {refusal.value.message}")
    expect(page.get_by_text("The replay refuses")).to_have_count(0)
    expect(page).to_have_url(re.compile("environment=sandbox"))  # which the address left open
    expect(page.get_by_label("Environment", exact=True)).to_have_value("sandbox")
    page.get_by_role("navigation").get_by_role("link", name="Traces").click()
    cut = "cells => cells.filter(cell => cell.scrollWidth > cell.clientWidth).map(cell => cell.textContent)"
    expect(rows(page)).to_have_count(2)
    assert rows(page).locator(":is(.status, .error) .value").evaluate_all(cut) == []


def test_a_run_is_a_tree_whose_calls_open_in_place(open_ui: OpenUi, sandbox: Sandbox) -> None:
    router = sandbox(answers=answer)
    run = Agent(router, tools=["calculator"]).blocking.run("What is 17.5 % of 2,340?")
    router.blocking.flush()
    page = open_ui(router, at=f"traces/{run.trace_id}?environment=sandbox")
    tree = page.get_by_role("treegrid", name="Spans")
    titles = tree.locator("[data-id]").locator("b")
    expect(titles).to_have_text(
        [
            "Step 1: llm call",
            re.compile("^Call "),
            "Step 2: tool call",
            "Tool calculator",
            "Step 3: llm call",
            re.compile("^Call "),
        ]
    )
    call = tree.locator("[data-id='2']")
    expect(call).to_have_attribute("aria-expanded", "false")
    tree.locator("[tabindex='0']").focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowDown", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    expect(titles.nth(2)).to_have_text("Decision")
    attempt = tree.get_by_role("row", selected=True)
    expect(attempt).to_have_attribute("aria-level", "3")
    expect(tree.get_by_text("finish reason")).to_be_visible()
    page.reload()
    expect(attempt).to_contain_text("attempt 1")  # the address holds the span
    call.locator(".fold").click()
    expect(call).to_have_attribute("aria-expanded", "false")
    expect(attempt).to_have_count(0)
    call.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).not_to_have_text(f"Trace {run.trace_id}")
    expect(page.get_by_text("same decision")).to_be_visible()
    page.go_back()
    expect(page.get_by_text("Each model call of the run has its own decision")).to_be_visible()


def test_a_trace_that_is_not_there_says_so(open_ui: OpenUi, router: Router, problems: Problems) -> None:
    record(router, trace("tr_hers", 1.0, account="anna"))
    with problems.expect("GET .*/api/trace.*: 404"):
        page = open_ui(router, at="traces/tr_hers")
        expect(page.get_by_role("alert")).to_have_text("no trace 'tr_hers'")
    page.goto("#/traces/tr_hers?account=anna")
    expect(page.get_by_role("treegrid")).to_be_visible()
