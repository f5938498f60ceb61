"""Where a vendor is reached, with which keys, and what must not be seen of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from routewright._core.request.problems import shown
from routewright._core.request.rules import check_names
from routewright.errors import Problem, ValidationFailed
from routewright.wire import Model
from routewright.wire.secret import Secret

_SECRET_CHARS = 6
"""Shorter ones are words, not secrets."""
_URL_CHARS = 200
_NOTHING = r"(?!)"
_CALL = "/chat/completions"
_DEPLOYMENTS = "/openai/deployments/"
_AZURE_VERSION = "api-version="


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One vendor's address, and the environment variables that say more."""

    name: str
    """The provider part of its models' ids."""
    base_url: str
    key_variables: tuple[str, ...] = ()
    """Environment variables that hold its key; the first that is set counts."""
    url_variable: str | None = None
    """Environment variable with another address, in place of ``base_url``."""
    url_path: str = ""
    """What an address ends with, and is completed by where it is given without."""
    regions: Mapping[str, str] = field(default_factory=dict)
    """Addresses that keep to one region, by its name."""
    needs_key: bool = True
    """False for servers of one's own, which are found by ``url_variable`` alone."""


def wire_name(model: Model) -> str:
    """The name by which the vendor knows a model."""
    return model.provider_model_id or model.id.partition("/")[2]


def check_arguments(name: object, api_key: object, base_url: object, headers: object) -> None:
    """Refuse what is not of its kind. No value is shown that may be a key."""
    if not isinstance(name, str):
        raise ValidationFailed.of(Problem("name", f"must be a string, got {type(name).__name__}", "name the provider"))
    check_names({"name": name})
    _check_keys(api_key)
    if not isinstance(base_url, str | None):
        problem = f"must be a string, got {type(base_url).__name__}"
        raise ValidationFailed.of(Problem("base_url", problem, "write 'https://host/path'"))
    if not isinstance(headers, Mapping | None):
        problem = f"must be a mapping, got {type(headers).__name__}"
        raise ValidationFailed.of(Problem("headers", problem, 'write {"x-org": "..."}'))


def _check_keys(api_key: object) -> None:
    if isinstance(api_key, str | None):
        return
    if not isinstance(api_key, Sequence) or isinstance(api_key, bytes | bytearray):
        problem = f"must be a string or a list of them, got {type(api_key).__name__}"
        raise ValidationFailed.of(Problem("api_key", problem, ""))
    for place, key in enumerate(api_key):
        if not isinstance(key, str) or not Secret(key).reveal().strip():
            said = "is empty" if isinstance(key, str) else f"must be a string, got {type(key).__name__}"
            raise ValidationFailed.of(Problem(f"api_key[{place}]", said, "leave it out"))


def url_of(endpoint: Endpoint, environ: Mapping[str, str]) -> tuple[str, str]:
    """The address, and where it comes from."""
    variable = endpoint.url_variable or ""
    given = environ.get(variable, "").strip()
    if not given and variable and not endpoint.base_url:
        hint = f"set {variable}, or give base_url=..."
        raise ValidationFailed.of(Problem("base_url", f"{endpoint.name} has an address of your own only", hint))
    if not given:
        return endpoint.base_url, "base_url"
    return given if endpoint.needs_key else complete_url(given, endpoint.base_url), variable


def url_of_region(endpoint: Endpoint, region: object, base_url: str | None) -> str | None:
    """The address of a region, if one is chosen; else the one that was given. Raises ``ValidationFailed``."""
    if region is None:
        return base_url
    if base_url is not None:
        problem = f"{shown(region)} has an address of its own"
        raise ValidationFailed.of(Problem("region", problem, "give region or base_url"))
    if not isinstance(region, str) or region not in endpoint.regions:
        known = ", ".join(map(repr, endpoint.regions))
        hint = f"take one of {known}" if known else "leave it out, or give base_url=..."
        raise ValidationFailed.of(Problem("region", f"{endpoint.name} has no region {shown(region)}", hint))
    return endpoint.regions[region]


def with_path(url: str, path: str) -> str:
    """An address that ends with the path it should end with, where nothing else stands there."""
    here = urlsplit(url).path
    return url + path.removeprefix(here) if f"{path}/".startswith(f"{here}/") else url


def checked_url(url: str, source: str) -> str:
    """An address that is one, and nothing besides. Raises ``ValidationFailed`` naming its ``source``."""
    shown = "what was given" if set("@?#") & set(url) else repr(url[:_URL_CHARS])
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port or brackets that are none, and a port that is none may be a password
        known, shown = False, "what was given"
    if not known:
        raise ValidationFailed.of(Problem(source, f"{shown} is not an address", "write https://host/path"))
    if parts.username is None and (hint := _to_write(parts)):
        where = f"{parts.scheme}://{parts.netloc}{parts.path}"
        raise ValidationFailed.of(Problem(source, f"{where} is the address of a single call", hint))
    if parts.username is not None or parts.query or parts.fragment:
        where = f"{parts.scheme}://{parts.hostname}{parts.path}"
        hint = "give credentials as api_key=... or headers=..."
        raise ValidationFailed.of(Problem(source, f"{where} has a user, query or fragment with it", hint))
    return url.rstrip("/")


def _to_write(parts: SplitResult) -> str:
    """What to write instead of the address that one call goes to; empty if it is none."""
    path = parts.path.rstrip("/")
    if _DEPLOYMENTS in path or parts.query.startswith(_AZURE_VERSION):
        return "give https://RESOURCE.openai.azure.com, with the name 'azure'"
    if path.endswith(_CALL):
        return f"write {parts.scheme}://{parts.netloc}{path.removesuffix(_CALL)}"
    return ""


def keys_of(given: str | Sequence[str] | None, endpoint: Endpoint, environ: Mapping[str, str]) -> list[Secret]:
    """The keys that were given, or stand in the environment; where none is needed, an empty one."""
    if given is None:
        found = ((environ.get(variable, "").strip(), variable) for variable in endpoint.key_variables)
        text, source = next((pair for pair in found if pair[0]), ("", ""))
        written = text.split(",")
    else:
        written, source = [given] if isinstance(given, str) else list(given), "api_key"
    texts = dict.fromkeys(filter(None, (Secret(key).reveal().strip() for key in written)))
    if not texts and endpoint.needs_key:
        variables = " or ".join(endpoint.key_variables)
        raise ValidationFailed.of(
            Problem("api_key", f"{endpoint.name} needs a key", f"set {variables}, or give api_key=...")
        )
    if not all(_is_header_value(text) and " " not in text for text in texts):
        raise ValidationFailed.of(Problem(source, "is not a key", "a key is printable ASCII without spaces"))
    return [Secret(text) for text in texts or [""]]


def header_of(name: object, value: object) -> Secret:
    """The value of a header that can be sent. Raises ``ValidationFailed``."""
    if not isinstance(value, str):
        problem = f"{name!r} must be a string, got {type(value).__name__}"
        raise ValidationFailed.of(Problem("headers", problem, "leave out what has no value"))
    secret = Secret(value)
    if not isinstance(name, str) or not _is_header_value(name) or not _is_header_value(secret.reveal()):
        raise ValidationFailed.of(Problem("headers", f"{name!r} cannot be sent", "use printable ASCII"))
    return secret


def _is_header_value(text: str) -> bool:
    return text.isascii() and text.isprintable()


def spellings_of(secrets: Sequence[Secret]) -> Secret:
    """A pattern of the ways in which a server may write them back: in JSON, in a URL."""
    texts = (secret.reveal() for secret in secrets)
    longest_first = sorted((text for text in texts if len(text) >= _SECRET_CHARS), key=len, reverse=True)
    return Secret("|".join("".join(map(_spelt, text)) for text in longest_first) or _NOTHING)


def _spelt(character: str) -> str:
    code = f"{ord(character):02x}"
    return rf"(?:\\{{0,3}}{re.escape(character)}|\\{{1,3}}u00{code}|%{code})"


def stars(match: re.Match[str]) -> str:
    """As many of them as what they hide has characters."""
    return "*" * len(match[0])


def complete_url(address: str, default: str) -> str:
    """A server's address as people write it (``gpu-box``, ``0.0.0.0:11434``), completed from the usual one.

    What is no address, or has more with it than host and path, is given back as it is, to be refused as such.
    """
    usual = urlsplit(default)
    try:
        given = urlsplit(address if "://" in address else f"{usual.scheme}://{address}")
        port = given.port or (usual.port if given.scheme == usual.scheme else None)
    except ValueError:
        return address
    if given.username is not None or given.query or given.fragment:
        return address
    name = given.hostname or ""
    if name == "0.0.0.0":  # an address to listen on
        name = "127.0.0.1"
    place = f"[{name}]" if ":" in name else name
    return f"{given.scheme}://{place}{f':{port}' if port else ''}{given.path.rstrip('/') or usual.path}"
