"""OpenAI, and every host that speaks its chat completions."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import NoReturn
from urllib.parse import urlsplit

import msgspec

from routewright._core.catalogue import models_of
from routewright._core.rules import check_names
from routewright.backends.clock import SystemClock
from routewright.backends.transport import AutoTransport
from routewright.errors import Problem, ProviderFault, ValidationFailed
from routewright.protocols import Clock, Response, Transport
from routewright.wire import Chunk, FaultKind, Model, UpstreamCall
from routewright.wire.secret import Secret

from .completion import StreamedCompletion, WholeCompletion, read_whole
from .faults import conceal, fault_of_answer, start_of
from .hosts import HOSTS, Host, complete_url
from .keys import KeyRing
from .request import USAGE_FIELD, HttpRequest, request_body

_ERROR_BYTES = 64 << 10
"""How much of an error answer is read."""
_SECRET_CHARS = 6
"""Shorter ones are words, not secrets."""
EVENTS = "text/event-stream"
WHOLE = ("application/json", "")
_MEDIA_CHARS = 40
_URL_CHARS = 200
_NOTHING = r"(?!)"


class OpenAIProvider:
    """Serves models over chat completions, OpenAI's own or another host's.

        OpenAIProvider()                                    # key from OPENAI_API_KEY
        OpenAIProvider(name="mistral")                      # key from MISTRAL_API_KEY
        OpenAIProvider("sk-...", name="mine", base_url="https://llm.example.com/v1", models=[...])
        OpenAIProvider(["sk-1...", "sk-2..."])              # the next one where a key is refused or at its limit

    Keys are read when the provider is made, from the variable parted by commas; without one where the host needs it
    that raises ``ValidationFailed``. ``headers`` are sent with every request, and kept as secret as the keys.
    """

    def __init__(
        self,
        api_key: str | Sequence[str] | None = None,
        *,
        name: str = "openai",
        base_url: str | None = None,
        models: Sequence[Model] = (),
        transport: Transport | None = None,
        headers: Mapping[str, str | Secret] | None = None,
        host: Host | None = None,
        environ: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        _check(name, api_key, base_url, headers, host)
        environ = os.environ if environ is None else environ  # no default argument: help() would print it
        self.name = name
        self._host = host or _host(name, base_url)
        self._url = _checked_url(*((base_url, "base_url") if base_url else _url_of_host(self._host, environ)))
        self._chat_url = f"{self._url}/chat/completions"
        self._keys = KeyRing(_keys(api_key, self._host, environ), SystemClock() if clock is None else clock)
        self._models = models_of(models)
        self._headers = {str(name).lower(): _header(name, value) for name, value in (headers or {}).items()}
        self._spellings = _spellings([*self._keys.keys, *self._headers.values()])
        self.refuses_usage = False
        """The host has refused to be asked for the usage of a stream, and is asked no more."""
        self._own_transport = transport is None
        self._transport = AutoTransport() if transport is None else transport

    def __repr__(self) -> str:
        return f"OpenAIProvider(name={self.name!r}, base_url={self._url!r})"

    def __getstate__(self) -> NoReturn:
        raise TypeError("an OpenAIProvider is not copied or pickled, since its key would go along; make another one")

    def models(self) -> Sequence[Model]:
        """The models it was made with; none: those of the catalogue under its name."""
        return self._models

    def open(self, call: UpstreamCall) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        """Start one call (``protocols.Provider``).

        Iterating on after ``Finish`` reads a stream to its very end, so that its connection can serve the next call.
        """
        return _Call(self, call)

    async def aclose(self) -> None:
        """Close the connections, unless the transport was given. Twice is once."""
        if self._own_transport:
            await self._transport.aclose()

    def request(self, call: UpstreamCall) -> HttpRequest:
        """A call as HTTP, for those who send it themselves. It asks for the answer whole; ``read`` takes that."""
        call, key = msgspec.structs.replace(call, stream=False), next(self._keys.turn())
        hidden = {"authorization", *self._headers}
        headers = self._sent(call, key).items()
        shown: dict[str, str | Secret] = {name: Secret(value) if name in hidden else value for name, value in headers}
        return HttpRequest("POST", self._chat_url, shown, self._body(call), key)

    def read(self, request: HttpRequest, status: int, headers: Mapping[str, str], body: bytes) -> list[Chunk]:
        """The chunks of what came back. Raises ``ProviderFault``; the key of one that was refused is put aside."""
        named = {str(name).lower(): value for name, value in headers.items()}
        try:
            if status != 200:
                raise fault_of_answer(self.name, status, named, _text(body))
            if _media(named) not in WHOLE:
                raise self._odd_media(named, _text(body))
            return list(read_whole(self.name, body))
        except ProviderFault as fault:
            fault.answered = status == 200
            self._keys.refuse(request.key, fault)
            conceal(fault, self._redact)
            raise

    def _send(self, call: UpstreamCall, key: Secret) -> AbstractAsyncContextManager[Response]:
        """Make the HTTP request of a call."""
        return self._transport.request("POST", self._chat_url, headers=self._sent(call, key), body=self._body(call))

    def _sent(self, call: UpstreamCall, key: Secret) -> dict[str, str]:
        """The headers, with everything in the open."""
        headers = {"content-type": "application/json", "accept": "application/json"}
        if call.stream:
            headers |= {"accept": EVENTS, "accept-encoding": "identity"}
        if key.reveal():
            headers["authorization"] = f"Bearer {key.reveal()}"
        return headers | {name: value.reveal() for name, value in self._headers.items()}

    def _body(self, call: UpstreamCall) -> bytes:
        body = request_body(call, self._host)
        if self.refuses_usage:
            body.pop(USAGE_FIELD, None)
        return msgspec.json.encode(body)

    async def _read(self, response: Response) -> AsyncIterator[Chunk]:
        """The chunks of an answer whose headers are there, or the fault that it is."""
        if response.status != 200:
            body = await self._start_of(response)
            raise fault_of_answer(self.name, response.status, response.headers, body)
        media = _media(response.headers)
        if media == EVENTS:
            return StreamedCompletion(self.name, response, self._redact)
        if media in WHOLE:
            return WholeCompletion(self.name, response, self._redact)
        raise self._odd_media(response.headers, await self._start_of(response))

    def _odd_media(self, headers: Mapping[str, str], body: str) -> ProviderFault:
        shown = self._redact(headers.get("content-type", "")).partition(";")[0].strip()[:_MEDIA_CHARS]
        message = f"{self.name} answered with the content type {shown!r}"
        return ProviderFault("malformed", message, status=200, body=start_of(body))

    async def _start_of(self, response: Response) -> str:
        """The first part of a body, for a fault. A connection that breaks meanwhile changes nothing."""
        start = bytearray()
        try:
            async for piece in response.chunks():
                start += piece
                if len(start) >= _ERROR_BYTES:
                    break
        except ProviderFault:
            pass
        return _text(start)

    def _redact(self, text: str) -> str:
        """Hide our credentials, should a server say them back."""
        return re.sub(self._spellings.reveal(), _stars, text, flags=re.IGNORECASE)


class _Call:
    """One call: its context holds the connection."""

    __slots__ = ("_call", "_exchange", "_provider")

    def __init__(self, provider: OpenAIProvider, call: UpstreamCall) -> None:
        self._provider = provider
        self._call = call

    async def __aenter__(self) -> AsyncIterator[Chunk]:
        asked = not self._provider.refuses_usage
        try:
            return await self._enter()
        except ProviderFault as fault:
            if not asked or fault.kind is not FaultKind.REQUEST or USAGE_FIELD not in (fault.body or ""):
                raise
        self._provider.refuses_usage = True
        return await self._enter()

    async def _enter(self) -> AsyncIterator[Chunk]:
        """Ask with one key after the other, until one is taken."""
        keys, faults = self._provider._keys, dict[Secret, ProviderFault]()
        if keys.sole is not None:
            return await self._ask(keys.sole)
        for key in keys.turn():
            try:
                return await self._ask(key)
            except ProviderFault as fault:
                if not keys.refuse(key, fault):
                    raise
                faults[key] = fault
        raise keys.told(faults)

    async def _ask(self, key: Secret) -> AsyncIterator[Chunk]:
        try:
            return await self._open(key)
        except ProviderFault as fault:
            conceal(fault, self._provider._redact)
            raise

    async def _open(self, key: Secret) -> AsyncIterator[Chunk]:
        self._exchange = self._provider._send(self._call, key)
        response = await self._exchange.__aenter__()
        try:
            return await self._provider._read(response)
        except BaseException as exc:
            await self._exchange.__aexit__(type(exc), exc, exc.__traceback__)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exchange.__aexit__(kind, error, trace)


def _check(name: object, api_key: object, base_url: object, headers: object, host: object) -> None:
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
    if not isinstance(host, Host | None):
        hint = "name a known one as name=..., or pass base_url=..."
        raise ValidationFailed.of(Problem("host", f"must be a Host, got {type(host).__name__}", hint))


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


def _host(name: str, base_url: str | None) -> Host:
    if name in HOSTS:
        return HOSTS[name]
    if base_url is not None:
        return Host(name=name, base_url=base_url, needs_key=False, usage_on_request=True)
    near = difflib.get_close_matches(name, HOSTS, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValidationFailed.of(
        Problem("name", f"no host is known as {name!r}", f"{hint}give base_url=..., or one of {', '.join(HOSTS)}")
    )


def _url_of_host(host: Host, environ: Mapping[str, str]) -> tuple[str, str]:
    """The address, and where it comes from."""
    variable = host.url_variable or ""
    given = environ.get(variable, "").strip()
    if not given:
        return host.base_url, "base_url"
    return given if host.needs_key else complete_url(given, host.base_url), variable


def _checked_url(url: str, source: str) -> str:
    shown = "what was given" if set("@?#") & set(url) else repr(url[:_URL_CHARS])
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port or brackets that are none, and a port that is none may be a password
        known, shown = False, "what was given"
    if not known:
        raise ValidationFailed.of(Problem(source, f"{shown} is not an address", "write https://host/path"))
    if parts.username is not None or parts.query or parts.fragment:
        where = f"{parts.scheme}://{parts.hostname}{parts.path}"
        hint = "give credentials as api_key=... or headers=..."
        raise ValidationFailed.of(Problem(source, f"{where} has a user, query or fragment with it", hint))
    return url.rstrip("/")


def _keys(given: str | Sequence[str] | None, host: Host, environ: Mapping[str, str]) -> list[Secret]:
    """The keys that were given, or stand in the environment; where none is needed, an empty one."""
    if given is None:
        found = ((environ.get(variable, "").strip(), variable) for variable in host.key_variables)
        text, source = next((pair for pair in found if pair[0]), ("", ""))
        written = text.split(",")
    else:
        written, source = [given] if isinstance(given, str) else list(given), "api_key"
    texts = dict.fromkeys(filter(None, (Secret(key).reveal().strip() for key in written)))
    if not texts and host.needs_key:
        variables = " or ".join(host.key_variables)
        raise ValidationFailed.of(
            Problem("api_key", f"{host.name} needs a key", f"set {variables}, or give api_key=...")
        )
    if not all(_is_header_value(text) and " " not in text for text in texts):
        raise ValidationFailed.of(Problem(source, "is not a key", "a key is printable ASCII without spaces"))
    return [Secret(text) for text in texts or [""]]


def _text(body: bytes | bytearray) -> str:
    return body[:_ERROR_BYTES].decode("utf-8", "replace")


def _media(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _header(name: object, value: object) -> Secret:
    if not isinstance(value, str):
        problem = f"{name!r} must be a string, got {type(value).__name__}"
        raise ValidationFailed.of(Problem("headers", problem, "leave out what has no value"))
    secret = Secret(value)
    if not isinstance(name, str) or not _is_header_value(name) or not _is_header_value(secret.reveal()):
        raise ValidationFailed.of(Problem("headers", f"{name!r} cannot be sent", "use printable ASCII"))
    return secret


def _is_header_value(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _spellings(secrets: Sequence[Secret]) -> Secret:
    """A pattern of the ways in which a server may write them back: in JSON, in a URL."""
    texts = (secret.reveal() for secret in secrets)
    longest_first = sorted((text for text in texts if len(text) >= _SECRET_CHARS), key=len, reverse=True)
    return Secret("|".join("".join(map(_spelt, text)) for text in longest_first) or _NOTHING)


def _spelt(character: str) -> str:
    code = f"{ord(character):02x}"
    return rf"(?:\\{{0,3}}{re.escape(character)}|\\{{1,3}}u00{code}|%{code})"


def _stars(match: re.Match[str]) -> str:
    return "*" * len(match[0])
