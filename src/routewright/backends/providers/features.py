"""What the models of each vendor do not take: the tables of Claude and Gemini, and those in ``hosts``."""

from __future__ import annotations

import re
from dataclasses import replace

from routewright._core.request.read import BRIEF_TOKENS
from routewright.wire import Feature, Model

from .dials import Thinking, at, thinking_of
from .endpoint import wire_name
from .hosts import HOSTS

NEWEST = (99, 0)
"""The version of a model whose name has none."""


def unsupported_at(provider: str, model: Model) -> tuple[Feature, ...]:
    """What cannot be asked of a model where the vendor serves it; of a vendor that is not known, nothing is."""
    if provider == "anthropic":
        return _lacking_of_claude(model)
    if provider == "google":
        return _lacking_of_gemini(model)
    return tuple(sorted(HOSTS[provider].lacking(model))) if provider in HOSTS else ()


# --- Claude, by the version in a model's name. From Anthropic's documentation of November 2026.

_CLAUDE = re.compile(r"claude-(?P<family>[a-z]+)?-?(?:(?P<major>\d+)(?:[.-](?P<minor>\d{1,2}))?(?!\d))?")
ONE_OF_TWO = (4, 1)
"""From here on ``temperature`` and ``top_p`` are not taken together."""
NO_PREFILL = (4, 6)
"""From here on the caller cannot begin the answer for the model."""
NO_SAMPLING = (4, 7)
"""From here on neither is taken, except for the value that changes nothing."""
_NO_FORCED_TOOL = (5, 1)
"""From here on a tool call cannot be demanded, except of Haiku."""
THINKS = (5, 0)
"""From here on it thinks unless it is kept from it."""

# How they are told to think; the first row that fits counts.
_DISABLED = {"thinking": {"type": "disabled"}}
_BOUNDED = Thinking(on=at("thinking.type", "enabled"), off={}, bound="thinking.budget_tokens", least=BRIEF_TOKENS)
_ADAPTIVE = Thinking(
    words="low medium high xhigh max",
    effort="output_config.effort",
    on={"thinking": {"type": "adaptive", "display": "summarized"}},  # else its text is left out
    off=_DISABLED,
)
_ALWAYS = replace(_ADAPTIVE, off=None)
CLAUDE_THINKING = (
    replace(_ADAPTIVE, since=(5, 0), models="haiku"),
    replace(_ALWAYS, since=(5, 0), models="fable|mythos"),
    replace(_ALWAYS, since=(5, 1)),
    replace(_ADAPTIVE, since=(4, 7)),
    replace(
        _BOUNDED,
        since=(4, 6),
        words="low medium high max",
        effort=_ADAPTIVE.effort,
        on=at("thinking.type", "adaptive"),
        bounded=_BOUNDED.on,
    ),
    replace(_BOUNDED, since=(0, 1)),
    replace(_BOUNDED, off=_DISABLED),
)


def _lacking_of_claude(model: Model) -> tuple[Feature, ...]:
    """It depends on the version; of models that are no Claudes only what the protocol itself lacks is known."""
    lacking: list[Feature] = ["seed", "json_object", "flex", "priority", "verbosity"]
    family, version = claude_of(model)
    if model.reasoning:
        lacking += *thinking_of(CLAUDE_THINKING, model, version).lacking, "reasoning_tool_choice"
        if version < NO_SAMPLING:
            lacking.append("reasoning_sampling")
    if not family and version == (0, 0):  # other hosts take the fields, and may ignore them
        lacking += ["parallel_tool_calls", "reasoning_tokens"] if model.reasoning else ["parallel_tool_calls"]
    if version >= NO_SAMPLING:
        lacking += ["temperature", "top_p"]
    if version >= _NO_FORCED_TOOL and family != "haiku":
        lacking.append("tool_choice")
    return tuple(lacking)


def claude_of(model: Model) -> tuple[str, tuple[int, int]]:
    """Family and version; (0, 0) for a model that is no Claude."""
    found = _CLAUDE.search(wire_name(model))
    if found is None:
        return "", (0, 0)
    version = NEWEST if found["major"] is None else (int(found["major"]), int(found["minor"] or 0))
    return found["family"] or "", version


# --- Gemini

_FETCHES = (2, 5)
"""From here on images are fetched by their address."""
SIGNING = (3, 0)
"""From here on thoughts are signed, images have a resolution of their own, and results may hold images."""
_SAMPLES_ALONE = (3, 6)
"""From here on sampling is the model's own: what is asked for is ignored, or refused."""
_SHOWN = at("thinkingConfig.includeThoughts", True)
_LEVELS = Thinking(words="low medium high", effort="thinkingConfig.thinkingLevel", on=_SHOWN)
_BUDGET = Thinking(
    on=_SHOWN, bound="thinkingConfig.thinkingBudget", most=24_576, off=at("thinkingConfig.thinkingBudget", 0)
)
GEMINI_THINKING = (
    replace(_LEVELS, since=(3, 7)), replace(_LEVELS, since=(3, 1), models="pro"),
    replace(_LEVELS, since=(3, 0), models="pro", words="low high"),
    replace(_LEVELS, since=(3, 0), words="minimal low medium high"),
    replace(_BUDGET, since=(2, 5), models="pro", off=None, least=128, most=32_768),
    replace(_BUDGET, since=(2, 5), models="lite", least=512), replace(_BUDGET, since=(2, 5)),
)  # fmt: skip
"""How models are told to think; the first row that fits counts. From 3 on nothing keeps them from it."""


def _lacking_of_gemini(model: Model) -> tuple[Feature, ...]:
    """Sampling if it ignores it, addresses if it fetches nothing, and what it cannot be told of thinking."""
    generation = generation_of(model)
    lacking: list[Feature] = ["parallel_tool_calls", "verbosity", "cache_control"]
    if generation >= _SAMPLES_ALONE or "gemini-3.5-flash-lite" in wire_name(model):
        lacking += ["temperature", "top_p"]
    if generation < _FETCHES:
        lacking += ["image_url", "file_url"]
    return (*lacking, *(thinking_of(GEMINI_THINKING, model, generation).lacking if model.reasoning else ()))


def generation_of(model: Model) -> tuple[int, int]:
    """The version of Gemini in a model's name; the newest if it has none, (0, 0) if it is no Gemini."""
    name = wire_name(model)
    numbers = re.search(r"gemini-(\d+)(?:\.(\d+))?", name)
    if numbers is None:
        return NEWEST if "gemini" in name else (0, 0)
    return int(numbers[1]), int(numbers[2] or 0)
