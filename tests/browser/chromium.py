"""The system's Chromium, driven by playwright: without a window, with a new profile, and without a network."""

from __future__ import annotations

import os
import tempfile
from asyncio.events import _get_running_loop, _set_running_loop
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

from tests.database_servers import find

DISABLED = (
    # playwright's own, whose flag ours replaces
    "AimEnabled AvoidCorsURLLoaderRestartOnRedirect AvoidUnnecessaryBeforeUnloadCheckSync DestroyProfileOnBrowserClose "
    "HttpsFirstBalancedModeAutoEnable HttpsUpgrades LensOverlay MediaRouter NetworkTimeServiceQuerying "
    "OptimizationHints PaintHolding PreconnectToSearch ThirdPartyStoragePartitioning "
    # each window would load two pages for its address bar, which nobody sees: 0.35 s of processor time
    "WebUIOmniboxAimPopup WebUIOmniboxFullPopup WebUIOmniboxPopup"
).split()
FLAGS = [
    "--disable-gpu",
    f"--disable-features={','.join(DISABLED)}",
    "--disable-quic",
    # names under .test are this machine, so that a page can be served under a foreign name
    "--host-resolver-rules=MAP *.test 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
]
"""Beside those of playwright: ``--headless``, ``--no-sandbox`` (root has none), no requests of the browser's own."""


@contextmanager
def launch() -> Iterator[Browser]:
    """Run a browser. It takes a second. Raises ``NotInstalled``."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        environment: dict[str, str | float | bool] = {**os.environ, "XDG_CONFIG_HOME": folder, "XDG_CACHE_HOME": folder}
        browser = playwright.chromium.launch(executable_path=find("chromium"), args=FLAGS, env=environment)
        with loop_hidden():
            yield browser
        browser.close()


@contextmanager
def loop_hidden() -> Iterator[None]:
    """Hide the event loop of the browser, for code that runs a loop of its own (``anyio.run``).

    Playwright leaves its loop suspended in a greenlet, and marks it as running in this thread."""
    loop = _get_running_loop()
    _set_running_loop(None)
    try:
        yield
    finally:
        _set_running_loop(loop)


@contextmanager
def loop_shown(browser: Browser) -> Iterator[None]:
    """Show it again, as calls of playwright need it."""
    _set_running_loop(browser._loop)
    try:
        yield
    finally:
        _set_running_loop(None)
