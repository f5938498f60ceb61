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
VENDORS: tuple[Endpoint, ...] = (*(vendor for vendor, _ in _OWN), *HOSTS.values())
"""All whose variables are looked for."""


def providers_from_environment(environ: Mapping[str, str]) -> list[HttpProvider]:
    """One provider for each vendor whose key is set, or whose address is, where it is a server of one's own."""
    hosts = [host for host in HOSTS.values() if _is_configured(host, environ)]
    return [
        *(OpenAIProvider(name=host.name, environ=environ) for host in hosts),
        *(provider(environ=environ) for vendor, provider in _OWN if _is_configured(vendor, environ)),
    ]


def variables_to_set() -> dict[str, str]:
    """What has to be set for each vendor to be found, by its name."""
    return {vendor.name: _to_set(vendor) for vendor in VENDORS}


def _to_set(vendor: Endpoint) -> str:
    key, url = vendor.key_variables[0], vendor.url_variable or ""
    if not vendor.needs_key:
        return url
    return key if vendor.base_url else f"{key} and {url}"


def _is_configured(vendor: Endpoint, environ: Mapping[str, str]) -> bool:
    variables = vendor.key_variables if vendor.needs_key else (vendor.url_variable or "",)
    placed = vendor.base_url or environ.get(vendor.url_variable or "", "").strip()
    return bool(placed) and any(environ.get(variable, "").strip() for variable in variables)
