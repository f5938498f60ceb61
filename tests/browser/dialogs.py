"""Forms in dialogs, as a person fills them in."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect

from .problems import Problems


def dialog(of: Page | Locator, button: str) -> Locator:
    """Open the dialog of a button, the first with this name."""
    of.get_by_role("button", name=button, exact=True).first.click()
    return (of if isinstance(of, Page) else of.page).get_by_role("dialog")


def submit(form: Locator) -> None:
    """Press the button that is not "Cancel"."""
    form.locator("form button").first.click()


def refuse(form: Locator, problems: Problems, words: str) -> None:
    """Submit a form that the API refuses."""
    with problems.expect("POST .*: 400$"):
        submit(form)
        expect(form.get_by_role("alert")).to_contain_text(words)


def leave(page: Page) -> None:
    """Close the dialog by keyboard, with all that was in it."""
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)
