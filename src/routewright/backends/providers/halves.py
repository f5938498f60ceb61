"""Characters that a host cut in two: by UTF-16 units, or by bytes, in its JSON or in its stream."""

from __future__ import annotations

import json
import re
from codecs import getincrementaldecoder
from collections.abc import Iterator

import msgspec

from routewright.wire import Chunk, Delta, Finish, Thought, ToolDelta

_DECODER = getincrementaldecoder("utf-8")
_ESCAPED = ("utf-8", "surrogateescape")
_LONE = re.compile("[\ud800-\udbff\udc00-\udc7f\udd00-\udfff]")
"""A half of a character that is no byte."""


class Halves:
    """Joins the halves in an answer's chunks. One without its other half becomes U+FFFD: in a text when a text of
    another kind or a tool call follows, in the arguments of a call at the end of the answer."""

    def __init__(self) -> None:
        self._texts: dict[type[Delta] | type[Thought] | int, _Text] = {}
        """Texts under way, and the arguments of tool calls by index."""

    def join(self, chunks: list[Chunk]) -> list[Chunk]:
        """Join chunks with those before."""
        joined: list[Chunk] = []
        for chunk in chunks:
            match chunk:
                case Delta(text) if text:
                    joined += *self._end(Thought), Delta(self._join(Delta, text))
                case Thought(text, item):
                    item = None if item is None else json.loads(_joined(json.dumps(item, ensure_ascii=False)))
                    joined += *self._end(Thought if item else Delta), Thought(self._join(Thought, text), item)
                case ToolDelta(index, arguments, id, name):
                    arguments = self._join(index, arguments)
                    joined += *self._end(Delta, Thought), ToolDelta(index, arguments, _joined(id), _joined(name))
                case Finish():
                    joined += *self._end(*self._texts), chunk
                case _:
                    joined.append(chunk)
        return joined

    def _join(self, key: type[Delta] | type[Thought] | int, text: str) -> str:
        return self._texts.setdefault(key, _Text()).join(text)

    def _end(self, *keys: type[Delta] | type[Thought] | int) -> Iterator[Chunk]:
        for key in keys:
            text = self._texts.pop(key, None)
            if text is not None and (rest := text.join("", is_final=True)):
                yield ToolDelta(key, rest) if isinstance(key, int) else key(rest)


class _Text:
    def __init__(self) -> None:
        self._half = ""
        self._decoder = _DECODER("replace")

    def join(self, piece: str, *, is_final: bool = False) -> str:
        """The piece with the half before it, and without the half at its end."""
        text = (self._half + piece).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")  # joins pairs
        self._half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" and not is_final else ""
        text = _LONE.sub("\ufffd", text.removesuffix(self._half))
        return self._decoder.decode(text.encode(*_ESCAPED), is_final)


def encode(value: object) -> str:
    """JSON of a decoded value, which may have halves."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        return json.dumps(value, ensure_ascii=False)


def _joined(text: str) -> str:
    return _Text().join(text, is_final=True)
