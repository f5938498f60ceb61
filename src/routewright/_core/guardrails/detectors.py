"""Finds e-mail addresses, telephone numbers, card numbers, IBANs and API keys in a text, in linear time.

A ``Piece`` is a regular expression together with one for its prefixes, so that a stream knows what to hold back and for
how long. Every repetition is bounded and possessive, so there is no backtracking.

Digits of every script match, full-width ones too, with zero-width characters between them. Letters of keys and IBANs
are ASCII.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from routewright.wire import PatternKind


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


def some(chars: str, least: int, most: int) -> Piece:
    """``least`` to ``most`` characters of a class, greedy."""
    return Piece(f"[{chars}]{{{least},{most}}}+", rf"[{chars}]{{0,{most - 1}}}+\Z", most)


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


def many(piece: Piece, least: int, most: int) -> Piece:
    """``least`` to ``most`` repetitions, greedy."""
    repeated = f"(?:{piece.whole}){{{least},{most}}}+"
    return Piece(repeated, f"(?:{piece.whole}){{0,{most - 1}}}+{piece.begun}", piece.longest * most)


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
_DIGIT = one(r"\d")
_FREE = r"(?<![A-Za-z\d])"  # not inside a longer word or number


class Found(NamedTuple):
    """Position of a finding, and its replacement."""

    start: int
    end: int
    rule: str
    replacement: str


class Pattern:
    """One kind of finding: a look-behind (``after``), an expression, and a judge of its matches."""

    def __init__(self, rule: str, piece: Piece, after: str, judge: Judge) -> None:
        self.rule = rule
        self.replacement = f"[{rule}]"
        self.longest = piece.longest
        self.judge = judge
        self._written = after + piece.whole, after + piece.begun
        self._read: tuple[re.Pattern[str], re.Pattern[str]] | None = None

    def over(self, text: str) -> PatternSearch:
        """Search a text. The first search compiles the expressions, which is slow."""
        if self._read is None:
            whole, begun = self._written
            self._read = re.compile(whole), re.compile(begun)
        return PatternSearch(self, text, *self._read)


class PatternSearch(NamedTuple):
    """A pattern applied to a text."""

    pattern: Pattern
    text: str
    whole: re.Pattern[str]
    begun: re.Pattern[str]

    def find(self, at: int) -> Found | None:
        """The first finding at or after a position."""
        while (match := self.whole.search(self.text, at)) is not None:
            start, end = match.span()
            last = self.pattern.judge(self.text, start, end)
            if last is not None:
                return Found(start, last, self.pattern.rule, self.pattern.replacement)
            at = start + 1
        return None

    def open_from(self, at: int) -> int:
        """First position at which more text could create or change a finding, else the end of the text."""
        match = self.begun.search(self.text, max(at, len(self.text) - self.pattern.longest))
        return len(self.text) if match is None else match.start()


# e-mail addresses

_NO_TOP_LEVEL = frozenset("png jpg jpeg gif svg webp avif ico css js ts tsx jsx html json toml yaml".split())
"""File extensions: names such as ``icon@2x.png`` are not addresses."""
_AT = either(one("@\uff20\ufe6b"), word(r"\u0040"), word("%40"))
_DOTS = ".\uff0e\u3002"
_LABEL = some(rf"{_LETTERS}\d{_THIN}-", 1, 63)
_EMAIL = run(
    one(rf"{_LETTERS}\d_+~-"),
    some(rf"{_LETTERS}\d_+~.'{_THIN}-", 0, 63),
    _AT,
    _LABEL,
    many(run(one(_DOTS), _LABEL), 1, 8),
)
_AT_SIGN = re.compile(_AT.whole)
_LAST_LABELS = re.compile(rf"[{_DOTS}]([^{_DOTS}]+)")


def _email_end(text: str, start: int, end: int) -> int | None:
    """Cut off what cannot end a domain: a dash, a version number."""
    sign = _AT_SIGN.search(text, start, end)
    assert sign is not None, "the pattern has one"
    for found in reversed([*_LAST_LABELS.finditer(text, sign.end(), end)]):
        label = found[1].rstrip("-")
        if len(label) >= 2 and label[0].isalpha():
            return None if label.lower() in _NO_TOP_LEVEL else found.start(1) + len(label)
    return None


# numbers

_DIGITS = re.compile(r"\d+")
_UNBROKEN = re.compile(r"[A-Za-z\d]|[.,]\d")
_BREAK = glance(".,")


def _ends(text: str, start: int, end: int) -> Iterator[tuple[str, int]]:
    """Digits of prefixes of a match and their ends, longest first, not ending inside a number or word."""
    ends, digits = [], ""
    for group in _DIGITS.finditer(text, start, end):
        digits += group[0]
        ends.append((len(digits), group.end()))
    if not digits.isascii():
        digits = "".join(str(int(digit)) for digit in digits)
    for count, last in reversed(ends):
        if not _UNBROKEN.match(text, last):
            yield digits[:count], last


def _grouped(gap: str, least: int, most: int) -> Piece:
    """``least`` to ``most`` digits, after the first with up to two characters of ``gap`` before each."""
    return many(run(maybe(some(gap, 1, 2)), _DIGIT), least, most)


_CARD = run(one(r"^\D0179"), _grouped(_GAP, 12, 18), _BREAK)  # personal cards do not start with 0, 1, 7 or 9
_ISSUERS = re.compile(r"[4-6]|3[0-9]|2[2-7]|8[12]")
_DOUBLED = "0246813579"


def _card_end(text: str, start: int, end: int) -> int | None:
    for digits, last in _ends(text, start, end):
        if len(digits) < 13 or not _ISSUERS.match(digits):
            return None
        doubled = (int(_DOUBLED[int(digit)]) for digit in digits[-2::-2])
        if (sum(map(int, digits[-1::-2])) + sum(doubled)) % 10 == 0:
            return last
    return None


_PHONE_GAP = f"{_GAP}./()"
_BEHIND_NO_NUMBER = rf"{_FREE}(?<!\d[{_GAP}./])"
_SEPARATOR = one(f"{_GAP}./")
_WORLDWIDE = run(either(one("+\uff0b"), word("00")), one("1-9"), _grouped(_PHONE_GAP, 6, 14), _BREAK)
_TRUNK = run(word("0"), one("1-9"))
_NATIONAL = either(
    run(word("("), _TRUNK, some(r"\d", 1, 4), word(")"), _grouped(_PHONE_GAP, 4, 9), _BREAK),
    run(_TRUNK, _grouped(_PHONE_GAP, 7, 10), _BREAK),
)
_AREA = run(one("2-9"), _DIGIT, _DIGIT)
_AMERICAN = run(
    maybe(run(word("1"), _SEPARATOR)),
    either(run(word("("), _AREA, word(")"), maybe(_SEPARATOR)), run(_AREA, _SEPARATOR)),
    *(_DIGIT, _DIGIT, _DIGIT, _SEPARATOR, _DIGIT, _DIGIT, _DIGIT, _DIGIT),
    _BREAK,
)
_PHONE = either(_WORLDWIDE, _NATIONAL, _AMERICAN)
_DATE = re.compile(r"\d{2}[./-]\d{2}[./-](?:19|20)\d{2}(?!\d)")


def _phone_end(text: str, start: int, end: int) -> int | None:
    """Without a country code, accept only usual lengths, and no dates."""
    if text[start] not in "0(" or text.startswith("00", start):
        return next((last for digits, last in _ends(text, start, end) if len(digits) >= 8), None)
    if _DATE.match(text, start):
        return None
    for digits, last in _ends(text, start, end):
        if len(digits) in (10, 11) or (len(digits) >= 9 and last - start > len(digits)):
            return last
    return None


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
_ALNUM = re.compile(r"[A-Za-z0-9]")
_IBAN = run(
    either(*(run(*(one(sign + sign.lower()) for sign in country)) for country in sorted(_LENGTH_OF))),
    one("0-9"),
    one("0-9"),
    many(run(maybe(some(_GAP, 1, 2)), one("A-Za-z0-9")), 11, 29),
    glance(),
)


def _iban_end(text: str, start: int, end: int) -> int | None:
    length = _LENGTH_OF[text[start : start + 2].upper()]
    places = [found.start() for found in _ALNUM.finditer(text, start, end)][:length]
    if len(places) < length or _ALNUM.match(text, places[-1] + 1):
        return None
    number = "".join(text[place] for place in places).upper()
    return places[-1] + 1 if int("".join(str(int(sign, 36)) for sign in number[4:] + number[:4])) % 97 == 1 else None


# keys

_WORD_LIKE = "A-Za-z0-9_-"
_BASE64 = "A-Za-z0-9+/="


def _key(prefixes: str, chars: str, least: int, most: int = 300) -> Piece:
    """One of several prefixes, then at least ``least`` characters of a class."""
    return run(either(*map(word, prefixes.split())), some(chars, least, most))


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
    _key("sk-", _WORD_LIKE, 20),  # OpenAI, Anthropic, DeepSeek, OpenRouter
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
_RANDOM = re.compile(r"[A-Za-z0-9]{16}")


def _key_end(text: str, start: int, end: int) -> int | None:
    """Exclude names with the same prefix, and public keys."""
    found = text[start:end]
    if found.startswith("-----"):
        return end if "PRIVATE KEY" in found[:60] else None
    body = _RANDOM.search(found) if found.startswith("sk-") else None
    is_key = not found.startswith("sk-") or (body is not None and any(sign.isdigit() for sign in found))
    return end if is_key else None


PATTERNS: dict[PatternKind, Pattern] = {
    "email": Pattern("email", _EMAIL, r"(?<!\\)", _email_end),
    "phone": Pattern("phone", _PHONE, _BEHIND_NO_NUMBER, _phone_end),
    "card": Pattern("card", _CARD, rf"{_FREE}(?<!\d[.,])", _card_end),
    "iban": Pattern("iban", _IBAN, _FREE, _iban_end),
    "api_key": Pattern("api_key", _KEY, _FREE, _key_end),
}
