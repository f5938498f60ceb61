"""Chooses the cached answer for a question, and computes its features."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import exp, log
from typing import NamedTuple

from routewright.wire import CacheMatch

from .calibration import Bound, Calibration
from .question import Question, gist

_LONG = 2_000  # characters above which word order is not compared, because it differs for many reasons
_ALIKE = 0.85  # share of common words above which word order is compared
_PRESENT = frozenset({"today"})  # the default date of a question
_WEAK = frozenset("all some both total approximately".split())  # usually redundant
_ONE = frozenset({("1", "one"), ("1", "")})  # "one" is rarely a number, and "1" may stand for it


class Verdict(NamedTuple):
    """Result of the guards for two questions."""

    refused_by: str | None
    """The first guard that found a difference."""
    compared: tuple[str, ...]
    """Guards that had something to compare."""


def guard(query: Question, entry: Question) -> Verdict:
    """Run the guards in order until one finds a difference."""
    compared = []
    for name, differs in _guards(query, entry):
        compared.append(name)
        if differs:
            return Verdict(name, tuple(compared))
    return Verdict(None, tuple(compared))


def _guards(query: Question, entry: Question) -> Iterator[tuple[str, bool]]:
    """Yields each guard with something to compare, and whether the questions differ."""
    if query.numbers or entry.numbers:
        ours, theirs = ([number for number in side.numbers if number not in _ONE] for side in (query, entry))
        yield "numbers", ours != theirs
    if query.units and entry.units:  # beside a number a unit is part of it
        yield "units", query.units != entry.units
    if query.dates or entry.dates:
        present = frozenset() if query.dates and entry.dates else _PRESENT
        yield "dates", query.dates - present != entry.dates - present
    if query.negations or entry.negations:  # only one is negated, or different words are
        moved = (query.negated - entry.negated) & entry.stems or (entry.negated - query.negated) & query.stems
        yield "negation", bool(moved) or query.negations != entry.negations
    axes = query.poles.keys() & entry.poles.keys()
    unlike = _prefix_differs(query, entry) or _prefix_differs(entry, query)
    if axes or unlike:
        sides = [(query.poles[axis], entry.poles[axis]) for axis in axes]
        apart = [ours for ours, theirs in sides if (ours[0] - theirs[0]) * (ours[1] - theirs[1]) < 0]
        yield "opposites", unlike or bool(apart)
    if query.quantities and entry.quantities:
        yield "quantities", query.quantities != entry.quantities
    elif query.quantities or entry.quantities:
        yield "quantities", not query.quantities | entry.quantities <= _WEAK
    if query.names or entry.names:  # each name of one must be a word of the other
        yield "names", not (query.names <= entry.words and entry.names <= query.words)
    if query.literals or entry.literals:
        yield "literals", query.literals != entry.literals
    reordered = _reordered(query, entry)
    if reordered is not None:
        yield "word order", reordered


def _prefix_differs(one: Question, other: Question) -> bool:
    """True if a word has a prefix such as "un" in only one of them."""
    return any(root in other.stems and word not in other.stems and root not in one.stems for word, root in one.prefixed)


def _reordered(query: Question, entry: Question) -> bool | None:
    """True for the same words in another order or after another preposition. None: too few common words to tell."""
    if any(query.directed[word] != entry.directed[word] for word in query.directed.keys() & entry.directed.keys()):
        return True
    if query.content == entry.content or max(len(query.text), len(entry.text)) > _LONG:
        return False if len(query.content) > 1 else None
    ours, theirs = set(query.content), set(entry.content)
    common = ours & theirs
    if len(common) < 2 or len(common) < _ALIKE * max(len(ours), len(theirs)):
        return None
    if query.clauses == entry.clauses:
        return False
    return [word for word in query.content if word in common] != [word for word in entry.content if word in common]


SHARPNESS = 20.0  # decay of a neighbour's vote with its distance from the nearest
_DOUBT = 0.05  # constant votes against an answer
_COMPARED = 200  # leading characters by which answers are compared


class Offer(NamedTuple):
    """The candidate for a request, if any, and its assessment."""

    match: CacheMatch | None = None
    refused_by: str | None = None
    """The guard that refused the nearest match."""
    compared: tuple[str, ...] = ()
    """Guards that compared the candidate, or the nearest match."""
    features: tuple[float, ...] = ()
    probability: float = 0.0
    """Probability that its answer is right."""
    risk: float = 1.0
    """Upper estimate of the probability that it is wrong."""
    serve: float = 0.0
    """Probability of serving it."""


NOTHING = Offer()


def offer(text: str, matches: Sequence[CacheMatch], calibration: Calibration, bound: Bound) -> Offer:
    """Choose the nearest match that passes the guards, and assess it. ``matches`` are most similar first. A match with
    the same words is always served, without estimate or exploration."""
    query = gist(text)
    nearest = None
    for place, match in enumerate(matches):
        prompt = match.entry.prompt or ""
        entry = gist(prompt)
        verdict = guard(query, entry)
        nearest = nearest or verdict
        if verdict.refused_by is None:
            refused = nearest.refused_by
            if bound.max_error != 0 and same_words(text, prompt):
                return Offer(match, refused, (*verdict.compared, "same words"), (), 1.0, 0.0, 1.0)
            features = (*_agreement(matches, place), *_likeness(query, entry))
            assessed = calibration.assess(features, bound)
            if bound.threshold is not None:
                assessed = assessed._replace(serve=(1.0 - bound.explore) * (match.similarity >= bound.threshold))
            return Offer(match, refused, verdict.compared, features, *assessed)
    return NOTHING if nearest is None else Offer(refused_by=nearest.refused_by, compared=nearest.compared)


def _agreement(matches: Sequence[CacheMatch], place: int) -> tuple[float, ...]:
    """Similarity; log-odds of votes for its answer; share of equal answers; similarity of the nearest other answer;
    mean similarity."""
    chosen = matches[place]
    answer = _answer(chosen)
    nearest = matches[0].similarity
    votes = exp(SHARPNESS * (chosen.similarity - nearest))
    others = _DOUBT
    dissent = 0.0
    same = 0
    for index, match in enumerate(matches):
        if index == place:
            continue
        vote = exp(SHARPNESS * (match.similarity - nearest))
        if _answer(match) == answer:
            votes += vote
            same += 1
        else:
            others += vote
            dissent = max(dissent, match.similarity)
    share = same / (len(matches) - 1) if len(matches) > 1 else 0.0
    crowd = sum(match.similarity for match in matches) / len(matches)
    return chosen.similarity, log(votes / others), share, dissent, crowd


def _likeness(query: Question, entry: Question) -> tuple[float, ...]:
    """Of the words that carry meaning: the share in common, that of pairs in a row, and of the lengths."""
    ours, theirs = query.content, entry.content
    shorter, longer = sorted((len(ours), len(theirs)))
    if not shorter:
        return 0.0, 0.0, 0.0
    one, other = set(ours), set(theirs)
    common = 2 * len(one & other) / (len(one) + len(other))
    pairs, their_pairs = set(pairwise(ours)), set(pairwise(theirs))
    in_a_row = 2 * len(pairs & their_pairs) / (len(pairs) + len(their_pairs)) if pairs and their_pairs else common
    return common, in_a_row, shorter / longer


def same_words(question: str, cached: str) -> bool:
    """True if questions differ only in surrounding white space, case of the first letter, and a final ``.`` or
    ``?``."""
    shorter, longer = sorted((question.strip(), cached.strip()), key=len)
    stops = ("",) if shorter.endswith((".", "?")) else ("", ".", "?")
    return shorter[:1].lower() == longer[:1].lower() and longer[1:] in [shorter[1:] + stop for stop in stops]


def _answer(match: CacheMatch) -> str:
    return " ".join(match.entry.answer.output[:_COMPARED].casefold().split())
