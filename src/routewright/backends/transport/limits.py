"""What a transport allows itself."""

from __future__ import annotations

import ssl
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TransportLimits:
    """Limits of a transport. It sets no other time limit: the call's deadline does."""

    connections: int = 1000
    """Open at once an event loop, over all hosts; a further request waits."""
    connect_timeout_s: float = 10.0
    """For TCP and TLS together."""
    keepalive_s: float = 30.0
    """How long an idle connection is kept for the next request."""
    answer_bytes: int = 32 << 20
    """The longest body that is read, counted after decompression."""
    ssl_context: ssl.SSLContext | None = None
    """None: certificates and names are verified against the system's authorities."""


DEFAULT_LIMITS = TransportLimits()
