"""Which hosts belong to the public Internet: for the addresses of images and files in requests, and for webhooks.

Names are not resolved here, so a public name may still lead to a private address.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from routewright.errors import Problem

# Special-purpose, multicast and reserved blocks. 168.63.129.16 is the host agent of Azure VMs. The IPv6 blocks are
# Teredo, ORCHID, documentation, 6to4, AS112 and the former 6bone; everything outside of 2000::/3 is excluded anyway.
_SPECIAL = (
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 168.63.129.16/32 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 "
    "192.0.2.0/24 192.31.196.0/24 192.52.193.0/24 192.88.99.0/24 192.168.0.0/16 192.175.48.0/24 198.18.0.0/15 "
    "198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4 "
    "2001::/23 2001:db8::/32 2002::/16 2620:4f:8000::/48 3ffe::/16 3fff::/20"
)
_NOT_PUBLIC = [ip_network(block) for block in _SPECIAL.split()]
_UNICAST = [ip_network("0.0.0.0/0"), ip_network("2000::/3")]
_LOOPBACK = [ip_network("127.0.0.0/8"), ip_network("::1/128")]

_NO_URL_CHARACTER = re.compile(r"[\x00-\x20\x7f-\x9f\\\s]")
_AUTHORITY = re.compile(r"https://([^/?#]*)", re.IGNORECASE | re.ASCII)
_HOST_AND_PORT = re.compile(r"(\[[0-9a-f:.]*\]|[^\[\]:]+)(?::(\d{1,5}))?", re.IGNORECASE | re.ASCII)
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_NAME_CHARS = 253
_SHOWN_CHARS = 60
_PRIVATE_ENDINGS = tuple(  # reserved, or used for the names of private networks
    ".local .internal .localhost .localdomain .lan .home .corp .private .intranet .home.arpa .svc .test .invalid "
    ".onion .localhost4 .localhost6 .localdomain4 .localdomain6 .intra .docker .consul .in-addr.arpa .ip6.arpa "
    ".metadata.goog".split()
)


def is_public(address: str) -> bool:
    """True for an address of the public Internet. False for other text, and for addresses with a scope id."""
    return "%" not in address and _within(_UNICAST, address) and not _within(_NOT_PUBLIC, address)


def is_loopback(address: str) -> bool:
    """True for a loopback address."""
    return _within(_LOOPBACK, address)


def problem_of_url(path: str, url: str) -> Problem | None:
    """Why a URL is not an ``https://`` URL of a public host; None if it is one.

    Programs disagree on how to read an odd URL: a server may fetch from another host than the one that was checked
    here. So only hosts in the one spelling that all of them read alike are accepted: ASCII names, and addresses as they
    are usually printed. ``0x7f.1``, ``2130706433`` and circled digits name loopback to some programs."""
    if _NO_URL_CHARACTER.search(url):
        return Problem(path, "has white space, a control character or a backslash", "percent-encode it")
    if (authority := _AUTHORITY.match(url)) is None:
        return Problem(path, "must begin with https:// for callers with a key", "use https://, or send a data: URL")
    if "@" in authority[1]:
        return Problem(path, "has user information", "leave out the part before the @")
    if not authority[1].isascii():
        return Problem(path, "has a host that is not ASCII", "write the host in its xn-- form")
    parts = _HOST_AND_PORT.fullmatch(authority[1])
    if parts is None or not 1 <= int(parts[2] or 443) <= 65_535:
        return Problem(path, "has no valid host and port", "write https://host/path")
    host = parts[1].lower()
    if _is_public_host(host):
        return None
    problem = f"names {host[:_SHOWN_CHARS]!r}, which is not a public host"
    return Problem(path, problem, "send the content as a data: URL")


def _is_public_host(host: str) -> bool:
    if host.startswith("["):
        address = host[1:-1]
        return ":" in address and is_public(address) and str(ip_address(address)) == address
    name = host.removesuffix(".")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):  # resolvers take it for an IPv4 address
        return is_public(name)
    if len(labels) < 2 or len(name) > _NAME_CHARS or f".{name}".endswith(_PRIVATE_ENDINGS):
        return False
    return all(map(_LABEL.fullmatch, labels))


def _within(networks: list[IPv4Network | IPv6Network], address: str) -> bool:
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return any(parsed in network for network in networks)
