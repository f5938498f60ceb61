"""A key that cannot slip out: whatever prints, stores or copies it gets ``***``."""

from __future__ import annotations

import re
from typing import Any, Self

HIDDEN = "***"


class Secret(str):
    """Holds a credential behind the string ``***``; only ``reveal`` gives it out.

    It is that string to ``repr``, ``str``, ``format``, ``json``, ``pickle`` and ``copy``: a copy opens nothing.
    Two secrets are equal only if they are one object, so that no comparison can leak by its time.
    """

    __slots__ = ("_value",)
    _value: str

    def __new__(cls, value: str) -> Self:
        """Hide ``value``. A ``Secret`` stays what it is."""
        secret = super().__new__(cls, HIDDEN)
        object.__setattr__(secret, "_value", value.reveal() if isinstance(value, Secret) else value)
        return secret

    def reveal(self) -> str:
        """Give the credential itself, for the header that carries it and nothing else."""
        return self._value

    def __repr__(self) -> str:
        return HIDDEN

    def __format__(self, spec: str) -> str:
        return format(HIDDEN, spec)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __hash__(self) -> int:
        return id(self)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Secret is constant: {name!r} cannot be set")

    def __getstate__(self) -> None:
        """Nothing: what dumps an object's state dumps no credential."""

    def __reduce_ex__(self, protocol: Any, /) -> tuple[Any, ...]:
        return Secret, (HIDDEN,)


def without_passwords(text: str) -> str:
    """A text that may quote URLs, or what was meant to be some."""
    hidden = re.sub(r"(?<=:)[^\s/:@\"'][^\s\"']*@", f"{HIDDEN}@", text)
    return re.sub(r"(?<=password=)[^&\s\"']*", HIDDEN, hidden)


def without_password(url: str) -> str:
    """A URL that may be shown, even if it is none."""
    shown = re.sub(r"^((?>[\w+]*:?/*))[^@]*:.*@", r"\1", url, flags=re.DOTALL)
    return re.sub(r"(?<=password=)[^&]*", HIDDEN, without_passwords(shown))
