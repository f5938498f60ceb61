"""Texts of requests and answers that guardrails check, and search for lists of phrases."""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, count, groupby, repeat

import msgspec
from msgspec.structs import astuple, replace

from routewright._core.structured_output import unfence
from routewright.wire import FilePart, FunctionCall, Message, Redact, Redaction, RouteRequest, TextPart, Verdict

MAX_GAP_CHARS = 1_000
REDACTED = "[redacted]"  # replaces a phrase
_GAP = rf"\s{{1,{MAX_GAP_CHARS}}}+"
_SIGN = re.compile(rf"{_GAP}|\S")
_UNSPACED = re.compile(  # Thai, Lao, Burmese, Khmer and East Asian scripts
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ud7ff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)


class Phrases:
    """Finds any of a list of phrases. Time depends on the text's length, hardly on the list's. A finding contains the
    ``rule``, never the phrase."""

    def __init__(self, phrases: Iterable[str], rule: str) -> None:
        folded = sorted({" ".join(phrase.casefold().split()) for phrase in phrases})
        self.rule = rule
        self.longest = 1 + max(len(phrase) + MAX_GAP_CHARS * phrase.count(" ") for phrase in folded)
        self.whole = re.compile("|".join(_branches(folded, 0)))
        self.starts = re.compile("|".join({_before(phrase[0]) + re.escape(phrase[0]) for phrase in folded}))
        self.begun = frozenset(phrase[:end] for phrase in folded for end in range(1, len(phrase) + 1))
        self.most_signs = max(map(len, folded))

    def over(self, text: str) -> PhraseSearch:
        """Search a text."""
        return PhraseSearch(self, text)


class PhraseSearch:
    """A case-folded text to search. Folding may lengthen it."""

    def __init__(self, phrases: Phrases, text: str) -> None:
        self._phrases = phrases
        self._folded = text.casefold()
        self._places: Sequence[int] = range(len(text) + 1)  # original position of each folded character
        if len(self._folded) != len(text):
            counts = (len(char.casefold()) for char in text)
            self._places = [*chain.from_iterable(map(repeat, count(), counts)), len(text)]

    def find(self, at: int) -> Redaction | None:
        """The first finding at or after a position."""
        match = self._phrases.whole.search(self._folded, bisect_left(self._places, at))
        if match is None:
            return None
        start, end = match.span()
        return Redaction(self._places[start], self._places[end - 1] + 1, self._phrases.rule, REDACTED)

    def open_from(self, at: int) -> int:
        """First position at which more text could create a finding."""
        first = max(bisect_left(self._places, at), len(self._folded) - self._phrases.longest)
        signs = [*_SIGN.finditer(self._folded, first)][-self._phrases.most_signs :]
        line = "".join(" " if sign[0].isspace() else sign[0] for sign in signs)
        for place, sign in enumerate(signs):
            if line[place:] in self._phrases.begun and self._phrases.starts.match(self._folded, sign.start()):
                return self._places[sign.start()]
        return self._places[len(self._folded)]


def _branches(phrases: Sequence[str], depth: int) -> Iterator[str]:
    """Expressions for sorted phrases that share the first ``depth`` characters, as a tree; longest first."""
    for char, group in groupby((phrase for phrase in phrases if len(phrase) > depth), key=lambda phrase: phrase[depth]):
        below = [*group]
        rest = [*_branches(below, depth + 1)]
        if len(below[0]) == depth + 1:
            rest.append(r"(?!\w)" if _bounds(char) else "")
        here = _GAP if char == " " else re.escape(char)
        yield (_before(char) if depth == 0 else "") + here + (rest[0] if len(rest) == 1 else f"(?:{'|'.join(rest)})")


def _before(char: str) -> str:
    """Look-behind for a phrase that starts with this character."""
    return r"(?<!\w)" if _bounds(char) else ""


def _bounds(char: str) -> bool:
    return (char.isalnum() or char == "_") and not _UNSPACED.match(char)


PIECE_CHARS = 1 << 15
"""Characters searched without a rest, or as many as the longest match of a guardrail, if that is longer. Ordinary text
takes a millisecond or two, the worst less than 20 ms."""
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"|-?\d[\d.eE+-]*+', re.DOTALL)
_ESCAPES = re.compile(r"(?:\\(?:u[0-9A-Fa-f]{4}|[\"\\/bfnrt])){1,1000}")
_SURROGATES = re.compile(r"\\u[dD][89a-fA-F]..")  # valid in JSON, also alone
_BETWEEN = "\n"


def redact_parts(text: str, parts: Sequence[Redaction]) -> str:
    """Replace parts of a text. They must be in order and not overlap."""
    out = []
    at = 0
    for part in parts:
        out += [text[at : part.start], part.replacement]
        at = part.end
    return "".join([*out, text[at:]])


def parts_of(verdict: Verdict, length: int) -> list[Redaction]:
    """Parts of a text to redact: in order, within its length, with overlapping ones joined."""
    parts: list[Redaction] = []
    for part in sorted(verdict.parts, key=lambda part: part.start) if isinstance(verdict, Redact) else ():
        start, end = max(part.start, 0), min(part.end, length)
        if parts and start < parts[-1].end:
            before = parts[-1]
            parts[-1] = Redaction(before.start, max(end, before.end), before.rule, before.replacement)
        elif start < end:
            parts.append(Redaction(start, end, part.rule, part.replacement))
    return parts


class Passage:
    """One text to check: a plain text, or the strings and numbers of JSON, on separate lines."""

    def __init__(self, source: str, *, is_json: bool = False) -> None:
        """``is_json``: ``source`` may be JSON, fenced or not, which ``read`` decodes."""
        self.source = source
        self._is_json = is_json
        self._parts = [source]
        self._spans = [(0, len(source))]
        """Places of the parts in the source."""
        self._starts: list[int] | None = [0]
        """Where the parts start in the text. None: they have moved."""
        self._written: dict[int, str] = {}
        """The spelling of changed parts."""
        self._write: Callable[[str], str] = str
        self._result: str | None = source
        self._number = 0
        self._out: list[str] = []  # of the part with this number, up to this place, as redacted
        self._place = 0

    def read(self) -> Iterator[None]:
        """Decode JSON in steps of ``PIECE_CHARS``. Other text stays as it is, but with escapes resolved."""
        if not self._is_json:
            return
        try:
            msgspec.json.decode(_SURROGATES.sub(r"\\u0000", unfence(self.source)), type=msgspec.Raw)  # only checks it
            yield from self._read_json()
        except (ValueError, RecursionError):
            yield from self._read_escapes()

    def _read_json(self) -> Iterator[None]:
        parts: list[str] = []
        spans: list[tuple[int, int]] = []
        starts = [0]
        rest_at = 0
        for token in _TOKEN.finditer(self.source):
            text = token[0]
            if text[0] == '"':
                text = json.loads(text) if "\\" in text else text[1:-1]
            parts.append(text)
            spans.append(token.span())
            starts.append(starts[-1] + len(text) + len(_BETWEEN))
            if token.end() - rest_at >= PIECE_CHARS:
                rest_at = token.end()
                yield
        self._parts = parts
        self._spans = spans
        self._starts = starts
        self._write = json.dumps

    def _read_escapes(self) -> Iterator[None]:
        pieces: list[str] = []
        end = rest_at = 0
        for escapes in _ESCAPES.finditer(self.source):
            pieces += self.source[end : escapes.start()], _unescaped(escapes)
            end = escapes.end()
            if end - rest_at >= PIECE_CHARS:
                rest_at = end
                yield
        self._parts = ["".join((*pieces, self.source[end:]))]
        self._spans = [(0, len(self.source))]

    @property
    def text(self) -> str:
        """The text to check."""
        return self._parts[0] if len(self._parts) == 1 else _BETWEEN.join(self._parts)

    def redact(self, redactions: Sequence[Redaction]) -> None:
        """Redact parts of the text, in order. Further calls go on behind them, until ``end_redaction``. A replacement
        goes into the part where its redaction starts."""
        if self._starts is None:
            lengths = accumulate(map(len, self._parts))
            self._starts = [0, *(length + number for number, length in enumerate(lengths, 1))]
        for start, end, _, replacement in map(astuple, redactions):
            for number in range(max(0, bisect_right(self._starts, start) - 1), len(self._parts)):
                offset = self._starts[number]
                if offset >= end:
                    break
                if number != self._number:
                    self._close_part()
                    self._number = number
                begin = max(start - offset, 0)
                last = min(end - offset, len(self._parts[number]))
                if begin < last:
                    self._out += self._parts[number][self._place : begin], replacement if start >= offset else ""
                    self._place = last

    def end_redaction(self) -> None:
        """Make the redacted text that of the passage."""
        self._close_part()
        if self._result is None:
            self._starts = [0] if len(self._parts) == 1 else None

    def _close_part(self) -> None:
        if self._out:
            number = self._number
            part = "".join((*self._out, self._parts[number][self._place :]))
            self._parts[number] = part
            self._written[number] = self._write(part)
            self._result = None
        self._out = []
        self._place = 0

    def write(self) -> Iterator[None]:
        """Spell the redacted text in the form of the source, in steps."""
        if self._result is not None:
            return
        pieces: list[str] = []
        at = 0
        for done, number in enumerate(sorted(self._written), 1):
            start, end = self._spans[number]
            pieces += self.source[at:start], self._written[number]
            at = end
            if done % PIECE_CHARS == 0:
                yield
        self._result = "".join((*pieces, self.source[at:]))

    def __str__(self) -> str:
        """The text as it is written."""
        for _ in self.write():
            pass
        assert self._result is not None, "it was just written"
        return self._result


def _unescaped(escapes: re.Match[str]) -> str:
    """Decode escapes; a surrogate pair becomes one character."""
    decoded: str = json.loads(f'"{escapes[0]}"')
    return decoded.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def passages_of(request: RouteRequest) -> list[Passage]:
    """Texts of all messages of any role, in order: contents, text parts, file names, tool call arguments."""
    passages: list[Passage] = []
    for message in request.messages:
        content = message.content
        if isinstance(content, str):
            passages.append(Passage(content, is_json=(message.role == "tool" and content.lstrip()[:1] in ("{", "["))))
        elif content is not None:
            passages += [Passage(part.text) for part in content if isinstance(part, TextPart)]
            passages += [Passage(part.file.filename or "") for part in content if isinstance(part, FilePart)]
        passages += [Passage(call.function.arguments, is_json=True) for call in message.tool_calls or ()]
    return passages


def with_passages(request: RouteRequest, passages: Iterable[Passage]) -> RouteRequest:
    """Put the redacted ``passages_of`` back into a request."""
    texts = map(str, passages)
    messages: list[Message] = []
    for message in request.messages:
        content = message.content
        calls = message.tool_calls
        if isinstance(content, str):
            content = next(texts)
        elif content is not None:
            content = [replace(part, text=next(texts)) if isinstance(part, TextPart) else part for part in content]
            content = [
                replace(part, file=replace(part.file, filename=next(texts) or None))
                if isinstance(part, FilePart)
                else part
                for part in content
            ]
        if calls is not None:
            calls = [replace(call, function=FunctionCall(call.function.name, next(texts))) for call in calls]
        messages.append(replace(message, content=content, tool_calls=calls))
    return replace(request, messages=messages)
