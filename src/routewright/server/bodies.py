"""What may the bodies of requests cost the process that serves them? Bounds what has come of all of them, and what each
holds, before anything is made of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from routewright.errors import BodyTooLarge, RateLimited, RequestTimedOut, RouterError
from routewright.fork import Guard
from routewright.threads import Threads
from routewright.wire import Caller

from .exchange import JSON, ClientLeft, Exchange, Message

T = TypeVar("T")

_OPENINGS = (b",", b"[", b"{")
"""One of them stands before each member of an array or object, and one is each that is empty."""
LONG_BYTES = 1 << 18
"""So many are read in about a millisecond; a longer body is read in a thread."""
UNCOUNTED_BYTES = 64 << 10
"""Of each body are let in whatever others hold: connections bound those."""
_SHARES = 2
"""One account holds no more than this part of all."""


class Bodies:
    """The bodies of an application's requests: how many bytes may wait to be read, and of the long ones whose turn it
    is. To read one takes several times its memory, and the interpreter."""

    def __init__(self, most_bytes: int) -> None:
        self._room = _Room(most_bytes)
        self._threads = Threads("long bodies", 1)  # side by side they would take no less time

    async def read(self, exchange: Exchange, reading: Callable[[bytes], T]) -> T:
        """What ``reading`` makes of a body, in a worker thread where it is long.

        Raises ``UnsupportedMediaType``, ``BodyTooLarge``, ``RequestTimedOut``, ``RateLimited``, and what ``reading``
        does; ``ClientLeft`` where it does not come whole.
        """
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
                    held = _Held(self._room, exchange.caller)
                    body = await _pieces(exchange, message, held)
            if body is None:
                raise RequestTimedOut(f"the body did not come whole within {limits.body_s:g} s; send it in one go")
            if len(body) > limits.body_bytes:
                raise _too_large(limits.body_bytes)
            if len(body) > limits.body_values:
                reading = partial(_counted, limits.body_values, reading)
            if len(body) <= LONG_BYTES or clock.virtual:
                return reading(body)
            held = held or _Held(self._room, exchange.caller)
            held.grow(len(body))
            return await self._in_turn(partial(reading, body))
        finally:
            if held is not None:
                held.let_go()

    async def _in_turn(self, reading: Callable[[], T]) -> T:
        """Read in a worker thread, when those before are done."""
        told = await self._threads.run(_outcome, reading)
        if not isinstance(told, RouterError):
            return told
        try:
            raise told
        finally:
            del told


async def _pieces(exchange: Exchange, message: Message, held: _Held) -> bytes:
    """A body that comes in pieces."""
    most, come = exchange.limits.body_bytes, bytearray()  # of many small pieces a list takes many times as much
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


class _Room:
    """What bodies hold: those that come in pieces and wait for the rest, and long ones that wait to be read."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._of: dict[str, int] = {}
        """By account, of those that hold any."""
        self._guard = Guard()  # an application may serve in several loops

    def take(self, account: str, size: int, held: int) -> None:
        """Take so much more for a body that holds ``held``. One that is alone always may."""
        with self._guard.lock:
            mine = self._of.get(account, 0)
            _check(mine, size, held, self._most_bytes // _SHARES, "account")
            _check(self._bytes, size, held, self._most_bytes, "server")
            self._bytes += size
            self._of[account] = mine + size

    def give_back(self, account: str, size: int) -> None:
        with self._guard.lock:
            self._bytes -= size
            self._of[account] -= size
            if not self._of[account]:
                del self._of[account]


def _check(taken: int, size: int, held: int, most: int, level: str) -> None:
    if taken > held and taken + size > most:
        whose = "of your requests" if level == "account" else "of requests"
        said = f"{taken} bytes {whose} wait to be read, and no more than {most} may: send the request again"
        busy = {"level": level, "resource": "requests", "limit_of": "bodies", "retry_after_seconds": 1}
        raise RateLimited(said, detail=busy)


class _Held:
    """What one body holds of the room."""

    __slots__ = ("_account", "_bytes", "_room")

    def __init__(self, room: _Room, caller: Caller | None) -> None:
        self._room = room
        self._account = "" if caller is None else caller.account
        self._bytes = 0

    def grow(self, length: int) -> None:
        """Have it hold what a body of this length does. Raises ``RateLimited``."""
        more = length - UNCOUNTED_BYTES - self._bytes
        if more > 0:
            self._room.take(self._account, more, self._bytes)
            self._bytes += more

    def let_go(self) -> None:
        if self._bytes:
            self._room.give_back(self._account, self._bytes)
            self._bytes = 0


def _outcome(reading: Callable[[], T]) -> T | RouterError:
    """What a thread gives, or its refusal without the frames that hold the body: raised there, it would hold the future
    that holds it, and so the body until the garbage collector comes."""
    try:
        return reading()
    except RouterError as error:
        return error.with_traceback(None)


def _counted(most: int, reading: Callable[[bytes], T], body: bytes) -> T:
    """What ``reading`` makes of a body. Raises ``BodyTooLarge`` where it holds more values."""
    if _holds_more(body, most):
        said = f"the body holds over {most} values: members of arrays and objects, where an empty one counts twice"
        raise BodyTooLarge(f"{said}; send fewer")
    return reading(body)


def _holds_more(body: bytes, most: int) -> bool:
    """Say at C speed whether more values are in it. Of what is no JSON anything may be said."""
    if sum(map(body.count, _OPENINGS)) <= most:
        return False
    bare = body.replace(rb"\\", b"").replace(rb"\"", b"")
    if bare.count(b'"') > 4 * (most + 1):  # a member is two strings at most, its key and itself
        return True
    outside = b"".join(bare.split(b'"')[::2])
    return sum(map(outside.count, _OPENINGS)) > most


def _too_large(most: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is over {most} bytes: send a shorter one")
