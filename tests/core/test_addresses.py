"""URLs of images and files are accepted from callers with a key only if every reader takes them for a public host."""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from ipaddress import IPv4Address
from urllib.parse import urlsplit

from hypothesis import given
from hypothesis import strategies as st

from routewright._core.addresses import is_public, problem_of_url
from tests.tables import table

from .url_samples import ODD, PRIVATE, PUBLIC

PIECES = (
    "https://", "http://", "HTTPS://", "//", "/", "\\", "@", ":", "#", "?", "[", "]", ".", "。", "%2e", " ", "\t", "\n",
    "example.com", "localhost", "127.0.0.1", "8.8.8.8", "0x7f", "017", "::1", "2606:4700::1111", "①", "443", "a", "-",
)  # fmt: skip
URLS = st.lists(st.sampled_from(PIECES), max_size=7).map(lambda pieces: "https://" + "".join(pieces))


def test_a_url_that_may_lead_elsewhere_is_refused_with_path_and_hint() -> None:
    for url in (*PRIVATE, *ODD):
        problem = problem_of_url("messages[0].content[1].image_url.url", url)
        assert problem is not None, url
        assert problem.path == "messages[0].content[1].image_url.url"
        assert problem.hint


def test_a_url_of_a_public_host_passes() -> None:
    assert [url for url in PUBLIC if problem_of_url("url", url) is not None] == []


@table(
    ("url", "said"),
    [
        (
            "http://example.com",
            "url: must begin with https:// for callers with a key; use https://, or send a data: URL",
        ),
        ("https://a:b@example.com", "url: has user information; leave out the part before the @"),
        ("https://①.com", "url: has a host that is not ASCII; write the host in its xn-- form"),
        ("https://a b", "url: has white space, a control character or a backslash; percent-encode it"),
        ("https://a:x", "url: has no valid host and port; write https://host/path"),
        (
            "https://Printer.local/secret?token=1",
            "url: names 'printer.local', which is not a public host; send the content as a data: URL",
        ),
    ],
)
def test_a_refusal_says_what_is_wrong_and_shows_no_more_than_the_host(url: str, said: str) -> None:
    assert str(problem_of_url("url", url)) == said


def test_a_long_host_is_cut_in_the_message() -> None:
    problem = problem_of_url("url", f"https://{'a' * 9_000}")
    assert problem is not None
    assert len(problem.problem) < 200


@given(URLS | st.text(max_size=30).map(lambda text: f"https://{text}"))
def test_what_passes_has_one_public_host_for_every_reader(url: str) -> None:
    if problem_of_url("url", url) is not None:
        return
    parts = urlsplit(url)
    authority = re.split("[/?#]", url[len("https://") :])[0]
    host = parts.hostname or ""
    assert parts.netloc == authority
    assert authority.lower() in (host, f"{host}:{parts.port}", f"[{host}]", f"[{host}]:{parts.port}")
    assert (parts.scheme, parts.username, parts.password) == ("https", None, None)
    assert is_public(host.removesuffix(".")) or re.fullmatch(r"[a-z0-9_.-]+\.[a-z0-9_-]*[a-z_-][a-z0-9_-]*\.?", host)


@given(st.integers(0, 2**32 - 1), st.data())
def test_no_spelling_of_a_private_ipv4_address_passes(number: int, data: st.DataObject) -> None:
    if is_public(str(IPv4Address(number))):
        number = 0x7F000000 | number & 0xFFFFFF
    cut = data.draw(st.integers(1, 4))
    heads, tail = [number >> shift & 0xFF for shift in (24, 16, 8)][: cut - 1], number & (1 << 8 * (5 - cut)) - 1
    written = [data.draw(st.sampled_from(["{:d}", "{:#x}", "{:#X}", "0{:o}", "00{:o}"])) for _ in range(cut)]
    host = ".".join(form.format(part) for form, part in zip(written, [*heads, tail], strict=True))
    with suppress(OSError):
        assert socket.inet_aton(host) == number.to_bytes(4, "big"), "the test spells the address"
    for end in ("", ".", ":80"):
        assert problem_of_url("url", f"https://{host}{end}/x.png") is not None, host
