"""Proxies and certificates, explicit or from the environment, against a real proxy and servers on loopback."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx2
import pytest
import trustme
from httpx2._utils import URLPattern, get_environment_proxies
from hypothesis import given
from hypothesis import strategies as st

from routewright import ValidationFailed
from routewright.backends.transport import AutoTransport
from routewright.backends.transport.network import Network
from routewright.errors import ProviderFault
from routewright.protocols import Transport
from tests.tables import table
from tests.upstream import Answer, Gate, Request, Upstream

from .provider_calls import call, chunks_of
from .proxy_server import ProxyServer
from .vendors import KEY, PASSWORD, Vendor

pytestmark = pytest.mark.anyio
NAME = "vendor.example"
USER = f"corp:{PASSWORD}"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def bundle(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return path


@pytest.fixture(scope="module")
def tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(NAME, "127.0.0.1").configure_cert(context)
    return context


@pytest.fixture
def upstream(tls: ssl.SSLContext) -> Iterator[Upstream]:
    with Upstream(answer, tls) as running:
        yield running


@pytest.fixture
def plain() -> Iterator[Upstream]:
    with Upstream(answer) as running:
        yield running


@pytest.fixture
def proxy() -> Iterator[ProxyServer]:
    with ProxyServer() as running:
        yield running


@pytest.fixture
def guarded() -> Iterator[ProxyServer]:
    """A proxy that requires a password."""
    with ProxyServer(USER) as running:
        yield running


Make = Callable[..., AutoTransport]


@pytest.fixture
def make(anyio_backend: str) -> Make:
    return AutoTransport


def answer(request: Request) -> Answer:
    return Answer([request.raw or b"hello"])


def named(server: Upstream) -> str:
    """Its address with a name that only the proxy resolves."""
    return server.url.replace("127.0.0.1", NAME)


def signed_in(proxy: ProxyServer) -> str:
    return proxy.url.replace("://", f"://{USER}@")


@asynccontextmanager
async def using(transport: AutoTransport) -> AsyncIterator[AutoTransport]:
    try:
        yield transport
    finally:
        await transport.aclose()


async def fetch(transport: Transport, url: str, body: bytes = b"hello") -> bytes:
    async with transport.request("POST", url, headers={"authorization": "canary"}, body=body) as response:
        return await response.read(1_000)


async def fault_of(transport: AutoTransport, url: str) -> ProviderFault:
    async with using(transport):
        with pytest.raises(ProviderFault) as caught:
            await fetch(transport, url)
    error: BaseException | None = caught.value
    while error is not None:
        assert PASSWORD not in f"{error!r} {error} {error.args} {vars(error)}"
        error = error.__cause__ or error.__context__
    return caught.value


# --- the two ways through a proxy


async def test_an_https_address_is_reached_through_a_tunnel_that_is_reused(
    make: Make, upstream: Upstream, proxy: ProxyServer, bundle: Path
) -> None:
    async with using(make(proxy=proxy.url, verify=bundle)) as transport:
        for _ in range(3):
            assert await fetch(transport, f"{named(upstream)}/a?b=c", b"canary") == b"canary"
    (asked,) = proxy.asked
    assert (asked.method, asked.path) == ("CONNECT", f"{NAME}:{upstream.port}")
    assert asked.headers["host"] == asked.path
    assert "canary" not in str(asked)
    assert [request.path for request in upstream.requests] == ["/v1/a?b=c"] * 3
    assert upstream.opened == 1


async def test_an_http_address_is_requested_in_absolute_form(make: Make, plain: Upstream, proxy: ProxyServer) -> None:
    async with using(make(proxy=proxy.url)) as transport:
        assert await fetch(transport, f"{named(plain)}/a?b=c") == b"hello"
    (asked,) = proxy.asked
    assert (asked.method, asked.path) == ("POST", f"{named(plain)}/a?b=c")
    assert asked.headers["host"] == f"{NAME}:{plain.port}"
    assert plain.requests[0].raw == b"hello"


async def test_user_and_password_go_only_to_the_proxy(
    make: Make, upstream: Upstream, plain: Upstream, guarded: ProxyServer, bundle: Path
) -> None:
    async with using(make(proxy=signed_in(guarded), verify=bundle)) as transport:
        for server in (upstream, plain, upstream, plain):
            assert await fetch(transport, named(server)) == b"hello"
    assert [asked.method for asked in guarded.asked] == ["CONNECT", "POST", "POST"]
    for request in upstream.requests + plain.requests:
        assert "proxy-authorization" not in request.headers


async def test_a_password_may_have_any_character(make: Make, plain: Upstream) -> None:
    with ProxyServer("us er:p@ss:/ä") as proxy:
        place = proxy.url.replace("://", "://us%20er:p%40ss%3A%2F%C3%A4@")
        async with using(make(proxy=place)) as transport:
            assert await fetch(transport, named(plain)) == b"hello"


async def test_a_proxy_may_use_tls(
    make: Make, upstream: Upstream, plain: Upstream, tls: ssl.SSLContext, bundle: Path
) -> None:
    with ProxyServer(USER, tls=tls) as proxy:
        async with using(make(proxy=signed_in(proxy), verify=bundle)) as transport:
            assert await fetch(transport, named(upstream)) == b"hello"
            assert await fetch(transport, named(plain)) == b"hello"
    assert [asked.method for asked in proxy.asked] == ["CONNECT", "POST"]


async def test_cancelling_closes_the_tunnel(make: Make, upstream: Upstream, proxy: ProxyServer, bundle: Path) -> None:
    gate = Gate()
    upstream.answers = [Answer([b"first", gate], chunked=True)]
    async with using(make(proxy=proxy.url, verify=bundle)) as transport:
        async with anyio.create_task_group() as group:
            group.start_soon(fetch, transport, named(upstream))
            await anyio.to_thread.run_sync(gate.reached.wait)
            group.cancel_scope.cancel()
        assert await anyio.to_thread.run_sync(upstream.wait_connected, 0)
        assert await fetch(transport, named(upstream)) == b"hello"


def test_tunnels_work_on_uvloop_even_through_a_tls_proxy(
    upstream: Upstream, proxy: ProxyServer, tls: ssl.SSLContext, bundle: Path
) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def ask(place: str) -> bytes:
        async with using(AutoTransport(proxy=place, verify=bundle)) as transport:
            return await fetch(transport, named(upstream))

    with ProxyServer(tls=tls) as secure:
        assert [uvloop.run(ask(each.url)) for each in (proxy, secure)] == [b"hello", b"hello"]
        assert [each.asked[0].method for each in (proxy, secure)] == ["CONNECT", "CONNECT"]


# --- what goes wrong


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_proxy_that_requires_a_password_is_named_and_not_retried(
    make: Make, upstream: Upstream, plain: Upstream, guarded: ProxyServer, scheme: str
) -> None:
    wrong = guarded.url.replace("://", f"://wrong:{PASSWORD}@")
    fault = await fault_of(make(proxy=wrong), named(upstream if scheme == "https" else plain))
    assert (fault.kind, fault.retry) == ("connect", False)
    assert f"the proxy {guarded.place} answered 407 for {NAME}" in fault.message
    assert guarded.place not in fault.public
    assert "HTTPS_PROXY" in fault.hint
    assert "canary" not in str(vars(fault))


async def test_a_refused_tunnel_is_a_connect_fault(make: Make, upstream: Upstream) -> None:
    with ProxyServer(answers=503) as proxy:
        fault = await fault_of(make(proxy=proxy.url), named(upstream))
    assert (fault.kind, fault.retry) == ("connect", None)
    assert f"the proxy {proxy.place} answered 503 for {NAME}" in fault.message


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_an_unreachable_proxy_is_a_connect_fault(make: Make, scheme: str) -> None:
    fault = await fault_of(make(proxy=f"http://{USER}@127.0.0.1:9"), f"{scheme}://{NAME}/v1")
    assert fault.kind == "connect"
    assert f"no connection to {NAME} through the proxy 127.0.0.1:9" in fault.message
    assert fault.public == "no connection through the proxy: it was refused"


async def test_an_untrusted_proxy_is_a_connect_fault(make: Make, plain: Upstream, tls: ssl.SSLContext) -> None:
    with ProxyServer(tls=tls) as proxy:
        fault = await fault_of(make(proxy=proxy.url), named(plain))
    assert fault.kind == "connect"
    assert f"through the proxy {proxy.place}" in fault.message
    assert fault.public == "no connection through the proxy: its certificate is not valid"
    assert proxy.asked == plain.requests == []


async def test_certificates_are_verified_through_a_tunnel_too(
    make: Make, upstream: Upstream, proxy: ProxyServer
) -> None:
    fault = await fault_of(make(proxy=proxy.url), named(upstream))
    assert fault.kind == "connect"
    assert "its certificate is not valid" in fault.public
    assert upstream.requests == []


# --- certificates


async def test_verify_may_be_a_file_a_context_or_false(
    make: Make, upstream: Upstream, bundle: Path, authority: trustme.CA
) -> None:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    for verify in (str(bundle), bundle, context, False):
        async with using(make(verify=verify)) as transport:
            assert await fetch(transport, upstream.url) == b"hello"
    assert (await fault_of(make(), upstream.url)).kind == "connect"


async def test_only_a_given_file_is_trusted(make: Make, upstream: Upstream, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    assert (await fault_of(make(verify=other), upstream.url)).kind == "connect"


async def test_variables_name_the_certificates_unless_verify_is_given(
    make: Make, upstream: Upstream, bundle: Path, tmp_path: Path
) -> None:
    async with using(make(environ={"SSL_CERT_FILE": str(bundle)})) as transport:
        assert await fetch(transport, upstream.url) == b"hello"
    there = {"SSL_CERT_FILE": str(tmp_path / "none.pem")}
    async with using(make(verify=bundle, environ=there)) as transport:
        assert await fetch(transport, upstream.url) == b"hello"


async def test_unreadable_certificates_are_a_local_fault(make: Make, upstream: Upstream) -> None:
    fault = await fault_of(make(environ={"SSL_CERT_FILE": "/no/such.pem"}), upstream.url)
    assert fault.kind == "local"
    assert "the certificates of SSL_CERT_FILE cannot be read: No such file" in fault.message


def test_a_folder_of_certificates_is_read_as_by_openssl(bundle: Path, authority: trustme.CA, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(bundle.read_bytes())
    for network in (Network(verify=tmp_path), Network(environ={"SSL_CERT_DIR": str(tmp_path)})):
        assert network.tls is not None
        assert network.tls.verify_mode is ssl.CERT_REQUIRED


@table("verify", ["/no/such.pem", 1.5, None])
def test_verify_is_checked_by_the_constructor(verify: object) -> None:
    with pytest.raises(ValidationFailed) as caught:
        Network(verify=verify)  # type: ignore[arg-type]
    assert caught.value.problems[0].path == "verify"


# --- the environment


def chosen(environ: Mapping[str, str], url: str) -> str | None:
    proxy_of = Network(environ=environ).proxy_of
    parts = httpx2.URL(url)
    proxy = None if proxy_of is None else proxy_of(parts.scheme, parts.netloc.decode())
    return None if proxy is None else proxy.url


@table(
    ("environ", "http", "https"),
    [
        ({}, None, None),
        ({"HTTP_PROXY": "http://a:1"}, "http://a:1", None),
        ({"https_proxy": "a"}, None, "http://a:80"),
        ({"ALL_PROXY": "https://a"}, "https://a:443", "https://a:443"),
        ({"ALL_PROXY": "http://a:1", "HTTPS_PROXY": "http://b:2"}, "http://a:1", "http://b:2"),
        ({"HTTPS_PROXY": "http://a:1", "https_proxy": "http://b:2"}, None, "http://b:2"),
        ({"HTTPS_PROXY": "http://a:1", "https_proxy": ""}, None, None),
        ({"ALL_PROXY": "http://a:1", "NO_PROXY": "other.example,*"}, None, None),
        ({"ALL_PROXY": "http://[::1]:1"}, "http://[::1]:1", "http://[::1]:1"),
        # a scheme's own port, which httpx never finds in an address that does not write it
        ({"ALL_PROXY": "http://a:1", "NO_PROXY": f"{NAME}:443"}, "http://a:1", None),
    ],
)
def test_variables_are_read_as_by_httpx(environ: dict[str, str], http: str | None, https: str | None) -> None:
    assert chosen(environ, f"http://{NAME}/") == http
    assert chosen(environ, f"https://{NAME}/") == https


HOSTS = [
    "a.example",
    "b.a.example",
    "xa.example",
    "localhost",
    "x.localhost",
    "127.0.0.1",
    "10.1.2.3",
    "[::1]",
    "[fd00::9]",
]
ENTRIES = [
    "a.example", ".a.example", "*.a.example", "A.Example", "example", "a.example:8080", "localhost",
    "127.0.0.1", "127.0.0.1:8080", "10.0.0.0/8", "::1", "[::1]", "fd00::/8", "http://a.example", "https://a.example",
    "http://a.example:8080", "all://a.example", "http://*.a.example", " ", "a.example:x", "10.0.0.0/99",
    "localhost:8080",
]  # fmt: skip


@given(
    entries=st.lists(st.sampled_from(ENTRIES), max_size=3),
    host=st.sampled_from(HOSTS),
    scheme=st.sampled_from(["http", "https"]),
    port=st.sampled_from(["", ":8080"]),
)
def test_no_proxy_matches_as_in_httpx(entries: list[str], host: str, scheme: str, port: str) -> None:
    environ, url = {"ALL_PROXY": "http://p:1", "NO_PROXY": ", ".join(entries)}, f"{scheme}://{host}{port}/v1"
    with pytest.MonkeyPatch.context() as patched:
        for name, value in environ.items():
            patched.setenv(name, value)
        rules = sorted((URLPattern(key), proxy) for key, proxy in get_environment_proxies().items())
    wanted = next((proxy for pattern, proxy in rules if pattern.matches(httpx2.URL(url))), None)
    assert chosen(environ, url) == wanted


async def test_the_environment_is_read_by_the_constructor(
    make: Make, plain: Upstream, proxy: ProxyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = make()
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    async with using(before), using(make()) as after:
        assert await fetch(before, plain.url) == b"hello"
        assert proxy.asked == []
        assert await fetch(after, plain.url) == b"hello"
        assert len(proxy.asked) == 1
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    async with using(make()) as spared:
        assert await fetch(spared, plain.url) == b"hello"
    async with using(make(environ={})) as elsewhere:
        assert await fetch(elsewhere, plain.url) == b"hello"
    assert len(proxy.asked) == 1


@table(
    "wrong",
    [
        f"http://user:{PASSWORD}@",
        f"ftp://user:{PASSWORD}@p:1",
        f"http://user:{PASSWORD}@p:x",
        f"http://[user:{PASSWORD}@p",
    ],
)
def test_an_invalid_proxy_is_refused_without_being_shown(wrong: str) -> None:
    cases: list[tuple[str, str | None, dict[str, str]]] = [
        ("proxy", wrong, {}),
        ("HTTPS_PROXY", None, {"https_proxy": wrong}),
    ]
    for source, address, environ in cases:
        with pytest.raises(ValidationFailed, match="is not the address of a proxy") as caught:
            Network(address, environ=environ)
        assert caught.value.problems[0].path == source
        assert PASSWORD not in str(vars(caught.value))
        assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_a_socks_proxy_is_refused() -> None:
    with pytest.raises(ValidationFailed, match="ALL_PROXY: names a SOCKS proxy, which is not supported"):
        Network(environ={"ALL_PROXY": "socks5h://127.0.0.1:1080"})


# --- providers, and others who talk


async def test_every_provider_uses_the_given_proxy(
    vendor: Vendor, make: Make, guarded: ProxyServer, tls: ssl.SSLContext, bundle: Path
) -> None:
    with vendor.serve() as server:
        place = server.url.replace("127.0.0.1", NAME)
        for more in (
            {"proxy": signed_in(guarded)},
            {"environ": {"HTTP_PROXY": signed_in(guarded), "SSL_CERT_FILE": str(bundle)}},
        ):
            provider = vendor.make(KEY, base_url=place, **more)
            assert PASSWORD not in f"{provider!r} {vars(provider)}"
            await chunks_of(provider, call())
            await provider.aclose()
    assert [asked.method for asked in guarded.asked] == ["POST", "POST"]


def test_proxy_cannot_be_combined_with_a_transport(vendor: Vendor) -> None:
    for more in ({"proxy": "http://p:1"}, {"verify": False}):
        with pytest.raises(ValidationFailed, match="cannot be combined with transport="):
            vendor.make(KEY, base_url="http://x.example", transport=AutoTransport(), **more)
