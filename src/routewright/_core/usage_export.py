"""Reads what providers say was used: pages of their usage and cost APIs, and tables with a row a day, or a call.

Each row is told by its keys for one of the ``FORMS``, which say where in it stands what. Nothing is guessed: what no
row of a known form can be is refused with its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple, NoReturn

from routewright.errors import Problem, ValidationFailed
from routewright.wire import ExportLine, ExportShape, UsageExport

from .money import NANOS_PER_USD
from .request.json_scan import joined
from .request.problems import shown
from .request.read import rebuilt
from .request.rules import is_date, is_day

MOST_TOKENS = 10**15
MOST_USD = 10**9
_OF_DOLLARS, _OF_CENTS = 9, 7
"""How many decimals there are to nano-dollars."""
_NUMBER = re.compile(r"\$?(-?\d{1,18}(?:\.\d{1,40})?(?:[eE][+-]?\d{1,3})?)")
_UNIX = re.compile(r"\d{9,10}")
_EXPECTED = (
    "give a page of OpenAI's or Anthropic's usage or cost API, Anthropic's or OpenRouter's CSV, "
    "or a table with the columns date, model, requests, input_tokens, output_tokens, cached_tokens, cost_usd"
)

Fields = Mapping[str, Any]


class Form(NamedTuple):
    """Where in a row stands what: keys, dotted where they lie within each other. Amounts of several are added up."""

    shape: ExportShape
    provider: str | None
    signs: tuple[str, ...]
    """Keys that a row of this form has, and no row of one further below."""
    day: tuple[str, ...]
    """The first of them that says something holds; so with ``model``."""
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
"""The forms that are known, as published in 2026."""

ALIASES: dict[str, tuple[str, ...]] = {
    "day": ("date", "day", "usage_date", "date_utc", "start_date", "start_time", "timestamp", "created_at"),
    "model": ("model", "model_id", "model_name", "model_version"),
    "requests": ("requests", "request_count", "num_requests", "calls"),
    "input_tokens": ("input_tokens", "prompt_tokens", "tokens_in", "tokens_prompt"),
    "output_tokens": ("output_tokens", "completion_tokens", "tokens_out", "tokens_completion"),
    "cached_tokens": ("cached_tokens", "cached_input_tokens", "input_cached_tokens", "tokens_cached"),
    "cost": ("cost_usd", "cost", "total_cost", "cost_total", "amount_usd", "spend_usd", "spend"),
}
"""What tables call things, in lower case, with underscores for whatever stands between words."""
_WORDS = re.compile(r"[^a-z0-9]+")


class Row(NamedTuple):
    """One row of an export, wherever it stood."""

    path: str
    fields: Fields
    form: Form


class Found(NamedTuple):
    """Rows, and the days of time buckets, with or without rows."""

    rows: list[Row]
    days: list[str]
    whose: set[tuple[ExportShape, str | None]]
    partial: bool


def read_export(content: object) -> UsageExport:
    """Read an export: a page of an API, or several in an array; or an array of rows. Raises ``ValidationFailed``."""
    found = Found([], [], set(), _is_partial(content))
    for path, thing in _things(content):
        _take(path, thing, found)
    lines: dict[tuple[str, str], ExportLine] = {}
    for row in found.rows:
        line = _line(row)
        found.days.append(line.day)
        there = lines.get((line.day, line.model))
        lines[line.day, line.model] = line if there is None else _added(there, line)
    if not found.days:
        _refuse("", "holds no usage", "export a time in which there was some")
    if len(found.whose) > 1:
        names = " and ".join(sorted(shape for shape, _ in found.whose))
        _refuse("", f"holds rows of several forms: {names}", "reconcile them one by one")
    ((shape, provider),) = found.whose
    return UsageExport(
        first=min(found.days),
        last=max(found.days),
        lines=tuple(line for _, line in sorted(lines.items())),
        shape=shape,
        provider=provider,
        partial=found.partial,
    )


def checked_export(given: object) -> UsageExport:
    """An export that was made by hand, if it can be one. Raises ``ValidationFailed``."""
    export = rebuilt(given, UsageExport, "export")
    days = {"first": export.first, "last": export.last}
    days |= {f"lines[{place}].day": line.day for place, line in enumerate(export.lines)}
    for path, day in days.items():
        if not is_day(day):
            _refuse(f"export.{path}", f"must be a day, got {shown(day)}", "write YYYY-MM-DD")
    return export


def _things(content: object) -> Iterator[tuple[str, object]]:
    """Buckets and rows, with their places."""
    pages = [("", content)] if isinstance(content, dict) else _items("", content)
    for path, page in pages:
        if isinstance(page, dict) and isinstance(page.get("data"), list):
            yield from _items(joined(path, "data"), page["data"])
        elif isinstance(content, dict):
            _refuse(path, "is no usage export of a known form", _EXPECTED)
        else:
            yield path, page


def _items(path: str, things: object) -> list[tuple[str, object]]:
    if not isinstance(things, list):
        _refuse(path, f"is no usage export of a known form, got {shown(things)}", _EXPECTED)
    return [(joined(path, place), thing) for place, thing in enumerate(things)]


def _take(path: str, thing: object, found: Found) -> None:
    """Add what is there: a row, or those of a time bucket."""
    if not isinstance(thing, dict):
        _refuse(path, f"must be an object, got {shown(thing)}", "")
    if not isinstance(thing.get("results"), list):
        found.rows.append(_row(path, thing))
        found.whose.add((found.rows[-1].form.shape, found.rows[-1].form.provider))
        return
    found.days.append(_bucket_day(path, thing))
    found.whose.add(("openai", "openai") if "start_time" in thing else ("anthropic", "anthropic"))
    when = {key: thing[key] for key in ("start_time", "starting_at") if key in thing}
    for inner, result in _items(joined(path, "results"), thing["results"]):
        if not isinstance(result, dict):
            _refuse(inner, f"must be an object, got {shown(result)}", "")
        found.rows.append(_row(inner, {**result, **when}))
        found.whose.add((found.rows[-1].form.shape, found.rows[-1].form.provider))


def _bucket_day(path: str, bucket: Fields) -> str:
    """The day that a time bucket lies in."""
    began, ended = (
        next((key for key in keys if bucket.get(key) is not None), keys[0])
        for keys in (("start_time", "starting_at"), ("end_time", "ending_at"))
    )
    start = _moment(joined(path, began), bucket.get(began))
    end = start if bucket.get(ended) is None else _moment(joined(path, ended), bucket[ended])
    last = max(start, end - timedelta(microseconds=1))
    if last.date() != start.date():
        said = f"lies in more than one day of UTC, from {start.isoformat()} to {end.isoformat()}"
        _refuse(path, said, "export by days, or by hours")
    return start.date().isoformat()


def _row(path: str, fields: Fields) -> Row:
    form = next((form for form in FORMS if all(_has(fields, sign) for sign in form.signs)), None)
    if form is not None:
        return Row(path, fields, form)
    form = _table_form(fields)
    if not form.day or not (form.requests or form.input_tokens or form.output_tokens or form.cost):
        _refuse(path, "is no row of a usage export of a known form", _EXPECTED)
    return Row(path, fields, form)


def _table_form(fields: Fields) -> Form:
    """That of a row whose keys are words of common use. Of two that say the same, the first that is listed holds."""
    there: dict[str, str] = {}
    for key in fields:
        there.setdefault(_WORDS.sub("_", key.lower()).strip("_"), key)
    day, model, requests, given, made, cached, cost = (
        tuple(there[word] for word in words if word in there)[:1] for words in ALIASES.values()
    )
    return Form("table", None, (), day, model, requests, given, made, cached, cost)


def _line(row: Row) -> ExportLine:
    form = row.form
    requests = 1 if form.each_is_one else _tokens(row, form.requests)
    return ExportLine(
        day=_day(row),
        model=_model(row),
        requests=requests,
        input_tokens=_tokens(row, form.input_tokens),
        output_tokens=_tokens(row, form.output_tokens),
        cached_tokens=_tokens(row, form.cached_tokens),
        cost_nanos=_cost(row),
    )


def _added(line: ExportLine, more: ExportLine) -> ExportLine:
    """Both lines in one, where what only one says stands."""

    def together(name: str) -> int | None:
        told = [each for each in (getattr(line, name), getattr(more, name)) if each is not None]
        return sum(told) if told else None

    amounts = {name: together(name) for name in ExportLine.__struct_fields__[2:]}
    return ExportLine(day=line.day, model=line.model, **amounts)


def _day(row: Row) -> str:
    key = next((key for key in row.form.day if _at(row.fields, key) not in (None, "")), row.form.day[0])
    return _moment(_place(row, key), _at(row.fields, key)).date().isoformat()


def _model(row: Row) -> str:
    for key in row.form.model:
        value = _at(row.fields, key)
        if isinstance(value, str) and value.strip():
            name = value.strip()
            return name.partition(", ")[0] if key == "line_item" else name
        if value is not None and not isinstance(value, str):
            _refuse(_place(row, key), f"must be a name, got {shown(value)}", "")
    return ""


def _tokens(row: Row, keys: Sequence[str]) -> int | None:
    """How many, over all the keys that say it; None where none does."""
    told = [(_place(row, key), _at(row.fields, key)) for key in keys]
    counts = [_count(path, value) for path, value in told if value not in (None, "")]
    return sum(counts) if counts else None


def _count(path: str, value: object) -> int:
    number, parts = _number(path, value)
    if parts != 1 or not 0 <= number <= MOST_TOKENS:
        _refuse(path, f"must be a whole number from 0 to {MOST_TOKENS}, got {shown(value)}", "")
    return number


def _cost(row: Row) -> int | None:
    for key in row.form.currency:
        currency = _at(row.fields, key)
        if currency not in (None, "") and str(currency).upper() != "USD":
            _refuse(_place(row, key), f"must be USD, got {shown(currency)}", "the ledger is in dollars")
    for key in row.form.cost:
        value = _at(row.fields, key)
        if value not in (None, ""):
            return _nanos(_place(row, key), value, row.form.decimals)
    return None


def _nanos(path: str, value: object, decimals: int) -> int:
    """An amount, rounded to nano-dollars."""
    number, parts = _number(path, value)
    nanos: int = (2 * number * 10**decimals + parts) // (2 * parts)
    if abs(nanos) > MOST_USD * NANOS_PER_USD:
        _refuse(path, f"must be an amount of at most {MOST_USD} dollars, got {shown(value)}", "")
    return nanos


def _number(path: str, value: object) -> tuple[int, int]:
    """The fraction that was written. No arithmetic of ``Decimal``: that obeys the application's context."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 10**18
    text = repr(value) if is_number else value
    found = _NUMBER.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        _refuse(path, f"must be a number, got {shown(value)}", "write it plainly, as 1234.56")
    return Decimal(found[1]).as_integer_ratio()


def _moment(path: str, value: object) -> datetime:
    """The moment that a text or a number of Unix seconds means; without a time zone it is in UTC."""
    text = repr(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(value, float) and value.is_integer() and abs(value) < MOST_TOKENS:
        text = repr(int(value))
    if isinstance(text, str) and _UNIX.fullmatch(text.strip()):
        return datetime.fromtimestamp(int(text), UTC)
    if not isinstance(text, str) or not is_date(text.strip()):
        _refuse(path, f"must be a day, got {shown(value)}", "write YYYY-MM-DD")
    at = datetime.fromisoformat(text.strip())
    try:
        return at.replace(tzinfo=UTC) if at.utcoffset() is None else at.astimezone(UTC)
    except OverflowError:
        _refuse(path, f"must be a day, got {shown(value)}", "take a year from 1 to 9999")


def _is_partial(content: object) -> bool:
    pages = content if isinstance(content, list) else [content]
    last = pages[-1] if pages else None
    return isinstance(last, dict) and last.get("has_more") is True


def _place(row: Row, key: str) -> str:
    path = row.path
    for part in [key] if key in row.fields else key.split("."):
        path = joined(path, part)
    return path


def _at(fields: Fields, key: str) -> Any:
    if key in fields:
        return fields[key]
    value: Any = fields
    for part in key.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def _has(fields: Fields, key: str) -> bool:
    return key in fields or _at(fields, key) is not None


def _refuse(path: str, problem: str, hint: str) -> NoReturn:
    raise ValidationFailed.of(Problem(path, problem, hint))
