"""Texts of requests and answers that guardrails check, and search for lists of phrases."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, count, groupby, repeat, zip_longest
from typing import NamedTuple

from msgspec.structs import replace

from routewright._core.structured_output import unfenced
from routewright.wire import FilePart, FunctionCall, Message, Redact, Redaction, RouteRequest, TextPart, Verdict

from .detectors import Found

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
        known = sorted({" ".join(phrase.casefold().split()) for phrase in phrases})
        self.rule = rule
        self.longest = 1 + max(len(phrase) + MAX_GAP_CHARS * phrase.count(" ") for phrase in known)
        self.whole = re.compile("|".join(_branches(known, 0)))
        self.starts = re.compile("|".join({_before(phrase[0]) + re.escape(phrase[0]) for phrase in known}))
        self.begun = frozenset(phrase[:end] for phrase in known for end in range(1, len(phrase) + 1))
        self.most_signs = max(map(len, known))

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

    def find(self, at: int) -> Found | None:
        """The first finding at or after a position."""
        match = self._phrases.whole.search(self._folded, bisect_left(self._places, at))
        if match is None:
            return None
        start, end = match.span()
        return Found(self._places[start], self._places[end - 1] + 1, self._phrases.rule, REDACTED)

    def open_from(self, at: int) -> int:
        """First position at which more text could create a finding."""
        phrases, text = self._phrases, self._folded
        first = max(bisect_left(self._places, at), len(text) - phrases.longest)
        signs = [*_SIGN.finditer(text, first)][-phrases.most_signs :]
        line = "".join(" " if sign[0].isspace() else sign[0] for sign in signs)
        for place, sign in enumerate(signs):
            if line[place:] in phrases.begun and phrases.starts.match(text, sign.start()):
                return self._places[sign.start()]
        return self._places[len(text)]


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


_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"|-?\d[\d.eE+-]*+', re.DOTALL)
_ESCAPES = re.compile(r"(?:\\(?:u[0-9A-Fa-f]{4}|[\"\\/bfnrt]))+")
_BETWEEN = "\n"


def redacted(text: str, parts: Sequence[Redaction]) -> str:
    """Replace parts of a text. They must be in order and not overlap."""
    out, at = [], 0
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


class Passage(NamedTuple):
    """One text to check, made of parts on separate lines."""

    parts: tuple[str, ...]
    written: tuple[str | None, ...]
    """Original spelling of each part. None: the part was changed."""
    between: tuple[str, ...]
    """Text before, between and after the parts."""
    write: Callable[[str], str]
    """Spells a changed part."""

    @property
    def text(self) -> str:
        """The text to check."""
        return _BETWEEN.join(self.parts)

    def without(self, redactions: Sequence[Redaction]) -> Passage:
        """The passage with parts of its text redacted."""
        made, written, at = [], [], 0
        for part, how in zip(self.parts, self.written, strict=True):
            end = at + len(part)
            # the replacement goes into the part where a redaction starts
            left = redacted(
                part,
                [
                    Redaction(
                        max(each.start, at) - at,
                        min(each.end, end) - at,
                        each.rule,
                        each.replacement if each.start >= at else "",
                    )
                    for each in redactions
                    if each.start < end and each.end > at
                ],
            )
            made.append(left)
            written.append(how if left == part else None)
            at = end + len(_BETWEEN)
        return self._replace(parts=tuple(made), written=tuple(written))

    def __str__(self) -> str:
        """The text as it is written."""
        said = [self.write(part) if how is None else how for part, how in zip(self.parts, self.written, strict=True)]
        return "".join(chain.from_iterable(zip_longest(self.between, said, fillvalue="")))


def plain_passage(text: str) -> Passage:
    """A passage of plain text."""
    return Passage((text,), (text,), ("", ""), str)


def json_passage(text: str) -> Passage:
    """A passage of the keys, strings and numbers of JSON, fenced or not. Other text is plain, with escapes resolved."""
    try:
        json.loads(unfenced(text), parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return Passage((_ESCAPES.sub(_unescaped, text),), (text,), ("", ""), str)
    tokens = [*_TOKEN.finditer(text)]
    ends = [0, *(token.end() for token in tokens)]
    starts = [*(token.start() for token in tokens), len(text)]
    between = tuple(text[end:start] for end, start in zip(ends, starts, strict=True))
    parts = tuple(json.loads(token[0]) if token[0][0] == '"' else token[0] for token in tokens)
    return Passage(parts, tuple(token[0] for token in tokens), between, json.dumps)


def _unescaped(escapes: re.Match[str]) -> str:
    """Decode escapes; a surrogate pair becomes one character."""
    said: str = json.loads(f'"{escapes[0]}"')
    return said.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def passages_of(request: RouteRequest) -> list[Passage]:
    """Texts of all messages of any role, in order: contents, text parts, file names, tool call arguments."""
    found: list[Passage] = []
    for message in request.messages:
        content = message.content
        if isinstance(content, str):
            is_result = message.role == "tool" and content.lstrip()[:1] in ("{", "[")
            found.append(json_passage(content) if is_result else plain_passage(content))
        elif content is not None:
            found += [plain_passage(part.text) for part in content if isinstance(part, TextPart)]
            found += [plain_passage(part.file.filename or "") for part in content if isinstance(part, FilePart)]
        found += [json_passage(call.function.arguments) for call in message.tool_calls or ()]
    return found


def with_passages(request: RouteRequest, passages: Iterable[Passage]) -> RouteRequest:
    """Put the redacted ``passages_of`` back into a request."""
    texts = map(str, passages)
    messages: list[Message] = []
    for message in request.messages:
        content, calls = message.content, message.tool_calls
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
