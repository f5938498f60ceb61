"""Which cached answer may be given for a question, and how likely should it be given?"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import exp, log
from typing import NamedTuple

from routewright.wire import CacheMatch

from .calibration import Bound, Calibration
from .gist import Gist, gist
from .guards import guard

SHARPNESS = 20.0  # how fast a neighbour's vote fades with its distance behind the nearest
_DOUBT = 0.05  # votes against that are always there
_COMPARED = 200  # characters of answers by which they count as the same


class Offer(NamedTuple):
    """The candidate for a request, if there is one, and what is thought of it."""

    match: CacheMatch | None = None
    refused_by: str | None = None
    """The guard that refused the nearest match."""
    compared: tuple[str, ...] = ()
    """What the guards compared of the candidate, or of the nearest match."""
    features: tuple[float, ...] = ()
    probability: float = 0.0
    """That its answer is right."""
    risk: float = 1.0
    """That it is wrong: an upper estimate."""
    serve: float = 0.0
    """The probability with which to serve it."""


NOTHING = Offer()


def offer(asked: str, matches: Sequence[CacheMatch], calibration: Calibration, bound: Bound) -> Offer:
    """Choose the nearest match that passes the guards, and judge it. ``matches``: the most similar first. One with the
    same words is served like the same request: nothing is estimated or explored."""
    about = gist(asked)
    first = None
    for place, match in enumerate(matches):
        prompt = match.entry.prompt or ""
        kept = gist(prompt)
        verdict = guard(about, kept)
        first = first or verdict
        if verdict.refused_by is None:
            refused = first.refused_by
            if bound.max_error != 0 and same_words(asked, prompt):
                return Offer(match, refused, (*verdict.compared, "same words"), (), 1.0, 0.0, 1.0)
            features = (*_agreement(matches, place), *_likeness(about, kept))
            assessed = calibration.assess(features, bound)
            if bound.threshold is not None:
                assessed = assessed._replace(serve=(1.0 - bound.explore) * (match.similarity >= bound.threshold))
            return Offer(match, refused, verdict.compared, features, *assessed)
    return NOTHING if first is None else Offer(refused_by=first.refused_by, compared=first.compared)


def _agreement(matches: Sequence[CacheMatch], place: int) -> tuple[float, ...]:
    """Similarity; log odds of votes for its answer; share of equal answers; how near another is; how near all."""
    chosen = matches[place]
    answer, nearest = _answer(chosen), matches[0].similarity
    votes, others, same, dissent = exp(SHARPNESS * (chosen.similarity - nearest)), _DOUBT, 0, 0.0
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


def _likeness(asked: Gist, kept: Gist) -> tuple[float, ...]:
    """Of the words that carry meaning: the share in common, that of pairs in a row, and of the lengths."""
    ours, theirs = asked.content, kept.content
    shorter, longer = sorted((len(ours), len(theirs)))
    if not shorter:
        return 0.0, 0.0, 0.0
    one, other = set(ours), set(theirs)
    common = 2 * len(one & other) / (len(one) + len(other))
    pairs, their_pairs = set(pairwise(ours)), set(pairwise(theirs))
    in_a_row = 2 * len(pairs & their_pairs) / (len(pairs) + len(their_pairs)) if pairs and their_pairs else common
    return common, in_a_row, shorter / longer


def same_words(asked: str, kept: str) -> bool:
    """True if two questions differ only in white space, the first letter's case and the final . or ?"""
    shorter, longer = sorted((asked.strip(), kept.strip()), key=len)
    stops = ("",) if shorter.endswith((".", "?")) else ("", ".", "?")
    return shorter[:1].lower() == longer[:1].lower() and longer[1:] in [shorter[1:] + stop for stop in stops]


def _answer(match: CacheMatch) -> str:
    output = match.entry.answer.output
    return " ".join(output[:_COMPARED].casefold().split())
