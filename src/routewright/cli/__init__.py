"""The command ``routewright``. See ``--help``; the exit codes are in ``command.py``."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code. ``argv`` excludes the program name and defaults to the process's."""
    from .command import run  # server workers import this package but need no parser

    return run(argv)
