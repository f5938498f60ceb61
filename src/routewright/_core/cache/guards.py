"""Which differences between two questions forbid one answer for both, however near their embeddings are? A guard
compares facts of a kind: numbers, negations, names. None says that two questions mean the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .gist import Gist

_LONG = 2_000  # characters above which word order is not compared: long texts differ in their order for many reasons
_ALIKE = 0.85  # share of words in common above which their order is compared
_PRESENT = frozenset({"today"})  # what a question is about unless it says otherwise
_WEAK = frozenset("all some both total approximately".split())  # left out, they mostly change nothing
_ONE = frozenset({("1", "one"), ("1", "")})  # the word "one" is seldom a number, and the figure may stand for it


class Verdict(NamedTuple):
    """What the guards say of a pair."""

    refused_by: str | None
    """The first guard that refuses."""
    compared: tuple[str, ...]
    """Guards that found something to compare."""


def guard(asked: Gist, kept: Gist) -> Verdict:
    """Ask the guards one after the other, until one refuses."""
    compared = []
    for name, differs in _guards(asked, kept):
        compared.append(name)
        if differs:
            return Verdict(name, tuple(compared))
    return Verdict(None, tuple(compared))


def _guards(asked: Gist, kept: Gist) -> Iterator[tuple[str, bool]]:
    """Each guard that has something to compare, and whether the two differ in it."""
    if asked.numbers or kept.numbers:
        ours, theirs = ([number for number in side.numbers if number not in _ONE] for side in (asked, kept))
        yield "numbers", ours != theirs
    if asked.units and kept.units:  # beside a number a unit is part of it
        yield "units", asked.units != kept.units
    if asked.dates or kept.dates:
        present = frozenset() if asked.dates and kept.dates else _PRESENT
        yield "dates", asked.dates - present != kept.dates - present
    if asked.negations or kept.negations:  # one is negated and the other is not, or another word of it is
        moved = (asked.negated - kept.negated) & kept.stems or (kept.negated - asked.negated) & asked.stems
        yield "negation", bool(moved) or asked.negations != kept.negations
    axes = asked.poles.keys() & kept.poles.keys()
    unlike = _turned(asked, kept) or _turned(kept, asked)
    if axes or unlike:
        yield "opposites", unlike or any(_opposed(asked.poles[axis], kept.poles[axis]) for axis in axes)
    if asked.quantities and kept.quantities:
        yield "quantities", asked.quantities != kept.quantities
    elif asked.quantities or kept.quantities:
        yield "quantities", not asked.quantities | kept.quantities <= _WEAK
    if asked.names or kept.names:  # each name of one is at least a word of the other
        yield "names", not (asked.names <= kept.words and kept.names <= asked.words)
    if asked.literals or kept.literals:
        yield "literals", asked.literals != kept.literals
    reordered = _reordered(asked, kept)
    if reordered is not None:
        yield "word order", reordered


def _opposed(ours: tuple[int, int], theirs: tuple[int, int]) -> bool:
    """One has more words on one side of an axis, the other on the other side."""
    return (ours[0] - theirs[0]) * (ours[1] - theirs[1]) < 0


def _turned(one: Gist, other: Gist) -> bool:
    """A word has a prefix such as "un" in one, and none in the other."""
    return any(
        rest in other.stems and whole not in other.stems and rest not in one.stems for whole, rest in one.prefixed
    )


def _reordered(asked: Gist, kept: Gist) -> bool | None:
    """The same words in another order, or behind another preposition. None: too few words, or other words."""
    if any(asked.directed[word] != kept.directed[word] for word in asked.directed.keys() & kept.directed.keys()):
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
