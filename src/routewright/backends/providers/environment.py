"""Finds providers by what is set in the environment."""

from __future__ import annotations

from collections.abc import Mapping

from .anthropic import ANTHROPIC, AnthropicProvider
from .endpoint import Endpoint
from .gemini import GOOGLE, GeminiProvider
from .hosts import HOSTS
from .http import HttpProvider
from .openai import OpenAIProvider

_OWN = ((ANTHROPIC, AnthropicProvider), (GOOGLE, GeminiProvider))
"""Vendors with a protocol of their own."""
VENDORS: tuple[Endpoint, ...] = (ANTHROPIC, GOOGLE, *HOSTS.values())
"""All whose variables are looked for."""


def providers_from_environment(environ: Mapping[str, str]) -> list[HttpProvider]:
    """One provider for each vendor whose key is set, or whose address is, if it is self-hosted."""
    return [
        *(OpenAIProvider(name=host.name, environ=environ) for host in HOSTS.values() if host.is_set(environ)),
        *(provider(environ=environ) for vendor, provider in _OWN if vendor.is_set(environ)),
    ]


def variables_to_set() -> dict[str, str]:
    """The variables that have to be set for each vendor to be found, by its name."""
    return {vendor.name: vendor.to_set for vendor in VENDORS}
