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

    async def read(self, exchange: Exchange, parse: Callable[[bytes], T]) -> T:
        """Apply ``parse`` to the body, in a worker thread if it is long. Raises ``UnsupportedMediaType``,
        ``BodyTooLarge``, ``RequestTimedOut``, ``RateLimited``, ``ClientLeft`` if the body is incomplete, and what
        ``parse`` raises."""
        # A limit on the length of one body bounds nothing when a thousand clients send one at a time, slowly: 16 MiB
        # each. So bytes are counted over all bodies, by account, from the first incomplete piece until the body is
        # parsed (P16: memory is flat). Decoding takes more memory than the text, in proportion to its values and not
        # its length: they are counted before, without decoding. A body that came in one piece and is short, as nearly
        # all are, takes no lock and no thread.
        # test_buffered_bytes_are_bounded_until_parsed_or_disconnected,
        # test_a_body_with_too_many_values_is_413_before_it_is_parsed
        limits = exchange.limits
        headers = exchange.sent
        if headers.get(b"content-type") != JSON or b"content-encoding" in headers:
            exchange.check_media_type()
        length = headers.get(b"content-length")
        body = share = None
        if length is not None and length.isdigit() and int(length[:20]) > limits.body_bytes:
            raise _too_large(limits.body_bytes)
        try:
            with exchange.clock.deadline(exchange.clock.monotonic() + limits.body_s):
                message = await exchange.receive()
                if message["type"] == "http.request" and not message.get("more_body"):
                    body = message.get("body", b"")
                else:
                    share = _Share(self, exchange)
                    body = await _read_pieces(exchange, message, share)
            if body is None:
                raise RequestTimedOut(f"the body was not complete within {limits.body_s:g} s; send it at once")
            if len(body) > limits.body_bytes:
                raise _too_large(limits.body_bytes)
            if len(body) > limits.body_values:
                parse = partial(_parse_counted, limits.body_values, parse)
            if len(body) <= LONG_BYTES or exchange.clock.virtual:
                return parse(body)
            share = share or _Share(self, exchange)
            share.grow(len(body))
            result = await self._threads.run(_catch, partial(parse, body))
            if not isinstance(result, RouterError):
                return result
            try:
                raise result
            finally:
                del result
        finally:
            if share is not None:
                share.release()


async def _read_pieces(exchange: Exchange, message: Message, share: _Share) -> bytes:
    """Read a body in several pieces."""
    limit = exchange.limits.body_bytes
    body = bytearray()  # a list of small pieces would take far more memory
    while message["type"] == "http.request":
        piece: bytes = message.get("body", b"")
        if len(body) + len(piece) > limit:
            raise _too_large(limit)
        share.grow(len(body) + len(piece))
        body += piece
        if not message.get("more_body"):
            return bytes(body)
        message = await exchange.receive()
    raise ClientLeft


class _Share:
    """The bytes of one body that count against the limits."""

    def __init__(self, bodies: Bodies, exchange: Exchange) -> None:
        self._bodies = bodies
        self._bytes = 0
        self._account = "" if exchange.caller is None else exchange.caller.account

    def grow(self, length: int) -> None:
        """Count a body of this length. Raises ``RateLimited``, unless it is the only one."""
        bodies = self._bodies
        more = length - UNCOUNTED_BYTES - self._bytes
        if more <= 0:
            return
        with bodies.guard.lock:
            for level, account, limit in (
                ("account", self._account, bodies.most_bytes // 2),
                ("server", None, bodies.most_bytes),
            ):
                pending = bodies.waiting[account]
                if pending > self._bytes and pending + more > limit:
                    subject = "of your requests" if account is not None else "of requests"
                    message = f"{pending} bytes {subject} wait to be read, of at most {limit}; send the request again"
                    busy = {"level": level, "resource": "requests", "limit_of": "bodies", "retry_after_seconds": 1}
                    raise RateLimited(message, detail=busy)
            bodies.waiting.update({self._account: more, None: more})
        self._bytes += more

    def release(self) -> None:
        """Free its bytes."""
        if self._bytes:
            with self._bodies.guard.lock:
                self._bodies.waiting.subtract({self._account: self._bytes, None: self._bytes})
                self._bodies.waiting += Counter()  # drops zeros


def _catch(parse: Callable[[], T]) -> T | RouterError:
    """The result or the error. A raised error would form a cycle with its future and keep the body in memory until the
    next garbage collection."""
    try:
        return parse()
    except RouterError as error:
        return error.with_traceback(None)


def _parse_counted(limit: int, parse: Callable[[bytes], T], body: bytes) -> T:
    """Apply ``parse`` to a body. Raises ``BodyTooLarge`` if it has more values."""
    if _holds_more(body, limit):
        text = f"the body has more than {limit} values: members of arrays and objects, where an empty one counts twice"
        raise BodyTooLarge(f"{text}; send fewer")
    return parse(body)


def _holds_more(body: bytes, limit: int) -> bool:
    """True if a JSON body has more values. Counts at C speed; the result for anything else is arbitrary."""
    if sum(map(body.count, _OPENINGS)) <= limit:
        return False
    bare = body.replace(rb"\\", b"").replace(rb"\"", b"")
    if bare.count(b'"') > 4 * (limit + 1):  # a member has at most two strings
        return True
    outside = b"".join(bare.split(b'"')[::2])
    return sum(map(outside.count, _OPENINGS)) > limit


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is longer than {limit} bytes; send a shorter one")
