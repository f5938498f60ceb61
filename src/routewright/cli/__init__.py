"""The command ``routewright``: ``route``, ``decide``, ``serve``, ``models``, ``catalogue``, ``policies``, ``traces``,
``analytics``, ``feedback``, ``accounts``, ``keys``, ``incidents``, ``secret`` and ``store``.

    0  done                     3  no model fits (422)          6  time ran out (504)      130  interrupted
    1  fault of ours (500)      4  content refused (403)        7  key or money (401, 402) 141  nobody reads the output
    2  not valid (400, usage)   5  every attempt failed (502)   8  too many requests (429)

The table that ``--help`` shows is in ``exits.py``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from routewright.errors import RouterError

from .exits import BROKEN_PIPE, INTERNAL, INTERRUPTED, USAGE, exit_code

if TYPE_CHECKING:
    from .options import Arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code. ``argv`` is without the program's name; None: the process's."""
    from .options import Arguments, parser  # workers of a server import this module, too

    options = parser()
    args = options.parse_args(argv, namespace=Arguments())
    if args.command is None:
        options.print_help(sys.stderr)
        return USAGE
    if sys.stdout is None:
        return _unwritable("standard output is closed")
    try:
        return _run(args)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return BROKEN_PIPE
    except OSError as error:  # of the output: what is read has errors of its own
        _drop_output()
        return _unwritable(error.strerror)


def _run(args: Arguments) -> int:
    from .dispatch import failed, run  # the library takes a quarter of a second to load, and --help does not need it
    from .screen import Screen

    screen = Screen()
    try:
        return run(args, screen)
    except RouterError as error:
        failed(error, args, screen)
        return exit_code(error)
    finally:
        sys.stdout.flush()


def _unwritable(reason: str | None) -> int:
    if sys.stderr is not None:
        sys.stderr.write(f"routewright: the output cannot be written: {reason}\n")
    return INTERNAL


def _drop_output() -> None:
    """Send what is still buffered nowhere, so that nothing complains at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
