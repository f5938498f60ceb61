"""Takes texts past guardrails, each of which sees what the one before it left.

Rules find things in a text: the first finding counts, of two that begin together the longer one, and the search goes
on behind it. So findings do not depend on the pieces in which a text arrives, and ``HoldBack`` releases no character
before it is known to be harmless. Guardrails made of rules are checked here; for all others the gates are machines:
``next`` names the guardrail to ask and the text, ``take`` is told the verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from routewright._core.request.json_scan import is_unicode, quoted
from routewright._core.request.problems import shown
from routewright.errors import InternalError
from routewright.protocols import Guardrail
from routewright.wire import Allow, Block, GuardrailAction, Policy, Redact, Redaction, RouteRequest, Stage, Verdict

from .detectors import CONTEXT_CHARS, PATTERNS, Found, Pattern, PatternSearch
from .texts import Passage, Phrases, PhraseSearch, parts_of, passages_of, redacted, with_passages

STAGES: tuple[Stage, ...] = ("input", "output")
HELD_PER_LOOK = 64
"""The rules look again after one new character for so many held ones, since a look costs what is held."""
Rule = Pattern | Phrases
"""Something to look for. Whether it is found depends on ``CONTEXT_CHARS`` before it and ``longest`` from there on."""
Search = PatternSearch | PhraseSearch  # a text in which a rule looks


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
        """The most characters that a stream may have to hold back; mostly none."""
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
        """Start on a text that comes in pieces."""
        return HoldBack(self._rules, self.action)


def found_in(searches: Sequence[Search], at: int, until: int) -> Iterator[Found]:
    """Findings of all rules that begin between two places, in order."""
    nearest = [search.find(at) for search in searches]
    while True:
        first = min((each for each in nearest if each is not None), key=lambda each: (each[0], -each[1]), default=None)
        if first is None or first.start >= until:
            return
        yield first
        for place, each in enumerate(nearest):
            if each is not None and each.start < first.end:
                nearest[place] = searches[place].find(first.end)


class HoldBack:
    """Releases a text while it arrives. However it is cut, the output is what a check of the whole would leave. Once
    something is ``blocked``, nothing more is released; what stood before it is out already."""

    def __init__(self, rules: Sequence[Rule], action: GuardrailAction) -> None:
        self.counts: Counter[str] = Counter()  # findings by rule
        self.blocked: str | None = None  # the rule that ended it
        self._rules = rules
        self._action = action
        self._longest = max(rule.longest for rule in rules)
        self._text = ""  # the text held back, and the context before it
        self._at = 0
        self._unseen = 0  # characters since the rules last looked

    @property
    def held(self) -> int:
        """How many characters are held back."""
        return len(self._text) - self._at

    def feed(self, text: str) -> str:
        """Take a piece; return what may go out now."""
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
        """The text is complete: return the rest."""
        if self.blocked is not None:
            return ""
        return self._release([rule.over(self._text) for rule in self._rules], len(self._text))

    def _release(self, searches: Sequence[Search], until: int) -> str:
        """Release what stands before a place, and redacted findings that begin there, to their ends."""
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
    """Holds back a text for a guardrail that checks whole texts: names a window to check, and takes the verdict. No
    finding is longer than ``holds``; None: only the whole text can be judged. Windows begin after a space where there
    is one, so that words stay whole."""

    def __init__(self, holds: int | None) -> None:
        self.counts: Counter[str] = Counter()
        self.blocked: str | None = None
        self._holds = holds
        self._text = ""
        self._cut = 0

    def feed(self, text: str) -> str | None:
        """Take a piece; return what to check, or None while that can wait."""
        self._text += text
        if self._holds is None or len(self._text) <= self._holds:
            return None
        cut = len(self._text) - self._holds
        space = max(self._text.rfind(" ", 0, cut), self._text.rfind("\n", 0, cut))
        self._cut = space + 1 if space >= 0 else cut - self._holds
        return self._text if self._cut > 0 else None

    def end(self) -> str | None:
        """The text is complete."""
        self._cut = len(self._text)
        return self._text or None

    def take(self, verdict: Verdict) -> str:
        """Take the verdict on the window; return what may go out now."""
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


def checked_verdict(verdict: object, guardrail: str) -> Verdict:
    """A guardrail's verdict. Raises ``InternalError`` for anything else: nothing passes on a guess."""
    match verdict:
        case Allow():
            return verdict
        case Redact(parts=tuple() | list() as parts) if all(map(_is_part, parts)):
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


def _is_part(part: object) -> bool:
    """True for a redaction whose places are in order and whose words are text."""
    if not isinstance(part, Redaction) or type(part.start) is not int or type(part.end) is not int:
        return False
    return part.start <= part.end and _is_text(part.rule) and _is_text(part.replacement)


def _is_text(text: object) -> bool:
    return isinstance(text, str) and is_unicode(text)


def guardrails_of(policy: Policy) -> tuple[Ruled, ...]:
    """The guardrails of a checked policy, in its order."""
    made: list[Ruled] = []
    for entry in policy.guardrails or ():
        stages = entry.stages or STAGES
        if entry.patterns:
            made.append(Ruled("patterns", [PATTERNS[kind] for kind in entry.patterns], entry.action, stages))
        if entry.deny:
            made.append(Ruled("deny_list", [Phrases(entry.deny, "deny_list")], entry.action, stages))
    return tuple(made)


class Ask(NamedTuple):
    """Asks for a guardrail's verdict on a text."""

    guardrail: Guardrail
    text: str
    stage: Stage


def standing(guardrails: Iterable[Guardrail], stage: Stage) -> list[Guardrail]:
    """The guardrails that check at a stage."""
    return [guardrail for guardrail in guardrails if stage in guardrail.stages]


class PassageGate:
    """Takes whole texts past guardrails: those of a request, or the arguments of an answer's tool calls."""

    def __init__(self, passages: Iterable[Passage], guardrails: Iterable[Guardrail], stage: Stage) -> None:
        self.passages = [*passages]  # the passages as redacted so far
        self.blocked: Hit | None = None
        self._counts: Counter[tuple[str, str]] = Counter()
        self._stage: Stage = stage
        self._asks = self._walk(standing(guardrails, stage))
        self._ask: Ask | None = None
        self._place = 0

    @property
    def hits(self) -> list[Hit]:
        """Redactions by guardrail and rule, then the block, if any."""
        found = [Hit(*who, self._stage, "redact", count) for who, count in self._counts.items()]
        return found if self.blocked is None else [*found, self.blocked]

    def next(self) -> Ask | None:
        """Name the guardrail to ask next; None: done."""
        while self._ask is None and self.blocked is None and (ask := next(self._asks, None)) is not None:
            self._ask = ask
            if isinstance(ask.guardrail, Ruled):
                self.take(ask.guardrail.verdict(ask.text))
        return self._ask

    def take(self, verdict: object) -> None:
        """Take the verdict of the guardrail that ``next`` named."""
        assert self._ask is not None, "next() names the guardrail"
        (guardrail, text, stage), self._ask = self._ask, None
        said = checked_verdict(verdict, guardrail.name)
        if isinstance(said, Block):
            self.blocked = Hit(guardrail.name, said.rule, stage, "block")
            return
        parts = parts_of(said, len(text))
        if parts:
            self.passages[self._place] = self.passages[self._place].without(parts)
            self._counts.update((guardrail.name, part.rule) for part in parts)

    def _walk(self, guardrails: Sequence[Guardrail]) -> Iterator[Ask]:
        for place in range(len(self.passages)):
            self._place = place
            for guardrail in guardrails:
                if text := self.passages[place].text:
                    yield Ask(guardrail, text, self._stage)


class RequestGate(PassageGate):
    """Takes a request past the guardrails of the input."""

    def __init__(self, request: RouteRequest, guardrails: Iterable[Guardrail]) -> None:
        super().__init__(passages_of(request), guardrails, "input")
        if any(message.reasoning is not None for message in request.messages):
            # signed, so that nothing in them can be redacted; they repeat what was taken out of the other texts
            request = replace(request, messages=[replace(each, reasoning=None) for each in request.messages])
        self._given = request

    @property
    def request(self) -> RouteRequest:
        """The request as it may be sent: the same object if nothing was redacted."""
        return with_passages(self._given, self.passages) if self._counts else self._given


class AnswerGate:
    """Takes an answer past the guardrails of the output while it arrives. After each ``feed``, and after ``end``, ask
    ``next`` until it returns None; then ``text`` is what may go out."""

    def __init__(self, guardrails: Iterable[Guardrail]) -> None:
        self.blocked: Hit | None = None
        self._guardrails = standing(guardrails, "output")
        self._stations: list[HoldBack | Window] = [
            each.hold_back() if isinstance(each, Ruled) else Window(each.holds) for each in self._guardrails
        ]
        self._out: list[str] = []
        self._ended = False
        self._ask: tuple[int, Ask] | None = None

    @property
    def text(self) -> str:
        """What may go out, returned once."""
        out, self._out = "".join(self._out), []
        return out

    @property
    def hits(self) -> list[Hit]:
        """Redactions by guardrail and rule, then the block, if any."""
        found = [
            Hit(guardrail.name, rule, "output", "redact", count)
            for guardrail, station in zip(self._guardrails, self._stations, strict=True)
            for rule, count in station.counts.items()
            if rule != station.blocked
        ]
        return found if self.blocked is None else [*found, self.blocked]

    def feed(self, text: str) -> None:
        """Take a piece of the answer."""
        self._pass(0, text)

    def end(self) -> None:
        """The text is complete."""
        self._ended = True
        self._pass(0, "")

    def next(self) -> Ask | None:
        """Name the guardrail to ask; None: all that can pass has passed."""
        return None if self._ask is None else self._ask[1]

    def take(self, verdict: object) -> None:
        """Take the verdict of the guardrail that ``next`` named."""
        assert self._ask is not None, "next() names the guardrail"
        (place, ask), self._ask = self._ask, None
        station = self._stations[place]
        assert isinstance(station, Window), "only those are asked for"
        text = station.take(checked_verdict(verdict, ask.guardrail.name))
        if not self._is_blocked(place):
            self._pass(place + 1, text)

    def _pass(self, place: int, text: str) -> None:
        """Move a text from station to station until one needs a verdict or holds all of it."""
        for here in range(place, len(self._stations)):
            if self.blocked is not None or not (text or self._ended):
                return
            station = self._stations[here]
            if isinstance(station, HoldBack):
                text = station.feed(text) + (station.end() if self._ended else "")
                if self._is_blocked(here):
                    return
                continue
            window = station.feed(text)
            window = station.end() if self._ended else window
            if window is not None:
                self._ask = here, Ask(self._guardrails[here], window, "output")
                return
            text = ""
        self._out.append(text)

    def _is_blocked(self, place: int) -> bool:
        """Note that a guardrail ended the answer. What it released in the same step goes no further."""
        rule = self._stations[place].blocked
        if rule is not None:
            self.blocked = Hit(self._guardrails[place].name, rule, "output", "block")
        return rule is not None
