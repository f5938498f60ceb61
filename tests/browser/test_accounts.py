"""Accounts, their keys, and the keys of operators: what a person does in the page, and what is then in the store."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from routewright import Console, MemoryStorage, Router
from routewright.console import BlockingConsole
from routewright.errors import AuthenticationFailed
from routewright.ui import create_ui
from routewright.wire import RateLimits, TagLimit

from .checks import axe, no_sideways_scroll
from .dialogs import dialog, leave, refuse, submit
from .problems import Problems

OpenUi = Callable[..., Page]
HOSTILE = "<img src=x onerror=alert(1)>"
STRANGE = f"a/b #1 100% ?x=y&z {HOSTILE}"


@pytest.fixture
def console() -> Console:
    return Console(MemoryStorage(), secret="0123456789abcdef" * 4)


@pytest.fixture
def router(console: Console) -> Router:
    return Router(providers=[], storage=console._storage)


@pytest.fixture
def store(console: Console) -> BlockingConsole:
    return console.blocking


def figure(page: Page, name: str) -> Locator:
    return page.locator(".figure", has=page.get_by_text(name, exact=True))


def test_an_account_is_created_changed_and_credited(
    open_ui: OpenUi, router: Router, console: Console, store: BlockingConsole, problems: Problems
) -> None:
    page = open_ui(router, console, at="accounts")
    expect(page.get_by_text("routewright accounts create acme")).to_be_visible()
    form = dialog(page, "Create an account")
    form.get_by_label("Name").fill(STRANGE)
    form.get_by_label("Plan").select_option("pro")
    form.get_by_label("Monthly limit").fill("50.000000001")
    form.get_by_label("Weekly limit").fill("7")
    form.get_by_label("Concurrent calls").fill("9007199254740991")
    submit(form)
    expect(page.get_by_role("heading", level=1)).to_have_text(STRANGE)
    account = store.account(STRANGE)
    assert (account.plan, account.prepaid, account.monthly_nanos) == ("pro", False, 50_000_000_001)
    assert account.limits == RateLimits(concurrency=9_007_199_254_740_991)
    expect(figure(page, "Concurrent calls")).to_contain_text("9,007,199,254,740,991")
    expect(figure(page, "Requests per minute")).to_contain_text("600")
    page.goto("#/webhooks?account=default")  # which offers the new account, too
    expect(page.get_by_label("Account", exact=True).locator("option", has_text=STRANGE)).to_have_count(1)
    page.go_back()
    page.clock.install()
    page.reload()  # the address holds the name
    expect(page.get_by_role("heading", level=1)).to_have_text(STRANGE)

    form = dialog(page, "Change terms")
    form.get_by_label("Daily limit").fill("1,000")
    form.get_by_label("Prepaid").check()
    with page.expect_response("**/api/console.standing?*"):  # which leaves the form as it is
        page.clock.run_for(20_000)
    refuse(form, problems, "daily_limit_usd: is '1,000'; take a number from 0 to 1000000000")
    assert store.account(STRANGE).daily_limit_usd is None
    store.change_account(STRANGE, weekly_limit_usd=8)  # by somebody else, after the page was read
    form.get_by_label("Daily limit").fill("1e9")
    form.get_by_label("Monthly limit").fill("")
    submit(form)
    expect(form).to_have_count(0)
    account = store.account(STRANGE)
    assert (account.daily_limit_usd, account.weekly_limit_usd, account.monthly_limit_usd) == (1e9, 8.0, None)
    assert (account.prepaid, account.limits) == (True, RateLimits(concurrency=9_007_199_254_740_991))
    expect(figure(page, "Today")).to_contain_text("$0.00 of $1,000,000,000.00")

    for usd, words in (
        ("20.5", "$20.50 added. The balance is $20.50."),
        ("20.5", "The credit inv-1 was there already"),
    ):
        form = dialog(page, "Add credit")
        form.get_by_label("Amount").fill(usd)
        form.get_by_label("Note").fill(HOSTILE)
        form.get_by_label("Id").fill("inv-1")
        submit(form)
        expect(form.get_by_role("status")).to_contain_text(words)
        leave(page)
    balance = store.standing(STRANGE).balance
    assert balance is not None
    assert balance.left_usd == 20.5
    expect(figure(page, "Balance")).to_contain_text("$20.50")
    page.get_by_role("link", name="All accounts").click()
    page.get_by_role("link", name=STRANGE).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(STRANGE)
    page.get_by_role("main").get_by_role("link", name="Webhooks").click()
    expect(page.get_by_label("Account", exact=True)).to_have_value(STRANGE)


def test_credit_sent_again_after_a_lost_answer_counts_once(
    open_ui: OpenUi, router: Router, console: Console, store: BlockingConsole
) -> None:
    store.create_account("acme", prepaid=True)
    page = open_ui(router, console, at="accounts/acme")
    form = dialog(page, "Add credit")
    form.get_by_label("Amount").fill("5")
    page.route("**/api/console.credit", lambda route: (route.fetch(), route.fulfill(status=204))[1])
    submit(form)
    expect(form.get_by_role("alert")).to_be_visible()
    page.unroute("**/api/console.credit")
    submit(form)
    expect(form.get_by_role("status")).to_contain_text("was there already")
    balance = store.standing("acme").balance
    assert balance is not None
    assert balance.left_usd == 5.0


def test_limits_of_tags_are_added_changed_and_removed(
    open_ui: OpenUi, router: Router, console: Console, store: BlockingConsole, problems: Problems
) -> None:
    store.create_account("acme", tag_limits=[{"key": "user", "weekly_limit_usd": 1}])
    page = open_ui(router, console, at="accounts/acme")
    form = dialog(page, "Add a tag limit")
    form.get_by_label("Metadata key").fill("team")
    form.get_by_label("Value").fill(HOSTILE)
    refuse(form, problems, "has no limit for 'team'")
    form.get_by_label("Daily limit").fill("10")
    submit(form)
    row = page.get_by_role("row", name=f"team = {HOSTILE}")
    expect(row).to_contain_text(re.compile(r"day\s*\$0\.00 of \$10\.00, 0 %"))
    row.get_by_role("button", name="Change").click()
    form = page.get_by_role("dialog")
    form.get_by_label("Daily limit").fill("")
    form.get_by_label("Monthly limit").fill("3")
    submit(form)
    expect(row).to_contain_text("$0.00 of $3.00")
    limits = [(limit.key, limit.value, limit.period_nanos) for limit in store.account("acme").tag_limits]
    assert limits == [("user", None, (None, 10**9, None)), ("team", HOSTILE, (None, None, 3 * 10**9))]
    page.get_by_role("row", name="user = any value").get_by_role("button", name="Remove").click()
    submit(page.get_by_role("dialog"))
    expect(page.get_by_role("row", name="user = any value")).to_have_count(0)
    assert [limit.key for limit in store.account("acme").tag_limits] == ["team"]


def test_a_key_is_shown_once_changed_and_revoked(
    open_ui: OpenUi, router: Router, console: Console, store: BlockingConsole, problems: Problems
) -> None:
    store.create_account("acme")
    page = open_ui(router, console, at="accounts/acme")
    expect(page.get_by_text("routewright keys create acme --name website")).to_be_visible()
    form = dialog(page, "Create a key")
    form.get_by_label("Name").fill(HOSTILE)
    form.get_by_label("agents").uncheck()
    form.get_by_label("Total budget").fill("100")
    form.get_by_label("Daily limit").fill("3")
    form.get_by_label("Requests per minute").fill("9")
    form.get_by_label("Models", exact=True).fill("openai/gpt-4.1\n\n openai/no-such-model ")
    refuse(form, problems, "openai/no-such-model")
    form.get_by_label("Models", exact=True).fill("openai/gpt-4.1\n")
    submit(form)
    expect(form.get_by_role("status")).to_contain_text(f"“{HOSTILE}”. It is not shown again.")
    expect(form.get_by_role("status")).to_be_focused()
    secret = form.locator("code").inner_text()
    (key,) = store.keys("acme")
    assert store.authenticate(f"Bearer {secret}", "production").key_id == key.id
    assert key.scopes == ("route", "models:read", "policies:read", "traces:read", "analytics:read")
    assert (key.name, key.budget_usd, key.daily_limit_usd, key.monthly_limit_usd) == (HOSTILE, 100.0, 3.0, None)
    assert (key.limits, key.models, key.policies) == (RateLimits(requests_per_min=9), ("openai/gpt-4.1",), None)
    leave(page)
    assert secret not in page.content()
    assert page.evaluate("JSON.stringify([localStorage, sessionStorage, location.href])").count(secret) == 0

    row = page.get_by_role("row", name=key.id)
    expect(row).to_contain_text("$0.00 of $100.00, 0 %")
    row.get_by_role("button", name="Change").click()
    form = page.get_by_role("dialog")
    form.get_by_label("agents").check()
    form.get_by_label("Total budget").fill("")
    store.change_key("acme", key.id, name="renamed")  # by somebody else
    submit(form)
    expect(form).to_have_count(0)
    changed = store.key("acme", key.id)
    assert (changed.name, changed.scopes, changed.budget_usd, changed.daily_limit_usd) == ("renamed", None, None, 3.0)
    row.get_by_role("button", name="Change").click()
    for scope in ("route", "agents", "models:read", "policies:read", "traces:read", "analytics:read"):
        form.get_by_label(scope).uncheck()
    refuse(form, problems, "scopes: is empty")  # which is not "all"
    leave(page)

    row.get_by_role("button", name="Revoke").click()
    expect(form.get_by_role("button", name="Cancel")).to_be_focused()
    expect(form).to_contain_text("Traces of its calls in the last 24 hours, and of any later ones, are marked")
    submit(form)
    expect(row).to_have_count(0)
    with pytest.raises(AuthenticationFailed):
        store.authenticate(f"Bearer {secret}", "production")
    page.get_by_role("button", name="Show revoked keys (1)").click()
    expect(row).to_contain_text("revoked")
    expect(row.get_by_role("button")).to_have_count(0)
    expect(row.get_by_role("link", name="Marked traces")).to_have_attribute("href", re.compile("compromised%3Dtrue"))
    page.go_back()
    expect(row).to_have_count(0)


def test_operators_sign_in_with_keys_and_are_signed_out_by_revoking_them(
    open_page: Callable[..., Page],
    serve: Callable[..., str],
    router: Router,
    console: Console,
    store: BlockingConsole,
    problems: Problems,
) -> None:
    writing = store.create_key("_system", name="ada", scopes=["console:write"])
    url = serve(create_ui(router, console))

    def sign_in(secret: str) -> Page:
        page = open_page(base_url=f"{url}/")
        with problems.expect("GET .*/session: 401$"):
            page.goto("#/accounts")
            page.get_by_label("Key").fill(secret)
        page.get_by_role("button", name="Sign in").click()
        return page

    page = sign_in(writing.secret.reveal())
    row = page.get_by_role("row", name=writing.key.id)
    expect(row).to_contain_text("you")
    expect(page.get_by_text("routewright keys create _system --name ada --scope console:write")).to_be_visible()
    expect(row.get_by_role("button", name="Change")).to_have_count(0)

    reader = sign_in(store.create_key("_system", name="eve", scopes=["console:read"]).secret.reveal())
    expect(reader.get_by_role("row", name=writing.key.id)).to_be_visible()
    expect(reader.get_by_role("main").get_by_role("button")).to_have_count(0)
    expect(reader.get_by_role("columnheader", name="Actions")).to_have_count(0)

    row.get_by_role("button", name="Revoke").click()
    expect(page.get_by_role("dialog")).to_contain_text("You signed in with it, and will be signed out.")
    with problems.expect("GET .*/api/console.keys.*: 401$"):
        submit(page.get_by_role("dialog"))
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert store.key("_system", writing.key.id).revoked_at is not None


@pytest.fixture
def crowd(store: BlockingConsole) -> None:
    for number in range(30):
        store.create_account(f"shop-{number:02}", monthly_limit_usd=number)
    limits = [TagLimit(key="team", value=HOSTILE, daily_nanos=10**9), TagLimit(key="x" * 100, weekly_nanos=10**9)]
    for name in (f"acme {HOSTILE}", f"acme {'x' * 95}"):
        store.create_account(name, prepaid=True, daily_limit_usd=1, weekly_limit_usd=1e9, tag_limits=limits)
        store.create_key(name, name=f"{HOSTILE} {'y' * 60}", budget_usd=5, limits=RateLimits(concurrency=3))
        store.revoke_key(name, store.create_key(name, name=HOSTILE, environment="sandbox").key.id)
    store.create_key("_system", name=HOSTILE, scopes=["console:read"])


@pytest.mark.usefixtures("crowd")
def test_accounts_are_filtered_and_paged_and_fit(open_ui: OpenUi, router: Router, console: Console) -> None:
    page = open_ui(router, console, at="accounts")
    expect(page.get_by_text("1 to 25 of 32")).to_be_visible()
    page.get_by_role("link", name="Next").click()
    expect(page.get_by_text("26 to 32 of 32")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("link", name="shop-00")).to_be_visible()
    page.get_by_label("Name contains").fill("NOBODY")
    expect(page.get_by_text("No account has such a name.")).to_be_visible()
    page.get_by_label("Name contains").fill("ACME")
    expect(page).to_have_url(re.compile("contains=ACME"))
    expect(page.get_by_role("region", name="Accounts").get_by_role("row")).to_have_count(3)
    no_sideways_scroll(page)
    page.get_by_role("link", name=f"acme {HOSTILE}").click()
    page.get_by_role("button", name="Show revoked keys").click()
    expect(page.get_by_role("region", name="Keys").get_by_role("row")).to_have_count(3)
    expect(page.get_by_role("region", name="Tag limits")).to_contain_text("$0.00 of $1.00")
    axe(page)
    no_sideways_scroll(page)
