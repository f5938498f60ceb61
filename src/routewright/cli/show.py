"""Output of the commands: lines, tables, bars and JSON, and the streams and files that they go to.

Pages are laid out and coloured by rich, the extra ``cli``. Without a terminal they are plain text of 100 columns."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from json import dumps
from math import floor, log10
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TextIO

import msgspec

from routewright._core.account import without_keys
from routewright._core.money import nanos_of, usd_text
from routewright.errors import Problem, ValidationFailed
from routewright.wire import ModelSpan, Tokens, TraceItem
from routewright.wire.analytics import usd_short

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

Style = Literal["plain", "title", "good", "bad", "dim"]
_COLOURS: dict[Style, str] = {"plain": "", "title": "bold", "good": "green", "bad": "red", "dim": "dim"}

LIST_PRICE = " (list price; the sandbox bills nobody)"
USUAL_TIME = " (the model's usual; the sandbox does not wait)"

_PIPE_WIDTH = 100
_GAP = 2
"""Spaces between columns."""
_LEAST_PROSE, _MOST_PROSE = 20, 36
"""Characters that a column of prose always gets, and those that it gets before bars become longer."""
_LEAST_BAR, _MOST_BAR = 12, 40
_STAND_INS = str.maketrans("▏▎▍▌▋▊▉█▐▕├└│─✗", "...######.|`|-x")
"""Drawing characters in ASCII, for an encoding that lacks one."""
_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Characters that change the direction of writing: they can make one text look like another."""
_UNSEEN = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0), *_DIRECTIONS]) | {9: "\t", 10: "\n"}
_IN_JSON = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), *_DIRECTIONS)}
"""Control characters that JSON need not escape, but a terminal may obey."""


class Bar(NamedTuple):
    """A stretch of a scale from 0 to 1, drawn as wide as there is room. Even an empty one is a stroke."""

    start: float
    length: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it on a scale of ``options.max_width`` characters."""
        from rich.bar import Bar as Drawn

        stroke = 1.001 / (8 * options.max_width)
        start = min(max(self.start, 0.0), 1 - stroke)
        yield Drawn(1.0, start, min(max(self.start + self.length, start + stroke), 1.0))


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


def facts(named: Mapping[str, str]) -> Table:
    """A table of names and values. Empty values are left out."""
    return Table([Row((name, value)) for name, value in named.items() if value], prose=True)


def printable(text: str) -> str:
    """Remove control characters: on a terminal they could move, hide or forge text."""
    return text.translate(_UNSEEN)


def rendered(blocks: Iterable[Block], stream: TextIO, width: int | None) -> str:
    """Blocks as text for a stream, with colours if it is a terminal. ``width``: None is the terminal's own."""
    from rich.console import Console  # an extra, and slow to load
    from rich.text import Text

    colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"  # no bold and dim either
    is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"  # else rich takes 80 columns for granted
    console = Console(
        file=stream,
        width=width,
        color_system=colours,
        force_terminal=is_terminal,
        highlight=False,
        markup=False,
        emoji=False,
    )
    columns = console.width
    with console.capture() as captured:
        for block in blocks:
            if isinstance(block, Line):
                console.print(Text(printable(block.text), _COLOURS[block.style]), soft_wrap=True)
            elif block.rows:
                _print_table(block, console, columns)
    text = "\n".join(line.rstrip() for line in captured.get().split("\n"))
    return text if _can_encode(stream, text) else text.translate(_STAND_INS)


def _can_encode(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _print_table(table: Table, console: Console, columns: int) -> None:
    """Print a table. One that needs more columns than there are is printed as wide as it has to be."""
    from rich.cells import cell_len
    from rich.table import Table as Grid

    rows = [
        # a cell that could end its line could forge the next
        [
            each if isinstance(each, Bar) else printable(" ".join(each.splitlines()).replace("\t", " "))
            for each in row.cells
        ]
        for row in table.rows
    ]
    head = table.head or ("",) * len(rows[0])
    sizes = [[cell_len(cell) for cell in cells if isinstance(cell, str)] for cells in zip(head, *rows, strict=True)]
    bars = [place for place, each in enumerate(sizes) if len(each) <= len(rows)]
    least = [0 if place in bars else max(each) for place, each in enumerate(sizes)]
    wanted = sum(least) + _GAP * (len(least) - 1) - (max(0, least[-1] - _MOST_PROSE) if table.prose else 0)
    for place in bars:
        least[place] = min(max((columns - wanted) // len(bars), _LEAST_BAR), _MOST_BAR)
    if table.prose:  # a word, such as a path, is never broken
        words = [word for cells in rows for word in str(cells[-1]).split()]
        least[-1] = max(min(least[-1], _LEAST_PROSE), *map(cell_len, words), 0)
    grid = Grid(box=None, show_header=bool(table.head), padding=(0, _GAP, 0, 0), pad_edge=False, header_style="dim")
    for place, name in enumerate(head):
        style = "dim" if place == 0 and not table.head else ""
        justify: Literal["right", "left"] = "right" if place in table.right else "left"
        width = least[place] if place in bars else None
        wraps = table.prose and place == len(least) - 1
        grid.add_column(name, justify=justify, style=style, width=width, min_width=least[place], no_wrap=not wraps)
    for cells, row in zip(rows, table.rows, strict=True):
        grid.add_row(*cells, style=_COLOURS[row.style])
    console.width = max(columns, sum(least) + _GAP * (len(least) - 1))
    console.print(grid, crop=False)
    console.width = columns


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
        if not _can_encode(self._out, text):
            text = "".join(each if each.isascii() else dumps(each)[1:-1] for each in text)
        self._out.write(text)

    def report(self, result: object, *blocks: Block, note: str = "") -> None:
        """Write a result: as JSON with ``--json``, else as blocks, and a note to standard error."""
        if self._as_json:
            self.json(result)
            return
        self.show(*blocks)
        if note:
            self.note(note)

    def show(self, *blocks: Block) -> None:
        """Write blocks to standard output."""
        self._out.write(rendered(blocks, self._out, _width(self._out)))

    def say(self, *blocks: Block) -> None:
        """Write blocks to standard error, below what was written to standard output. API keys in them are hidden."""
        self.end_text()
        self._err.write(without_keys(rendered(blocks, self._err, _width(self._err))))

    def note(self, text: str) -> None:
        """Write one dim line to standard error."""
        self.say(Line(text, "dim"))

    def warn(self, text: str) -> None:
        """Write plain lines to standard error, without rich. API keys in them are hidden."""
        self.end_text()
        self._err.write(f"{printable(without_keys(text))}\n")


def picked(thing: object, names: str) -> dict[str, Any]:
    """Some attributes of an object, for JSON or as arguments."""
    return {name: getattr(thing, name) for name in names.split()}


def json_line(value: Any) -> str:
    """A JSON object on one line."""
    return _decoded(msgspec.json.encode(value))


def _decoded(encoded: bytes) -> str:
    return f"{encoded.decode().translate(_IN_JSON)}\n"


def _width(stream: TextIO) -> int | None:
    return None if stream.isatty() else _PIPE_WIDTH


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
