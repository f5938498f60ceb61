"""The two streams of the command: the answer, or JSON, goes out; what is said about it goes beside."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from io import StringIO, TextIOWrapper
from json import dumps
from typing import Any, TextIO

import msgspec

from routewright._core.account import without_keys

from .bars import has, stand_ins
from .blocks import DIRECTIONS, Block, keyless, plain, printable

_PIPE_WIDTH = 100
_IN_JSON = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), *DIRECTIONS)}
"""Control characters that JSON need not escape, and a terminal may obey."""

_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


class Screen:
    """Standard output and standard error, as they stand when it is made."""

    def __init__(self) -> None:
        self._out = sys.stdout
        self._err = sys.stderr or StringIO()  # nobody has to hear what is said beside the answer
        self._mid_line = False
        for stream in (self._out, self._err):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="replace")  # an old encoding must not cost an answer that is paid for

    @property
    def is_terminal(self) -> bool:
        """A person reads standard output."""
        return self._out.isatty()

    @property
    def asks(self) -> bool:
        """A person can be asked: one reads what is said, and can answer."""
        return self._err.isatty() and sys.stdin is not None and sys.stdin.isatty()

    def ask(self, question: str) -> bool:
        """Ask a person something that only a yes allows."""
        self._err.write(f"{printable(without_keys(question))} [y/N] ")
        self._err.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    def text(self, piece: str) -> None:
        """Write a piece of the answer."""
        self._out.write(printable(piece) if self.is_terminal else piece)
        self._out.flush()
        self._mid_line = not piece.endswith("\n") if piece else self._mid_line

    def end_text(self) -> None:
        """End the answer's last line."""
        if self._mid_line:
            self._out.write("\n")
        self._mid_line = False
        self._out.flush()

    def discard(self) -> None:
        """Forget what could not be written; what follows may find room."""
        place = self._out.fileno()
        kept, nowhere = os.dup(place), os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, place)
        self._out.flush()
        os.dup2(kept, place)
        os.close(kept)
        os.close(nowhere)

    def json(self, value: Any) -> None:
        """Write one JSON object: on one line for a pipe, indented for a person."""
        encoded = msgspec.json.encode(value)
        self._write_json(_decoded(msgspec.json.format(encoded) if self.is_terminal else encoded))

    def json_line(self, value: Any) -> None:
        """Write one of many JSON objects, each on a line."""
        self._write_json(json_line(value))

    def _write_json(self, text: str) -> None:
        encoding = self._out.encoding or "utf-8"
        if not has(encoding, text):  # JSON need lose nothing for it
            text = _NOT_ASCII.sub(lambda found: found[0] if has(encoding, found[0]) else dumps(found[0])[1:-1], text)
        self._out.write(text)

    def show(self, *blocks: Block) -> None:
        """Write blocks to standard output."""
        _paint(blocks, self._out)

    def say(self, *blocks: Block) -> None:
        """Write blocks to standard error, below what was written to standard output. No API key is repeated there."""
        self.end_text()
        _paint(tuple(map(keyless, blocks)), self._err)


def json_line(value: Any) -> str:
    """A JSON object on one line."""
    return _decoded(msgspec.json.encode(value))


def _decoded(encoded: bytes) -> str:
    return f"{encoded.decode().translate(_IN_JSON)}\n"


def _paint(blocks: tuple[Block, ...], stream: TextIO) -> None:
    width, spare = _width(stream), stand_ins(stream.encoding or "utf-8")
    if not (_takes_colour(stream) and _paint_in_colour(blocks, stream, width, spare)):
        stream.write(plain(blocks, width).translate(spare))


def _width(stream: TextIO) -> int:
    """Columns of the terminal; of a pipe, what fits most."""
    if not stream.isatty():
        return _PIPE_WIDTH
    told = shutil.get_terminal_size((0, 0)).columns  # of COLUMNS, or of standard output, which may be a pipe
    try:
        return told or os.get_terminal_size(stream.fileno()).columns or _PIPE_WIDTH
    except OSError:
        return _PIPE_WIDTH


def _takes_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _paint_in_colour(blocks: tuple[Block, ...], stream: TextIO, width: int, spare: Mapping[int, str]) -> bool:
    """Paint with rich, which is an extra and slow to load. False: it is not installed."""
    try:
        from .colour import paint
    except ImportError:
        return False
    paint(blocks, stream, width, spare)
    return True
