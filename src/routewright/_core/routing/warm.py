"""Which beginnings of a prompt do vendors still have in their caches? Known from what was sent to them, by hashes. What
an answer was made from is remembered for as long as its vendor keeps it, and how much of it vendors report to have
found says how far to believe that."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256
from typing import NamedTuple

from msgspec import msgpack
from msgspec.structs import replace

from routewright._core.catalogue.prices import PromptCache
from routewright.wire import Params, RouteRequest, TextPart, Usage, WarmPrefix

LEAST_TOKENS, MOST_BYTES = 1_024, 4 << 20
"""Of prompts that are looked at, images included: vendors keep no shorter ones, and longer ones take milliseconds to
hash."""
PREFIXES_KEPT = 8_192
_PRIOR = 2.0, 2.0  # of a model that was not called yet: what came of so many calls, as ``Prefixes`` counts them
_FADE = 0.9  # what an earlier call counts beside the one after it


class Sent(NamedTuple):
    """The beginning of a prompt that a model was sent."""

    digest: bytes
    model: str
    tokens: int
    until: float
    """Unix seconds: its vendor keeps it until then at least."""
    by_marks: bool


class Prompt:
    """The places in a prompt at which a beginning may end: behind the tools (0), and behind each message."""

    __slots__ = ("digests", "known", "marks", "sizes", "turn", "usual")

    def __init__(self, request: RouteRequest, account: str, *, repeats: bool) -> None:
        """``account``: no other finds it. ``repeats``: the vendor is asked to keep all of it."""
        tools, params, messages = request.tools or [], request.params or Params(), request.messages
        options = params.response_format, params.reasoning, params.parallel_tool_calls
        marks, last = [0] if any(tool.cache_control for tool in tools) else [], len(messages)
        data = msgpack.encode(
            (account, [replace(tool, cache_control=None) for tool in tools], request.tool_choice, options)
        )
        hashed, size = sha256(data), len(data)
        digests, sizes = [hashed.digest()], [size]
        for place, message in enumerate(messages, start=1):
            parts = message.content
            if type(parts) is list:
                if any(part.cache_control for part in parts):
                    marks.append(place)
                parts = [replace(part, cache_control=None) for part in parts]  # marks move on from turn to turn
                one = parts[0] if len(parts) == 1 else None
                message = replace(message, content=one.text if isinstance(one, TextPart) else parts)
            data = msgpack.encode(message)
            hashed.update(data)
            size += len(data)
            digests.append(hashed.digest())
            sizes.append(size)
            if size > MOST_BYTES:
                break
        self.digests = digests
        self.sizes = sizes
        self.marks = marks or ([last] if repeats else [])  # up to where vendors keep it that are asked to
        system = next((place for place, each in enumerate(messages) if each.role not in ("system", "developer")), last)
        self.usual = {system, last - 1, last}
        """Up to where others do, as far as the next prompt may begin alike: its end may be another question."""
        self.turn = max((place for place, each in enumerate(messages) if each.role == "assistant"), default=0)
        """Where the prompt of the last turn ended."""
        self.known: dict[str, tuple[int, Sent]] = {}  # the longest beginning that each model was sent, with its place


class Prefixes:
    """What models were sent lately, and how far that is believed. Of two threads that write, one may be forgotten."""

    def __init__(self) -> None:
        self._sent: OrderedDict[bytes, tuple[Sent, ...]] = OrderedDict()
        self._came: dict[str, tuple[float, float]] = {}
        """By model: how much came of what was expected, a call 1 at most; and of how many calls."""

    def find(self, prompt: Prompt, now: float) -> tuple[WarmPrefix, ...]:
        """What is expected to be in caches of a prompt: of each model the longest beginning."""
        for place in range(len(prompt.digests) - 1, -1, -1):
            for sent in self._sent.get(prompt.digests[place], ()):
                if sent.until > now and (prompt.marks or not sent.by_marks):
                    prompt.known.setdefault(sent.model, (place, sent))
        found = ((sent, *self._came.get(model, _PRIOR)) for model, (_, sent) in sorted(prompt.known.items()))
        return tuple(WarmPrefix(sent.model, int(sent.tokens * came / calls)) for sent, came, calls in found)

    def answered(self, prompt: Prompt, model: str, cache: PromptCache, usage: Usage, at: float) -> Sent | None:
        """Learn from the cached tokens a vendor reports. Returns the longest beginning of the prompt that it keeps."""
        longest, places = None, {*(prompt.marks if cache.by_marks else prompt.usual)}
        if model in prompt.known:
            place, sent = prompt.known[model]
            places.add(place)
            came, calls = self._came.get(model, _PRIOR)
            self._came[model] = came * _FADE + min(1.0, usage.cached / sent.tokens), calls * _FADE + 1
        for place in sorted(places):
            part = usage.input * prompt.sizes[place] // prompt.sizes[-1]
            if part >= cache.minimum:
                longest = Sent(prompt.digests[place], model, part, at + cache.lifetime_s, cache.by_marks)
                self.put(longest, at)
        return longest

    def put(self, sent: Sent, now: float) -> None:
        """Remember one beginning, in place of what was known of it."""
        others = [each for each in self._sent.pop(sent.digest, ()) if each.model != sent.model and each.until > now]
        self._sent[sent.digest] = (*others, sent)
        if len(self._sent) > PREFIXES_KEPT:
            self._sent.popitem(last=False)
