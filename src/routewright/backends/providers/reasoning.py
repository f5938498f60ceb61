"""Encodings of the reasoning effort: rows for the tables of all providers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from routewright._core.request.read import BRIEF_TOKENS
from routewright.errors import ProviderFault
from routewright.wire import Effort, FaultKind, Feature, JsonObject, Model, ReasoningBudget, UpstreamCall

from .endpoint import wire_name

WORDS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""All efforts, ours and the vendors', weakest first."""
_TOKENS = {"minimal": 1024, "low": 4096, "medium": 8192, "high": 16_384, "max": 32_768}
"""Budgets for efforts if the vendor only supports numbers of tokens; at most half of the output cap."""
_TIERS = {"flex": "flex"} | {
    **dict.fromkeys(("default", "standard", "on_demand"), "default"),
    **dict.fromkeys(("priority", "fast", "performance"), "priority"),
}


@dataclass(frozen=True, kw_only=True)
class Thinking:
    """The encoding of the effort for some models of a vendor. Fields are paths in the body, as ``reasoning.effort``."""

    models: str = ""
    """A regular expression for names of models; empty: all."""
    since: tuple[int, int] = (0, 0)
    """The first version of these models, if the protocol distinguishes versions."""
    words: str = ""
    """Supported efforts, weakest first. Others become the nearest one, the higher of two."""
    effort: str = "reasoning_effort"
    """Field of the effort."""
    on: Mapping[str, object] = field(default_factory=dict)
    """Sent with every effort or budget."""
    off: Mapping[str, object] | None = None
    """Disables reasoning. None: not possible."""
    bound: str = ""
    """Field of a budget in tokens; empty: not supported. Without ``words``, efforts are sent as budgets."""
    bounded: Mapping[str, object] | None = None
    """Sent with a budget instead of ``on``."""
    least: int = 1
    """Smallest budget."""
    most: int = 1 << 30
    """Largest budget. Larger ones are lowered to it."""
    tools: bool = True
    """True if reasoning and tools can be combined."""

    @property
    def lacking(self) -> tuple[Feature, ...]:
        """Features that these models do not support."""
        able: dict[Feature, bool] = {
            "reasoning": bool(self.words or self.on or self.bound),
            "reasoning_none": self.off is not None,
            "reasoning_tokens": bool(self.bound),
            "reasoning_tools": self.tools,
            "reasoning_brief": bool(self.words) or self.least < BRIEF_TOKENS,
            "reasoning_tokens_brief": self.least < BRIEF_TOKENS,
        }
        return tuple(feature for feature, is_able in able.items() if not is_able)

    def fields(self, asked: Effort | ReasoningBudget, cap: int | None) -> JsonObject:
        """The fields for an effort or budget. Budgets are below the output cap. Raises ``ProviderFault("request")`` if
        the models do not support it."""
        if asked == "none":
            if self.off is None:
                raise _unable("always reasons before its answer")
            return dict(self.off)
        if isinstance(asked, ReasoningBudget):
            if not self.bound:
                raise _unable("does not support a reasoning budget in tokens")
            if asked.max_tokens < self.least:
                raise _unable(f"needs a reasoning budget of at least {self.least} tokens, got {asked.max_tokens:g}")
            return self._bounded(int(asked.max_tokens), cap)
        if self.words:
            return merged(self.on, at(self.effort, nearest(asked, self.words.split())))
        if self.bound:
            tokens = _TOKENS[asked]
            return self._bounded(tokens if cap is None else min(tokens, cap // 2), cap)
        if not self.on:
            raise _unable("does not support a reasoning effort")
        return dict(self.on)

    def _bounded(self, tokens: int, cap: int | None) -> JsonObject:
        if cap is not None and cap <= self.least:
            raise _unable(f"reasons with at least {self.least} tokens, so the output cap must be larger, got {cap}")
        most = self.most if cap is None else min(self.most, cap - 1)
        shown = self.on if self.bounded is None else self.bounded
        return merged(shown, at(self.bound, max(self.least, min(tokens, most))))


def thinking_of(rows: Iterable[Thinking], model: Model, version: tuple[int, int] = (0, 0)) -> Thinking:
    """The first row for a model's version and name, or an empty one."""
    name = wire_name(model)
    fitting = (row for row in rows if row.since <= version and re.search(row.models, name, re.IGNORECASE))
    return next(fitting, Thinking())


def asked_of(call: UpstreamCall) -> Effort | ReasoningBudget | None:
    """The requested effort or budget. None if there is none, or the model does not reason anyway."""
    asked = call.params.reasoning
    return None if asked == "none" and not call.model.reasoning else asked


def nearest(word: str, known: Iterable[str]) -> str:
    """The nearest known effort; the stronger of two."""
    place = WORDS.index(word)
    return min(known, key=lambda each: (abs(WORDS.index(each) - place), -WORDS.index(each)))


def at(path: str, value: object) -> JsonObject:
    """A document with a value at a path."""
    first, _, rest = path.partition(".")
    return {first: at(rest, value) if rest else value}


def merged(one: Mapping[str, object], other: Mapping[str, object]) -> JsonObject:
    """Merge two documents: objects recursively, other values from ``other``."""
    made = dict(one)
    for name, value in other.items():
        old = made.get(name)
        made[name] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return made


def with_extra(body: JsonObject, call: UpstreamCall, provider: str) -> JsonObject:
    """Merge the caller's extra fields for this provider."""
    extra = (call.params.extra or {}).get(provider)
    return merged(body, extra) if extra else body


def tier_of(word: object) -> str:
    """Our name of a vendor's service tier; empty if unknown."""
    return _TIERS.get(word.lower(), "") if isinstance(word, str) else ""


def _unable(what: str) -> ProviderFault:
    return ProviderFault(FaultKind.REQUEST, f"the model {what}")
