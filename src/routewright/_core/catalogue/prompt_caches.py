"""How vendors keep prompts that they were sent: from what length on, for how long, and whether they have to be asked.
Figures are the vendors' own: the least of a range, and five minutes where none is given."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple


class PromptCache(NamedTuple):
    """How a vendor keeps the beginnings of prompts to one model."""

    lifetime_s: float = 300.0
    """From their last use."""
    minimum: int = 1_024
    """Tokens. No shorter beginning is kept."""
    by_marks: bool = False
    """It keeps what requests mark (``cache_control``), and finds it for those with marks; others do so unasked."""


HOUR_S = 3_600.0
_AUTOMATIC, _CLAUDE = PromptCache(), PromptCache(by_marks=True)
_OPENAI = ((r"gpt-(5\.[6-9]|[6-9]|1\d)(?!\d)", PromptCache(1_800.0)), ("", _AUTOMATIC))
_TABLE: dict[str, tuple[tuple[str, PromptCache | None], ...]] = {
    # developers.openai.com/api/docs/guides/prompt-caching: "5 to 10 minutes of inactivity", "the ttl defaults to 30m"
    "openai": _OPENAI,
    "azure": _OPENAI,
    # platform.claude.com/docs/en/build-with-claude/prompt-caching
    "anthropic": ((r"haiku-4-5|opus-4-[567]", _CLAUDE._replace(minimum=4_096)), ("", _CLAUDE)),
    # openrouter.ai/docs/features/prompt-caching
    "openrouter": ((r"anthropic/", _CLAUDE), ("", _AUTOMATIC)),
    # ai.google.dev/gemini-api/docs/caching: "implicit caching is enabled by default", with no lifetime
    "google": ((r"gemini-2\.5", PromptCache(minimum=2_048)), ("", PromptCache(minimum=4_096))),
    # api-docs.deepseek.com/guides/kv_cache: "cleared, usually within a few hours to a few days"
    "deepseek": (("", PromptCache(2 * HOUR_S)),),
    # console.groq.com/docs/prompt-caching: "expires after 2 hours without use"
    "groq": (("", PromptCache(2 * HOUR_S)),),
    # docs.mistral.ai/studio-api/conversations/advanced/prompt-caching: for a ``prompt_cache_key``, which is not sent
    "mistral": (("", None),),
}
"""By the provider that serves, then by a pattern of the model's name. Others keep prompts unasked, for a while."""


@lru_cache(1_024)
def prompt_cache_of(provider: str, model: str) -> PromptCache | None:
    """What is known of a model, by its id; None: nothing is kept. Whether it has a price for that is not asked."""
    return next(cache for name, cache in _TABLE.get(provider, (("", _AUTOMATIC),)) if re.search(name, model))
