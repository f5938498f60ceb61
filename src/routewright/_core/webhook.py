"""Is a webhook from one who knows the secret, unchanged, and of now? (spec 6.4, contract 11)

Signed is ``<timestamp>.<body>``; the key is the whole secret. ``standard_webhook`` has the other profile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Never

from routewright.errors import Problem, SignatureError, ValidationFailed
from routewright.wire.secret import HIDDEN, Secret

from .derive import same
from .request.problems import shown

PREFIX = "whsec_"
HEADER = "Service-Signature"
TOLERANCE_S = 300
MAX_SECRETS = 10
"""That are live at once: a header has a signature for each. One that has more is refused."""
MAX_CHARS = 4_096
"""Of a header. A longer one is refused unread."""

_LEAST_CHARS = 32  # 192 bits in base64
_DIGITS = 11
_TOO_LATE = 10**_DIGITS
_BLOCK = 64
_INNER = bytes(each ^ 0x36 for each in range(256))
_OUTER = bytes(each ^ 0x5C for each in range(256))

_NEW = "make one with WebhookSigner.new_secret()"
_SECONDS = "pass Unix time in seconds, as time.time() gives it"


class Key:
    """A key of HMAC-SHA-256. What depends on it alone is hashed beforehand: that saves a third of each code."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        block = (sha256(key).digest() if len(key) > _BLOCK else key).ljust(_BLOCK, b"\0")
        self._inner = sha256(block.translate(_INNER))
        self._outer = sha256(block.translate(_OUTER))

    def code(self, head: bytes, body: bytes) -> bytes:
        """The code of ``head`` with ``body`` behind it."""
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
    """What is raised where something that signs would be pickled or copied."""
    return TypeError("what signs webhooks is neither pickled nor copied: make another of the same secrets")


def keys_of(secrets: Sequence[object], key_of: Callable[[str, str], bytes]) -> tuple[Key, ...]:
    """The keys of secrets; ``key_of`` is given each and its path. Raises ``ValidationFailed``, which tells none."""
    if not 0 < len(secrets) <= MAX_SECRETS:
        raise refusal("secrets", f"are {len(secrets)}", f"pass 1 to {MAX_SECRETS}; {_NEW}")
    named = [(f"secrets[{place}]", secret) for place, secret in enumerate(secrets)]
    return tuple(Key(key_of(_text_of(secret, path), path)) for path, secret in named)


def whole(secret: str, path: str) -> bytes:
    """The key that a secret is here."""
    return secret.encode()


def header_of(keys: Sequence[Key], body: object, timestamp: object) -> str:
    """Write the header of a webhook. Raises ``ValidationFailed``."""
    signed, at = signable(body, timestamp)
    head = f"{at}.".encode()
    return f"t={at}" + "".join([f",v1={key.code(head, signed).hex()}" for key in keys])


def check_header(keys: Sequence[Key], body: object, header: object, now: object) -> None:
    """Raise ``SignatureError`` unless the header signs this body with one of the keys, and did so of late."""
    at, told = _read(told_in(HEADER, header))
    received = fresh(body, at, now)
    head = f"{at}.".encode()
    for key in keys:
        if among(told, key.code(head, received).hex()):
            return
    raise unknown()


def _read(header: str) -> tuple[str, list[str]]:
    """The timestamp and the signatures, as they are written. Fields of other names are for other times."""
    times, told = [], []
    for field in header.split(","):
        name, _, value = field.strip(" \t").partition("=")
        if name == "t":
            times.append(value)
        elif name == "v1":
            told.append(value)
    if len(times) != 1:
        raise SignatureError(f"the {HEADER} header is not t=<Unix time>,v1=<signature>: it has {len(times)} times")
    return times[0], few(HEADER, told)


def told_in(name: str, header: object) -> str:
    """A header that can be read. Raises ``SignatureError``."""
    if not isinstance(header, str):
        raise SignatureError(f"the {name} header is {'missing' if header is None else 'not a string'}")
    if len(header) > MAX_CHARS or not header.isascii():
        raise SignatureError(f"the {name} header is not ASCII of at most {MAX_CHARS} characters")
    return header


def few(name: str, told: list[str]) -> list[str]:
    """Signatures that are not too many to look at. Raises ``SignatureError``."""
    if not 0 < len(told) <= MAX_SECRETS:
        raise SignatureError(f"the {name} header has {len(told)} signatures of version 1, not 1 to {MAX_SECRETS}")
    return told


def fresh(body: object, at: str, now: object) -> bytes:
    """The body of a webhook that was signed of late. Raises ``SignatureError``."""
    if not isinstance(body, bytes):
        raise SignatureError(f"the body is {type(body).__name__}: pass the bytes as they came")
    if not at.isdigit() or len(at) > _DIGITS:
        raise SignatureError("the timestamp is not a Unix time in seconds")
    if not isinstance(now, (int, float)) or not 0 <= now < _TOO_LATE:
        raise SignatureError(f"now is {shown(now)}: {_SECONDS}")
    age = now - int(at)
    if not -TOLERANCE_S <= age <= TOLERANCE_S:
        told = f"{abs(age):.1f} s {'ago' if age > 0 else 'ahead'}"
        raise SignatureError(f"the webhook was signed {told}, and {TOLERANCE_S} s are allowed: look at both clocks")
    return body


def among(told: Sequence[str], expected: str) -> bool:
    """Whether one of the signatures is the expected one. To the letter: other spellings are not the same."""
    code = expected.encode()
    return True in [same(each.encode(), code) for each in told]


def unknown() -> SignatureError:
    """What is raised when no signature fits."""
    return SignatureError(
        "no signature fits: another secret signed it, or the body was changed; pass its bytes as they came, unparsed"
    )


def signable(body: object, timestamp: object) -> tuple[bytes, int]:
    """A body that can be signed, and whole seconds. Raises ``ValidationFailed``."""
    if not isinstance(body, bytes):
        raise refusal("body", f"is {type(body).__name__}", "pass the bytes that are sent")
    if not isinstance(timestamp, (int, float)) or not 0 <= timestamp < _TOO_LATE:
        raise refusal("timestamp", f"is {shown(timestamp)}", _SECONDS)
    return body, int(timestamp)


def refusal(path: str, problem: str, hint: str) -> ValidationFailed:
    """What is raised for an argument."""
    return ValidationFailed.of(Problem(path, problem, hint))


def _text_of(given: object, path: str) -> str:
    if not isinstance(given, str):
        raise refusal(path, f"is {type(given).__name__}", "pass each secret as a string")
    secret = Secret(given).reveal()
    if secret == HIDDEN:
        raise refusal(path, "is a copy of a hidden secret", "keep what Secret.reveal() gives")
    if not secret.startswith(PREFIX):
        raise refusal(path, f"does not begin with {PREFIX}", f"pass it whole, or {_NEW}")
    if not secret.isprintable() or " " in secret:
        raise refusal(path, "holds space, a line's end or what cannot be printed", "strip it")
    if len(secret) < len(PREFIX) + _LEAST_CHARS:
        raise refusal(path, f"has fewer than {_LEAST_CHARS} characters behind {PREFIX}", _NEW)
    return secret
