"""Unsupported features of each vendor's models: tables of Claude and Gemini, and those in ``hosts``."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

from routewright._core.request.read import BRIEF_TOKENS
from routewright._core.request.rules import URLS
from routewright.wire import Feature, Model

from .endpoint import wire_name
from .hosts import HOSTS
from .reasoning import Thinking, at, thinking_of

NEWEST = (99, 0)
"""Version of a model without one in its name."""

# --- Claude, by the version in a model's name. From Anthropic's documentation of November 2026.

_CLAUDE = re.compile(r"claude-(?P<family>[a-z]+)?-?(?:(?P<major>\d+)(?:[.-](?P<minor>\d{1,2}))?(?!\d))?")
ONE_OF_TWO = (4, 1)
"""From this version on ``temperature`` and ``top_p`` cannot be combined."""
NO_PREFILL = (4, 6)
"""From this version on the conversation cannot end with an assistant's turn."""
NO_SAMPLING = (4, 7)
"""From this version on neither is supported, except for its default."""
_NO_FORCED_TOOL = (5, 1)
"""From this version on tool calls cannot be required, except of Haiku."""
THINKS = (5, 0)
"""From this version on it reasons by default."""

# The reasoning effort; the first matching row counts.
_DISABLED = {"thinking": {"type": "disabled"}}
_BOUNDED = Thinking(on=at("thinking.type", "enabled"), off={}, bound="thinking.budget_tokens", least=BRIEF_TOKENS)
_ADAPTIVE = Thinking(
    words="low medium high xhigh max",
    effort="output_config.effort",
    on={"thinking": {"type": "adaptive", "display": "summarized"}},  # else there is no readable text
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


def claude_of(model: Model) -> tuple[str, tuple[int, int]]:
    """Family and version; (0, 0) for other models."""
    if (match := _CLAUDE.search(wire_name(model))) is None:
        return "", (0, 0)
    version = NEWEST if match["major"] is None else (int(match["major"]), int(match["minor"] or 0))
    return match["family"] or "", version


# --- Gemini

_FETCHES = (2, 5)
"""From this version on images can be sent by address."""
SIGNING = (3, 0)
"""From this version on reasoning is signed, images have their own resolution, and tool results may have images."""
_SAMPLES_ALONE = (3, 6)
"""From this version on sampling parameters are ignored or refused."""
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
"""The reasoning effort; the first matching row counts. From 3 on reasoning cannot be disabled."""


def generation_of(model: Model) -> tuple[int, int]:
    """The version of Gemini in a model's name, the newest without one; (0, 0) for other models."""
    name = wire_name(model)
    if (numbers := re.search(r"gemini-(\d+)(?:\.(\d+))?", name)) is None:
        return NEWEST if "gemini" in name else (0, 0)
    return int(numbers[1]), int(numbers[2] or 0)


# --- all vendors

_PROTOCOLS = {"anthropic": "Messages", "google": "generateContent"}


@lru_cache(4_096)  # some hundred searches of names, which every Router would repeat
def unsupported_at(provider: str, model: Model) -> tuple[Feature, ...]:
    """Features that a vendor does not support for a model. Empty for unknown vendors."""
    missing: list[Feature]
    match provider:
        case "anthropic":
            missing = ["seed", "json_object", "flex", "priority", "verbosity", "http_url"]
            family, version = claude_of(model)
            if model.reasoning:
                missing += *thinking_of(CLAUDE_THINKING, model, version).missing, "reasoning_tool_choice"
                if version < NO_SAMPLING:
                    missing.append("reasoning_sampling")
            if not family and version == (0, 0):  # other hosts may ignore the fields
                missing += ["parallel_tool_calls", "reasoning_tokens"] if model.reasoning else ["parallel_tool_calls"]
            if version >= NO_SAMPLING:
                missing += ["temperature", "top_p"]
            if version >= _NO_FORCED_TOOL and family != "haiku":
                missing.append("tool_choice")
            return tuple(missing)
        case "google":
            missing = ["parallel_tool_calls", "verbosity", "cache_control", "http_url"]
            version = generation_of(model)
            if version >= _SAMPLES_ALONE or "gemini-3.5-flash-lite" in wire_name(model):
                missing += ["temperature", "top_p"]
            if version < _FETCHES:
                missing += ["image_url", "file_url"]
            return (*missing, *(thinking_of(GEMINI_THINKING, model, version).missing if model.reasoning else ()))
    if provider not in HOSTS:
        return ()
    host = HOSTS[provider]
    return tuple(sorted(host.list_missing(model) if host.fetches_urls else host.list_missing(model).union(URLS)))


def protocol_at(provider: str, model: Model) -> str:
    """The API by which a model is called at a vendor. Empty for unknown vendors."""
    if provider not in HOSTS:
        return _PROTOCOLS.get(provider, "")
    plain, tooled = (HOSTS[provider].uses_responses(model, "auto", tools=tools) for tools in (False, True))
    return "Responses" if plain else "Responses with tools, else chat completions" if tooled else "chat completions"
