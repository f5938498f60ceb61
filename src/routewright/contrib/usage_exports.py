"""Reads providers' usage exports: pages of their usage and cost APIs, and tables with a row per day or call.

The keys of a row tell which of the ``FORMS`` it has, and the form says where each figure is. Nothing is guessed: a row
of no known form is refused with its place."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from routewright._core.money import NANOS_PER_USD
from routewright._core.request.json_scan import joined
from routewright._core.request.problems import in_json, shown
from routewright._core.request.read import rebuilt
from routewright._core.request.rules import is_date, is_day
from routewright.errors import Problem, ValidationFailed
from routewright.input_file import json_document, path_of, text_of

MOST_TOKENS = 10**15
MOST_USD = 10**9
_OF_DOLLARS, _OF_CENTS = 9, 7
"""Decimal places from the unit to nano-dollars."""
_NUMBER = re.compile(r"\$?(-?\d{1,18}(?:\.\d{1,40})?(?:[eE][+-]?\d{1,3})?)")
_UNIX = re.compile(r"\d{9,10}")
_SEPARATORS = ",;\t"
_ROW = re.compile(r"\[(\d+)\]\.?(.*)")
_EXPECTED = (
    "give a page of OpenAI's or Anthropic's usage or cost API, Anthropic's or OpenRouter's CSV, "
    "or a table with the columns date, model, requests, input_tokens, output_tokens, cached_tokens, cost_usd"
)

ExportShape = Literal["openai", "anthropic", "anthropic-console", "openrouter", "table"]
"""The form of an export; ``table``: rows with columns of common names."""
Fields = Mapping[str, Any]


class ExportLine(Struct, frozen=True, kw_only=True):
    """A provider's figures for one of its models on one day. None: not given."""

    day: str
    """``YYYY-MM-DD``."""
    model: str = ""
    """The provider's name of it. Empty: not given."""
    requests: int | None = None
    input_tokens: int | None = None
    """Including those read from a cache or written to it."""
    output_tokens: int | None = None
    """Including reasoning."""
    cached_tokens: int | None = None
    """Input tokens read from a cache."""
    cost_nanos: int | None = None


class UsageExport(Struct, frozen=True, kw_only=True):
    """A provider's record of usage."""

    first: str
    """The first day that it covers."""
    last: str
    lines: tuple[ExportLine, ...]
    shape: ExportShape = "table"
    provider: str | None = None
    """The catalogue's name of the provider. None: not given."""
    partial: bool = False
    """It says that there is more than it contains."""


class Form(NamedTuple):
    """Where each figure is in a row: keys, dotted where they are nested. Amounts of several keys are added up."""

    shape: ExportShape
    provider: str | None
    signs: tuple[str, ...]
    """Keys that only rows of this form have, and forms above it."""
    day: tuple[str, ...]
    """The first key that has a value holds; likewise for ``model``."""
    model: tuple[str, ...]
    requests: tuple[str, ...] = ()
    input_tokens: tuple[str, ...] = ()
    output_tokens: tuple[str, ...] = ()
    cached_tokens: tuple[str, ...] = ()
    cost: tuple[str, ...] = ()
    decimals: int = _OF_DOLLARS
    """Of the cost, to nano-dollars."""
    currency: tuple[str, ...] = ()
    each_is_one: bool = False
    """Each row is one request."""


_CREATED = ("cache_creation.ephemeral_5m_input_tokens", "cache_creation.ephemeral_1h_input_tokens")
_WRITTEN = ("usage_input_tokens_cache_write_5m", "usage_input_tokens_cache_write_1h")
FORMS = (
    Form(
        "openai", "openai", ("num_model_requests",), ("start_time_iso", "start_time"), ("model",),
        ("num_model_requests",), ("input_tokens",), ("output_tokens",), ("input_cached_tokens",),
    ),
    Form("openai", "openai", ("amount.value",), ("start_time_iso", "start_time"), ("line_item",),
         cost=("amount.value",), currency=("amount.currency",)),
    Form("openai", "openai", ("amount_value",), ("start_time_iso", "start_time"), ("line_item",),
         cost=("amount_value",), currency=("amount_currency",)),
    Form(
        "anthropic", "anthropic", ("uncached_input_tokens",), ("starting_at",), ("model",), (),
        ("uncached_input_tokens", "cache_read_input_tokens", *_CREATED), ("output_tokens",),
        ("cache_read_input_tokens",),
    ),
    Form("anthropic", "anthropic", ("starting_at", "amount"), ("starting_at",), ("model", "description", "cost_type"),
         cost=("amount",), decimals=_OF_CENTS, currency=("currency",)),
    Form(
        "anthropic-console", "anthropic", ("usage_input_tokens_no_cache",), ("usage_date_utc",), ("model_version",), (),
        ("usage_input_tokens_no_cache", "usage_input_tokens_cache_read", *_WRITTEN), ("usage_output_tokens",),
        ("usage_input_tokens_cache_read",),
    ),
    Form("anthropic-console", "anthropic", ("usage_date_utc", "token_type"), ("usage_date_utc",),
         ("model", "cost_type"), cost=("cost_usd",)),
    Form(
        "openrouter", "openrouter", ("model_permaslug", "tokens_prompt"), ("created_at",), ("model_permaslug",), (),
        ("tokens_prompt",), ("tokens_completion",), ("tokens_cached",), ("cost_total",), each_is_one=True,
    ),
    Form(
        "openrouter", "openrouter", ("model_permaslug", "prompt_tokens"), ("date",), ("model",),
        ("requests",), ("prompt_tokens",), ("completion_tokens",), (), ("usage",),
    ),
)  # fmt: skip
"""The known forms, as published in 2026."""

ALIASES: dict[str, tuple[str, ...]] = {
    "day": ("date", "day", "usage_date", "date_utc", "start_date", "start_time", "timestamp", "created_at"),
    "model": ("model", "model_id", "model_name", "model_version"),
    "requests": ("requests", "request_count", "num_requests", "calls"),
    "input_tokens": ("input_tokens", "prompt_tokens", "tokens_in", "tokens_prompt"),
    "output_tokens": ("output_tokens", "completion_tokens", "tokens_out", "tokens_completion"),
    "cached_tokens": ("cached_tokens", "cached_input_tokens", "input_cached_tokens", "tokens_cached"),
    "cost": ("cost_usd", "cost", "total_cost", "cost_total", "amount_usd", "spend_usd", "spend"),
}
"""Column names of tables, in lower case, with words separated by underscores."""
_WORDS = re.compile(r"[^a-z0-9]+")


def read_usage_export(given: str | Path) -> UsageExport:
    """Read a provider's usage export: a page of OpenAI's or Anthropic's usage or cost API, or several in an array;
    Anthropic's or OpenRouter's CSV; or a table with the columns ``date, model, requests, input_tokens, output_tokens,
    cached_tokens, cost_usd``, of which some may be missing.

    Raises ``ValidationFailed`` naming file, line and key."""
    path = path_of(given)
    text = text_of(path)
    head = text.partition("\n")[0]
    if text.lstrip()[:1] in ("{", "["):
        document = json_document(path, text)
        with document.naming():
            return read_export(document.content)
    reader = csv.reader(StringIO(text, newline=""), strict=True, delimiter=max(_SEPARATORS, key=head.count))
    rows: list[dict[str, str]] = []
    lines: list[int] = []
    try:
        keys = [key.strip() for key in next(reader, [])]
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(keys):
                said = f"has {len(cells)} cells, where the head has {len(keys)}"
                raise ValidationFailed.at(f"{path}:{reader.line_num}", said, "export it anew")
            rows.append(dict(zip(keys, (cell.strip() for cell in cells), strict=True)))
            lines.append(reader.line_num)
    except csv.Error as error:
        found = Problem(f"{path}:{reader.line_num}", f"is neither JSON nor CSV: {error}", "give it as it was exported")
        raise ValidationFailed.of(found) from error
    try:
        return read_export(rows)
    except ValidationFailed as error:
        problems = error.problems
    raise ValidationFailed.of(*(_placed(path, lines, each) for each in problems))


def _placed(path: Path, lines: list[int], found: Problem) -> Problem:
    """The problem with the row's line instead of its index."""
    row = _ROW.fullmatch(found.path)
    line, key = (1, found.path) if row is None else (lines[int(row[1])], row[2])
    return found._replace(path=f"{path}:{line}: {key}" if key else f"{path}:{line}")


def checked_export(given: object) -> UsageExport:
    """Validate an export that was made in code. Raises ``ValidationFailed``."""
    export = rebuilt(given, UsageExport, "export")
    days = {"first": export.first, "last": export.last}
    days |= {f"lines[{place}].day": line.day for place, line in enumerate(export.lines)}
    for path, day in days.items():
        if not is_day(day):
            raise ValidationFailed.at(f"export.{path}", f"must be a day, got {shown(day)}", "write YYYY-MM-DD")
    return export


def read_export(content: object) -> UsageExport:
    """Read an export: a page of an API, or several in an array; or an array of rows. Raises ``ValidationFailed``."""
    if not isinstance(content, dict | list):
        raise ValidationFailed.at("", f"is no usage export of a known form, got {shown(content)}", _EXPECTED)
    things: list[tuple[str, object]] = []  # time buckets and rows, with their places
    pages: list[tuple[str, object]] = [("", content)]
    if isinstance(content, list):
        pages = [(joined("", at), page) for at, page in enumerate(content)]
    for path, page in pages:
        if isinstance(page, dict) and isinstance(page.get("data"), list):
            inner = joined(path, "data")
            things += ((joined(inner, place), thing) for place, thing in enumerate(page["data"]))
        elif isinstance(content, dict):
            raise ValidationFailed.at(path, "is no usage export of a known form", _EXPECTED)
        else:
            things.append((path, page))
    rows: list[_Row] = []
    days: set[str] = set()
    whose: set[tuple[ExportShape, str | None]] = set()
    for path, thing in things:
        fields = _object(path, thing)
        if isinstance(fields.get("results"), list):
            days.add(_day_of(path, fields))  # it counts even without rows
            whose.add(("openai", "openai") if "start_time" in fields else ("anthropic", "anthropic"))
            when: Fields = {key: fields[key] for key in ("start_time", "starting_at") if key in fields}
            inner = joined(path, "results")
            places = [(joined(inner, place), each) for place, each in enumerate(fields["results"])]
            rows += (_Row.of(place, {**_object(place, each), **when}) for place, each in places)
        else:
            rows.append(_Row.of(path, fields))
    lines: dict[tuple[str, str], ExportLine] = {}
    for line in [row.line() for row in rows]:
        there = lines.get((line.day, line.model))
        lines[line.day, line.model] = line if there is None else _added(there, line)
    days |= {day for day, _ in lines}
    whose |= {(row.form.shape, row.form.provider) for row in rows}
    if not days:
        raise ValidationFailed.at("", "holds no usage", "export a time in which there was some")
    if len(whose) > 1:
        names = " and ".join(sorted(shape for shape, _ in whose))
        raise ValidationFailed.at("", f"holds rows of several forms: {names}", "reconcile them one by one")
    ((shape, provider),) = whose
    last = content[-1] if isinstance(content, list) and content else content
    return UsageExport(
        first=min(days),
        last=max(days),
        lines=tuple(line for _, line in sorted(lines.items())),
        shape=shape,
        provider=provider,
        partial=isinstance(last, dict) and last.get("has_more") is True,
    )


def _day_of(path: str, bucket: Fields) -> str:
    """The day that contains a time bucket."""
    began, ended = (
        next((key for key in keys if bucket.get(key) is not None), keys[0])
        for keys in (("start_time", "starting_at"), ("end_time", "ending_at"))
    )
    start = _moment(joined(path, began), bucket.get(began))
    end = start if bucket.get(ended) is None else _moment(joined(path, ended), bucket[ended])
    if max(start, end - timedelta(microseconds=1)).date() != start.date():
        said = f"lies in more than one day of UTC, from {start.isoformat()} to {end.isoformat()}"
        raise ValidationFailed.at(path, said, "export by days, or by hours")
    return start.date().isoformat()


class _Row(NamedTuple):
    """One row of an export, with its place."""

    path: str
    fields: Fields
    form: Form

    @classmethod
    def of(cls, path: str, fields: Fields) -> _Row:
        for form in FORMS:
            if all(key in fields or _at(fields, key) is not None for key in form.signs):
                return cls(path, fields, form)
        there: dict[str, str] = {}
        for key in fields:  # of two columns with the same meaning, the first that is listed holds
            there.setdefault(_WORDS.sub("_", key.lower()).strip("_"), key)
        day, model, requests, given, made, cached, cost = (
            tuple(there[word] for word in words if word in there)[:1] for words in ALIASES.values()
        )
        if not day or not (requests or given or made or cost):
            raise ValidationFailed.at(path, "is no row of a usage export of a known form", _EXPECTED)
        return cls(path, fields, Form("table", None, (), day, model, requests, given, made, cached, cost))

    def line(self) -> ExportLine:
        form, model, nanos = self.form, "", None
        day = next(iter(self._told(form.day)), (self._place(form.day[0]), _at(self.fields, form.day[0])))
        date = _moment(*day).date().isoformat()
        for path, value in self._told(form.model):
            if not isinstance(value, str):
                raise _refused(path, "must be a name", value)
            if name := value.strip():
                model = name.partition(", ")[0] if form.model == ("line_item",) else name
                break
        requests = 1 if form.each_is_one else self._tokens(form.requests)
        given, made, cached = map(self._tokens, (form.input_tokens, form.output_tokens, form.cached_tokens))
        for path, currency in self._told(form.currency):
            if str(currency).upper() != "USD":
                raise ValidationFailed.at(path, f"must be USD, got {shown(currency)}", "the ledger is in dollars")
        for path, value in self._told(form.cost)[:1]:
            number, parts = _number(path, value)
            nanos = (2 * number * 10**form.decimals + parts) // (2 * parts)  # rounded
            if abs(nanos) > MOST_USD * NANOS_PER_USD:
                raise _refused(path, f"must be an amount of at most {MOST_USD} dollars", value)
        return ExportLine(
            day=date,
            model=model,
            requests=requests,
            input_tokens=given,
            output_tokens=made,
            cached_tokens=cached,
            cost_nanos=nanos,
        )

    def _told(self, keys: Sequence[str]) -> list[tuple[str, Any]]:
        found = ((self._place(key), _at(self.fields, key)) for key in keys)
        return [(place, value) for place, value in found if value not in (None, "")]

    def _place(self, key: str) -> str:
        path = self.path
        for part in [key] if key in self.fields else key.split("."):
            path = joined(path, part)
        return path

    def _tokens(self, keys: Sequence[str]) -> int | None:
        """The sum over all keys; None if none has a value."""
        counts = []
        for path, value in self._told(keys):
            number, parts = _number(path, value)
            if parts != 1 or not 0 <= number <= MOST_TOKENS:
                raise _refused(path, f"must be a whole number from 0 to {MOST_TOKENS}", value)
            counts.append(number)
        return sum(counts) if counts else None


def _added(line: ExportLine, more: ExportLine) -> ExportLine:
    amounts: dict[str, int | None] = {}
    for name in ExportLine.__struct_fields__[2:]:
        told = [each for each in (getattr(line, name), getattr(more, name)) if each is not None]
        amounts[name] = sum(told) if told else None
    return ExportLine(day=line.day, model=line.model, **amounts)


def _number(path: str, value: object) -> tuple[int, int]:
    """The number as a fraction. No arithmetic of ``Decimal``: that obeys the application's context."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 10**18
    text = repr(value) if is_number else value
    found = _NUMBER.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise _refused(path, "must be a number", value, "write it plainly, as 1234.56")
    return Decimal(found[1]).as_integer_ratio()


def _moment(path: str, value: object) -> datetime:
    """The moment of a text or of Unix seconds; without a time zone it is UTC."""
    text = repr(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(value, float) and value.is_integer() and abs(value) < MOST_TOKENS:
        text = repr(int(value))
    if isinstance(text, str) and _UNIX.fullmatch(text.strip()):
        return datetime.fromtimestamp(int(text), UTC)
    if not isinstance(text, str) or not is_date(text.strip()):
        raise _refused(path, "must be a day", value, "write YYYY-MM-DD")
    at = datetime.fromisoformat(text.strip())
    try:
        return at.replace(tzinfo=UTC) if at.utcoffset() is None else at.astimezone(UTC)
    except OverflowError:
        raise ValidationFailed.at(path, f"must be a day, got {shown(value)}", "take a year from 1 to 9999") from None


def _at(fields: Fields, key: str) -> Any:
    if key in fields:
        return fields[key]
    value: Any = fields
    for part in key.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def _object(path: str, thing: object) -> dict[str, Any]:
    if not isinstance(thing, dict):
        raise _refused(path, "must be an object", thing)
    return thing


def _refused(
    path: str, problem: str, value: object, hint: str = "give the file as it was exported"
) -> ValidationFailed:
    return ValidationFailed.at(path, f"{problem}, got {in_json(shown(value))}", hint)
