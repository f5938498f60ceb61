"""A page for people: ``create_ui(router)`` is an ASGI application that shows what the store knows, and changes it.

Static files in ``static/``, JSON beside them. It reads and writes through the public surface alone."""

from .app import Authorize, Ui, create_ui
from .sessions import Operator

__all__ = ["Authorize", "Operator", "Ui", "create_ui"]
