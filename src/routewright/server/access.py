"""The access log: one line of JSON a request, of what the server knows of it and nothing that the client made up."""

from __future__ import annotations

import json
import logging
from typing import Any

from routewright._core.account import without_keys
from routewright._core.moment import timestamp

from .exchange import Exchange
from .refusal import Refused

_FIELDS = "time method endpoint status code duration_ms bytes request_id trace_id account key_id environment"
LONGEST_ADDRESS = 45
"""Letters of an address; what a proxy names may be anything."""
_NOTHING: dict[str, Any] = dict.fromkeys(_FIELDS.split())
_log = logging.getLogger("routewright.access")


class AccessLog:
    """Logs every request, as an observer of ``create_app``; the logger is ``routewright.access``, at ``INFO``.

        logging.getLogger("routewright.access").addHandler(logging.StreamHandler())
        app = create_app(router, observers=[AccessLog()])

    Addresses stand as the table of endpoints has them. ``client=True`` adds the client's address.
    """

    def __init__(self, *, client: bool = False) -> None:
        self._client = client

    def __call__(self, exchange: Exchange) -> None:
        """Write the line, if anybody reads."""
        if _log.isEnabledFor(logging.INFO):
            _write(self._told(exchange))

    def refused(self, refused: Refused) -> None:
        """Write one of a client that was refused before there was a request: of what it asked nothing is known."""
        if not _log.isEnabledFor(logging.INFO):
            return
        kind = refused.refusal.kind
        told: dict[str, Any] = {
            **_NOTHING,
            "time": timestamp(refused.at),
            "status": kind.status,
            "code": kind.code,
            "bytes": len(refused.response),
            "request_id": refused.request_id,
        }
        _write({**told, "client": refused.client} if self._client else told)

    def _told(self, exchange: Exchange) -> dict[str, Any]:
        caller, client = exchange.caller, exchange.scope.get("client")
        told: dict[str, Any] = {
            "time": timestamp(exchange.clock.time()),
            "method": exchange.known_method,
            "endpoint": exchange.endpoint,
            "status": exchange.final_status,
            "code": exchange.code,
            "duration_ms": round(exchange.duration_s * 1000, 3),
            "bytes": exchange.sent_bytes,
            "request_id": exchange.request_id,
            "trace_id": exchange.trace_id,
            "account": None if caller is None else caller.account,
            "key_id": None if caller is None else caller.key_id,
            "environment": None if caller is None else caller.environment,
        }
        return {**told, "client": client[0][:LONGEST_ADDRESS] if client else None} if self._client else told


def _write(told: dict[str, Any]) -> None:
    # in ASCII: there is more than one character that breaks lines
    line = json.dumps(told, separators=(",", ":"))
    _log.info("%s", without_keys(line) if "sk_" in line else line)
