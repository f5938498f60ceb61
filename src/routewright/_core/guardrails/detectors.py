"""Finds e-mail addresses, telephone numbers, card numbers, IBANs and API keys in a text, in linear time.

A ``Piece`` is a regular expression together with one for its prefixes, so that a stream knows what to hold back and for
how long. Every repetition is bounded, and possessive except for that of the digits of a number, which gives some back
until the number can end there.

Digits of every script match, full-width ones too, with zero-width characters between them. Letters of keys and IBANs
are ASCII.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from routewright._core.routing.logarithms import IntArray
from routewright.wire import PatternKind, Redaction


class Piece(NamedTuple):
    """A part of a pattern."""

    whole: str
    """Matches it."""
    begun: str
    """Matches at the end of a text if more text could complete or extend a match of ``whole``."""
    longest: int
    """Most characters that it looks at."""


def word(text: str) -> Piece:
    """Exactly this text."""
    begun = ""
    for char in reversed(text[:-1]):
        begun = f"(?:{re.escape(char)}{begun})?+"
    return Piece(re.escape(text), rf"{begun}\Z", len(text))


def one(chars: str) -> Piece:
    """One character of a class, written as inside brackets."""
    return Piece(f"[{chars}]", r"\Z", 1)


def some(chars: str, minimum: int, maximum: int) -> Piece:
    """``minimum`` to ``maximum`` characters of a class, greedy."""
    return Piece(f"[{chars}]{{{minimum},{maximum}}}+", rf"[{chars}]{{0,{maximum - 1}}}+\Z", maximum)


def unless(chars: str) -> Piece:
    """Empty, if no character of a class follows."""
    return Piece(f"(?![{chars}])", r"\Z", 1)


def glance(chars: str = "") -> Piece:
    """Empty, but the judge looks at the next character, and at one more if that is of the class."""
    return Piece("", rf"[{chars}]?+\Z" if chars else r"\Z", 2 if chars else 1)


def run(*pieces: Piece) -> Piece:
    """Pieces in sequence."""
    begun = pieces[-1].begun
    for piece in reversed(pieces[:-1]):
        begun = f"(?:{piece.begun}|{piece.whole}{begun})"
    return Piece("".join(piece.whole for piece in pieces), begun, sum(piece.longest for piece in pieces))


def either(*pieces: Piece) -> Piece:
    """The first alternative that matches."""
    whole, begun = ("|".join(parts) for parts in zip(*(piece[:2] for piece in pieces), strict=True))
    return Piece(f"(?:{whole})", f"(?:{begun})", max(piece.longest for piece in pieces))


def many(piece: Piece, minimum: int, maximum: int) -> Piece:
    """``minimum`` to ``maximum`` repetitions, greedy."""
    repeated = f"(?:{piece.whole}){{{minimum},{maximum}}}+"
    return Piece(repeated, f"(?:{piece.whole}){{0,{maximum - 1}}}+{piece.begun}", piece.longest * maximum)


def maybe(piece: Piece) -> Piece:
    """Optional, greedy."""
    return Piece(f"(?:{piece.whole})?+", piece.begun, piece.longest)


CONTEXT_CHARS = 3  # characters before a match that can affect it

Judge = Callable[[str, int, int], int | None]
"""Returns the end of the finding within the match ``text[start:end]``, or None if it is not one."""

_THIN = "\u00ad\u200b-\u200d\u2060\ufeff"
_SPACES = " \u00a0\u2007\u2009\u202f"
_GAP = rf"{_SPACES}{_THIN}\u2010-\u2015\-"
_LETTERS = "A-Za-z\u00c0-\u024f\u0370-\u03ff\u0400-\u04ff"
_FREE = r"(?<![A-Za-z\d])"  # not inside a longer word or number


def _whole(text: str, start: int, end: int) -> int | None:
    """Accepts every match."""
    return end


class Pattern:
    """One kind of finding: a look-behind (``after``), an expression, and a judge of its matches.

    ``anchor`` is the class of its first character. The search skips to a character of that class before it tries the
    expression, because ``re`` does so many times faster than it tries an expression at every position: ordinary text
    costs some nanoseconds a character.
    """

    def __init__(self, rule: str, piece: Piece, look_behind: str, judge: Judge = _whole, *, anchor: str) -> None:
        self.rule = rule
        self.replacement = f"[{rule}]"
        self.longest = piece.longest
        self.judge = judge
        self._expression = _anchored(anchor, 0, look_behind, piece.whole)
        self._begun = _anchored(anchor, 0, look_behind, piece.begun)

    @cached_property
    def expression(self) -> re.Pattern[str]:
        """Finds anchors; group 1 is the match. Compiled at first use, which is slow."""
        return re.compile(self._expression)

    @cached_property
    def begun(self) -> re.Pattern[str]:
        """Finds anchors of matches that more text could complete or extend."""
        return re.compile(self._begun)

    def over(self, text: str) -> PatternSearch:
        """Search a text."""
        return PatternSearch(self, text)

    def find(self, text: str, at: int) -> Redaction | None:
        """The first finding at or after a position."""
        for match in self.expression.finditer(text, at):
            end = self.judge(text, match.start(), match.end(1))
            if end is not None:
                return Redaction(match.start(), end, self.rule, self.replacement)
        return None


def _anchored(anchor: str, depth: int, look_behind: str, expression: str) -> str:
    """An expression that finds the anchor, then looks back to where the match starts."""
    return rf"[{anchor}](?<=(?={look_behind}({expression}))[\s\S]{{{depth + 1}}})"


class PatternSearch:
    """A pattern applied to a text."""

    def __init__(self, pattern: Pattern, text: str) -> None:
        self.pattern = pattern
        self.text = text

    def find(self, at: int) -> Redaction | None:
        """The first finding at or after a position."""
        return self.pattern.find(self.text, at)

    def open_from(self, at: int) -> int:
        """First position at which more text could create or change a finding, else the end of the text."""
        match = self.pattern.begun.search(self.text, max(at, len(self.text) - self.pattern.longest))
        return len(self.text) if match is None else match.start()


# e-mail addresses

_NO_TOP_LEVEL = frozenset("png jpg jpeg gif svg webp avif ico css js ts tsx jsx html json toml yaml".split())
"""File extensions: names such as ``icon@2x.png`` are not addresses."""
_AT = either(one("@\uff20\ufe6b"), word(r"\u0040"), word("%40"))
_DOTS = ".\uff0e\u3002"
_LABEL_CHARS = rf"{_LETTERS}\d{_THIN}-"
_LABEL = some(_LABEL_CHARS, 1, 63)
_DOMAIN = run(_LABEL, many(run(one(_DOTS), _LABEL), 1, 8))
_LOCAL_FIRST = rf"{_LETTERS}\d_+~-"
_LOCAL = rf".'{_THIN}{_LOCAL_FIRST}"
_LOCAL_CHARS = 64
_EMAIL = run(one(_LOCAL_FIRST), some(_LOCAL, 0, _LOCAL_CHARS - 1), _AT, _DOMAIN)
_LOCAL_BACKWARDS = re.compile(rf"[{_LOCAL}]*+")
_LOCAL_START = re.compile(rf"(?<!\\)[{_LOCAL_FIRST}]")
_LAST_LABELS = re.compile(rf"[{_DOTS}]([^{_DOTS}]+)")


class EmailPattern(Pattern):
    """Finds addresses by their @. Starting at the local part, as ``expression`` does, would try 64 characters at every
    position of a long word, such as base64."""

    def __init__(self) -> None:
        super().__init__("email", _EMAIL, r"(?<!\\)", anchor=_LOCAL_FIRST)
        named = rf"(?={_LABEL.whole}(?:[{_DOTS}]{_LABEL.whole}){{0,7}}?[{_DOTS}][{_LETTERS}][{_LABEL_CHARS}])"
        domain = f"{_AT.whole}{named}({_DOMAIN.whole})"  # without this look-ahead ``a@1.2`` takes microseconds
        self._expression = _anchored(r"@\uff20\ufe6b\\%", 0, rf"(?<=[{_LOCAL}])", domain)

    def find(self, text: str, at: int) -> Redaction | None:
        """The first address at or after a position."""
        for match in self.expression.finditer(text, at):
            sign = match.start()
            backwards = _LOCAL_BACKWARDS.match(text[max(at, sign - _LOCAL_CHARS) : sign][::-1])
            assert backwards is not None, "it matches any text"
            local = _LOCAL_START.search(text, sign - backwards.end(), sign)
            end = None if local is None else _domain_end(text, *match.span(2))
            if local is not None and end is not None:
                return Redaction(local.start(), end, self.rule, self.replacement)
        return None


def _domain_end(text: str, start: int, end: int) -> int | None:
    """Cut off what cannot end a domain: a dash, a version number."""
    for label_match in reversed([*_LAST_LABELS.finditer(text, start, end)]):
        label = label_match[1].rstrip("-")
        if len(label) >= 2 and label[0].isalpha():
            return None if label.lower() in _NO_TOP_LEVEL else label_match.start(1) + len(label)
    return None


# numbers

_GAP_CHARS = 2  # most characters between two digits of a number
_ENDS = r"(?![A-Za-z\d]|[.,]\d)"  # not inside a number or word


def _digits(gap: str, minimum: int, maximum: int) -> Piece:
    """``minimum`` to ``maximum`` digits, as many as end a number, with up to ``_GAP_CHARS`` of ``gap`` before each."""
    digit = run(maybe(some(gap, 1, _GAP_CHARS)), one(r"\d"))
    begun = run(many(digit, minimum, maximum), glance(".,")).begun
    return Piece(rf"(?:{digit.whole}){{{minimum},{maximum}}}{_ENDS}", begun, digit.longest * maximum + len(".1"))


_LETTER = 10  # kinds of characters besides the digits 0 to 9
_POINT = 11
_BETWEEN = 12
_OTHER = 13


@lru_cache
def _kinds() -> IntArray:
    """The kind of every character up to the last digit of Unicode; the rest is ``_OTHER``."""
    chars = "".join(map(chr, range(0x20000)))
    kinds = np.full(len(chars), _OTHER)
    for kind, class_ in ((_LETTER, "[A-Za-z]"), (_POINT, "[.,]"), (_BETWEEN, f"[{_GAP}]")):
        kinds[[*map(ord, re.findall(class_, chars))]] = kind
    digits = re.findall(r"\d", chars)
    kinds[[*map(ord, digits)]] = [*map(int, digits)]
    return kinds


Span = tuple[int, int]


class ColumnPattern(Pattern):
    """Numbers that may start at many places: all that start anywhere in a text are checked together, as columns.

    In ``5 5 5 5`` a card number can start at every digit. Trying 19 digits from each took 15 microseconds a character,
    which one long request can stop a server with."""

    def __init__(
        self, rule: str, piece: Piece, look_behind: str, *, anchor: str, hint: str, columns: Callable[[str], list[Span]]
    ) -> None:
        """``columns`` returns the longest finding from each place of a text."""
        super().__init__(rule, piece, look_behind, anchor=anchor)
        self._hint = hint
        self.columns = columns

    @cached_property
    def hint(self) -> re.Pattern[str]:
        """Found in every text with a finding."""
        return re.compile(self._hint)

    def find(self, text: str, at: int) -> Redaction | None:
        """The first finding at or after a position."""
        return ColumnSearch(self, text).find(at)

    def over(self, text: str) -> ColumnSearch:
        """Search a text."""
        return ColumnSearch(self, text)


class ColumnSearch(PatternSearch):
    """A pattern of columns applied to a text."""

    pattern: ColumnPattern

    @cached_property
    def _spans(self) -> Sequence[Span]:
        return self.pattern.columns(self.text) if self.pattern.hint.search(self.text) else ()

    def find(self, at: int) -> Redaction | None:
        """The first finding at or after a position."""
        place = bisect_left(self._spans, (at, 0))
        if place == len(self._spans):
            return None
        return Redaction(*self._spans[place], self.pattern.rule, self.pattern.replacement)


def _characters(text: str) -> tuple[IntArray, IntArray]:
    """Codes and kinds of the characters, padded so that each has two neighbours on each side."""
    codes = np.frombuffer(f"  {text}  ".encode("utf-32-le", "surrogatepass"), "<u4").astype(np.int64)
    return codes, _kinds()[np.minimum(codes, len(_kinds()) - 1)]


def _in_a_row(places: IntArray, kinds: IntArray) -> IntArray:
    """For each place, how many follow with at most ``_GAP_CHARS`` of a gap between two, itself included."""
    gaps = np.cumsum(kinds == _BETWEEN)[places]
    between = np.diff(places) - 1
    breaks = np.flatnonzero((between > _GAP_CHARS) | (np.diff(gaps) != between))
    index = np.arange(len(places))
    return np.append(breaks, len(places) - 1)[np.searchsorted(breaks, index)] - index + 1


_CARD_DIGITS = range(13, 20)
_CARD = run(one(r"^\D0179"), _digits(_GAP, 12, 18))  # personal cards do not start with 0, 1, 7 or 9
_DOUBLED = np.array([0, 2, 4, 6, 8, 1, 3, 5, 7, 9])


def _cards(text: str) -> list[Span]:
    # A card number may start at any digit and has 13 to 19 of them; it counts only if its check sum is right. An
    # expression with a judge would add up 19 digits from each of a million places. Here the running sums of all digits
    # are made once, as columns, and the sum of any run is the difference of two of them. In Luhn's sum every second
    # digit from the right is doubled, so there are two running sums, one for each parity of the last digit's place.
    # ``test_twice_the_text_takes_twice_the_time``; ``test_each_pattern_finds_exactly_its_samples``.
    _, kinds = _characters(text)
    is_digit = kinds < _LETTER
    is_word = kinds <= _LETTER
    is_point = kinds == _POINT
    places = np.flatnonzero(is_digit)
    digit = kinds[places]
    in_a_row = _in_a_row(places, kinds)

    second = np.append(digit[1:], 0)
    is_issued = (digit >= 3) & (digit <= 6)
    is_issued |= (digit == 2) & (second >= 2) & (second <= 7)
    is_issued |= (digit == 8) & (second >= 1) & (second <= 2)
    is_first = is_issued & ~(is_word[places - 1] | (is_point[places - 1] & is_digit[places - 2]))
    is_last = ~(is_word[places + 1] | (is_point[places + 1] & is_digit[places + 2]))
    # check_sums[p][k]: the sum of the first k digits, where those with an index of parity p count once
    doubled = _DOUBLED[digit]
    is_odd = np.arange(len(places)) % 2
    check_sums = [np.append(0, np.cumsum(np.where(is_odd == parity, digit, doubled))) for parity in (0, 1)]
    ends = np.zeros(len(places), dtype=np.int64)
    for length in _CARD_DIGITS:  # ascending: the longest number counts
        start = np.flatnonzero(is_first & (in_a_row >= length))
        last = start + length - 1
        even, odd = (sums[last + 1] - sums[start] for sums in check_sums)
        is_card = is_last[last] & (np.where(last % 2, odd, even) % 10 == 0)
        ends[start[is_card]] = places[last[is_card]] + 1
    cards = np.flatnonzero(ends)
    return [*zip((places[cards] - 2).tolist(), (ends[cards] - 2).tolist(), strict=True)]


_LAST_DIGIT = Piece(rf"\d{_ENDS}", run(one(r"\d"), glance(".,")).begun, len("0.1"))
_PHONE_GAP = f"{_GAP}./()"
_BEHIND_NO_NUMBER = rf"{_FREE}(?<!\d[{_GAP}./])"
_SEPARATOR = one(f"{_GAP}./")
_TRUNK = run(word("0"), one("1-9"))
_WORLDWIDE = either(
    run(one("+\uff0b"), one("1-9"), _digits(_PHONE_GAP, 7, 14)), run(word("00"), one("1-9"), _digits(_PHONE_GAP, 6, 14))
)
_NATIONAL = either(
    run(word("("), _TRUNK, some(r"\d", 1, 4), word(")"), _digits(_PHONE_GAP, 4, 9)),
    run(_TRUNK, _digits(_PHONE_GAP, 7, 10)),
)
_AREA = run(one("2-9"), one(r"\d"), one(r"\d"))
_AMERICAN = run(
    maybe(run(word("1"), _SEPARATOR)),
    either(run(word("("), _AREA, word(")"), maybe(_SEPARATOR)), run(_AREA, _SEPARATOR)),
    *(one(r"\d"), one(r"\d"), one(r"\d"), _SEPARATOR, one(r"\d"), one(r"\d"), one(r"\d"), _LAST_DIGIT),
)
_PHONE = either(_WORLDWIDE, _NATIONAL, _AMERICAN)
_DATE = re.compile(r"\d{2}[./-]\d{2}[./-](?:19|20)\d{2}(?!\d)")


def _phone_end(text: str, start: int, end: int) -> int | None:
    """Without a country code and gaps, accept only usual lengths; and no dates."""
    if text[start] != "0" or text[start + 1] == "0" or (end - start in (10, 11) and text[start:end].isdecimal()):
        return end
    return None if text[start:end].isdecimal() or _DATE.match(text, start) else end


_LENGTHS = {  # length of IBANs by country
    15: "NO",
    16: "BE",
    18: "DK FI FO GL NL SD",
    19: "MK SI",
    20: "AT BA EE KZ LT LU XK",
    21: "CH HR LI LV",
    22: "BG BH CR DE GB GE IE ME RS VA",
    23: "AE GI IL IQ OM SO TL",
    24: "AD CZ ES MD PK RO SA SE SK TN VG",
    25: "LY PT ST",
    26: "IS TR",
    27: "BI DJ FR GR IT MC MR SM",
    28: "AL AZ BY CY DO GT HU LB NI PL SV",
    29: "BR EG PS QA UA",
    30: "JO KW MU",
    31: "MT SC",
    32: "LC",
    33: "RU",
}
_LENGTH_OF = {country: length for length, countries in _LENGTHS.items() for country in countries.split()}
_IBAN = run(
    either(*(run(*(one(sign + sign.lower()) for sign in country)) for country in sorted(_LENGTH_OF))),
    one("0-9"),
    one("0-9"),
    many(run(maybe(some(_GAP, 1, _GAP_CHARS)), one("A-Za-z0-9")), 11, 29),
    glance(),
)
_HEAD_CHARS = len("GB29")  # country and check digits
_LENGTH_BY_LETTERS = np.zeros((36, 36), dtype=np.int64)
for _country, _length in _LENGTH_OF.items():
    _LENGTH_BY_LETTERS[int(_country[0], 36), int(_country[1], 36)] = _length
_POWERS = np.array([pow(10, exponent, 97) for exponent in range(96)])  # of 10 modulo 97, which repeat from there


def _ibans(text: str) -> list[Span]:
    codes, kinds = _characters(text)
    is_word = kinds <= _LETTER
    is_sign = is_word & (codes < 128)
    places = np.flatnonzero(is_sign)
    is_letter = kinds[places] == _LETTER
    in_a_row = _in_a_row(places, kinds)
    value = np.where(is_letter, (codes[places] | 0x20) - ord("a") + 10, kinds[places])

    # decimals[k] and checks[k]: of the first k signs, how many digits they are with letters as two, and the sum of each
    # divided by 10 for every digit up to its own, modulo 97
    decimals = np.append(0, np.cumsum(1 + is_letter))
    checks = np.append(0, np.cumsum(value * _POWERS[-decimals[1:] % 96] % 97))

    def number(start: IntArray, end: IntArray) -> IntArray:
        remainder: IntArray = (checks[end] - checks[start]) * _POWERS[decimals[end] % 96] % 97
        return remainder

    start = np.arange(max(0, len(places) - _HEAD_CHARS + 1))
    is_head = is_letter[start] & is_letter[start + 1] & ~is_letter[start + 2] & ~is_letter[start + 3]
    is_head &= (places[start + 3] - places[start] == 3) & ~is_word[places[start] - 1]
    start = start[is_head]
    length = _LENGTH_BY_LETTERS[value[start], value[start + 1]]
    start, length = (column[(length > 0) & (in_a_row[start] >= length)] for column in (start, length))
    end = start + length
    body = start + _HEAD_CHARS
    rearranged = number(body, end) * _POWERS[(decimals[body] - decimals[start]) % 96] + number(start, body)
    is_iban = (rearranged % 97 == 1) & ~is_sign[places[end - 1] + 1]
    return [*zip((places[start[is_iban]] - 2).tolist(), (places[end[is_iban] - 1] - 1).tolist(), strict=True)]


# keys

_WORD_LIKE = "A-Za-z0-9_-"
_BASE64 = "A-Za-z0-9+/="


def _key(prefixes: str, chars: str, minimum: int, maximum: int = 300) -> Piece:
    """One of several prefixes, then at least ``minimum`` characters of a class."""
    return run(either(*map(word, prefixes.split())), some(chars, minimum, maximum))


_SK_KEY = _key("sk-", _WORD_LIKE, 20)
_SOON_RANDOM = r"(?=sk-(?:[A-Za-z0-9]{0,15}+[_-]{1,40}+){0,10}+[A-Za-z0-9]{16})"
"""16 letters and digits in a row follow soon: names such as ``sk-learn-pipelines-and-more`` have none."""
_LINE_BREAK = some(r"\s\\nr", 0, 8)
_FRAME = some("A-Z0-9 ", 11, 40)
_PEM_TAIL = many(run(_LINE_BREAK, some(_BASE64, 1, 100)), 0, 3)
_PEM = run(
    word("-----BEGIN "),
    _FRAME,
    word("-----"),
    many(run(_LINE_BREAK, some("A-Za-z-", 1, 20), word(": "), some("A-Za-z0-9,. -", 1, 100)), 0, 4),
    many(run(_LINE_BREAK, some(_BASE64, 16, 100)), 1, 200),
    maybe(run(_PEM_TAIL, _LINE_BREAK, word("-----END "), _FRAME, word("-----"))),
)
_KEY = either(
    _SK_KEY._replace(whole=_SOON_RANDOM + _SK_KEY.whole),  # OpenAI, Anthropic, DeepSeek, OpenRouter
    _key("sk_live_ sk_test_ rk_live_ rk_test_", _WORD_LIKE, 16),  # Stripe, and ours
    _key("whsec_", f"{_BASE64}_-", 16),
    _key("AIza", _WORD_LIKE, 35),  # Google
    _key("ya29.", _WORD_LIKE, 20, 1_000),
    _key("GOCSPX-", _WORD_LIKE, 20),
    run(_key("AKIA ASIA", "A-Z0-9", 16, 16), unless("A-Za-z0-9")),  # Amazon
    _key("ghp_ gho_ ghu_ ghs_ ghr_", "A-Za-z0-9", 36),  # GitHub
    _key("github_pat_", "A-Za-z0-9_", 22),
    _key("glpat-", _WORD_LIKE, 20),  # GitLab
    _key("xoxa- xoxb- xoxe- xoxo- xoxp- xoxr- xoxs- xapp-", "A-Za-z0-9-", 10),  # Slack
    _key("hf_ gsk_ r8_ npm_ pplx-", "A-Za-z0-9", 30),  # Hugging Face, Groq, Replicate, npm, Perplexity
    _key("xai-", "A-Za-z0-9", 40),
    run(word("SG."), some(_WORD_LIKE, 20, 30), word("."), some(_WORD_LIKE, 40, 50)),  # SendGrid
    _PEM,
)


def _key_end(text: str, start: int, end: int) -> int | None:
    """Exclude names with the same prefix, and public keys."""
    key = text[start:end]
    if key.startswith("-----"):
        return end if "PRIVATE KEY" in key[:60] else None
    return end if not key.startswith("sk-") or any(map(str.isdigit, key)) else None


PATTERNS: dict[PatternKind, Pattern] = {
    "email": EmailPattern(),
    "phone": Pattern("phone", _PHONE, _BEHIND_NO_NUMBER, _phone_end, anchor=r"+\uff0b(0-9"),
    "card": ColumnPattern(
        "card",
        _CARD,
        rf"{_FREE}(?<!\d[.,])",
        anchor=r"\d",
        hint=rf"\d(?:[{_GAP}]{{0,{_GAP_CHARS}}}+\d){{{_CARD_DIGITS[0] - 1}}}",
        columns=_cards,
    ),
    "iban": ColumnPattern(
        "iban",
        _IBAN,
        _FREE,
        anchor="A-Za-z",
        hint=_anchored("0-9", 2, rf"{_FREE}(?=[A-Za-z]{{2}}[0-9]{{2}})", _IBAN.whole),
        columns=_ibans,
    ),
    "api_key": Pattern("api_key", _KEY, _FREE, _key_end, anchor="srwAyGgxhnpS-"),
}
