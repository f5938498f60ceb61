"""Signing webhooks, and verifying those that come: in our own form, and as Standard Webhooks has it."""

from __future__ import annotations

import secrets
from base64 import b64encode
from collections.abc import Iterable
from typing import Never, Protocol

from ._core.webhooks.signature import (
    PREFIX,
    check_header,
    check_headers,
    decoded,
    header_of,
    headers_of,
    keys_of,
    uncopied,
    whole,
)
from .wire.secret import Secret

_RANDOM_BYTES = 33  # 264 bits, which base64 writes without padding


class WebhookSigner:
    """Signs webhooks with the ``Service-Signature`` header, and verifies it.

        signer = WebhookSigner("whsec_...")
        header = signer.sign(body, time.time())  # t=1763812800,v1=6f1e...
        signer.verify(body, header, time.time())  # nothing, or SignatureError

    With several secrets ``sign`` writes a signature for each, and ``verify`` takes any: that is how they are rotated.
    Threads may share a signer. It shows its secrets to nobody, and is neither pickled nor copied.
    """

    __slots__ = ("_keys",)

    def __init__(self, *secrets: str) -> None:
        """``secrets``: as ``new_secret`` makes them, the newest first. Raises ``ValidationFailed``."""
        self._keys = keys_of(secrets, whole)

    @staticmethod
    def new_secret() -> Secret:
        """Make a secret, for this signer or ``StandardWebhookSigner``. Keep and hand on what its ``reveal`` gives."""
        return Secret(PREFIX + b64encode(secrets.token_bytes(_RANDOM_BYTES)).decode())

    def sign(self, body: bytes, timestamp: float) -> str:
        """Write the header for a body that is sent at a Unix time. Raises ``ValidationFailed``."""
        return header_of(self._keys, body, timestamp)

    def verify(self, body: bytes, header: str | None, now: float) -> None:
        """Raise ``SignatureError`` unless the header was made for this body with one of the secrets, within 300 s.

        Raises nothing else, whatever it is given. ``body``: the bytes as they came, before anything parsed them.
        """
        check_header(self._keys, body, header, now)

    def __repr__(self) -> str:
        return f"WebhookSigner({', '.join(map(repr, self._keys))})"

    def __reduce_ex__(self, protocol: object, /) -> Never:
        raise uncopied()


class Headers(Protocol):
    """The headers of a request, in any case: a dict, or what a web framework has for one."""

    def items(self) -> Iterable[tuple[str, str]]:
        """Names and values."""


class StandardWebhookSigner:
    """Signs and verifies webhooks as Standard Webhooks has it, for which many languages have libraries.

        signer = StandardWebhookSigner("whsec_...")
        headers = signer.sign(body, time.time(), event.id)  # webhook-id, webhook-timestamp, webhook-signature
        signer.verify(body, headers, time.time())

    The secrets may be those of a ``WebhookSigner``; here the key is what stands in base64 behind ``whsec_``.
    """

    __slots__ = ("_keys",)

    def __init__(self, *secrets: str) -> None:
        """``secrets``: as ``WebhookSigner.new_secret`` makes them, the newest first. Raises ``ValidationFailed``."""
        self._keys = keys_of(secrets, decoded)

    def sign(self, body: bytes, timestamp: float, event_id: str) -> dict[str, str]:
        """Write the headers for a body that is sent at a Unix time. Raises ``ValidationFailed``."""
        return headers_of(self._keys, body, timestamp, event_id)

    def verify(self, body: bytes, headers: Headers, now: float) -> None:
        """Raise ``SignatureError`` unless the headers were made for this body with one of the secrets, within 300 s.

        Raises nothing else, whatever it is given. Other headers are passed over.
        """
        check_headers(self._keys, body, headers, now)

    def __repr__(self) -> str:
        return f"StandardWebhookSigner({', '.join(map(repr, self._keys))})"

    def __reduce_ex__(self, protocol: object, /) -> Never:
        raise uncopied()
