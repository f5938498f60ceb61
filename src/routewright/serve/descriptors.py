"""How many connections fit into the files that a worker may have open? Sockets are files."""

from __future__ import annotations

import logging
from contextlib import suppress

from msgspec.structs import replace

from routewright.backends.transport.connections import DEFAULT_LIMITS
from routewright.server.limits import ConnectionLimits
from routewright.server.protocol import TURNED_AWAY

OPERATORS = 32
"""Connections of operators, which are few."""
FILES = 96 + OPERATORS + TURNED_AWAY
"""For these, for clients that are turned away, for the store, whose threads open it each for themselves, and for what
else is no connection."""
UPSTREAM = DEFAULT_LIMITS.connections
"""For connections to providers: as many as to clients, and no more than a transport has."""

_TOO_FEW = (
    "of %d connections (connections.open) %d fit into the %d files that this process may open, with those to "
    "providers: raise its limit (LimitNOFILE=, ulimit -n)"
)
_log = logging.getLogger("routewright.serve")


def fitted(limits: ConnectionLimits) -> ConnectionLimits:
    """Raise this process's limit of open files as far as they need it, or lower them to what fits, and say so."""
    files = _raised_to(limits.open + min(limits.open, UPSTREAM) + FILES)
    fit = most_open(files)
    if files < 0 or limits.open <= fit:
        return limits
    _log.warning(_TOO_FEW, limits.open, fit, files)
    return replace(limits, open=fit)


def most_open(files: int) -> int:
    """So many connections of clients fit beside all else."""
    room = files - FILES
    return max(room - UPSTREAM, room // 2, 1)


def _raised_to(needed: int) -> int:
    """The limit as it is then; below 0: there is none."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows, where sockets are no files
        return -1
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return soft
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    with suppress(ValueError, OSError):  # macOS has a limit beside the one that it tells
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
