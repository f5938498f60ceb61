"""Who calls."""

from typing import Literal

from msgspec import Struct

Environment = Literal["production", "sandbox"]


class Caller(Struct, frozen=True):
    """The account a call belongs to. Every stored thing is kept under it and read back only by it."""

    account: str = "default"
    environment: Environment = "production"
    key_id: str | None = None
