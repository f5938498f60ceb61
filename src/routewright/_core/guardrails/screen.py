"""Runs texts through guardrails in order; each sees the text as redacted by the previous one.

Rules match from left to right. Of two matches with the same start the longer one counts, and the search continues after
it. Matches therefore do not depend on how a stream is split, and ``HoldBack`` releases only text that can no longer
match. Built-in guardrails are evaluated here. For all others the gates are machines: ``next`` returns the guardrail to
call and the text, ``take`` receives the verdict.

A long text takes seconds, in which nobody else would be served and no deadline would hold. It is therefore searched in
pieces: between two of them ``next`` returns ``REST``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import Enum, auto
from itertools import chain
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from routewright.errors import InternalError
from routewright.protocols import Guardrail
from routewright.wire import Allow, Block, GuardrailAction, Policy, Redact, Redaction, RouteRequest, Stage, Verdict
from routewright.wire.json_scan import is_unicode, quoted
from routewright.wire.problems import shown

from .custom import custom_pattern
from .detectors import CONTEXT_CHARS, PATTERNS, Pattern, PatternSearch
from .texts import PIECE_CHARS, Passage, Phrases, PhraseSearch, parts_of, passages_of, redact_parts, with_passages

STAGES: tuple[Stage, ...] = ("input", "output")
MOST_FINDINGS = 512
"""Findings without a rest: each takes some microseconds."""
LEAST_SPENT = 512
"""What a short text counts in characters: a gate takes as long to get to it."""
HELD_PER_LOOK = 64
"""Rules search again after one new character per this many held ones, because a search costs time for all held ones."""
Rule = Pattern | Phrases
"""Something to look for. A match depends on ``CONTEXT_CHARS`` before it and ``longest`` characters from its start."""
Search = PatternSearch | PhraseSearch  # a rule applied to a text


class Hit(Struct, frozen=True):
    """Matches of a guardrail, for its span."""

    guardrail: str
    rule: str
    stage: Stage
    action: GuardrailAction
    count: int = 1


class RuleGuardrail:
    """A guardrail made of rules."""

    def __init__(self, name: str, rules: Sequence[Rule], action: GuardrailAction, stages: Collection[Stage]) -> None:
        self.name = name
        self.action = action
        self.stages = frozenset(stages)
        self.holds: int | None = max(rule.longest for rule in rules)
        """Most characters that a stream may hold back. Usually it holds back none."""
        custom = [rule for rule in rules if isinstance(rule, Pattern) and rule not in PATTERNS.values()]
        self.piece_chars = max(PIECE_CHARS // 8 if custom else PIECE_CHARS, self.holds)
        """Characters searched without a rest. A custom pattern may try 256 characters from each."""
        self._rules = tuple(rules)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, action={self.action!r}, stages={sorted(self.stages)})"

    def check(self, text: str, stage: Stage) -> Verdict:
        """Check a complete text. The rules are the same for both stages."""
        return self.verdict([*chain.from_iterable(self.pieces(text))])

    def pieces(self, text: str) -> Iterator[list[Redaction]]:
        """The findings of a complete text, in lists: one for each piece of it, and after ``MOST_FINDINGS``. If it
        blocks, only the first."""
        last = 0
        for start in range(0, len(text), self.piece_chars):
            end = min(start + self.piece_chars, len(text))
            offset = max(0, start - CONTEXT_CHARS)
            searches = [rule.over(text[offset : end + rule.longest]) for rule in self._rules]
            findings = list[Redaction]()
            for finding in findings_in(searches, max(start, last) - offset, end - offset):
                last = finding.end + offset
                findings.append(replace(finding, start=finding.start + offset, end=last))
                if self.action == "block":
                    yield findings
                    return
                if len(findings) == MOST_FINDINGS:
                    yield findings
                    findings = []
            yield findings

    def verdict(self, findings: Sequence[Redaction]) -> Verdict:
        """The verdict on a text with these findings."""
        if not findings:
            return Allow()
        if self.action == "block":
            return Block(findings[0].rule)
        return Redact(tuple(findings))

    def hold_back(self) -> HoldBack:
        """Start checking a text that arrives in pieces."""
        return HoldBack(self._rules, self.action)


def findings_in(searches: Sequence[Search], at: int, until: int) -> Iterator[Redaction]:
    """Matches of all rules that start between two positions, in order."""
    # To search with every rule again after each finding is quadratic: a text of 100,000 addresses would be searched for
    # card numbers 100,000 times, to its end, and any caller can send one (contract 4: every scanner is linear). Each
    # search keeps its nearest finding instead, and only those that the last finding overlaps are searched again, so
    # every rule passes a text about once (``test_twice_the_findings_take_twice_the_time``,
    # ``test_twice_the_text_takes_twice_the_time``). Of two with the same start the longer one counts, whatever the
    # order of the rules: else a shorter one would leave the rest of a secret in the text.
    nearest = [search.find(at) for search in searches]
    while True:
        next_finding = min(
            (finding for finding in nearest if finding is not None),
            key=lambda finding: (finding.start, -finding.end),
            default=None,
        )
        if next_finding is None or next_finding.start >= until:
            return
        yield next_finding
        for place, finding in enumerate(nearest):
            if finding is not None and finding.start < next_finding.end:
                nearest[place] = searches[place].find(next_finding.end)


class HoldBack:
    """Releases a text while it arrives. The output does not depend on how the text is split. Once ``blocked``, it
    releases nothing more; the text before the match is already released."""

    def __init__(self, rules: Sequence[Rule], action: GuardrailAction) -> None:
        self.counts: Counter[str] = Counter()  # matches by rule
        self.blocked: str | None = None  # the rule that blocked it
        self._rules = rules
        self._action = action
        self._longest = max(rule.longest for rule in rules)
        self._text = ""  # held text, after its context
        self._at = 0
        self._unseen = 0  # characters since the last search

    @property
    def held(self) -> int:
        """Number of characters held back."""
        return len(self._text) - self._at

    def feed(self, text: str) -> str:
        """Add a piece; return the text to release."""
        # What is released cannot be taken back, so nothing may go out that a later piece could make the start of a
        # finding (``test_no_part_of_a_finding_is_released_early``). Each rule says from where its text is open; what is
        # before that is final, so the output is that of a check of the whole text
        # (``test_a_stream_gives_the_output_of_a_whole_check_for_any_split``). A search costs time for all that is held
        # back, and a long key comes in hundreds of pieces, so a search waits for more text, unless so much is held that
        # part of it is final in any case (``test_a_long_key_in_many_pieces_is_not_searched_for_each_piece``).
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
        """End the text; return the rest."""
        if self.blocked is not None:
            return ""
        return self._release([rule.over(self._text) for rule in self._rules], len(self._text))

    def _release(self, searches: Sequence[Search], until: int) -> str:
        """Release the text before ``until``, with matches that start there redacted to their ends."""
        out: list[str] = []
        for finding in findings_in(searches, self._at, until):
            out.append(self._text[self._at : finding.start])
            self._at = finding.end
            self.counts[finding.rule] += 1
            if self._action == "block":
                self.blocked = finding.rule
                self._text = ""
                self._at = 0
                return "".join(out)
            out.append(finding.replacement)
        until = max(until, self._at)
        out.append(self._text[self._at : until])
        context_start = max(0, until - CONTEXT_CHARS)
        self._text = self._text[context_start:]
        self._at = until - context_start
        return "".join(out)


class Window:
    """Buffers a text for a guardrail that checks complete texts: returns windows to check and takes verdicts. ``holds``
    is the longest possible match; None: only the complete text can be checked. Windows start after a space, if there is
    one, so that words stay whole."""

    def __init__(self, holds: int | None) -> None:
        self.counts: Counter[str] = Counter()
        self.blocked: str | None = None
        self._holds = holds
        self._text = ""
        self._waiting: list[str] = []  # joined only once: an answer may have a million pieces
        self._cut = 0

    def feed(self, text: str) -> str | None:
        """Add a piece; return the window to check, or None if that can wait."""
        if self._holds is None:
            self._waiting.append(text)
            return None
        self._text += text
        if len(self._text) <= self._holds:
            return None
        cut = len(self._text) - self._holds
        space = max(self._text.rfind(" ", 0, cut), self._text.rfind("\n", 0, cut))
        self._cut = space + 1 if space >= 0 else cut - self._holds
        return self._text if self._cut > 0 else None

    def end(self) -> str | None:
        """End the text; return the window to check."""
        self._text += "".join(self._waiting)
        self._waiting.clear()
        self._cut = len(self._text)
        return self._text or None

    def take(self, verdict: Verdict) -> str:
        """Apply the verdict on the window; return the text to release."""
        if isinstance(verdict, Block):
            self.blocked = verdict.rule
            self.counts[verdict.rule] += 1
            self._text = ""
            return ""
        parts = [part for part in parts_of(verdict, len(self._text)) if part.start < self._cut]
        cut = max([self._cut, *(part.end for part in parts)])
        self.counts.update(part.rule for part in parts)
        text = redact_parts(self._text[:cut], parts)
        self._text = self._text[cut:]
        return text


def check_verdict(verdict: object, guardrail: str) -> Verdict:
    """Validate a guardrail's verdict. Raises ``InternalError`` for anything else."""
    match verdict:
        case Allow():
            return verdict
        case Redact(parts=tuple() | list() as parts) if all(
            isinstance(part, Redaction)
            and type(part.start) is int
            and type(part.end) is int
            and part.start <= part.end
            and _is_text(part.rule)
            and _is_text(part.replacement)
            for part in parts
        ):
            return verdict
        case Block() if _is_text(verdict.rule):
            return verdict
        case Redact() | Block():  # structs do not check their fields
            description = f"a {type(verdict).__name__} whose fields are not what they should be"
        case _:  # a text is not quoted, because it may be the checked one
            description = "a text" if isinstance(verdict, str) else shown(verdict)
    hint = "return Allow(), Redact((Redaction(start, end, rule),)) or Block(rule)"
    raise InternalError(
        f"check() of the guardrail {quoted(guardrail)} returned {description}, which is no verdict; {hint}"
    )


def _is_text(text: object) -> bool:
    return isinstance(text, str) and is_unicode(text)


def guardrails_of(policy: Policy) -> tuple[RuleGuardrail, ...]:
    """Guardrails of a checked policy, in order."""
    guardrails: list[RuleGuardrail] = []
    for entry in policy.guardrails or ():
        stages = entry.stages or STAGES
        if entry.patterns or entry.custom:
            custom = (custom_pattern(*named) for named in (entry.custom or {}).items())
            rules = [*(PATTERNS[kind] for kind in entry.patterns or ()), *custom]
            guardrails.append(RuleGuardrail("patterns", rules, entry.action, stages))
        if entry.deny:
            guardrails.append(RuleGuardrail("deny_list", [Phrases(entry.deny, "deny_list")], entry.action, stages))
    return tuple(guardrails)


class GuardrailCall(NamedTuple):
    """A guardrail to call with a text."""

    guardrail: Guardrail
    text: str
    stage: Stage


class Step(Enum):
    """A step of a gate other than a call of a guardrail."""

    REST = auto()
    """Nothing, but a piece of a long text was searched: let others go on, then call ``next`` again."""


Rest = Literal[Step.REST]
REST: Rest = Step.REST


def at_stage(guardrails: Iterable[Guardrail], stage: Stage) -> list[Guardrail]:
    """Guardrails that apply to a stage."""
    return [guardrail for guardrail in guardrails if stage in guardrail.stages]


class PassageGate:
    """Runs complete texts through guardrails: those of a request, or tool call arguments of an answer."""

    def __init__(self, passages: Iterable[Passage], guardrails: Iterable[Guardrail], stage: Stage) -> None:
        self.passages = [*passages]  # as redacted so far
        self.blocked: Hit | None = None
        self._counts: Counter[tuple[str, str]] = Counter()
        self._stage: Stage = stage
        self._steps = self._walk(at_stage(guardrails, stage))
        self._call: GuardrailCall | None = None
        self._passage: Passage | None = None
        self._spent = 0
        """Characters since the last rest."""

    @property
    def hits(self) -> list[Hit]:
        """Redactions by guardrail and rule, then the block, if any."""
        hits = [Hit(*who, self._stage, "redact", count) for who, count in self._counts.items()]
        return hits if self.blocked is None else [*hits, self.blocked]

    def next(self) -> GuardrailCall | Rest | None:
        """The next guardrail to call, or ``REST``. None: done."""
        if self._call is not None:
            return self._call
        step = None if self.blocked is not None else next(self._steps, None)
        if isinstance(step, GuardrailCall):
            self._call = step
        return step

    def take(self, verdict: object) -> None:
        """Apply the verdict of the guardrail returned by ``next``."""
        assert self._call is not None, "next() names the guardrail"
        assert self._passage is not None, "a passage is being checked"
        call = self._call
        self._call = None
        name = call.guardrail.name
        checked = check_verdict(verdict, name)
        if isinstance(checked, Block):
            self.blocked = Hit(name, checked.rule, self._stage, "block")
            return
        parts = parts_of(checked, len(call.text))
        self._passage.redact(parts)
        self._passage.end_redaction()
        self._counts.update((name, part.rule) for part in parts)

    def _walk(self, guardrails: Sequence[Guardrail]) -> Iterator[GuardrailCall | Rest]:
        for passage in self.passages:
            self._passage = passage
            for _ in passage.read():
                yield REST
            for guardrail in guardrails:
                text = passage.text
                if text and isinstance(guardrail, RuleGuardrail):
                    yield from self._search(guardrail, passage, text)
                    if self.blocked is not None:
                        return
                elif text:
                    yield GuardrailCall(guardrail, text, self._stage)
            for _ in passage.write():
                yield REST

    def _search(self, guardrail: RuleGuardrail, passage: Passage, text: str) -> Iterator[Rest]:
        for findings in guardrail.pieces(text):
            if findings and guardrail.action == "block":
                self.blocked = Hit(guardrail.name, findings[0].rule, self._stage, "block")
                return
            passage.redact(findings)
            self._counts.update((guardrail.name, finding.rule) for finding in findings)
            is_full = len(findings) == MOST_FINDINGS or len(text) > guardrail.piece_chars
            spent = PIECE_CHARS if is_full else len(text) * PIECE_CHARS // guardrail.piece_chars
            self._spent += max(spent, LEAST_SPENT)
            if self._spent >= PIECE_CHARS:
                self._spent = 0
                yield REST
        passage.end_redaction()


class RequestGate(PassageGate):
    """Runs a request through the input guardrails."""

    def __init__(self, request: RouteRequest, guardrails: Iterable[Guardrail]) -> None:
        super().__init__(passages_of(request), guardrails, "input")
        if any(message.reasoning is not None for message in request.messages):
            # reasoning repeats text that may have been redacted, and is signed, so it cannot be redacted itself
            request = replace(request, messages=[replace(message, reasoning=None) for message in request.messages])
        self._request = request

    @property
    def request(self) -> RouteRequest:
        """The request after redaction; the same object if nothing was redacted."""
        return with_passages(self._request, self.passages) if self._counts else self._request


class AnswerGate:
    """Runs an answer through the output guardrails while it arrives. After each ``feed``, and after ``end``, call
    ``next`` until it returns None; then send ``text``."""

    def __init__(self, guardrails: Iterable[Guardrail]) -> None:
        self.blocked: Hit | None = None
        self._guardrails = at_stage(guardrails, "output")
        self._stations: list[HoldBack | Window] = [
            guardrail.hold_back() if isinstance(guardrail, RuleGuardrail) else Window(guardrail.holds)
            for guardrail in self._guardrails
        ]
        self._out: list[str] = []
        self._ended = False
        self._ask: tuple[int, GuardrailCall] | None = None

    @property
    def text(self) -> str:
        """Text to send; each piece is returned once."""
        text = "".join(self._out)
        self._out = []
        return text

    @property
    def hits(self) -> list[Hit]:
        """Redactions by guardrail and rule, then the block, if any."""
        hits = [
            Hit(guardrail.name, rule, "output", "redact", count)
            for guardrail, station in zip(self._guardrails, self._stations, strict=True)
            for rule, count in station.counts.items()
            if rule != station.blocked
        ]
        return hits if self.blocked is None else [*hits, self.blocked]

    def feed(self, text: str) -> None:
        """Add a piece of the answer."""
        self._pass(0, text)

    def end(self) -> None:
        """End the answer."""
        self._ended = True
        self._pass(0, "")

    def next(self) -> GuardrailCall | None:
        """The next guardrail to call. None: done with the text so far."""
        return None if self._ask is None else self._ask[1]

    def take(self, verdict: object) -> None:
        """Apply the verdict of the guardrail returned by ``next``."""
        assert self._ask is not None, "next() names the guardrail"
        index, call = self._ask
        self._ask = None
        station = self._stations[index]
        assert isinstance(station, Window), "rules need no verdict"
        text = station.take(check_verdict(verdict, call.guardrail.name))
        if not self._is_blocked(index):
            self._pass(index + 1, text)

    def _pass(self, start: int, text: str) -> None:
        """Pass a text through the guardrails until one needs a verdict or holds all of it."""
        for index in range(start, len(self._stations)):
            if self.blocked is not None or not (text or self._ended):
                return
            station = self._stations[index]
            if isinstance(station, HoldBack):
                text = station.feed(text) + (station.end() if self._ended else "")
                if self._is_blocked(index):
                    return
                continue
            window = station.feed(text)
            window = station.end() if self._ended else window
            if window is not None:
                self._ask = index, GuardrailCall(self._guardrails[index], window, "output")
                return
            text = ""
        self._out.append(text)

    def _is_blocked(self, index: int) -> bool:
        """Record a block by a guardrail. Text that it released in the same step is dropped."""
        rule = self._stations[index].blocked
        if rule is not None:
            self.blocked = Hit(self._guardrails[index].name, rule, "output", "block")
        return rule is not None
