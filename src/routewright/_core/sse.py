"""Incremental parser of server-sent events from providers. ``server/sse.py`` sends those to callers."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from routewright.errors import ProviderFault

MAX_LINE_BYTES = 1 << 20
MAX_STRAY_BYTES = 16 << 10

_BOM = b"\xef\xbb\xbf"
_CR = ord("\r")
_LF = ord("\n")


class SseEvent(Struct, frozen=True, gc=False):
    """One event. ``id`` is the last one in the stream so far, as the standard requires."""

    data: str
    event: str = "message"
    id: str = ""


class SseParser:
    """Splits a stream into events in linear time. Lines end with LF, CR or CRLF. An incomplete last event is dropped. A
    line over ``max_line_bytes`` raises ``ProviderFault("malformed")`` after the events before it. Bytes that are not
    UTF-8 become lone surrogates, as with the error handler ``surrogateescape``."""

    def __init__(self, *, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_line_bytes = max_line_bytes
        self._partial: list[bytes] = []
        self._partial_bytes = 0
        self._after_cr = False
        self._at_start = True
        self._data: list[str] = []
        self._event = ""
        self._id = ""
        self._stray = b""

    def stray(self) -> str:
        """Text outside events, from a brace or ``error`` on, up to 16 KiB. Some servers report errors there."""
        rest = b"".join(self._partial)
        text = self._stray + rest if rest.lstrip().startswith((b"{", b"}")) else self._stray
        return text[:MAX_STRAY_BYTES].decode("utf-8", "replace")

    def rest(self) -> str:
        """Data after the last blank line. It is an event if the stream has ended and nothing of it is missing."""
        line = b"".join(self._partial).removeprefix(_BOM)
        data = [line[5:].decode("utf-8", "replace").lstrip()] if line.startswith(b"data:") else []
        return "\n".join([*self._data, *data])

    def feed(self, data: bytes) -> Iterator[SseEvent]:
        """Yield the events that ``data`` completes. Exhaust the iterator before feeding more."""
        if self._after_cr and data:
            self._after_cr = False
            data = data[1:] if data[0] == _LF else data
        lines = data.splitlines()
        if not lines:
            return
        self._after_cr = data[-1] == _CR
        rest = b"" if data[-1] in (_CR, _LF) else lines.pop()
        for line in lines:
            if self._partial:
                line = b"".join((*self._partial, line))
                self._partial.clear()
                self._partial_bytes = 0
            self._check_length(len(line))
            if self._at_start:
                self._at_start = False
                line = line.removeprefix(_BOM)
            if line:
                self._take(line)
                continue
            if self._data:
                event = SseEvent("\n".join(self._data), self._event or "message", self._id)
                self._data.clear()
                yield event
            self._event = ""
        if rest:
            self._partial.append(rest)
            self._partial_bytes += len(rest)
            self._check_length(self._partial_bytes)

    def _check_length(self, size: int) -> None:
        if size > self._max_line_bytes:
            raise ProviderFault("malformed", f"a line of the event stream is over {self._max_line_bytes} bytes")

    def _take(self, line: bytes) -> None:
        try:
            text = line.decode()
        except UnicodeDecodeError:
            text = line.decode("utf-8", "surrogateescape")
        name = text.partition(":")[0]
        value = text[len(name) + 1 :].removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "error" and not self._stray:  # older versions of llama.cpp
            self._stray = b'{"error": ' + value.encode() + b"}"
        elif len(self._stray) < MAX_STRAY_BYTES and (self._stray or name.startswith("{")):
            self._stray += line
