"""Guardrails: what they match, and that a stream yields the same text as a check of the whole answer."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from routewright import DenyList, PatternGuardrail, ValidationFailed, wire
from routewright._core.guardrails.detectors import PATTERNS
from routewright._core.guardrails.screen import (
    MOST_FINDINGS,
    REST,
    AnswerGate,
    Hit,
    PassageGate,
    RequestGate,
    RuleGuardrail,
    findings_in,
    guardrails_of,
)
from routewright._core.guardrails.texts import MAX_GAP_CHARS, PIECE_CHARS, Passage, parts_of, redact_parts
from routewright.errors import InternalError
from routewright.guardrail import validate_guardrails
from routewright.protocols import Guardrail
from tests.tables import table

from .sensitive_samples import SAMPLES

YES = [(kind, text) for kind, (found, _) in SAMPLES.items() for text in found]
NO = [(kind, text) for kind, (_, left) in SAMPLES.items() for text in left]
FRAMES = ["{}", "See {}, or so.", "({})", "这是{}。", "key={}\n", '"{}"']
DENIED = ["nightjar", "Project Nightjar", "Große Straße", "C++", "夜鹰", "a b c", "stop it", "İstanbul"]


def left_of(guardrail: RuleGuardrail, text: str) -> str:
    return redact_parts(text, parts_of(guardrail.check(text, "input"), len(text)))


def found_by(guardrail: RuleGuardrail, text: str) -> list[str]:
    return [text[part.start : part.end] for part in parts_of(guardrail.check(text, "input"), len(text))]


def pieces_of(text: str, cuts: Sequence[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in pairwise(places)]


def streamed(guardrails: Sequence[Guardrail], pieces: Sequence[str]) -> tuple[list[str], AnswerGate]:
    """What goes out after each piece, and at the end."""
    gate = AnswerGate(guardrails)
    out = []
    for piece in pieces:
        gate.feed(piece)
        out.append(answered(gate))
    gate.end()
    return [*out, answered(gate)], gate


def answered(gate: AnswerGate) -> str:
    while (ask := gate.next()) is not None:
        gate.take(ask.guardrail.check(ask.text, ask.stage))
    return gate.text


# what is found


def test_each_kind_of_pattern_has_samples() -> None:
    assert set(SAMPLES) == set(PATTERNS)


@table("frame", FRAMES)
def test_each_pattern_finds_exactly_its_samples(frame: str) -> None:
    guardrails = {kind: PatternGuardrail(kind) for kind in PATTERNS}
    wrong = [(kind, text) for kind, text in YES if found_by(guardrails[kind], frame.format(text)) != [text]]
    assert wrong == []


def test_each_pattern_ignores_lookalikes() -> None:
    wrong = [
        (kind, text) for kind, text in NO for frame in FRAMES[:2] if PATTERNS[kind].over(frame.format(text)).find(0)
    ]
    assert wrong == []


def test_findings_after_json_escapes_are_redacted_and_leave_valid_json() -> None:
    text = json.dumps({"text": "one\nanna@example.com"})
    assert json.loads(left_of(PatternGuardrail("email"), text)) == {"text": "one\n[email]"}


def test_replacements_need_no_escape_and_are_not_found_again() -> None:
    guardrail = PatternGuardrail()
    left = [left_of(guardrail, text) for _, text in YES]
    assert [left_of(guardrail, text) for text in left] == left
    assert not any(set(pattern.replacement) & set('"\\') for pattern in PATTERNS.values())


@table(
    ("phrase", "text", "found"),
    [
        ("nightjar", "NightJar.", "NightJar"),
        ("nightjar", "the nightjar's", "nightjar"),
        ("project  nightjar", "Project \n\t NIGHTJAR!", "Project \n\t NIGHTJAR"),
        ("project nightjar", "project-nightjar", None),
        ("a b", "a" + " " * MAX_GAP_CHARS + "b", "a" + " " * MAX_GAP_CHARS + "b"),
        ("a b", "a" + " " * (MAX_GAP_CHARS + 1) + "b", None),
        ("STRASSE", "Große Straße.", "Straße"),
        ("ΟΔΟΣ", "η οδος, οδός", "οδος"),
        ("İstanbul", "ßßß İSTANBUL ßßß", "İSTANBUL"),
        ("夜鹰", "关于夜鹰计划", "夜鹰"),
        ("C++", "in C++.", "C++"),
        ("$$$", "x$$$x", "$$$"),
    ],
)
def test_phrases_are_found_in_any_case_as_whole_words_with_any_space(phrase: str, text: str, found: str | None) -> None:
    assert found_by(DenyList([phrase], "redact"), text) == ([] if found is None else [found])


@table("kinds", [("card", "email"), ("email", "card")])
@table("text", ["4111111111111111@example.com", "anna+4111111111111111@example.com"])
def test_the_first_and_then_longer_of_overlapping_findings_counts(kinds: list[wire.PatternKind], text: str) -> None:
    said = f"{text} 4111111111111111"
    assert found_by(PatternGuardrail(*kinds), said) == [text, "4111111111111111"]
    assert "".join(streamed([PatternGuardrail(*kinds)], [*said])[0]) == "[email] [card]"


@given(
    st.lists(st.text("abß 夜.", min_size=1, max_size=6).filter(str.strip), min_size=1, max_size=6), st.text("aBßSs 夜.")
)
def test_a_list_finds_what_its_single_phrases_find(phrases: list[str], text: str) -> None:
    alone = [found_by(DenyList([phrase], "redact"), text) for phrase in phrases]
    together = found_by(DenyList(phrases, "redact"), text)
    assert bool(together) == any(alone)
    assert all(any(each in found for found in alone) for each in together)


# verdicts


def test_a_guardrail_of_rules_allows_redacts_or_blocks() -> None:
    text = "anna@example.com or 4111111111111111"
    parts = wire.Redaction(0, 16, "email", "[email]"), wire.Redaction(20, 36, "card", "[card]")
    assert PatternGuardrail().check(text, "input") == wire.Redact(parts)
    assert PatternGuardrail("card", action="block").check(text, "input") == wire.Block("card")
    assert PatternGuardrail("iban").check(text, "input") == wire.Allow()
    assert DenyList(["anna"]).check(text, "output") == wire.Block("deny_list")
    assert DenyList(["anna"], name="staff").check(text, "output") == wire.Block("staff")


@given(
    st.text(max_size=20),
    st.lists(
        st.builds(wire.Redaction, st.integers(-5, 25), st.integers(-5, 25), st.just("r"), st.just("#")), max_size=5
    ),
)
def test_redactions_of_any_verdict_are_ordered_disjoint_and_in_range(text: str, parts: list[wire.Redaction]) -> None:
    found = parts_of(wire.Redact(tuple(parts)), len(text))
    assert all(0 <= part.start < part.end <= len(text) for part in found)
    assert all(first.end <= second.start for first, second in pairwise(found))
    covered = {at for part in parts for at in range(max(part.start, 0), min(part.end, len(text)))}
    assert {at for part in found for at in range(part.start, part.end)} == covered


@given(
    text=st.text(),
    phrase=st.text(min_size=1, max_size=20).filter(lambda text: text.strip().isprintable() and text.strip()),
)
def test_any_text_and_phrase_can_be_searched(text: str, phrase: str) -> None:
    for guardrail in (PatternGuardrail(), DenyList([phrase], "redact")):
        assert left_of(guardrail, text + phrase) == "".join(streamed([guardrail], [*text, *phrase])[0])
    passage = Passage(text, is_json=True)
    assert [*passage.read()] == []
    passage.redact(parts_of(wire.Redact((wire.Redaction(0, 3, "r"),)), len(passage.text)))
    passage.end_redaction()
    assert "[redacted]" in str(passage) or not passage.text


# streams

planted = st.sampled_from([text for _, text in (*YES, *NO)] + DENIED + [each.upper() for each in DENIED])
noise = st.one_of(
    st.text(" aA1.@-+(0\n'\"\\_/é夜ß", max_size=6),
    st.sampled_from(
        ["sk-", "+4", "DE8", "DE89 3704", "4111 1111 ", "-----BEGIN ", "anna@", "anna@x.", " a b", "no", "\n"]
    ),
    st.integers(0, 10**20).map(str),
)
texts = st.lists(planted | noise, max_size=6).map("".join)
cuts = st.lists(st.integers(0, 10_000), max_size=12) | st.just([*range(400)])
chains = st.lists(
    st.sampled_from(
        [
            PatternGuardrail(),
            *(PatternGuardrail(kind) for kind in PATTERNS),
            DenyList(DENIED, "redact"),
            DenyList(["email", "or"], "redact"),
        ]
    ),
    min_size=1,
    max_size=3,
)


def test_a_stream_gives_the_output_of_a_whole_check_for_any_split(full: bool) -> None:
    @settings(max_examples=20_000 if full else 50)
    @given(texts, cuts, chains)
    @example("anna@example.com", [4, 5, 12, 13], [PatternGuardrail()])
    def hold(text: str, cuts: list[int], chain: list[RuleGuardrail]) -> None:
        whole = text
        for guardrail in chain:
            whole = left_of(guardrail, whole)
        out, gate = streamed(chain, pieces_of(text, cuts))
        assert "".join(out) == whole
        assert gate.blocked is None

    hold()


ENDINGS = ["", ".", ".5", ",", ", 5", "5", "x", "-", " 12", " ", "\n", "é", "夜", "@", "..."]


def test_every_sample_is_redacted_the_same_for_any_split(full: bool) -> None:
    wrong = []
    for place, (kind, text) in enumerate([*YES, *NO]):
        guardrail = PatternGuardrail(kind)
        for ending in ENDINGS if full else ENDINGS[place % 8 :: 8]:
            said = f"{text}{ending}"
            whole = left_of(guardrail, said)
            cuts = [[len(text)], [len(text) - 1], [len(text) + 1], [*range(max(0, len(said) - 60), len(said))]]
            wrong += [said for cut in cuts if "".join(streamed([guardrail], pieces_of(said, cut))[0]) != whole]
    assert wrong == []


def test_no_part_of_a_finding_is_released_early(full: bool) -> None:
    @settings(max_examples=20_000 if full else 50)
    @given(texts, st.sampled_from(YES), texts, cuts)
    def hold(before: str, sample: tuple[str, str], after: str, cuts: list[int]) -> None:
        text = f"{before} {sample[1]} {after}"
        for guardrail in (PatternGuardrail(action="block"), DenyList(["nightjar", "example", "no"])):
            redacting = RuleGuardrail("r", guardrail._rules, "redact", ["output"])
            first = next(iter(parts_of(redacting.check(text, "input"), len(text))), None)
            safe = text if first is None else text[: first.start]
            out, gate = streamed([guardrail], pieces_of(text, cuts))
            assert safe.startswith("".join(out))
            assert (gate.blocked is None) == (first is None)

    hold()


@table("kind", PATTERNS)
def test_a_stream_holds_back_at_most_its_limit(kind: wire.PatternKind) -> None:
    guardrail = PatternGuardrail(kind)
    assert guardrail.holds is not None
    long = [(sign * 3_000)[:3_000] for sign in ("a", "1", "1 ", "a.", "@", "sk-", "A1 ", "- ")]
    for text in (*SAMPLES[kind][0], *long):
        gate = guardrail.hold_back()
        for piece in pieces_of(text * 2, range(0, len(text) * 2, 1 + len(text) // 100)):
            gate.feed(piece)
            assert gate.held <= guardrail.holds


def test_prose_is_hardly_held_back() -> None:
    text = "The quick brown fox jumps over the lazy dog, 12 times in 2025 and then at 10:30 never again. "
    gate = PatternGuardrail().hold_back()
    held = []
    for char in text:
        gate.feed(char)
        held.append(gate.held)
    assert sum(held) / len(held) < 4
    assert max(held) < 10
    gate = DenyList(DENIED).hold_back()
    assert gate.feed("a quiet night") == "a quiet "


def test_a_blocked_stream_releases_nothing_more() -> None:
    gate = AnswerGate([DenyList(["nightjar"]), PatternGuardrail()])
    gate.feed("Hello. ")
    assert gate.text == "Hello. "
    gate.feed("Night")
    gate.feed("jar! And")
    assert gate.blocked == Hit("deny_list", "deny_list", "output", "block")
    gate.feed(" more")
    gate.end()
    assert gate.text == ""
    assert gate.hits == [gate.blocked]


def test_the_second_guardrail_sees_the_redacted_text() -> None:
    first, second = PatternGuardrail("email"), DenyList(["email", "anna"], "redact")
    out, gate = streamed([first, second], [*"to anna@example.com"])
    assert "".join(out) == "to [[redacted]]"
    assert gate.hits == [
        Hit("patterns", "email", "output", "redact"),
        Hit("deny_list", "deny_list", "output", "redact"),
    ]
    out, _ = streamed([second, first], ["to anna@example.com"])
    assert "".join(out) == "to [redacted]@example.com"


# guardrails of others


class Shouting:
    """Redacts words in capitals; sees no more than it is shown."""

    name = "shouting"
    stages: Collection[wire.Stage] = ("output", "input")

    def __init__(self, holds: int | None) -> None:
        self.holds = holds
        self.seen: list[str] = []

    def check(self, text: str, stage: wire.Stage) -> wire.Verdict:
        self.seen.append(text)
        words, at = [], 0
        for word in text.split(" "):
            if word.isupper() and len(word) > 1:
                words.append(wire.Redaction(at, at + len(word), "loud", "..."))
            at += len(word) + 1
        return wire.Redact(tuple(words)) if words else wire.Allow()


@given(st.lists(st.text("abAB", max_size=8), max_size=12).map(" ".join), cuts, st.sampled_from([9, 20, None]))
def test_a_custom_guardrail_checks_windows_with_the_result_of_a_whole_check(
    text: str, cuts: list[int], holds: int | None
) -> None:
    guardrail = Shouting(holds)
    whole = redact_parts(text, parts_of(Shouting(None).check(text, "output"), len(text)))
    out, _ = streamed([guardrail], pieces_of(text, cuts))
    assert "".join(out) == whole
    if holds is None:
        assert guardrail.seen == ([text] if text else [])
        assert not any(out[:-1])


def test_windows_are_small_and_start_with_a_word() -> None:
    guardrail = Shouting(10)
    streamed([guardrail], [*("the quick brown FOX jumps over " * 40)])
    assert max(map(len, guardrail.seen)) <= 30
    words = set("the quick brown FOX jumps over ".split())
    assert all(any(word.startswith(seen.split(" ")[0]) for word in words) for seen in guardrail.seen)


class Fixed:
    """Says one thing."""

    name = "fixed"
    stages: Collection[wire.Stage] = ("output", "input")
    holds = None

    def __init__(self, said: object) -> None:
        self.said = said

    def check(self, text: str, stage: wire.Stage) -> Any:
        return self.said


def redaction(start: Any = 0, end: Any = 6, rule: Any = "r", replacement: Any = "#") -> wire.Redact:
    return wire.Redact((wire.Redaction(start, end, rule, replacement),))


ODD: Any = None
parted: Any = wire.Redact
NO_VERDICTS = [
    None, True, "allow", wire.Allow, wire.Block(ODD), wire.Block("\ud800"), parted(None), parted("canary"),
    parted(("canary",)),
    redaction(start=6, end=0), redaction(start=None), redaction(end=6.0), redaction(end=float("nan")),
    redaction(rule=None), redaction(replacement=None), redaction(replacement="\ud800"),
]  # fmt: skip


@table("said", NO_VERDICTS)
def test_an_invalid_verdict_releases_nothing(said: object) -> None:
    gate = AnswerGate([Fixed(said)])
    gate.feed("canary")
    gate.end()
    ask = gate.next()
    assert ask is not None
    with pytest.raises(InternalError, match=r"check\(\) of the guardrail 'fixed' returned") as refused:
        gate.take(ask.guardrail.check(ask.text, ask.stage))
    assert gate.text == ""
    assert "canary" not in str(refused.value)


def test_a_block_of_a_custom_guardrail_ends_the_stream() -> None:
    out, gate = streamed([Fixed(wire.Block("hate"))], ["one", "two"])
    assert "".join(out) == ""
    assert gate.blocked == Hit("fixed", "hate", "output", "block")
    assert gate.hits == [gate.blocked]


def test_no_guardrail_is_called_after_a_block() -> None:
    guardrails: list[Guardrail] = [DenyList(["nightjar"]), Shouting(1)]
    request = PassageGate([Passage("A nightjar."), Passage("MORE")], guardrails, "input")
    assert request.next() is None
    assert request.blocked == Hit("deny_list", "deny_list", "input", "block")
    answer = AnswerGate(guardrails)
    answer.feed("Well, what a nightjar!")
    assert answer.next() is None
    answer.end()
    assert answer.next() is None


def test_guardrails_are_called_only_at_their_stages() -> None:
    out, _ = streamed([PatternGuardrail(stages=["input"]), Shouting(None)], ["anna@example.com OK"])
    assert "".join(out) == "anna@example.com ..."
    gate = RequestGate(
        wire.RouteRequest([wire.Message("user", "anna@example.com")]), [PatternGuardrail(stages=["output"])]
    )
    assert gate.next() is None
    assert gate.hits == []


# requests


def conversation() -> wire.RouteRequest:
    arguments = (
        '{ "to": ["anna\\u0040example.com"], "card": 4111111111111111, "n": 1.50, "anna@example.com": "\\n\\"x\\"" }'
    )
    return wire.RouteRequest(
        [
            wire.Message("system", "You are anna@example.com."),
            wire.Message("developer", "Or ben@example.com."),
            wire.Message(
                "user",
                [wire.TextPart("cleo@example.com?"), wire.ImagePart(wire.ImageUrl("https://u@example.com/a.png"))],
            ),
            wire.Message("assistant", None, tool_calls=[wire.ToolCall("call_1", wire.FunctionCall("send", arguments))]),
            wire.Message("tool", '{"sent": "one\\ndora@example.com"}', tool_call_id="call_1"),
            wire.Message("assistant", "Done, +49 30 123456."),
        ]
    )


def passed(request: wire.RouteRequest, guardrails: Sequence[Guardrail]) -> RequestGate:
    gate = RequestGate(request, guardrails)
    while (ask := gate.next()) is not None:
        if ask is not REST:
            gate.take(ask.guardrail.check(ask.text, ask.stage))
    return gate


def test_the_texts_of_all_roles_are_checked_and_images_are_not() -> None:
    gate = passed(conversation(), [PatternGuardrail()])
    system, developer, user, assistant, tool, last = gate.request.messages
    assert [system.content, developer.content, last.content] == ["You are [email].", "Or [email].", "Done, [phone]."]
    assert user.content == [wire.TextPart("[email]?"), wire.ImagePart(wire.ImageUrl("https://u@example.com/a.png"))]
    assert tool.content == '{"sent": "one\\n[email]"}'
    assert tool.tool_call_id == "call_1"
    assert assistant.content is None
    assert assistant.tool_calls is not None
    said = assistant.tool_calls[0].function.arguments
    assert said == '{ "to": ["[email]"], "card": "[card]", "n": 1.50, "[email]": "\\n\\"x\\"" }'
    assert gate.hits == [
        Hit("patterns", "email", "input", "redact", 6),
        Hit("patterns", "card", "input", "redact", 1),
        Hit("patterns", "phone", "input", "redact", 1),
    ]


def test_a_blocked_request_names_the_rule_and_calls_no_other_guardrail() -> None:
    other = Shouting(None)
    gate = passed(conversation(), [DenyList(["dora@example.com"], name="staff"), other])
    assert gate.blocked == Hit("staff", "staff", "input", "block")
    assert "one\ndora@example.com" not in other.seen
    assert gate.hits[-1] == gate.blocked


def test_a_guardrail_is_called_once_per_nonempty_text() -> None:
    other = Shouting(None)
    gate = passed(replace(conversation(), messages=[*conversation().messages, wire.Message("user", "")]), [other])
    assert gate.hits == []
    assert len(other.seen) == 6
    assert "to\nanna@example.com\ncard\n4111111111111111\nn\n1.50" in other.seen[3]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


LINE_KINDS = PatternGuardrail("email", "phone", "card", "iban")
"""What never goes on in the next string."""


@given(json_values, st.booleans(), st.sampled_from([None, 2]))
def test_arguments_are_redacted_in_any_spelling(value: object, ascii_only: bool, indent: int | None) -> None:
    written = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert said_in(left_in_json(LINE_KINDS, written)) == redacted_in(said_in(written))


def said_in(written: str) -> Any:
    """What JSON says, numbers as text, and objects as the lists of their pairs."""
    return json.loads(written, parse_int=str, parse_float=str, object_pairs_hook=lambda pairs: [*map(list, pairs)])


def redacted_in(value: Any) -> Any:
    if isinstance(value, str):
        return left_of(LINE_KINDS, value)
    return [*map(redacted_in, value)] if isinstance(value, list) else value


@table(
    ("arguments", "left"),
    [
        ('{"to": "a\\u0040example.com"', '{"to": "[email]"'),
        ('"\\u0061\\u006e\\u006ea@example.com"', '"[email]"'),
        ('{"a": "\\ud800 anna@example.com"}', '{"a": "\\ud800 [email]"}'),
        ('"\\ud835\\udfd2111 1111 1111 1111', '"[card]'),  # a surrogate pair
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_escapes_are_resolved_in_arguments_that_are_not_json(arguments: str, left: str) -> None:
    assert left_in_json(PatternGuardrail("email", "card"), arguments) == left


def left_in_json(guardrail: RuleGuardrail, written: str) -> str:
    gate = PassageGate([Passage(written, is_json=True)], [guardrail], "output")
    while gate.next() is not None:
        pass
    return str(gate.passages[0])


def test_a_finding_across_json_strings_is_removed_from_each() -> None:
    guardrail = DenyList(["Project Nightjar"], "redact")
    assert left_in_json(guardrail, '["project", "nightjar", 7]') == '["[redacted]", "", 7]'


@table("frame", ["```json\n{}\n```", "```{}```", "\u00a0{}", "{}\v", "\ufeff{}", '{}, "\1"'])
@table("between", ["\\n", "\\t", "\\r\\n", "\\u0020", "\\u00a0"])
def test_no_escape_hides_a_finding_in_framed_json(frame: str, between: str) -> None:
    text = frame.replace("{}", f'{{"a": "Project{between}Nightjar"}}')
    left = left_in_json(DenyList(["Project Nightjar"], "redact"), text)
    assert left == frame.replace("{}", '{"a": "[redacted]"}')


# time


ADVERSE = [
    "a", "1", "1 ", "4111 ", "41", "a.", "a@", "@", "x@a.", "a@a.a-", "+1", "0", "01 ", "sk-", "sk_live_", "-", "(",
    "-----BEGIN ", "DE11 ", "AT11 ", "k@9.k@G.5@", "DE", "A1", "(0", "415-", ".1", "eyJ", "夜", "ß", "İ", "a b ",
    " ", "stop ", "\n",
]  # fmt: skip
EVERYTHING = [PatternGuardrail(), DenyList(DENIED, "redact")]


def seconds(guardrails: Sequence[RuleGuardrail], text: str) -> float:
    began = time.process_time()
    for guardrail in guardrails:
        guardrail.check(text, "input")
    return time.process_time() - began


@pytest.mark.parametrize(
    "guardrail", [*map(PatternGuardrail, PATTERNS), DenyList(DENIED, "redact")], ids=[*PATTERNS, "phrases"]
)
def test_twice_the_text_takes_twice_the_time(guardrail: RuleGuardrail, full: bool) -> None:
    size = 1_000_000 if full else 6_000
    text = max(((sign * size)[:size] for sign in ADVERSE), key=lambda text: seconds([guardrail], text))
    once = min(seconds([guardrail], text) for _ in range(3))
    # eight times the text: 64 times the time if it grew with the square, and a busy machine does not make 24 of 8
    assert min(seconds([guardrail], 8 * text) for _ in range(3)) < 24 * once + 0.002


@table("json_text", [True, False])
def test_twice_the_findings_take_twice_the_time(json_text: bool) -> None:
    def seconds_of(count: int) -> float:
        words = ["anna@example.com", "x"] * count
        began = time.process_time()
        left = left_in_json(PatternGuardrail("email"), json.dumps(words) if json_text else " ".join(words))
        assert left.count("[email]") == count
        return time.process_time() - began

    once = min(seconds_of(500) for _ in range(3))
    assert min(seconds_of(4_000) for _ in range(3)) < 24 * once  # 64 times if it grew with the square


def rests(request: wire.RouteRequest, guardrails: Sequence[Guardrail]) -> int:
    gate, count = RequestGate(request, guardrails), 0
    while gate.next() is REST:
        count += 1
    return count


def test_a_search_rests_after_many_findings() -> None:
    request = wire.RouteRequest([wire.Message("user", "a@b.cd " * 4_000)])
    assert rests(request, [PatternGuardrail("email")]) >= 4_000 // MOST_FINDINGS


@table(
    "texts",
    [["a " * PIECE_CHARS * 5], ["a " * 1_000] * 1_000, ["[" + "1," * PIECE_CHARS * 5 + "1]"]],
    ids=["one long text", "many short texts", "JSON"],
)
def test_a_search_rests_after_each_piece(texts: list[str]) -> None:
    request = wire.RouteRequest([wire.Message("tool", text, tool_call_id="1") for text in texts])
    characters = sum(len(message.content or "") for message in request.messages)
    assert rests(request, [PatternGuardrail("email")]) >= 0.9 * characters // PIECE_CHARS
    assert rests(wire.RouteRequest([wire.Message("user", "Short.")]), [PatternGuardrail("email")]) == 0


@settings(max_examples=10)
@given(st.lists(st.tuples(st.integers(-60, 60), planted), min_size=1, max_size=6))
def test_findings_do_not_depend_on_where_a_piece_ends(places: list[tuple[int, str]]) -> None:
    text = " ".join(["Nothing to see here."] * (2 * PIECE_CHARS // 20))
    for offset, finding in places:
        middle = PIECE_CHARS + offset
        text = f"{text[:middle]} {finding} {text[middle:]}"
    for guardrail in EVERYTHING:
        whole = findings_in([rule.over(text) for rule in guardrail._rules], 0, len(text))
        assert [finding for piece in guardrail.pieces(text) for finding in piece] == [*whole]


def test_streams_search_only_the_tail_of_their_text(full: bool) -> None:
    size = 100_000 if full else 800
    slow = []
    for sign in ADVERSE:
        text = (sign * size)[:size]
        began = time.process_time()
        streamed(EVERYTHING, [text[at : at + 4] for at in range(0, size, 4)])
        if time.process_time() - began > 400 * size / 1_000_000:
            slow.append(sign)
    assert slow == []


def test_a_long_key_in_many_pieces_is_not_searched_for_each_piece() -> None:
    text = "-----BEGIN PRIVATE KEY-----\n" + ("A" * 64 + "\n") * 300
    gate = PatternGuardrail("api_key").hold_back()
    began = time.process_time()
    out = "".join(map(gate.feed, text)) + gate.end()
    assert time.process_time() - began < 4
    assert out.startswith("[api_key]")


# what may be asked for


KINDS = "email, phone, card, iban, api_key"


@table(
    ("make", "given", "said"),
    [
        (PatternGuardrail, ["mail"], f"kinds[0]: must be one of {KINDS}, got 'mail'; did you mean 'email'?"),
        (PatternGuardrail, ["card", "card"], "kinds[1]: lists 'card' again; list each once"),
        (DenyList, ["nightjar"], "phrases: 'nightjar' is not a list; pass a list"),
        (DenyList, [[]], "phrases: has 0 phrases, must have 1 to 10000"),
        (DenyList, [["a"], "drop"], "action: must be one of redact, block, got 'drop'"),
        (DenyList, [["a"], "block", []], "stages: must name at least one; one of input, output"),
        (DenyList, [["a"], "block", ["input"], ""], "name: must be 1 to 200 printable characters, got ''"),
        (validate_guardrails, ["pii"], "guardrails: 'pii' is not a list of guardrails"),
        (validate_guardrails, [[PatternGuardrail]], "guardrails[0]: type is not a guardrail; pass an object with name"),
        (validate_guardrails, [[Shouting(0)]], "guardrails[0].holds: must be a whole number of at least 1, or None"),
        (DenyList, [["a", 5]], "phrases[1]: must be a string, got 5"),
    ],
)
def test_invalid_phrases_and_patterns_are_refused(make: Any, given: list[Any], said: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        make(*given)
    assert str(refused.value).startswith(said)


def test_the_repr_of_a_guardrail_hides_its_phrases() -> None:
    shown = repr(DenyList(["nightjar"]))
    assert shown == "DenyList(name='deny_list', action='block', stages=['input', 'output'])"


def test_the_guardrails_of_a_policy_keep_their_order() -> None:
    policy = wire.Policy(
        name="p",
        guardrails=[
            wire.PolicyGuardrail(patterns=["card", "email"], deny=["nightjar"], action="redact", stages=["input"]),
            wire.PolicyGuardrail(deny=["owl"], action="block"),
        ],
    )
    first, second, third = guardrails_of(policy)
    assert (first.name, second.name, third.name) == ("patterns", "deny_list", "deny_list")
    assert (first.action, second.action, third.action) == ("redact", "redact", "block")
    assert [sorted(first.stages), sorted(third.stages)] == [["input"], ["input", "output"]]
    assert left_of(first, "anna@example.com 4111111111111111 +49 30 123456") == "[email] [card] +49 30 123456"
    assert third.check("Owl!", "input") == wire.Block("deny_list")
    assert guardrails_of(wire.Policy(name="p")) == ()
