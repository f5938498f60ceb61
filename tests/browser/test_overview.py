"""The overview: figures of one and of all accounts, charts as text, what is wrong, budgets, incidents."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial

import anyio
import pytest
from msgspec.structs import replace
from playwright.sync_api import Page, expect

from routewright import Caller, Console, MemoryStorage, Model, Pricing, ProviderFault, Router, Settings
from routewright.errors import BudgetExceeded
from routewright.testing import ScriptedProvider
from routewright.trace import BlockingTraceStore
from routewright.wire import FallbackSpan, ModelSpan, Trace
from tests.billing import book
from tests.contracts.storage.samples import make_row, make_trace

OpenUi = Callable[..., Page]
HOSTILE = "<img src=x onerror=alert(1)>"
LONG = "\u202e\n" + "x" * 10_000
SECRET = "0123456789abcdef" * 4


def trace(number: int, hours_ago: float, account: str, model: str, **facts: object) -> Trace:
    at = datetime.now(UTC) - timedelta(hours=hours_ago)
    attempt = ModelSpan(
        id=1, name="model", start_ms=0.0, model=model, provider="p", attempt=1, status="ok", latency_ms=100.0
    )  # fmt: skip
    return make_trace(
        number, created_at=at.strftime("%Y-%m-%dT%H:%M:%S.000Z"), account=account, selected_model=model,
        cost_usd=0.25, charged_usd=0.5, spans=[attempt], **facts,
    )  # fmt: skip


def fill(store: BlockingTraceStore) -> None:
    """Ten calls of today and earlier, three of them of ``default``."""
    for number, hours_ago in enumerate((0.1, 20, 47, 70, 92, 115, 138)):
        kind = {"metadata": {"tenant": HOSTILE if number % 2 else LONG}, "duration_ms": 200.0 + 100 * number}
        store.record(trace(number, hours_ago, "acme", ("openai/gpt-4.1", HOSTILE)[number % 2], **kind))
    for number in range(7, 9):
        store.record(trace(number, 0.2, "default", "openai/gpt-4o", duration_ms=900.0))
    failed = trace(9, 0.3, "default", "openai/gpt-4o", status="failed", error="router.upstream_failed")
    move = FallbackSpan(
        id=2, name="fallback", start_ms=1.0, from_model=HOSTILE, to_model="openai/gpt-4o", reason="error", used=True,
        fault="server",
    )  # fmt: skip
    store.record(replace(failed, fallback_used=True, spans=[*failed.spans, move]))


@pytest.fixture
def router() -> Router:
    """It has a refused key, an open circuit, a refusal, and accounts near their limits."""
    storage = MemoryStorage()
    good, spare = (
        Model(id="good/one", quality=0.9, pricing_per_1m=Pricing(1, 4)),
        Model(id="spare/two", quality=0.5, pricing_per_1m=Pricing(1, 4)),
    )
    router = Router(
        providers=[
            ScriptedProvider(lambda call: ProviderFault("auth", status=401), models=[good]),
            ScriptedProvider(lambda call: "An answer", models=[spare]),
        ],
        storage=storage,
        settings=Settings(rollup_keys=("team",)),
    )
    console = Console(storage, secret=SECRET).blocking
    rows = []
    for number, name in enumerate(("acme", HOSTILE, *(f"firm-{number:02}" for number in range(11)))):
        console.create_account(name, plan="pro", monthly_limit_usd=10)
        row = make_row(
            f"of {name}", charge=(12 - number) * 10**9, at=console.open_incident(name, severity="minor").started_at
        )
        rows.append((name, row))
    with ThreadPoolExecutor() as pool:  # Playwright has this thread's loop
        pool.map(lambda entry: anyio.run(partial(book, storage, *entry)), rows)
    fill(router.traces.blocking)
    router.blocking.route("hi", goal="quality", caller=Caller("firm-10"))
    with pytest.raises(BudgetExceeded):
        router.blocking.route("hi", budget={"maxCostUsd": 1e-9})
    router.blocking.flush()
    return router


def figure(page: Page, name: str) -> str:
    return page.locator(".figure", has=page.get_by_text(name, exact=True)).locator("dd").first.inner_text()


def test_all_accounts_then_one_by_model_tenant_and_hour(open_ui: OpenUi, router: Router) -> None:
    page = open_ui(router)
    expect(page.get_by_label("Account", exact=True)).to_have_value("*")
    usage = router.traces.blocking.usage(all_accounts=True)
    expect(page.get_by_role("figure", name="Calls")).to_be_visible()
    assert figure(page, "Calls") == str(usage.totals.requests)
    assert figure(page, "Errors") == str(usage.totals.errors) == "2"
    assert figure(page, "Spend") == f"${usage.totals.cost_usd:.2f}"
    calls = page.locator("figure", has_text="Calls").first
    expect(calls.get_by_role("listitem")).to_contain_text(
        ["openai/gpt-4.1", HOSTILE, "openai/gpt-4o", "spare/two", "(no model)"]
    )
    expect(page.get_by_role("region", name="Attempts by model")).to_contain_text("spare/two")
    expect(page.get_by_role("region", name="Why a fallback served")).to_contain_text("server")

    latency = page.locator("figure", has_text="Latency by day")
    latency.get_by_label("Model").select_option(HOSTILE)
    expect(page).to_have_url(re.compile("latency_of=%3Cimg"))
    latency.get_by_text("As a table").click()
    expect(latency.get_by_role("row")).to_have_count(8)
    last = next(
        row for row in reversed(router.traces.blocking.latency_by_day(all_accounts=True)) if row.model == HOSTILE
    )
    expect(latency.get_by_role("cell", name=f"{last.p95_ms:.0f} ms").first).to_be_visible()

    page.get_by_label("Group by").select_option("account")
    expect(calls.get_by_role("listitem")).to_contain_text(["acme", "default"])
    page.get_by_label("Account", exact=True).select_option("default")
    expect(page).to_have_url(re.compile("account=default"))
    expect(page.get_by_label("Group by")).to_have_value("model")
    expect(page.locator(".figure", has_text="Calls").first).to_contain_text("4")
    page.go_back()
    expect(page.get_by_label("Account", exact=True)).to_have_value("*")

    page.get_by_label("Account", exact=True).select_option("acme")
    expect(calls.get_by_role("listitem")).to_contain_text(["openai/gpt-4.1", HOSTILE])
    over = calls.locator(".u-over")
    over.hover(position={"x": over.evaluate("area => area.clientWidth") - 40, "y": 60})  # today, the last of seven bars
    expect(calls.locator(".note")).to_have_text(datetime.now(UTC).strftime("%-d %b"))
    page.get_by_role("link", name="24 hours").press("Enter")  # while a day is pointed at
    expect(page.locator(".figure", has_text="Calls").first).to_contain_text("2")
    page.go_back()
    page.get_by_label("Group by").select_option("tenant")
    expect(calls.get_by_role("listitem")).to_contain_text(["\u202e\nxxx", HOSTILE])
    page.get_by_role("link", name="24 hours").click()
    expect(page).to_have_url(re.compile("range=24h"))
    expect(page.locator(".figure", has_text="Calls").first).to_contain_text("2")
    page.reload()
    expect(page.get_by_role("link", name="24 hours")).to_have_attribute("aria-current", "true")
    calls.get_by_text("As a table").click()
    expect(calls.get_by_role("row")).to_have_count(25)


def test_what_is_wrong_and_which_budgets_are_nearly_used(open_ui: OpenUi, router: Router) -> None:
    page = open_ui(router)
    problems = page.get_by_role("alert")
    expect(problems).to_contain_text("good: the vendor refused its key")
    expect(page.get_by_role("region", name="Open circuits")).to_contain_text("good/one")
    expect(page.get_by_role("region", name="Refusals")).to_contain_text("router.budget_exceeded")
    expect(page.locator(".figure", has_text="Keys refused by vendors")).to_contain_text("good")
    limits = page.get_by_role("region", name="Limits")
    expect(limits.get_by_role("row")).to_have_count(11)
    expect(limits.get_by_role("row").nth(1)).to_contain_text("$12.00 of $10.00, 120 %")
    expect(limits.get_by_role("row").nth(2)).to_contain_text(HOSTILE)
    page.get_by_label("Account", exact=True).select_option("firm-00")
    expect(limits.get_by_role("row")).to_have_count(2)
    expect(page.get_by_text("No calls in this time")).to_be_visible()
    page.get_by_label("Account", exact=True).select_option("default")
    expect(page.get_by_text("No limits are set")).to_be_visible()


def test_an_incident_is_opened_and_resolved_by_keyboard(open_ui: OpenUi) -> None:
    storage = MemoryStorage()
    console = Console(storage, secret=SECRET)
    page = open_ui(Router.sandbox(storage=storage), console)
    page.get_by_role("button", name="Open an incident").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Title")).to_be_focused()
    page.keyboard.type(HOSTILE)
    page.keyboard.press("Tab")
    page.keyboard.type("critical")
    page.keyboard.press("Tab")
    page.keyboard.type("https://status.example.com/")
    page.keyboard.press("Enter")
    expect(page.get_by_role("region", name="Incidents")).to_contain_text(HOSTILE)
    (incident,) = console.blocking.incidents()
    assert (incident.title, incident.severity, incident.resolved_at) == (HOSTILE, "critical", None)
    assert incident.status_url == "https://status.example.com/"
    page.get_by_role("button", name="Resolve").press("Enter")
    expect(page.get_by_role("dialog").get_by_role("button", name="Resolve")).to_be_focused()
    page.get_by_role("dialog").get_by_role("button", name="Resolve").press("Enter")
    expect(page.get_by_role("region", name="Incidents").get_by_text("open", exact=True)).to_have_count(0)
    (incident,) = console.blocking.incidents()
    assert incident.resolved_at is not None


def test_an_empty_store_says_how_to_record_a_call(open_ui: OpenUi) -> None:
    page = open_ui(Router(providers=[], storage=MemoryStorage()))
    expect(page.get_by_text("No calls in this time")).to_be_visible()
    expect(page.get_by_label("Account", exact=True)).to_have_value("default")
    expect(page.get_by_role("region", name="Latency")).to_have_count(0)
    expect(page.get_by_text("Rescues")).to_have_count(0)
    page.get_by_role("main").get_by_role("link", name="Try one").click()
    expect(page.get_by_label("Prompt", exact=True)).to_be_focused()
