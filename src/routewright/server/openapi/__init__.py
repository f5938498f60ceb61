"""``/v1`` as an OpenAPI 3.1 document."""

from .document import document_at, openapi

__all__ = ["document_at", "openapi"]
