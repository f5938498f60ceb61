"""The strict JSON scan: what it refuses, the position it reports, and that it accepts everything else."""

from __future__ import annotations

import json
import math
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from routewright._core.request import read as request_module
from routewright.errors import ValidationFailed
from routewright.wire.json_scan import MAX_DEPTH, decode, find_flaw, finite, joined, nests_deeper, object_in, scan
from tests.tables import table


def refusal(body: bytes) -> ValidationFailed:
    with pytest.raises(ValidationFailed) as caught:
        scan(body)
    return caught.value


def code_of(body: bytes) -> str | None:
    try:
        scan(body)
    except ValidationFailed as error:
        return error.code
    return None


def nested(depth: int, inner: str = "") -> bytes:
    return ("[" * depth + inner + "]" * depth).encode()


@table(
    "body",
    [
        b'{"messages": [{"role": "user", "content": "Why: is the sky blue?"}]}',
        b' \t\r\n["", {}, [], null, true, -0.5e+3] ',
        b'[":", " :", "\\":", "\\\\", "{[", "\\u003a"]',
        b'{"a": {"a": 1}, "b": [{"a": 1}]}',
        '["\U0001f600", "\u4f60", "\\ud83d\\ude00", "\\\\ud800"]'.encode(),
        b"[1e400, " + b"9" * 10_000 + b"]",
    ],
)
def test_strict_json_passes(body: bytes) -> None:
    scan(body)


@table(
    ("body", "words"),
    [
        (b"", "the body is empty"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b'{"a": "\xff"}', "not UTF-8: invalid start byte at byte 7"),
        (b'{"a": 1', "at line 1, column 8"),
        (b"[" * 60, "at line 1, column 61"),
        (b'{"a": [1, NaN]}', "a[1]: NaN is not JSON"),
        (b"-Infinity", "-Infinity is not JSON"),
    ],
)
def test_invalid_json_is_refused_with_its_place(body: bytes, words: str) -> None:
    error = refusal(body)
    assert error.code == "invalid_json"
    assert words in str(error)


@table(
    ("body", "path", "words"),
    [
        (b'{"a": 1, "a": 1}', "", "has the key 'a' twice"),
        (b'{"a": 1, "\\u0061": 2}', "", "has the key 'a' twice"),
        (b'{"a": 1, "a": "\\u003a"}', "", "has the key 'a' twice"),
        (b'{"a": 1, "a": "\\u003A"}', "", "has the key 'a' twice"),
        (b'{"m": [{}, {"role": {"x y": 1, "x y": ":"}}]}', "m[1].role", "has the key 'x y' twice"),
        (b'{"a": ["\\ud800"]}', "a[0]", "an unpaired surrogate"),
        (b'"\\udc00"', "", "an unpaired surrogate"),
        (b'{"b": {"\\udc00": 1}}', "b['\\udc00']", "an unpaired surrogate"),
        (b'{"a":' * 64 + b"[]" + b"}" * 64, ".".join("a" * 64), "nests more than 64"),
    ],
)
def test_further_refusals_are_validation_errors_with_their_place(body: bytes, path: str, words: str) -> None:
    error = refusal(body)
    assert error.code == "validation_failed"
    assert [problem.path for problem in error.problems] == [path]
    assert words in str(error)


def test_nesting_of_64_passes_and_65_does_not() -> None:
    scan(nested(MAX_DEPTH))
    scan(nested(MAX_DEPTH, "1"))
    assert "nests more than 64" in str(refusal(nested(MAX_DEPTH + 1)))


@table("body", [b"[" * 1_000_000, b'{"a":' * 1_000_000, nested(500_000), nested(900)])
def test_endless_nesting_is_refused_without_recursion(body: bytes) -> None:
    assert refusal(body).code == "validation_failed"


def test_brackets_in_strings_are_not_nesting() -> None:
    scan(json.dumps({"code": "[{" * 100_000, "quoted": '\\"[' * 1_000}).encode())


def test_a_refusal_keeps_no_copy_of_the_body() -> None:
    assert refusal(b'{"a": ').__context__ is None


# Against the standard library

PIECES = [*'{}[]:,"\\0- \n\x00', *'null NaN -Infinity "a" "a": ":" \\u003a \\ud83d \\ude00 1e400'.split()]
SOUP = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)
)
VALUES = st.recursive(SCALARS, lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(max_size=3), v, max_size=4))
WRITTEN = st.builds(
    lambda value, ascii_only, indent: json.dumps(value, ensure_ascii=ascii_only, indent=indent),
    VALUES,
    st.booleans(),
    st.sampled_from([None, 1]),
)
SPLICED = st.builds(
    lambda text, at, piece: text[: at % (len(text) + 1)] + piece + text[at % (len(text) + 1) :],
    WRITTEN,
    st.integers(0),
    SOUP,
)
TEXTS = (SOUP | WRITTEN | SPLICED).map(lambda text: text.encode(errors="surrogatepass"))


def expected_codes(body: bytes) -> set[str]:
    """What the standard library's parser says, with our refusals on top; no code: it passes."""
    codes: set[str] = set()

    def pairs(items: list[tuple[str, Any]]) -> list[Any]:
        if len({key for key, _ in items}) < len(items):
            codes.add("validation_failed")
        return [part for item in items for part in item]

    def constant(_: str) -> None:
        codes.add("invalid_json")

    try:
        tree = json.loads(body.decode(), object_pairs_hook=pairs, parse_constant=constant, parse_int=str)
    except ValueError:
        return {"invalid_json"}
    try:
        json.dumps(tree, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        codes.add("validation_failed")
    return codes


@given(TEXTS | st.binary(max_size=20))
@example(b'{"a":":","a":1}')
@example(b'{"a" :1,"a":":"}')
def test_scan_takes_exactly_what_the_standard_parser_takes_but_for_the_named_refusals(body: bytes) -> None:
    expected = expected_codes(body)
    code = code_of(body)
    assert code in expected if expected else code is None


# Values of Python

LOOP: list[Any] = []
LOOP.append(LOOP)


@table(
    ("value", "path", "problem"),
    [
        (math.nan, "", "nan is not JSON"),
        ({"a": [1, (2, math.inf)]}, "a[1][1]", "inf is not JSON"),
        ({"a": {1: 2}}, "a", "has a key that is not a string but int"),
        ({"a b": {"c": b""}}, "['a b'].c", "bytes is not JSON"),
        (["fine", "\udc00"], "[1]", "holds an unpaired surrogate, which is not a character"),
        ({"\ud800": 1}, "['\\ud800']", "holds an unpaired surrogate, which is not a character"),
        (LOOP, "[0]" * MAX_DEPTH, "nests more than 64 arrays and objects"),
    ],
)
def test_a_flaw_in_a_value_is_found_with_its_path(value: object, path: str, problem: str) -> None:
    found = find_flaw(value)
    assert found is not None
    assert (found[0], found[1].problem) == (path, problem)


@given(VALUES)
def test_plain_values_have_no_flaw(value: object) -> None:
    assert find_flaw(value) is None


@given(st.integers(0, 70), st.integers(0, 70))
def test_depth_is_counted_exactly(depth: int, allowed: int) -> None:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value, "b": []}
    assert nests_deeper(value, allowed) == (json.dumps(value).count("[") > 0 and _depth(value) > allowed)


def _depth(value: object) -> int:
    if isinstance(value, (dict, list)):
        children = value.values() if isinstance(value, dict) else value
        return 1 + max(map(_depth, children), default=0)
    return 0


def test_paths_quote_and_cut_keys_that_are_not_plain() -> None:
    assert joined("a", "b-1") == "a.b-1"
    assert joined("", 3) == "[3]"
    assert joined("a", "b.c") == "a['b.c']"
    assert joined("a", "x" * 100) == f"a['{'x' * 60}'...]"


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 30), st.sampled_from("eE"))
def test_numbers_are_decoded_to_the_last_bit(number: float, digits: int, exponent: str) -> None:
    for text in (repr(number), f"{number:.{digits}e}".replace("e", exponent)):
        if "inf" not in text and math.isfinite(float(text)):
            assert decode(f"[{text}]".encode()) == [float(text)]


def test_numbers_are_not_parsed_by_the_slow_decoder() -> None:
    decoder: Any = decode
    assert decoder.__self__.float_hook is finite
    assert request_module._DECODER.float_hook is finite


@table("text", ['{"a": 1.0, "b": [1e300]}', ' {"a":1,"a":2}\n', "{}"])
def test_an_object_is_passed_on_verbatim(text: str) -> None:
    assert bytes(object_in(text) or b"") == text.encode()


@table("text", ["", "[{}]", '"{}"', '{"a": tru}', '{"a": 1} x', "{" * 5_000, '{"a": "\ud800"}', "1"])
def test_anything_but_an_object_is_none(text: str) -> None:
    assert object_in(text) is None


def test_recognising_an_object_does_not_decode_its_content() -> None:
    text = f'{{"a": [{"{}," * 100_000}0]}}'
    tracemalloc.start()
    try:
        assert object_in(text) is not None
        assert tracemalloc.get_traced_memory()[1] < 2 * len(text)
    finally:
        tracemalloc.stop()
