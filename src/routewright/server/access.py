"""The access log: one line of JSON a request, of what the server knows of it and nothing that the client made up."""

from __future__ import annotations

import json
import logging
from typing import Any

from routewright._core.account import without_keys
from routewright._core.moment import timestamp

from .exchange import Exchange

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
            # in ASCII: there is more than one character that breaks lines
            line = json.dumps(self._told(exchange), separators=(",", ":"))
            _log.info("%s", without_keys(line) if "sk_" in line else line)

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
        return {**told, "client": client[0] if client else None} if self._client else told
