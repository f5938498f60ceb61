"""The one secret that all others are derived from, and for a while the one before it: from ``ROUTEWRIGHT_SECRET``, else
from a file beside the store, else made up for this process (contract 12)."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import NamedTuple, Protocol

from ._core.derive import MIN_ROOT_BYTES, derive, same
from ._core.request.json_scan import is_unicode
from .backends.storage.memory import MemoryStorage
from .companion import Companions
from .errors import PreconditionFailed, Problem, StorageUnavailable, ValidationFailed
from .protocols import LocalStorage, Storage
from .secret_file import LIVE, RANDOM_BYTES, VARIABLE, SecretFile
from .wire.secret import Secret

BEFORE = "ROUTEWRIGHT_SECRET_BEFORE"
"""The environment variable that holds the one before, while it still counts."""
_LONG_ENOUGH = f"take at least {MIN_ROOT_BYTES}, as of 'openssl rand -hex 32'"


class RootSecret:
    """The secrets of what is kept in a storage, as they are now.

    ``given`` takes the place of all else: the one in use, then the one before it. Nothing is read before it is needed.
    """

    def __init__(self, storage: Storage, environment: Mapping[str, str], given: Sequence[bytes] = ()) -> None:
        self.storage = storage
        self._environment = environment
        self._given = given
        self._derived: dict[str, _Derived] = {}

    def live(self) -> tuple[bytes, ...]:
        """The one in use, then the one before it. Raises ``ValidationFailed`` for one that is too short, and
        ``StorageUnavailable`` for a file that others can read."""
        return self._source.live()

    def known(self) -> tuple[bytes, ...]:
        """The same, but that none is made where there is none."""
        return self._source.known()

    def keys(self, purpose: str) -> tuple[bytes, ...]:
        """What each of them has for a purpose (``derive``)."""
        roots = self.live()
        known = self._derived.get(purpose)
        if known is None or known.roots is not roots:
            known = self._derived[purpose] = _Derived(roots, tuple(derive(root, purpose) for root in roots))
        return known.keys

    @property
    def lasts(self) -> bool:
        """Whether it is known for as long as what is kept in the storage."""
        return self._source.lasts

    def rotate(self, base: bytes) -> None:
        """Put a new one in use in the place of ``base``, which is then the one before it. Raises
        ``PreconditionFailed`` where another is in use by now, and ``ValidationFailed`` where that is not ours to do."""
        self._source.rotate(base)

    @cached_property
    def _source(self) -> _Source:
        if self._given:
            return _Told(tuple(self._given), "Console(secret=...)", "pass [the new one, the present one] as secret")
        told = [self._environment.get(name, "").encode(errors="surrogateescape") for name in (VARIABLE, BEFORE)]
        if told[0]:
            _check_lengths(dict(zip((VARIABLE, BEFORE), told, strict=True)))
            hint = f"set {VARIABLE} to a new one and {BEFORE} to the present one, in all processes"
            return _Told(tuple(each for each in told if each), VARIABLE, hint)
        if told[1]:
            raise ValidationFailed.of(Problem(BEFORE, f"is set, and {VARIABLE} is not", f"set {VARIABLE}, too"))
        return SecretFile(self.storage.path) if isinstance(self.storage, LocalStorage) else _made_up(self.storage)


def given_secrets(secret: object) -> tuple[bytes, ...]:
    """The secrets that a caller passed: one, or the one in use and the one before it. Raises ``ValidationFailed``,
    which tells nothing of them."""
    several: Sequence[object] = [secret] if isinstance(secret, str) or not isinstance(secret, Sequence) else secret
    texts = [each for each in several if isinstance(each, str)]
    if len(texts) != len(several) or not 1 <= len(texts) <= LIVE:
        problem = f"is {type(secret).__name__}, not a text, or two of them"
        raise ValidationFailed.of(Problem("secret", problem, "pass the one in use, or [it, the one before it]"))
    plain = {f"secret[{place}]": Secret(text).reveal() for place, text in enumerate(texts)}
    for where, text in plain.items():
        if not is_unicode(text):
            raise ValidationFailed.of(Problem(where, "holds half a character", _LONG_ENOUGH))
    found = {where: text.encode() for where, text in plain.items()}
    _check_lengths(found)
    return tuple(found.values())


class _Derived(NamedTuple):
    roots: tuple[bytes, ...]
    keys: tuple[bytes, ...]


class _Source(Protocol):
    """Where secrets are from. ``live`` gives the same tuple until they change, ``known`` may give none."""

    def live(self) -> tuple[bytes, ...]: ...

    def known(self) -> tuple[bytes, ...]: ...

    @property
    def lasts(self) -> bool: ...

    def rotate(self, base: bytes) -> None: ...


class _Told:
    """Secrets that an operator looks after."""

    lasts = True

    def __init__(self, roots: tuple[bytes, ...], where: str, hint: str) -> None:
        self._roots = roots
        self._where = where
        self._hint = hint

    def live(self) -> tuple[bytes, ...]:
        return self._roots

    known = live

    def rotate(self, base: bytes) -> None:
        raise ValidationFailed.of(Problem(self._where, "holds the root secret, which only you can change", self._hint))


class _MadeUp:
    """Secrets of a storage that ends with the process, or that has no place for them."""

    def __init__(self, *, lasts: bool) -> None:
        self.lasts = lasts
        self._roots: tuple[bytes, ...] = (secrets.token_bytes(RANDOM_BYTES),)

    def live(self) -> tuple[bytes, ...]:
        return self._roots

    known = live

    def rotate(self, base: bytes) -> None:
        if not self.lasts:
            raise StorageUnavailable(f"no root secret is kept anywhere: set {VARIABLE}")
        if not same(self._roots[0], base):
            raise PreconditionFailed("the root secret was changed just now: see whether it has to be changed again")
        self._roots = secrets.token_bytes(RANDOM_BYTES), base


_made_up_for: Companions[_MadeUp] = Companions()


def _made_up(storage: Storage) -> _MadeUp:
    return _made_up_for.of(storage, partial(_MadeUp, lasts=isinstance(storage, MemoryStorage)))


def _check_lengths(told: Mapping[str, bytes]) -> None:
    for where, root in told.items():
        if 0 < len(root) < MIN_ROOT_BYTES or (not root and where != BEFORE):
            raise ValidationFailed.of(Problem(where, f"has {len(root)} bytes", _LONG_ENOUGH))
