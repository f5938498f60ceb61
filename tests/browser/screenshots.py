"""Takes the pictures of the docs, of the plain store: ``python -m tests.browser.screenshots``."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from playwright.sync_api import Browser, Page, expect

from routewright.ui import Operator, create_ui
from tests.server.uvicorn_server import served

from .checks import next_frame
from .chromium import launch, loop_shown
from .store import NOW, plain

IMAGES = Path(__file__).parents[2] / "docs" / "images"
MOST_BYTES = 120_000
COLOURS = 256
"""Of an image. Those that are used least become the nearest one."""


class Shot(NamedTuple):
    """A view to show."""

    address: str
    """With the names of traces of the store."""
    width: int = 1440
    height: int = 900
    scheme: str = "light"
    act: Callable[[Page], None] = lambda page: None
    """What to do before."""


def try_it(page: Page) -> None:
    """Send a request."""
    page.get_by_label("Prompt", exact=True).fill("Which plan includes single sign-on?")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    expect(page.get_by_text("Completed", exact=True)).to_be_visible()


SHOTS = {
    "overview": Shot("overview"),
    "overview-dark": Shot("overview?account=default", scheme="dark"),
    "overview-narrow": Shot("overview", 360, 740),
    "traces": Shot("traces"),
    "trace": Shot("traces/{rescued}?span=5", height=1100),
    "simulation": Shot("policies/desk?tab=simulate&since=7d"),
    "account": Shot("accounts/acme"),
    "try": Shot("try", act=try_it),
}


def shoot(browser: Browser, folder: Path) -> None:
    """Write all pictures to a folder."""
    store = plain()
    ui = create_ui(store.router(), store.console(), link_token="once", owner=Operator(name="ada", writes=True))
    with served(ui) as url, loop_shown(browser):
        context = browser.new_context(base_url=f"{url}/", timezone_id="Europe/Berlin", reduced_motion="reduce")
        page = context.new_page()
        page.clock.set_fixed_time(NOW)
        page.goto("#link=once")
        for name, shot in SHOTS.items():
            page.set_viewport_size({"width": shot.width, "height": shot.height})
            page.emulate_media(color_scheme=shot.scheme)  # type: ignore[arg-type]
            page.goto(f"#/{shot.address.format(**store.traces)}")
            page.reload()
            expect(page.locator("main h1")).to_be_visible()
            expect(page.locator("main").locator(".loading, progress:not([value])")).to_have_count(0)
            shot.act(page)
            next_frame(page)
            (folder / f"{name}.png").write_bytes(page.screenshot())
        context.close()


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    with launch() as browser:
        shoot(browser, IMAGES)
