"""Proxies and certificates of connections, from arguments or the environment, with the rules of httpx.

Opens no connections. Certificates are read when the first connection is opened.
"""

from __future__ import annotations

import os
import ssl
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property, lru_cache
from ipaddress import ip_address, ip_network
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from routewright.errors import ProviderFault, ValidationFailed
from routewright.wire.account import Secret

Verify = bool | str | os.PathLike[str] | ssl.SSLContext
"""True: verify with the system's certificates, or those of ``SSL_CERT_FILE`` or ``SSL_CERT_DIR``; a path: only with
those of a PEM file or an OpenSSL folder; False: do not verify."""
_PORTS = {"http": 80, "https": 443}


class Proxy(NamedTuple):
    """An HTTP proxy."""

    url: str
    """Without user and password."""
    place: str
    """Host and port, for messages."""
    authorization: Secret | None
    """The value of ``Proxy-Authorization``."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers for the proxy only. They contain the password."""
        return {} if self.authorization is None else {"Proxy-Authorization": self.authorization.reveal()}


class Network:
    """The proxies and certificates of a transport. ``proxy`` is used for all hosts and overrides the environment."""

    def __init__(
        self, proxy: str | None = None, verify: Verify = True, environ: Mapping[str, str] | None = None
    ) -> None:
        environ = os.environ if environ is None else environ
        self._verify = _check_verify(verify)
        self._verify_from = "verify"
        for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
            if self._verify is True and environ.get(name):
                self._verify = environ[name]
                self._verify_from = name
        self._proxies: dict[str, Proxy] = {}
        self._direct: list[str] = []
        """Entries of ``NO_PROXY``."""
        if proxy is not None:
            self._proxies = dict.fromkeys(_PORTS, _parse_proxy(proxy, "proxy"))
        else:
            # lower case sorts last and wins
            value = {name.lower(): value.strip() for name, value in sorted(environ.items())}
            self._direct = [entry for word in value.get("no_proxy", "").split(",") if (entry := word.strip().lower())]
            for scheme in () if "*" in self._direct else _PORTS:
                name = f"{scheme}_proxy" if value.get(f"{scheme}_proxy") else "all_proxy"
                if value.get(name):
                    self._proxies[scheme] = _parse_proxy(value[name], name.upper())
        self.proxy_of = lru_cache(256)(self._proxy_of) if self._proxies else None
        """Finds the proxy for a scheme and netloc. None if no proxies are configured."""

    @cached_property
    def tls(self) -> ssl.SSLContext | None:
        """The TLS context for servers and proxies; None: the system's certificates. Raises ``ProviderFault``."""
        match self._verify:
            case ssl.SSLContext() as context:
                return context
            case str() as path:
                try:
                    return _load_context(path)
                except OSError as exc:  # an ssl.SSLError is one
                    problem = f"the certificates of {self._verify_from} cannot be read: {exc.strerror or exc}"
                    raise ProviderFault("local", problem, hint="name a PEM file, or a folder of them") from exc
            case False:
                unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                unverified.check_hostname = False
                unverified.verify_mode = ssl.CERT_NONE
                return unverified
        return None

    def _proxy_of(self, scheme: str, netloc: str) -> Proxy | None:
        parts = urlsplit(f"{scheme}://{netloc}")
        host = (parts.hostname or "").rstrip(".")
        port = parts.port or _PORTS.get(scheme)
        if any(_matches(entry, scheme, host, port) for entry in self._direct):
            return None
        return self._proxies.get(scheme)


def _check_verify(verify: object) -> str | bool | ssl.SSLContext:
    if isinstance(verify, bool | ssl.SSLContext):
        return verify
    if not isinstance(verify, str | os.PathLike):
        problem = f"must be a bool, a path or an ssl.SSLContext, got {type(verify).__name__}"
        raise ValidationFailed.at("verify", problem, "pass True, False, a path or an ssl.SSLContext")
    path = os.fspath(verify)
    if not isinstance(path, str) or not os.path.exists(path):
        raise ValidationFailed.at("verify", f"there is no {path!r}", "name a PEM file, or a folder of them")
    return path


@lru_cache(16)  # loading a system's certificates takes 10 ms
def _load_context(path: str) -> ssl.SSLContext:
    folder = os.path.isdir(path)
    return ssl.create_default_context(cafile=None if folder else path, capath=path if folder else None)


# --- proxies


def _parse_proxy(url: object, source: str) -> Proxy:
    """Parse a proxy URL. Raises ``ValidationFailed`` without the URL, which may contain a password."""
    hint = "write http://host:port, or http://user:password@host:port"
    if not isinstance(url, str):
        raise ValidationFailed.at(source, f"must be a string, got {type(url).__name__}", hint)
    text = Secret(url).reveal().strip()
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port
    except ValueError:
        raise ValidationFailed.at(source, "is not the address of a proxy", hint) from None
    if parts.scheme.startswith("socks"):
        raise ValidationFailed.at(source, "names a SOCKS proxy, which is not supported", "pass an HTTP proxy")
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValidationFailed.at(source, "is not the address of a proxy", hint)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    address = f"{host}:{port or _PORTS[parts.scheme]}"
    authorization = None
    if parts.username is not None:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = Secret("Basic " + b64encode(user.encode()).decode())
    return Proxy(f"{parts.scheme}://{address}", address, authorization)


def _matches(entry: str, scheme: str, host: str, port: int | None) -> bool:
    """True if an entry of ``NO_PROXY`` matches a host. ``name`` matches the host and its subdomains, ``.name`` and
    ``*.name`` only subdomains. Addresses and networks match addresses. An entry can have a port or a scheme."""
    address = entry.rpartition("://")[2]
    entry_scheme = entry.removesuffix(address).removesuffix("://")
    if entry_scheme not in ("", "all", scheme):
        return False
    with suppress(ValueError):  # one of them is a name, or the entry has a port
        return ip_address(host) in ip_network(address.strip("[]"), strict=False)
    try:
        parts = urlsplit(f"//{address}")
        name, entry_port = parts.hostname or "", parts.port
    except ValueError:
        return False  # curl and httpx ignore invalid entries, too
    if not name or entry_port not in (None, port):
        return False
    if suffix := name.removeprefix("*") if name.startswith("*.") else name if name.startswith(".") else "":
        return host.endswith(suffix) and host != suffix
    return host == name or (host.endswith(f".{name}") and address.lower() != "localhost" and not entry_scheme)
