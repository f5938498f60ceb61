"""The command ``ui``: a page on a store, for its owner."""

from __future__ import annotations

import getpass
import os
import secrets
import signal
import sys
import webbrowser
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
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


@verb(
    "ui",
    STORE,
    arg("--port N", "port to listen on (default: any free one)", int, 0),
    flag("--read-only", "look and change nothing"),
    flag("--no-browser", "only print the link"),
    group("what the page shows besides, and tries requests with", CACHE, CATALOGUE, POLICIES),
)
async def _run(args: Namespace, screen: Screen) -> None:
    """Show a store on a page in the browser.

    Only this machine can reach the page. The link signs in one browser, once; Ctrl-C ends the page. Providers are found
    by their keys in the environment, and are called only for requests that you try."""
    check_extra("ui")
    from routewright.serve.processes import listen  # these need the extra
    from routewright.serve.worker import serve_beside
    from routewright.server.http_limits import ConnectionLimits
    from routewright.server.http_protocol import BoundedProtocol
    from routewright.ui import Operator, create_ui

    storage = existing_store(args)
    async with router_of(args, sandbox=False, storage=storage, cache=named_cache(args)) as router:
        await TraceStore(storage).retention()  # fail before the browser opens if the store cannot be opened
        listener = listen(Address("127.0.0.1", args.port), "--port")
        token = secrets.token_urlsafe(32)
        owner = Operator(name=_login_name(), writes=not args.read_only)
        page = create_ui(router, Console(storage), link_token=token, owner=owner)
        protocol = partial(BoundedProtocol, limits=ConnectionLimits(open=CONNECTIONS))
        # in the fragment, which browsers send to nobody
        link = f"http://127.0.0.1:{listener.getsockname()[1]}/#link={token}"
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with serve_beside(page, listener, protocol):  # type: ignore[arg-type]  # uvicorn only calls it
                screen.text(f"the page: {link}\n")
                screen.note("the link signs in one browser, once; Ctrl-C ends the page")
                with _redirect_to(link) as file:
                    if not args.no_browser and _has_screen():
                        await anyio.to_thread.run_sync(webbrowser.open, file.as_uri())
                    async for _ in signals:
                        break


@contextmanager
def _redirect_to(link: str) -> Iterator[Path]:
    """A file that sends a browser to the link. Only its owner can read it, while other users of the machine can see
    the arguments with which a browser is started."""
    with TemporaryDirectory(prefix="routewright-", ignore_cleanup_errors=True) as folder:
        file = Path(folder, "page.html")
        file.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={link}">', "utf-8")
        yield file


def _has_screen() -> bool:
    """False where only a browser in the terminal could open."""
    return sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")))


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):  # a container's user without a name
        return "owner"
