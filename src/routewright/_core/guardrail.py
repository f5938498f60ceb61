"""What may pass of a text, and what of one that is still coming?

A rule says where its findings stand. The first one counts, of two that begin together the longer; the search goes on
behind it. So what is found does not depend on the pieces in which a text comes, and ``HoldBack`` gives out no character
before it is known to be harmless.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from routewright.errors import InternalError
from routewright.wire import (
    Allow,
    Block,
    GuardrailAction,
    Policy,
    PolicyGuardrail,
    Redact,
    Redaction,
    Stage,
    Verdict,
)

from .phrase import Phrases
from .request.json_scan import is_unicode, quoted
from .request.problems import shown
from .sensitive import CONTEXT_CHARS, PATTERNS, Found

STAGES: tuple[Stage, ...] = ("input", "output")
REDACTED = "[redacted]"
"""What takes the place of a denied phrase."""
HELD_PER_LOOK = 64
"""Held characters that one new one must come for before the rules look again: each look costs what is held."""


class Search(Protocol):
    """A text in which a rule looks."""

    def find(self, at: int) -> Found | None:
        """The first finding from a place on."""
        ...

    def open_from(self, at: int) -> int:
        """The first place at which more text could make or change a finding; the text's end where there is none."""
        ...


class Rule(Protocol):
    """Something that is looked for. Whether it is at a place depends on ``CONTEXT_CHARS`` before and ``longest`` from
    there on."""

    @property
    def longest(self) -> int:
        """The most characters that a finding and its end depend on."""
        ...

    def over(self, text: str) -> Search:
        """Look in a text."""
        ...


class Hit(Struct, frozen=True):
    """What a guardrail did, as its span says it."""

    guardrail: str
    rule: str
    stage: Stage
    action: GuardrailAction
    count: int = 1


class Ruled:
    """A guardrail made of rules."""

    def __init__(self, name: str, rules: Sequence[Rule], action: GuardrailAction, stages: Collection[Stage]) -> None:
        self.name = name
        self.action = action
        self.stages = frozenset(stages)
        self.holds: int | None = max(rule.longest for rule in rules)
        """The most characters that a stream can have to wait; mostly it waits for none."""
        self._rules = tuple(rules)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, action={self.action!r}, stages={sorted(self.stages)})"

    def check(self, text: str, stage: Stage) -> Verdict:
        """Say what may pass of a whole text."""
        return self.verdict(text)

    def verdict(self, text: str) -> Verdict:
        """Say what may pass of a whole text, whatever its stage."""
        found = found_in([rule.over(text) for rule in self._rules], 0, len(text))
        if self.action == "block":
            first = next(found, None)
            return Allow() if first is None else Block(first.rule)
        parts = tuple(Redaction(*each[:2], each.rule, each.replacement) for each in found)
        return Redact(parts) if parts else Allow()

    def hold_back(self) -> HoldBack:
        """Begin with a text that comes in pieces."""
        return HoldBack(self._rules, self.action)


def found_in(searches: Sequence[Search], at: int, until: int) -> Iterator[Found]:
    """What rules find that begins between two places, in order."""
    nearest = [search.find(at) for search in searches]
    while True:
        first = min((each for each in nearest if each is not None), key=_order, default=None)
        if first is None or first.start >= until:
            return
        yield first
        for place, each in enumerate(nearest):
            if each is not None and each.start < first.end:
                nearest[place] = searches[place].find(first.end)


def _order(found: Found) -> tuple[int, int]:
    return found.start, -found.end


class HoldBack:
    """Lets a text through while it comes. However it is cut, what goes out is what a check of the whole would leave.

    Once something is ``blocked``, nothing goes out any more; what stood before it has gone.
    """

    def __init__(self, rules: Sequence[Rule], action: GuardrailAction) -> None:
        self.counts: Counter[str] = Counter()
        """Findings by rule."""
        self.blocked: str | None = None
        """The rule that ended it."""
        self._rules = rules
        self._action = action
        self._longest = max(rule.longest for rule in rules)
        self._text = ""
        """What is held back, and what a rule may want to see before it."""
        self._at = 0
        self._unseen = 0
        """Characters since the rules last looked."""

    @property
    def held(self) -> int:
        """How many characters wait."""
        return len(self._text) - self._at

    def feed(self, text: str) -> str:
        """Take a piece; give what may go out now."""
        if not text or self.blocked is not None:
            return ""
        self._text += text
        self._unseen += len(text)
        if self._unseen * HELD_PER_LOOK < self.held < self._longest:
            return ""
        self._unseen = 0
        searches = [rule.over(self._text) for rule in self._rules]
        return self._release(searches, min(search.open_from(self._at) for search in searches))

    def end(self) -> str:
        """Nothing more comes: give the rest."""
        if self.blocked is not None:
            return ""
        return self._release([rule.over(self._text) for rule in self._rules], len(self._text))

    def _release(self, searches: Sequence[Search], until: int) -> str:
        """Give out what stands before a place, and findings that begin there to their ends."""
        out: list[str] = []
        for found in found_in(searches, self._at, until):
            out.append(self._text[self._at : found.start])
            self._at = found.end
            self.counts[found.rule] += 1
            if self._action == "block":
                self.blocked, self._text, self._at = found.rule, "", 0
                return "".join(out)
            out.append(found.replacement)
        until = max(until, self._at)
        out.append(self._text[self._at : until])
        kept = max(0, until - CONTEXT_CHARS)
        self._text, self._at = self._text[kept:], until - kept
        return "".join(out)


class Window:
    """Holds back for a guardrail that sees texts only as they are: says what is to be checked, and is told.

    A finding that goes on in what is still to come is no longer than ``holds``; None: only the whole can be judged.
    Windows begin behind a space where there is one, so that words stay whole.
    """

    def __init__(self, holds: int | None) -> None:
        self.counts: Counter[str] = Counter()
        self.blocked: str | None = None
        self._holds = holds
        self._text = ""
        self._cut = 0

    def feed(self, text: str) -> str | None:
        """Take a piece; give what is to be checked, or None while that can wait."""
        self._text += text
        if self._holds is None or len(self._text) <= self._holds:
            return None
        cut = len(self._text) - self._holds
        space = max(self._text.rfind(" ", 0, cut), self._text.rfind("\n", 0, cut))
        self._cut = space + 1 if space >= 0 else cut - self._holds
        return self._text if self._cut > 0 else None

    def end(self) -> str | None:
        """Nothing more comes."""
        self._cut = len(self._text)
        return self._text or None

    def take(self, verdict: Verdict) -> str:
        """Take what was said of it; give what may go out now."""
        if isinstance(verdict, Block):
            self.blocked = verdict.rule
            self.counts[verdict.rule] += 1
            self._text = ""
            return ""
        parts = [part for part in parts_of(verdict, len(self._text)) if part.start < self._cut]
        cut = max([self._cut, *(part.end for part in parts)])
        self.counts.update(part.rule for part in parts)
        out, self._text = redacted(self._text[:cut], parts), self._text[cut:]
        return out


def redacted(text: str, parts: Sequence[Redaction]) -> str:
    """A text without these parts, which stand in its order."""
    out, at = [], 0
    for part in parts:
        out += [text[at : part.start], part.replacement]
        at = part.end
    return "".join([*out, text[at:]])


def parts_of(verdict: Verdict, length: int) -> list[Redaction]:
    """What is to be redacted of a text: in order, within it, parts that overlap as one."""
    parts: list[Redaction] = []
    for part in sorted(verdict.parts, key=lambda part: part.start) if isinstance(verdict, Redact) else ():
        start, end = max(part.start, 0), min(part.end, length)
        if parts and start < parts[-1].end:
            before = parts[-1]
            parts[-1] = Redaction(before.start, max(end, before.end), before.rule, before.replacement)
        elif start < end:
            parts.append(Redaction(start, end, part.rule, part.replacement))
    return parts


def checked_verdict(verdict: object, guardrail: str) -> Verdict:
    """What a guardrail said. Raises ``InternalError`` for what is no verdict: nothing passes on a guess."""
    match verdict:
        case Allow():
            return verdict
        case Redact() if _are_parts(verdict.parts):
            return verdict
        case Block() if _is_text(verdict.rule):
            return verdict
        case Redact() | Block():  # the structs take any value
            said = f"a {type(verdict).__name__} whose fields are not what they should be"
        case str():
            said = "a text"  # perhaps the one that it was to judge
        case _:
            said = shown(verdict)
    hint = "return Allow(), Redact((Redaction(start, end, rule),)) or Block(rule)"
    raise InternalError(f"check() of the guardrail {quoted(guardrail)} gave {said}, no verdict; {hint}")


def _are_parts(parts: object) -> bool:
    return isinstance(parts, tuple | list) and all(map(_is_part, parts))


def _is_part(part: object) -> bool:
    """Whether it says what to take out: places in their order, and words."""
    if not isinstance(part, Redaction) or type(part.start) is not int or type(part.end) is not int:
        return False
    return part.start <= part.end and _is_text(part.rule) and _is_text(part.replacement)


def _is_text(text: object) -> bool:
    return isinstance(text, str) and is_unicode(text)


def phrase_rules(phrases: Iterable[str], name: str) -> list[Rule]:
    """The rule that looks for words and phrases, none of which its findings tell."""
    return [Phrases(phrases, name, REDACTED)]


def guardrails_of(policy: Policy) -> tuple[Ruled, ...]:
    """The guardrails of a policy that was checked, in its order."""
    return tuple(made for entry in policy.guardrails or () for made in _made(entry))


def _made(entry: PolicyGuardrail) -> Iterator[Ruled]:
    stages = entry.stages or STAGES
    if entry.patterns:
        yield Ruled("patterns", [PATTERNS[kind] for kind in entry.patterns], entry.action, stages)
    if entry.deny:
        yield Ruled("deny_list", phrase_rules(entry.deny, "deny_list"), entry.action, stages)
