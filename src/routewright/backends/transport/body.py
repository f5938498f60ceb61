"""The body of an answer: decompressed as it comes, and never longer than allowed."""

from __future__ import annotations

import re
import zlib
from collections import deque
from collections.abc import Awaitable, Callable

from routewright.errors import ProviderFault

_PIECE_BYTES = 1 << 16
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
_INFLATABLE = ("gzip", "x-gzip", "deflate")
_WORD = re.compile(r"[a-z0-9-]{1,16}")

Receive = Callable[[], Awaitable[bytes]]
"""Waits for the next raw bytes of a body; empty at its end."""


class Body:
    """Iterates over the decoded bytes of one answer. Not a generator, so that leaving it early leaves nothing."""

    def __init__(self, receive: Receive, content_encoding: str, limit: int) -> None:
        self._receive = receive
        self._inflater = _inflater(content_encoding)
        self._limit = limit
        self._total = 0

    def __aiter__(self) -> Body:
        return self

    async def __anext__(self) -> bytes:
        piece = await (self._receive() if self._inflater is None else self._inflate())
        if not piece:
            raise StopAsyncIteration
        self._total += len(piece)
        if self._total > self._limit:
            raise ProviderFault("malformed", f"the answer is over {self._limit} bytes")
        return piece

    async def read(self, limit: int) -> bytes:
        """All of it; over ``limit`` bytes raises ``ProviderFault("malformed")``."""
        self._limit = min(self._limit, limit)
        return b"".join([piece async for piece in self])

    async def _inflate(self) -> bytes:
        assert self._inflater is not None
        while not (piece := self._inflater.next_piece()):
            raw = await self._receive()
            if not raw:
                self._inflater.check_whole()
                return b""
            self._inflater.feed(raw)
        return piece


class _Inflater:
    """Decompresses in bounded pieces, so that a small body cannot fill the memory."""

    def __init__(self) -> None:
        self._raw: deque[bytes] = deque()
        self._stream = zlib.decompressobj(_GZIP_OR_ZLIB)
        self._started = False

    def feed(self, raw: bytes) -> None:
        self._raw.append(raw)

    def next_piece(self) -> bytes:
        """Up to 64 KiB of text; empty when more input is needed."""
        while self._raw:
            raw = self._raw.popleft()
            piece = self._decompress(raw)
            rest = self._stream.unconsumed_tail or self._stream.unused_data
            if rest:
                self._raw.appendleft(rest)
            if self._stream.eof and rest:  # gzip allows several members in a row
                self._stream = zlib.decompressobj(_GZIP_OR_ZLIB)
            if piece:
                return piece
        return b""

    def check_whole(self) -> None:
        if self._started and not self._stream.eof:
            raise ProviderFault("malformed", "the compressed answer breaks off")

    def _decompress(self, raw: bytes) -> bytes:
        first, self._started = not self._started, True
        try:
            return self._stream.decompress(raw, _PIECE_BYTES)
        except zlib.error as exc:
            if not first:
                raise ProviderFault("malformed", "the answer is not what its content-encoding says") from exc
        self._stream = zlib.decompressobj(-zlib.MAX_WBITS)  # some servers call raw deflate "deflate"
        return self._decompress(raw)


def _inflater(content_encoding: str) -> _Inflater | None:
    encoding = content_encoding.strip().lower()
    if encoding in ("", "identity"):
        return None
    if encoding in _INFLATABLE:
        return _Inflater()
    shown = encoding if _WORD.fullmatch(encoding) else "that is no short word"  # a server may say anything there
    raise ProviderFault("malformed", f"the answer has a content-encoding ({shown}) which was not asked for")
