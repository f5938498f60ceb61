"""A vendor's HTTP API as a provider: keys, requests, answers and faults, whatever its protocol."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from math import inf
from typing import Any, ClassVar, NoReturn, TypedDict, TypeVar

import msgspec

from routewright._core.catalogue.models import models_of
from routewright._core.request.read import checked_retries, timeout_ms_of
from routewright.backends.clock import SystemClock
from routewright.backends.transport import AutoTransport, Verify
from routewright.errors import ProviderFault, ValidationFailed
from routewright.protocols import Clock, Response, Transport
from routewright.wire import Chunk, FaultKind, Feature, Model, UpstreamCall
from routewright.wire.account import Secret

from .answer import EVENTS, Reader, read_whole, streamed, whole
from .endpoint import Endpoint, Redactor, address_of, check_arguments, header_of, keys_of
from .faults import conceal, fault_of_answer, seconds_until, start_of
from .features import unsupported_at

T = TypeVar("T")

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


_log = logging.getLogger(__name__)


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


class HttpOptions(TypedDict, total=False):
    """What every provider over HTTP may be told, each by its name (``OpenAIProvider``)."""

    models: Sequence[Model]
    transport: Transport | None
    proxy: str | None
    verify: Verify
    headers: Mapping[str, str | Secret] | None
    environ: Mapping[str, str] | None
    clock: Clock | None
    timeout: float | None
    max_retries: int | None


class HttpProvider(ABC):
    """Serves models over a vendor's HTTP API, or another that speaks the same protocol. One subclass a protocol."""

    def __init__(
        self,
        endpoint: Endpoint,
        api_key: str | Sequence[str] | None,
        base_url: str | None,
        *,
        models: Sequence[Model] = (),
        transport: Transport | None = None,
        proxy: str | None = None,
        verify: Verify = True,
        headers: Mapping[str, str | Secret] | None = None,
        environ: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        timeout: float | None = None,
        max_retries: int | None = None,
    ) -> None:
        check_arguments(endpoint.name, base_url, headers)
        if transport is not None and (proxy is not None or verify is not True):
            argument, hint = "verify" if proxy is None else "proxy", "give it to the transport"
            raise ValidationFailed.at(argument, "does not go together with transport=...", hint)
        environ = os.environ if environ is None else environ  # no default argument: help() would print it
        self.name = endpoint.name
        self._url = address_of(endpoint, base_url, environ)
        self._clock = SystemClock() if clock is None else clock
        self._keys = KeyRing(keys_of(api_key, endpoint, environ), self._clock, self.name)
        self._models = models_of(models)
        self._headers = {str(name).lower(): header_of(name, value) for name, value in (headers or {}).items()}
        self._redact = Redactor([*self._keys.keys, *self._headers.values()])
        self._own_transport = transport is None
        own = AutoTransport(proxy=proxy, verify=verify, environ=environ) if transport is None else transport
        self._transport: Transport = own
        self._timeout_s = None if timeout is None else timeout_ms_of(timeout) / 1000
        self.max_retries = None if max_retries is None else checked_retries(max_retries)
        """Further tries of its models (``protocols.Provider``)."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, base_url={self._url!r})"

    def __getstate__(self) -> NoReturn:
        kind = type(self).__name__
        raise TypeError(f"{kind} is not copied or pickled, since its key would go along; make another one")

    # What the protocols differ in.

    quotas: ClassVar[Sequence[tuple[str, str]]] = (
        ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
        ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
    )
    """The headers that say how much is left of a limit, and when it is reset."""
    _vendor: ClassVar[str] = ""  # whose models a protocol of one vendor serves

    def unsupported(self, model: Model) -> Collection[Feature]:
        """What a model does not take (``protocols.ParticularProvider``)."""
        return unsupported_at(self._vendor, model)

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
    def _reader(self, call: UpstreamCall, headers: Mapping[str, str]) -> Reader:
        """Make the reader of the call's answer, whose headers have come."""

    def _learns(self, fault: ProviderFault) -> bool:
        """True if the fault taught the provider to write calls in another way, so that this one is worth a retry."""
        return False

    # What they share.

    @property
    def refused_keys(self) -> int:
        """How many of several keys the vendor refused when they were last asked (``protocols.Provider``)."""
        return len(self._keys.refused)

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
        call, key = msgspec.structs.replace(call, stream=False), next(self._keys.turn(call.model.id))
        hidden = {*self._credentials(key.reveal()), *self._headers}
        headers = self._headers_of(key, call).items()
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
            chunks = list(read_whole(self._reader(request.call, named), body))
            self._served(request.key, request.call, named)
            return chunks
        except ProviderFault as fault:
            self._keys.refuse(request.key, fault)
            conceal(fault, self._redact)
            raise

    def _headers_of(self, key: Secret, call: UpstreamCall | None = None) -> dict[str, str]:
        """The headers of a call, or of another question, with everything in the open."""
        headers = {"content-type": "application/json", "accept": "application/json"}
        if call is not None and call.stream:
            headers |= {"accept": EVENTS, "accept-encoding": "identity"}
        if call is not None and call.traceparent is not None:
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
            return streamed(self._reader(call, response.headers), response, self._redact)
        if media in _WHOLE:
            return whole(self._reader(call, response.headers), response, self._redact)
        raise self._odd_media(response.headers, await self._start_of(response))

    async def _in_time(self, wait: Callable[..., Awaitable[T]], *args: Any, answered: bool = False) -> T:
        """Wait no longer than the timeout. Raises ``ProviderFault``."""
        if self._timeout_s is None:
            return await wait(*args)
        with self._clock.deadline(self._clock.monotonic() + self._timeout_s):
            return await wait(*args)
        said = f"nothing came for {self._timeout_s:g} s, the provider's timeout"
        raise ProviderFault(FaultKind.TIMEOUT, said, answered=answered)

    async def _timed(self, chunks: AsyncGenerator[Chunk, None]) -> AsyncGenerator[Chunk, None]:
        async with aclosing(chunks):
            while (chunk := await self._in_time(anext, chunks, None, answered=True)) is not None:
                yield chunk

    def _served(self, key: Secret, call: UpstreamCall, headers: Mapping[str, str]) -> None:
        """Take from the headers of an answer whether its key may be used again for the model."""
        resets = [seconds_until(headers, reset) for rest, reset in self.quotas if headers.get(rest) == "0"]
        if resets or self._keys.refused:
            self._keys.served(key, call.model.id, max(filter(None, resets), default=None))

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

    async def __aexit__(self, *raised: Any) -> None:
        try:
            await self._chunks.aclose()
        finally:
            await self._exchange.__aexit__(*raised)

    async def _enter(self) -> AsyncGenerator[Chunk, None]:
        """Ask with one key after the other, until one is accepted."""
        keys, faults, model = self._provider._keys, dict[Secret, ProviderFault](), self._call.model.id
        if keys.sole is not None:
            return await self._ask(keys.sole)
        for key in keys.turn(model):
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
            url, headers, body = provider._address(call), provider._headers_of(key, call), provider._body(call)
            self._exchange = provider._transport.request("POST", url, headers=headers, body=body)
            response = await provider._in_time(self._exchange.__aenter__)
            try:
                chunks = await provider._answer(response, call)
                provider._served(key, call, response.headers)
                return chunks if provider._timeout_s is None else provider._timed(chunks)
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

    def __init__(self, keys: Sequence[Secret], clock: Clock, provider: str) -> None:
        self.keys = tuple(keys)
        self.sole = self.keys[0] if len(self.keys) == 1 else None
        """The only key: its faults are not a reason to try another."""
        self.refused: set[Secret] = set()
        """Those of several that the host refused when they were last asked."""
        self._clock = clock
        self._provider = provider
        self._place = 0
        """Of the key in use."""
        self._due: dict[tuple[Secret, str], float] = {}
        """When those that were put aside may be used again, for a model or for all of them, which is the empty name."""

    def turn(self, model: str) -> Iterator[Secret]:
        """Give the keys that one call may try: those not aside, from the one in use on; at last the one due soonest,
        if it was not among them."""
        asked, start, count = set[Secret](), self._place, len(self.keys)
        for place in (at % count for at in range(start, start + count)):
            key = self.keys[place]
            if self.due(key, model) <= self._clock.monotonic() and len(asked) < MOST_ASKED:
                self._place = place
                asked.add(key)
                yield key
        soonest = min(self.keys, key=self.due)
        if len(asked) < MOST_ASKED and soonest not in asked:
            yield soonest

    def due(self, key: Secret, model: str = "") -> float:
        """When a key may be used again: in the past, unless it was put aside."""
        return max(self._due.get((key, each), -inf) for each in ("", model))

    def served(self, key: Secret, model: str, spent_s: float | None) -> None:
        """Tell that a key was accepted, and for how long nothing is left of its limits for a model, if so."""
        self.refused.discard(key)
        if spent_s is not None:
            self._due[key, model] = self._clock.monotonic() + min(spent_s, LONGEST_S)

    def refuse(self, key: Secret, fault: ProviderFault) -> bool:
        """Put a key aside and return True, if the fault is about the key."""
        seconds = aside_s(fault)
        if seconds is None:
            return False
        self._due[key, ""] = self._clock.monotonic() + seconds
        if fault.kind == FaultKind.AUTH and key not in self.refused and self.sole is None:
            self.refused.add(key)
            place, status = f"key {self.keys.index(key) + 1} of {len(self.keys)}", fault.status
            _log.warning("%s refused %s (status %s); others are used in its place", self._provider, place, status)
        return True

    def told(self, faults: Mapping[Secret, ProviderFault]) -> ProviderFault:
        """Of the faults of all keys that were tried, that of the one due soonest, with the time until then."""
        soonest = min(self.keys, key=self.due)
        fault = faults.get(soonest) or [*faults.values()][-1]
        if fault.kind == FaultKind.RATE_LIMITED:
            fault.retry_after = max(self.due(soonest) - self._clock.monotonic(), 0.0)
        return fault


def aside_s(fault: ProviderFault) -> float | None:
    """How long a fault puts its key aside; None if another key would not have helped."""
    if fault.kind == FaultKind.AUTH:
        return REFUSED_S
    if fault.kind == FaultKind.RATE_LIMITED and fault.status == 429:
        return LIMITED_S if fault.retry_after is None else min(fault.retry_after, LONGEST_S)
    return None
