"""Creates providers from environment variables."""

from __future__ import annotations

from collections.abc import Mapping

from .anthropic import AnthropicProvider
from .endpoint import Endpoint
from .gemini import GeminiProvider
from .hosts import ANTHROPIC, ENDPOINTS, GOOGLE, HOSTS
from .http import HttpProvider
from .openai import OpenAIProvider

_OWN = ((ANTHROPIC, AnthropicProvider), (GOOGLE, GeminiProvider))
"""Vendors with their own protocol."""
VENDORS: tuple[Endpoint, ...] = (*ENDPOINTS.values(),)
"""All vendors that can be configured by variables."""


def providers_from_environment(environ: Mapping[str, str]) -> list[HttpProvider]:
    """One provider per vendor whose key is set; for self-hosted servers, whose address is set."""
    return [
        *(OpenAIProvider(name=host.name, environ=environ) for host in HOSTS.values() if host.is_set(environ)),
        *(provider(environ=environ) for vendor, provider in _OWN if vendor.is_set(environ)),
    ]


def variables_to_set() -> dict[str, str]:
    """The variables that each vendor requires, by its name."""
    return {vendor.name: vendor.to_set for vendor in VENDORS}
