"""What holds of every view: with plain text, with text that means harm, and without anything to show."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

import routewright.ui

from .checks import EXTREME_WIDTHS, SCHEMES, VIEW_SIZES, axe, fits, next_frame
from .chromium import loop_hidden
from .problems import Problems
from .screenshots import MOST_BYTES, SHOTS, shoot, shoot_command
from .store import MALLORY, NOW, STORES, TEXTS, Store

OpenUi = Callable[..., Page]
VIEWS = [
    "overview", "overview?range=24h&group_by=policy_version", "traces", "traces?filter=status=failed", "policies",
    "accounts", "webhooks", "models?q=gpt&ability=image", "cache", "try",
]  # fmt: skip
"""In any store."""
PLAIN = [
    "overview?account=acme&range=30d&group_by=metadata.team", "overview?environment=sandbox", "policies/desk",
    "policies/desk?edit=1", "policies/desk?tab=simulate&since=7d", "policies/desk?tab=versions",
    "policies/search?tab=compare", "policies?new=1", "accounts/acme", "accounts/globex", "webhooks?account=globex",
    "models/openai/gpt-4.1?q=gpt-4.1", "try?policy_id=desk&goal=cost",
]  # fmt: skip
HOSTILE = [
    *(f"{view}?account={quote(MALLORY, safe='')}" for view in ("overview", "traces", "webhooks", "cache")),
    *("accounts", "policies", "try", "models?provider=mallory"),
    f"models/mallory/{quote(''.join(TEXTS['markup'].split()), safe='')}?provider=mallory",
    *(f"accounts/{quote(name, safe='')}" for name in (MALLORY, "__proto__", TEXTS["path"])),
    *(f"policies/0{quote(TEXTS['markup'], safe='')}?tab={tab}" for tab in ("draft", "versions", "simulate", "compare")),
]
LOOKED_AT = {"rescued", "run", "redacted", "word", "lines"}
"""Traces that are checked in each look."""
GLANCED_AT = {
    "overview?range=24h&group_by=policy_version", "overview?environment=sandbox", "traces?filter=status=failed",
    "overview?account=acme&range=30d&group_by=metadata.team", "webhooks?account=globex", "try?policy_id=desk&goal=cost",
    "accounts/globex", "accounts/__proto__", f"accounts/{quote(TEXTS['path'], safe='')}", "models?provider=mallory",
}  # fmt: skip
"""Views that are not, as others have the same parts."""
LINKS = [
    "overview?range=24h&group_by=policy_version", "traces?filter=status=failed", "policies/desk?edit=1",
    "policies/desk?tab=simulate&since=7d", "accounts", "accounts/acme", "webhooks?account=globex",
    "models/openai/gpt-4.1?q=gpt-4.1", "cache", "try?policy_id=desk&goal=cost",
]  # fmt: skip
"""One or two of each view."""
DIALOGS = {
    "overview": {"Open an incident", "Resolve"},
    "accounts": {"Create an account", "Revoke"},
    "accounts/acme": {
        "Add credit", "Change terms", "Add a tag limit", "Change", "Remove", "Create a key", "Revoke"
    },
    "webhooks": {
        "Create an endpoint", "Test", "Replay failed", "Rotate the secret", "Disable", "Delete", "Replay"
    },
    "policies/desk": {"Publish", "Publish to a share", "Roll back", "Retire", "Discard"},
    "policies/search?tab=compare": {"Complete the share", "Change the share", "End the share", "Retire"},
    "traces/{answered}?account=default": {"Give feedback"},
}  # fmt: skip
"""The buttons that open them."""
INJECTED = """() => [...document.querySelectorAll("*")].filter(element =>
    ["IFRAME", "OBJECT", "EMBED", "IMG"].includes(element.tagName)
    || (element.tagName === "SCRIPT" && element.closest("body"))
    || element.getAttributeNames().some(name => name.startsWith("on"))
    || /^\\s*(javascript|data|vbscript):/i.test(element.getAttribute("href") || "")
).map(element => element.cloneNode(false).outerHTML)"""
GLUED = """() => [...document.querySelectorAll("main :is(a, b, code, time)")].flatMap(element => {
    const isGlued = (left, right) => /[\\w,;:.]$/.test(left) && /^\\w/.test(right)
    const {previousSibling: before, nextSibling: after, textContent: text} = element
    return [
        before?.nodeType === Node.TEXT_NODE && isGlued(before.data, text) ? [before.data + text] : [],
        after?.nodeType === Node.TEXT_NODE && isGlued(text, after.data) ? [text + after.data] : [],
    ].flat()
})"""
"""Words without a blank between them, as templates drop those at the end of a line."""
STATE = """() => JSON.stringify([
    location.hash, document.title, document.querySelector("main").innerText.replace(/[0-9]+/g, "0"),
    [...document.querySelectorAll("main input, select, main textarea")].map(field => field.value),
    [...document.querySelectorAll("[aria-current], [aria-pressed], [aria-expanded], details")].map(
        element => [element.textContent, element.ariaCurrent, element.ariaPressed, element.open]),
])"""
WATCH_FOCUS = """() => {
    const isReached = element => element.tabIndex >= 0 && !element.disabled && element.checkVisibility()
    const controls = "a[href], button, input, select, textarea, summary, [tabindex]"
    const root = document.querySelector("dialog[open]") || document // what is behind a dialog is inert
    window.focus = {left: new Set([...root.querySelectorAll(controls)].filter(isReached)), hidden: []}
    addEventListener("focusin", ({target}) => {
        const {outlineStyle} = getComputedStyle(target)
        const {width, bottom, top} = target.getBoundingClientRect()
        if (outlineStyle === "none" || !width || bottom < 0 || top > innerHeight) window.focus.hidden.push(target)
        window.focus.left.delete(target)
    })
    return window.focus.left.size
}"""
TEXTS_OF = "elements => [...elements].map(element => element.cloneNode(false).outerHTML + element.textContent)"


def addresses_of(store: Store, kind: str) -> dict[str, bool]:
    """The views of a store, with those of what is in it, and whether they are to be checked in each look."""
    own = {"plain": [*VIEWS, *PLAIN], "hostile": HOSTILE, "empty": VIEWS}[kind]
    account = quote(MALLORY if kind == "hostile" else "default", safe="")
    traces = {
        f"traces/{id}?span={number % 8 + 1}&account={account}": name in LOOKED_AT
        for number, (name, id) in enumerate(store.traces.items())
    }
    return {**{address: address not in GLANCED_AT for address in own}, **traces}


def open_store(open_ui: OpenUi, kind: str, at: str = "", **options: Any) -> tuple[Page, Store]:
    with loop_hidden():
        store = STORES[kind]()
    page = open_ui(store.router, store.console, at, **options)
    page.clock.set_fixed_time(NOW)
    return page, store


def visit(page: Page, address: str) -> None:
    """Open a view by its address, and wait until it has loaded."""
    page.goto(f"#/{address}")
    settle(page)


def settle(page: Page) -> None:
    for _ in range(2):  # an answer may lead to another request
        page.wait_for_function("() => window.requestsInFlight === 0")
        next_frame(page)
        next_frame(page)
    expect(page.locator("main h1")).to_be_visible()
    expect(page.locator("main").locator(".loading, [aria-busy=true], progress:not([value])")).to_have_count(0)


def look_at(page: Page, kind: str, *, fully: bool) -> None:
    """Check that a view fits every width, and is accessible: where it is not fully checked, each size in one scheme,
    and only the narrow one without plain text."""
    heights = {size["width"]: size["height"] for size in VIEW_SIZES}
    # with few changes of the scheme, and the width of the next view at last
    for width in sorted((*EXTREME_WIDTHS, *heights), key=lambda width: (width > 360, -width)):
        page.set_viewport_size({"width": width, "height": heights.get(width, 300)})  # a wide picture takes long
        for scheme in SCHEMES if fully else SCHEMES[width > 360 :][:1]:
            page.emulate_media(color_scheme=scheme)
            next_frame(page)
            fits(page)
            if width in heights and (kind == "plain" or width == 360 or fully):
                axe(page)


@pytest.mark.parametrize("kind", STORES)
def test_every_view_is_accessible_and_fits(open_ui: OpenUi, kind: str, problems: Problems, full: bool) -> None:
    page, store = open_store(open_ui, kind)
    for address, is_looked_at in addresses_of(store, kind).items():
        visit(page, address)
        assert page.locator("h1").count() == 1, address
        assert page.evaluate(INJECTED) == [], address
        assert kind == "hostile" or page.evaluate(GLUED) == [], address
        text = page.locator("main").inner_text()
        assert "undefined" not in text, address
        assert "NaN" not in text, address
        assert not re.search(r"\d{4}-\d\d-\d\dT\d\d", text), f"{address} shows a time that is not the viewer's"
        if is_looked_at or full:
            look_at(page, kind, fully=full)
        problems.check()


def test_every_view_is_a_link_and_a_step_of_the_history_and_takes_the_keyboard(open_ui: OpenUi, full: bool) -> None:
    page, store = open_store(open_ui, "plain")
    addresses = [*LINKS, f"traces/{store.traces['rescued']}?span=5&account=default"]
    if full:
        addresses = list(addresses_of(store, "plain"))
    states = []
    for address in addresses:
        visit(page, address)
        state = page.evaluate(STATE)
        page.reload()
        settle(page)
        assert page.evaluate(STATE) == state, address
        states.append(state)
        reach_every_control(page, address)
    for address, state in list(zip(addresses, states, strict=True))[-2::-1]:
        page.go_back()
        settle(page)
        assert page.evaluate(STATE) == state, address
    page.go_forward()
    settle(page)
    assert page.evaluate(STATE) == states[1]


def reach_every_control(page: Page, address: str) -> None:
    """Check that Tab comes to each control, and shows where it is."""
    controls = page.evaluate(WATCH_FOCUS)
    for _ in range(controls):
        page.keyboard.press("Tab")
    for _ in range(40):  # an input of a time has a few stops
        if not page.evaluate("() => window.focus.left.size"):
            break
        page.keyboard.press("Tab")
    assert page.evaluate(f"() => ({TEXTS_OF})(window.focus.left)") == [], f"{address}: not reached"
    assert page.evaluate(f"() => ({TEXTS_OF})(window.focus.hidden)") == [], f"{address}: focus not seen"


def test_dialogs_are_accessible_and_hold_the_focus_and_give_it_back(open_ui: OpenUi) -> None:
    page, store = open_store(open_ui, "plain")
    for address, labels in DIALOGS.items():
        visit(page, address.format(**store.traces))
        buttons = page.locator("main button[aria-haspopup=dialog]")
        assert set(buttons.all_inner_texts()) == labels, address
        for label in labels:
            button = buttons.and_(page.get_by_role("button", name=label, exact=True)).first
            button.press("Enter")
            expect(page.locator("dialog[open]")).to_be_visible()
            axe(page, "dialog[open]")
            for _ in range(4):
                assert page.evaluate("() => !!document.activeElement.closest('dialog[open], body:has(dialog[open])')")
                page.keyboard.press("Tab")
            page.keyboard.press("Escape")
            expect(page.locator("dialog")).to_have_count(0)
            expect(button).to_be_focused()
    visit(page, "models?q=gpt-4.1")
    link = page.get_by_role("link", name="openai/gpt-4.1", exact=True)
    link.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(link).to_be_focused()


def test_one_who_may_only_read_has_no_buttons_that_change(open_ui: OpenUi) -> None:
    page, _ = open_store(open_ui, "plain", writes=False)
    for address in ("overview", "accounts/globex", "webhooks?account=globex", "policies/desk"):
        visit(page, address)
        expect(page.get_by_role("main").get_by_role("button")).to_have_count(0)
        expect(page.get_by_role("columnheader", name="Actions")).to_have_count(0)


def test_the_address_of_a_trace_names_its_account(open_ui: OpenUi) -> None:
    page, _ = open_store(open_ui, "plain", at="traces")
    page.get_by_role("grid").get_by_role("link").first.press("Enter")
    expect(page).to_have_url(re.compile(r"#/traces/tr_\w+\?account=acme$"))  # whichever has most requests then
    page.go_back()
    expect(page).to_have_url(re.compile("#/traces$"))


def test_times_are_in_the_zone_of_the_viewer_with_utc_beside(open_ui: OpenUi) -> None:
    page, store = open_store(open_ui, "plain", timezone_id="Asia/Kolkata")
    for address in ("traces", f"traces/{store.traces['answered']}"):
        visit(page, f"{address}?account=default")
        time = page.locator("time[title^='2026-11-22 11:00:0']").first
        expect(time).to_have_text(re.compile("^22 Nov 2026, 16:30:0"))
        expect(time).to_have_attribute("title", re.compile(" UTC$"))


@pytest.mark.full
def test_the_pictures_of_the_docs_can_be_taken(browser: Browser, tmp_path: Path) -> None:
    with loop_hidden():
        shoot(browser, tmp_path)
        shoot_command(browser, tmp_path)
    sizes = {file.stem: file.stat().st_size for file in tmp_path.iterdir()}
    assert sizes.keys() == {*SHOTS, "explain"}
    assert max(sizes.values()) <= MOST_BYTES


def test_nothing_moves() -> None:
    """So there is nothing to stop for those who prefer reduced motion."""
    static = Path(routewright.ui.__file__).parent / "static"
    texts = [file.read_text("utf-8") for file in (*static.glob("*.[cj]s*"), *static.glob("views/*.js"))]
    assert len(texts) > 10
    assert not [text for text in texts if re.search(r"\b(animation|transition|@keyframes|smooth|animate)\b", text)]
