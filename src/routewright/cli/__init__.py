"""The command ``routewright``. ``--help`` describes it; its exit codes are listed in ``command.py``."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code. ``argv`` is without the program's name; None: the process's."""
    from .command import run  # workers of a server import this package, and need no parser

    return run(argv)
