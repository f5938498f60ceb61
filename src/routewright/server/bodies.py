"""Reads request bodies within limits on their length, their number of values, and all bytes in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from routewright._runtime.fork import Guard
from routewright._runtime.loop import Threads
from routewright.errors import BodyTooLarge, RateLimited, RequestTimedOut, RouterError

from .exchange import JSON, ClientLeft, Exchange, Message

T = TypeVar("T")

LONG_BYTES = 1 << 18
"""Longer bodies are parsed in a thread. This many bytes take about a millisecond."""
UNCOUNTED_BYTES = 64 << 10
"""Bytes of each body that count against no limit; the number of connections bounds them."""
_OPENINGS = (b",", b"[", b"{")
"""One of them precedes each member of an array or object, and opens each empty one."""


class Bodies:
    """Reads the bodies of an application. Bodies in several pieces, and long ones until they are parsed, may hold
    ``most_bytes`` together; those of one account half of that."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.waiting: Counter[str | None] = Counter()
        """Bytes by account; None is the total."""
        self.guard = Guard()  # an application may run in several loops
        self._threads = Threads("long bodies", 1)  # more threads would not be faster, and need more memory

    async def read(self, exchange: Exchange, reading: Callable[[bytes], T]) -> T:
        """Apply ``reading`` to the body, in a worker thread if it is long. Raises ``UnsupportedMediaType``,
        ``BodyTooLarge``, ``RequestTimedOut``, ``RateLimited``, ``ClientLeft`` if the body is incomplete, and what
        ``reading`` raises."""
        limits, clock, sent = exchange.limits, exchange.clock, exchange.sent
        if sent.get(b"content-type") != JSON or b"content-encoding" in sent:
            exchange.check_kind()
        length, body, held = sent.get(b"content-length"), None, None
        if length is not None and length.isdigit() and int(length[:20]) > limits.body_bytes:
            raise _too_large(limits.body_bytes)
        try:
            with clock.deadline(clock.monotonic() + limits.body_s):
                message = await exchange.receive()
                if message["type"] == "http.request" and not message.get("more_body"):
                    body = message.get("body", b"")
                else:
                    held = _Held(self, exchange)
                    body = await _pieces(exchange, message, held)
            if body is None:
                raise RequestTimedOut(f"the body was not complete within {limits.body_s:g} s; send it at once")
            if len(body) > limits.body_bytes:
                raise _too_large(limits.body_bytes)
            if len(body) > limits.body_values:
                reading = partial(_counted, limits.body_values, reading)
            if len(body) <= LONG_BYTES or clock.virtual:
                return reading(body)
            held = held or _Held(self, exchange)
            held.grow(len(body))
            read = await self._threads.run(_outcome, partial(reading, body))
            if not isinstance(read, RouterError):
                return read
            try:
                raise read
            finally:
                del read
        finally:
            if held is not None:
                held.release()


async def _pieces(exchange: Exchange, message: Message, held: _Held) -> bytes:
    """Read a body in several pieces."""
    most, come = exchange.limits.body_bytes, bytearray()  # a list of small pieces would take far more memory
    while message["type"] == "http.request":
        piece: bytes = message.get("body", b"")
        if len(come) + len(piece) > most:
            raise _too_large(most)
        held.grow(len(come) + len(piece))
        come += piece
        if not message.get("more_body"):
            return bytes(come)
        message = await exchange.receive()
    raise ClientLeft


class _Held:
    """The bytes of one body that count against the limits."""

    def __init__(self, bodies: Bodies, exchange: Exchange) -> None:
        self._bodies, self._bytes = bodies, 0
        self._account = "" if exchange.caller is None else exchange.caller.account

    def grow(self, length: int) -> None:
        """Count a body of this length. Raises ``RateLimited``, unless it is the only one."""
        bodies, more = self._bodies, length - UNCOUNTED_BYTES - self._bytes
        if more <= 0:
            return
        with bodies.guard.lock:
            for level, whose, most in (
                ("account", self._account, bodies.most_bytes // 2),
                ("server", None, bodies.most_bytes),
            ):
                waiting = bodies.waiting[whose]
                if waiting > self._bytes and waiting + more > most:
                    of = "of your requests" if whose is not None else "of requests"
                    said = f"{waiting} bytes {of} wait to be read, of at most {most}; send the request again"
                    busy = {"level": level, "resource": "requests", "limit_of": "bodies", "retry_after_seconds": 1}
                    raise RateLimited(said, detail=busy)
            bodies.waiting.update({self._account: more, None: more})
        self._bytes += more

    def release(self) -> None:
        """Free its bytes."""
        if self._bytes:
            with self._bodies.guard.lock:
                self._bodies.waiting.subtract({self._account: self._bytes, None: self._bytes})
                self._bodies.waiting += Counter()  # drops zeros


def _outcome(reading: Callable[[], T]) -> T | RouterError:
    """The result or the error. A raised error would form a cycle with its future and keep the body in memory until the
    next garbage collection."""
    try:
        return reading()
    except RouterError as error:
        return error.with_traceback(None)


def _counted(most: int, reading: Callable[[bytes], T], body: bytes) -> T:
    """Apply ``reading`` to a body. Raises ``BodyTooLarge`` if it has more values."""
    if _holds_more(body, most):
        said = f"the body has more than {most} values: members of arrays and objects, where an empty one counts twice"
        raise BodyTooLarge(f"{said}; send fewer")
    return reading(body)


def _holds_more(body: bytes, most: int) -> bool:
    """True if a JSON body has more values. Counts at C speed; the result for anything else is arbitrary."""
    if sum(map(body.count, _OPENINGS)) <= most:
        return False
    bare = body.replace(rb"\\", b"").replace(rb"\"", b"")
    if bare.count(b'"') > 4 * (most + 1):  # a member has at most two strings
        return True
    outside = b"".join(bare.split(b'"')[::2])
    return sum(map(outside.count, _OPENINGS)) > most


def _too_large(most: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is longer than {most} bytes; send a shorter one")
