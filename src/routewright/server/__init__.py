"""The HTTP server: ``create_app(router)`` is an ASGI application for ``/v1``, ``create_admin(router)`` one for health
checks and metrics, ``sse_response(stream)`` a response for an application of your own."""

from .access_log import AccessLog
from .admin import Admin, create_admin
from .app import App, create_app, sse_response
from .exchange import Exchange, Observer
from .http_limits import HttpLimits

__all__ = [
    "AccessLog",
    "Admin",
    "App",
    "Exchange",
    "HttpLimits",
    "Observer",
    "create_admin",
    "create_app",
    "sse_response",
]
