"""The file beside a store that holds its root secret, and in a second line the one before it.

Only its owner can read it. It is made and replaced whole: who reads it meanwhile, or after a crash, finds what it was
or what it is to be.
"""

from __future__ import annotations

import logging
import os
import secrets
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from ._core.derive import MIN_ROOT_BYTES, same
from .errors import PreconditionFailed, RouterError, StorageReadOnly, StorageUnavailable

VARIABLE = "ROUTEWRIGHT_SECRET"
"""The environment variable that stands in its place."""
RANDOM_BYTES = 32
LIVE = 2
"""So many secrets hold at a time."""

_log = logging.getLogger(__name__)


class _Stamp(NamedTuple):
    """Which file it is, and as of when."""

    device: int
    inode: int
    size: int
    changed_ns: int


class _Known(NamedTuple):
    secrets: tuple[bytes, ...]
    stamp: _Stamp | None
    """None: there is no such file, and none could be made."""


class SecretFile:
    """Tells the secrets as they are now: it asks each time whether the file has changed."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._path = secret_path(store)
        self._known: _Known | None = None

    def live(self) -> tuple[bytes, ...]:
        """The secrets, that in use first. A file that is not there is made; one that has gone since is still known.

        Raises ``StorageUnavailable`` for a file that others can read, or that holds none.
        """
        known, stamp = self._known, _stamp(self._path)
        if known is None or (stamp is not None and stamp != known.stamp):
            known = self._known = self._read()
        return known.secrets

    def known(self) -> tuple[bytes, ...]:
        """The same, but that none is made: there may be none."""
        if self._known is None and _stamp(self._path) is None:
            return ()
        return self.live()

    @property
    def lasts(self) -> bool:
        """Whether they are known when this process has ended."""
        self.live()
        return self._known is not None and self._known.stamp is not None

    def rotate(self, base: bytes) -> None:
        """Put a new secret first, and the one in use, which is ``base``, second. Raises ``PreconditionFailed`` where
        another is in use by now, and ``StorageUnavailable`` where it cannot be written."""
        try:
            with _alone(self._path):
                if not same(self.live()[0], base):
                    raise PreconditionFailed(_CHANGED)
                with _part(self._path, [_new(), base]) as part:
                    part.replace(self._path)
                _sync_folder(self._path)
        except OSError as error:
            raise StorageUnavailable(f"{self._path} cannot be replaced ({error.strerror}): see to it") from error

    def _read(self) -> _Known:
        try:
            return _read(self._path)
        except FileNotFoundError:
            pass
        try:
            made = _make(self._path)
        except OSError as error:
            reason = error.strerror
            _log.warning("no secret can be kept beside %s (%s): cursors hold in this process only", self._store, reason)
            return _Known((secrets.token_bytes(RANDOM_BYTES),), None)
        if made and _has_keys(self._store):
            _log.warning("%s was made anew, %s", self._path, _KEYS_LOST)
        return _read(self._path)


def secret_path(store: Path) -> Path:
    """The file beside a store that holds its secret."""
    return store.with_name(f"{store.name}.secret")


_CHANGED = "the root secret is being changed, or was just now: see whether it has to be changed again"


_KEYS_LOST = (
    "and the store has keys already, which were made with another secret and are all refused: "
    f"put the file of its backup back, or set {VARIABLE}"
)


def _has_keys(store: Path) -> bool:
    from .backends.storage.sqlite.upkeep import live_digests  # which few who make a secret need

    try:
        return bool(live_digests(store))
    except RouterError:  # whoever reads the store next is told
        return False


def _new() -> bytes:
    return secrets.token_hex(RANDOM_BYTES).encode()


def _read(path: Path) -> _Known:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            lines = [line.strip() for line in file.read().splitlines()]
    except PermissionError as error:
        raise StorageReadOnly(f"{path} cannot be read: run as its owner, or set {VARIABLE}") from error
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageUnavailable(f"{path} cannot be read ({error.strerror}): see to it, or set {VARIABLE}") from error
    if os.name == "posix" and stat.S_IMODE(status.st_mode) & 0o077:
        raise StorageUnavailable(
            f"others can read {path}: run 'chmod 600 {path}', or set {VARIABLE}; make a new secret if they did"
        )
    found = tuple(line for line in lines if line)[:LIVE]
    if not found or any(len(each) < MIN_ROOT_BYTES for each in found):
        raise StorageUnavailable(f"{path} holds no secret: put back the one of its backup, or delete it for a new one")
    return _Known(found, _stamp_of(status))


def _make(path: Path) -> bool:
    """Write a new secret, unless another process was faster: False."""
    made = False
    with _part(path, [_new()]) as part, suppress(FileExistsError):
        os.link(part, path)
        made = True
    _sync_folder(path)
    return made


@contextmanager
def _part(path: Path, lines: Sequence[bytes]) -> Iterator[Path]:
    """A file of its owner's that is on the disk, beside the place that it is to take."""
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
def _alone(path: Path) -> Iterator[None]:
    """Let no other process replace the file meanwhile. Raises ``PreconditionFailed`` where one is about to."""
    if sys.platform == "win32":  # where a file that is open cannot be replaced
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
    """Have the file found under its name after a power cut."""
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
    return _Stamp(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
