"""Which differences between two questions forbid one answer for both, however near their embeddings are?

A guard compares facts of a kind: numbers, negations, names. None says that two questions mean the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .gist import Gist

_LONG = 2_000
"""Characters above which word order is not compared: long texts differ in their order for many reasons."""
_ALIKE = 0.85
"""Share of words in common above which their order is compared."""
_PRESENT = frozenset({"today"})
"""What a question is about unless it says otherwise."""
_WEAK = frozenset("all some both total about".split())
"""Left out, they mostly change nothing."""


class Verdict(NamedTuple):
    """What the guards say of a pair."""

    refused_by: str | None
    """The first guard that refuses."""
    compared: tuple[str, ...]
    """Guards that found something to compare."""


def guard(asked: Gist, kept: Gist) -> Verdict:
    """Ask the guards one after the other, until one refuses."""
    compared = []
    for name, differs in _GUARDS.items():
        difference = differs(asked, kept)
        if difference is not None:
            compared.append(name)
            if difference:
                return Verdict(name, tuple(compared))
    return Verdict(None, tuple(compared))


# Each guard says whether two texts differ; None: neither has anything to compare.


def _literals(asked: Gist, kept: Gist) -> bool | None:
    return asked.literals != kept.literals if asked.literals or kept.literals else None


def _numbers(asked: Gist, kept: Gist) -> bool | None:
    if not asked.numbers and not kept.numbers:
        return None
    return asked.numbers != kept.numbers and _hard(asked.numbers) != _hard(kept.numbers)


def _hard(numbers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Without the word "one", which is seldom a number, and without the figure 1 that may stand for it."""
    return [number for number in numbers if number not in (("1", "one"), ("1", ""))]


def _units(asked: Gist, kept: Gist) -> bool | None:
    """Both have some, and not the same. Beside a number a unit is part of it."""
    return asked.units != kept.units if asked.units and kept.units else None


def _dates(asked: Gist, kept: Gist) -> bool | None:
    if not asked.dates and not kept.dates:
        return None
    return asked.dates - _PRESENT != kept.dates - _PRESENT or (
        bool(asked.dates and kept.dates) and asked.dates != kept.dates
    )


def _names(asked: Gist, kept: Gist) -> bool | None:
    """Each name of one is at least a word of the other."""
    if not asked.names and not kept.names:
        return None
    return not (asked.names <= kept.words and kept.names <= asked.words)


def _negations(asked: Gist, kept: Gist) -> bool | None:
    """One is negated and the other is not, or another word of it is."""
    if asked.negations != kept.negations:
        return True
    if not asked.negations:
        return None
    return bool((asked.negated - kept.negated) & kept.stems or (kept.negated - asked.negated) & asked.stems)


def _quantities(asked: Gist, kept: Gist) -> bool | None:
    if not asked.quantities and not kept.quantities:
        return None
    both = asked.quantities and kept.quantities
    return asked.quantities != kept.quantities if both else bool((asked.quantities | kept.quantities) - _WEAK)


def _opposites(asked: Gist, kept: Gist) -> bool | None:
    """One has a word on one side, the other a word on the other side, be it by a prefix such as "un"."""
    found = None
    for axis in asked.poles.keys() & kept.poles.keys():
        found = False
        ours, theirs = asked.poles[axis], kept.poles[axis]
        if (ours[0] - theirs[0]) * (ours[1] - theirs[1]) < 0:
            return True
    return True if _prefixed(asked, kept) or _prefixed(kept, asked) else found


def _prefixed(one: Gist, other: Gist) -> bool:
    return any(
        rest in other.stems and whole not in other.stems and rest not in one.stems for whole, rest in one.prefixed
    )


def _order(asked: Gist, kept: Gist) -> bool | None:
    """The same words in another order, or behind another preposition."""
    for word in asked.directed.keys() & kept.directed.keys():
        if asked.directed[word] != kept.directed[word]:
            return True
    if asked.content == kept.content or max(len(asked.text), len(kept.text)) > _LONG:
        return False if len(asked.content) > 1 else None
    ours, theirs = set(asked.content), set(kept.content)
    common = ours & theirs
    if len(common) < 2 or len(common) < _ALIKE * max(len(ours), len(theirs)):
        return None
    if asked.clauses == kept.clauses:
        return False
    return [word for word in asked.content if word in common] != [word for word in kept.content if word in common]


_GUARDS: dict[str, Callable[[Gist, Gist], bool | None]] = {
    "numbers": _numbers,
    "units": _units,
    "dates": _dates,
    "negation": _negations,
    "opposites": _opposites,
    "quantities": _quantities,
    "names": _names,
    "literals": _literals,
    "word order": _order,
}
