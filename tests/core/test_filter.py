"""The trace filter: its grammar, what each term selects, and helpful errors for any invalid text."""

from __future__ import annotations

import json
import random
import re
import statistics
import time
from contextlib import suppress
from operator import ge, gt, le, lt
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright._core.trace.filter import (
    COMPARE,
    FLAGS,
    KEYS,
    MAX_CHARS,
    MAX_TERMS,
    NUMBERS,
    TEXTS,
    matches,
    parse_filter,
    selects,
    text_of,
)
from routewright.errors import Problem, ValidationFailed
from routewright.wire import Environment, FilterOp, Selection, Term, TraceItem, TraceKind, TraceStatus
from routewright.wire.ids import policy_id
from tests.tables import table

from .trace_fields import USUAL

OPS: tuple[FilterOp, ...] = get_args(FilterOp)
EQUALITY: tuple[FilterOp, ...] = ("=", "!=")
ORDER = {">=": ge, "<=": le, ">": gt, "<": lt}
OPEN = [key for key, known in TEXTS.items() if not known]
CLOSED = [key for key, known in TEXTS.items() if known]


def item(**fields: Any) -> TraceItem:
    return TraceItem(**(USUAL | fields))


def only(text: str) -> Term:
    (term,) = parse_filter(text)
    return term


def keeps(text: str, trace: TraceItem) -> bool:
    return matches(trace, parse_filter(text))


def problem_of(text: str) -> Problem:
    with pytest.raises(ValidationFailed) as caught:
        parse_filter(text)
    (problem,) = caught.value.problems
    return problem


# The grammar


def test_an_empty_filter_selects_all() -> None:
    assert parse_filter("") == ()
    assert matches(item(), ())


def test_the_keys_are_those_of_the_contract() -> None:
    assert set(KEYS) == set(
        "status kind model provider policy_id goal strategy environment cache_hit fallback_used error cost_usd "
        "duration_ms compromised".split()
    )
    assert set(COMPARE) == set(OPS)


@table(
    "written",
    [
        *"1_000 +1 .5 1. 01 0x10 nan NaN inf Infinity -inf 1e400 -1e400 1e --1 ten $1 1ms".split(),
        *("\u0663", "1\u00b2", "1e\u0663", '""', '" "', '"1 "'),
    ],
)
@table("asked", ["cost_usd>=", "duration_ms=", "cost_usd!=", "metadata.n<"])
def test_an_invalid_number_is_refused_with_the_value(asked: str, written: str) -> None:
    problem = problem_of(asked + written)
    assert problem.path == "filter[0]"
    assert repr(written.strip('"')) in problem.problem
    assert "write a number" in problem.hint


@table("op", ORDER)
@table("key", [*TEXTS, *FLAGS])
def test_only_numbers_are_compared(key: str, op: str) -> None:
    problem = problem_of(f"{key}{op}1")
    assert problem.path == "filter[0]"
    assert problem.problem == f"{key} cannot be compared with {op}"
    assert all(name in problem.hint for name in (*NUMBERS, "metadata"))


@table(
    ("written", "value"),
    [
        ('"search, EU"', "search, EU"),
        ('"!=<=>=<>"', "!=<=>=<>"),
        (r'"say \"hi\""', 'say "hi"'),
        (r'"\\"', "\\"),
        (r'"\\\""', '\\"'),
        (r'"\","', '",'),
        (r'",\""', ',"'),
        ('"\n\0\u2028"', "\n\0\u2028"),
        (' \t"a, b"\n', "a, b"),
        ("\u00a0plain\u00a0", "plain"),
        ('say "hi"', 'say "hi"'),
        ("a\\b", "a\\b"),
    ],
)
def test_a_value_may_be_quoted(written: str, value: str) -> None:
    assert only(f"metadata.team={written}") == Term("metadata.team", "=", value)
    assert parse_filter(f"kind=agent,model!={written},cache_hit=true") == (
        Term("kind", "=", "agent"),
        Term("model", "!=", value),
        Term("cache_hit", "=", True),
    )


@table(
    ("text", "place", "words", "hint"),
    [
        ("stats=failed", 0, "unknown key 'stats'", "did you mean 'status'?"),
        ("kind=agent,cost>1", 1, "unknown key 'cost'", "duration_ms and metadata.<key>"),
        ("metadata.=search", 0, "unknown key 'metadata.'", "metadata.<key>"),
        ("=failed", 0, "unknown key ''", "the keys are status, kind,"),
        ("a\nb=1", 0, r"unknown key 'a\nb'", "the keys are"),
        ("x" * 3_000 + "=1", 0, "unknown key '" + "x" * 60 + "'...", "the keys are"),
        ("status=done", 0, "status is 'done'", "'completed', 'partial', 'failed'"),
        ("kind=agent,status=", 1, "'status' has no value", 'write ""'),
        ("environment=live", 0, "environment is 'live'", "'production', 'sandbox'"),
        ("metadata.team==search", 0, "the value of 'metadata.team' is '=search'", "put the value in quotes"),
        ("metadata.n=<5", 0, "the value of 'metadata.n' is '<5'", "put the value in quotes"),
        ('status=""', 0, "status is ''", "'running'"),
        ("status", 0, "'status' is not a term", "operators are = != >= <= > <"),
        ("status: failed", 0, "'status: failed' is not a term", "write key=value"),
        ('"status"=failed', 0, "is not a term", "write key=value"),
        ("status=failed,", 1, "'' is not a term", "write key=value"),
        ("status=failed kind=agent", 0, "status is 'failed kind=agent'", "'failed'"),
        ('metadata.a="b', 0, "the quotes of '\"b' are not closed", r"write \" for a quote"),
        (r'metadata.a="b\"', 0, "not closed", r"write \" for a quote"),
        ('metadata.a="b"c', 0, "not closed", r"write \" for a quote"),
        ('kind=agent,metadata.a="b" "c"', 1, "not closed", r"write \" for a quote"),
    ],
)
def test_an_error_names_the_term_the_value_and_what_to_write(text: str, place: int, words: str, hint: str) -> None:
    problem = problem_of(text)
    assert problem.path == f"filter[{place}]"
    assert words in problem.problem
    assert hint in problem.hint


@table("given_", [None, 7, b"status=failed", ["status=failed"], {"status": "failed"}, True])
def test_a_filter_is_a_text(given_: Any) -> None:
    with pytest.raises(ValidationFailed, match="filter: must be a string, got"):
        parse_filter(given_)


def test_a_filter_has_at_most_4096_characters() -> None:
    longest = "model=" + "é" * (MAX_CHARS - 6)
    assert MAX_CHARS == 4_096
    assert only(longest).value == "é" * 4_090
    assert problem_of(longest + "é") == Problem("filter", "has 4097 characters", "take at most 4096")


def test_a_filter_has_at_most_32_terms() -> None:
    assert len(parse_filter(",".join(["model=a"] * MAX_TERMS))) == MAX_TERMS == 32
    assert problem_of(",".join(["model=a"] * 33)).problem == "has more than 32 terms"


@table("text", ["model=\ud800", 'metadata.\udfff="a"', '"\ud83d'])
def test_an_unpaired_surrogate_is_refused(text: str) -> None:
    problem = problem_of(text)
    assert problem.path == "filter"
    assert "surrogate" in problem.problem


# What a term keeps

FIELDS: dict[str, tuple[str, Any, str]] = {
    "status": ("status", "failed", "failed"),
    "kind": ("kind", "agent", "agent"),
    "model": ("selected_model", "openai/gpt-4.1", "openai/gpt-4.1"),
    "provider": ("selected_model", "openai/gpt-4.1", "openai"),
    "policy_id": ("policy_id", "pol_1", "pol_1"),
    "goal": ("goal", "quality", "quality"),
    "strategy": ("strategy", "quality-first", "quality-first"),
    "environment": ("environment", "sandbox", "sandbox"),
    "error": ("error", "router.upstream_failed", "router.upstream_failed"),
    "cache_hit": ("cache_hit", True, "true"),
    "fallback_used": ("fallback_used", True, "true"),
    "compromised": ("compromised", True, "true"),
    "cost_usd": ("cost_usd", 0.25, "0.25"),
    "duration_ms": ("duration_ms", 1_500.0, "1500"),
}
"""By key: a field of a trace, what it holds, and what one asks for."""


@table("key", KEYS)
def test_every_key_reads_its_field(key: str) -> None:
    field, held, asked = FIELDS[key]
    with_it, without = item(**{field: held}), item()
    assert (keeps(f"{key}={asked}", with_it), keeps(f"{key}={asked}", without)) == (True, False)
    assert (keeps(f"{key}!={asked}", with_it), keeps(f"{key}!={asked}", without)) == (False, True)
    assert key in {*TraceItem.__struct_fields__, "model", "provider"}


def test_a_policy_is_selected_by_its_id_or_by_the_name_that_the_id_comes_from() -> None:
    trace = item(policy_id=policy_id("support"))
    for value in ("support", policy_id("support")):
        assert (keeps(f"policy_id={value}", trace), keeps(f"policy_id!={value}", trace)) == (True, False)
        assert (keeps(f"policy_id={value}", item()), keeps(f"policy_id!={value}", item())) == (False, True)
    assert not keeps("policy_id=sales", trace)


NESTED: list[Any] = [None, [], ["x"], {}, {"x": "x"}]


@table(
    ("held", "asked"),
    [
        ("search, EU", '"search, EU"'),
        ("1.50", "1.50"),
        (True, "true"),
        (3, "3"),
        (3, "3e0"),
        (3.0, "3"),
        (1.5, "15e-1"),
        (0, "-0"),
        (1e-7, "1e-07"),
        (1e-7, "0.0000001"),
        (2**53 + 1, "9007199254740993"),
        (10**30, "1" + "0" * 30),
    ],
)
def test_metadata_scalars_equal_their_text_and_numbers_any_spelling(held: object, asked: str) -> None:
    assert keeps(f"metadata.a={asked}", item(metadata={"a": held}))
    assert not keeps(f"metadata.a!={asked}", item(metadata={"a": held}))


@table(
    ("held", "asked"),
    [("Search", "search"), ("1.50", "1.5"), (1, "true"), (True, "1"), (2**53 + 1, "9007199254740992"), (0, '""')],
)
def test_metadata_scalars_equal_nothing_else(held: object, asked: str) -> None:
    assert not keeps(f"metadata.a={asked}", item(metadata={"a": held}))
    assert keeps(f"metadata.a!={asked}", item(metadata={"a": held}))


@table("asked", ['""', "null", "None", "x", "[]", "{}", "['x']", '"[\\"x\\"]"'])
@table("metadata", [{}, *({"a": held} for held in NESTED), {"A": "x"}, {"b": {"a": "x"}}])
def test_missing_and_nested_metadata_equals_nothing(metadata: dict[str, Any], asked: str) -> None:
    assert not keeps(f"metadata.a={asked}", item(metadata=metadata))
    assert keeps(f"metadata.a!={asked}", item(metadata=metadata))


@table("held", [*NESTED, "5", "five", True, False, float("nan"), 10**400])
@table("op", ORDER)
def test_only_metadata_numbers_are_compared(held: object, op: str) -> None:
    assert not keeps(f"metadata.a{op}0", item(metadata={"a": held}))
    assert not keeps(f"metadata.b{op}0", item(metadata={"a": 0}))


FINITE = st.floats(allow_nan=False, allow_infinity=False)
EXACT = st.integers(-(2**53), 2**53)
NUMBER = EXACT | FINITE | st.sampled_from([0, 1, -1, 0.5, 1.5, -0.0, 1e16])


@given(NUMBER, NUMBER, st.sampled_from(sorted(ORDER)))
def test_numbers_are_compared_as_numbers(held: float, bound: float, op: str) -> None:
    expected = ORDER[op](float(held), float(bound))
    assert keeps(f"metadata.n{op}{bound!r}", item(metadata={"n": held})) == expected
    assert keeps(f"cost_usd{op}{bound!r}", item(cost_usd=float(held))) == expected
    assert keeps(f"duration_ms{op}{bound!r}", item(duration_ms=float(held))) == expected


@given(EXACT.filter(lambda n: abs(n) < 2**53) | FINITE.filter(lambda x: abs(x) < 2**53))
def test_a_metadata_number_is_found_in_any_spelling(held: float) -> None:
    trace = item(metadata={"n": held})
    ways = [repr(held), json.dumps(held), f"{held:.17e}", f"{held:.17g}", f"{held:.1100f}", repr(float(held))]
    assert [way for way in ways if not keeps(f"metadata.n={way}", trace)] == []


@table(
    ("value", "text"),
    [
        (True, "true"),
        (5.0, "5"),
        (-0.0, "0"),
        (1e16, "1" + "0" * 16),
        (10**16, "1" + "0" * 16),
        (1e-7, "1e-07"),
        (10**305, "1e+305"),
        ([5], None),
        (None, None),
    ],
)
def test_scalars_have_a_short_text_and_other_values_none(value: object, text: str | None) -> None:
    assert text_of(value) == text


SCALARS = NUMBER | st.booleans() | st.none() | st.text(max_size=4)
WORDS = st.sampled_from(["", "a", "true", "false", "1", "1.0", "1.50", "-0", "1e2", "a,b", 'say "hi"', "\\", "="])
TAGS = st.sampled_from(["team", "a b", "é", "x.y", "nested"])
METADATA = st.dictionaries(TAGS, SCALARS | WORDS | st.lists(SCALARS, max_size=2) | st.just({"team": "a"}), max_size=4)
MODELS = st.none() | st.sampled_from(["openai/gpt-4.1", "a/one", "one", ""])
ITEMS = st.builds(
    item,
    kind=st.sampled_from(get_args(TraceKind)),
    status=st.sampled_from(get_args(TraceStatus)),
    environment=st.sampled_from(get_args(Environment)),
    goal=st.sampled_from(TEXTS["goal"]),
    strategy=st.sampled_from(TEXTS["strategy"]),
    selected_model=MODELS,
    policy_id=st.none() | WORDS,
    error=st.none() | WORDS,
    cache_hit=st.booleans(),
    fallback_used=st.booleans(),
    compromised=st.booleans(),
    cost_usd=FINITE | st.sampled_from([0.0, 0.5]),
    duration_ms=FINITE | st.sampled_from([0.0, 0.5]),
    metadata=METADATA,
)
ANY_TEXT = WORDS | st.text(max_size=6)
ANY_KEY = st.text(st.characters(exclude_characters='=!<>,"', exclude_categories=["Cs"]), min_size=1, max_size=5).map(
    lambda key: key.rstrip() or "k"
)
TERMS = st.one_of(
    st.sampled_from(CLOSED).flatmap(
        lambda key: st.builds(Term, st.just(key), st.sampled_from(EQUALITY), st.sampled_from(TEXTS[key]))
    ),
    st.builds(Term, st.sampled_from(OPEN), st.sampled_from(EQUALITY), ANY_TEXT | MODELS.filter(bool)),
    st.builds(Term, st.sampled_from(FLAGS), st.sampled_from(EQUALITY), st.booleans()),
    st.builds(Term, st.sampled_from(NUMBERS), st.sampled_from(OPS), FINITE | st.sampled_from([0.0, 0.5])),
    st.builds(Term, (TAGS | ANY_KEY).map("metadata.{}".format), st.sampled_from(EQUALITY), ANY_TEXT),
    st.builds(Term, (TAGS | ANY_KEY).map("metadata.{}".format), st.sampled_from(sorted(ORDER)), FINITE),
)


@given(ITEMS, TERMS.filter(lambda term: term.op in EQUALITY))
def test_unequal_is_the_complement_of_equal(trace: TraceItem, term: Term) -> None:
    equal, unequal = (matches(trace, [Term(term.key, op, term.value)]) for op in EQUALITY)
    assert equal != unequal


@given(ITEMS, st.lists(TERMS, max_size=5))
def test_a_filter_is_the_intersection_of_its_terms(trace: TraceItem, terms: list[Term]) -> None:
    assert matches(trace, terms) == all(matches(trace, [term]) for term in terms)


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def written(term: Term, space: str, bare: bool) -> str:
    """A term as text; without quotes where it may do without and ``bare`` says so."""
    match term.value:
        case bool():
            value = "true" if term.value else "false"
        case float():
            value = repr(term.value)
        case str():
            may = bare and term.value == term.value.strip() and re.fullmatch('[^=<>!",][^",]*', term.value)
            value = term.value if may else quoted(term.value)
    return f"{space}{term.key}{space}{term.op}{space}{value}{space}"


@given(st.lists(st.tuples(TERMS, st.sampled_from(["", " ", "\t\n"]), st.booleans()), min_size=1, max_size=MAX_TERMS))
def test_written_terms_parse_back(parts: list[tuple[Term, str, bool]]) -> None:
    terms = tuple(term for term, _, _ in parts)
    assert parse_filter(",".join(written(*part) for part in parts)) == terms


@table(
    ("asked", "kept"),
    [
        (Selection(), True),
        (Selection(environment="sandbox"), False),
        (Selection(since="2026-11-22T09:30:00.000Z"), True),
        (Selection(since="2026-11-22T09:30:00.001Z"), False),
        (Selection(until="2026-11-22T09:30:00.001Z"), True),
        (Selection(until="2026-11-22T09:30:00.000Z"), False),
        (Selection(terms=(Term("status", "!=", "completed"),)), False),
    ],
)
def test_a_selection_filters_by_environment_and_half_open_time_range(asked: Selection, kept: bool) -> None:
    assert selects(asked, item()) == kept


# Whatever comes

PIECES = [
    *KEYS,
    *OPS,
    *(value for known in TEXTS.values() for value in known),
    *'"",,,=!<>\\\\ \n\t\r\0\x1c\u00a0\u2028\ufeff',
    *("metadata.", "metadata.team", "metadata.a b", "metadata.日本", "metadata", "Status", "==", "=>", "=!"),
    *("true", "false", "1", "0.5", "-1", "1e5", "1e999", "-0", "9" * 40, "9" * 400, "nan", "٣", "1_0"),
    *('\\"', '"a,b"', '"', '""', '"a=b"', '"\\\\"', "é", "日本", "😀", "\ud800", "\udc00", "e\u0301", "'", "%00", "$"),
]
VALID = [
    'status=failed,metadata.team="search, EU",cost_usd>=0.01',
    r'metadata.a="say \"hi\", \\ bye",model!=openai/gpt-4.1,duration_ms<1e3',
    'cache_hit=true,metadata.n>=5,metadata.n!=5.0,error="",kind=agent',
]
LOOKED_AT = [
    item(),
    item(selected_model="openai/gpt-4.1", error="x", metadata={"team": "a,b", "a b": 5, "日本": [1], "n": 10**400}),
    item(status="failed", cost_usd=float("inf"), metadata={"team": None, "a b": -0.0, "日本": True, "": 1e300}),
]


def some_filter(chance: random.Random) -> str:
    if chance.random() < 0.4:
        text = chance.choice(VALID)
        for _ in range(chance.randrange(4)):
            at = chance.randrange(len(text) + 1)
            text = text[:at] + chance.choice(PIECES) + text[at + chance.randrange(3) :]
    else:
        text = "".join(chance.choices(PIECES, k=chance.randrange(14)))
    return text * chance.randrange(2, 2_000) if chance.random() < 0.005 else text


def test_a_million_random_filters_give_valid_terms_or_one_line_errors(full: bool) -> None:
    chance, taken, refused = random.Random(20261122), 0, 0
    for _ in range(1_000_000 if full else 5_000):
        text = some_filter(chance)
        try:
            terms = parse_filter(text)
        except ValidationFailed as error:
            refused += 1
            said = str(error)
            assert re.match(r"filter(\[\d+\])?: ", said), ascii(text)
            assert said.isprintable(), ascii(text)
            assert len(said) < 500, ascii(text)
        else:
            taken += 1
            for trace in LOOKED_AT:
                assert matches(trace, terms) in (True, False), ascii(text)
    assert taken > refused / 10, "it is no test of the one without the other"


HARD = [
    'metadata.a="' + "a" * 5_000,
    'metadata.a="' + '\\"' * 5_000,
    'metadata.a="b"' + " " * 5_000,
    'metadata.a="' + '"",' * 2_000,
    "metadata.a=" + '"a' * 3_000,
    "," * 5_000,
    "cost_usd=0." + "9" * 5_000,
    ",".join(['metadata.a="' + "a" * 110 + '"'] * 40),
    ",".join(["metadata.a=" + '\\"' * 55] * 40),
]


def times_s(text: str) -> list[float]:
    took = []
    for _ in range(101):
        began = time.perf_counter()
        with suppress(ValidationFailed):
            parse_filter(text)
        took.append(time.perf_counter() - began)
    return took


@pytest.mark.full
@pytest.mark.parametrize("text", HARD, ids=range(len(HARD)))
def test_the_worst_filters_parse_in_linear_time(text: str, full: bool) -> None:
    if not full:
        pytest.skip("measures time; run with --full")
    assert statistics.median(times_s(text[:MAX_CHARS])) <= 0.001
    assert min(times_s(text[:MAX_CHARS])) < 12 * min(times_s(text[: MAX_CHARS // 8])) + 50e-6
