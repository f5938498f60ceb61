"""Creates providers from environment variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from routewright._runtime.plugins import make_plugin
from routewright.errors import ValidationFailed
from routewright.protocols import Provider

from .anthropic import AnthropicProvider
from .gemini import GeminiProvider
from .hosts import ANTHROPIC, ENDPOINTS, GOOGLE, HOSTS
from .http import HttpOptions
from .openai import OpenAIProvider

_OWN = ((ANTHROPIC, AnthropicProvider), (GOOGLE, GeminiProvider))
"""Vendors with their own protocol."""
PROVIDERS = "ROUTEWRIGHT_PROVIDERS"
"""The variable that names providers of other packages, separated by commas."""


def providers_from_environment(
    environ: Mapping[str, str], *, fetches_urls: Sequence[str] = (), caller_extra: Sequence[str] = ()
) -> list[Provider]:
    """One provider per vendor whose key is set; for self-hosted servers, whose address is set. Then those of other
    packages that ``ROUTEWRIGHT_PROVIDERS`` names.

    ``fetches_urls``: providers that may fetch URLs of callers with a key. ``caller_extra``: fields that such callers
    may send, as ``provider.field``. Raises ``ValidationFailed`` if there is no such provider."""
    vendors = {vendor.name: vendor for vendor in ENDPOINTS.values() if vendor.is_set(environ)}
    choice = f"name one of {', '.join(vendors)}" if vendors else "set the variables of the provider"
    options = {name: HttpOptions(environ=environ, caller_extra=()) for name in vendors}
    problem = "is not a provider of the environment"
    for index, name in enumerate(fetches_urls):
        if name not in vendors:
            raise ValidationFailed.at(f"fetches_urls[{index}]", f"{name!r} {problem}", choice)
        options[name]["fetches_urls"] = "callers"
    for index, entry in enumerate(caller_extra):
        name = entry.partition(".")[0]
        if name not in vendors:
            hint = f"write the provider in front, as {next(iter(vendors), '')}.{entry}"
            hint = choice if "." in entry or not vendors else hint
            raise ValidationFailed.at(f"caller_extra[{index}]", f"{name!r} {problem}", hint)
        field = entry[len(name) + 1 :]
        if not field:
            raise ValidationFailed.at(f"caller_extra[{index}]", f"{entry!r} has no field", f"write {name}.FIELD")
        options[name]["caller_extra"] = (*options[name]["caller_extra"], field)
    return [
        *(OpenAIProvider(name=name, **options[name]) for name in HOSTS if name in vendors),
        *(provider(**options[vendor.name]) for vendor, provider in _OWN if vendor.name in vendors),
        *(_plugin(name.strip()) for name in environ.get(PROVIDERS, "").split(",") if name.strip()),
    ]


def _plugin(name: str) -> Provider:
    if name in ENDPOINTS:
        raise ValidationFailed.at(PROVIDERS, f"{name!r} is built in", f"leave it out, and set {ENDPOINTS[name].to_set}")
    provider = make_plugin(PROVIDERS, "routewright.providers", Provider, name)  # type: ignore[type-abstract]
    if provider is None:
        raise ValidationFailed.at(PROVIDERS, f"no installed package has the provider {name!r}", "install its package")
    return provider


def variables_set(environ: Mapping[str, str]) -> list[str]:
    """The variable with the key, or else the address, of each vendor of the environment, and ``ROUTEWRIGHT_PROVIDERS``
    if it is set."""
    names = [
        next(name for name in (*vendor.key_variables, vendor.url_variable or "") if environ.get(name, "").strip())
        for vendor in ENDPOINTS.values()
        if vendor.is_set(environ)
    ]
    return [*names, PROVIDERS] if environ.get(PROVIDERS, "").strip() else names


def variables_to_set() -> dict[str, str]:
    """The variables that each vendor requires, by its name."""
    return {vendor.name: vendor.to_set for vendor in ENDPOINTS.values()}
