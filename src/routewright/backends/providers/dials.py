"""How vendors are told how much to think: rows for the tables of all providers, and how one is sent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from routewright._core.request.read import BRIEF_TOKENS
from routewright.errors import ProviderFault
from routewright.wire import Effort, FaultKind, Feature, Model, ReasoningBudget, UpstreamCall

from .endpoint import wire_name

Json = dict[str, Any]

WORDS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""All words for an effort, ours and the vendors', the weakest first."""
_TOKENS = {"minimal": 1024, "low": 4096, "medium": 8192, "high": 16_384, "max": 32_768}
"""What an effort may think where the vendor takes a number in the place of words; at most half of the cap."""
_TIERS = {"flex": "flex"} | {
    **dict.fromkeys(("default", "standard", "on_demand"), "default"),
    **dict.fromkeys(("priority", "fast", "performance"), "priority"),
}


@dataclass(frozen=True, kw_only=True)
class Thinking:
    """How some models of a vendor are told how much to think. Fields are paths into the body: ``reasoning.effort``."""

    models: str = ""
    """An expression that is found in the names of these models; empty: in all."""
    since: tuple[int, int] = (0, 0)
    """Their first version, where the protocol tells versions apart."""
    words: str = ""
    """The efforts that they know, the weakest first; for another the nearest is sent, of two the higher."""
    effort: str = "reasoning_effort"
    """The field of the word."""
    on: Mapping[str, Any] = field(default_factory=dict)
    """Sent with every effort, and with a bound."""
    off: Mapping[str, Any] | None = None
    """Keeps them from thinking; None: nothing does."""
    bound: str = ""
    """The field of a bound in tokens; empty: there is none. Without words, efforts are sent as bounds."""
    bounded: Mapping[str, Any] | None = None
    """Sent with a bound in the place of ``on``."""
    least: int = 1
    """The smallest bound."""
    most: int = 1 << 30
    """The largest, to which larger ones are lowered."""
    tools: bool = True
    """They take tools while they think."""

    @property
    def lacking(self) -> tuple[Feature, ...]:
        """What cannot be asked of these models."""
        able: dict[Feature, bool] = {
            "reasoning": bool(self.words or self.on or self.bound),
            "reasoning_none": self.off is not None,
            "reasoning_tokens": bool(self.bound),
            "reasoning_tools": self.tools,
            "reasoning_brief": bool(self.words) or self.least < BRIEF_TOKENS,
            "reasoning_tokens_brief": self.least < BRIEF_TOKENS,
        }
        return tuple(feature for feature, is_able in able.items() if not is_able)

    def fields(self, asked: Effort | ReasoningBudget, cap: int | None) -> Json:
        """The fields that ask for it; a bound leaves room for an answer below the cap. Raises
        ``ProviderFault("request")`` for what the models cannot be told."""
        if asked == "none":
            if self.off is None:
                raise _unable("thinks before every answer")
            return dict(self.off)
        if isinstance(asked, ReasoningBudget):
            if not self.bound:
                raise _unable("takes no bound on its thinking in tokens")
            if asked.max_tokens < self.least:
                raise _unable(f"takes a bound on its thinking from {self.least} tokens on, got {asked.max_tokens:g}")
            return self._bounded(int(asked.max_tokens), cap)
        if self.words:
            return merged(self.on, at(self.effort, nearest(asked, self.words.split())))
        if self.bound:
            tokens = _TOKENS[asked]
            return self._bounded(tokens if cap is None else min(tokens, cap // 2), cap)
        if not self.on:
            raise _unable("cannot be told how much to think")
        return dict(self.on)

    def _bounded(self, tokens: int, cap: int | None) -> Json:
        if cap is not None and cap <= self.least:
            raise _unable(f"thinks in {self.least} tokens at least, so the output cap must be larger, got {cap}")
        most = self.most if cap is None else min(self.most, cap - 1)
        shown = self.on if self.bounded is None else self.bounded
        return merged(shown, at(self.bound, max(self.least, min(tokens, most))))


def thinking_of(rows: Iterable[Thinking], model: Model, version: tuple[int, int] = (0, 0)) -> Thinking:
    """The first row for a model, by its version and name; without one it cannot be told anything."""
    name = wire_name(model)
    fitting = (row for row in rows if row.since <= version and re.search(row.models, name, re.IGNORECASE))
    return next(fitting, Thinking())


def asked_of(call: UpstreamCall) -> Effort | ReasoningBudget | None:
    """How much the model is asked to think; None if it is not said, or holds of itself."""
    asked = call.params.reasoning
    return None if asked == "none" and not call.model.reasoning else asked


def nearest(word: str, known: Iterable[str]) -> str:
    """The nearest of the known words; of two the stronger."""
    place = WORDS.index(word)
    return min(known, key=lambda each: (abs(WORDS.index(each) - place), -WORDS.index(each)))


def at(path: str, value: Any) -> Json:
    """A value at a path of fields, as a document."""
    for name in reversed(path.split(".")):
        value = {name: value}
    made: Json = value
    return made


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> Json:
    """Two documents as one: objects are merged, of anything else the other's counts."""
    made = dict(one)
    for name, value in other.items():
        old = made.get(name)
        made[name] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return made


def with_extra(body: Json, call: UpstreamCall, provider: str) -> Json:
    """The body with the caller's own fields for this provider."""
    extra = (call.params.extra or {}).get(provider)
    return merged(body, extra) if extra else body


def tier_of(word: Any) -> str:
    """The tier that served a call, in our words; empty for any other."""
    return _TIERS.get(word.lower(), "") if isinstance(word, str) else ""


def _unable(what: str) -> ProviderFault:
    return ProviderFault(FaultKind.REQUEST, f"the model {what}")
