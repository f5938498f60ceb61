"""Addresses and URLs allowed for webhooks: one table of refused and one of accepted ones."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import urlsplit

from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from routewright._core.addresses import is_loopback, is_public
from routewright._core.webhooks.endpoint import check_url
from routewright.errors import ValidationFailed
from tests.tables import table

# first, last and some within of each block
BLOCKED = """
0.0.0.0 0.0.0.1 0.255.255.255 10.0.0.0 10.0.0.1 10.255.255.255 100.64.0.0 100.100.100.200 100.127.255.255
127.0.0.0 127.0.0.1 127.1.2.3 127.255.255.255 168.63.129.16 169.254.0.0 169.254.169.254 169.254.170.2 169.254.255.255
172.16.0.0 172.17.0.1 172.31.255.255 192.0.0.0 192.0.0.8 192.0.0.9 192.0.0.170 192.0.0.192 192.0.0.255
192.0.2.0 192.0.2.1 192.0.2.255 192.31.196.1 192.52.193.1 192.88.99.0 192.88.99.1 192.88.99.255
192.168.0.0 192.168.1.1 192.168.255.255 192.175.48.1 198.18.0.0 198.18.0.1 198.19.255.255
198.51.100.0 198.51.100.255 203.0.113.0 203.0.113.255 224.0.0.0 224.0.0.1 233.252.0.1 239.255.255.255
240.0.0.0 240.0.0.1 254.255.255.255 255.255.255.254 255.255.255.255
:: ::1 ::2 ::127.0.0.1 ::10.0.0.1 ::8.8.8.8 ::ffff:0:0 ::ffff:127.0.0.1 ::ffff:7f00:1 ::ffff:10.0.0.1 ::ffff:8.8.8.8
::ffff:169.254.169.254 ::ffff:0:127.0.0.1 ::FFFF:192.168.1.1 0:0:0:0:0:ffff:7f00:1 0:0:0:0:0:0:0:1
64:ff9b:: 64:ff9b::7f00:1 64:ff9b::127.0.0.1 64:ff9b::8.8.8.8 64:ff9b::a9fe:a9fe 64:ff9b:1:: 64:ff9b:1::a00:1
64:ff9b:1:ffff:ffff:ffff:ffff:ffff 100:: 100::1 100:0:0:1::1 1fff:ffff::1
2001:: 2001::1 2001:0:4136:e378:8000:63bf:3fff:fdd2 2001:1::1 2001:1::2 2001:1::3 2001:2::1 2001:3::1 2001:4:112::1
2001:10::1 2001:1f:ffff::1 2001:20::1 2001:2f:ffff::1 2001:30::1 2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff
2001:db8:: 2001:db8::1 2001:db8:ffff:ffff:ffff:ffff:ffff:ffff 2001:DB8::A
2002:: 2002:7f00:1:: 2002:a00:1:: 2002:a9fe:a9fe::1 2002:c0a8:101::1 2002:808:808:: 2002:ffff:ffff::1
2620:4f:8000::1 3ffe::1 3ffe:ffff:ffff::1 3fff:: 3fff::1 3fff:fff:ffff::1 4000:: 4000::1 5f00:: 5f00::1 5f00:ffff::1
6000::1 8000::1 c000::1 e000::1 f000::1 f800::1 fbff::1 fc00:: fc00::1 fd00::1 fd00:ec2::254 fd20:ce::254 fdff:ffff::1
fe00::1 fe80:: fe80::1 fe80::1%eth0 fe80::1%1 fe80::1%25eth0 febf:ffff::1 fec0:: fec0::1 feff:ffff::1
ff00:: ff01::1 ff02::1 ff02::2 ff05::2 ff0e::1 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff
2606:4700::1111%eth0 2606:4700::1111%1 ::1%lo
""".split()
NO_ADDRESSES = """
127.1 127.0.1 0177.0.0.1 0x7f.1 0x7f.0.0.1 0x7f000001 2130706433 017700000001 010.0.0.1 8.8.8 8.8.8.8. 08.8.8.8
8.8.8.8/32 8.8.8.256 8.8.8.8.8 1.1 134744072 +8.8.8.8 8.8.8.-8 ８.8.8.8 ①27.0.0.1 ٨.8.8.8 127。0。0。1
localhost example.com
[2606:4700::1111] 2606:4700::1111/128 2606:4700:1111 ::g 1::2::3 12345::1 2606:4700::1111%
""".split()
PUBLIC = """
1.0.0.0 1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 93.184.216.34 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0
168.63.129.15 168.63.129.17 169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 191.255.255.255 192.0.1.0 192.0.3.0
192.88.98.255 192.88.100.0 192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 198.51.99.255 198.51.101.0
203.0.112.255 203.0.114.0 223.255.255.255
2000::1 2001:200:: 2001:200::1 2001:4860:4860::8888 2001:db7:ffff::1 2001:db9:: 2001:ffff::1 2003::1
2400:cb00::1 2606:4700::1111 2606:4700:4700::1111 2620:4f:7fff::1 2620:4f:8001::1 2a00:1450:4001:81b::200e
2A00:1450:4001:81B::200E 3ffd:ffff::1 3fff:1000::1
""".split()

SPELLINGS = r"""
https://127.0.0.1 https://127.0.0.1:8443/x https://127.1 https://127.0.1 https://127.1/ https://0x7f.1 https://0x7F.0.0.1
https://0X7f000001 https://2130706433 https://0177.0.0.1 https://017700000001 https://0 https://0x https://0x0 https://00
https://127.0.0.1. https://127.0.0.1.. https://8.8.8.8. https://010.0.0.1 https://8.8.8 https://134744072
https://a.1 https://a.0x1 https://foo.127.0.0.1 https://example.com.0x7f https://1.1.1.1.1 https://256.1.1.1
https://１27.0.0.1 https://127。0。0。1 https://①②⑦.0.0.1 https://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ https://bücher.example https://x.com/ſ
https://[::1] https://[::1]:443/ https://[0:0:0:0:0:0:0:1] https://[::] https://[::ffff:127.0.0.1] https://[::127.0.0.1]
https://[::ffff:7f00:1] https://[64:ff9b::7f00:1] https://[2002:7f00:1::] https://[fe80::1] https://[fe80::1%25eth0]
https://[fe80::1%eth0] https://[fec0::1] https://[fd00:ec2::254] https://[ff02::1] https://[5f00::1] https://[3fff::1]
https://[127.0.0.1] https://[8.8.8.8] https://[localhost] https://[example.com] https://[] https://[:] https://[::1
https://::1 https://::1] https://[[::1]] https://[::1]] https://[::1].example.com https://[::1]x https://x[::1]
https://[::1]@example.com https://example.com@[::1] https://[2606:4700::1111]127.0.0.1 https://[v1.x] https://[::g]
https://[2606:4700::1111 https://2606:4700::1111 https://[2606:4700::1111]:443:80 https://%5B::1%5D
https://localhost https://LOCALHOST https://localhost:8080/x https://a.localhost https://localhost. https://x.LocalHost
https:localhost https:/127.0.0.1 https:///127.0.0.1 https:////127.0.0.1 https:\\127.0.0.1 https:\127.0.0.1
https://127.0.0.1\@example.com https://example.com\@127.0.0.1 https://example.com\.127.0.0.1 https:\/\/example.com
https://example.com@127.0.0.1 https://user@example.com https://user:pass@example.com https://:@example.com
https://@example.com https://example.com:80@127.0.0.1 https://example.com%40127.0.0.1 https://example.com%2f@127.0.0.1
https://127.0.0.1%23.example.com https://example.com%00.x https://127%2e0%2e0%2e1 https://%31%32%37.0.0.1
https://example.com# https://example.com#x https://example.com/#x https://example.com?#@127.0.0.1 https://127.0.0.1#.x.com
https://example.com:0 https://example.com:65536 https://example.com:99999 https://example.com:999999 https://example.com:
https://example.com:-1 https://example.com:+443 https://example.com:4_4 https://example.com:x https://example.com:443:80
https://example.com:٤٤٣ https://example.com:0x1bb https://example.com:443.0 https://example.com:1e3
https:// https://? https:///x https://:443 https://. https://.. https://.example.com https://example.com. https://a..b
https://example.com.. https://ex*mple.com https://exa$mple.com https://(example.com) https://a,b https://a;b https://a!b
https://example.com;@127.0.0.1 https://example.com&@127.0.0.1 https://~ https://=
http://example.com HTTP://example.com http://8.8.8.8 http://localhost http://127.0.0.1 http://[::1]
ftp://example.com file:///etc/passwd gopher://127.0.0.1:6379/_x data:text/plain,x javascript:alert(1) //example.com
example.com example.com:443 /x ? httpss://example.com xhttps://example.com https+unix://x unix:///run/docker.sock ws://x
https;//example.com https//example.com :https://example.com ://example.com https://https://127.0.0.1@x
https://169.254.169.254/latest/meta-data/ https://100.100.100.200/ https://168.63.129.16/ https://192.0.0.192/
https://metadata@169.254.169.254 https://255.255.255.255 https://224.0.0.1 https://192.88.99.1 https://198.18.0.1
""".split()
CHARACTERS = [
    chr(code) for code in (*range(0x21), 0x7F, 0x80, 0x85, 0xA0, 0xAD, 0x200B, 0x2028, 0x3002, 0xFEFF, 0xFF0E)
]
CHARACTERS += [*'\\"<>^`{|}', "\udc80", "ſ", "\u212a"]  # the last two are letters of ASCII to those who fold case


def refused(url: str, *, allow_loopback: bool = False) -> str:
    try:
        check_url(url, allow_loopback=allow_loopback)
    except ValidationFailed as error:
        (problem,) = error.problems
    else:
        raise AssertionError(f"it is accepted: {url!a}")
    assert problem.path == "url"
    assert problem.hint
    return problem.problem


def test_the_tables_are_long_enough() -> None:
    assert len(set(BLOCKED)) >= 150
    assert len(set(SPELLINGS)) >= 150


def test_addresses_that_are_not_public_are_refused_and_public_ones_pass() -> None:
    refused = [*BLOCKED, *NO_ADDRESSES, "", " ", "8.8.8.8 ", " 8.8.8.8", "8.8.8.8\n", "8.8.8.8\0"]
    assert [address for address in refused if is_public(address)] == []
    assert [address for address in PUBLIC if not is_public(address) or is_loopback(address)] == []


@given(st.integers(0, 2**32 - 1))
def test_ipv4_addresses_inside_ipv6_are_refused(number: int) -> None:
    four = IPv4Address(number)
    assert not is_public(f"::ffff:{four}")
    assert not is_public(f"::{four}")
    assert not is_public(f"64:ff9b::{four}")
    assert not is_public(str(IPv6Address(0x2002 << 112 | number << 80)))  # 6to4
    assert not is_public(str(IPv6Address(0x20010000 << 96 | number)))  # Teredo


@given(st.integers(0, 2**128 - 1))
def test_only_global_unicast_ipv6_passes(number: int) -> None:
    if number >> 125 != 1:
        assert not is_public(str(IPv6Address(number)))


@given(st.text(max_size=40))
def test_any_text_is_checked_without_an_error(text: str) -> None:
    assert not (is_public(text) and is_loopback(text))


def test_loopback_addresses_are_recognised_and_no_others() -> None:
    for address in ("127.0.0.1", "127.255.255.255", "::1", "0:0:0:0:0:0:0:1"):
        assert is_loopback(address)
    for address in ("::ffff:127.0.0.1", "::127.0.0.1", "0.0.0.0", "::", "10.0.0.1", "127.1", "localhost"):
        assert not is_loopback(address)


def test_no_spelling_of_a_blocked_address_passes() -> None:
    for url in SPELLINGS:
        refused(url)
    for address in BLOCKED:
        refused(f"https://[{address}]/" if ":" in address else f"https://{address}/")


@table(
    "where", ["{}https://example.com/", "https://exam{}ple.com/", "https://example.com/a{}b", "https://example.com/?{}"]
)
def test_characters_outside_urls_are_refused(where: str) -> None:
    for character in CHARACTERS:
        assert refused(where.format(character)) == "has a character that no URL may have", ascii(character)


VALID = """
    https://example.com https://example.com/ https://example.com:443 https://example.com:1024/ https://example.com:65535
    https://hooks.example.com/a/b;c=1/~x?y=%20&z[]=@ HTTPS://Example.COM/Path https://xn--bcher-kva.example/ https://a_b.io
    https://example.com? https://example.com?x=https://127.0.0.1/ https://example.com/@127.0.0.1 https://1a.example
    https://8.8.8.8 https://8.8.8.8:8443/x https://[2606:4700::1111] https://[2606:4700::1111]:8443/x https://127.0.0.1.nip.io
    https://notlocalhost https://localhost.example.com https://0x7f.1.example.com https://a.0xg https://1-1
""".split()


def test_valid_urls_are_accepted() -> None:
    for url in VALID:
        check_url(url, allow_loopback=False)


@given(
    st.text(alphabet="/\\[]@#?.%0127:xabcf-_ ~&;=", max_size=20), st.sampled_from(["a.b", "1.1.1.1", "[2a00::1]", ""])
)
def test_an_accepted_url_is_parsed_the_same_by_all_parsers(text: str, host: str) -> None:
    url = f"https://{host}{text}"
    try:
        check_url(url, allow_loopback=False)
    except ValidationFailed:
        return
    read = URL(url)
    assert (read.raw_host, read.port, read.raw_user) == (urlsplit(url).hostname, urlsplit(url).port or 443, None)
    assert not re.fullmatch(r"[0-9.]+|.*:.*", read.raw_host or "") or is_public(read.raw_host or "")


def test_the_longest_url_has_2048_characters() -> None:
    url = "https://example.com/".ljust(2_048, "x")
    check_url(url, allow_loopback=False)
    assert refused(url + "x") == "is too long"
    assert refused("\n" * 1_000_000) == "is too long"


@table(
    "url",
    """
    http://localhost http://localhost:8080/x http://127.0.0.1:1 http://127.9.9.9 http://[::1]:8080/ http://a.localhost
    HTTP://LOCALHOST https://localhost https://127.0.0.1 https://[::1] https://example.com https://8.8.8.8
    """.split(),
)
def test_allow_loopback_permits_loopback(url: str) -> None:
    check_url(url, allow_loopback=True)


LOCAL = re.compile(r"https?://(([a-z]\.)?localhost|127\.0\.0\.1|\[[0:]+:1\])(:[0-9]+)?(/.*)?", re.IGNORECASE)


@table("url", [url for url in SPELLINGS if not LOCAL.fullmatch(url)])
def test_allow_loopback_permits_nothing_else(url: str) -> None:
    refused(url, allow_loopback=True)


def test_a_label_has_at_most_63_characters() -> None:
    for name in ("{}", "{}.example", "a.{}"):
        check_url("https://" + name.format("x" * 63), allow_loopback=False)
        assert refused("https://" + name.format("x" * 64)) == "has no valid host and port"


def test_an_error_names_the_problem() -> None:
    for url, problem in {
        "http://example.com": "is plain HTTP",
        "https://10.0.0.1": "has a host that is not public",
        "https://localhost": "has a host that is not public",
        "https://u:p@example.com": "has user information",
        "https://example.com#x": "has a fragment",
        "https://example.com:0": "has no valid host and port",
        "https://example.com.": "has no valid host and port",
        "ftp://example.com": "is not an HTTPS URL",
        "https:///x": "is not an HTTPS URL",
        "https://a b": "has a character that no URL may have",
    }.items():
        assert refused(url) == problem
