"""The command ``secret``: ``rotate``."""

from __future__ import annotations

import anyio

from .blocks import Line
from .options import Arguments
from .place import opened_console
from .screen import Screen
from .wording import console_named


def run_secret(args: Arguments, screen: Screen) -> None:
    """Do what the command line says. Raises ``RouterError``."""
    with console_named():
        anyio.run(_rotate, args, screen)


async def _rotate(args: Arguments, screen: Screen) -> None:
    async with opened_console(args) as console:
        await console.rotate_secret(force=args.force)
    if args.json:
        screen.json({"rotated": True})
    else:
        said = "the secret is changed; the one before it holds until the next change, and keys go over as they are used"
        screen.say(Line(said, "dim"))
