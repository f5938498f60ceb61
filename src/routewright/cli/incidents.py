"""The command ``incidents``: ``open``, ``resolve`` and ``ls``."""

from __future__ import annotations

import anyio

from .blocks import Line
from .console_page import incidents_page
from .options import Arguments
from .place import opened_console
from .screen import Screen
from .wording import console_named


def run_incidents(args: Arguments, screen: Screen) -> None:
    """Do what the command line says. Raises ``RouterError``."""
    with console_named():
        anyio.run(_TOPICS[args.topic], args, screen)


async def _open(args: Arguments, screen: Screen) -> None:
    async with opened_console(args) as console:
        incident = await console.open_incident(args.title, severity=args.severity, status_url=args.status_url)
    if args.json:
        screen.json(incident)
    else:
        screen.say(Line(f"opened: routewright incidents resolve {incident.id} ends it", "dim"))


async def _resolve(args: Arguments, screen: Screen) -> None:
    async with opened_console(args) as console:
        incident = await console.resolve_incident(args.id or "")
    if args.json:
        screen.json(incident)
    else:
        screen.say(Line(f"{incident.id} is over", "dim"))


async def _ls(args: Arguments, screen: Screen) -> None:
    async with opened_console(args) as console:
        incidents = await console.incidents()
    if args.json:
        screen.json({"incidents": incidents})
    elif incidents:
        screen.show(*incidents_page(incidents))
    else:
        screen.say(Line("there was none", "dim"))


_TOPICS = {"open": _open, "resolve": _resolve, "ls": _ls}
