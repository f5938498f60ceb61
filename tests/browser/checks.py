"""What must hold of every view: accessibility, smooth frames, each size and colour scheme, no sideways scrolling."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Page, ViewportSize

VIEW_SIZES: tuple[ViewportSize, ...] = ({"width": 360, "height": 740}, {"width": 1440, "height": 900})
SCHEMES: tuple[Literal["dark", "light"], ...] = ("dark", "light")
EXTREME_WIDTHS = (320, 3840)
AXE = Path(__file__).parents[1] / "data" / "axe" / "axe.min.js"
AXE_OPTIONS = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"],
    "rules": {"target-size": {"enabled": True}},  # of 2.2, and off by default
    "resultTypes": ["violations"],
}


def looks(page: Page) -> Iterator[str]:
    """Show the page in each size and colour scheme. Gives the name of the look."""
    for size in VIEW_SIZES:
        for scheme in SCHEMES:
            page.set_viewport_size(size)
            page.emulate_media(color_scheme=scheme)
            next_frame(page)
            yield f"{size['width']}x{size['height']}-{scheme}"


def axe(page: Page, within: str = "html") -> None:
    """Assert that axe-core finds no violation of WCAG 2.2 AA in the page, or a part of it, as it is now."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(_axe_source())  # which a Content-Security-Policy does not block
    violations = page.evaluate(
        "([within, options]) => axe.run(within, options).then(results => results.violations)", [within, AXE_OPTIONS]
    )
    assert not violations, "\n".join(_describe(violation) for violation in violations)


def no_sideways_scroll(page: Page) -> None:
    """Assert that the page fits its window, from 320 to 3,840 px. Puts the size back."""
    before = page.viewport_size
    assert before is not None
    for width in (*EXTREME_WIDTHS, *(size["width"] for size in VIEW_SIZES)):
        page.set_viewport_size({"width": width, "height": before["height"]})
        next_frame(page)
        fits(page)
    page.set_viewport_size(before)


def fits(page: Page) -> None:
    """Assert that the page does not scroll sideways in its window as it is now."""
    width = page.evaluate("innerWidth")
    wide = page.evaluate(
        """() => {
            const root = document.scrollingElement
            if (root.scrollWidth <= root.clientWidth) return null
            const beyond = [...document.body.querySelectorAll("*")].filter(
                element => element.getBoundingClientRect().right > root.clientWidth)
            return `${root.scrollWidth} px wide: ` + beyond.slice(0, 5).map(
                element => element.cloneNode(false).outerHTML).join(" ")
        }"""
    )
    assert wide is None, f"at {width} px the page is {wide}"


@cache
def _axe_source() -> str:
    return AXE.read_text("utf-8")


def _describe(violation: dict[str, Any]) -> str:
    nodes = "".join(f"\n  {node['html']}\n    {node['failureSummary']}" for node in violation["nodes"])
    return f"{violation['id']} ({violation['impact']}): {violation['help']}{nodes}"


def next_frame(page: Page) -> None:
    """Wait until what has been asked of the page is drawn."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
