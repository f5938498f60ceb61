"""Was no connection made for want of something that this process lacks? Then no provider is to blame."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

from routewright.errors import ProviderFault

_OURS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


def shortage_of(error: BaseException) -> ProviderFault | None:
    """The fault where an error, or one behind it, says so; else None."""
    for each in _behind(error):
        short = _unresolved_for(each) if isinstance(each, socket.gaierror) else each
        if isinstance(short, OSError) and short.errno in _OURS:
            said = f"{short.strerror}; raise the limit of open files (ulimit -n), or have fewer connections"
            return ProviderFault("local", f"this process could open no connection: {said}")
    return None


def _behind(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for each in error.exceptions:
                yield from _behind(each)
        error = error.__cause__ or error.__context__


def _unresolved_for(error: socket.gaierror) -> OSError:
    """What a name was not resolved for: without a descriptor some systems say that there is no such name."""
    try:
        socket.socket().close()
    except OSError as short:
        return short
    return error
