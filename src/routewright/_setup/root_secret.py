"""The root secret, from which all others are derived, and the previous one: from ``ROUTEWRIGHT_SECRET``, otherwise from
a file beside the store, otherwise random for this process (contract 12)."""

from __future__ import annotations

import logging
import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

from routewright._core.crypto import MIN_DISTINCT, MIN_ROOT_BYTES, derive, same, weakness
from routewright.backends.storage.memory import MemoryStorage
from routewright.errors import PreconditionFailed, RouterError, StorageReadOnly, StorageUnavailable, ValidationFailed
from routewright.protocols import LocalStorage, Storage
from routewright.wire.account import Secret
from routewright.wire.json_scan import is_unicode

from .coordination import Companions

SECRET = "ROUTEWRIGHT_SECRET"
"""The environment variable that replaces the file."""
BEFORE = "ROUTEWRIGHT_SECRET_BEFORE"
"""The environment variable of the previous secret, while it is valid."""
RANDOM_BYTES = 32
LIVE = 2
"""Number of secrets that are valid at a time."""
_GOOD = f"use at least {MIN_ROOT_BYTES} with {MIN_DISTINCT} distinct ones, such as those of 'openssl rand -hex 32'"
_CHANGED = "another process is changing the root secret, or has just changed it; check before you rotate it again"
_KEYS_LOST = (
    "and all keys of the store are refused, since they were made with another secret; "
    f"restore the file from a backup, or set {SECRET}"
)

_log = logging.getLogger(__name__)


class RootSecret:
    """The present root secrets of a storage: the one in use, then the one before it if there is one.

    ``secret``, one or both of them as text, replaces every other source. Nothing is read before it is needed."""

    def __init__(self, storage: Storage, environment: Mapping[str, str], secret: object = None) -> None:
        """Raises ``ValidationFailed``, which does not show secrets."""
        self.storage = storage
        self._environment = environment
        self._configured: tuple[bytes, ...] = ()
        if secret is not None:
            pair: Sequence[object] = [secret] if isinstance(secret, str) or not isinstance(secret, Sequence) else secret
            texts = [text for text in pair if isinstance(text, str)]
            if len(texts) != len(pair) or not 1 <= len(texts) <= LIVE:
                problem = f"is {type(secret).__name__}, not one or two strings"
                raise ValidationFailed.at("secret", problem, "pass the secret in use, or [it, the previous one]")
            texts_by_path = {f"secret[{index}]": Secret(text).reveal() for index, text in enumerate(texts)}
            for path, text in texts_by_path.items():
                if not is_unicode(text):
                    raise ValidationFailed.at(path, "contains an unpaired surrogate", _GOOD)
            roots = {path: text.encode() for path, text in texts_by_path.items()}
            _check_strength(roots)
            self._configured = tuple(roots.values())
        self._derived: dict[str, tuple[tuple[bytes, ...], tuple[bytes, ...]]] = {}
        """Roots and their keys, by purpose."""

    def load(self) -> tuple[bytes, ...]:
        """The secrets. Raises ``ValidationFailed`` for one that is easy to guess, and ``StorageUnavailable`` for a file
        that others can read."""
        return self._source.load()

    def load_existing(self) -> tuple[bytes, ...]:
        """The same, but without making one."""
        return self._source.load_existing()

    def derive_keys(self, purpose: str) -> tuple[bytes, ...]:
        """The key derived from each for a purpose."""
        roots = self.load()
        derived = self._derived.get(purpose)
        if derived is None or derived[0] is not roots:
            derived = self._derived[purpose] = roots, tuple(derive(root, purpose) for root in roots)
        return derived[1]

    @property
    def is_durable(self) -> bool:
        """True if it lives as long as the content of the storage."""
        return self._source.is_durable

    def rotate(self, base: bytes) -> None:
        """Put a new secret before ``base``, the one in use. Raises ``PreconditionFailed`` if another is in use by now,
        and ``ValidationFailed`` if only the operator can change it."""
        self._source.rotate(base)

    @cached_property
    def _source(self) -> _Secrets | SecretFile:
        fixed = "sets the root secret, which only you can change"
        if self._configured:
            hint = "pass [the new one, the present one] as secret"
            return _Secrets(*self._configured, refusal=partial(ValidationFailed.at, "Console(secret=...)", fixed, hint))
        values = [self._environment.get(name, "").encode(errors="surrogateescape") for name in (SECRET, BEFORE)]
        if values[0]:
            _check_strength(dict(zip((SECRET, BEFORE), values, strict=True)))
            hint = f"set {SECRET} to a new one and {BEFORE} to the present one, in all processes"
            return _Secrets(*filter(None, values), refusal=partial(ValidationFailed.at, SECRET, fixed, hint))
        if values[1]:
            raise ValidationFailed.at(BEFORE, f"is set, and {SECRET} is not", f"set {SECRET}, too")
        if isinstance(self.storage, LocalStorage):
            return SecretFile(self.storage.path)
        is_durable = isinstance(self.storage, MemoryStorage)
        refusal = None if is_durable else partial(StorageUnavailable, f"no root secret is stored; set {SECRET}")
        return _random_secrets.of(self.storage, partial(_Secrets, is_durable=is_durable, refusal=refusal))


class _Secrets:
    """Secrets in memory: those of the operator, or random ones for a storage that has no place for them."""

    def __init__(self, *roots: bytes, is_durable: bool = True, refusal: Callable[[], Exception] | None = None) -> None:
        self.is_durable = is_durable
        self._roots = roots or (secrets.token_bytes(RANDOM_BYTES),)
        self._refusal = refusal
        """Makes the error of ``rotate``; None: they can be rotated."""

    def load(self) -> tuple[bytes, ...]:
        return self._roots

    load_existing = load

    def rotate(self, base: bytes) -> None:
        if self._refusal is not None:
            raise self._refusal()
        if not same(self._roots[0], base):
            raise PreconditionFailed(_CHANGED)
        self._roots = secrets.token_bytes(RANDOM_BYTES), base


_random_secrets: Companions[_Secrets] = Companions()


def _check_strength(roots: Mapping[str, bytes]) -> None:
    for path, root in roots.items():
        problem = weakness(root)
        if problem is not None and (root or path != BEFORE):
            raise ValidationFailed.at(path, problem, _GOOD)


_Stamp = tuple[int, int, int, int]
"""Identity, size and time of change of a file."""


class _FileContent(NamedTuple):
    secrets: tuple[bytes, ...]
    stamp: _Stamp | None
    """None: there is no such file, and none could be created."""


class SecretFile:
    """Secrets in a file beside a store: one per line, the present one first. Each use checks if the file has changed.

    Only its owner can read it. It is created and replaced atomically."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._path = secret_path(store)
        self._content: _FileContent | None = None

    def load(self) -> tuple[bytes, ...]:
        """The secrets; creates a missing file. If it vanishes later, they are kept in memory. Raises
        ``StorageUnavailable`` for a file that others can read, or without a secret."""
        content = self._content
        stamp = _stamp(self._path)
        if content is None or (stamp is not None and stamp != content.stamp):
            content = self._content = self._read()
        return content.secrets

    def load_existing(self) -> tuple[bytes, ...]:
        """The same, but without creating the file: there may be none."""
        if self._content is None and _stamp(self._path) is None:
            return ()
        return self.load()

    @property
    def is_durable(self) -> bool:
        """True if they outlive this process."""
        self.load()
        return self._content is not None and self._content.stamp is not None

    def rotate(self, base: bytes) -> None:
        """Put a new secret before ``base``, the one in use. Raises ``PreconditionFailed`` if another is in use by now,
        and ``StorageUnavailable`` if the file cannot be written."""
        # Only two secrets are valid. If two operators rotate at the same time, the second rotation would drop the
        # secret that was in use a moment ago, and every key with it. So the caller passes the secret it saw, which is
        # compared under a lock on the file. Others read without the lock: rename() shows them the old file or the new
        # one.
        # Tests: test_one_of_many_processes_rotates, test_a_crash_at_any_step_of_a_rotation_leaves_the_old_or_the_new.
        try:
            with _lock(self._path):
                if not same(self.load()[0], base):
                    raise PreconditionFailed(_CHANGED)
                with _part(self._path, [_new(), base]) as part:
                    part.replace(self._path)
                _sync_folder(self._path)
        except OSError as error:
            raise StorageUnavailable(f"{self._path} cannot be replaced ({error.strerror}); check its folder") from error

    def _read(self) -> _FileContent:
        # Processes often start together, and each finds no file. If each made a secret of its own, keys digested with
        # the overwritten one would be refused for ever; and if the file was written in place, another process could
        # read half of it, as could everyone after a crash. So the secret is written and synced under another name, and
        # link() gives it the real name, which fails if there is one: one process wins, and all read its file.
        # Tests: test_concurrent_processes_get_the_same_secret,
        # test_a_crash_at_any_step_of_creation_leaves_no_file_or_a_complete_one.
        with suppress(FileNotFoundError):
            return _read(self._path)
        is_new = False
        try:
            with _part(self._path, [_new()]) as part, suppress(FileExistsError):  # another process was faster
                os.link(part, self._path)
                is_new = True
            _sync_folder(self._path)
        except OSError as error:
            message = "no secret can be stored beside %s (%s); cursors are valid in this process only"
            _log.warning(message, self._store, error.strerror)
            return _FileContent((secrets.token_bytes(RANDOM_BYTES),), None)
        if is_new:
            from routewright.backends.storage.sqlite.upkeep import live_digests  # rarely needed

            with suppress(RouterError):  # the next reader of the store reports it
                if live_digests(self._store):
                    _log.warning("%s was missing and is new, %s", self._path, _KEYS_LOST)
        return _read(self._path)


def secret_path(store: Path) -> Path:
    """The file beside a store that holds its secret."""
    return store.with_name(f"{store.name}.secret")


def _new() -> bytes:
    return secrets.token_hex(RANDOM_BYTES).encode()


def _read(path: Path) -> _FileContent:
    from routewright.backends.storage.sqlite.file import check_file  # only a store in a file has one

    check_file(path, chmod="600")
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            lines = [line.strip() for line in file.read().splitlines()]
    except FileNotFoundError:
        raise
    except PermissionError as error:
        raise StorageReadOnly(f"{path} cannot be read; run as its owner, or set {SECRET}") from error
    except OSError as error:
        raise StorageUnavailable(f"{path} cannot be read ({error.strerror}); check it, or set {SECRET}") from error
    if os.name == "posix" and stat.S_IMODE(status.st_mode) & 0o077:
        hint = f"run 'chmod 600 {path}' or set {SECRET}, and rotate the secret if they did"
        raise StorageUnavailable(f"other users can read {path}; {hint}")
    roots = tuple(line for line in lines if line)[:LIVE]
    if not roots or any(weakness(root) for root in roots):
        raise StorageUnavailable(
            f"{path} contains no usable secret; restore it from a backup, or delete it to get a new one"
        )
    return _FileContent(roots, _stamp_of(status))


@contextmanager
def _part(path: Path, lines: Sequence[bytes]) -> Iterator[Path]:
    """A synced temporary file beside a path, readable by its owner only."""
    part = path.with_name(f"{path.name}.part-{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(b"".join(line + b"\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())
        yield part
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Lock the file against replacement. Raises ``PreconditionFailed`` if another process is replacing it."""
    if sys.platform == "win32":  # an open file cannot be replaced there
        yield
        return
    from fcntl import LOCK_EX, LOCK_NB, flock

    with path.open("rb") as file:
        try:
            flock(file, LOCK_EX | LOCK_NB)
        except BlockingIOError as error:
            raise PreconditionFailed(_CHANGED) from error
        if _stamp(path) != _stamp_of(os.fstat(file.fileno())):
            raise PreconditionFailed(_CHANGED)
        yield


def _sync_folder(path: Path) -> None:
    """Make the file name survive a power cut."""
    if os.name != "posix":
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _stamp(path: Path) -> _Stamp | None:
    try:
        return _stamp_of(path.stat())
    except OSError:
        return None


def _stamp_of(status: os.stat_result) -> _Stamp:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
