"""Was no connection made for want of something that this process lacks? Then no provider is to blame."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

from routewright.errors import ProviderFault

_REMEDIES = {
    errno.EMFILE: "raise its limit of open files (ulimit -n), or have fewer connections",
    errno.ENFILE: "too many files are open on this machine",
    errno.ENOBUFS: "this machine is short of memory",
    errno.ENOMEM: "this machine is short of memory",
}


def local_fault_of(error: BaseException) -> ProviderFault | None:
    """The fault where an error, or one behind it, says so; else None."""
    for each in _behind(error):
        short = _unresolved_for(each) if isinstance(each, socket.gaierror) else each
        if isinstance(short, OSError) and short.errno in _REMEDIES:
            said = f"{short.strerror}; {_REMEDIES[short.errno]}"
            return ProviderFault("local", f"this process could open no connection: {said}")
    return None


def _behind(error: BaseException) -> Iterator[BaseException]:
    """A driver's error and what caused it. Further contexts may be what the host was about, and are not followed."""
    yield error
    yield from _causes(error.__cause__ or error.__context__)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for each in error.exceptions:
                yield from _causes(each)
        error = error.__cause__


def _unresolved_for(error: socket.gaierror) -> OSError:
    """What a name was not resolved for: without a descriptor some systems say that there is no such name."""
    try:
        socket.socket().close()
    except OSError as short:
        return short
    return error
