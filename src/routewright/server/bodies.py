"""What may the bodies of requests cost the process that serves them? Bounds what has come of all of them, and what each
holds, before anything is made of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import anyio.lowlevel
import anyio.to_thread

from routewright._engine.reading import LARGE_CHARACTERS
from routewright.errors import BodyTooLarge, RateLimited, RequestTimedOut, RouterError
from routewright.fork import Guard

from .exchange import ClientLeft, Exchange, Message

T = TypeVar("T")

_OPENINGS = (b",", b"[", b"{")
"""One of them stands before each member of an array or object, and one is each that is empty."""
_BUSY = {"level": "server", "resource": "requests", "limit_of": "bodies", "retry_after_seconds": 1}


class Bodies:
    """The bodies of an application's requests: how many bytes may wait to be read, and of the long ones whose turn it
    is. To read one takes several times its memory, and the interpreter."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        """Of those that came in pieces, and wait for the rest, and of long ones that wait to be read."""
        self._guard = Guard()  # an application may serve in several loops
        self._turns = anyio.lowlevel.RunVar[anyio.CapacityLimiter]("turns of long bodies")

    async def read(self, exchange: Exchange, reading: Callable[[bytes], T]) -> T:
        """What ``reading`` makes of a body, in a worker thread where it is long.

        Raises ``UnsupportedMediaType``, ``BodyTooLarge``, ``RequestTimedOut``, ``RateLimited``, and what ``reading``
        does; ``ClientLeft`` where it does not come whole.
        """
        body, held = await self._come(exchange)
        try:
            most = exchange.limits.body_values
            if len(body) > most:
                reading = partial(_counted, most, reading)
            if len(body) <= LARGE_CHARACTERS or exchange.clock.virtual:
                return reading(body)
            if not held:
                self._hold(len(body), 0)
                held = len(body)
            return await self._in_turn(partial(reading, body))
        finally:
            if held:
                self._release(held)

    async def _come(self, exchange: Exchange) -> tuple[bytes, int]:
        """A body, and how much of it is held."""
        exchange.check_kind()
        limits, clock = exchange.limits, exchange.clock
        most = limits.body_bytes
        length = exchange.header(b"content-length")
        if length is not None and length.isascii() and length.isdecimal() and int(length[:20]) > most:
            raise _too_large(most)
        with clock.deadline(clock.monotonic() + limits.body_s):
            message = await exchange.receive()
            if message["type"] != "http.request" or message.get("more_body"):
                return await self._pieces(exchange, message)
            body: bytes = message.get("body", b"")
            if len(body) > most:
                raise _too_large(most)
            return body, 0
        raise RequestTimedOut(f"the body did not come whole within {limits.body_s:g} s; send it in one go")

    async def _pieces(self, exchange: Exchange, message: Message) -> tuple[bytes, int]:
        """A body that comes in pieces."""
        most, pieces, held = exchange.limits.body_bytes, list[bytes](), 0
        try:
            while message["type"] == "http.request":
                pieces.append(message.get("body", b""))
                if held + len(pieces[-1]) > most:
                    raise _too_large(most)
                self._hold(len(pieces[-1]), held)
                held += len(pieces[-1])
                if not message.get("more_body"):
                    return b"".join(pieces), held
                message = await exchange.receive()
            raise ClientLeft
        except BaseException:
            self._release(held)
            raise

    def _hold(self, size: int, held: int) -> None:
        """Count a piece of a body of which so much is held; one that is alone is always let in."""
        with self._guard.lock:
            if self._bytes > held and self._bytes + size > self._most_bytes:
                said = f"{self._bytes} bytes of requests wait to be read, and no more than {self._most_bytes} may"
                raise RateLimited(f"{said}: send the request again", detail={**_BUSY})
            self._bytes += size

    def _release(self, size: int) -> None:
        with self._guard.lock:
            self._bytes -= size

    async def _in_turn(self, reading: Callable[[], T]) -> T:
        """Read in a worker thread, when those before are done: side by side they would take no less time."""
        turn = self._turns.get(None)
        if turn is None:
            turn = anyio.CapacityLimiter(1)
            self._turns.set(turn)
        told = await anyio.to_thread.run_sync(_outcome, reading, abandon_on_cancel=True, limiter=turn)
        if not isinstance(told, RouterError):
            return told
        try:
            raise told
        finally:
            del told


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
