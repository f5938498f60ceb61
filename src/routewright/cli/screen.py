"""The two streams of the command: the answer, or JSON, goes out; what is said about it goes beside."""

from __future__ import annotations

import os
import shutil
import sys
from io import StringIO, TextIOWrapper
from typing import Any, TextIO

import msgspec

from .blocks import Block, plain, printable

_PIPE_WIDTH = 100


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

    def json(self, value: Any) -> None:
        """Write one JSON object: on one line for a pipe, indented for a person."""
        encoded = msgspec.json.encode(value)
        self._out.write((msgspec.json.format(encoded) if self.is_terminal else encoded).decode() + "\n")

    def show(self, *blocks: Block) -> None:
        """Write blocks to standard output."""
        _paint(blocks, self._out)

    def say(self, *blocks: Block) -> None:
        """Write blocks to standard error, below what was written to standard output."""
        self.end_text()
        _paint(blocks, self._err)


def _paint(blocks: tuple[Block, ...], stream: TextIO) -> None:
    if _takes_colour(stream) and _paint_in_colour(blocks, stream):
        return
    width = shutil.get_terminal_size((_PIPE_WIDTH, 24)).columns if stream.isatty() else _PIPE_WIDTH
    stream.write(plain(blocks, width))


def _takes_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _paint_in_colour(blocks: tuple[Block, ...], stream: TextIO) -> bool:
    """Paint with rich, which is an extra and slow to load. False: it is not installed."""
    try:
        from .colour import paint
    except ImportError:
        return False
    paint(blocks, stream)
    return True
