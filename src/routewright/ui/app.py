"""The ASGI application of the page: static files, sign-in, and JSON for the views.

Everything that a request may do is decided here, in this order: the Host, the origin, the session, the right to write,
the token of the change."""

from __future__ import annotations

import gzip
import ipaddress
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext, suppress
from functools import cached_property, partial
from hashlib import sha256
from inspect import isawaitable
from pathlib import Path
from urllib.parse import quote, unquote

import anyio
import msgspec
from msgspec import Struct

from routewright import wire
from routewright.console import Console
from routewright.errors import (
    AuthenticationFailed,
    InternalError,
    MethodNotAllowed,
    NotFound,
    PermissionDenied,
    PreconditionFailed,
    ValidationFailed,
)
from routewright.router import Router
from routewright.server.bodies import Bodies
from routewright.server.endpoints import EventFrames
from routewright.server.errors import headers_of, to_client_error
from routewright.server.exchange import JSON, ClientLeft, Exchange, Receive, Scope, Send, serve_other, while_connected
from routewright.server.http_limits import HttpLimits
from routewright.server.sse import EventStream
from routewright.wire.account import without_keys
from routewright.wire.json_scan import quoted, tree_of
from routewright.wire.problems import listed, shown
from routewright.wire.timestamps import timestamp

from .api import Operation, operations
from .sessions import LONGEST_S, Operator, Session, Sessions, is_same

Authorize = Callable[[Scope], Operator | Awaitable[Operator]]
"""Says who sends a request, for a host's own sign-in. Raises ``AuthenticationFailed`` or ``PermissionDenied``."""

COOKIE = "routewright_session"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"  # no text becomes HTML, in browsers that know it
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Of every answer."""
BODY_BYTES = 1 << 20
SLOW = {"console.simulate", "console.compare", "page.cache_risk", "traces.latency_by_day"}
"""Operations that read many traces or accounts."""
MOST_SLOW = 2
"""How many of them may run at a time, beside the requests of clients."""
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]+)?", re.ASCII | re.IGNORECASE)
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
"""By suffix. Systems differ in their tables, and browsers run no script of a wrong type."""


class Asset(Struct, frozen=True):
    """A static file."""

    body: bytes
    packed: bytes
    """Compressed with gzip."""
    media_type: bytes
    tag: str


class Ui:
    """The application. It works at any mount point, and needs no lifespan."""

    def __init__(
        self,
        router: Router,
        console: Console,
        authorize: Authorize | None,
        hosts: Sequence[str],
        link_token: str | None,
        owner: Operator,
    ) -> None:
        self._router = router
        self._console = console
        self._authorize = authorize
        self._hosts = frozenset(host.lower() for host in hosts)
        self._link_token = link_token
        self._has_link = link_token is not None
        self._owner = owner
        # sessions that began with a link end with the process, and hold nowhere else
        self._process_keys = (secrets.token_bytes(32),)
        self._sessions = Sessions(console.session_keys)
        if link_token is not None:
            self._sessions = Sessions(lambda: self._process_keys, "start the command again")
        self._bodies = Bodies(16 * BODY_BYTES)
        self._limits = HttpLimits(body_bytes=BODY_BYTES)
        self._slow = anyio.Semaphore(MOST_SLOW)

    @cached_property
    def _operations(self) -> dict[str, Operation]:
        # a link is for the owner of this machine, whom nothing keeps from it
        return operations(self._router, self._console, allow_loopback=self._has_link)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] != "http":
            await serve_other(scope, receive, send, {})
            return
        exchange = Exchange(scope, receive, send, self._router.new_id("req_"), self._router.clock, self._limits)
        exchange.headers |= HEADERS
        try:
            await self._serve(exchange)
        except ClientLeft:
            pass
        except Exception as error:  # of the host's plug-ins, or a defect; the page must get an answer
            failure = to_client_error(error, exchange.request_id)
            with suppress(ClientLeft):
                if exchange.status is None:
                    headers = {} if isinstance(failure, AuthenticationFailed) else headers_of(failure)
                    status = 412 if isinstance(failure, PreconditionFailed) else failure.status
                    body = msgspec.json.encode(wire.error_envelope(failure)).decode()  # for an operator, not a client
                    await exchange.respond(without_keys(body).encode(), status, JSON, headers)

    async def _serve(self, exchange: Exchange) -> None:
        self._check_host(exchange)
        path = exchange.path
        if path == "/session":
            await self._serve_session(exchange)
        elif path.startswith("/api/"):
            await self._serve_operation(exchange, path.removeprefix("/api/"))
        elif path in ("", "/") and not (address := exchange.scope["path"] or _mount_point(exchange)).endswith("/"):
            _check_method(exchange, "GET", "HEAD")
            await exchange.respond(b"", 307, JSON, {"Location": f"{quote(address.rpartition('/')[2])}/"})
        else:
            _check_method(exchange, "GET", "HEAD")
            await self._serve_asset(exchange, "/index.html" if path in ("", "/") else path)

    def _check_host(self, exchange: Exchange) -> None:
        """Raise ``PermissionDenied`` for a name that is not ours."""
        # A page of another site may give its own name our address (DNS rebinding), and would then be of our origin.
        # Its name stands in Host. Addresses and localhost cannot be rebound; names have to be listed.
        # test_a_foreign_host_is_refused
        match = _HOST.fullmatch(exchange.header(b"host") or "")
        host = "" if match is None else match[1].strip("[]").lower()
        is_address = host == "localhost"
        with suppress(ValueError):
            ipaddress.ip_address(host)
            is_address = True
        if not is_address and host not in self._hosts:
            problem = f"the page is not served under the name {quoted(host)}"
            raise PermissionDenied(f"{problem}; add it to the hosts of the page")

    def _check_origin(self, exchange: Exchange, *, changes: bool) -> None:
        """Raise ``PermissionDenied`` for a request that another origin makes the browser send."""
        origin = exchange.header(b"origin")
        site = exchange.header(b"sec-fetch-site")
        host = exchange.header(b"host")
        # a proxy that ends TLS may not say so, hence https always
        is_ours = origin in (f"{exchange.scope.get('scheme', 'http')}://{host}", f"https://{host}")
        if (changes and not is_ours) or (origin is not None and not is_ours) or site in ("cross-site", "same-site"):
            problem = f"the request comes from {quoted(origin or 'another origin')}, not from {quoted(host or '')}"
            raise PermissionDenied(f"{problem}; open the page itself, or let the proxy pass on 'Host'")

    async def _serve_session(self, exchange: Exchange) -> None:
        """``GET`` tells who is signed in, ``POST`` signs in with a key or the token of a link, ``DELETE`` signs out."""
        _check_method(exchange, "GET", "HEAD", "POST", "DELETE")
        self._check_origin(exchange, changes=exchange.method in ("POST", "DELETE"))
        if exchange.method == "DELETE":
            with suppress(AuthenticationFailed):
                await self._end(await self._session(exchange))
            await exchange.json({}, {"Set-Cookie": self._cookie(exchange, "", 0)})
            return
        if exchange.method == "POST" and self._authorize is None:
            operator = await self._sign_in(await self._bodies.read(exchange, tree_of))
            session = self._sessions.begin(operator, self._router.clock.time())
            self._keep(exchange, session)
        else:
            session = await self._session(exchange)
        operator = session.operator
        await exchange.json(
            {
                "operator": operator.name,
                "writes": operator.writes,
                "token": self._sessions.token(session.id),
                "signs_out": self._authorize is None,
                "key_id": operator.key_id,
            }
        )

    async def _sign_in(self, credentials: object) -> Operator:
        match credentials:
            case {"key": str(key)}:
                try:
                    caller = await self._console.authenticate_operator(f"Bearer {key}")
                except AuthenticationFailed as error:  # in the words of clients of the API
                    raise AuthenticationFailed("the key is unknown or revoked; paste an operator's key") from error
                assert caller.key_id is not None, "keys have ids"
                return await self._operator_of(caller.key_id, self._router.clock.time())
            case {"link": str(token)}:
                if self._link_token is None or not is_same(token, self._link_token):
                    raise AuthenticationFailed("this link is not valid, or was used already; start the command again")
                self._link_token = None  # once
                return self._owner
        raise ValidationFailed.at("", "holds no key", 'send {"key": "sk_live_..."}')

    async def _end(self, session: Session) -> None:
        """End all sessions that began as this one did, so that a copy of the cookie is worth nothing."""
        if session.operator.key_id is not None:
            await self._console.end_sessions(session.operator.key_id)
        elif self._authorize is None:
            self._process_keys = (secrets.token_bytes(32),)

    async def _operator_of(self, key_id: str, began_at: float) -> Operator:
        """The operator of a key as it is stored now. Raises ``AuthenticationFailed`` once it is revoked, and for
        sessions that began before its operator signed out."""
        with suppress(NotFound):
            key = await self._console.key(wire.SYSTEM_ACCOUNT, key_id)
            if timestamp(began_at) <= (key.signed_out_at or ""):
                raise AuthenticationFailed("the session is over; sign in again")
            if key.revoked_at is None:
                return Operator(name=key.name, writes="console:write" in (key.scopes or ()), key_id=key_id)
        raise AuthenticationFailed("the key of this session was revoked; sign in with another one")

    async def _session(self, exchange: Exchange, *, changes: bool = False) -> Session:
        """The session of a request, with the operator's rights of now. Raises ``AuthenticationFailed``."""
        now = self._router.clock.time()
        if self._authorize is None:
            session = self._sessions.read(_cookies(exchange), now)
        else:
            identity: object = self._authorize(exchange.scope)
            operator = await identity if isawaitable(identity) else identity
            if not isinstance(operator, Operator) or not isinstance(operator.writes, bool):
                raise InternalError(f"authorize returned {shown(operator)}; it has to return an Operator")
            session = Session(operator, str(operator.name), now, now)
        # Browsers send a cookie to all ports of a host, whoever listens there. So ours is worth nothing without the
        # token, which the page keeps in the storage of its origin. test_a_cookie_alone_is_worth_nothing
        needs_token = changes or self._authorize is None
        if needs_token and not self._sessions.takes(exchange.header(b"x-session-token") or "", session.id):
            raise AuthenticationFailed("sign in first")
        if session.operator.key_id is not None:
            operator = await self._operator_of(session.operator.key_id, session.began_at)
            session = msgspec.structs.replace(session, operator=operator)
        is_polling = exchange.header(b"x-polling") is not None  # which goes on when the operator has left
        if not is_polling and (renewed := self._sessions.renewed(session, now)) is not None:
            self._keep(exchange, renewed)
        return session

    def _keep(self, exchange: Exchange, session: Session) -> None:
        exchange.headers["Set-Cookie"] = self._cookie(exchange, self._sessions.cookie(session), int(LONGEST_S))

    def _cookie(self, exchange: Exchange, value: str, seconds: int) -> str:
        path = quote(f"{_mount_point(exchange)}/")
        secure = "; Secure" if exchange.scope.get("scheme") == "https" else ""
        return f"{_cookie_name(exchange)}={value}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"

    async def _serve_operation(self, exchange: Exchange, name: str) -> None:
        """``GET /api/traces.usage?{...}`` reads, and so does ``POST`` for long arguments. ``POST
        /api/console.create_key`` changes. The arguments are a JSON object."""
        is_trial = name == "try"
        if not is_trial and name not in self._operations:
            raise NotFound(f"there is no operation {quoted(name)}")
        changes = is_trial or self._operations[name].changes
        _check_method(exchange, *(("POST",) if changes else ("GET", "HEAD", "POST")))
        self._check_origin(exchange, changes=exchange.method == "POST")
        if exchange.method == "POST":
            arguments = await self._bodies.read(exchange, tree_of)
        else:
            query: bytes = exchange.scope.get("query_string", b"")
            arguments = tree_of(unquote(query.decode("latin-1")).encode() or b"{}")
        # once the body is there, which takes as long as its sender likes
        session = await self._session(exchange, changes=changes)
        if changes and not session.operator.writes:
            raise PermissionDenied("this session is read-only; sign in with a key that has console:write")
        match arguments:
            case {"account": wire.SYSTEM_ACCOUNT} if name in ("console.create_key", "console.change_key"):
                # else a stolen session could make itself a key that outlasts it
                raise PermissionDenied("only the command line creates and changes keys of operators: routewright keys")
        if is_trial:
            await self._try(exchange, arguments)
        else:
            run = partial(self._operations[name], arguments, session.operator.name)
            async with self._slow if name in SLOW else nullcontext():
                await exchange.json(await (run() if changes else while_connected(exchange, run)))

    async def _try(self, exchange: Exchange, arguments: object) -> None:
        """Answer a request as a stream, live or in the sandbox."""
        if not isinstance(arguments, dict):
            raise ValidationFailed.at("", "is not a JSON object", "send the request of a route")
        caller = wire.Caller(environment=arguments.pop("environment", "sandbox"))
        # prepared as for a client of a server, who is trusted less than code
        stream = self._router.prepare(arguments, caller=caller).stream()
        await EventStream(exchange, EventFrames(exchange, stream)).run(finishes=False)

    async def _serve_asset(self, exchange: Exchange, path: str) -> None:
        asset = self._assets.get(path)
        if asset is None:
            raise NotFound(f"there is no file {quoted(path)}")
        headers = {"ETag": asset.tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if exchange.header(b"if-none-match") == asset.tag:
            await exchange.start(304, asset.media_type, headers)
            await exchange.send_piece(b"", more=False)
            return
        is_packed = "gzip" in (exchange.header(b"accept-encoding") or "")
        headers |= {"Content-Encoding": "gzip"} if is_packed else {}
        await exchange.respond(asset.packed if is_packed else asset.body, 200, asset.media_type, headers)

    @cached_property
    def _assets(self) -> dict[str, Asset]:
        folder = Path(__file__).with_name("static")
        return {f"/{file.relative_to(folder).as_posix()}": _asset(file) for file in folder.rglob("*.*")}


def create_ui(
    router: Router,
    console: Console | None = None,
    *,
    authorize: Authorize | None = None,
    hosts: Sequence[str] = (),
    link_token: str | None = None,
    owner: Operator | None = None,
) -> Ui:
    """Create the page for a Router and its storage, to be mounted in an application of your own, or served alone.

        app.mount("/ui", create_ui(router, authorize=operator_of_request))

    ``authorize`` says who sends a request: a function of the ASGI scope, async or not, that returns an ``Operator`` or
    raises ``AuthenticationFailed``. Without it people sign in with a key of the account ``_system``. ``console`` checks
    those keys; by default one over the Router's storage. ``hosts``: names under which the page is reached, besides
    addresses and ``localhost``. ``link_token`` signs in whoever has the link ``#link=...``, once, as ``owner``."""
    console = console or Console(router.storage, clock=router.clock, catalogue=router.catalogue)
    return Ui(router, console, authorize, hosts, link_token, owner or Operator(name="owner", writes=True))


def _asset(file: Path) -> Asset:
    body = file.read_bytes()
    media_type = _MEDIA_TYPES.get(file.suffix, "text/plain; charset=utf-8").encode()
    return Asset(body, gzip.compress(body, 9, mtime=0), media_type, f'"{sha256(body).hexdigest()[:32]}"')


def _check_method(exchange: Exchange, *methods: str) -> None:
    if exchange.method not in methods:
        error = MethodNotAllowed(f"this address takes {listed(methods)}")
        error.headers = {"Allow": ", ".join(methods)}
        raise error


def _mount_point(exchange: Exchange) -> str:
    root: str = exchange.scope.get("root_path", "")
    return root.rstrip("/")


def _cookie_name(exchange: Exchange) -> str:
    """The cookie's name, with the port: browsers send cookies to all ports of a host."""
    match = _HOST.fullmatch(exchange.header(b"host") or "")
    return COOKIE if match is None or match[2] is None else f"{COOKIE}_{match[2][1:]}"


def _cookies(exchange: Exchange) -> list[str]:
    """The values of our cookie. There are several if one of another path, or of another program, has its name."""
    # By hand, since Python's parser stops at the first cookie that it does not understand, of whatever program.
    name = _cookie_name(exchange)
    fields = [value for header, value in exchange.scope["headers"] if header == b"cookie"]
    pairs = [pair.strip().partition("=") for pair in b";".join(fields).decode("latin-1").split(";")]
    return [value for key, _, value in pairs if key == name]
