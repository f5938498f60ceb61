"""Finds the words and phrases of a list in a text, however they are written. Case is folded as Unicode does
(``STRASSE`` is ``straße``), words are whole, and the words of a phrase may be parted by any space up to
``MAX_GAP_CHARS``. Scripts without spaces between words have no whole words: there, a phrase is found anywhere."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count, groupby, repeat

from .detectors import Found

MAX_GAP_CHARS = 1_000
REDACTED = "[redacted]"  # takes the place of a phrase
_GAP = rf"\s{{1,{MAX_GAP_CHARS}}}+"
_SIGN = re.compile(rf"{_GAP}|\S")
_UNSPACED = re.compile(  # Thai, Lao, Burmese, Khmer, and what is written in the east of Asia
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ud7ff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)


class Phrases:
    """Finds any of a list. Takes time by the length of the text, hardly by that of the list. A finding tells the
    ``rule``, never the phrase."""

    def __init__(self, phrases: Iterable[str], rule: str) -> None:
        known = sorted({" ".join(phrase.casefold().split()) for phrase in phrases})
        self.rule = rule
        self.longest = 1 + max(len(phrase) + MAX_GAP_CHARS * phrase.count(" ") for phrase in known)
        self._whole = re.compile("|".join(_branches(known, 0)))
        self._starts = re.compile("|".join({_before(phrase[0]) + re.escape(phrase[0]) for phrase in known}))
        self._begun = frozenset(phrase[:end] for phrase in known for end in range(1, len(phrase) + 1))
        self._most_signs = max(map(len, known))

    def over(self, text: str) -> PhraseSearch:
        """Search a text."""
        return PhraseSearch(self, text)

    def find(self, text: str, at: int) -> tuple[int, int] | None:
        """Where the first from a place on stands in a folded text."""
        match = self._whole.search(text, at)
        return None if match is None else match.span()

    def open_from(self, text: str, at: int) -> int:
        """The first place of a folded text at which what follows decides whether something begins there."""
        signs = [*_SIGN.finditer(text, max(at, len(text) - self.longest))][-self._most_signs :]
        line = "".join(" " if sign[0].isspace() else sign[0] for sign in signs)
        for place, sign in enumerate(signs):
            if line[place:] in self._begun and self._starts.match(text, sign.start()):
                return sign.start()
        return len(text)


class PhraseSearch:
    """A text, folded; folding may make it longer."""

    def __init__(self, phrases: Phrases, text: str) -> None:
        self._phrases = phrases
        self._folded = text.casefold()
        self._places: Sequence[int] = range(len(text) + 1)  # where in the text each folded character comes from
        if len(self._folded) != len(text):
            counts = (len(char.casefold()) for char in text)
            self._places = [*chain.from_iterable(map(repeat, count(), counts)), len(text)]

    def find(self, at: int) -> Found | None:
        """The first from a place on."""
        span = self._phrases.find(self._folded, bisect_left(self._places, at))
        if span is None:
            return None
        end = self._places[span[1] - 1] + 1
        return Found(self._places[span[0]], end, self._phrases.rule, REDACTED)

    def open_from(self, at: int) -> int:
        """From where on what follows the text matters."""
        return self._places[self._phrases.open_from(self._folded, bisect_left(self._places, at))]


def _branches(phrases: Sequence[str], depth: int) -> Iterator[str]:
    """A tree of expressions for sorted phrases that share the first ``depth`` characters; longest first."""
    for char, group in groupby((phrase for phrase in phrases if len(phrase) > depth), key=lambda phrase: phrase[depth]):
        below = [*group]
        rest = [*_branches(below, depth + 1)]
        if len(below[0]) == depth + 1:
            rest.append(r"(?!\w)" if _bounds(char) else "")
        here = _GAP if char == " " else re.escape(char)
        yield (_before(char) if depth == 0 else "") + here + (rest[0] if len(rest) == 1 else f"(?:{'|'.join(rest)})")


def _before(char: str) -> str:
    """The look-behind in front of a phrase that begins with this character."""
    return r"(?<!\w)" if _bounds(char) else ""


def _bounds(char: str) -> bool:
    return (char.isalnum() or char == "_") and not _UNSPACED.match(char)
