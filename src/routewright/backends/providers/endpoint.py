"""A vendor's address and keys, from arguments or the environment, and the redaction of credentials."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from routewright._core.request.rules import CALLER_EXTRA, check_names
from routewright.errors import ValidationFailed
from routewright.wire import Model
from routewright.wire.account import Secret
from routewright.wire.problems import shown

_SECRET_CHARS = 6
"""Minimum length of a secret to redact in faults. Shorter ones could be ordinary words."""
_ANSWER_CHARS = 12
"""The same in answers: local servers get keys like ``ollama``, of which their models speak."""
_SCHEME = re.compile(r"(?:bearer|basic|token)\s+", re.IGNORECASE)
_CREDENTIAL = re.compile(r"auth|key|token|secret|cookie|password|credential", re.IGNORECASE)
"""Matches names of headers with credentials."""
_URL_CHARS = 200
_CALLS = ("/chat/completions", "/responses")
_DEPLOYMENTS = "/openai/deployments/"
_AZURE_VERSION = "api-version="


Fetches = bool | Literal["callers"]
"""Whether a provider may be sent URLs of images and files: never, from the owner of the process, or also from callers
with a key."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A vendor's address, and its environment variables."""

    name: str
    """The provider part of model ids."""
    base_url: str
    key_variables: tuple[str, ...] = ()
    """Environment variables for the key. The first one that is set is used."""
    url_variable: str | None = None
    """Environment variable that overrides ``base_url``."""
    url_path: str = ""
    """Path at the end of all addresses. Appended if missing."""
    regions: Mapping[str, str] = field(default_factory=dict)
    """Addresses by the region that they keep requests in."""
    needs_key: bool = True
    """False for self-hosted servers, which only need ``url_variable``."""
    fetches_urls: bool = False
    """The vendor fetches URLs of images and files itself, on its own machines."""
    own_domains: tuple[str, ...] = ()
    """Endings of the vendor's own hosts, besides the hosts of ``base_url`` and ``regions``."""
    caller_extra: frozenset[str] = CALLER_EXTRA
    """Vendor fields that callers with a key may send in ``params.extra``."""

    @property
    def to_set(self) -> str:
        """The variables that the vendor requires, as text."""
        key, url = self.key_variables[0], self.url_variable or ""
        if not self.needs_key:
            return url
        return key if self.base_url else f"{key} and {url}"

    def is_set(self, environ: Mapping[str, str]) -> bool:
        """True if the required variables are set."""
        variables = self.key_variables if self.needs_key else (self.url_variable or "",)
        address = self.base_url or environ.get(self.url_variable or "", "").strip()
        return bool(address) and any(environ.get(variable, "").strip() for variable in variables)

    def is_own(self, url: str) -> bool:
        """True for an address of the vendor itself, not of a proxy or another server with its API."""
        host = urlsplit(url).hostname or ""
        hosts = (urlsplit(address).hostname for address in (self.base_url, *self.regions.values()) if address)
        return host in hosts or host.endswith(self.own_domains)


def check_fetches(choice: object) -> Fetches:
    """Check the argument ``fetches_urls``. Raises ``ValidationFailed``."""
    if isinstance(choice, bool):
        return choice
    if choice == "callers":
        return "callers"
    hint = "pass True for requests of this process, 'callers' also for those of callers with a key"
    raise ValidationFailed.at("fetches_urls", f"must be True, False or 'callers', got {shown(choice)}", hint)


def wire_name(model: Model) -> str:
    """The vendor's name of a model."""
    return model.provider_model_id or model.id.partition("/")[2]


def check_arguments(name: object, base_url: object = None, headers: object = None) -> None:
    """Check the types of a provider's arguments. Raises ``ValidationFailed`` without values: one may be a key."""
    for argument, value, kinds, wanted, hint in (
        ("name", name, str, "a string", "name the provider"),
        ("base_url", base_url, str | None, "a string", "write 'https://host/path'"),
        ("headers", headers, Mapping | None, "a mapping", 'write {"x-org": "..."}'),
    ):
        if not isinstance(value, kinds):
            raise ValidationFailed.at(argument, f"must be {wanted}, got {type(value).__name__}", hint)
    check_names({"name": str(name)})


# --- addresses


def address_of(endpoint: Endpoint, base_url: str | None, environ: Mapping[str, str]) -> str:
    """The address of a vendor: the argument, else the environment variable, else the default. Raises
    ``ValidationFailed`` for invalid addresses and for addresses with credentials."""
    variable = endpoint.url_variable
    source = variable if variable and not base_url else "base_url"
    address = environ.get(variable, "").strip() if variable and not base_url else base_url
    if address and variable and not endpoint.needs_key:  # a self-hosted server
        address = complete_url(address, endpoint.base_url)
    url = address or endpoint.base_url
    if not url and variable:
        hint = f"set {variable}, or pass base_url=..."
        raise ValidationFailed.at("base_url", f"{endpoint.name} has no default address", hint)
    quoted = "the value" if set("@?#") & set(url) else repr(url[:_URL_CHARS])
    try:
        parts = urlsplit(url)
        is_web = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # bad port or brackets; the text may contain a password
        is_web = False
        quoted = "the value"
    if not is_web:
        raise ValidationFailed.at(source, f"{quoted} is not an address", "write https://host/path")
    own_path = parts.path.rstrip("/")
    hint = ""
    if _DEPLOYMENTS in own_path or parts.query.startswith(_AZURE_VERSION):
        hint = "pass https://RESOURCE.openai.azure.com, with the name 'azure'"
    elif path := next(filter(own_path.endswith, _CALLS), ""):
        hint = f"write {parts.scheme}://{parts.netloc}{own_path.removesuffix(path)}"
    if hint and parts.username is None:
        location = f"{parts.scheme}://{parts.netloc}{parts.path}"
        raise ValidationFailed.at(source, f"{location} is the address of a single call", hint)
    if parts.username is not None or parts.query or parts.fragment:
        location = f"{parts.scheme}://{parts.hostname}{parts.path}"
        hint = "pass credentials as api_key=... or headers=..."
        raise ValidationFailed.at(source, f"{location} contains a user, query or fragment", hint)
    url = url.rstrip("/")
    path = endpoint.url_path
    own_path = urlsplit(url).path
    return url + path.removeprefix(own_path) if f"{path}/".startswith(f"{own_path}/") else url


def address_in_region(endpoint: Endpoint, region: object, base_url: str | None) -> str | None:
    """The address of a region; ``base_url`` if ``region`` is None. Raises ``ValidationFailed``."""
    if region is None:
        return base_url
    if base_url is not None:
        raise ValidationFailed.at("region", f"{shown(region)} has its own address", "pass region or base_url, not both")
    if not isinstance(region, str) or region not in endpoint.regions:
        regions = ", ".join(map(repr, endpoint.regions))
        hint = f"take one of {regions}" if regions else "leave it out, or pass base_url=..."
        raise ValidationFailed.at("region", f"{endpoint.name} has no region {shown(region)}", hint)
    return endpoint.regions[region]


def complete_url(address: str, default: str) -> str:
    """Complete a short server address (``gpu-box``, ``0.0.0.0:11434``) with scheme, port and path of the default.

    Invalid addresses, and those with a user, query or fragment, are returned unchanged and rejected later.
    """
    usual = urlsplit(default)
    try:
        parts = urlsplit(address if "://" in address else f"{usual.scheme}://{address}")
        port = parts.port or (usual.port if parts.scheme == usual.scheme else None)
    except ValueError:
        return address
    if parts.username is not None or parts.query or parts.fragment:
        return address
    name = parts.hostname or ""
    if name == "0.0.0.0":  # only valid for listening
        name = "127.0.0.1"
    place = f"[{name}]" if ":" in name else name
    return f"{parts.scheme}://{place}{f':{port}' if port else ''}{parts.path.rstrip('/') or usual.path}"


# --- keys


def keys_of(keys: object, endpoint: Endpoint, environ: Mapping[str, str]) -> list[Secret]:
    """The given keys, else those of the environment, else an empty one if none is required. Raises
    ``ValidationFailed``."""
    source = "api_key"
    candidates = [keys]
    if keys is None:
        settings = ((environ.get(variable, "").strip(), variable) for variable in endpoint.key_variables)
        text, source = next((pair for pair in settings if pair[0]), ("", ""))
        candidates = [*text.split(",")]
    elif not isinstance(keys, str):
        if not isinstance(keys, Sequence) or isinstance(keys, bytes | bytearray):
            problem = f"must be a string or a list of them, got {type(keys).__name__}"
            raise ValidationFailed.at(source, problem, "pass the key as its vendor shows it")
        candidates = [*keys]
        for index, key in enumerate(keys):
            if not isinstance(key, str) or not Secret(key).reveal().strip():
                problem = "is empty" if isinstance(key, str) else f"must be a string, got {type(key).__name__}"
                raise ValidationFailed.at(f"api_key[{index}]", problem, "leave it out")
    texts = dict.fromkeys(filter(None, (Secret(key).reveal().strip() for key in candidates if isinstance(key, str))))
    if not texts and endpoint.needs_key:
        hint = f"set {' or '.join(endpoint.key_variables)}, or pass api_key=..."
        raise ValidationFailed.at("api_key", f"{endpoint.name} needs a key", hint)
    if not all(_is_header_value(text) and " " not in text for text in texts):
        raise ValidationFailed.at(source, "is not a key", "a key is printable ASCII without spaces")
    return [Secret(text) for text in texts or [""]]


def header_of(name: object, value: object) -> Secret:
    """Check a header, and return its value. Raises ``ValidationFailed``."""
    if not isinstance(value, str):
        problem = f"{name!r} must be a string, got {type(value).__name__}"
        raise ValidationFailed.at("headers", problem, "leave out headers without a value")
    secret = Secret(value)
    if not isinstance(name, str) or not _is_header_value(name) or not _is_header_value(secret.reveal()):
        raise ValidationFailed.at("headers", f"{name!r} cannot be sent", "use printable ASCII")
    return secret


def _is_header_value(text: str) -> bool:
    return text.isascii() and text.isprintable()


class Redactor:
    """Replaces credentials in text with as many asterisks, also if they are escaped for JSON or URLs."""

    def __init__(self, secrets: Sequence[Secret], headers: Mapping[str, Secret] | None = None) -> None:
        """``headers`` are no credentials in answers unless their names say so."""
        keys = [*secrets, *(value for name, value in (headers or {}).items() if _CREDENTIAL.search(name))]
        self._pattern = _pattern_of(_texts_of([*secrets, *(headers or {}).values()], _SECRET_CHARS))
        texts = _texts_of(keys, _ANSWER_CHARS)
        self._answer_pattern = _pattern_of(texts)
        self._signs = [Secret(max(re.findall(r"\w+|\W", text), key=len)) for text in texts]
        """The longest part of every credential that needs no escape."""

    def __call__(self, text: str) -> str:
        """Redact a text."""
        return _mask(self._pattern, text)

    def answer(self, document: str) -> str:
        """Redact a document or an event of an answer before it is decoded."""
        # A vendor's words are stored and handed on (reasons, ids, names, the answer itself), so a credential that an
        # upstream echoes in any of them must go; but an event must not cost more for it. So this looks for one word
        # of a credential, at the speed of C, or an escaped lower-case letter, and the pattern with all its escapes only
        # runs where there is one. A key that is cut across two events passes: neither has enough of it to tell. See
        # test_an_echoed_key_is_redacted_wherever_it_stands and test_looking_for_keys_costs_next_to_nothing.
        is_suspect = bool(self._signs) and "\\u00" in document and ("\\u006" in document or "\\u007" in document)
        for sign in self._signs:
            is_suspect = is_suspect or sign.reveal() in document
        return _mask(self._answer_pattern, document) if is_suspect else document


def _mask(pattern: Secret, text: str) -> str:
    return re.sub(pattern.reveal(), lambda match: "*" * len(match[0]), text, flags=re.IGNORECASE)


def _texts_of(secrets: Sequence[Secret], shortest: int) -> list[str]:
    """The secrets of this length without the names of schemes before them, longest first."""
    texts = {_SCHEME.sub("", secret.reveal()) for secret in secrets}
    return sorted((text for text in texts if len(text) >= shortest), key=len, reverse=True)


def _pattern_of(texts: Sequence[str]) -> Secret:
    return Secret("|".join("".join(map(_escaped, text)) for text in texts))


def _escaped(character: str) -> str:
    code = f"{ord(character):02x}"
    return rf"(?:\\{{0,3}}{re.escape(character)}|\\{{1,3}}u00{code}|%{code})"
