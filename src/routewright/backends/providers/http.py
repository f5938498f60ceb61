"""A vendor's HTTP API as a provider: keys, requests, answers and faults, whatever its protocol.

What differs from vendor to vendor is in its ``Dialect``: how a call is written, and how its answer is read.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import NoReturn, Protocol

import msgspec

from routewright._core.catalogue.models import models_of
from routewright.backends.clock import SystemClock
from routewright.backends.transport import AutoTransport
from routewright.errors import ProviderFault
from routewright.protocols import Clock, Response, Transport
from routewright.wire import Chunk, Feature, Model, UpstreamCall
from routewright.wire.secret import Secret

from .answer import EVENTS, Reader, StreamedAnswer, WholeAnswer, read_whole
from .endpoint import Endpoint, check_arguments, checked_url, header_of, keys_of, spellings_of, stars, url_of, with_path
from .faults import conceal, fault_of_answer, start_of
from .keys import KeyRing
from .request import HttpRequest

_ERROR_BYTES = 64 << 10
"""How much of an error answer is read."""
WHOLE = ("application/json", "")
ERROR_BODY_S = 1.0
"""How long the body of an error answer is waited for."""
_MEDIA_CHARS = 40


class Dialect(Protocol):
    """A vendor's protocol. One object serves all calls of a provider."""

    def url(self, base_url: str, call: UpstreamCall) -> str:
        """Where a call is sent."""
        ...

    def credentials(self, key: str) -> Mapping[str, str]:
        """The headers that say who calls; ``key`` is empty where none is needed."""
        ...

    def body(self, call: UpstreamCall) -> bytes:
        """The call as the vendor takes it. Raises ``ProviderFault("request")`` for what cannot be said there."""
        ...

    def reader(self, call: UpstreamCall) -> Reader:
        """Make what reads the call's answer."""
        ...

    def unsupported(self, model: Model) -> Collection[Feature]:
        """What cannot be said to a model, or is not heeded there."""
        ...

    def learns(self, fault: ProviderFault) -> bool:
        """Whether the fault says how to write calls, so that the same one, written anew, may be taken."""
        ...


class HttpProvider:
    """Serves models over a vendor's HTTP API, or another that speaks the same protocol."""

    def __init__(
        self,
        dialect: Dialect,
        endpoint: Endpoint,
        api_key: str | Sequence[str] | None,
        *,
        base_url: str | None,
        models: Sequence[Model],
        transport: Transport | None,
        headers: Mapping[str, str | Secret] | None,
        environ: Mapping[str, str] | None,
        clock: Clock | None,
    ) -> None:
        check_arguments(endpoint.name, api_key, base_url, headers)
        environ = os.environ if environ is None else environ  # no default argument: help() would print it
        self.name = endpoint.name
        self._dialect = dialect
        url = checked_url(*((base_url, "base_url") if base_url else url_of(endpoint, environ)))
        self._url = with_path(url, endpoint.url_path)
        self._clock = SystemClock() if clock is None else clock
        self._keys = KeyRing(keys_of(api_key, endpoint, environ), self._clock)
        self._models = models_of(models)
        self._headers = {str(name).lower(): header_of(name, value) for name, value in (headers or {}).items()}
        self._spellings = spellings_of([*self._keys.keys, *self._headers.values()])
        self._own_transport = transport is None
        self._transport = AutoTransport() if transport is None else transport

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, base_url={self._url!r})"

    def __getstate__(self) -> NoReturn:
        kind = type(self).__name__
        raise TypeError(f"{kind} is not copied or pickled, since its key would go along; make another one")

    def models(self) -> Sequence[Model]:
        """The models it was made with; none: those of the catalogue under its name."""
        return self._models

    def unsupported(self, model: Model) -> Collection[Feature]:
        """What a model does not take (``protocols.ParticularProvider``)."""
        return self._dialect.unsupported(model)

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
        hidden = {*self._dialect.credentials(key.reveal()), *self._headers}
        headers = self._sent(call, key).items()
        shown: dict[str, str | Secret] = {name: Secret(value) if name in hidden else value for name, value in headers}
        return HttpRequest("POST", self._dialect.url(self._url, call), shown, self._dialect.body(call), key, call)

    def read(self, request: HttpRequest, status: int, headers: Mapping[str, str], body: bytes) -> list[Chunk]:
        """The chunks of what came back. Raises ``ProviderFault``; the key of one that was refused is put aside."""
        named = {str(name).lower(): value for name, value in headers.items()}
        try:
            if status != 200:
                raise fault_of_answer(self.name, status, named, _text(body))
            if _media(named) not in WHOLE:
                raise self._odd_media(named, _text(body))
            return list(read_whole(self._dialect.reader(request.call), body))
        except ProviderFault as fault:
            self._keys.refuse(request.key, fault)
            conceal(fault, self._redact)
            raise

    def _send(self, call: UpstreamCall, key: Secret) -> AbstractAsyncContextManager[Response]:
        """Make the HTTP request of a call."""
        url, body = self._dialect.url(self._url, call), self._dialect.body(call)
        return self._transport.request("POST", url, headers=self._sent(call, key), body=body)

    def _sent(self, call: UpstreamCall, key: Secret) -> dict[str, str]:
        """The headers, with everything in the open."""
        headers = {"content-type": "application/json", "accept": "application/json"}
        if call.stream:
            headers |= {"accept": EVENTS, "accept-encoding": "identity"}
        if call.traceparent is not None:
            headers["traceparent"] = call.traceparent
        named = {name: value.reveal() for name, value in self._headers.items()}
        return headers | dict(self._dialect.credentials(key.reveal())) | named

    async def _read(self, response: Response, call: UpstreamCall) -> AsyncIterator[Chunk]:
        """The chunks of an answer whose headers are there, or the fault that it is."""
        if response.status != 200:
            body = await self._start_of(response)
            raise fault_of_answer(self.name, response.status, response.headers, body)
        media = _media(response.headers)
        if media == EVENTS:
            return StreamedAnswer(self._dialect.reader(call), response, self._redact)
        if media in WHOLE:
            return WholeAnswer(self._dialect.reader(call), response, self._redact)
        raise self._odd_media(response.headers, await self._start_of(response))

    def _odd_media(self, headers: Mapping[str, str], body: str) -> ProviderFault:
        shown = self._redact(headers.get("content-type", "")).partition(";")[0].strip()[:_MEDIA_CHARS]
        message = f"{self.name} answered with the content type {shown!r}"
        return ProviderFault("malformed", message, status=200, body=start_of(body))

    async def _start_of(self, response: Response) -> str:
        """The first part of a body, for a fault. A connection that breaks meanwhile changes nothing, nor does a body
        that does not come: the status has said most of it."""
        start = bytearray()
        with self._clock.deadline(self._clock.monotonic() + ERROR_BODY_S):
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
        return re.sub(self._spellings.reveal(), stars, text, flags=re.IGNORECASE)


class _Call:
    """One call: its context holds the connection."""

    __slots__ = ("_call", "_exchange", "_provider")

    def __init__(self, provider: HttpProvider, call: UpstreamCall) -> None:
        self._provider = provider
        self._call = call

    async def __aenter__(self) -> AsyncIterator[Chunk]:
        try:
            return await self._enter()
        except ProviderFault as fault:
            if not self._provider._dialect.learns(fault):
                raise
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
            return await self._provider._read(response, self._call)
        except BaseException as exc:
            await self._exchange.__aexit__(type(exc), exc, exc.__traceback__)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exchange.__aexit__(kind, error, trace)


def _text(body: bytes | bytearray) -> str:
    return body[:_ERROR_BYTES].decode("utf-8", "replace")


def _media(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()
