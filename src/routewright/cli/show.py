"""What a person or a script is shown: lines, tables, bars, figures and JSON, and the streams and files they go to."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from json import dumps
from math import floor, log10
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal, NamedTuple, TextIO

import msgspec

from routewright._core.account import without_keys
from routewright._core.money import nanos_of, usd_text
from routewright.errors import Problem, ValidationFailed
from routewright.wire import ModelSpan, Tokens, TraceItem
from routewright.wire.analytics import usd_short

Style = Literal["plain", "title", "good", "bad", "dim"]
_COLOURS: dict[Style, str] = {"plain": "", "title": "bold", "good": "green", "bad": "red", "dim": "dim"}

LIST_PRICE = " (list price; the sandbox bills nobody)"
USUAL_TIME = " (the model's usual; the sandbox does not wait)"

_PIPE_WIDTH = 100
_GAP = 2
"""Spaces between columns."""
_LEAST_PROSE, _MOST_PROSE = 20, 36
"""Characters that a column of prose gets in any case, and those beyond which it wraps so that bars can be longer."""
_LEAST_BAR, _MOST_BAR = 12, 40
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_STAND_INS = dict(zip("▏▎▍▌▋▊▉█├└│─✗", "...#####|`|-x", strict=True))
_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Characters that change the direction of writing: they can make a text read as another one."""
_UNSEEN = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0), *_DIRECTIONS]) | {9: "\t", 10: "\n"}
_IN_JSON = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), *_DIRECTIONS)}
"""Control characters that JSON need not escape, but a terminal may obey."""
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


class Bar(NamedTuple):
    """A stretch of a scale from 0 to 1, drawn as wide as there is room."""

    start: float
    length: float


class Line(NamedTuple):
    """One line, never wrapped: a wrapped line can be neither searched for nor copied."""

    text: str = ""
    style: Style = "plain"


class Row(NamedTuple):
    """One line of a table."""

    cells: tuple[str | Bar, ...]
    style: Style = "plain"


class Table(NamedTuple):
    """Rows under a head that may be empty; nothing at all without rows. Bars share the room of the other columns."""

    rows: list[Row]
    head: tuple[str, ...] = ()
    right: frozenset[int] = frozenset()
    """Columns that are aligned to the right."""
    prose: bool = False
    """The last column is text that may wrap; without it a row is one line, however long."""


Block = Line | Table
_Painted = tuple[str, Style, int]
"""A line of text, its style, and the length of the dim label that it begins with."""


def facts(named: Mapping[str, str]) -> Table:
    """A table of names and values. Empty values are left out."""
    return Table([Row((name, value)) for name, value in named.items() if value], prose=True)


def plain(blocks: Iterable[Block], width: int) -> str:
    """Blocks as text without colours."""
    return "".join(f"{text}\n" for block in blocks for text, _, _ in _painted(block, width))


def printable(text: str) -> str:
    """Leave out control characters: on a terminal they could move, hide or forge text."""
    return text.translate(_UNSEEN)


def drawn(bar: Bar, width: int) -> str:
    """A bar on a scale of ``width`` characters: at least a stroke, and never beyond the scale."""
    start, length = (min(max(share, 0.0), 1.0) for share in bar)
    before = min(int(start * width), width - 1)
    eighths = max(1, min(round(length * width * 8), (width - before) * 8))
    return " " * before + _EIGHTHS[8] * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def stand_ins(encoding: str) -> dict[int, str]:
    """Replacements, for ``str.translate``, of drawing characters that an encoding lacks."""
    return {ord(drawn): plain for drawn, plain in _STAND_INS.items() if not _has(encoding, drawn)}


def _has(encoding: str, text: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _painted(block: Block, width: int) -> Iterator[_Painted]:
    if isinstance(block, Line):
        yield printable(block.text), block.style, 0
        return
    if not block.rows:
        return
    rows = [tuple(cell if isinstance(cell, Bar) else _one_line(cell) for cell in row.cells) for row in block.rows]
    styles = [row.style for row in block.rows]
    if block.head:
        rows, styles = [block.head, *rows], ["dim", *styles]
    texts = _with_bars(rows, width, block.prose)
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    for cells, style in zip(texts, styles, strict=True):
        aligned = [
            f"{cell.rjust(size) if place in block.right else cell.ljust(size)}{' ' * _GAP}"
            for place, (cell, size) in enumerate(zip(cells, widths, strict=True))
        ]
        if not block.prose:
            yield "".join(aligned).rstrip(), style, 0 if block.head else widths[0]
            continue
        start = "".join(aligned[:-1])
        room = max(width - len(start), _LEAST_PROSE)
        lines = textwrap.wrap(cells[-1], room, break_long_words=False, break_on_hyphens=False) or [""]
        for place, line in enumerate(lines):
            yield f"{' ' * len(start) if place else start}{line}".rstrip(), style, 0 if block.head else widths[0]


def _one_line(text: str) -> str:
    """A cell on a line of its own: a cell that could end a line could forge the next."""
    return printable(" ".join(text.splitlines()).replace("\t", " "))


def _with_bars(rows: Sequence[tuple[str | Bar, ...]], width: int, prose: bool) -> list[tuple[str, ...]]:
    """The cells as text, bars drawn in the room that the other columns leave."""
    columns = [*zip(*rows, strict=True)]
    bars = [place for place, column in enumerate(columns) if any(isinstance(cell, Bar) for cell in column)]
    taken = [
        max(len(cell) for cell in column if isinstance(cell, str))
        for place, column in enumerate(columns)
        if place not in bars
    ]
    if prose:
        taken[-1] = min(taken[-1], _MOST_PROSE)
    room = (width - sum(taken) - _GAP * (len(columns) - 1)) // max(len(bars), 1)
    size = min(max(room, _LEAST_BAR), _MOST_BAR)
    return [tuple(drawn(cell, size) if isinstance(cell, Bar) else cell for cell in row) for row in rows]


def dollars(usd: float) -> str:
    """Every digit down to the nano-dollar in which money is counted."""
    return f"${usd_text(nanos_of(usd))}"


def exact(nanos: int | None) -> str:
    """The same of nano-dollars, which may be negative; an empty text for None."""
    if nanos is None:
        return ""
    return f"-${usd_text(-nanos)}" if nanos < 0 else f"${usd_text(nanos)}"


def about(usd: float) -> str:
    """Dollars and cents; below a dollar two significant digits, and cents at least."""
    text = usd_short(usd)
    return f"{text}0" if text[-2:-1] == "." else text


def cost(billed: TraceItem | ModelSpan) -> str:
    """The cost; where it was estimated, also the range it lies in."""
    if billed.cost_range_usd is None:
        return dollars(billed.cost_usd)
    low, high = map(dollars, billed.cost_range_usd)
    return f"{dollars(billed.cost_usd)} ({low} to {high})"


def tokens(used: Tokens) -> str:
    """How many tokens came in and went out."""
    cached = f" ({used.cached:,} cached)" if used.cached else ""
    return f"{used.input:,} in{cached}, {used.output:,} out"


def percent(share: float) -> str:
    """A share with one decimal; only exact values are shown as 0% and 100%."""
    if share <= 0 or share >= 1:
        return f"{share:.0%}"
    return f"{min(max(share, 0.001), 0.999):.1%}"


def aligned(values: Sequence[float | None]) -> list[str]:
    """Numbers of a column with as many decimals as the smallest needs for two digits, two at least."""
    smallest = min((value for value in values if value), default=1.0)
    decimals = max(2, 1 - floor(log10(smallest)))
    return ["unknown" if value is None else f"{value:.{decimals}f}" for value in values]


def moment(timestamp: str | None) -> str:
    """A timestamp as a person writes it: ``2026-11-22 12:00:00 UTC``."""
    return (timestamp or "").replace("T", " ").replace("Z", " UTC")


class Screen:
    """Standard output for the answer or JSON, standard error for what is said about it."""

    def __init__(self, *, as_json: bool = False) -> None:
        self._as_json = as_json
        self._out = sys.stdout
        self._err = sys.stderr
        self._mid_line = False
        for stream in (self._out, self._err):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="replace")  # an old encoding must not cost an answer that is paid for

    @property
    def is_terminal(self) -> bool:
        """A person reads standard output."""
        return self._out.isatty()

    def ask(self, question: str, *, otherwise: str) -> bool:
        """Ask a person; only a yes is a yes. Raises ``ValidationFailed`` where nobody can answer."""
        if not (self._err.isatty() and sys.stdin.isatty()):
            raise ValidationFailed.of(Problem("", otherwise, "give --yes to have it done"))
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

    def json(self, value: Any) -> None:
        """Write one JSON object: on one line for a pipe, indented for a person."""
        encoded = msgspec.json.encode(value)
        self._write_json(_decoded(msgspec.json.format(encoded) if self.is_terminal else encoded))

    def json_line(self, value: Any) -> None:
        """Write one of many JSON objects, each on a line."""
        self._write_json(json_line(value))

    def _write_json(self, text: str) -> None:
        encoding = self._out.encoding or "utf-8"
        if not _has(encoding, text):  # characters that an encoding lacks are escaped
            text = _NOT_ASCII.sub(lambda found: found[0] if _has(encoding, found[0]) else dumps(found[0])[1:-1], text)
        self._out.write(text)

    def report(self, told: object, *blocks: Block, note: str = "") -> None:
        """Write a result: as JSON where that is asked for, else as blocks, and a note to standard error."""
        if self._as_json:
            self.json(told)
            return
        self.show(*blocks)
        if note:
            self.note(note)

    def show(self, *blocks: Block) -> None:
        """Write blocks to standard output."""
        _paint([line for block in blocks for line in _painted(block, _width(self._out))], self._out)

    def say(self, *blocks: Block) -> None:
        """Write blocks to standard error, below what was written to standard output. API keys in them are hidden."""
        self.end_text()
        lines = [line for block in blocks for line in _painted(block, _width(self._err))]
        _paint([(without_keys(text), style, label) for text, style, label in lines], self._err)

    def note(self, text: str) -> None:
        """Write one dim line to standard error."""
        self.say(Line(text, "dim"))


def picked(thing: object, names: str) -> dict[str, Any]:
    """Some attributes of an object, for JSON or as arguments."""
    return {name: getattr(thing, name) for name in names.split()}


def json_line(value: Any) -> str:
    """A JSON object on one line."""
    return _decoded(msgspec.json.encode(value))


def _decoded(encoded: bytes) -> str:
    return f"{encoded.decode().translate(_IN_JSON)}\n"


def _width(stream: TextIO) -> int:
    if not stream.isatty():
        return _PIPE_WIDTH
    try:
        return int(os.environ.get("COLUMNS", 0)) or os.get_terminal_size(stream.fileno()).columns or _PIPE_WIDTH
    except (OSError, ValueError):
        return _PIPE_WIDTH


def _paint(lines: Sequence[_Painted], stream: TextIO) -> None:
    """Write lines; to a terminal in colours, if rich is installed. Text is never read as markup."""
    spare = stand_ins(stream.encoding or "utf-8")
    if stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
        with suppress(ImportError):
            from rich.console import Console  # an extra, and slow to load
            from rich.text import Text

            console = Console(file=stream, highlight=False, markup=False, emoji=False)
            for text, style, label in lines:
                coloured = Text(text.translate(spare), style=_COLOURS[style])
                coloured.stylize("dim", 0, label)
                console.print(coloured, soft_wrap=True)
            return
    stream.write("".join(f"{text.translate(spare)}\n" for text, _, _ in lines))


def discard_output() -> None:
    """Drop what is buffered for standard output and cannot be written; what follows may find room."""
    place = sys.stdout.fileno()
    kept, nowhere = os.dup(place), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, place)
    sys.stdout.flush()
    os.dup2(kept, place)
    os.close(kept)
    os.close(nowhere)


@contextmanager
def replacing(path: Path, mode: int) -> Iterator[TextIO]:
    """A draft beside the file of ``--output``, which then takes its place, so that nobody reads half of it.

    A new file gets the rights ``mode``, less the umask; one that is replaced keeps its own. A pipe is written directly.
    Raises ``ValidationFailed`` where it cannot be written."""
    try:
        if path.exists() and not path.is_file():
            with path.open("w", encoding="utf-8") as file:
                yield file
            return
        target = path.resolve()  # a link stays, and leads to the new file
        draft = target.with_name(f".{token_hex(8)}.new")
        rights = 0o600 if target.exists() else mode
        try:
            with open(draft, "x", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, rights)) as file:
                yield file
            if target.exists():
                with suppress(OSError):  # some file systems know no rights
                    shutil.copymode(target, draft)
            os.replace(draft, target)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        problem = f"{path} cannot be written: {error.strerror}"
        raise ValidationFailed.of(Problem("--output", problem, "check the path")) from error
