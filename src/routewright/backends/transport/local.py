"""Why was no connection made? Where this process lacks something for it, no provider is to blame."""

from __future__ import annotations

import errno
import socket
import ssl
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


def unconnected(host: str, said: str, error: BaseException) -> ProviderFault:
    """The fault of a connection that was not made. ``said``: what the driver says of it, which may name addresses."""
    local = local_fault_of(error)
    if local is not None:
        return local
    why, hint = next(filter(None, map(_reason, _behind(error))), ("", ""))
    public = f"no connection: {why}" if why else "no connection"
    return ProviderFault("connect", f"no connection to {host}: {said}", public=public, hint=hint)


def broken(host: str, what: str) -> ProviderFault:
    """The fault of a connection that broke."""
    said = f"the connection to {host} broke: {what}"
    return ProviderFault("reset", said, public=f"the connection broke: {what}")


def _reason(error: BaseException) -> tuple[str, str] | None:
    """Why there is no connection, and what to do; None where an error does not say."""
    if isinstance(error, socket.gaierror):
        return "the host is unknown", "check the host name in the provider's base_url, and the name service"
    if isinstance(error, ssl.SSLCertVerificationError):
        return "its certificate is not valid", "check the server's certificate, and who it is to be signed by"
    if isinstance(error, OSError) and error.errno == errno.ECONNREFUSED:
        return "it was refused", "check that the server runs, and the port in the provider's base_url"
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
