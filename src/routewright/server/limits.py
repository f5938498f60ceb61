"""How much, and for how long, the server takes from one client."""

from __future__ import annotations

from msgspec import Struct

from routewright._core.problem import shown
from routewright.errors import Problem, ValidationFailed


class HttpLimits(Struct, frozen=True, kw_only=True):
    """Bounds of one request over HTTP (contract 2, 5).

    app = create_app(router, limits=HttpLimits(body_bytes=1 << 20))
    """

    body_bytes: int = 16 << 20
    """A longer body is 413."""
    body_s: float = 30.0
    """So long a body may take to come; then it is 408."""
    send_s: float = 30.0
    """A client that takes nothing of its stream for so long is taken to have left."""
    heartbeat_s: float = 15.0
    """After so long without an event a stream sends a comment; so long, too, its status is held back at first."""
    query_bytes: int = 8 << 10
    """A longer query is 400."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value: object = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
            if not number or (name.endswith("_bytes") and not isinstance(value, int)):
                kind = "a whole number of bytes" if name.endswith("_bytes") else "seconds"
                raise ValidationFailed.of(Problem(f"HttpLimits.{name}", f"is {shown(value)}", f"take {kind} above 0"))
