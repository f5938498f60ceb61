"""Token counts as vendors report them: by OpenAI's names, of both its protocols, or those of other hosts."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from routewright._core.money import MOST_TOKENS
from routewright.wire import Usage

_WRITTEN = ("cache_write_tokens", "cache_creation_input_tokens", "cache_creation_tokens")
"""Prompt tokens written to the vendor's cache, as named by OpenAI and OpenRouter, Alibaba, and proxies of Anthropic."""


def count_of(value: object) -> int | None:
    """A reported token count, or None if it is invalid. Some hosts report it as a text, or as ``12.0``."""
    if type(value) is not int and isinstance(value, str | float):
        with suppress(ValueError):
            value = int(number) if (number := float(value)).is_integer() else None
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else None


def read_usage(usage: object) -> Usage | None:
    """The reported token counts, 0 for one that is not known, or None if none is."""
    if not isinstance(usage, dict):
        return None
    prompt = _count(usage, "prompt_tokens", "input_tokens")
    output = _count(usage, "completion_tokens", "output_tokens")
    if not prompt and not output:
        return None
    if not prompt or not output:
        rest = max(_count(usage, "total_tokens") - prompt - output, 0)
        prompt = prompt or rest
        output = output or rest
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    cached = _count(details, "cached_tokens") or _count(usage, "prompt_cache_hit_tokens", "cached_tokens")
    written = _count(details, *_WRITTEN) or _count(usage, "cache_creation_input_tokens")
    thought = usage.get("completion_tokens_details") or usage.get("output_tokens_details")
    reasoning = _count(thought, "reasoning_tokens")
    if reasoning and count_of(usage.get("total_tokens")) == prompt + output + reasoning:
        output += reasoning  # xAI counts them in addition to the others
    if "num_search_queries" in usage:  # Perplexity bills citations and reasoning in addition
        reasoning = _count(usage, "reasoning_tokens")
        prompt += _count(usage, "citation_tokens")
        output += reasoning
    cached = min(cached, prompt)
    written = min(written, prompt - cached)
    audio = min(_count(details, "audio_tokens"), prompt - cached - written)
    return Usage(prompt, output, cached, min(reasoning, output), written, audio=audio)


def _count(counts: Any, *names: str) -> int:
    """The first valid count other than 0, else 0."""
    for name in names if isinstance(counts, dict) else ():
        if count := count_of(counts.get(name)):
            return count
    return 0
