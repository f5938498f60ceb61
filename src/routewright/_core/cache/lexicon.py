"""Look-up of words in the guards' word table, and stemming."""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from typing import NamedTuple

from routewright.data.guard_words import guard_words

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
            there = self.poles.get(root, ())
            if all(axis != known for known, _ in there):
                self.poles[root] = (*there, (axis, side))

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
def known(word: str) -> Word:
    """Look up a lower-case word, cached."""
    return lexicon().word(word)
