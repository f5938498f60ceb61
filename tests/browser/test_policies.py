"""Policies at the page: drafted, simulated, published, shared, rolled back; and two people at one draft."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from routewright import CallableProvider, Console, MemoryStorage, Model, Policy, Pricing, Router
from routewright.console import BlockingConsole
from routewright.policies import BlockingPolicyStore
from routewright.wire import PolicyShare

from .checks import axe, no_sideways_scroll
from .chromium import loop_hidden
from .problems import Problems

OpenUi = Callable[..., Page]
LARGE = Model(id="mine/large", quality=0.9, pricing_per_1m=Pricing(2.0, 8.0), context_window=100_000)
SMALL = Model(id="mine/small", quality=0.7, pricing_per_1m=Pricing(0.2, 0.8), context_window=100_000)
DESK = Policy(name="desk", goal="quality")
CHEAP = Policy(name="desk", strategy="cost-optimized")


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def console(storage: MemoryStorage) -> BlockingConsole:
    return Console(storage).blocking


@pytest.fixture
def policies(console: BlockingConsole) -> BlockingPolicyStore:
    return console.policies


@pytest.fixture
def router(storage: MemoryStorage) -> Router:
    return Router(
        providers=[CallableProvider(lambda call: "word " * 250, name="mine", models=[LARGE, SMALL])], storage=storage
    )


def serve_requests(router: Router, count: int, **options: Any) -> None:
    for number in range(count):
        router.blocking.route(
            "Where is my parcel?", policy_id="desk", metadata={"user": f"user-{number % 40}"}, **options
        )
    router.blocking.flush()


def write(page: Page, policy: Any) -> None:
    text = policy if isinstance(policy, str) else json.dumps(policy)
    page.get_by_label("Policy, in JSON").fill(text)
    page.get_by_role("button", name=re.compile("Save the draft|Replace it")).click()


def row(page: Page, table: str, text: str) -> Locator:
    return page.get_by_role("region", name=table).get_by_role("row").filter(has_text=text)


def confirm(page: Page, button: str, **fields: str) -> None:
    """Press a button, fill in its dialog, and press the dialog's button."""
    page.get_by_role("button", name=button, exact=True).click()
    dialog = page.get_by_role("dialog")
    for label, value in fields.items():
        dialog.get_by_label(label.replace("_", " ")).fill(value)
    dialog.get_by_role("button", name=button, exact=True).click()


def test_a_new_policy_is_drafted_and_published(
    open_ui: OpenUi, router: Router, policies: BlockingPolicyStore, problems: Problems
) -> None:
    page = open_ui(router, at="policies")
    expect(page.get_by_text("No policy is stored.")).to_be_visible()
    page.get_by_role("button", name="New policy").press("Enter")
    write(page, "{")
    expect(page.get_by_role("alert")).to_have_text("this is not valid JSON; check line 1, column 2")
    write(page, '{"name": "desk",\n "goal": cost, "strategy": "cost-optimized"}')
    expect(page.get_by_role("alert")).to_have_text("this is not valid JSON; check line 2, column 10")
    with problems.expect("policies.draft: 400"):
        write(page, {"name": "desk", "gaol": "quality"})
        expect(page.get_by_role("alert")).to_have_text("policy.gaol: is not a field; did you mean goal?")
    page.get_by_text("Fields of a policy").click()
    expect(row(page, "Fields of a policy", "goal").first).to_contain_text("cost, quality, stability")
    with problems.expect("policies.check.*: 400"):
        write(page, {"name": "desk", "goal": "quality", "models": ["mine/larg"]})
        expect(page.get_by_role("heading", level=1)).to_have_text("desk")
        expect(page.get_by_role("alert")).to_contain_text("unknown model 'mine/larg'")
    record = policies.get("desk")
    assert (record.drafted_by, record.draft) == ("ada", Policy(name="desk", goal="quality", models=["mine/larg"]))
    page.get_by_role("button", name="Edit").click()
    expect(page.get_by_label("Policy, in JSON")).to_have_value(re.compile("mine/larg"))
    write(page, {"name": "desk", "goal": "quality"})
    expect(page.get_by_text("✓ Its models are known.")).to_be_visible()
    expect(row(page, "Differences", "goal")).to_contain_text('"quality"')
    expect(row(page, "Weights", "after")).to_contain_text("70")
    confirm(page, "Publish", Note="first version")
    expect(page.get_by_role("status")).to_have_text(re.compile(r"desk@.* serves all of the traffic\."))
    version = policies.versions("desk")[0]
    assert (version.policy, version.by, version.note) == (DESK, "ada", "first version")
    assert policies.get("desk").content == version.content
    page.get_by_role("link", name="Policies", exact=True).click()
    expect(row(page, "Policies", "desk")).to_contain_text(re.compile(f"{version.label}.*by ada.*first version"))


def test_a_draft_is_simulated(open_ui: OpenUi, router: Router, policies: BlockingPolicyStore) -> None:
    policies.draft(DESK)
    policies.publish("desk")
    serve_requests(router, 40)
    policies.draft(CHEAP)
    page = open_ui(router, at="policies/desk")
    page.get_by_role("link", name="Simulate").click()
    expect(page.locator("nav.tabs [aria-current]")).to_have_text("Simulate")
    page.get_by_role("button", name="Simulate").click()
    report = page.locator("section").filter(has=page.get_by_role("heading", name="desk, draft"))
    expect(report.get_by_text("100 % (91.2 % to 100 %)")).to_be_visible()
    expect(row(page, "Expected figures", "Expected cost")).to_contain_text(re.compile(r"-\d+\.\d % \(-.* to -"))
    expect(report.get_by_text("No latency: 40 of the requests would go to 'mine/small'")).to_be_visible()
    expect(report.get_by_text("mine/small has no outcome on such requests")).to_be_visible()
    expect(row(page, "Rerouted requests", "mine/small")).to_have_text("mine/largemine/small40")
    axe(page)
    no_sideways_scroll(page)
    report.get_by_text("mine/large → mine/small: tr_").first.click()
    expect(report.get_by_role("region", name="Explanation after").first).to_contain_text("strategy=cost-optimized")
    report.get_by_role("link", name="Its trace").first.click()
    expect(page).to_have_url(re.compile("#/traces/tr_.*account=default&environment=production"))
    page.go_back()
    page.get_by_label("Filter").fill("metadata.user=nobody")
    page.get_by_label("Requests of").select_option("1d")
    page.get_by_role("button", name="Simulate").click()
    expect(page.get_by_text("No figures: no stored production request of 'default' matches")).to_be_visible()
    expect(page.get_by_text("0 % to 100 %")).to_have_count(0)
    page.go_back()
    expect(page.get_by_label("Filter")).to_have_value("")
    expect(row(page, "Rerouted requests", "mine/small")).to_be_visible()
    assert page.url.endswith("tab=simulate&draft=desk&since=7d")


def test_a_share_is_published_compared_and_completed(
    open_ui: OpenUi, router: Router, policies: BlockingPolicyStore, problems: Problems
) -> None:
    for policy in (DESK, CHEAP):
        policies.draft(policy, by="ada")
        if policy is DESK:
            policies.publish("desk", by="ada")
    page = open_ui(router, at="policies/desk")
    with problems.expect("policies.publish: 400"):
        confirm(page, "Publish to a share", Share_in_percent="1o")
        expect(page.get_by_role("alert")).to_contain_text("share")
    assert policies.get("desk").share is None
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Share in percent")).to_have_value("1o")
    dialog.get_by_label("Share in percent").fill("40")
    dialog.get_by_label("Who gets the same version").fill("metadata.user")
    dialog.get_by_role("button", name="Publish to a share").click()
    expect(page.get_by_role("status")).to_contain_text("serves 40 % of the traffic")
    first, second = sorted(policies.versions("desk"), key=lambda version: len(version.label))
    assert policies.get("desk").share == PolicyShare(second.content, 0.4, "metadata.user")
    serve_requests(router, 80)
    page.get_by_role("link", name="Compare").click()
    expect(row(page, "Share", "Cost of a request")).to_contain_text(re.compile(r"\$0\.002.* to .*lower$"))
    axe(page)
    no_sideways_scroll(page)
    confirm(page, "Change the share", Share_in_percent="50")
    expect(page.get_by_role("status")).to_contain_text("serves 50 % of the traffic")
    assert policies.get("desk").share == PolicyShare(second.content, 0.5, "metadata.user")
    confirm(page, "End the share")
    expect(page.get_by_role("status")).to_contain_text(f"{first.label} serves all of the traffic again.")
    policies.draft(CHEAP)
    policies.publish("desk", share=0.1)
    page.reload()
    confirm(page, "Complete the share", Note="cheaper")
    expect(page.get_by_role("status")).to_contain_text(f"{second.label} serves all of the traffic.")
    record = policies.get("desk")
    assert (record.content, record.share, record.note, record.changed_by) == (second.content, None, "cheaper", "ada")


def test_versions_are_looked_at_rolled_back_and_retired(
    open_ui: OpenUi, router: Router, policies: BlockingPolicyStore
) -> None:
    for policy in (DESK, CHEAP):
        policies.draft(policy)
        policies.publish("desk")
    second, first = policies.versions("desk")
    page = open_ui(router, at="policies/desk?tab=versions")
    expect(row(page, "Versions", "in force")).to_contain_text(second.label)
    page.get_by_role("link", name=first.label, exact=True).click()
    expect(page.get_by_role("region", name=first.label)).to_contain_text('"goal": "quality"')
    axe(page)
    page.get_by_role("button", name="Roll back").click()
    expect(page.get_by_label("Version", exact=True)).to_have_value(first.label)
    page.get_by_role("dialog").get_by_role("button", name="Roll back").click()
    expect(page.get_by_role("status")).to_contain_text(f"{first.label} serves all of the traffic.")
    assert policies.get("desk").content == first.content
    expect(row(page, "Versions", "in force")).to_contain_text(first.label)
    page.get_by_role("link", name="Draft").click()
    page.get_by_role("button", name="Write a draft").click()
    expect(page.get_by_label("Policy, in JSON")).to_have_value(re.compile('"goal": "quality"'))
    page.get_by_role("button", name="Save the draft").click()
    expect(page.get_by_text("Nothing changes.")).to_be_visible()
    page.get_by_label("Compared with").select_option(second.label)
    expect(row(page, "Differences", "strategy")).to_contain_text('"cost-optimized"')
    expect(page).to_have_url(re.compile("against=desk"))
    confirm(page, "Discard")
    expect(page.get_by_text("No draft.")).to_be_visible()
    confirm(page, "Retire")
    expect(page.get_by_role("status")).to_have_text("desk is retired.")
    assert policies.get("desk").content is None
    confirm(page, "Roll back")
    expect(page.get_by_role("button", name="Retire")).to_be_visible()
    assert policies.get("desk").content is not None


def test_two_people_edit_one_draft(
    open_ui: OpenUi, router: Router, policies: BlockingPolicyStore, problems: Problems
) -> None:
    policies.draft(DESK, by="ada")
    ada = open_ui(router, at="policies/desk?edit=1", name="ada")
    bob = open_ui(router, at="policies/desk?edit=1", name="bob")
    for page in (ada, bob):
        expect(page.get_by_label("Policy, in JSON")).to_have_value(re.compile('"goal": "quality"'))
    write(bob, {"name": "desk", "goal": "stability"})
    expect(bob.get_by_role("button", name="Edit")).to_be_visible()
    mine = '{"name": "desk", "goal": "cost"}'
    with problems.expect("policies.draft: 412"):
        write(ada, mine)
        expect(ada.get_by_role("alert")).to_have_text("desk has changed since it was read")
    theirs = ada.locator("section").filter(has=ada.get_by_role("heading", name="Draft of bob"))
    expect(theirs.get_by_role("region", name="Stored policy")).to_contain_text('"goal": "stability"')
    expect(theirs.locator("mark").first).to_be_visible()
    expect(ada.get_by_label("Policy, in JSON")).to_have_value(mine)
    assert policies.get("desk").drafted_by == "bob"
    axe(ada)
    no_sideways_scroll(ada)

    ada.get_by_role("button", name="Replace it").click()
    expect(ada.get_by_role("button", name="Edit")).to_be_visible()
    record = policies.get("desk")
    assert (record.drafted_by, record.draft) == ("ada", Policy(name="desk", goal="cost"))

    bob.get_by_role("button", name="Edit").click()
    with problems.expect("policies.draft: 412"):
        write(bob, {"name": "desk", "goal": "quality"})
        bob.get_by_role("button", name="Take theirs").click()
    expect(bob.get_by_label("Policy, in JSON")).to_have_value(re.compile('"goal": "cost"'))
    expect(bob.get_by_role("button", name="Save the draft")).to_be_visible()

    policies.publish("desk")
    with problems.expect("policies.publish: 412"):
        ada.goto("#/policies/desk")  # read before the publication
        confirm(ada, "Publish")
        expect(ada.get_by_role("alert")).to_have_text("desk has changed since it was read")


def test_a_text_outlives_the_session(open_ui: OpenUi, router: Router, policies: BlockingPolicyStore) -> None:
    policies.draft(DESK, by="ada")
    page = open_ui(router, at="policies/desk?edit=1")
    page.get_by_label("Policy, in JSON").fill("not saved yet")
    page.get_by_role("link", name="Models").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Models")
    page.go_back()
    expect(page.get_by_label("Policy, in JSON")).to_have_value("not saved yet")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Edit").click()
    expect(page.get_by_label("Policy, in JSON")).to_have_value(re.compile('"goal": "quality"'))


def test_a_policy_of_code_and_a_reader_have_no_buttons_that_publish(
    open_ui: OpenUi, storage: MemoryStorage, policies: BlockingPolicyStore
) -> None:
    policies.draft(Policy(name="ours", goal="cost"), by="ada")
    with loop_hidden(), Router.sandbox(storage=storage, policies=[DESK]).blocking as owner:
        owner.route("Hello", policy_id="desk")
    policies.draft(CHEAP)
    router = Router.sandbox(storage=storage)
    page = open_ui(router, at="policies/desk")
    expect(page.get_by_text("It publishes this policy: change it there")).to_be_visible()
    expect(page.get_by_role("button", name="Retire")).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("Publish|Roll back"))).to_have_count(0)
    reader = open_ui(router, at="policies", writes=False)
    expect(reader.get_by_role("link", name="ours")).to_be_visible()
    buttons = reader.get_by_role("main").get_by_role("button")
    expect(buttons).to_have_count(0)
    for path in ("policies?new=1", "policies/ours", "policies/ours?edit=1", "policies/desk?tab=versions"):
        reader.goto(f"#/{path}")
        expect(reader.get_by_role("main").get_by_role("heading", level=1)).to_be_visible()
        expect(reader.get_by_role("status")).to_have_count(0)
        expect(buttons).to_have_count(0)
        expect(reader.get_by_label("Policy, in JSON")).to_have_count(0)
