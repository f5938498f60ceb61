"""Signs webhooks and checks their signatures, in two profiles (spec 6.4, contract 11). Our own signs
``<timestamp>.<body>`` with the whole secret as the key, all in one header. Standard Webhooks 1.0.0
(standardwebhooks.com, symmetric signatures) signs ``<id>.<timestamp>.<body>`` with the bytes that the secret holds in
base64 behind its prefix, and has a header each for id, timestamp and signatures."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Any, Never

from routewright._core.derive import same
from routewright._core.request.problems import shown
from routewright.errors import SignatureError, ValidationFailed
from routewright.wire.account import HIDDEN, Secret

PREFIX = "whsec_"
HEADER = "Service-Signature"
SERVICE = HEADER.lower()
ID, TIMESTAMP, SIGNATURE = _STANDARD = "webhook-id", "webhook-timestamp", "webhook-signature"
_NAMES = SERVICE, *_STANDARD
TOLERANCE_S = 300
MAX_SECRETS = 10  # How many are live at once: a header has a signature for each. One with more is refused.
MAX_CHARS = 4_096  # the longest header that is read

_LEAST_CHARS = 32  # 192 bits in base64
_KEY_BYTES = range(24, 65)
_ID = re.compile(r"[!-\-/-~]{1,256}")  # a dot would let it reach into the timestamp
_DIGITS = 11
_TOO_LATE = 10**_DIGITS
_BLOCK = 64
_INNER = bytes(each ^ 0x36 for each in range(256))
_OUTER = bytes(each ^ 0x5C for each in range(256))

_NEW = "make one with WebhookSigner.new_secret()"
_SECONDS = "pass Unix time in seconds, as time.time() gives it"


class Key:
    """A key of HMAC-SHA-256. What depends on it alone is hashed beforehand, which saves a third of each signature."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        block = (sha256(key).digest() if len(key) > _BLOCK else key).ljust(_BLOCK, b"\0")
        self._inner = sha256(block.translate(_INNER))
        self._outer = sha256(block.translate(_OUTER))

    def code(self, head: bytes, body: bytes) -> bytes:
        """The code of ``head`` followed by ``body``."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(head)
        inner.update(body)
        outer.update(inner.digest())
        return outer.digest()

    def __repr__(self) -> str:
        return HIDDEN

    def __reduce_ex__(self, protocol: object, /) -> Never:
        raise uncopied()


def uncopied() -> TypeError:
    """The error for pickling or copying what signs webhooks."""
    return TypeError("what signs webhooks is neither pickled nor copied: make another of the same secrets")


def keys_of(secrets: Sequence[object], key_of: Callable[[str, str], bytes]) -> tuple[Key, ...]:
    """The keys of secrets; ``key_of`` is given each and its path. Raises ``ValidationFailed``, which tells none."""
    if not 0 < len(secrets) <= MAX_SECRETS:
        raise ValidationFailed.at("secrets", f"are {len(secrets)}", f"pass 1 to {MAX_SECRETS}; {_NEW}")
    named = [(f"secrets[{place}]", secret) for place, secret in enumerate(secrets)]
    return tuple(Key(key_of(_checked_secret(secret, path), path)) for path, secret in named)


def whole(secret: str, path: str) -> bytes:
    """The key of a secret in our own profile."""
    return secret.encode()


def decoded(secret: str, path: str) -> bytes:
    """The key of a secret in Standard Webhooks. Raises ``ValidationFailed``."""
    text = secret.removeprefix(PREFIX)
    try:
        key = b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        raise ValidationFailed.at(path, f"is not base64 behind {PREFIX}", "pass it as it was given to you") from None
    if len(key) not in _KEY_BYTES:
        raise ValidationFailed.at(
            path, f"holds {len(key)} bytes", f"Standard Webhooks takes {_KEY_BYTES[0]} to {_KEY_BYTES[-1]}"
        )
    return key


def header_of(keys: Sequence[Key], body: object, timestamp: object) -> str:
    """Write our header for a webhook. Raises ``ValidationFailed``."""
    signed, at = _signable(body, timestamp)
    head = f"{at}.".encode()
    return f"t={at}" + "".join([f",v1={key.code(head, signed).hex()}" for key in keys])


def headers_of(keys: Sequence[Key], body: object, timestamp: object, event_id: object) -> dict[str, str]:
    """Write the headers of Standard Webhooks for a webhook. Raises ``ValidationFailed``."""
    signed, at = _signable(body, timestamp)
    if not isinstance(event_id, str) or not _ID.fullmatch(event_id):
        hint = "pass 1 to 256 visible ASCII characters, no dot among them"
        raise ValidationFailed.at("event_id", f"is {shown(event_id)}", hint)
    head = f"{event_id}.{at}.".encode()
    codes = [f"v1,{b64encode(key.code(head, signed)).decode()}" for key in keys]
    return {ID: event_id, TIMESTAMP: str(at), SIGNATURE: " ".join(codes)}


def check_header(keys: Sequence[Key], body: object, header: object, now: object) -> None:
    """Raise ``SignatureError`` unless our header signs this body with one of the keys, and is fresh."""
    times, told = [], []
    for field in _readable(HEADER, header).split(","):  # fields of other names may come one day
        name, _, value = field.strip(" \t").partition("=")
        if name == "t":
            times.append(value)
        elif name == "v1":
            told.append(value)
    if len(times) != 1:
        raise SignatureError(f"the {HEADER} header is not t=<Unix time>,v1=<signature>: it has {len(times)} times")
    received = _fresh(body, times[0], now, HEADER, told)
    head = f"{times[0]}.".encode()
    _match((key.code(head, received).hex() for key in keys), told)


def check_headers(keys: Sequence[Key], body: object, headers: object, now: object) -> None:
    """Raise ``SignatureError`` unless Standard Webhooks headers sign this body, freshly, with one of the keys."""
    found = headers_in(headers)
    event_id, at, signatures = [_readable(name, found.get(name)) for name in _STANDARD]
    if not _ID.fullmatch(event_id):
        raise SignatureError(f"the {ID} header is no id")
    told = [each.removeprefix("v1,") for each in signatures.split(" ") if each.startswith("v1,")]
    received = _fresh(body, at, now, SIGNATURE, told)
    head = f"{event_id}.{at}.".encode()
    _match((b64encode(key.code(head, received)).decode() for key in keys), told)


def headers_in(given: Any) -> dict[str, object]:
    """The headers of both profiles among those of a request, by lower-case name. ``given``: a mapping of names in any
    case, ASGI's pairs of bytes, or a WSGI environ. Raises ``SignatureError``, also if one is there twice."""
    try:
        if hasattr(given, "items"):
            pairs = [(name, value) for name, value in given.items()]
        else:
            pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in given]
    except Exception:  # whatever it is, it proves nothing
        raise SignatureError("the headers are neither a mapping nor ASGI's pairs of bytes") from None
    found: dict[str, object] = {}
    for name, value in pairs:
        known = name.removeprefix("HTTP_").replace("_", "-").lower() if isinstance(name, str) else None
        if known in _NAMES:
            if known in found:
                raise SignatureError(f"there are several {known} headers")
            found[known] = value
    return found


def _fresh(body: object, at: str, now: object, name: str, told: Sequence[str]) -> bytes:
    """The body, if it was signed of late and its header ``name`` has not too many signatures to look at."""
    if not 0 < len(told) <= MAX_SECRETS:
        raise SignatureError(f"the {name} header has {len(told)} signatures of version 1, not 1 to {MAX_SECRETS}")
    if not isinstance(body, bytes):
        raise SignatureError(f"the body is {type(body).__name__}: pass the bytes as they came")
    if not at.isdigit() or len(at) > _DIGITS:
        raise SignatureError("the timestamp is not a Unix time in seconds")
    if not isinstance(now, (int, float)) or not 0 <= now < _TOO_LATE:
        raise SignatureError(f"now is {shown(now)}: {_SECONDS}")
    age = now - int(at)
    if not -TOLERANCE_S <= age <= TOLERANCE_S:
        said = f"{abs(age):.1f} s {'ago' if age > 0 else 'ahead'}"
        raise SignatureError(f"the webhook was signed {said}, and {TOLERANCE_S} s are allowed: look at both clocks")
    return body


def _match(codes: Iterable[str], told: Sequence[str]) -> None:
    """Find one of the codes among the signatures, to the letter: other spellings of the same bytes do not match."""
    for code in codes:
        if True in [same(each.encode(), code.encode()) for each in told]:
            return
    raise SignatureError(
        "no signature fits: another secret signed it, or the body was changed; pass its bytes as they came, unparsed"
    )


def _readable(name: str, header: object) -> str:
    if not isinstance(header, str):
        raise SignatureError(f"the {name} header is {'missing' if header is None else 'not a string'}")
    if len(header) > MAX_CHARS or not header.isascii():
        raise SignatureError(f"the {name} header is not ASCII of at most {MAX_CHARS} characters")
    return header


def _signable(body: object, timestamp: object) -> tuple[bytes, int]:
    """The body and the whole seconds of the timestamp. Raises ``ValidationFailed``."""
    if not isinstance(body, bytes):
        raise ValidationFailed.at("body", f"is {type(body).__name__}", "pass the bytes that are sent")
    if not isinstance(timestamp, (int, float)) or not 0 <= timestamp < _TOO_LATE:
        raise ValidationFailed.at("timestamp", f"is {shown(timestamp)}", _SECONDS)
    return body, int(timestamp)


def _checked_secret(given: object, path: str) -> str:
    if not isinstance(given, str):
        raise ValidationFailed.at(path, f"is {type(given).__name__}", "pass each secret as a string")
    secret = Secret(given).reveal()
    if secret == HIDDEN:
        raise ValidationFailed.at(path, "is a copy of a hidden secret", "keep what Secret.reveal() gives")
    if not secret.startswith(PREFIX):
        raise ValidationFailed.at(path, f"does not begin with {PREFIX}", f"pass it whole, or {_NEW}")
    if not secret.isprintable() or " " in secret:
        raise ValidationFailed.at(path, "holds space, a line's end or what cannot be printed", "strip it")
    if len(secret) < len(PREFIX) + _LEAST_CHARS:
        raise ValidationFailed.at(path, f"has fewer than {_LEAST_CHARS} characters behind {PREFIX}", _NEW)
    return secret
