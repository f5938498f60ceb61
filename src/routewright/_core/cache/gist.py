"""What is in a text that must be the same in two questions, if one answer is to do for both?"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from .lexicon import (
    AMBIGUOUS_DATES,
    CLAUSE_WORDS,
    DATES,
    DIRECTIONS,
    FILLERS,
    NEGATED,
    NEGATIONS,
    NUMBERS,
    ORDINAL_ENDS,
    ORDINALS,
    POLES,
    PREFIXES,
    QUANTITIES,
    SCALES,
    UNITS,
    stem,
)

_LITERAL = re.compile(
    r"```.*?```|`[^`]*`|\"[^\"]*\"|“[^“”]*”|(?<!\w)'[^'\n]+'(?!\w)|(?<!\w)\w{1,20}://\S+|(?<!\S)\S{1,64}@\w\S*",
    re.DOTALL,
)
"""What is quoted, code, addresses. Bounded where it could begin anew at each character."""
_TOKEN = re.compile(
    r"(?<![\w.])[-−]?[0-9]+(?:[.,:][0-9]+)*"
    r"|[^\W\d_][^\W_]*(?:['’][^\W\d_]+)*(?:[_.:()<>#*]+\w+|(?:/\w+){2,}|-[0-9]\w*)*(?:\(\)|\+\+|#)?|[^\w\s]|\w+"
)
_CODE = re.compile(r"[_()<>#*0-9]|\+\+|[.:]\w|\w/\w+/")
_THOUSANDS = re.compile(r",(?=\d{3}(?!\d))")
_CLAUSE_ENDS = frozenset(",;.!?")
_OPERATORS = frozenset("+*/^=<>")
_DIGITS = frozenset("0123456789")


class Gist(NamedTuple):
    """What the guards compare of a text. Stems are words without their endings."""

    text: str
    content: tuple[str, ...]
    """Stems of the words that carry meaning, in order."""
    words: frozenset[str]
    """In lower case."""
    stems: frozenset[str]
    """Of all words."""
    literals: frozenset[str]
    """What is quoted, code, addresses."""
    numbers: tuple[tuple[float, str], ...]
    """Sorted, with their units where they have one."""
    units: frozenset[str]
    dates: frozenset[str]
    names: frozenset[str]
    """In lower case."""
    negated: frozenset[str]
    """The stem that follows each negation."""
    quantities: frozenset[str]
    negations: int
    poles: dict[str, tuple[int, int]]
    """Of axes of opposites: how many words are on each side."""
    directed: dict[str, str]
    """Stems that stand behind a preposition such as "from", with it."""
    clauses: tuple[tuple[str, ...], ...]
    """The content of each clause, sorted."""
    prefixed: tuple[tuple[str, str], ...]
    """Stems with a prefix such as "un", and what is left without it."""


@lru_cache(4096)
def gist(text: str) -> Gist:
    """What the guards compare of a text. Some 20 µs for a short one, once."""
    return _Reading(text).gist()


class _Word(NamedTuple):
    """What is known of a word, wherever it stands."""

    word: str
    root: str
    plain: bool
    """Nothing but its stem matters."""
    filler: bool
    negation: bool
    poles: tuple[tuple[str, int], ...]
    prefixed: tuple[tuple[str, str], ...]


@lru_cache(16_384)
def _known(word: str) -> _Word:
    """The facts of a word in lower case. Contractions count as their first part."""
    negation = word in NEGATIONS or word in NEGATED or word.endswith("n't")
    if word.endswith("n't") or word in NEGATED:
        word = "can" if word.startswith("can") else word.replace("'", "").removesuffix("nt")
    word = word.split("'")[0]
    root = stem(word)
    tables = (NUMBERS, ORDINALS, UNITS, DATES, QUANTITIES, DIRECTIONS, CLAUSE_WORDS, ORDINAL_ENDS)
    prefixed = tuple((root, root.removeprefix(prefix)) for prefix in PREFIXES if root.startswith(prefix))
    filler = word in FILLERS or word in NEGATIONS
    return _Word(
        word, root, not any(word in table for table in tables), filler, negation, POLES.get(root, ()), prefixed
    )


class _Reading:
    """One walk over the tokens of a text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.content: list[str] = []
        self.words: set[str] = set()
        self.stems: set[str] = set()
        self.literals: set[str] = set()
        self.numbers: list[tuple[float, str]] = []
        self.units: set[str] = set()
        self.dates: set[str] = set()
        self.names: set[str] = set()
        self.negated: set[str] = set()
        self.quantities: set[str] = set()
        self.negations = 0
        self.poles: dict[str, tuple[int, int]] = {}
        self.directed: dict[str, str] = {}
        self.clauses: list[tuple[str, ...]] = []
        self.prefixed: list[tuple[str, str]] = []
        self._clause_from = 0
        self._preposition = ""
        self._currency = ""
        self._negation = False
        self._in_number = False

    def gist(self) -> Gist:
        if any(mark in self.text for mark in "`\"“'@:"):
            self.literals.update(found.strip("`\"“”' .,?!") for found in _LITERAL.findall(self.text))
        starts, before = True, ""
        for token in _TOKEN.findall(self.text):
            if token[0].isalpha():
                self._word(token, before, starts)
                starts = False
            elif token[-1] in _DIGITS and (token[0] in _DIGITS or token[0] in "-−"):
                self._number(token)
                starts = False
            else:
                self._mark(token)
                starts = token in ".!?:"
            before = token
        self._end_clause()
        if self._negation:
            self.negated.add("")
        return Gist(
            self.text, tuple(self.content), frozenset(self.words), frozenset(self.stems), frozenset(self.literals),
            tuple(sorted(self.numbers)), frozenset(self.units), frozenset(self.dates), frozenset(self.names),
            frozenset(self.negated), frozenset(self.quantities),
            self.negations, self.poles, self.directed, tuple(sorted(self.clauses)), tuple(self.prefixed),
        )  # fmt: skip

    def _word(self, token: str, before: str, starts: bool) -> None:
        known = _known(token.lower().replace("’", "'"))
        self.words.add(known.word)
        self.stems.add(known.root)
        named = False
        if not token.islower():
            named = known.word != "i" and (not starts or not token[1:].islower()) and len(token) > 1
        if not token.isalpha() and _CODE.search(token):
            self.literals.add(token)
        if not known.plain:
            self._fact(known.word, named or before[-1:] in _DIGITS)
        else:
            if named:
                self.names.add(known.word)
            if known.word != "and":
                self._in_number = False
        if known.negation:
            self._negation = True
            self.negations += 1
        for axis, side in known.poles:
            one, other = self.poles.get(axis, (0, 0))
            self.poles[axis] = (one + 1, other) if side > 0 else (one, other + 1)
        self.prefixed += known.prefixed
        if not known.filler:
            self._carry(known.root)

    def _fact(self, word: str, named: bool) -> None:
        """Take in a word of one of the tables."""
        if word in NUMBERS:
            self._spelled(word, NUMBERS[word])
            return
        if word in ORDINALS:
            self.numbers.append((ORDINALS[word], "th"))
        elif self._in_number and word in ORDINAL_ENDS:
            self.numbers[-1] = (self.numbers[-1][0], "th")
        elif word in UNITS:
            self._unit(UNITS[word])
        elif word in DATES and (word not in AMBIGUOUS_DATES or named):
            self.dates.add(DATES[word])
        self._in_number = False
        if word in QUANTITIES:
            self.quantities.add(QUANTITIES[word])
        if word in CLAUSE_WORDS:
            self._end_clause()
        if word in DIRECTIONS:
            self._preposition = DIRECTIONS[word]

    def _carry(self, root: str) -> None:
        """Take in a stem that carries meaning."""
        self.content.append(root)
        if self._negation:
            self.negated.add(root)
            self._negation = False
        if self._preposition:
            self.directed[root] = self._preposition
            self._preposition = ""

    def _spelled(self, word: str, value: float) -> None:
        """A number in words: "two hundred and five" is one."""
        if self._in_number and (word in SCALES or self.numbers[-1][0] > value):
            so_far = self.numbers.pop()[0]
            value = so_far * value if word in SCALES else so_far + value
        self.numbers.append((value, "one" if word == "one" else ""))
        self._in_number = True

    def _number(self, token: str) -> None:
        whole, colon, rest = token.replace("−", "-").partition(":")
        if colon and rest.strip("0:"):
            self.numbers.append((float(_figure(whole)), rest))  # the time of day, a ratio
        else:
            self.numbers.append((float(_figure(whole)), self._currency))
        self._carry(token)
        self._currency = ""
        self._in_number = True

    def _unit(self, unit: str) -> None:
        self.units.add(unit)
        if self._in_number and not self.numbers[-1][1]:
            self.numbers[-1] = (self.numbers[-1][0], unit)

    def _mark(self, token: str) -> None:
        if token in UNITS:
            self._unit(UNITS[token])
            self._currency = UNITS[token] if token not in "%°" else ""
        elif token in _OPERATORS:
            self.content.append(token)
        elif token in _CLAUSE_ENDS:
            self._end_clause()
        self._in_number = self._in_number and token == "-"

    def _end_clause(self) -> None:
        if len(self.content) > self._clause_from:
            self.clauses.append(tuple(self.content[self._clause_from :]))
            self._clause_from = len(self.content)


def _figure(digits: str) -> str:
    """A number as ``float`` reads it: commas between thousands go, others count as points."""
    whole, *rest = _THOUSANDS.sub("", digits).replace(",", ".").split(".")
    return f"{whole}.{''.join(rest)}"
