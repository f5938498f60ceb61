"""Which URLs and addresses may webhooks be sent to? Resolves no names: the transport checks the addresses of a name.
The table is our own, since ``ipaddress.is_global`` takes NAT64, 6to4, multicast and others for public. A NAT64 prefix
of the network's own cannot be recognised."""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from routewright.errors import ValidationFailed

# Special purposes, multicast, reserved. 168.63.129.16 is the host agent of Azure's machines; the rest of IPv6 stands
# outside of 2000::/3, in which Teredo, ORCHID, documentation, 6to4, AS112 and the former 6bone are.
_SPECIAL = (
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 168.63.129.16/32 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 "
    "192.0.2.0/24 192.31.196.0/24 192.52.193.0/24 192.88.99.0/24 192.168.0.0/16 192.175.48.0/24 198.18.0.0/15 "
    "198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4 "
    "2001::/23 2001:db8::/32 2002::/16 2620:4f:8000::/48 3ffe::/16 3fff::/20"
)
_NOT_PUBLIC = [ip_network(block) for block in _SPECIAL.split()]
_UNICAST = [ip_network("0.0.0.0/0"), ip_network("2000::/3")]
_LOOPBACK = [ip_network("127.0.0.0/8"), ip_network("::1/128")]

_WRONG = (
    (r"[\s\S]{2049}", "is too long", "take at most 2,048 characters"),
    (r"[\s\S]*?[^A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]", "has a character that no URL may have", "percent-encode it"),
    (r"(?![Hh][Tt][Tt][Pp][Ss]?://[^/?#])", "is not an HTTPS URL", "begin with https:// and a host"),
    (r".*#", "has a fragment", "leave out # and what follows"),
    (r"[^/]*//[^/?]*@", "has user information", "verify the signature of deliveries instead"),
)
_NAME = r"[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*"
_PARTS = re.compile(rf"([^:]*)://(\[[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*\]|{_NAME})(?::([0-9]{{1,5}}))?(?:[/?].*)?")
_ADDRESS = re.compile(r"\[.*|(.*\.)?([0-9]+|0x[0-9a-f]*)")  # what resolvers take for one, in whatever spelling


def is_public(address: str) -> bool:
    """True if an address belongs to the public Internet. Text that is no address does not, nor one with a scope id."""
    return "%" not in address and _within(_UNICAST, address) and not _within(_NOT_PUBLIC, address)


def is_loopback(address: str) -> bool:
    """True if an address is this machine's own."""
    return _within(_LOOPBACK, address)


def check_url(url: object, *, allow_loopback: bool) -> None:
    """Raises ``ValidationFailed`` unless webhooks may go to ``url``; ``allow_loopback`` permits that over HTTP."""
    if not isinstance(url, str):
        raise ValidationFailed.at("url", f"is {type(url).__name__}", "pass a string")
    for pattern, problem, hint in _WRONG:
        if re.match(pattern, url):
            raise ValidationFailed.at("url", problem, hint)
    parts = _PARTS.fullmatch(url)
    if parts is None or not 1 <= int(parts[3] or 443) <= 65_535:
        raise ValidationFailed.at("url", "has no valid host and port", "a host ends without a dot, ports with 65535")
    host = parts[2].lower()
    is_address, address = _ADDRESS.fullmatch(host), host.strip("[]")
    is_local = is_loopback(address) if is_address else host == "localhost" or host.endswith(".localhost")
    if not (allow_loopback if is_local else not is_address or is_public(address)):
        hint = "take one that the Internet can reach; allow_loopback is for development"
        raise ValidationFailed.at("url", "has a host that is not public", hint)
    if not is_local and 443 != int(parts[3] or 443) < 1024:  # what listens there speaks other protocols
        raise ValidationFailed.at("url", "has a port that belongs to another protocol", "take 443, or 1024 and above")
    if parts[1].lower() == "http" and not is_local:
        raise ValidationFailed.at("url", "is plain HTTP", "begin with https://")


def _within(networks: list[IPv4Network | IPv6Network], address: str) -> bool:
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return any(parsed in network for network in networks)
