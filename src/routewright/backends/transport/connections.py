"""Shared by both transports: limits, faults, bounded bodies, and a connection pool for each event loop."""

from __future__ import annotations

import errno
import os
import re
import socket
import ssl
import weakref
import zlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from msgspec import Struct

from routewright.errors import ProviderFault

from .network import Proxy

_PIECE_BYTES = 1 << 16
_GZIP = 16 + zlib.MAX_WBITS
_WORD = re.compile(r"[a-z0-9-]{1,16}")
_REMEDIES = {
    errno.EMFILE: "raise its limit of open files (ulimit -n), or have fewer connections",
    errno.ENFILE: "too many files are open on this machine",
    errno.ENOBUFS: "this machine is short of memory",
    errno.ENOMEM: "this machine is short of memory",
}
"""Errors that this process causes, not a provider."""

_PROXY_HINT = "check the proxy's address, user and password in proxy=... or HTTPS_PROXY, and its certificate's issuer"

Receive = Callable[[], Awaitable[bytes]]
"""Returns the next raw bytes of a body; empty at its end."""
Loop = Any
"""An asyncio loop, or the token of a trio run."""


@dataclass(frozen=True, kw_only=True)
class TransportLimits:
    """Limits of a transport. Other time limits are set by the call's deadline."""

    connections: int = 1000
    """Open connections of an event loop, over all hosts. Further requests wait."""
    connect_timeout_s: float = 10.0
    """For TCP and TLS together."""
    keepalive_s: float = 30.0
    """How long an idle connection is kept."""
    answer_bytes: int = 32 << 20
    """Longest body, after decompression."""


DEFAULT_LIMITS = TransportLimits()


# --- connections that were closed while they were idle
#
# A server may close a connection that was idle for a while just as the next request is on its way. Nobody has
# failed then, so it must be neither an attempt, which would cost a retry and count against the provider, nor an error.
# So the request is sent once more, on a new connection. A server that died of the request looks the same, and may have
# begun to bill; Go for that reason repeats no POST. Browsers do, if the connection had served an answer before and the
# head of the next one has not come, and so do we: the Router would retry such a fault anyway (``reset``), so no more
# is sent than before. Only once, and the idle connections are closed first, so that a server that
# closes all of them cannot have the request again and again. See test_a_connection_closed_while_idle_is_no_attempt
# and test_what_may_have_been_answered_is_not_sent_again.


# --- faults


def failure_of(host: str, message: str, error: BaseException, proxy: Proxy | None = None) -> ProviderFault:
    """The fault of a failed connection. ``message``: the driver's message, which may contain addresses."""
    causes = [*_causes(error)]
    for cause in causes:
        if isinstance(cause, OSError) and cause.errno in _REMEDIES:
            problem = f"{cause.strerror}; {_REMEDIES[cause.errno]}"
            return ProviderFault("local", f"this process cannot open a connection: {problem}")
    reason = hint = ""
    for cause in reversed(causes):  # the outermost that is known counts
        match cause:
            case socket.gaierror():
                reason = "the host is unknown"
                hint = "check the host name in the provider's base_url, and the name service"
            case ssl.SSLCertVerificationError():
                reason = "its certificate is not valid"
                hint = "check the server's certificate and its issuer"
            case OSError(errno=errno.ECONNREFUSED):
                reason = "it was refused"
                hint = "check that the server runs, and the port in the provider's base_url"
    public = "no connection" if proxy is None else "no connection through the proxy"
    public = f"{public}: {reason}" if reason else public
    hint = hint if proxy is None else _PROXY_HINT
    place = host if proxy is None else f"{host} through the proxy {proxy.place}"
    return ProviderFault("connect", f"no connection to {place}: {message}", public=public, hint=hint)


def refusal_of(proxy: Proxy, host: str, status: int) -> ProviderFault:
    """The fault of a proxy that refused a request. A 407 is not retried."""
    reason = "needs a valid user and password" if status == 407 else "did not forward the request"
    message = f"the proxy {proxy.place} answered {status} for {host}: it {reason}"
    public = f"no connection through the proxy: it answered {status}"
    return ProviderFault("connect", message, public=public, hint=_PROXY_HINT, retry=False if status == 407 else None)


def reset_of(host: str, problem: str) -> ProviderFault:
    """The fault of a broken connection."""
    message = f"the connection to {host} broke: {problem}"
    return ProviderFault("reset", message, public=f"the connection broke: {problem}")


def _causes(error: BaseException | None, *, outermost: bool = True) -> Iterator[BaseException]:
    """An error and its causes. Only the driver's own error is followed to its context, since further contexts may be
    unrelated."""
    while error is not None:
        yield error
        for inner in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
            yield from _causes(inner, outermost=False)
        error = error.__cause__ or (error.__context__ if outermost else None)
        outermost = False


# --- bodies


class Answer(Struct, eq=False):
    """An HTTP answer whose headers have arrived (``protocols.Response``)."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    receive: Receive
    limit: int

    def chunks(self) -> Body:
        """The body as it arrives, decompressed."""
        return Body(self.receive, self.headers.get("content-encoding", ""), self.limit)

    async def read(self, limit: int) -> bytes:
        """At most ``limit`` bytes of the body; more raises ``ProviderFault("malformed")``."""
        return await self.chunks().read(limit)


class Body:
    """Iterates over the decoded bytes of one answer. Not a generator, which would have to be closed."""

    def __init__(self, receive: Receive, content_encoding: str, limit: int) -> None:
        encoding = content_encoding.strip().lower()
        if encoding not in ("", "identity", "gzip", "x-gzip"):
            shown = encoding if _WORD.fullmatch(encoding) else "not shown"  # may be anything
            raise ProviderFault("malformed", f"the answer has an unsupported content-encoding ({shown})")
        self._receive = receive
        self._inflater = None if encoding in ("", "identity") else _Inflater()
        self._limit = limit
        self._total = 0

    def __aiter__(self) -> Body:
        return self

    async def __anext__(self) -> bytes:
        piece = await (self._receive() if self._inflater is None else self._inflater.read(self._receive))
        if not piece:
            raise StopAsyncIteration
        self._total += len(piece)
        if self._total > self._limit:
            raise ProviderFault("malformed", f"the answer is over {self._limit} bytes")
        return piece

    async def read(self, limit: int) -> bytes:
        """The complete body; over ``limit`` bytes raises ``ProviderFault("malformed")``."""
        self._limit = min(self._limit, limit)
        return b"".join([piece async for piece in self])


class _Inflater:
    """Decompresses in bounded pieces, to be safe from decompression bombs."""

    def __init__(self) -> None:
        self._rest = b""
        self._stream = zlib.decompressobj(_GZIP)
        self._started = False

    async def read(self, receive: Receive) -> bytes:
        """Up to 64 KiB of decompressed bytes; empty at the end."""
        while True:
            raw = self._rest or await receive()
            self._rest = b""
            if not raw and self._started and not self._stream.eof:
                raise ProviderFault("malformed", "the compressed answer is incomplete")
            if not raw:
                return b""
            self._started = True
            try:
                piece = self._stream.decompress(raw, _PIECE_BYTES)
            except zlib.error as exc:
                raise ProviderFault("malformed", "the answer does not match its content-encoding") from exc
            self._rest = self._stream.unconsumed_tail or self._stream.unused_data
            if self._stream.eof and self._rest:  # gzip allows several members
                self._stream = zlib.decompressobj(_GZIP)
            if piece:
                return piece


# --- pools


class LoopPool(ABC):
    """The connections of one event loop in one process.

    A suspended async generator ties the pool to its loop: asyncio and trio close such generators at their end.
    Otherwise (``loop.close()``, a fork, a dropped transport) the connections are freed directly, without warnings, and
    without touching another loop or process.
    """

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.closed = False
        self._pid = os.getpid()
        self._keeper: AsyncGenerator[None, None] | None = None

    def keep(self, forget: Callable[[Loop, None], object]) -> None:
        """Tie the pool to the running loop; ``forget`` is called at its end."""
        self._keeper = _until_loop_ends(self, forget)
        with suppress(StopIteration):  # it yields without waiting
            self._keeper.asend(None).send(None)

    @property
    def is_stale(self) -> bool:
        """True if the loop has ended, or belongs to a parent process."""
        return self._pid != os.getpid() or self.loop_is_over()

    async def aclose(self) -> None:
        """Close the connections in their loop."""
        if self.is_stale:
            self.end()
        elif not self.closed:
            self.closed = True
            self._untie()
            await self.close_connections()

    def end(self) -> None:
        """Free the connections, from any thread: at once, or as soon as the loop runs."""
        # A pool may end anywhere: in its loop, in another thread, after the loop was closed, in a forked child.
        # Awaiting the driver's `close` works in the first case only. In another thread it would touch a loop that is
        # running, so the end is handed to that loop; if it closed in between, the call raises and the pool is stale
        # after all. A stale pool has no loop to close it, and asyncio would remove the descriptor from a selector that
        # is gone, or that a parent process shares: closing there would cut the parent's calls. So the socket alone is
        # released. `closed` is set last, because the scheduled call comes here again.
        # test_an_unclosed_transport_leaks_nothing goes through the endings,
        # test_closing_from_another_loop_closes_the_pool_of_a_running_one through the thread.
        self._untie()
        if self.closed:
            return
        if not self.is_stale and not self.loop_runs_here():
            with suppress(RuntimeError):  # just closed
                self.call_in_loop(self.end)
                return
        self.closed = True
        if self.is_stale or not self.loop_runs_here():
            self.abandon_connections()
        else:
            self.abort_connections()

    def _untie(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            with suppress(StopIteration, RuntimeError):  # RuntimeError: the keeper itself is closing the pool
                keeper.aclose().send(None)

    def __del__(self) -> None:
        # unclosed only if `end` was scheduled in a loop that never ran again
        if not self.closed:
            self.closed = True
            self.abandon_connections()

    @abstractmethod
    def loop_is_over(self) -> bool:
        """True if the loop has ended."""

    @abstractmethod
    def loop_runs_here(self) -> bool:
        """True if the loop runs in this thread."""

    @abstractmethod
    def call_in_loop(self, callback: Callable[[], None]) -> None:
        """Schedule a callback. Thread-safe. Raises ``RuntimeError`` once the loop has ended."""

    @abstractmethod
    async def close_connections(self) -> None:
        """Close them, inside the loop."""

    @abstractmethod
    def abort_connections(self) -> None:
        """Close them without waiting, inside the loop."""

    @abstractmethod
    def abandon_connections(self) -> None:
        """Free them without their loop, and without closing the peer's side, which a parent process may use."""


async def _until_loop_ends(pool: LoopPool, forget: Callable[[Loop, None], object]) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        if pool._keeper is not None:  # the loop ends with an open pool
            forget(pool.loop, None)
            await pool.aclose()


P = TypeVar("P", bound=LoopPool)


class LoopPools(Generic[P]):
    """The pools of all loops. Thread-safe; dropping it closes its pools."""

    def __init__(self, make: Callable[[Loop], P], running_loop: Callable[[], Loop]) -> None:
        self._make = make
        self._running_loop = running_loop
        # strong keys, since pools refer to their loops anyway; `get` removes stale ones
        self._pools: dict[Loop, P] = {}
        weakref.finalize(self, _end_all, self._pools)

    def get(self) -> P:
        """Find or create the pool of the running loop."""
        loop = self._running_loop()
        if (pool := self._pools.get(loop)) is not None:
            return pool
        for other, old in list(self._pools.items()):
            if old.is_stale and self._pools.pop(other, None) is not None:  # else another thread did
                old.end()
        pool = self._pools[loop] = self._make(loop)
        pool.keep(self._pools.pop)
        return pool

    async def aclose(self) -> None:
        """Close all pools, each in its own loop. A later request opens a new one."""
        here = None
        with suppress(RuntimeError):  # another kind of loop
            here = self._pools.pop(self._running_loop(), None)
        _end_all(self._pools)
        if here is not None:
            await here.aclose()


def _end_all(pools: dict[Loop, P]) -> None:
    while pools:
        with suppress(KeyError):  # its loop may be ending in another thread
            pools.popitem()[1].end()
