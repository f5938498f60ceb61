"""What providers say was used: every form by hand, and what is none."""

from __future__ import annotations

from decimal import ROUND_UP, Context, Inexact, localcontext
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright import ValidationFailed
from routewright.contrib.usage_exports import ALIASES, ExportLine, UsageExport, checked_export, read_export

DAY, NEXT = 1_795_132_800, 1_795_219_200  # of 2026-11-20, and the day after


def bucket(*results: dict[str, Any], start: object = DAY, end: object = NEXT) -> dict[str, Any]:
    return {"object": "bucket", "start_time": start, "end_time": end, "results": [*results]}


def page(*data: object, **more: Any) -> dict[str, Any]:
    return {"object": "page", "data": [*data], "has_more": False, "next_page": None, **more}


def usage(model: str | None = "gpt-4.1", **given: Any) -> dict[str, Any]:
    told = {"input_tokens": 10, "output_tokens": 4, "input_cached_tokens": 2, "num_model_requests": 1}
    return {"object": "organization.usage.completions.result", **told, "model": model, **given}


def cost(value: Any, line_item: Any = "gpt-4.1, input", currency: Any = "usd") -> dict[str, Any]:
    return {"object": "x", "amount": {"value": value, "currency": currency}, "line_item": line_item}


def row(**given: Any) -> dict[str, Any]:
    return {"date": "2026-11-20", "model": "gpt-4.1", "cost_usd": 1, **given}


# What is read


def test_rows_of_one_day_and_model_are_one_line() -> None:
    found = read_export(page(bucket(usage(), usage("o3"), usage(input_tokens=5, output_tokens=1)), bucket(usage())))
    assert [(line.model, line.requests, line.input_tokens, line.output_tokens) for line in found.lines] == [
        ("gpt-4.1", 3, 25, 9), ("o3", 1, 10, 4)
    ]  # fmt: skip


def test_empty_buckets_count_as_days() -> None:
    found = read_export(page(bucket(start=NEXT, end=NEXT + 86_400), bucket(usage())))
    assert (found.first, found.last, found.provider) == ("2026-11-20", "2026-11-21", "openai")
    alone = read_export(page({"starting_at": "2026-11-20T00:00:00Z", "results": []}))
    assert (alone.lines, alone.provider, alone.first) == ((), "anthropic", "2026-11-20")


def test_hourly_buckets_belong_to_their_day() -> None:
    hours = [bucket(usage(), start=DAY + 3600 * each, end=DAY + 3600 * (each + 1)) for each in range(24)]
    (line,) = read_export(page(*hours)).lines
    assert (line.day, line.requests) == ("2026-11-20", 24)


def test_usage_and_costs_may_be_in_one_file() -> None:
    found = read_export([page(bucket(usage())), page(bucket(cost(0.2), cost("0.05", "gpt-4.1, output")))])
    (line,) = found.lines
    assert (line.input_tokens, line.cost_nanos) == (10, 250_000_000)


def test_ungrouped_usage_has_no_model() -> None:
    found = read_export([page(bucket(usage(None))), page(bucket(cost(0.2, None)))])
    (line,) = found.lines
    assert (line.model, line.requests, line.cost_nanos) == ("", 1, 200_000_000)


def test_a_page_with_more_to_come_is_partial() -> None:
    assert read_export(page(bucket(usage()), has_more=True)).partial
    assert not read_export([page(bucket(usage()), has_more=True), page(bucket(usage()))]).partial
    assert not read_export([row()]).partial


@pytest.mark.parametrize("content", [[row()], {"data": [row()]}, [{"data": [row()]}, {"data": [row()]}]])
def test_a_table_may_be_an_array_or_pages(content: Any) -> None:
    found = read_export(content)
    assert (found.shape, found.provider) == ("table", None)
    assert sum(line.cost_nanos or 0 for line in found.lines) in (10**9, 2 * 10**9)


@pytest.mark.parametrize(("what", "word"), [(what, word) for what, words in ALIASES.items() for word in words])
@pytest.mark.parametrize("spell", [str.lower, str.upper, lambda word: f" {word.replace('_', ' ').title()} "])
def test_a_column_may_have_any_of_its_names(what: str, word: str, spell: Any) -> None:
    least = {"date": "2026-11-20", "requests": 1}
    taken = {"day": "date", "requests": "requests"}.get(what)
    value: Any = {"day": "2026-11-21", "model": "x"}.get(what, 7)
    (line,) = read_export([{key: each for key, each in least.items() if key != taken} | {spell(word): value}]).lines
    told = {"day": line.day, "model": line.model, "cost": line.cost_nanos}
    assert told.get(what, getattr(line, what, None)) == (7 * 10**9 if what == "cost" else value)


def test_the_first_of_two_columns_with_one_meaning_applies() -> None:
    (line,) = read_export([row(cost=5, amount_usd=6)]).lines
    assert line.cost_nanos == 10**9


@pytest.mark.parametrize(
    ("told", "day"),
    [
        ("2026-11-20", "2026-11-20"),
        (" 2026-11-20 ", "2026-11-20"),
        ("2026-11-20T23:59:59.999Z", "2026-11-20"),
        ("2026-11-20 23:59:59.999", "2026-11-20"),
        ("2026-11-21T00:30:00+01:00", "2026-11-20"),
        ("2026-11-20T23:30:00-01:00", "2026-11-21"),
        (DAY, "2026-11-20"),
        (DAY + 86_399, "2026-11-20"),
        (float(NEXT), "2026-11-21"),
        (str(NEXT), "2026-11-21"),
    ],
)
def test_times_belong_to_their_day_in_utc(told: Any, day: str) -> None:
    (line,) = read_export([row(date=told)]).lines
    assert line.day == day


@pytest.mark.parametrize(
    ("told", "nanos"),
    [
        (0.1, 100_000_000),
        ("0.1", 100_000_000),
        ("$0.45", 450_000_000),
        (1e-9, 1),
        ("4e-10", 0),
        ("5e-10", 1),
        (6e-4, 600_000),
        ("1E+2", 100 * 10**9),
        (-0.25, -250_000_000),
        (0, 0),
        ("0.123456789123456789", 123_456_789),
        (999_999_999, 999_999_999 * 10**9),
        ("", None),
        (None, None),
    ],
)
def test_amounts_are_read_to_the_nano_dollar(told: Any, nanos: int | None) -> None:
    (line,) = read_export([row(cost_usd=told, requests=1)]).lines
    assert line.cost_nanos == nanos


def test_anthropic_bills_in_cents() -> None:
    bill = {"amount": "123.45", "currency": "USD", "model": "claude-haiku-4-5"}
    (line,) = read_export({"data": [{"starting_at": "2026-11-20T00:00:00Z", "results": [bill]}]}).lines
    assert line.cost_nanos == 1_234_500_000


@given(st.decimals(-(10**6), 10**6, places=9))
def test_the_applications_decimal_context_rounds_no_amount(amount: Any) -> None:
    with localcontext(Context(prec=3, rounding=ROUND_UP, traps=[Inexact])):
        (line,) = read_export([row(cost_usd=format(amount, "f"))]).lines
    assert line.cost_nanos == int(amount.scaleb(9))


@given(st.floats(0, 1e6))
def test_a_cost_in_json_is_within_half_a_nano_dollar(dollars: float) -> None:
    (line,) = read_export([row(cost_usd=dollars)]).lines
    assert line.cost_nanos is not None
    assert abs(line.cost_nanos - Fraction(repr(dollars)) * 10**9) <= Fraction(1, 2)


# What is refused


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({}, "is no usage export of a known form; give a page of OpenAI's or Anthropic's usage or cost API"),
        (7, "is no usage export of a known form, got 7"),
        ("text", "is no usage export of a known form"),
        (None, "is no usage export of a known form, got None"),
        ({"data": {}}, "is no usage export of a known form"),
        ([], "holds no usage; export a time in which there was some"),
        ({"data": []}, "holds no usage"),
        ([7], "[0]: must be an object, got 7"),
        ([{"error": {}}], "[0]: is no row of a usage export of a known form"),
        ([{"date": "2026-11-20"}], "[0]: is no row of a usage export of a known form"),
        ([{"model": "x", "cost": 1}], "[0]: is no row of a usage export of a known form"),
        ([{"date": "2026-11-20", "cached_tokens": 1}], "[0]: is no row of a usage export"),
        (page(bucket(7)), "data[0].results[0]: must be an object, got 7"),  # type: ignore[arg-type]
        (page(bucket({"model": "x"})), "data[0].results[0]: is no row of a usage export of a known form"),
        (page(bucket(start="soon")), "data[0].start_time: must be a day, got 'soon'; write YYYY-MM-DD"),
        (page(bucket(start=None)), "data[0].start_time: must be a day, got null"),
        (page(bucket(usage(), end=NEXT + 1)), "data[0]: lies in more than one day of UTC, from 2026-11-20T00:00:00"),
        (page(bucket(usage(), start=DAY - 1, end=NEXT - 1)), "export by days, or by hours"),
        (page(bucket(usage(input_tokens=-1))), "data[0].results[0].input_tokens: must be a whole number from 0 to"),
        (page(bucket(usage(input_tokens=1.5))), "input_tokens: must be a whole number from 0 to"),
        (page(bucket(usage(input_tokens=10**16))), "input_tokens: must be a whole number from 0 to"),
        (page(bucket(usage(input_tokens=True))), "input_tokens: must be a number, got true; write it plainly"),
        (page(bucket(usage(input_tokens=[]))), "input_tokens: must be a number, got an array"),
        (page(bucket(usage(7))), "data[0].results[0].model: must be a name, got 7"),  # type: ignore[arg-type]
        (page(bucket(cost(1, currency="eur"))), "must be USD, got 'eur'; the ledger is in dollars"),
        (page(bucket(cost("1,5"))), "must be a number, got '1,5'; write it plainly, as 1234.56"),
        (page(bucket(cost(1e10))), "must be an amount of at most 1000000000 dollars, got 10000000000"),
        (page(bucket(cost(10**400))), "data[0].results[0].amount.value: must be a number, got a huge number"),
        ([row(cost_usd="1e99")], "must be an amount of at most"),
        ([row(cost_usd="1e-9999")], "must be a number, got '1e-9999'"),
        ([row(cost_usd="nan")], "must be a number, got 'nan'"),
        ([row(cost_usd="1" * 5_000)], "must be a number, got '1111"),
        ([row(date="20.11.2026")], "[0].date: must be a day, got '20.11.2026'; write YYYY-MM-DD"),
        ([row(date="")], "[0].date: must be a day, got ''"),
        ([row(date=True)], "[0].date: must be a day, got true"),
        ([row(date=20261120)], "[0].date: must be a day, got 20261120"),
        ([row(date=1e300)], "[0].date: must be a day"),
        ([row(date="0001-01-01T00:00:00+10:00")], "take a year from 1 to 9999"),
        ([row(), usage() | {"start_time": DAY}], "holds rows of several forms: openai and table; reconcile them one"),
        ([row(), {"model": "x"}], "[1]: is no row of a usage export of a known form"),
    ],
)  # fmt: skip
def test_an_invalid_export_is_refused_with_its_path(content: object, said: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        read_export(content)
    assert said in str(refused.value)


# Made by hand


def test_an_export_can_be_built_in_code() -> None:
    line = ExportLine(day="2026-11-20", model="gpt-4.1", cost_nanos=1)
    export = UsageExport(first="2026-11-01", last="2026-11-30", lines=(line,), provider="openai")
    assert checked_export(export) == export


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"first": "1.11.2026"}, "export.first: must be a day, got '1.11.2026'"),
        ({"last": ""}, "export.last: must be a day"),
        ({"lines": (ExportLine(day="x"),)}, r"export.lines\[0\].day: must be a day, got 'x'"),
        ({"lines": (ExportLine(day="2026-11-20", requests="many"),)}, r"export.lines\[0\].requests: must be"),  # type: ignore[arg-type]
        ({"lines": 7}, "export.lines: must be"),
    ],
)
def test_an_invalid_export_built_in_code_is_refused(given: dict[str, Any], said: str) -> None:
    facts: dict[str, Any] = {"first": "2026-11-01", "last": "2026-11-30", "lines": ()}
    with pytest.raises(ValidationFailed, match=said):
        checked_export(UsageExport(**facts | given))


# Anything

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_KEYS = (
    "data results start_time end_time starting_at ending_at model line_item amount amount.value value currency usage "
    "input_tokens output_tokens uncached_input_tokens cache_creation num_model_requests date cost_usd requests "
    "usage_date_utc usage_input_tokens_no_cache token_type model_permaslug tokens_prompt prompt_tokens has_more"
).split()
_LIKELY = st.recursive(
    _JSON | st.sampled_from(["2026-11-20", DAY, NEXT, "usd", "0.5", 3, "gpt-4.1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=8),
    max_leaves=20,
)


@given(_JSON | _LIKELY)
def test_any_content_is_read_or_refused(content: object) -> None:
    try:
        found = read_export(content)
    except ValidationFailed:
        return
    assert checked_export(found) == found
    assert found.first <= found.last
