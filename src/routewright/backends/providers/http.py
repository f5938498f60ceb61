"""A vendor's HTTP API as a provider: keys, requests, answers and faults, independent of the protocol."""

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
from routewright._core.outage import Outage
from routewright._core.request.read import read_retries, timeout_ms_of
from routewright._core.request.rules import checked_caller_extra
from routewright._runtime.constructors import explains
from routewright._runtime.fork import Guard
from routewright.backends.clock import SystemClock
from routewright.backends.transport import AutoTransport, Verify
from routewright.errors import ProviderFault, ValidationFailed
from routewright.protocols import BaseProvider, Clock, Response, Transport
from routewright.wire import Chunk, FaultKind, Feature, Model, UpstreamCall
from routewright.wire.account import Secret

from .answer import EVENTS, Reader, decode_body, decode_document, decode_stream
from .endpoint import Endpoint, Fetches, Redactor, address_of, check_arguments, check_fetches, header_of, keys_of
from .faults import conceal, fault_of_answer, hint_for_tool, seconds_until, start_of
from .features import unsupported_at

T = TypeVar("T")

REFUSED_S = 300.0
"""How long a refused key, or one without credit (401, 402, 403), is not used."""
LIMITED_S = 10.0
"""How long a key is not used after a 429 without a Retry-After."""
LONGEST_S = 300.0
"""Upper bound of a Retry-After."""
MAX_KEYS = 8
"""Most keys that one call tries."""
ERROR_BODY_S = 1.0
"""Timeout for the body of an error."""
_ERROR_BYTES = 64 << 10
"""Bytes that are read of an error."""
_WHOLE = ("application/json", "")
_MEDIA_CHARS = 40


_log = logging.getLogger(__name__)


class HttpRequest(msgspec.Struct, frozen=True):
    """One HTTP request. ``headers`` hide the key; ``reveal()`` returns them in plain text."""

    method: str
    url: str
    headers: dict[str, str | Secret]
    body: bytes
    key: Secret
    """The key in the headers, or an empty one."""
    call: UpstreamCall

    def __repr__(self) -> str:
        # no body, since a repr may be logged
        return f"<HttpRequest {self.method} {self.url}, {len(self.body)} bytes>"

    def reveal(self) -> dict[str, str]:
        """The headers with the key in plain text, only for sending them."""
        return {name: value.reveal() if isinstance(value, Secret) else value for name, value in self.headers.items()}


class HttpOptions(TypedDict, total=False):
    """Common options of all providers over HTTP (``OpenAIProvider``)."""

    models: Sequence[Model]
    transport: Transport | None
    proxy: str | None
    verify: Verify
    headers: Mapping[str, str | Secret] | None
    environ: Mapping[str, str] | None
    clock: Clock | None
    timeout: float | None
    max_retries: int | None
    fetches_urls: Fetches | None
    caller_extra: Collection[str]


class HttpProvider(BaseProvider, ABC):
    """Serves models over HTTP. One subclass for each protocol."""

    @explains
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
        fetches_urls: Fetches | None = None,
        caller_extra: Collection[str] = (),
    ) -> None:
        check_arguments(endpoint.name, base_url, headers)
        if transport is not None and (proxy is not None or verify is not True):
            argument = "verify" if proxy is None else "proxy"
            raise ValidationFailed.at(argument, "cannot be combined with transport=...", "pass it to the transport")
        environ = os.environ if environ is None else environ  # not a default argument, which help() would print
        self.name = endpoint.name
        self._url = address_of(endpoint, base_url, environ)
        self._clock = SystemClock() if clock is None else clock
        to_set = " or ".join(endpoint.key_variables) if api_key is None else "api_key"
        self._keys = KeyRing(keys_of(api_key, endpoint, environ), self._clock, self.name, to_set)
        self._models = models_of(models)
        self._headers = {str(name).lower(): header_of(name, value) for name, value in (headers or {}).items()}
        self._redact = Redactor(self._keys.keys, self._headers)
        self._own_transport = transport is None
        self._transport = AutoTransport(proxy=proxy, verify=verify, environ=environ) if transport is None else transport
        self._timeout_s = None if timeout is None else timeout_ms_of(timeout) / 1000
        self.max_retries = None if max_retries is None else read_retries(max_retries)
        """Retries of its models (``protocols.Provider``)."""
        default: Fetches = "callers" if endpoint.fetches_urls and endpoint.is_own(self._url) else False
        self.fetches_urls: Fetches = default if fetches_urls is None else check_fetches(fetches_urls)
        """Whether it may be sent URLs of images and files (``protocols.BaseProvider``)."""
        for field in (fields := checked_caller_extra(caller_extra)):
            if field.startswith(f"{self.name}."):
                hint = f"write {field.removeprefix(f'{self.name}.')!r}"
                raise ValidationFailed.at("caller_extra", f"{field!r} starts with the provider's name", hint)
        self.caller_extra: frozenset[str] = endpoint.caller_extra | fields
        """Vendor fields that callers with a key may send (``protocols.Provider``)."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, base_url={self._url!r})"

    def __getstate__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be copied or pickled, since it has a key; create another one")

    # Differences between protocols

    quotas: ClassVar[Sequence[tuple[str, str]]] = (
        ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
        ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
    )
    """Headers with the rest of a limit and the time of its reset."""
    _vendor: ClassVar[str] = ""  # the vendor of a protocol for a single one

    def unsupported(self, model: Model) -> Collection[Feature]:
        """Features that a model does not support (``protocols.BaseProvider``)."""
        return unsupported_at(self._vendor, model)

    @abstractmethod
    def _address(self, call: UpstreamCall) -> str:
        """The URL of a call."""

    @abstractmethod
    def _credentials(self, key: str) -> Mapping[str, str]:
        """Authentication headers. ``key`` is empty if none is needed."""

    @abstractmethod
    def _body(self, call: UpstreamCall) -> bytes:
        """Encode a call. Raises ``ProviderFault("request")`` if the protocol cannot express it."""

    @abstractmethod
    def _reader(self, call: UpstreamCall, headers: Mapping[str, str]) -> Reader:
        """Create the reader of an answer with these headers."""

    def _learns(self, fault: ProviderFault) -> bool:
        """True if the fault changed the encoding of calls, so that a retry may succeed."""
        return False

    # Shared by all protocols

    @property
    def keys(self) -> int:
        """Number of keys (``protocols.Provider``)."""
        return sum(map(bool, self._keys.keys))

    @property
    def refused_keys(self) -> int:
        """Number of keys that the vendor refused at their last use (``protocols.Provider``)."""
        return len(self._keys.refused)

    def models(self) -> Sequence[Model]:
        """The given models. None: those of the catalogue under its name."""
        return self._models

    def open(self, call: UpstreamCall) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        """Start one call (``protocols.Provider``).

        Iterating after ``Finish`` reads the rest of a stream, so that its connection can be reused.
        """
        return _Call(self, call)

    async def aclose(self) -> None:
        """Close the connections, unless the transport was passed. Idempotent."""
        if self._own_transport:
            await self._transport.aclose()

    def request(self, call: UpstreamCall) -> HttpRequest:
        """A call as an HTTP request without streaming, to be sent by the caller. ``read`` decodes the answer."""
        call = msgspec.structs.replace(call, stream=False)
        key = next(self._keys.choose(call.model.id))
        hidden = {*self._credentials(key.reveal()), *self._headers}
        headers = self._headers_of(key, call).items()
        masked: dict[str, str | Secret] = {name: Secret(value) if name in hidden else value for name, value in headers}
        return HttpRequest("POST", self._address(call), masked, self._body(call), key, call)

    def read(self, request: HttpRequest, status: int, headers: Mapping[str, str], body: bytes) -> list[Chunk]:
        """The chunks of a complete answer. Raises ``ProviderFault``. A refused key is not used for a while."""
        fields = {str(name).lower(): value for name, value in headers.items()}
        try:
            if status != 200:
                raise fault_of_answer(self.name, status, fields, _text_of(body))
            if _media_of(fields) not in _WHOLE:
                raise self._fault_of_media(fields, _text_of(body))
            reader = self._reader(request.call, fields)
            reader.redact = self._redact.answer
            chunks = [*decode_body(reader, body)]
            self._note_limits(request.key, request.call, fields)
            return chunks
        except ProviderFault as fault:
            self._keys.refuse(request.key, fault)
            conceal(fault, self._redact)
            raise

    def _headers_of(self, key: Secret, call: UpstreamCall | None = None) -> dict[str, str]:
        """The headers of a call or another request, in plain text."""
        headers = {"content-type": "application/json", "accept": "application/json"}
        if call is not None and call.stream:
            headers |= {"accept": EVENTS, "accept-encoding": "identity"}
        if call is not None and call.traceparent is not None:
            headers["traceparent"] = call.traceparent
        own_headers = {name: value.reveal() for name, value in self._headers.items()}
        return {**headers, **self._credentials(key.reveal()), **own_headers}

    async def _wait(self, wait: Callable[..., Awaitable[T]], *args: object, answered: bool = False) -> T:
        """Wait with the timeout. Raises ``ProviderFault``."""
        if self._timeout_s is None:
            return await wait(*args)
        with self._clock.deadline(self._clock.monotonic() + self._timeout_s):
            return await wait(*args)
        message = f"no data for {self._timeout_s:g} s, the provider's timeout"
        raise ProviderFault(FaultKind.TIMEOUT, message, answered=answered)

    async def _limit_waits(self, chunks: AsyncGenerator[Chunk, None]) -> AsyncGenerator[Chunk, None]:
        async with aclosing(chunks):
            while (chunk := await self._wait(anext, chunks, None, answered=True)) is not None:
                yield chunk

    def _note_limits(self, key: Secret, call: UpstreamCall, headers: Mapping[str, str]) -> None:
        """Read from the headers of an answer when its key may be used again for the model."""
        resets = [seconds_until(headers, reset) for remaining, reset in self.quotas if headers.get(remaining) == "0"]
        if resets or self._keys.refusals:
            self._keys.accept(key, call.model.id, max(filter(None, resets), default=None))

    def _fault_of_media(self, headers: Mapping[str, str], body: str) -> ProviderFault:
        media = self._redact(headers.get("content-type", "")).partition(";")[0].strip()[:_MEDIA_CHARS]
        message = f"{self.name} answered with the content type {media!r}"
        return ProviderFault("malformed", message, status=200, body=start_of(body))

    async def _start_of(self, response: Response) -> str:
        """The first part of an error's body. Incomplete bodies are fine, since the status says most."""
        start = bytearray()
        with self._clock.deadline(self._clock.monotonic() + ERROR_BODY_S):
            try:
                async for piece in response.chunks():
                    start += piece
                    if len(start) >= _ERROR_BYTES:
                        break
            except ProviderFault:
                pass
        return _text_of(start)


class _Call:
    """One call, the context of its connection."""

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
        """Try one key after the other until one is accepted."""
        keys = self._provider._keys
        faults: dict[Secret, ProviderFault] = {}
        for key in keys.choose(self._call.model.id) if keys.sole is None else keys.keys:
            try:
                return await self._ask(key)
            except ProviderFault as fault:
                if not keys.refuse(key, fault) or keys.sole is not None:
                    raise
                faults[key] = fault
        raise keys.fault_of(faults)

    async def _ask(self, key: Secret) -> AsyncGenerator[Chunk, None]:
        provider = self._provider
        call = self._call
        try:
            body = provider._body(call)
            headers = provider._headers_of(key, call)
            self._exchange = provider._transport.request("POST", provider._address(call), headers=headers, body=body)
            enter = self._exchange.__aenter__
            response = await (enter() if provider._timeout_s is None else provider._wait(enter))
            try:
                if response.status != 200:
                    start = await provider._start_of(response)
                    raise fault_of_answer(provider.name, response.status, response.headers, start)
                media = _media_of(response.headers)
                if media != EVENTS and media not in _WHOLE:
                    raise provider._fault_of_media(response.headers, await provider._start_of(response))
                decode = decode_stream if media == EVENTS else decode_document
                reader = provider._reader(call, response.headers)
                reader.redact = provider._redact.answer
                chunks = decode(reader, response, provider._redact)
                provider._note_limits(key, call, response.headers)
                return chunks if provider._timeout_s is None else provider._limit_waits(chunks)
            except BaseException as exc:
                await self._exchange.__aexit__(type(exc), exc, exc.__traceback__)
                raise
        except ProviderFault as fault:
            if fault.kind == FaultKind.REQUEST and not fault.hint:
                fault.hint = hint_for_tool(fault.body, call)
            conceal(fault, provider._redact)
            raise


def _text_of(body: bytes | bytearray) -> str:
    return body[:_ERROR_BYTES].decode("utf-8", "replace")


def _media_of(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


class KeyRing:
    """The keys of one provider. Thread-safe, since each step is one assignment.

    A key is used until it is refused, since hosts cache prompts by key; then the next one that is available.
    """

    def __init__(self, keys: Sequence[Secret], clock: Clock, provider: str, to_set: str) -> None:
        """``to_set``: where the keys come from."""
        self.keys = tuple(keys)
        self.sole = self.keys[0] if len(self.keys) == 1 else None
        """The only key, if there is just one."""
        self.refused: set[Secret] = set()
        """Keys that the host refused at their last use."""
        self.refusals: dict[Secret, Outage] = {}
        """Of the keys that were ever refused."""
        self._guard = Guard()
        self._clock = clock
        self._provider = provider
        self._to_set = to_set
        self._place = 0
        """Place of the current key."""
        self._due: dict[tuple[Secret, str], float] = {}
        """When an unavailable key may be used again, by model; the empty name is for all."""

    def choose(self, model: str) -> Iterator[Secret]:
        """The keys for one call: available ones beginning with the current one, then the one that is due first."""
        offered = set[Secret]()
        start = self._place
        for index in (*range(start, len(self.keys)), *range(start)):
            key = self.keys[index]
            if self.due_at(key, model) <= self._clock.monotonic() and len(offered) < MAX_KEYS:
                self._place = index
                offered.add(key)
                yield key
        soonest = min(self.keys, key=self.due_at)
        if len(offered) < MAX_KEYS and soonest not in offered:
            yield soonest

    def due_at(self, key: Secret, model: str = "") -> float:
        """When a key may be used again; in the past if it is available."""
        return max(self._due.get((key, name), -inf) for name in ("", model))

    def accept(self, key: Secret, model: str, spent_s: float | None) -> None:
        """Called when a key was accepted. ``spent_s``: how long its limits for a model are used up."""
        self.refused.discard(key)
        if (refusal := self.refusals.get(key)) is not None:
            with self._guard.lock:
                refusal.end(self._clock.monotonic())
        if spent_s is not None:
            self._due[key, model] = self._clock.monotonic() + min(spent_s, LONGEST_S)

    def refuse(self, key: Secret, fault: ProviderFault) -> bool:
        """True if the fault is about the key, which is then not used for a while."""
        seconds = pause_of(fault)
        if seconds is None:
            return False
        self._due[key, ""] = self._clock.monotonic() + seconds
        if fault.kind == FaultKind.AUTH:
            with self._guard.lock:
                self.refused.add(key)
                position = f"key {self.keys.index(key) + 1} of {len(self.keys)}"
                left = len(self.keys) - len(self.refused)
                use = f"calls use the other {left}" if left > 1 else "calls use the other one"
                hint = use if left else f"none is left for its models; renew {self._to_set}"
                refusal = self.refusals.setdefault(key, Outage(_log.warning, f"{self._provider} accepts {position}"))
                why = "auth" if fault.status is None else f"status {fault.status}"
                refusal.begin(self._clock.monotonic(), f"{self._provider} refused {position} ({why}): {hint}")
        return True

    def fault_of(self, faults: Mapping[Secret, ProviderFault]) -> ProviderFault:
        """The fault of the tried key that is due first, with the time until then."""
        soonest = min(self.keys, key=self.due_at)
        fault = faults.get(soonest) or [*faults.values()][-1]
        if fault.kind == FaultKind.RATE_LIMITED:
            fault.retry_after = max(self.due_at(soonest) - self._clock.monotonic(), 0.0)
        return fault


def pause_of(fault: ProviderFault) -> float | None:
    """How long a key is not used after a fault. None if another key would not help."""
    if fault.kind == FaultKind.AUTH:
        return REFUSED_S
    if fault.kind == FaultKind.RATE_LIMITED and fault.status == 429:
        return LIMITED_S if fault.retry_after is None else min(fault.retry_after, LONGEST_S)
    return None
