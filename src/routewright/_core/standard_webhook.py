"""The same as Standard Webhooks has it (standardwebhooks.com, 1.0.0, symmetric signatures).

Signed is ``<id>.<timestamp>.<body>``; the key is what the secret holds in base64 behind its prefix. Id, timestamp and
signatures have a header each.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any

from routewright.errors import SignatureError

from .request.problems import shown
from .webhook import PREFIX, Key, among, few, fresh, refusal, signable, told_in, unknown

ID, TIMESTAMP, SIGNATURE = _NAMES = "webhook-id", "webhook-timestamp", "webhook-signature"

_KEY_BYTES = range(24, 65)
_ID = re.compile(r"[!-\-/-~]{1,256}")  # a dot would let it reach into the timestamp


def decoded(secret: str, path: str) -> bytes:
    """The key that a secret is here. Raises ``ValidationFailed``."""
    text = secret.removeprefix(PREFIX)
    try:
        key = b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        raise refusal(path, f"is not base64 behind {PREFIX}", "pass it as it was given to you") from None
    if len(key) not in _KEY_BYTES:
        raise refusal(path, f"holds {len(key)} bytes", f"Standard Webhooks takes {_KEY_BYTES[0]} to {_KEY_BYTES[-1]}")
    return key


def headers_of(keys: Sequence[Key], body: object, timestamp: object, event_id: object) -> dict[str, str]:
    """Write the headers of a webhook. Raises ``ValidationFailed``."""
    signed, at = signable(body, timestamp)
    if not isinstance(event_id, str) or not _ID.fullmatch(event_id):
        hint = "pass 1 to 256 visible ASCII characters, no dot among them"
        raise refusal("event_id", f"is {shown(event_id)}", hint)
    head = f"{event_id}.{at}.".encode()
    codes = [f"v1,{_written(key.code(head, signed))}" for key in keys]
    return {ID: event_id, TIMESTAMP: str(at), SIGNATURE: " ".join(codes)}


def check_headers(keys: Sequence[Key], body: object, headers: object, now: object) -> None:
    """Raise ``SignatureError`` unless the headers sign this body with one of the keys, and did so of late."""
    event_id, at, told = _read(headers)
    received = fresh(body, at, now)
    head = f"{event_id}.{at}.".encode()
    for key in keys:
        if among(told, _written(key.code(head, received))):
            return
    raise unknown()


def _read(headers: object) -> tuple[str, str, list[str]]:
    """Id, timestamp and signatures, as they are written."""
    found = _found(headers)
    event_id, at, signatures = [told_in(name, found.get(name)) for name in _NAMES]
    if not _ID.fullmatch(event_id):
        raise SignatureError(f"the {ID} header is no id")
    told = [each.removeprefix("v1,") for each in signatures.split(" ") if each.startswith("v1,")]
    return event_id, at, few(SIGNATURE, told)


def _found(headers: object) -> dict[str, object]:
    """Our three headers, as far as they are there."""
    found: dict[str, object] = {}
    for name, value in _pairs(headers):
        known = name.lower() if isinstance(name, str) else None
        if known in _NAMES:
            if known in found:
                raise SignatureError(f"there are several {known} headers")
            found[known] = value
    return found


def _pairs(headers: Any) -> list[tuple[object, object]]:
    try:
        return [(name, value) for name, value in headers.items()]
    except Exception:  # whatever it is, it is no proof of anything
        raise SignatureError("the headers are no mapping of names to strings") from None


def _written(code: bytes) -> str:
    return b64encode(code).decode()
