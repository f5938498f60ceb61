"""Sessions of the page: who signed in, how long it holds, and the token that its requests must carry.

A session is a signed cookie and nothing else, so it holds in every worker process and none has to remember it."""

from __future__ import annotations

import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from routewright.errors import AuthenticationFailed

LONGEST_S = 12 * 3600.0
IDLE_S = 30 * 60.0
RENEWED_S = 60.0
"""Age from which a cookie is replaced when it is used."""


class Operator(Struct, frozen=True, kw_only=True):
    """The person at the page."""

    name: str
    """Author of what this person publishes."""
    writes: bool = False
    """False: read-only."""
    key_id: str | None = None
    """The operator's key. None: another way in."""


class Session(Struct, frozen=True):
    """A signed-in operator."""

    operator: Operator
    id: str
    began_at: float
    """Unix seconds, like ``seen_at``."""
    seen_at: float
    """When the operator last did something."""


class Sessions:
    """Makes and reads cookies. ``keys`` gives the keys that sign them: the present one, then previous ones."""

    def __init__(self, keys: Callable[[], Sequence[bytes]], advice: str = "sign in again") -> None:
        self._keys = keys
        self._advice = advice

    def begin(self, operator: Operator, now: float) -> Session:
        """A new session, with an id that nobody could know before."""
        return Session(operator, secrets.token_urlsafe(16), now, now)

    def cookie(self, session: Session) -> str:
        """The value of the cookie."""
        body = urlsafe_b64encode(msgspec.json.encode(session)).decode()
        return f"{body}.{self._sign(self._keys()[0], 'session', body)}"

    def read(self, cookies: Sequence[str], now: float) -> Session:
        """The session of the first cookie that is ours and not over. Raises ``AuthenticationFailed``."""
        for cookie in cookies:
            body = cookie.partition(".")[0]
            signature = cookie.partition(".")[2]
            if not any(is_same(signature, self._sign(key, "session", body)) for key in self._keys()):
                continue
            with suppress(msgspec.DecodeError):  # of another version of this program
                session = msgspec.json.decode(urlsafe_b64decode(body), type=Session)
                if now < session.began_at + LONGEST_S and now < session.seen_at + IDLE_S:
                    return session
        raise AuthenticationFailed(f"the session is over; {self._advice}" if cookies else "sign in first")

    def renewed(self, session: Session, now: float) -> Session | None:
        """The session, used now. None: its cookie is young enough."""
        return replace(session, seen_at=now) if now >= session.seen_at + RENEWED_S else None

    def token(self, session_id: str) -> str:
        """What the requests of a session must carry, which no other origin can read."""
        return self._sign(self._keys()[0], "token", session_id)

    def takes(self, token: str, session_id: str) -> bool:
        """True if the token is the session's."""
        return any(is_same(token, self._sign(key, "token", session_id)) for key in self._keys())

    @staticmethod
    def _sign(key: bytes, purpose: str, text: str) -> str:
        return hmac.new(key, f"{purpose}.{text}".encode(), sha256).hexdigest()


def is_same(text: str, other: str) -> bool:
    """Compare two secrets in constant time."""
    return hmac.compare_digest(text.encode(), other.encode())
