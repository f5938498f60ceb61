"""The prompt prefixes expected in vendors' caches, and how reliably those hit."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256
from typing import NamedTuple

from msgspec import msgpack
from msgspec.structs import replace

from routewright._core.catalogue.prices import PromptCache
from routewright.wire import Params, RouteRequest, TextPart, Usage, WarmPrefix

LEAST_TOKENS = 1_024
MOST_BYTES = 4 << 20
"""Limits of the prompts considered, images included: vendors do not cache shorter ones, and hashing longer ones takes
milliseconds."""
MAX_PREFIXES = 8_192
_PRIOR = 2.0, 2.0  # cached share and calls assumed for a model without calls, as in ``Prefixes``
_FADE = 0.9  # the weight of a call relative to the next one


class Sent(NamedTuple):
    """A prompt prefix that was sent to a model."""

    digest: bytes
    model: str
    tokens: int
    until: float
    """Unix seconds until which the vendor keeps it."""
    by_marks: bool


class Prompt:
    """The prefixes of a prompt: ending after the tools (place 0), and after each message."""

    __slots__ = ("digests", "known", "marks", "sizes", "turn", "usual")

    def __init__(self, request: RouteRequest, account: str, *, repeats: bool) -> None:
        """``account``: prefixes are private to it. ``repeats``: the vendor is asked to cache the whole prompt."""
        tools = request.tools or []
        params = request.params or Params()
        options = params.response_format, params.reasoning, params.parallel_tool_calls
        last = len(request.messages)
        marks = [0] if any(tool.cache_control for tool in tools) else []
        plain_tools = [replace(tool, cache_control=None) for tool in tools]
        data = msgpack.encode((account, plain_tools, request.tool_choice, options))
        hashed = sha256(data)
        size = len(data)
        self.digests = [hashed.digest()]
        self.sizes = [size]
        for place, message in enumerate(request.messages, start=1):
            parts = message.content
            if type(parts) is list:
                if any(part.cache_control for part in parts):
                    marks.append(place)
                parts = [replace(part, cache_control=None) for part in parts]  # marks move from turn to turn
                one = parts[0] if len(parts) == 1 else None
                message = replace(message, content=one.text if isinstance(one, TextPart) else parts)
            data = msgpack.encode(message)
            hashed.update(data)
            size += len(data)
            self.digests.append(hashed.digest())
            self.sizes.append(size)
            if size > MOST_BYTES:
                break
        self.marks = marks or ([last] if repeats else [])  # ends of the prefixes a vendor is asked to cache
        roles = [message.role for message in request.messages]
        system = next((place for place, role in enumerate(roles) if role not in ("system", "developer")), last)
        self.usual = {system, last - 1, last}
        """Ends of the prefixes that automatic caches keep and a later prompt is likely to share."""
        self.turn = max((place for place, role in enumerate(roles) if role == "assistant"), default=0)
        """The end of the previous turn's prompt."""
        self.known: dict[str, tuple[int, Sent]] = {}  # the longest prefix sent to each model, with its place


class Warm(NamedTuple):
    """A prompt, and the prefixes of it that vendors' caches should have."""

    prompt: Prompt
    prefixes: tuple[WarmPrefix, ...]


class Prefixes:
    """Prefixes recently sent to models, and how reliably each model's cache hits. Of concurrent writes one may be
    lost."""

    def __init__(self) -> None:
        self._sent: OrderedDict[bytes, tuple[Sent, ...]] = OrderedDict()
        self._came: dict[str, tuple[float, float]] = {}
        """By model: the sum of cached shares (at most 1 per call), and the number of calls; both fade."""

    def find(self, prompt: Prompt, now: float) -> tuple[WarmPrefix, ...]:
        """The longest prefix of a prompt expected in each model's cache."""
        for place in range(len(prompt.digests) - 1, -1, -1):
            for sent in self._sent.get(prompt.digests[place], ()):
                if sent.until > now and (prompt.marks or not sent.by_marks):
                    prompt.known.setdefault(sent.model, (place, sent))
        expected = ((sent, *self._came.get(model, _PRIOR)) for model, (_, sent) in sorted(prompt.known.items()))
        return tuple(WarmPrefix(sent.model, int(sent.tokens * came / calls)) for sent, came, calls in expected)

    def learn(self, prompt: Prompt, model: str, cache: PromptCache, usage: Usage, at: float) -> Sent | None:
        """Learn from the cached tokens a vendor reports. Returns the longest prefix it now keeps."""
        longest = None
        places = {*(prompt.marks if cache.by_marks else prompt.usual)}
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
        """Store a prefix, replacing an earlier entry of the same model."""
        others = [other for other in self._sent.pop(sent.digest, ()) if other.model != sent.model and other.until > now]
        self._sent[sent.digest] = (*others, sent)
        if len(self._sent) > MAX_PREFIXES:
            self._sent.popitem(last=False)
