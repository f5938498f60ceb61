"""Takes the pictures of the docs, of the plain store: ``python -m tests.browser.screenshots``."""

from __future__ import annotations

import os
import struct
import sys
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable
from io import StringIO
from math import ceil
from pathlib import Path
from subprocess import PIPE, STDOUT, run
from typing import Literal, NamedTuple

import numpy as np
from playwright.sync_api import Browser, Page, expect
from rich.console import Console
from rich.text import Text

from routewright.ui import Operator, create_ui
from tests.server.uvicorn_server import served

from .checks import next_frame
from .chromium import launch, loop_shown
from .store import NOW, plain

IMAGES = Path(__file__).parents[2] / "docs" / "images"
MOST_BYTES = 120_000
COLOURS = 256
PIXELS = """async png => {
    const bytes = Uint8Array.from(atob(png), character => character.charCodeAt(0))
    const image = await createImageBitmap(new Blob([bytes]))
    const context = new OffscreenCanvas(image.width, image.height).getContext("2d")
    context.drawImage(image, 0, 0)
    const {data} = context.getImageData(0, 0, image.width, image.height)
    let text = ""
    for (let at = 0; at < data.length; at += 32768) text += String.fromCharCode(...data.subarray(at, at + 32768))
    return btoa(text)
}"""


class Shot(NamedTuple):
    """A view to show."""

    address: str
    """With the names of traces of the store."""
    width: int = 1440
    height: int = 900
    scheme: Literal["dark", "light"] = "light"
    act: Callable[[Page], None] = lambda page: None
    """What to do before."""


def try_it(page: Page) -> None:
    """Send a request."""
    page.get_by_label("Prompt", exact=True).fill("Which plan includes single sign-on?")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_text("Done", exact=True)).to_be_visible()


SHOTS = {
    "overview": Shot("overview"),
    "overview-dark": Shot("overview?account=default", scheme="dark"),
    "overview-narrow": Shot("overview", 360, 740),
    "traces": Shot("traces?account=default"),
    "trace": Shot("traces/{rescued}?span=5&account=default", height=1100),
    "simulation": Shot("policies/desk?tab=simulate&since=7d"),
    "account": Shot("accounts/acme"),
    "try": Shot("try", act=try_it),
}


def shoot(browser: Browser, folder: Path) -> None:
    """Write all pictures to a folder."""
    store = plain.__wrapped__()  # its own, since a request is sent
    ui = create_ui(store.router, store.console, link_token="once", owner=Operator(name="ada", writes=True))
    with served(ui) as url, loop_shown(browser):
        context = browser.new_context(base_url=f"{url}/", timezone_id="Europe/Berlin", reduced_motion="reduce")
        page = context.new_page()
        page.clock.set_fixed_time(NOW)
        page.goto("#link=once")
        for name, shot in SHOTS.items():
            page.set_viewport_size({"width": shot.width, "height": shot.height})
            page.emulate_media(color_scheme=shot.scheme)
            page.goto(f"#/{shot.address.format(**store.traces)}")
            page.reload()
            expect(page.locator("main h1")).to_be_visible()
            expect(page.locator("main").locator(".loading, progress:not([value])")).to_have_count(0)
            shot.act(page)
            next_frame(page)
            (folder / f"{name}.png").write_bytes(packed(page, shot.width, shot.height))
        context.close()


COMMAND = ["route", "--sandbox", "--explain", "--trace", "--goal", "quality", "--max-cost", "0.05"]
PROMPT = "Why is the sky blue?"
STYLE = "margin: 0; padding: 16px 20px; width: max-content; font: 14px/1.45 'DejaVu Sans Mono', monospace"


def shoot_command(browser: Browser, folder: Path) -> None:
    """Write the picture of a command's output, as a terminal shows it."""
    environ = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": "112"}
    words = [sys.executable, "-m", "routewright", *COMMAND, PROMPT]
    output = run(words, env=environ, check=True, stdout=PIPE, stderr=STDOUT, text=True).stdout
    screen = Console(record=True, file=StringIO(), width=112, force_terminal=True)
    screen.print(f"[bold]$ routewright {' '.join(COMMAND)} '{PROMPT}'", highlight=False)
    screen.print(Text.from_ansi(output))
    pre = f'<style>body {{{{ margin: 0 }}}}</style><pre style="{STYLE}">{{code}}</pre>'
    with loop_shown(browser):
        page = browser.new_page()
        page.set_content(screen.export_html(inline_styles=True, code_format=pre))
        box = page.locator("pre").bounding_box()
        assert box is not None
        width, height = ceil(box["width"]), ceil(box["height"])
        page.set_viewport_size({"width": width, "height": height})
        (folder / "explain.png").write_bytes(packed(page, width, height))
        page.close()


def packed(page: Page, width: int, height: int) -> bytes:
    """A picture of the page as a PNG with a palette. Colours that are not in it become the nearest one."""
    png = b64encode(page.screenshot()).decode()
    pixels = np.frombuffer(b64decode(page.evaluate(PIXELS, png)), np.uint8).reshape(-1, 4)[:, :3].astype(np.int32)
    codes, places, counts = np.unique(pixels @ (1 << 16, 1 << 8, 1), return_inverse=True, return_counts=True)
    colours = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=1)
    chosen = [int(counts.argmax())]
    nearest = np.zeros(len(colours), np.uint8)
    distance = ((colours - colours[chosen[0]]) ** 2).sum(axis=1)
    while len(chosen) < COLOURS and distance.any():
        chosen.append(int((distance * np.sqrt(counts)).argmax()))  # rare ones too, if nothing is like them
        other = ((colours - colours[chosen[-1]]) ** 2).sum(axis=1)
        nearest = np.where(other < distance, len(chosen) - 1, nearest)
        distance = np.minimum(distance, other)
    palette = colours[chosen]
    rows = nearest.astype(np.uint8)[places].reshape(height, width)
    lines = np.pad(rows, ((0, 0), (1, 0)))  # each begins with its filter, which is none
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = [
        (b"IHDR", header),
        (b"PLTE", palette.astype(np.uint8).tobytes()),
        (b"IDAT", zlib.compress(lines.tobytes(), 9)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    )


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    with launch() as browser:
        shoot(browser, IMAGES)
        shoot_command(browser, IMAGES)
