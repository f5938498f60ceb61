"""A vendor's HTTP API as a provider: keys, requests, answers and faults, whatever its protocol."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import NoReturn

import msgspec

from routewright._core.catalogue.models import models_of
from routewright.backends.clock import SystemClock
from routewright.backends.transport import AutoTransport
from routewright.errors import ProviderFault
from routewright.protocols import Clock, Response, Transport
from routewright.wire import Chunk, FaultKind, Feature, Model, UpstreamCall
from routewright.wire.secret import Secret

from .answer import EVENTS, Reader, read_whole, streamed, whole
from .endpoint import Endpoint, Redactor, address_of, check_arguments, header_of, keys_of
from .faults import conceal, fault_of_answer, start_of

REFUSED_S = 300.0
"""How long a key is put aside that the host refuses, or that is out of credit (401, 402, 403)."""
LIMITED_S = 10.0
"""How long after a 429 without a Retry-After."""
LONGEST_S = 300.0
"""No Retry-After puts a key aside for longer."""
MOST_ASKED = 8
"""Keys that one call tries at most: a host that refuses so many refuses the caller."""
ERROR_BODY_S = 1.0
"""How long the body of an error answer is waited for."""
_ERROR_BYTES = 64 << 10
"""How much of an error answer is read."""
_WHOLE = ("application/json", "")
_MEDIA_CHARS = 40


class HttpRequest(msgspec.Struct, frozen=True):
    """One HTTP request. ``headers`` hide the key; ``reveal()`` gives them as they are to be sent."""

    method: str
    url: str
    headers: dict[str, str | Secret]
    body: bytes
    key: Secret
    """The key that is among the headers; empty for none."""
    call: UpstreamCall
    """What is asked."""

    def __repr__(self) -> str:
        # no body: a repr ends up in logs
        return f"<HttpRequest {self.method} {self.url}, {len(self.body)} bytes>"

    def reveal(self) -> dict[str, str]:
        """Give the headers with the key in the open, for the client that sends them and nothing else."""
        return {name: value.reveal() if isinstance(value, Secret) else value for name, value in self.headers.items()}


class HttpProvider(ABC):
    """Serves models over a vendor's HTTP API, or another that speaks the same protocol. One subclass a protocol."""

    def __init__(
        self,
        endpoint: Endpoint,
        api_key: str | Sequence[str] | None,
        base_url: str | None,
        models: Sequence[Model],
        transport: Transport | None,
        headers: Mapping[str, str | Secret] | None,
        environ: Mapping[str, str] | None,
        clock: Clock | None,
    ) -> None:
        check_arguments(endpoint.name, base_url, headers)
        environ = os.environ if environ is None else environ  # no default argument: help() would print it
        self.name = endpoint.name
        self._url = address_of(endpoint, base_url, environ)
        self._clock = SystemClock() if clock is None else clock
        self._keys = KeyRing(keys_of(api_key, endpoint, environ), self._clock)
        self._models = models_of(models)
        self._headers = {str(name).lower(): header_of(name, value) for name, value in (headers or {}).items()}
        self._redact = Redactor([*self._keys.keys, *self._headers.values()])
        self._own_transport = transport is None
        self._transport = AutoTransport() if transport is None else transport

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, base_url={self._url!r})"

    def __getstate__(self) -> NoReturn:
        kind = type(self).__name__
        raise TypeError(f"{kind} is not copied or pickled, since its key would go along; make another one")

    # What the protocols differ in.

    @abstractmethod
    def unsupported(self, model: Model) -> Collection[Feature]:
        """What a model does not take (``protocols.ParticularProvider``)."""

    @abstractmethod
    def _address(self, call: UpstreamCall) -> str:
        """The URL to which a call is sent."""

    @abstractmethod
    def _credentials(self, key: str) -> Mapping[str, str]:
        """The headers that authenticate the caller; ``key`` is empty where none is needed."""

    @abstractmethod
    def _body(self, call: UpstreamCall) -> bytes:
        """The call as the vendor takes it. Raises ``ProviderFault("request")`` if the protocol cannot express it."""

    @abstractmethod
    def _reader(self, call: UpstreamCall) -> Reader:
        """Make the reader of the call's answer."""

    def _learns(self, fault: ProviderFault) -> bool:
        """True if the fault taught the provider to write calls in another way, so that this one is worth a retry."""
        return False

    # What they share.

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
        hidden = {*self._credentials(key.reveal()), *self._headers}
        headers = self._headers_of(call, key).items()
        shown: dict[str, str | Secret] = {name: Secret(value) if name in hidden else value for name, value in headers}
        return HttpRequest("POST", self._address(call), shown, self._body(call), key, call)

    def read(self, request: HttpRequest, status: int, headers: Mapping[str, str], body: bytes) -> list[Chunk]:
        """The chunks of what came back. Raises ``ProviderFault``; a key that was refused is put aside."""
        named = {str(name).lower(): value for name, value in headers.items()}
        try:
            if status != 200:
                raise fault_of_answer(self.name, status, named, _text(body))
            if _media(named) not in _WHOLE:
                raise self._odd_media(named, _text(body))
            return list(read_whole(self._reader(request.call), body))
        except ProviderFault as fault:
            self._keys.refuse(request.key, fault)
            conceal(fault, self._redact)
            raise

    def _headers_of(self, call: UpstreamCall, key: Secret) -> dict[str, str]:
        """The headers of a call, with everything in the open."""
        headers = {"content-type": "application/json", "accept": "application/json"}
        if call.stream:
            headers |= {"accept": EVENTS, "accept-encoding": "identity"}
        if call.traceparent is not None:
            headers["traceparent"] = call.traceparent
        named = {name: value.reveal() for name, value in self._headers.items()}
        return headers | dict(self._credentials(key.reveal())) | named

    async def _answer(self, response: Response, call: UpstreamCall) -> AsyncGenerator[Chunk, None]:
        """The chunks of an answer whose headers have arrived. Raises its fault instead, if it is one."""
        if response.status != 200:
            body = await self._start_of(response)
            raise fault_of_answer(self.name, response.status, response.headers, body)
        media = _media(response.headers)
        if media == EVENTS:
            return streamed(self._reader(call), response, self._redact)
        if media in _WHOLE:
            return whole(self._reader(call), response, self._redact)
        raise self._odd_media(response.headers, await self._start_of(response))

    def _odd_media(self, headers: Mapping[str, str], body: str) -> ProviderFault:
        shown = self._redact(headers.get("content-type", "")).partition(";")[0].strip()[:_MEDIA_CHARS]
        message = f"{self.name} answered with the content type {shown!r}"
        return ProviderFault("malformed", message, status=200, body=start_of(body))

    async def _start_of(self, response: Response) -> str:
        """The first part of an error's body. A body that breaks off or stalls changes nothing: the status has said
        most of it."""
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


class _Call:
    """One call: its context holds the connection."""

    __slots__ = ("_call", "_chunks", "_exchange", "_provider")

    def __init__(self, provider: HttpProvider, call: UpstreamCall) -> None:
        self._provider = provider
        self._call = call

    async def __aenter__(self) -> AsyncIterator[Chunk]:
        try:
            self._chunks = await self._enter()
        except ProviderFault as fault:
            if not self._provider._learns(fault):
                raise
            self._chunks = await self._enter()
        return self._chunks

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._chunks.aclose()
        finally:
            await self._exchange.__aexit__(kind, error, trace)

    async def _enter(self) -> AsyncGenerator[Chunk, None]:
        """Ask with one key after the other, until one is accepted."""
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

    async def _ask(self, key: Secret) -> AsyncGenerator[Chunk, None]:
        provider, call = self._provider, self._call
        try:
            url, headers, body = provider._address(call), provider._headers_of(call, key), provider._body(call)
            self._exchange = provider._transport.request("POST", url, headers=headers, body=body)
            response = await self._exchange.__aenter__()
            try:
                return await provider._answer(response, call)
            except BaseException as exc:
                await self._exchange.__aexit__(type(exc), exc, exc.__traceback__)
                raise
        except ProviderFault as fault:
            conceal(fault, provider._redact)
            raise


def _text(body: bytes | bytearray) -> str:
    return body[:_ERROR_BYTES].decode("utf-8", "replace")


def _media(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


class KeyRing:
    """The keys of one provider, in turn. Threads may share it, since each step is one assignment.

    One key is used until it is refused, since hosts keep their prompt caches by it; then the next that is not aside.
    """

    def __init__(self, keys: Sequence[Secret], clock: Clock) -> None:
        self.keys = tuple(keys)
        self.sole = self.keys[0] if len(self.keys) == 1 else None
        """The only key: its faults are not a reason to try another."""
        self._clock = clock
        self._place = 0
        """Of the key in use."""
        self._due = dict.fromkeys(self.keys, clock.monotonic())
        """When each may be used again."""

    def turn(self) -> Iterator[Secret]:
        """Give the keys that one call may try: those not aside, from the one in use on; at last the one due soonest,
        if it was not among them."""
        asked, start, count = set[Secret](), self._place, len(self.keys)
        for place in (at % count for at in range(start, start + count)):
            key = self.keys[place]
            if self._due[key] <= self._clock.monotonic() and len(asked) < MOST_ASKED:
                self._place = place
                asked.add(key)
                yield key
        soonest = self._soonest()
        if len(asked) < MOST_ASKED and soonest not in asked:
            yield soonest

    def refuse(self, key: Secret, fault: ProviderFault) -> bool:
        """Put a key aside and return True, if the fault is about the key."""
        seconds = aside_s(fault)
        if seconds is None:
            return False
        self._due[key] = self._clock.monotonic() + seconds
        return True

    def told(self, faults: Mapping[Secret, ProviderFault]) -> ProviderFault:
        """Of the faults of all keys that were tried, that of the one due soonest, with the time until then."""
        fault = faults.get(self._soonest()) or [*faults.values()][-1]
        if fault.kind == FaultKind.RATE_LIMITED:
            fault.retry_after = max(min(self._due.values()) - self._clock.monotonic(), 0.0)
        return fault

    def _soonest(self) -> Secret:
        return min(self.keys, key=self._due.__getitem__)


def aside_s(fault: ProviderFault) -> float | None:
    """How long a fault puts its key aside; None if another key would not have helped."""
    if fault.kind == FaultKind.AUTH:
        return REFUSED_S
    if fault.kind == FaultKind.RATE_LIMITED and fault.status == 429:
        return LIMITED_S if fault.retry_after is None else min(fault.retry_after, LONGEST_S)
    return None
