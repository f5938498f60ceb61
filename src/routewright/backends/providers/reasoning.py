"""Encodings of the reasoning effort: rows for the tables of all providers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
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
    """True if reasoning and tools can be combined over chat completions."""
    chat: bool = True
    """True if they are served over chat completions, not only over the Responses API."""

    @property
    def missing(self) -> tuple[Feature, ...]:
        """Features that these models do not support."""
        supported: dict[Feature, bool] = {
            "reasoning": bool(self.words or self.on or self.bound),
            "reasoning_none": self.off is not None,
            "reasoning_tokens": bool(self.bound),
            "reasoning_tools": self.tools,
            "reasoning_brief": bool(self.words) or self.least < BRIEF_TOKENS,
            "reasoning_tokens_brief": self.least < BRIEF_TOKENS,
        }
        return tuple(feature for feature, is_supported in supported.items() if not is_supported)

    def fields(self, effort: Effort | ReasoningBudget, cap: int | None) -> JsonObject:
        """The fields for an effort or budget. Budgets are below the output cap. Raises ``ProviderFault("request")`` if
        the models do not support it."""
        if effort == "none":
            if self.off is None:
                raise _fault_of("always reasons before its answer")
            return dict(self.off)
        if isinstance(effort, ReasoningBudget):
            if not self.bound:
                raise _fault_of("does not support a reasoning budget in tokens")
            if effort.max_tokens < self.least:
                raise _fault_of(f"needs a reasoning budget of at least {self.least} tokens, got {effort.max_tokens:g}")
            return self._bounded(int(effort.max_tokens), cap)
        if self.words:
            return merge(self.on, at(self.effort, find_nearest(effort, self.words.split())))
        if self.bound:
            tokens = _TOKENS[effort]
            return self._bounded(tokens if cap is None else min(tokens, cap // 2), cap)
        if not self.on:
            raise _fault_of("does not support a reasoning effort")
        return dict(self.on)

    def _bounded(self, tokens: int, cap: int | None) -> JsonObject:
        if cap is not None and cap <= self.least:
            raise _fault_of(f"reasons with at least {self.least} tokens, so the output cap must be larger, got {cap}")
        maximum = self.most if cap is None else min(self.most, cap - 1)
        switch = self.on if self.bounded is None else self.bounded
        return merge(switch, at(self.bound, max(self.least, min(tokens, maximum))))


def name_of(rows: Sequence[Thinking], model: Model) -> str:
    """The name by which a model is looked up: the vendor's. If no row knows that, as with Azure's deployments, the name
    in its id or in the id of the model that it is ``like``."""
    names = (wire_name(model), model.id.partition("/")[2], (model.like or "").partition("/")[2])
    known = (name for name in names for row in rows if row.models and re.search(row.models, name, re.IGNORECASE))
    return next(known, names[0])


def thinking_of(rows: Sequence[Thinking], model: Model, version: tuple[int, int] = (0, 0)) -> Thinking:
    """The first row for a model's version and name, or an empty one."""
    name = name_of(rows, model)
    fitting = (row for row in rows if row.since <= version and re.search(row.models, name, re.IGNORECASE))
    return next(fitting, Thinking())


def effort_of(call: UpstreamCall) -> Effort | ReasoningBudget | None:
    """The requested effort or budget. None if there is none, or the model does not reason anyway."""
    effort = call.params.reasoning
    return None if effort == "none" and not call.model.reasoning else effort


def find_nearest(word: str, efforts: Iterable[str]) -> str:
    """The nearest known effort; the stronger of two."""
    strength = WORDS.index(word)
    return min(efforts, key=lambda effort: (abs(WORDS.index(effort) - strength), -WORDS.index(effort)))


def at(path: str, value: object) -> JsonObject:
    """A document with a value at a path."""
    first = path.partition(".")[0]
    return {first: value if first == path else at(path[len(first) + 1 :], value)}


def merge(one: Mapping[str, object], other: Mapping[str, object]) -> JsonObject:
    """Merge two documents: objects recursively, other values from ``other``."""
    result = dict(one)
    for name, value in other.items():
        before = result.get(name)
        result[name] = merge(before, value) if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return result


def with_extra(body: JsonObject, call: UpstreamCall, provider: str) -> JsonObject:
    """Merge the caller's extra fields for this provider."""
    extra = (call.params.extra or {}).get(provider)
    return merge(body, extra) if extra else body


def tier_of(word: object) -> str:
    """Our name of a vendor's service tier; empty if unknown."""
    return _TIERS.get(word.lower(), "") if isinstance(word, str) else ""


def _fault_of(problem: str) -> ProviderFault:
    return ProviderFault(FaultKind.REQUEST, f"the model {problem}")
