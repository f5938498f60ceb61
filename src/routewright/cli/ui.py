"""The command ``ui``: a page on a store, for its owner."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
import webbrowser
from argparse import Namespace
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import anyio.to_thread

from routewright.console import Console
from routewright.serve.plan import Address
from routewright.trace import TraceStore

from .cache import CACHE, named_cache
from .command import CATALOGUE, arg, flag, group, verb
from .route import POLICIES, router_of
from .serve import check_extra
from .show import Screen
from .store import STORE, existing_store

CONNECTIONS = 64


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, 0 to 65535")
    return int(text)


@verb(
    "ui",
    STORE,
    arg("--port N", "port to listen on (default: any free one)", _port),
    flag("--read-only", "serve a read-only page"),
    flag("--no-browser", "only print the link"),
    group("what the page shows besides, and tries requests with", CACHE, CATALOGUE, POLICIES),
)
async def _run(args: Namespace, screen: Screen) -> None:
    """Show a store on a page in the browser.

    Only this machine can reach the page. The link signs in one browser, once; Ctrl-C ends the page. Models are called
    only for requests that you try, of the providers with a key in the environment."""
    check_extra("ui")
    from routewright.serve.processes import listen  # these need the extra
    from routewright.serve.worker import serve_beside
    from routewright.server.http_limits import ConnectionLimits
    from routewright.ui import Operator, create_ui

    storage = existing_store(args)
    async with router_of(args, sandbox=False, storage=storage, cache=named_cache(args)) as router:
        await TraceStore(storage).retention()  # fail before the browser opens if the store cannot be opened
        token = secrets.token_urlsafe(32)
        owner = Operator(name=os.environ.get("USER") or "owner", writes=not args.read_only)
        page = create_ui(router, Console(storage, catalogue=router.catalogue), link_token=token, owner=owner)
        listener = listen(Address("127.0.0.1", args.port or 0), "--port")
        # in the fragment, which browsers send to nobody
        link = f"http://127.0.0.1:{listener.getsockname()[1]}/#link={token}"
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with serve_beside(page, listener, ConnectionLimits(open=CONNECTIONS)):
                screen.text(f"the page: {link}\n")
                screen.note("the link signs in one browser, once; Ctrl-C ends the page")
                with TemporaryDirectory(prefix="routewright-", ignore_cleanup_errors=True) as folder:
                    if not args.no_browser and _has_screen():
                        await anyio.to_thread.run_sync(_open_browser, link, Path(folder, "page.html"))
                    async for _ in signals:
                        break


def _open_browser(link: str, redirect: Path) -> None:
    # Other users of the machine see the arguments with which a browser is started, but cannot read this file.
    # test_only_this_machine_and_the_browser_of_the_owner_get_the_link
    redirect.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={link}">', "utf-8")
    webbrowser.open(redirect.as_uri())


def _has_screen() -> bool:
    """False where only a browser in the terminal could open."""
    return sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")))
