"""Extracts from a question what must be equal in two questions for one answer to serve both, with a table of words."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple

from routewright.data.guard_words import guard_words

_SPELLINGS = str.maketrans(
    {
        "’": "'", "‘": "'", "´": "'", "“": '"', "”": '"', "„": '"', "−": "-", "–": "-", "‐": "-", "‑": "-",
        "≠": "!=", "≤": "<=", "≥": ">=", "×": "*", "÷": "/", "⁄": "/", "٫": ".", "٬": ",",
        **{power: f"^{number}" for number, power in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")}, "½": " 1/2", "¼": " 1/4", "¾": " 3/4",
    }
)  # fmt: skip
"""ASCII spellings of signs. Powers and fractions stay separate from the number before them."""
_LITERAL = re.compile(  # quotations, code, addresses, options; bounded where matches could start at every character
    r"```.*?```|`[^`]*`|\"[^\"]*\"|(?<!\w)'[^'\n]+'(?!\w)|(?<!\w)\w{1,20}://\S+|(?<!\S)\S{1,64}@\w\S*"
    r"|(?<!\S)--?[A-Za-z][\w-]*",
    re.DOTALL,
)
_ALONE = re.compile(r"(?<!\S)[.,;:!?*/\\()\[\]{}#@|]+(?=\s+\S)|(?<!\S)[.,;:*/\\()\[\]{}#@|]+(?=\s*\Z)")
"""Punctuation between spaces, as in "What does . mean?". "Why ?" ends with an ordinary question mark."""
_INDENTED = re.compile(r"\n[ \t]+\S")
_INDENT = re.compile(r"\n[ \t]*(?=\S)")
_TOKEN = re.compile(
    r"(?<![\w.])-?\.?[0-9]+(?:[.,:][0-9]+)*"
    r"|[^\W\d_][^\W_]*(?:'[^\W\d_]+)*(?:[_.:()<>#*]+\w+|(?:/\w+){2,}|-[0-9]\w*)*(?:\(\)|\+\+|#)?"
    r"|[=!<>]=+|&&|\|\||[-=]>|<<|>>|\*\*|[^\w\s]|\w+"
)
_CODE = re.compile(r"[_()<>#*0-9]|\+\+|[.:]\w|\w/\w+/")
_THOUSANDS = re.compile(r",(?=\d{3}(?!\d))")
_DEBT = re.compile(r"(?<!\w)-([$€£¥₹])(?=\.?\d)")
_DIGITS = frozenset("0123456789")
_ENDINGS = ("ing", "ed", "es", "s", "ly", "e")
_FACTS = "number scale ordinal ordinal_end currency unit date ambiguous_date quantity preposition clause".split()
"""Sections of the table whose effect depends on a word's position in a text."""


class Word(NamedTuple):
    """Everything known about a word without its context."""

    text: str  # without the second part of a contraction
    stem: str
    facts: dict[str, str]  # by section: the first word of its group; empty for most words
    filler: bool
    negation: bool
    poles: tuple[tuple[str, int], ...]  # pairs of opposites, and its side: 1 or -1
    prefixed: tuple[tuple[str, str], ...]  # its stem with and without a prefix such as "un"


class Lexicon:
    """The parsed table. Sections consist of groups of words, one per line, named by their first word."""

    def __init__(self, table: str) -> None:
        self.sections: dict[str, dict[str, str]] = defaultdict(dict)
        self.poles: dict[str, tuple[tuple[str, int], ...]] = {}
        section = ""
        for line in table.splitlines():
            if line.startswith("["):
                section = line.strip("[]")
            elif line and not line.startswith("#") and section != "opposite":
                self.sections[section] |= dict.fromkeys(line.split(), line.split()[0])
            elif "|" in line:
                axis, other = line.split("|")
                self._oppose(axis, 1, axis)
                self._oppose(axis, -1, other)

    def _oppose(self, axis: str, side: int, words: str) -> None:
        for root in {self.stem(word + ending) for word in words.split() for ending in ("", "er", "est")}:
            poles = self.poles.get(root, ())
            if all(axis != name for name, _ in poles):
                self.poles[root] = (*poles, (axis, side))

    def stem(self, word: str) -> str:
        """A word without common English endings: equal for all forms of a word, not always a word itself."""
        word = self.sections["irregular"].get(word, word)
        for ending in _ENDINGS:
            if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
                word = word[: -len(ending)]
                if ending in ("ing", "ed") and len(word) > 3 and word[-1] == word[-2] and word[-1] not in "ls":
                    word = word[:-1]
                if ending not in ("s", "ly"):
                    break
        return word[:-1] + "i" if word.endswith("y") and len(word) > 3 else word

    def word(self, word: str) -> Word:
        """Look up a lower-case word. A contraction counts as its first part."""
        negated = word in self.sections["negated"] or word.endswith("n't")
        negation = negated or word in self.sections["negation"]
        if negated:
            word = "can" if word.startswith("can") else word.replace("'", "").removesuffix("nt")
        word = word.split("'")[0]
        root = self.stem(word)
        facts = {section: self.sections[section][word] for section in _FACTS if word in self.sections[section]}
        filler = word in self.sections["filler"] or word in self.sections["negation"]
        cut = tuple((root, root.removeprefix(prefix)) for prefix in self.sections["prefix"] if root.startswith(prefix))
        return Word(word, root, facts, filler, negation, self.poles.get(root, ()), cut)


@lru_cache(1)
def lexicon() -> Lexicon:
    """The package's table, loaded on first use."""
    return Lexicon(guard_words())


@lru_cache(16_384)
def look_up(word: str) -> Word:
    """Look up a lower-case word, cached."""
    return lexicon().word(word)


@lru_cache(4096)
def gist(text: str) -> Question:
    """Cached ``Question`` of a text. Computing one takes about 16 µs for a short text."""
    return Question(text)


class Question:
    """Properties of a text that the guards compare, from one pass over its tokens. Stems are words without endings."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.content: tuple[str, ...] = ()  # stems of content words, in order
        self.words: set[str] = set()  # lower case
        self.stems: set[str] = set()
        self.literals: set[str] = set()  # in original case: quotations, code, options, letters, operators, symbols
        self.numbers: list[tuple[str, str]] = []  # number and unit ("": none), sorted
        self.units: set[str] = set()
        self.dates: set[str] = set()
        self.names: set[str] = set()  # lower case
        self.negations = 0
        self.negated: set[str] = set()  # the stem after each negation
        self.quantities: set[str] = set()
        self.poles: dict[str, tuple[int, int]] = {}  # by pair of opposites: number of words on each side
        self.directed: dict[str, str] = {}  # by stem: the preposition before it, such as "from"
        self.clauses: list[tuple[str, ...]] = []  # content of each clause, sorted
        self.prefixed: list[tuple[str, str]] = []  # stems with a prefix such as "un", and without it
        self._content: list[str] = []
        self._clause_from = 0
        self._preposition = self._currency = ""
        self._negation = self._in_number = False
        self._shouts = text.isupper()
        self._read(text if text.isascii() else _normalised(text))

    def _read(self, text: str) -> None:
        if any(mark in text for mark in "`\"'@:-"):
            self.literals.update(literal.strip("`\"' .,?!") for literal in _LITERAL.findall(text))
        self.literals.update(_ALONE.findall(text))
        if _INDENTED.search(text):  # indentation of code
            self.literals.add("".join(_INDENT.findall(text)))
        tokens = _TOKEN.findall(_DEBT.sub(r"\1-", text) if "-" in text else text)
        starts = True
        before = ""
        for place, token in enumerate(tokens, 1):
            if token[0].isalpha():
                if len(token) == 1 and _stands_alone(token, before, tokens[place : place + 2], text, starts):
                    self.literals.add(token)
                self._word(token, before, starts)
                starts = False
            elif token[-1] in _DIGITS and token[0] != "_":
                self._number(token)
                starts = False
            else:
                self._mark(token, before, tokens[place] if place < len(tokens) else "")
                starts = token in ".!?:"
            before = token
        self._end_clause()
        if self._negation:
            self.negated.add("")
        self.content = tuple(self._content)
        self.numbers.sort()
        self.clauses.sort()

    def _word(self, token: str, before: str, starts: bool) -> None:
        word = look_up(token.lower())
        self.words.add(word.text)
        self.stems.add(word.stem)
        inside = not starts or not token[1:].islower()
        named = not token.islower() and inside and len(token) > 1 and word.text != "i"
        is_code = not token.isalpha() and _CODE.search(token)
        if is_code or (not token.islower() and self._is_spelled(token, word, before[-1:] in _DIGITS)):
            self.literals.add(token)
        if word.facts:
            self._facts(word, named or before[-1:] in _DIGITS)
        else:
            if named:
                self.names.add(word.text)
            if word.text != "and":
                self._in_number = False
        if word.negation:
            self._negation = True
            self.negations += 1
        for axis, side in word.poles:
            one, other = self.poles.get(axis, (0, 0))
            self.poles[axis] = (one + 1, other) if side > 0 else (one, other + 1)
        self.prefixed += word.prefixed
        if not word.filler:
            self._carry(word.stem)

    def _is_spelled(self, token: str, word: Word, after_figure: bool) -> bool:
        """True if its capitals change the meaning of a token: "MyName", "5 MW", "5 Mb", "the US", "password ABC"."""
        if not token.isupper() and not token[1:].islower():
            return True
        if after_figure:
            return len(token) == 2 if token.istitle() else len(token) in (2, 3) and not word.facts
        return len(token) > 1 and token.isupper() and not self._shouts and word.text != "ok"

    def _facts(self, word: Word, named: bool) -> None:
        facts = word.facts
        if "number" in facts or "scale" in facts:
            scale = facts.get("scale")
            figure = scale or facts["number"]
            unit = "one" if word.text == "one" else ""
            so_far, its_unit = self.numbers[-1] if self._in_number else ("", "")
            combines = scale or its_unit in ("", "one")
            if combines and len(so_far) < 19 and so_far.replace(".", "", 1).isdecimal():  # few digits: Decimal is exact
                value, more = Decimal(so_far), Decimal(figure)
                if scale or value > more:
                    self.numbers.pop()
                    figure = _trimmed(f"{value * more if scale else value + more:f}")
                    unit = "" if its_unit == "one" else its_unit
            self.numbers.append((figure, unit))
            self._in_number = True
            return
        if "ordinal" in facts:
            self.numbers.append((facts["ordinal"], "th"))
        elif self._in_number and "ordinal_end" in facts:
            self.numbers[-1] = (self.numbers[-1][0], "th")
        elif "unit" in facts or "currency" in facts:
            self._unit(facts)
        elif "date" in facts and (named or "ambiguous_date" not in facts):
            self.dates.add(facts["date"])
        self._in_number = False
        if "quantity" in facts:
            self.quantities.add(facts["quantity"])
        if "clause" in facts:
            self._end_clause()
        self._preposition = facts.get("preposition", self._preposition)

    def _carry(self, stem: str) -> None:
        self._content.append(stem)
        if self._negation:
            self.negated.add(stem)
            self._negation = False
        if self._preposition:
            self.directed[stem] = self._preposition
            self._preposition = ""

    def _number(self, token: str) -> None:
        """Add a number in digits, without commas between thousands."""
        parts = token.split(":", 1)
        if len(parts) > 1:  # the time of day, a ratio
            self.numbers.append((parts[0].lstrip("0") or "0", parts[1] if parts[1].strip("0:") else ""))
        else:
            figure = _THOUSANDS.sub("", f"0{token}" if token[0] == "." else token).replace(",", ".")
            self.numbers.append((_trimmed(figure) if self._currency else figure, self._currency))
        self._carry(token)
        self._currency = ""
        self._in_number = True

    def _unit(self, facts: dict[str, str]) -> None:
        unit = facts.get("currency") or facts["unit"]
        self.units.add(unit)
        figure, its_unit = self.numbers[-1] if self._in_number else ("", unit)
        if not its_unit:
            self.numbers[-1] = (_trimmed(figure) if "currency" in facts else figure, unit)

    def _mark(self, token: str, before: str, after: str) -> None:
        facts = look_up(token).facts
        if token in ",;.!?":
            self._end_clause()
        elif facts:
            self._unit(facts)
            self._currency = facts.get("currency", "")
        elif len(token) > 1 or (unicodedata.category(token)[0] == "S" and token != "`"):
            self.literals.add(token)
            self._content.append(token)
        elif token in "*/":
            self._content.append(token)
            if all(side[-1:] in _DIGITS or (len(side) == 1 and side.isalpha()) for side in (before, after)):
                self.literals.add(token)
        self._in_number = self._in_number and token == "-"

    def _end_clause(self) -> None:
        if len(self._content) > self._clause_from:
            self.clauses.append(tuple(self._content[self._clause_from :]))
            self._clause_from = len(self._content)


def _stands_alone(letter: str, before: str, after: list[str], text: str, starts: bool) -> bool:
    """True if a letter is a name, as in "plan B". False for a word ("a") or a part of one ("e-mail")."""
    following = after[0] if after else ""
    if following == "-" and f"{letter}-" in text and len(after) > 1 and len(after[1]) > 1 and after[1].isalpha():
        return False
    if letter in "aA":
        if not following or (following[0] in "-+*/=<>~^|&?!.,;:)" and following[-1] not in _DIGITS):
            return True
        return letter == "A" and not starts and not following[0].isupper()
    if letter in "sdmt":  # from "what s" and "don t"
        return not look_up(before.lower()).filler and not (letter == "t" and before.endswith("n"))
    return letter.isascii() and letter not in "iI"


def _normalised(text: str) -> str:
    """Replace signs, letters and digits by ASCII equivalents."""
    text = unicodedata.normalize("NFKC", text.translate(_SPELLINGS)).translate(_SPELLINGS)
    return "".join(str(unicodedata.decimal(sign)) if sign.isdecimal() else sign for sign in text)


def _trimmed(figure: str) -> str:
    """Remove trailing zeros: "5.50" is "5.5"."""
    return figure.rstrip("0").rstrip(".") if figure.count(".") == 1 else figure
