"""The access log: one line of JSON for each request, without any text of the client's choice."""

from __future__ import annotations

import json
import logging

from routewright.wire import JsonObject
from routewright.wire.account import without_keys
from routewright.wire.timestamps import timestamp

from .errors import RefusedClient
from .exchange import Exchange

_FIELDS = "time method endpoint status code duration_ms bytes request_id trace_id account key_id environment"
_NOTHING: JsonObject = dict.fromkeys(_FIELDS.split())
LONGEST_ADDRESS = 45
"""Longest IPv6 address. A proxy may send anything."""
_log = logging.getLogger("routewright.access")


class AccessLog:
    """Observer of ``create_app`` that logs every request to the logger ``routewright.access`` at ``INFO``.

        logging.getLogger("routewright.access").addHandler(logging.StreamHandler())
        app = create_app(router, observers=[AccessLog()])

    Paths are logged as the table of endpoints has them. ``client=True`` adds the client's address."""

    def __init__(self, *, client: bool = False) -> None:
        self._client = client

    def __call__(self, exchange: Exchange) -> None:
        """Log a request that has ended."""
        if not _log.isEnabledFor(logging.INFO):
            return
        caller, client = exchange.caller, exchange.scope.get("client")
        fields = {
            "time": timestamp(exchange.clock.time()),
            "method": exchange.method_label,
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
        self._write(fields, client[0][:LONGEST_ADDRESS] if client else None)

    def on_refusal(self, client: RefusedClient) -> None:
        """Log a client that was refused before it sent a valid request."""
        if not _log.isEnabledFor(logging.INFO):
            return
        kind = client.refusal.kind
        fields = {
            "time": timestamp(client.at),
            "status": kind.status,
            "code": kind.code,
            "bytes": len(client.response),
            "request_id": client.request_id,
        }
        self._write({**_NOTHING, **fields}, client.client)

    def _write(self, fields: JsonObject, client: str | None) -> None:
        if self._client:
            fields["client"] = client
        line = json.dumps(fields, separators=(",", ":"))  # ASCII, since several characters break lines
        _log.info("%s", without_keys(line) if "sk_" in line else line)
