"""The one secret that all others are derived from: from ``ROUTEWRIGHT_SECRET``, else from a file beside the store that
only its owner can read, else made up for this process (contract 12)."""

from __future__ import annotations

import logging
import os
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ._core.derive import MIN_ROOT_BYTES
from .errors import Problem, StorageReadOnly, StorageUnavailable, ValidationFailed
from .protocols import LocalStorage, Storage

VARIABLE = "ROUTEWRIGHT_SECRET"
_BYTES = 32

_log = logging.getLogger(__name__)


def root_secret(storage: Storage, environment: Mapping[str, str]) -> bytes:
    """The root secret of what is kept in a storage. A store in a file gets one beside it at first use.

    Raises ``ValidationFailed`` for one that is too short, and ``StorageUnavailable`` for a file that others can read.
    """
    given = environment.get(VARIABLE, "").encode()
    if given:
        if len(given) < MIN_ROOT_BYTES:
            hint = f"take at least {MIN_ROOT_BYTES}, as of 'openssl rand -hex 32'"
            raise ValidationFailed.of(Problem(VARIABLE, f"has {len(given)} bytes", hint))
        return given
    return _beside(storage.path) if isinstance(storage, LocalStorage) else secrets.token_bytes(_BYTES)


def secret_path(store: Path) -> Path:
    """The file beside a store that holds its secret."""
    return store.with_name(f"{store.name}.secret")


def _beside(store: Path) -> bytes:
    path = secret_path(store)
    try:
        return _read(path)
    except FileNotFoundError:
        pass
    try:
        _make(path)
    except OSError as error:
        _log.warning("no secret can be kept beside %s (%s): cursors hold in this process only", store, error.strerror)
        return secrets.token_bytes(_BYTES)
    return _read(path)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read().strip()
    except PermissionError as error:
        raise StorageReadOnly(f"{path} cannot be read: run as its owner, or set {VARIABLE}") from error
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageUnavailable(f"{path} cannot be read ({error.strerror}): see to it, or set {VARIABLE}") from error
    if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
        raise StorageUnavailable(
            f"others can read {path}: run 'chmod 600 {path}', or set {VARIABLE}; make a new secret if they did"
        )
    if len(content) < MIN_ROOT_BYTES:
        raise StorageUnavailable(f"{path} holds no secret: put back the one of its backup, or delete it for a new one")
    return content


def _make(path: Path) -> None:
    """Write a new secret, whole or not at all, unless another process was faster."""
    part = path.with_name(f"{path.name}.part-{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_hex(_BYTES).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(part, path)
    finally:
        part.unlink(missing_ok=True)
