"""Signs and receives webhooks: verifies signatures, parses events, recognises duplicates."""

from __future__ import annotations

import secrets
import time
from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Never, Protocol

import msgspec

from ._core.webhooks import signature
from ._runtime.fork import Guard
from .errors import SignatureError, ValidationFailed
from .wire import WebhookEvent as WebhookEvent
from .wire.account import Secret

_RANDOM_BYTES = 33  # 264 bits, which base64 writes without padding


class WebhookSigner:
    """Signs webhooks with the ``Service-Signature`` header, and verifies it.

        signer = WebhookSigner("whsec_...")
        header = signer.sign(body, time.time())  # t=1763812800,v1=6f1e...
        signer.verify(body, header, time.time())  # nothing, or SignatureError

    With several secrets ``sign`` writes a signature for each, and ``verify`` accepts any, for rotation. Thread-safe. It
    does not reveal its secrets, and cannot be pickled or copied."""

    __slots__ = ("_keys",)

    def __init__(self, *secrets: str) -> None:
        """``secrets``: as ``new_secret`` makes them, the newest first. Raises ``ValidationFailed``."""
        self._keys = signature.keys_of(secrets, signature.encode_key)

    @staticmethod
    def new_secret() -> Secret:
        """Make a secret, for this signer or ``StandardWebhookSigner``. Store and share the text of its ``reveal``."""
        return Secret(signature.PREFIX + b64encode(secrets.token_bytes(_RANDOM_BYTES)).decode())

    def sign(self, body: bytes, timestamp: float) -> str:
        """Write the header for a body that is sent at a Unix time. Raises ``ValidationFailed``."""
        return signature.header_of(self._keys, body, timestamp)

    def verify(self, body: bytes, header: str | None, now: float) -> None:
        """Raise ``SignatureError`` unless the header was made for this body with one of the secrets, within 300 s.

        Raises nothing else. ``body``: the bytes as received, before parsing."""
        signature.check_header(self._keys, body, header, now)

    def __repr__(self) -> str:
        return f"WebhookSigner({', '.join(map(repr, self._keys))})"

    def __reduce_ex__(self, protocol: object, /) -> Never:
        raise signature.copy_error()


class Headers(Protocol):
    """The headers of a request, with names in any case: a dict, or a web framework's mapping."""

    def items(self) -> Iterable[tuple[str, str]]:
        """Names and values."""


RequestHeaders = Headers | Iterable[tuple[bytes, bytes]]
"""Headers as a mapping, or as the pairs of bytes of ASGI."""


class StandardWebhookSigner:
    """Signs and verifies webhooks by the Standard Webhooks specification, which many languages support.

        signer = StandardWebhookSigner("whsec_...")
        headers = signer.sign(body, time.time(), event.id)  # webhook-id, webhook-timestamp, webhook-signature
        signer.verify(body, headers, time.time())

    The secrets may be those of a ``WebhookSigner``; here the key is the base64 part after ``whsec_``, decoded."""

    __slots__ = ("_keys",)

    def __init__(self, *secrets: str) -> None:
        """``secrets``: as ``WebhookSigner.new_secret`` makes them, the newest first. Raises ``ValidationFailed``."""
        self._keys = signature.keys_of(secrets, signature.decode_key)

    def sign(self, body: bytes, timestamp: float, event_id: str) -> dict[str, str]:
        """Write the headers for a body that is sent at a Unix time. Raises ``ValidationFailed``."""
        return signature.headers_of(self._keys, body, timestamp, event_id)

    def verify(self, body: bytes, headers: RequestHeaders, now: float) -> None:
        """Raise ``SignatureError`` unless the headers were made for this body with one of the secrets, within 300 s.

        Raises nothing else. Other headers are ignored."""
        signature.check_headers(self._keys, body, headers, now)

    def __repr__(self) -> str:
        return f"StandardWebhookSigner({', '.join(map(repr, self._keys))})"

    def __reduce_ex__(self, protocol: object, /) -> Never:
        raise signature.copy_error()


def verify_request(body: bytes, headers: RequestHeaders, *secrets: str, now: float | None = None) -> WebhookEvent:
    """Verify a request with a webhook, and return its event. Raises ``SignatureError``: answer 401.

        event = verify_request(await request.body(), request.headers, "whsec_...")

    It verifies ``Service-Signature``, or without that header the three of Standard Webhooks, and parses only then.
    ``body``: the bytes as they came. ``headers``: those of a web framework, any mapping, the pairs of an ASGI scope, or
    a WSGI environ. ``secrets``: any of them may have signed. ``now``: Unix time; default: the system's.

    Raises ``ValidationFailed`` for a malformed secret."""
    keys = signature.keys_of(secrets, signature.encode_key)
    at = time.time() if now is None else now
    signature_headers = signature.find_headers(headers)
    if not signature_headers:
        raise SignatureError("the request has no Service-Signature header, and none of Standard Webhooks")
    if signature.SERVICE in signature_headers:
        signature.check_header(keys, body, signature_headers[signature.SERVICE], at)
    else:
        try:
            standard = signature.keys_of(secrets, signature.decode_key)
        except ValidationFailed as error:  # the sender chooses the profile; the secret may fit only the other one
            raise SignatureError(f"the headers are those of Standard Webhooks, for which {error}") from None
        signature.check_headers(standard, body, signature_headers, at)
    try:
        return msgspec.json.decode(body, type=WebhookEvent)
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        raise SignatureError(f"the signature is valid, but the body is not an event: {error}") from None


class SeenEvents:
    """Remembers the events that this process has handled, since each may be delivered more than once.

        seen = SeenEvents()
        with seen.once(event.id) as is_new:
            if is_new:
                handle(event)

    If the block raises, the event is forgotten, so that its next delivery is new again. Beyond ``size`` events the
    oldest are forgotten. Thread-safe. With several processes, or to survive restarts, keep ids in a database instead:
    insert each into a column with a unique index, in the transaction that handles the event."""

    def __init__(self, size: int = 10_000) -> None:
        self._guard = Guard()
        self._size = size
        self._ids: dict[str, bool] = {}  # oldest first; True while it is handled

    @contextmanager
    def once(self, event_id: str) -> Iterator[bool]:
        """True for the first block with this id, False after one has succeeded. Raises ``RuntimeError`` while one runs:
        answer 503, as frameworks do, so that the event is delivered again if that block fails."""
        with self._guard.lock:
            is_new = event_id not in self._ids
            if not is_new and self._ids[event_id]:
                raise RuntimeError(f"{event_id} is being handled")
            self._ids[event_id] = is_new
            if len(self._ids) > self._size:
                del self._ids[next(iter(self._ids))]
        try:
            yield is_new
        except BaseException:  # a cancelled task has not handled it either
            if is_new:
                with self._guard.lock:
                    self._ids.pop(event_id, None)
            raise
        self._ids[event_id] = False
