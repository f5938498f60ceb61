"""Signs and verifies webhooks in two profiles (spec 6.4, contract 11).

The service profile signs ``<timestamp>.<body>`` with the whole secret as the key and uses one header. Standard Webhooks
1.0.0 (standardwebhooks.com, symmetric) signs ``<id>.<timestamp>.<body>`` with the base64-decoded secret after its
prefix, and has separate headers for id, timestamp and signatures."""

from __future__ import annotations

import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Never

from routewright._core.crypto import HASH, same
from routewright.errors import SignatureError, ValidationFailed
from routewright.wire.account import HIDDEN, Secret
from routewright.wire.problems import shown

PREFIX = "whsec_"
HEADER = "Service-Signature"
SERVICE = HEADER.lower()
ID = "webhook-id"
TIMESTAMP = "webhook-timestamp"
SIGNATURE = "webhook-signature"
_NAMES = SERVICE, ID, TIMESTAMP, SIGNATURE
TOLERANCE_S = 300
MAX_SECRETS = 10  # live secrets, and signatures in a header
MAX_CHARS = 4_096  # longest header accepted

_LEAST_CHARS = 32  # 192 bits in base64
_KEY_BYTES = range(24, 65)
_ID = re.compile(r"[!-\-/-~]{1,256}")  # no dot, which separates it from the timestamp
_DIGITS = 11
_TOO_LATE = 10**_DIGITS

_NEW = "make one with WebhookSigner.new_secret()"
_SECONDS = "pass Unix time in seconds, as time.time() gives it"


class Key:
    """An HMAC-SHA-256 key, prepared once: copying its state is faster than ``hmac.digest`` per signature."""

    __slots__ = ("_hmac",)

    def __init__(self, key: bytes) -> None:
        self._hmac = hmac.new(key, digestmod=HASH)

    def code(self, head: bytes, body: bytes) -> bytes:
        """HMAC of ``head`` followed by ``body``."""
        code = self._hmac.copy()
        code.update(head)
        code.update(body)
        return code.digest()

    def __repr__(self) -> str:
        return HIDDEN

    def __reduce_ex__(self, protocol: object, /) -> Never:
        raise copy_error()


def copy_error() -> TypeError:
    """The error for pickling or copying a signer."""
    return TypeError("webhook signers cannot be pickled or copied; create another one from the same secrets")


def keys_of(secrets: Sequence[object], key_of: Callable[[str, str], bytes]) -> tuple[Key, ...]:
    """Keys of secrets. ``key_of`` gets each secret and its path. Raises ``ValidationFailed`` without the secret."""
    if not 0 < len(secrets) <= MAX_SECRETS:
        raise ValidationFailed.at("secrets", f"are {len(secrets)}", f"pass 1 to {MAX_SECRETS}; {_NEW}")
    keys: list[Key] = []
    for place, value in enumerate(secrets):
        path = f"secrets[{place}]"
        if not isinstance(value, str):
            raise ValidationFailed.at(path, f"is {type(value).__name__}", "pass each secret as a string")
        secret = Secret(value).reveal()
        if secret == HIDDEN:
            raise ValidationFailed.at(path, "is a copy of a hidden secret", "store the value of Secret.reveal()")
        if not secret.startswith(PREFIX):
            raise ValidationFailed.at(path, f"does not begin with {PREFIX}", f"pass it whole, or {_NEW}")
        if not secret.isprintable() or " " in secret:
            raise ValidationFailed.at(path, "contains spaces, line breaks or unprintable characters", "strip it")
        if len(secret) < len(PREFIX) + _LEAST_CHARS:
            raise ValidationFailed.at(path, f"has fewer than {_LEAST_CHARS} characters after {PREFIX}", _NEW)
        keys.append(Key(key_of(secret, path)))
    return tuple(keys)


def encode_key(secret: str, path: str) -> bytes:
    """Key of a secret in the service profile."""
    return secret.encode()


def decode_key(secret: str, path: str) -> bytes:
    """Key of a secret in Standard Webhooks. Raises ``ValidationFailed``."""
    text = secret.removeprefix(PREFIX)
    try:
        key = b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        raise ValidationFailed.at(path, f"is not base64 after {PREFIX}", "pass the secret unchanged") from None
    if len(key) not in _KEY_BYTES:
        hint = f"Standard Webhooks takes {_KEY_BYTES[0]} to {_KEY_BYTES[-1]}"
        raise ValidationFailed.at(path, f"holds {len(key)} bytes", hint)
    return key


def header_of(keys: Sequence[Key], body: object, timestamp: object) -> str:
    """The service profile's header for a webhook. Raises ``ValidationFailed``."""
    signed, at = _check_signable(body, timestamp)
    return f"t={at}" + "".join([f",v1={key.code(f'{at}.'.encode(), signed).hex()}" for key in keys])


def headers_of(keys: Sequence[Key], body: object, timestamp: object, event_id: object) -> dict[str, str]:
    """Standard Webhooks headers for a webhook. Raises ``ValidationFailed``."""
    signed, at = _check_signable(body, timestamp)
    if not isinstance(event_id, str) or not _ID.fullmatch(event_id):
        hint = "pass 1 to 256 visible ASCII characters without dots"
        raise ValidationFailed.at("event_id", f"is {shown(event_id)}", hint)
    head = f"{event_id}.{at}.".encode()
    codes = [f"v1,{b64encode(key.code(head, signed)).decode()}" for key in keys]
    return {ID: event_id, TIMESTAMP: str(at), SIGNATURE: " ".join(codes)}


def check_header(keys: Sequence[Key], body: object, header: object, now: object) -> None:
    """Raise ``SignatureError`` unless the service header is a fresh signature of the body with one of the keys."""
    fields = [field.strip(" \t") for field in _check_readable(HEADER, header).split(",")]  # later versions may add some
    times = [field.removeprefix("t=") for field in fields if field.startswith("t=")]
    sent = [field.removeprefix("v1=") for field in fields if field.startswith("v1=")]
    if len(times) != 1:
        raise SignatureError(f"the {HEADER} header is not t=<Unix time>,v1=<signature>: it has {len(times)} times")
    received = _check_fresh(body, times[0], now, HEADER, sent)
    head = f"{times[0]}.".encode()
    _match((key.code(head, received).hex() for key in keys), sent)


def check_headers(keys: Sequence[Key], body: object, headers: object, now: object) -> None:
    """Raise ``SignatureError`` unless Standard Webhooks headers are a fresh signature of the body with one of the
    keys."""
    by_name = find_headers(headers)
    event_id = _check_readable(ID, by_name.get(ID))
    at = _check_readable(TIMESTAMP, by_name.get(TIMESTAMP))
    signatures = _check_readable(SIGNATURE, by_name.get(SIGNATURE))
    if not _ID.fullmatch(event_id):
        raise SignatureError(f"the {ID} header is not a valid id")
    sent = [part.removeprefix("v1,") for part in signatures.split(" ") if part.startswith("v1,")]
    received = _check_fresh(body, at, now, SIGNATURE, sent)
    head = f"{event_id}.{at}.".encode()
    _match((b64encode(key.code(head, received)).decode() for key in keys), sent)


def find_headers(source: Any) -> dict[str, object]:
    """Signature headers of both profiles, by lower-case name. ``source``: a mapping with names in any case, ASGI's
    pairs of bytes, or a WSGI environ. Raises ``SignatureError``, also for a repeated header."""
    try:
        if hasattr(source, "items"):
            pairs = [(name, value) for name, value in source.items()]
        else:
            pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in source]
    except Exception:  # a class of the caller may raise anything; a receiver must answer 400, not 500
        raise SignatureError("the headers are neither a mapping nor ASGI's pairs of bytes") from None
    headers: dict[str, object] = {}
    for name, value in pairs:
        header = name.removeprefix("HTTP_").replace("_", "-").lower() if isinstance(name, str) else None
        if header in _NAMES:
            if header in headers:
                raise SignatureError(f"there are several {header} headers")
            headers[header] = value
    return headers


def _check_fresh(body: object, at: str, now: object, name: str, sent: Sequence[str]) -> bytes:
    """Check body, timestamp and number of signatures, and return the body."""
    if not 0 < len(sent) <= MAX_SECRETS:
        raise SignatureError(f"the {name} header has {len(sent)} signatures of version 1, not 1 to {MAX_SECRETS}")
    if not isinstance(body, bytes):
        raise SignatureError(f"the body is {type(body).__name__}; pass the raw bytes")
    if not at.isdigit() or len(at) > _DIGITS:
        raise SignatureError("the timestamp is not a Unix time in seconds")
    if not isinstance(now, (int, float)) or not 0 <= now < _TOO_LATE:
        raise SignatureError(f"now is {shown(now)}: {_SECONDS}")
    age = now - int(at)
    if not -TOLERANCE_S <= age <= TOLERANCE_S:
        difference = f"{abs(age):.1f} s {'ago' if age > 0 else 'ahead'}"
        raise SignatureError(f"the webhook was signed {difference}, and {TOLERANCE_S} s are allowed; check both clocks")
    return body


def _match(codes: Iterable[str], sent: Sequence[str]) -> None:
    """Raise ``SignatureError`` unless a signature equals one of the codes exactly."""
    for code in codes:
        if True in [same(signature.encode(), code.encode()) for signature in sent]:
            return
    raise SignatureError(
        "no signature matches: the secret differs, or the body was changed; pass the raw bytes of the body, unparsed"
    )


def _check_readable(name: str, header: object) -> str:
    if not isinstance(header, str):
        raise SignatureError(f"the {name} header is {'missing' if header is None else 'not a string'}")
    if len(header) > MAX_CHARS or not header.isascii():
        raise SignatureError(f"the {name} header is not ASCII of at most {MAX_CHARS} characters")
    return header


def _check_signable(body: object, timestamp: object) -> tuple[bytes, int]:
    """Validated body, and timestamp in whole seconds. Raises ``ValidationFailed``."""
    if not isinstance(body, bytes):
        raise ValidationFailed.at("body", f"is {type(body).__name__}", "pass the bytes that are sent")
    if not isinstance(timestamp, (int, float)) or not 0 <= timestamp < _TOO_LATE:
        raise ValidationFailed.at("timestamp", f"is {shown(timestamp)}", _SECONDS)
    return body, int(timestamp)
