"""The HTTP surface: ``create_app(router)`` is an ASGI application that serves ``/v1``."""

from .app import App, create_app
from .limits import HttpLimits

__all__ = ["App", "HttpLimits", "create_app"]
