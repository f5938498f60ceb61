"""Custom patterns of a host: what they find, and that no expression is taken that a text could make slow."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routewright import PatternGuardrail, ValidationFailed
from routewright._core.guardrails.custom import MOST_CHARS
from routewright._core.guardrails.detectors import PATTERNS
from routewright._core.guardrails.screen import AnswerGate, RuleGuardrail
from routewright._core.guardrails.texts import parts_of, redact_parts
from routewright._core.policy import check_policy
from routewright.wire import Policy, PolicyGuardrail, Redact
from tests.tables import table

TAKEN = [
    r"EMPL|EMP",
    r"\bEMP-\d{6}\b",
    r"[A-Z]{2,3}(?:-\d{1,4})?",
    r"\$\d{2}",
    r"(?:\d[ -]?){13,16}",
    r"(?:-?\d){8,14}",
    r"a.b",
    r"x(?:ab|cd){0,4}e",
    r"(?P<name>\w)@\d",
    r"[^a-z\n]{1,5}[a-z]",
]
REFUSED = {
    r"EMP|EMPL": "put the longer one first",
    r"(a+)+b": "a repeat inside a repeat",
    r"\d{1,9}\d{4}": "may take what follows it",
    r"a?a": "may take what follows it",
    r"(?:ab|a.){1,5}c": "alternatives that start alike",
    r"ID(?:\w|A\d)?-\d{4}": "alternatives that start alike",
    r"(?:a?|b)c": "an alternative that may be empty",
    r"\$\d{0,3}\b": "character that is not a word's",
    "(?:" * 1_000 + "a" + ")" * 1_000: "too deeply nested",
    r"(?:a?){1,3}b": "may take what follows it",
    r"\d+": "more than 256 characters",
    rf"a{{1,{MOST_CHARS + 1}}}": "more than 256 characters",
    r"\b": "an empty text",
    r"(?i)abc": "has flags",
    r"ab{1,3}?": "a lazy repeat",
    r"ab{1,3}+": "a possessive repeat",
    r"(?>ab)": "an atomic group",
    r"(?<!a)b": "a look-around",
    r"^a$": "an anchor",
    r"(a)\1": "a back-reference",
    r"(a)?(?(1)b|c)": "a condition",
    r"(": "is not a regular expression",
    r"[z-a]": "is not a regular expression",
    "a\U00030000": "above U+1FFFF",
    r"a(?i:b)": "has flags",
}

texts = st.lists(
    st.sampled_from([*"abcdezxX@ -_019]^\n", "EMP-123456", "EMPL-12", "cars", "cat", "PR12AB", "4111 1111", "é", "中"]),
    max_size=30,
).map("".join)


def found_by(guardrail: RuleGuardrail, text: str) -> list[tuple[int, int]]:
    verdict = guardrail.check(text, "input")
    return [(part.start, part.end) for part in verdict.parts] if isinstance(verdict, Redact) else []


@pytest.mark.parametrize("expression", TAKEN)
@given(texts)
def test_a_custom_pattern_finds_what_re_finds(expression: str, text: str) -> None:
    found = found_by(PatternGuardrail(custom={"own": expression}), text)
    assert found == [match.span() for match in re.finditer(expression, text)]


@pytest.mark.parametrize("expression", TAKEN)
@given(texts, st.integers(1, 7))
def test_a_stream_gives_the_output_of_a_whole_check(expression: str, text: str, size: int) -> None:
    guardrail = PatternGuardrail(custom={"own": expression})
    gate, out = AnswerGate([guardrail]), ""
    for start in range(0, len(text), size):
        gate.feed(text[start : start + size])
        out += gate.text
    gate.end()
    assert out + gate.text == redact_parts(text, parts_of(guardrail.check(text, "input"), len(text)))


atoms = st.sampled_from(["a", "b", "1", "-", "[ab]", r"\d", r"\w", "[^a]", ".", "é", r"[\w-]", r"\s"])
expressions = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=4).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["?", "{0,2}", "{1,3}", "{2}", "{2,3}"])).map(
            lambda two: f"(?:{two[0]}){two[1]}"
        ),
    ),
    max_leaves=8,
)
boundaries = st.sampled_from(["", r"\b"])


@settings(max_examples=80)
@given(expressions, boundaries, boundaries, st.text("ab1-é \n", max_size=25))
def test_any_expression_that_is_taken_finds_what_re_finds(body: str, before: str, after: str, text: str) -> None:
    expression = f"{before}{body}{after}"
    try:
        guardrail = PatternGuardrail(custom={"own": expression})
    except ValidationFailed:
        return
    spans = [match.span() for match in re.finditer(expression, text)]
    assert found_by(guardrail, text) == spans
    gate = AnswerGate([guardrail])
    for character in text:
        gate.feed(character)
    gate.end()
    assert sum(hit.count for hit in gate.hits) == len(spans)


@table(("expression", "reason"), REFUSED.items(), ids=range(len(REFUSED)))
def test_an_expression_that_could_be_slow_is_refused_with_the_reason(expression: str, reason: str) -> None:
    with pytest.raises(ValidationFailed, match=re.escape(reason)):
        PatternGuardrail(custom={"own": expression})


@table("expression", TAKEN)
def test_time_grows_with_the_text_and_no_faster(expression: str) -> None:
    guardrail = PatternGuardrail(custom={"own": expression})

    def seconds(text: str) -> float:
        began = time.process_time()
        guardrail.check(text, "input")
        return time.process_time() - began

    size = 3_000
    for sign in ("a", "x", "xab", "1", "1 ", "EMP-", "]", "X", "ca"):
        text = sign * (size // len(sign))
        once = min(seconds(text) for _ in range(3))
        # eight times the text: 64 times the time if it grew with the square, and a busy machine does not make 24 of 8
        assert min(seconds(8 * text) for _ in range(3)) < 24 * once + 0.002, sign


def test_custom_patterns_stand_beside_the_built_in_ones() -> None:
    guardrail = PatternGuardrail("email", custom={"ticket": r"\bTICKET-\d{4,8}\b"})
    text = "anna@example.com asks about TICKET-12345."
    assert redact_parts(text, parts_of(guardrail.check(text, "input"), len(text))) == "[email] asks about [ticket]."
    assert len(PatternGuardrail(custom={"a": "a"})._rules) == 1
    assert len(PatternGuardrail()._rules) == len(PATTERNS)


def test_a_policy_with_a_slow_expression_is_refused() -> None:
    policy = Policy(name="p", guardrails=[PolicyGuardrail(custom={"own": "(a+)+b"}, action="redact")])
    with pytest.raises(ValidationFailed) as refused:
        check_policy(policy, 0)
    (problem,) = refused.value.problems
    assert problem.path.endswith("guardrails[0].custom.own")
    assert problem.problem == "has a repeat inside a repeat"
    assert problem.hint == "write one of them out"


@table(
    ("custom", "said"),
    [
        ({}, "custom: must map names to expressions, got an empty"),
        (["a"], "custom: must map names to expressions"),
        ({"a": 5}, "custom: has 'a': 5; write the name and the expression as strings"),
        ({"": "a"}, "custom: must be 1 to 200 printable characters, got ''"),
    ],
)
def test_a_wrong_argument_is_named(custom: object, said: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        PatternGuardrail(custom=custom)  # type: ignore[arg-type]
    assert str(refused.value).startswith(said[:40])
