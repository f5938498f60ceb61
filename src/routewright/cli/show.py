"""Output of the commands: lines, tables and JSON, and the streams and files that they go to.

Text is the same everywhere; rich, the extra ``cli``, only adds colours on a terminal."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from io import TextIOWrapper
from json import dumps
from pathlib import Path
from secrets import token_hex
from textwrap import wrap
from typing import Any, Literal, NamedTuple, TextIO
from unicodedata import combining, east_asian_width

import msgspec

from routewright.errors import Problem, ValidationFailed
from routewright.wire import JsonObject, ModelSpan, Tokens, TraceItem
from routewright.wire.account import without_keys
from routewright.wire.money import nanos_of, usd_text
from routewright.wire.printable import DIRECTIONS, one_line, printable
from routewright.wire.timestamps import time_short, timestamp

Style = Literal["plain", "title", "good", "bad", "dim"]
_COLOURS: dict[Style, str] = {"plain": "", "title": "bold", "good": "green", "bad": "red", "dim": "dim"}
StyleOf = Callable[[Any], Style]
"""Chooses the style of a record by its fields."""

LIST_PRICE = " (list price; the sandbox bills nobody)"
USUAL_TIME = " (the model's usual; the sandbox does not wait)"

_PIPE_WIDTH = 100
_GAP = "  "
"""Between columns."""
_LEAST_PROSE = 20
"""Characters that a column of prose always gets."""
_STAND_INS = str.maketrans("├└│─✗", "|`|-x")
"""Drawing characters in ASCII, for an encoding that lacks one."""
_IN_JSON = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), 0x2028, 0x2029, *DIRECTIONS)}
"""Control characters that JSON need not escape, but a terminal may obey."""


class Line(NamedTuple):
    """One line, never wrapped: a wrapped line can be neither searched for nor copied."""

    text: str = ""
    style: Style = "plain"


class Row(NamedTuple):
    """One line of a table."""

    cells: tuple[str, ...]
    style: Style = "plain"


class Table(NamedTuple):
    """Rows under a head; nothing at all without rows."""

    rows: list[Row]
    head: str = ""
    """Names of the columns, separated by ``|``. A column is aligned to the right if its name starts with ``>``."""
    prose: bool = False
    """The last column is text that may wrap; without it a row is one line, however long."""


Block = Line | Table


def facts(values: Mapping[str, str]) -> Table:
    """A table of names and values. Empty values are left out."""
    return Table([Row((name, value)) for name, value in values.items() if value], prose=True)


def listing(objects: Iterable[Mapping[str, Any]], columns: str, style: StyleOf | None = None) -> Table:
    """Records as a table. ``columns`` are paths of fields, as ``id plan limits.concurrency``. One that ends in ``?`` is
    left out if no record has a value."""
    records = list(objects)
    empty = {name for name in columns.split() if all(_field(record, name.strip("?")) is None for record in records)}
    paths = [name.strip("?") for name in columns.split() if "?" not in name or name not in empty]
    numeric = {path for path in paths for record in records if isinstance(_field(record, path), int | float)}
    head = "|".join(f"{'>' if path in numeric else ''}{heading(path)}" for path in paths)
    rows = [
        Row(tuple(cell(path, _field(record, path)) for path in paths), "plain" if style is None else style(record))
        for record in records
    ]
    return Table(rows, head)


def dim_after(field: str) -> StyleOf:
    """The style of records that have ended at the time in this field, or not."""
    return lambda record: "dim" if record[field] else "plain"


def fields(record: Mapping[str, object]) -> Table:
    """A record as a table of names and values. Empty values are left out."""
    values = dict[str, str]()
    for name, value in record.items():
        if isinstance(value, Counter):  # of names that are data, such as ids of models
            values |= {f"{heading(name)} {key}": cell("", count) for key, count in value.items()}
            continue
        for inner_name, inner_value in value.items() if isinstance(value, Mapping) else [("", value)]:
            values[heading(f"{name} {inner_name}".strip())] = cell(inner_name or name, inner_value)
    return facts(values)


def _field(record: Any, path: str) -> Any:
    for name in path.split("."):
        record = None if record is None else record.get(name)
    return record


def heading(name: str) -> str:
    """The name of a field, without its unit, as words."""
    for unit in _UNITS:
        name = name if unit == "_rate" else name.removesuffix(unit)
    return name.removeprefix("limits.").replace(".", " ").replace("_", " ")


def cell(name: str, value: Any) -> str:
    """A value as text, by the unit in its name."""
    if value is None or isinstance(value, bool):
        return "yes" if value else ""
    unit = next((unit for unit in _UNITS if f"_{name}".endswith(unit)), "")
    if isinstance(value, list | tuple):
        return ", ".join(cell(name, element) for element in value)
    if unit or isinstance(value, str):
        return _UNITS[unit](value) if unit else value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3g}"


def render(blocks: Iterable[Block], stream: TextIO) -> str:
    """Blocks as text for a stream, with colours if it is a terminal."""
    columns = shutil.get_terminal_size().columns if stream.isatty() else _PIPE_WIDTH
    lines: list[Line] = []
    for block in blocks:
        lines += [block] if isinstance(block, Line) else _layout(block, columns)
    lines = [Line(printable(line.text).rstrip(), line.style) for line in lines]
    has_colours = stream.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
    text = "".join(f"{line.text}\n" for line in lines)
    if has_colours and find_spec("rich") is not None:
        from rich.console import Console  # an extra, and slow to load
        from rich.text import Text

        console = Console(file=stream, force_terminal=True)
        with console.capture() as capture:
            for line in lines:
                console.print(Text(line.text, _COLOURS[line.style]), soft_wrap=True)
        text = capture.get()
    return text if _can_encode(stream, text) else text.translate(_STAND_INS)


def _can_encode(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _layout(table: Table, columns: int) -> Iterator[Line]:
    """The lines of a table. One that needs more columns than there are is as wide as it has to be."""
    if not table.rows:
        return
    names = [name.strip() for name in table.head.split("|")] if table.head else [""] * len(table.rows[0].cells)
    rows = [Row(tuple(map(one_line, row.cells)), row.style) for row in table.rows]
    if table.head:
        rows.insert(0, Row(tuple(name.removeprefix(">") for name in names), "dim"))
    widths = [max(map(_width, column)) for column in zip(*(row.cells for row in rows), strict=True)]
    if table.prose:
        room = max(columns - sum(widths[:-1]) - len(_GAP) * (len(widths) - 1), _LEAST_PROSE)
        widths[-1] = 0
    for row in rows:
        *cells, last = row.cells
        # a word, such as a path, is never broken
        pieces = wrap(last, room, break_long_words=False, break_on_hyphens=False) if table.prose else [last]
        for piece in pieces or [""]:
            padded = []
            for cell, name, width in zip((*cells, piece), names, widths, strict=True):
                space = " " * (width - _width(cell))
                padded.append(f"{space}{cell}" if name.startswith(">") else f"{cell}{space}")
            yield Line(_GAP.join(padded), row.style)
            cells = [""] * len(cells)


def _width(text: str) -> int:
    """The number of columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(character) else 2 if east_asian_width(character) in "WF" else 1 for character in text)


def dollars(usd: float) -> str:
    """Every digit down to the nano-dollar in which money is counted."""
    return f"${usd_text(nanos_of(usd))}"


def exact(nanos: int | None) -> str:
    """The same of nano-dollars, which may be negative; an empty text for None."""
    if nanos is None:
        return ""
    return f"-${usd_text(-nanos)}" if nanos < 0 else f"${usd_text(nanos)}"


def cost(billed: TraceItem | ModelSpan) -> str:
    """The cost; where it was estimated, also the range it lies in."""
    if billed.cost_range_usd is None:
        return dollars(billed.cost_usd)
    low, high = map(dollars, billed.cost_range_usd)
    return f"{dollars(billed.cost_usd)} ({low} to {high})"


def tokens(counts: Tokens) -> str:
    """How many tokens came in and went out."""
    suffix = f" ({counts.cached:,} cached)" if counts.cached else ""
    return f"{counts.input:,} in{suffix}, {counts.output:,} out"


def percent(share: float) -> str:
    """A share with one decimal; only exact values are shown as 0% and 100%."""
    if share <= 0 or share >= 1:
        return f"{share:.0%}"
    return f"{min(max(share, 0.001), 0.999):.1%}"


def with_count(count: int, one: str) -> str:
    """A count with its noun: ``1 trace``, ``1,200 traces``."""
    return f"{count:,} {one}" if count == 1 else f"{count:,} {one}s"


def size(count: float) -> str:
    """A number of bytes with a suitable unit."""
    unit = 0
    while count >= 1000 and unit < 4:
        count /= 1000
        unit += 1
    return f"{count:.1f} {('bytes', 'kB', 'MB', 'GB', 'TB')[unit]}" if unit else f"{count:.0f} bytes"


_UNITS: dict[str, Callable[[Any], str]] = {
    "_usd": lambda usd: exact(nanos_of(usd)),
    "_ms": time_short,
    "_rate": percent,
    "_bytes": size,
    "_nanos": lambda nanos: exact(nanos),
    "_at": lambda at: (at if isinstance(at, str) else timestamp(at))[:19].replace("T", " ") + "Z",
}
"""Ends of the names of fields, and how their values are written."""


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

    def json(self, value: object) -> None:
        """Write one JSON object: on one line for a pipe, indented for a person."""
        encoded = msgspec.json.encode(value)
        self._write_json(_decoded(msgspec.json.format(encoded) if self.is_terminal else encoded))

    async def export(self, records: AsyncIterator[object]) -> None:
        """Write many JSON objects, each on a line."""
        async for record in records:
            self._write_json(json_line(record))

    def _write_json(self, text: str) -> None:
        if not _can_encode(self._out, text):
            text = "".join(character if character.isascii() else dumps(character)[1:-1] for character in text)
        self._out.write(text)

    def report(self, result: object, *blocks: Block, note: str = "") -> None:
        """Write a result: as JSON with ``--json``, else as blocks, and a note to standard error."""
        if self._as_json:
            self.json(result)
            return
        self.show(*blocks)
        if note:
            self.note(note)

    def listing(
        self, name: str, objects: Iterable[object], columns: str, empty_note: str, style: StyleOf | None = None
    ) -> None:
        """Write a list of records: as JSON under a name, else as a table, or say that there is none."""
        records = msgspec.to_builtins([*objects])
        self.report({name: records}, listing(records, columns, style), note="" if records else empty_note)

    def secret(self, record: JsonObject, name: str, secret: str, owner: str) -> None:
        """Write a new secret alone to standard output, with ``--json`` in its record."""
        if self._as_json:
            self.json({**record, name: secret})
            return
        self.text(f"{secret}\n")
        self.note(f"{owner}: save the {name} now; it is not shown again")

    def show(self, *blocks: Block) -> None:
        """Write blocks to standard output."""
        self._out.write(render(blocks, self._out))

    def say(self, *blocks: Block) -> None:
        """Write blocks to standard error, below what was written to standard output. API keys in them are hidden."""
        self.end_text()
        self._err.write(without_keys(render(blocks, self._err)))

    def note(self, text: str, style: Style = "dim") -> None:
        """Write one line to standard error."""
        self.say(Line(text, style))


def pick(record: object, names: str) -> JsonObject:
    """Some attributes of an object, for JSON or as arguments."""
    return {name: getattr(record, name) for name in names.split()}


def json_line(value: object) -> str:
    """A JSON object on one line."""
    return _decoded(msgspec.json.encode(value))


def _decoded(encoded: bytes) -> str:
    return f"{encoded.decode().translate(_IN_JSON)}\n"


def discard_output() -> None:
    """Drop what cannot be written to standard output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def replace_file(path: Path, text: str) -> None:
    """Write the file of ``--output`` as a draft, which then takes its place, so that nobody reads half of it.

    One that is replaced keeps its rights. Raises ``ValidationFailed`` where it cannot be written."""
    target = path.resolve()  # a link stays, and leads to the new file
    draft = target.with_name(f".{token_hex(8)}.new")
    try:
        try:
            draft.write_text(text, "utf-8")
            if target.exists():
                shutil.copymode(target, draft)
            os.replace(draft, target)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        problem = f"{path} cannot be written: {error.strerror}"
        raise ValidationFailed.of(Problem("--output", problem, "check the path")) from error
